/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/words.h"

#include <string.h>

#include "base/utf8.h"

/* A list of marks contains a word when the word is a substring of it, as Python's `in` tests. */
static const char ascii_marks[] = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
static const char opening_marks[] = "\"'“¿([{-";
static const char closing_marks[] = "\"'.。,，!！?？:：”)]}、";
static const char sentence_marks[] = ".。!！?？";

#define LONGEST_USUAL 0.7 /* seconds */

bool speech_language_has_spaces(const char *code) {
    static const char *const without[] = {"zh", "ja", "th", "lo", "my", "yue"};
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        if (strcmp(code, without[i]) == 0) return false;
    }
    return true;
}

static bool is_piece_of(const char *marks, size_t n_marks, const char *text, size_t n) {
    for (size_t i = 0; i + n <= n_marks; i++) {
        if (memcmp(marks + i, text, n) == 0) return true;
    }
    return false;
}
#define IS_PIECE_OF(marks, text, n) is_piece_of(marks, sizeof(marks) - 1, text, n)

static size_t skip_spaces(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && (text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r'))) i++;
    return i;
}

/* The text without surrounding spaces. */
static const char *trimmed(const char *text, size_t *n) {
    size_t skipped = skip_spaces(text, *n);
    text += skipped;
    *n -= skipped;
    while (*n && skip_spaces(text + *n - 1, 1)) --*n;
    return text;
}

/* Bytes of the character at text[i]; invalid bytes count one by one. */
static size_t character_bytes(const char *text, size_t i, size_t n) {
    size_t length = utf8_sequence(text + i, n - i);
    return length ? length : 1;
}

/* Joins ids into pieces that end with a whole character. */
static size_t split_characters(speech_word *words, const char *text, const size_t *ends, size_t n) {
    size_t n_words = 0, border = 0, n_text = ends[n - 1];
    speech_word word = {0};
    for (size_t i = 0; i < n; i++) {
        while (border < ends[i]) border += character_bytes(text, border, n_text);
        if (border != ends[i] && i + 1 < n) continue;
        word.token_end = i + 1;
        word.text_end = ends[i];
        words[n_words++] = word;
        word.token_begin = i + 1;
        word.text_begin = ends[i];
    }
    return n_words;
}

static bool begins_word(const char *text, const speech_word *word) {
    const char *piece = text + word->text_begin;
    size_t n = word->text_end - word->text_begin;
    if (n && piece[0] == ' ') return true;
    piece = trimmed(piece, &n);
    return IS_PIECE_OF(ascii_marks, piece, n);
}

static void join(speech_word *left, const speech_word *right) {
    left->token_end = right->token_end;
    left->text_end = right->text_end;
}

static size_t join_pieces(speech_word *words, size_t n, const char *text) {
    size_t n_words = 0;
    for (size_t i = 0; i < n; i++) {
        if (n_words == 0 || begins_word(text, &words[i])) {
            words[n_words++] = words[i];
        } else {
            join(&words[n_words - 1], &words[i]);
        }
    }
    return n_words;
}

static double duration(const speech_word *word) {
    return word->end - word->start;
}

/* The k-th smallest duration above 0. A window has few words, so sorting is not worth it. */
static double kth_duration(const speech_word *words, size_t n, size_t k) {
    double best = 0.0;
    for (size_t i = 0; i < n; i++) {
        size_t below = 0, equal = 0;
        for (size_t m = 0; m < n && duration(&words[i]) > 0.0; m++) {
            below += duration(&words[m]) > 0.0 && duration(&words[m]) < duration(&words[i]);
            equal += duration(&words[m]) == duration(&words[i]);
        }
        if (below <= k && k < below + equal) best = duration(&words[i]);
    }
    return best;
}

static double usual_duration(const speech_word *words, size_t n) {
    size_t n_long = 0;
    for (size_t i = 0; i < n; i++) n_long += duration(&words[i]) > 0.0;
    if (n_long == 0) return 0.0;
    double median = (kth_duration(words, n, (n_long - 1) / 2) + kth_duration(words, n, n_long / 2)) / 2.0;
    return median < LONGEST_USUAL ? median : LONGEST_USUAL;
}

static bool ends_sentence(const char *text, const speech_word *word) {
    return IS_PIECE_OF(sentence_marks, text + word->text_begin, word->text_end - word->text_begin);
}

static void shorten(speech_word *words, size_t n, const char *text) {
    double longest = 2.0 * usual_duration(words, n);
    for (size_t i = 1; i < n && longest > 0.0; i++) {
        if (duration(&words[i]) <= longest) continue;
        if (ends_sentence(text, &words[i])) {
            words[i].end = words[i].start + longest;
        } else if (ends_sentence(text, &words[i - 1])) {
            words[i].start = words[i].end - longest;
        }
    }
}

/* An opening mark with a space before it joins the word behind it; from the last to the first, so that several join. */
static void merge_opening(speech_word *words, size_t n, const char *text) {
    for (size_t i = n - 1, next = n - 1; i-- > 0;) {
        const char *piece = text + words[i].text_begin;
        size_t n_piece = words[i].text_end - words[i].text_begin;
        bool has_space = n_piece && piece[0] == ' ';
        piece = trimmed(piece, &n_piece);
        if (has_space && IS_PIECE_OF(opening_marks, piece, n_piece)) {
            words[next].token_begin = words[i].token_begin;
            words[next].text_begin = words[i].text_begin;
            words[i].token_end = words[i].token_begin;
        } else {
            next = i;
        }
    }
}

/* A closing mark joins the word before it, unless that ends with a space. */
static void merge_closing(speech_word *words, size_t n, const char *text) {
    for (size_t i = 1, last = 0; i < n; i++) {
        if (words[i].token_begin == words[i].token_end) continue;
        const speech_word *before = &words[last];
        bool has_space = before->text_end > before->text_begin && text[before->text_end - 1] == ' ';
        bool is_empty = before->token_begin == before->token_end;
        size_t n_piece = words[i].text_end - words[i].text_begin;
        if (!is_empty && !has_space && IS_PIECE_OF(closing_marks, text + words[i].text_begin, n_piece)) {
            join(&words[last], &words[i]);
            words[i].token_end = words[i].token_begin;
        } else {
            last = i;
        }
    }
}

size_t speech_words(speech_word *words, const char *text, const size_t *ends, size_t n, const int64_t *begins,
                    bool has_spaces) {
    if (n == 0 || ends[n - 1] == 0) return 0;
    size_t n_words = split_characters(words, text, ends, n), n_left = 0;
    if (has_spaces) n_words = join_pieces(words, n_words, text);
    for (size_t i = 0; i < n_words; i++) {
        words[i].start = (double)begins[words[i].token_begin] * SPEECH_SECONDS_PER_POSITION;
        words[i].end = (double)begins[words[i].token_end] * SPEECH_SECONDS_PER_POSITION;
    }
    shorten(words, n_words, text);
    merge_opening(words, n_words, text);
    merge_closing(words, n_words, text);
    for (size_t i = 0; i < n_words; i++) {
        bool is_left = words[i].token_begin < words[i].token_end && words[i].text_begin < words[i].text_end;
        if (is_left) words[n_left++] = words[i];
    }
    return n_left;
}
