/* A line of --batch as its caller wrote it: with OpenAI's names of fields, with members that come back with the answer,
 * or as a line of OpenAI's batch format, which is answered in that format.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_BATCH_LINE_H
#define MNEME_CLI_BATCH_LINE_H

#include "input.h"
#include "loaded_model.h"
#include "request/fields.h"

/* form: BODY_LINE is answered as `mneme run --json` does, BODY_CHAT_LINE and BODY_COMPLETION_LINE as OpenAI does;
 * prompts of the last do not go through the chat template. */
typedef struct batch_line {
    unsigned form;
    const json *body; /* where the prompt is, and what the chat template gets */
    bytes fields;     /* JSON text of an object: generation fields by their own names */
    bytes returned;   /* the members id, custom_id and metadata as they were written, a comma behind each */
} batch_line;

/* root: must stay while `body` is read. MN_E_ARG for what is no line; names of fields that are unknown stay in `fields`
 * and are refused where they are read. */
mn_status batch_line_read(batch_line *line, const json *root);
void batch_line_clear(batch_line *line);

/* The answer without a newline. number: of the line. */
void batch_line_answer(bytes *out, const batch_line *line, int number, const loaded_model *e,
                       const mn_generation *generation, const prompt *p, int top_logprobs);

#endif
