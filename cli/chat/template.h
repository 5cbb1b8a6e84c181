/* What the chat template gets besides messages: --tools, --documents, --template-var, --thinking, and the members of a
 * batch line that are above them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_TEMPLATE_H
#define MNEME_CLI_TEMPLATE_H

#include "options.h"

typedef struct template_input {
    bytes tools, documents, variables; /* JSON texts, zero-terminated; empty: none */
    bool hides_reasoning;              /* --no-thinking */
} template_input;

/* Of the options. MN_E_ARG, and the statuses of files. */
mn_status template_input_read(template_input *t, const options *o);

/* The same with the members tools, documents and chat_template_kwargs of a line: the first two take the place of the
 * options', the variables are put above theirs. */
mn_status template_input_of_line(template_input *t, const template_input *standard, const json *line);

void template_input_clear(template_input *t);

/* Messages, JSON text, through the chat template, up to the beginning of the answer unless add_generation_prompt is
 * false. *text is the caller's. */
mn_status template_render(char **text, size_t *n_text, const mn_tokenizer *tokenizer, const template_input *t,
                          const char *messages, size_t n, bool add_generation_prompt);

/* For what goes through no template: MN_E_ARG when one of the flags is given. */
mn_status template_refuse(const options *o);

#endif
