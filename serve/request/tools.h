/* Functions that a model may call: those of a chat request, and the calls in an answer, in the form in which
 * the model's chat template writes them.
 *
 *   Hermes, Qwen, SmolLM3   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number, after a text
 *   Llama 3                 {"name": ..., "parameters": {...}}, alone, perhaps after <|python_tag|>
 *   Mistral                 [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]
 *
 * Special tokens are not in an answer's text, so [TOOL_CALLS] and <|python_tag|> may be missing. A call that the
 * request forces is JSON that matches a schema, in every form.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_TOOLS_H
#define MNEME_SERVE_TOOLS_H

#include "base/json.h"
#include "base/mem.h"
#include "error.h"

typedef struct tools tools;

/* How a dialect writes functions. */
typedef struct tools_shape {
    const char *type; /* of a function */
    bool is_type_optional;
    const char *inner;      /* the member that has its name and schema; NULL: it has them itself */
    const char *parameters; /* its schema */
    const char *allowed;    /* a function, in words */
    const char *choices;    /* what forces a call, in words */
} tools_shape;

/* Whether and what the model must call. */
typedef struct tools_choice {
    bool is_none, is_forced, is_single;
    const json *name; /* of the function that is forced; NULL: any */
} tools_choice;

enum { CALL_ID_LENGTH = 9 }; /* Mistral's templates take ids of 9 characters alone */

typedef struct tools_call {
    char id[CALL_ID_LENGTH + 1];
    const char *name; /* the tools' */
    bytes arguments;  /* JSON */
} tools_call;

/* An answer: its first n_text bytes are text, the calls follow. */
typedef struct tools_answer {
    size_t n_text, n, capacity;
    tools_call *calls; /* [n] */
} tools_answer;

/* template: the model's, for requests with tools. list: as in the request, NULL: absent; with no tools, or the choice
 * of none, *out is NULL. MN_E_ARG with the refusal, MN_E_NOMEM. */
mn_status tools_open(tools **out, const char *template, const tools_shape *shape, const json *list,
                     const tools_choice *choice, refusal *why);
void tools_close(tools **t);

/* The choice where it is a string 'none', 'auto' or 'required', or an object that names a function in `inner`, or
 * itself. */
tools_choice tools_read_choice(const json *body, const char *inner);

/* As chats have them, whatever the dialect. */
const json *tools_list(const tools *t);
/* Text after the rendered messages: the beginning of a forced call; or "". */
const char *tools_prefix(const tools *t);
/* Appends the schema of a forced call; nothing: it is not forced. */
void tools_put_schema(bytes *out, const tools *t);

/* Splits an answer. t NULL, or without memory for calls: all is text. */
tools_answer tools_split(const tools *t, const char *text, size_t n);
void tools_clear(tools_answer *parts);

/* Streams: adds a piece to answer `index` (up to 7) and returns its whole text; *shown bytes of it were shown before,
 * *n may be shown now: what may yet become a call is held back. Without memory it is empty. */
const bytes *tools_push(tools *t, int index, const char *piece, size_t n_piece, size_t *shown, size_t *n);

#endif
