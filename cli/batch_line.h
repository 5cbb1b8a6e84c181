/* A line of --batch as its caller wrote it: with OpenAI's names of fields, with members that come back with the answer,
 * or as a line of OpenAI's batch format, which is answered in that format.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_BATCH_LINE_H
#define MNEME_CLI_BATCH_LINE_H

#include "loaded_model.h"
#include "input.h"

typedef enum batch_form {
    BATCH_OWN,        /* {"prompt", ...}: answered as `mneme run --json` does */
    BATCH_CHAT,       /* {"custom_id", "method", "url", "body"} with the url /v1/chat/completions */
    BATCH_COMPLETION, /* and /v1/completions, whose prompts do not go through the chat template */
} batch_form;

typedef struct batch_line {
    batch_form form;
    bytes fields;   /* JSON text of an object: the prompt and generation fields by their own names */
    bytes returned; /* the members id, custom_id and metadata as they were written, a comma behind each */
} batch_line;

/* MN_E_ARG for what is no line; names of fields that are unknown stay in `fields` and are refused where they are
 * read. */
mn_status batch_line_read(batch_line *line, const json *root);
void batch_line_clear(batch_line *line);

/* The answer without a newline. number: of the line. */
void batch_line_answer(bytes *out, const batch_line *line, int number, const loaded_model *e,
                       const mn_generation *generation, const prompt *p, int top_logprobs);

#endif
