/* The vocabulary of a speech model: text, special tokens, languages, timestamps, and the rules that come with the
 * checkpoint.
 *
 * Whisper's vocabulary (Radford et al. 2022, "Robust speech recognition via large-scale weak supervision"): text ids,
 * then the end token, then special tokens, "no speech" and "no timestamps" the last two of them, then the timestamps,
 * one every 0.02 s from 0. Read from generation_config.json, and from config.json what it lacks.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_TOKENS_H
#define MN_SPEECH_TOKENS_H

#include <stdbool.h>

#include "base/json.h"
#include "model/model.h"

enum {
    SPEECH_FRAMES_PER_SECOND = 100, /* of mel levels; times inside src/speech are counted in them */
    SPEECH_FRAMES_PER_TIMESTAMP = 2,
    SPEECH_CODE_BYTES = 8, /* a language's code with its terminating zero */
};

typedef struct speech_language {
    int32_t id;
    char code[SPEECH_CODE_BYTES]; /* "en" for <|en|> */
} speech_language;

typedef struct speech_tokens {
    int32_t vocab_size;
    int32_t end;                   /* ids below it are text ids */
    int32_t start;                 /* of the transcript */
    int32_t previous;              /* begins the text of the previous window; -1: none */
    int32_t transcribe, translate; /* -1: the model has no tasks */
    int32_t no_speech, no_timestamps;
    int32_t first_timestamp;       /* 0.00 s; all ids from here on are timestamps */
    int32_t max_initial_timestamp; /* the first timestamp is at most first_timestamp + this; -1: any */
    int32_t max_length;            /* prompt and new ids together */
    int32_t *suppress;             /* never chosen */
    int32_t *begin_suppress;       /* not chosen as the first id */
    speech_language *languages;    /* none: the model has one language */
    cross_head *heads;             /* alignment heads, for times of words; none: not known */
    size_t n_suppress, n_begin_suppress, n_languages, n_heads;
} speech_tokens;

/* The roots of the two files; generation may be NULL. On failure *out is empty: MN_E_FORMAT names file, key and what is
 * allowed, MN_E_NOMEM. */
mn_status speech_tokens_read(speech_tokens *out, const json *config, const json *generation);
/* The same from the files of a Hugging Face folder. */
mn_status speech_tokens_open(speech_tokens *out, const char *folder);
void speech_tokens_close(speech_tokens *tokens);

/* The language of that code; NULL when there is none. */
const speech_language *speech_tokens_language(const speech_tokens *tokens, const char *code);

typedef enum speech_task { SPEECH_TRANSCRIBE, SPEECH_TRANSLATE } speech_task;

/* The ids of text among n, into out (room for all of them); returns how many. */
size_t speech_text_ids(int32_t *out, const speech_tokens *tokens, const int32_t *ids, size_t n);

/* The most ids of previous text in a window's prompt, as in Transformers. */
static inline size_t speech_history_room(const speech_tokens *tokens) {
    return (size_t)tokens->max_length / 2 - 1;
}

/* The ids of the text before a window. */
typedef struct speech_context {
    const int32_t *hotwords, *history; /* [n_hotwords], [n_history]; the history ends where the window begins */
    size_t n_hotwords, n_history;
} speech_context;

/* The decoder's prompt: [previous, the first hotwords, the last ids of the history], start, [language, task],
 * [no_timestamps]. language: NULL for models of one language; context: NULL for none. Hotwords come first in
 * speech_history_room ids, the history has the rest. out: room for max_length / 2 + 4 ids. Returns how many there
 * are. */
size_t speech_prompt(int32_t *out, const speech_tokens *tokens, const speech_language *language, speech_task task,
                     bool timestamps, const speech_context *context);

static inline bool speech_is_timestamp(const speech_tokens *tokens, int32_t id) {
    return id >= tokens->first_timestamp;
}

#endif
