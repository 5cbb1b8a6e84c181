/* Results of a generation as JSON and as files.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_RESULT_H
#define MNEME_CLI_RESULT_H

#include "loaded_model.h"
#include "input.h"

void result_put_ids(bytes *b, const int32_t *ids, size_t n); /* [1,2,3] */
/* The cache object: {"implementation", "tokens", ...}. */
void result_put_cache(bytes *b, const mn_cache_info *cache);

/* One result object without a newline. Reasoning is a member of its own, beside the text, which has it too unless it is
 * hidden. top_logprobs: -1 for none, else how many best ones each token has. */
void result_put(bytes *b, const loaded_model *e, const mn_generation *generation, const prompt *p, int top_logprobs);

/* Writes F32 "scores" (raw: "logits") [steps][rows][vocab] of n generations side by side: their sequences, or with
 * beams the running ones; NaN where one had already ended. */
mn_status result_write_scores(const char *path, mn_generation *const *generations, size_t n, int32_t vocab_size,
                              bool raw);

#endif
