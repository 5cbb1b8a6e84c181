/* Chat templates: a conversation into the prompt its model was trained on.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_CHAT_H
#define MN_TEXT_CHAT_H

#include "text/jinja/jinja.h"

typedef struct chat_tokens {
    const char *bos, *eos, *pad, *unk; /* texts of the special tokens; NULL: not defined for the template */
} chat_tokens;

typedef struct chat_request {
    /* Array of objects, each with a string "role"; contents are passed on as they are. Members of messages that are
     * null are left out; "reasoning" or "thinking", a text, is "reasoning_content" too when that is not there. */
    const json *messages;
    const json *tools;     /* array of objects, or NULL */
    const json *documents; /* array of objects, or NULL */
    const json *extra;     /* object whose members become variables too, above all others; or NULL */
    chat_tokens tokens;
    bool add_generation_prompt;
    const struct tm *now;       /* what strftime_now sees; NULL: the local time */
    const jinja_limits *limits; /* NULL: the defaults */
} chat_request;

/* Appends the prompt to *out. MN_E_ARG with one sentence for messages or tools of a wrong form, else as
 * jinja_render. */
mn_status chat_render(const jinja_template *template, const chat_request *request, bytes *out);

/* As chat_render for a template that is used once: compiles it first. */
mn_status chat_render_text(const char *template_text, size_t n, const chat_request *request, bytes *out);

typedef struct chat_turn {
    const char *role, *content;
} chat_turn;

/* A document whose root is the array of messages [{"role": ..., "content": ...}, ...]; texts must be UTF-8 (other bytes
 * become U+FFFD). */
mn_status chat_messages(const chat_turn *turns, size_t n, json_doc **out);

#endif
