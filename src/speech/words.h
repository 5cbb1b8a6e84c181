/* The words of a text, and when each was spoken.
 *
 * The rules of OpenAI's word timestamps (whisper/tokenizer.py, whisper/timing.py): which ids make a word, to which word
 * punctuation belongs, and how long a word at the border of two sentences may last.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_WORDS_H
#define MN_SPEECH_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SPEECH_SECONDS_PER_POSITION 0.02 /* of the encoder */

typedef struct speech_word {
    size_t token_begin, token_end; /* of the text's ids */
    size_t text_begin, text_end;   /* bytes, the space before it included */
    double start, end;             /* seconds from the window's beginning */
} speech_word;

/* Whether a language ("en") puts spaces between words: all but zh, ja, th, lo, my and yue. */
bool speech_language_has_spaces(const char *code);

/* Groups the n ids of a text to words. text: the bytes of all of them; ends[i]: where id i ends in it; begins [n + 1]
 * from speech_align. words: room for n. With spaces a word begins at a space or at punctuation, else at every
 * character; no word ends inside a character. Punctuation then joins the word that it belongs to, opening marks the
 * next and all other the one before, and does not change its times. A word at the border of two sentences lasts at most
 * twice the usual (the median, at most 0.7 s): the pause between them belongs to neither. Returns how many words there
 * are. */
size_t speech_words(speech_word *words, const char *text, const size_t *ends, size_t n, const int64_t *begins,
                    bool has_spaces);

#endif
