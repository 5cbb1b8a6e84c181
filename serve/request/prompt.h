/* Prompts: from the fields of a body to ids.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_PROMPT_H
#define MNEME_SERVE_PROMPT_H

#include "server.h"

enum { MOST_PROMPTS = 64 };

/* A job for each prompt of the field `name`: a string, a list of ids, a list of strings, or a list of lists of ids.
 * They are answered together. */
mn_status prompt_jobs(job **out, server *s, const dialect *form, const char *prefix, const char *name,
                      const json *prompt, refusal *why);
/* A job for messages, rendered by the chat template. */
mn_status prompt_chat_job(job **out, server *s, const dialect *form, const char *prefix, const json *body,
                          refusal *why);
/* The jobs of a body that has one of prompt, ids and messages: *used. */
mn_status prompt_any_jobs(job **out, server *s, const dialect *form, const char *prefix, const json *body,
                          const char **used, refusal *why);
/* The rendered text, owned by the caller. t: NULL: no tools. */
mn_status prompt_render(const server *s, const json *body, const tools *t, char **text, size_t *n, refusal *why);
/* The tools of a chat's body; NULL: none. */
mn_status prompt_tools(tools **out, const server *s, const json *body, refusal *why);

/* Whether the model has a tokenizer (501). */
mn_status prompt_needs_tokenizer(const server *s, refusal *why);
/* Whether it has one, and the body names no other model (404). */
mn_status prompt_check(const server *s, const json *body, refusal *why);
/* The prompt has some token, and no more than the model's context. name: its field. */
mn_status prompt_check_length(const server *s, const job *j, const char *name, refusal *why);
/* A constraint holds from the first token on: what it describes is the answer, also where the prompt begins the
 * reasoning. For jobs that have their prompt and their settings. */
void prompt_close_reasoning(job *j);
/* Sets the job, which has its tools, from the body. */
mn_status prompt_set(job *j, const json *body, bool *streams, refusal *why);
/* Sets jobs that have their prompts, the field `name`, from the body, and checks them. Takes them: on failure they
 * are closed. */
mn_status prompt_finish(job **out, job *first, const server *s, const json *body, const char *name, bool *streams,
                        refusal *why);

#endif
