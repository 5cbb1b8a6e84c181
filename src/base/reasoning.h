/* What a model writes before its answer, between markers as <think> and </think>, told apart from the answer. Markers
 * are those that the chat template names. Where the template's text ends with the first of them, the model begins
 * behind it. Blanks around a marker belong to it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_BASE_REASONING_H
#define MNEME_BASE_REASONING_H

#include <stdbool.h>

#include "base/mem.h"

/* How a prompt's answer begins. All zero: nothing is told apart. */
typedef struct reasoning {
    const char *begin, *end; /* the markers; NULL: there are none */
    bool is_open;            /* the prompt ends with the first marker */
} reasoning;

/* template: the chat template; text [n]: the prompt that it made. */
reasoning reasoning_of(const char *template, const char *text, size_t n);

/* Where the parts of a whole text are. */
typedef struct reasoning_place {
    size_t begin, end; /* the reasoning alone; equal: it is empty, or there is none */
    size_t answer;     /* the answer's first byte; 0: there is no reasoning, nor a marker */
} reasoning_place;

reasoning_place reasoning_find(const reasoning *r, const char *text, size_t n);

/* ---- a text that comes in pieces ---- */

typedef enum reasoning_part { REASONING_MARKER, REASONING_TEXT, REASONING_ANSWER } reasoning_part;

typedef enum reasoning_state {                     /* what comes next */
                               REASONING_BEFORE,   /* the first marker, or what needs none */
                               REASONING_LEADING,  /* blanks behind it */
                               REASONING_INSIDE,   /* reasoning, or the second marker */
                               REASONING_TRAILING, /* blanks behind that */
                               REASONING_OVER      /* the answer */
} reasoning_state;

/* All zero: nothing has come. */
typedef struct reasoning_stream {
    bytes held; /* what may yet be a part of a marker, or blanks before one */
    reasoning_state state;
} reasoning_stream;

/* Gets the next bytes, n > 0, of a part; false: no more is wanted. */
typedef bool reasoning_taker(void *user, reasoning_part part, const char *text, size_t n);

/* Gives what is known to be of one part; the rest is held. False when `take` returned it. */
bool reasoning_push(reasoning_stream *s, const reasoning *r, const char *piece, size_t n, reasoning_taker *take,
                    void *user);
/* Gives the rest, and is ready for another text. */
bool reasoning_finish(reasoning_stream *s, const reasoning *r, reasoning_taker *take, void *user);

#endif
