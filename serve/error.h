/* Errors, as OpenAI's clients read them unless a dialect has its own.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_ERROR_H
#define MNEME_SERVE_ERROR_H

#include "base/mem.h"
#include "mneme.h"

/* Why a request is refused, beside the message in mn_last_error. */
typedef struct refusal {
    int status;        /* of HTTP; 0: 400 */
    const char *code;  /* NULL: "invalid_value" */
    const char *param; /* the field; NULL: none */
} refusal;

/* Writes the body of an error, as a dialect has it. status: of HTTP; param: the field, NULL: none. */
typedef void write_error(bytes *out, int status, const char *code, const char *param, const char *message);

/* Writes the error that a refusal and the thread's message are; returns the status of HTTP. */
int refusal_body(bytes *out, write_error *write, mn_status status, const refusal *why);

/* {"error": {"message", "type", "param", "code"}}; param NULL: null. */
write_error openai_error;
/* The same with a type of the caller's choice. */
void error_body(bytes *out, const char *type, const char *code, const char *param, const char *message);
/* A whole HTTP response with that body, after which the connection is closed. */
void error_response(bytes *out, int status, const char *type, const char *code, const char *message);
/* The type that belongs to a status. */
const char *error_type(int status);

#endif
