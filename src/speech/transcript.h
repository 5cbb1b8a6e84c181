/* The transcript of one recording, as it grows segment by segment.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_TRANSCRIPT_H
#define MN_SPEECH_TRANSCRIPT_H

#include "speech/audio_parts.h"
#include "speech/tokens.h"
#include "speech/words.h"
#include "text/tokenizer/tokenizer.h"

/* Words of a window: their text, the second that the window begins at, in a recording joined of parts (NULL: whole). */
typedef struct transcript_words {
    const speech_word *words;
    size_t n;
    const char *text;
    double offset;
    const audio_parts *parts;
} transcript_words;

typedef struct transcript {
    mn_transcript public;        /* segments are valid from the beginning, text and ids once it is finished */
    const tokenizer *tokenizer;  /* borrowed; NULL: no texts */
    const speech_tokens *tokens; /* borrowed */
    const mn_segment **segments; /* each owned */
    size_t capacity;
    int32_t *ids, *text_ids; /* of all segments, and those of them that are text */
    size_t n_text_ids, ids_capacity, text_capacity;
    bytes text, error;
    char *path; /* owned; public.path points here */
    char language[SPEECH_CODE_BYTES];
} transcript;

/* Appends a segment: times and measures of *segment, its ids copied, its text decoded from them; words may be NULL. On
 * failure nothing has changed. */
mn_status transcript_add(transcript *t, const mn_segment *segment, const transcript_words *words);

/* Fills t->public. status: of the recording; when it failed, mn_last_error() is its message. */
mn_status transcript_finish(transcript *t, mn_status status);

void transcript_clear(transcript *t);

#endif
