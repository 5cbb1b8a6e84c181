/* Messages for the chat template, collected from those of a dialect. Turns of one role that follow each other become
 * one message, and so do the blocks of a turn: a line end is between them. Calls belong to the message of the assistant
 * before them; the result of each is a message of the role 'tool'.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_TURNS_H
#define MNEME_SERVE_TURNS_H

#include "server.h"

typedef struct turns {
    bytes messages; /* as JSON, without brackets: "{...},{...}" */
    bytes text;     /* of the last one, which is not among them yet */
    bytes calls;    /* its calls, as JSON without brackets */
    bool has_text;
    char role[16]; /* its role; "": there is none */
} turns;

/* Where a block is, for messages about it. */
typedef struct turns_place {
    const char *where; /* as "messages[2].content" */
    const char *param; /* the field */
} turns_place;

/* Adds one block of a role's turn. MN_E_ARG with the refusal, MN_E_NOMEM. */
typedef mn_status turns_block(turns *t, const char *role, const json *block, turns_place at, refusal *why);

/* A type of blocks, and what adds them. */
typedef struct turns_type {
    const char *type;
    turns_block *add;
} turns_type;

/* Adds a turn. content: a string, or a list of blocks {"type", ...} whose type is one of types [type NULL at the end].
 */
mn_status turns_add(turns *t, const char *role, const json *content, const turns_type *types, turns_place at,
                    refusal *why);

/* Blocks with "text"; blocks that are ignored. */
turns_block turns_text, turns_nothing;

/* A call of the assistant. arguments: an object, or its text. */
mn_status turns_call(turns *t, const json *id, const json *name, const json *arguments, turns_place at, refusal *why);
/* Its result. content: as in turns_add; NULL: nothing. */
mn_status turns_result(turns *t, const json *id, const json *content, const turns_type *types, turns_place at,
                       refusal *why);
/* An answer: text [n_text], then its calls. */
mn_status turns_answer(turns *t, const char *text, const tools_answer *parts);

/* Ends the last message: what follows is another one. */
mn_status turns_end_message(turns *t);

/* The job's prompt is this conversation with the job's tools; continues: the last message is the beginning of the
 * answer. */
mn_status turns_take(turns *t, job *j, const server *s, bool continues, const char *param, refusal *why);

/* "messages[1]: role is 3, allowed: ..."; value NULL: absent. MN_E_ARG. */
mn_status turns_refuse(turns_place at, const char *key, const json *value, const char *allowed, refusal *why);

void turns_close(turns *t);

#endif
