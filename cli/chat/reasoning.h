/* What a model writes before its answer, between markers as <think> and </think>, told apart from the answer. Markers
 * are those that the chat template names. Where the template's text ends with the first of them, the model begins
 * behind it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_REASONING_H
#define MNEME_CLI_REASONING_H

#include <stdbool.h>

#include "base/mem.h"

/* How a prompt's answer begins. All zero: nothing is told apart. */
typedef struct reasoning {
    const char *begin, *end; /* the markers; NULL: there are none */
    bool is_open;            /* the prompt ends with the first marker */
    bool is_hidden;          /* by --no-thinking: only the answer is shown */
} reasoning;

/* template: the chat template; text [n]: the prompt that it made. */
reasoning reasoning_of(const char *template, const char *text, size_t n);

/* How many bytes of a whole text are reasoning: with its markers, and the blanks around it. */
size_t reasoning_length(const reasoning *r, const char *text, size_t n);

/* Appends the reasoning alone, as a JSON string; n: what reasoning_length returned. */
void reasoning_put(bytes *out, const reasoning *r, const char *text, size_t n);

/* ---- a text that comes in pieces ---- */

typedef struct reasoning_stream {
    bytes text;     /* all of it */
    size_t n_given; /* of it */
    size_t n;       /* bytes of reasoning; known when is_over */
    bool is_over;
} reasoning_stream;

/* Gets the next bytes of the reasoning or of the answer; false: no more is wanted. */
typedef bool reasoning_taker(void *user, bool is_reasoning, const char *text, size_t n);

/* Gives what is known to be one or the other; the rest is kept. False when `take` returned it. */
bool reasoning_push(reasoning_stream *s, const reasoning *r, const char *piece, size_t n, reasoning_taker *take,
                    void *user);
/* Gives the rest, and is ready for another text. */
bool reasoning_finish(reasoning_stream *s, const reasoning *r, reasoning_taker *take, void *user);

#endif
