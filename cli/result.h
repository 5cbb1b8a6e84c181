/* Results of a generation as JSON and as files.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_RESULT_H
#define MNEME_CLI_RESULT_H

#include "engine.h"
#include "input.h"

void result_put_ids(bytes *b, const int32_t *ids, size_t n); /* [1,2,3] */
/* The cache object: {"implementation", "tokens", ...}. */
void result_put_cache(bytes *b, const mn_cache_info *cache);

/* One result object without a newline. prompts [n_prompts]: the rows of the run; only_row: -1 for all
 * sequences, else those of this row. top_logprobs: -1 for none, else how many best ones each token has. */
void result_put(bytes *b, const engine *e, const mn_generation *generation, const prompt *prompts,
                size_t n_prompts, int only_row, int top_logprobs);

/* Writes F32 "scores" (raw: "logits") [steps][sequences][vocab], with beams [steps][running beams][vocab]; NaN where a sequence, or
 * a row's beams, had already ended. */
mn_status result_write_scores(const char *path, const mn_generation *generation, int32_t vocab_size,
                              bool raw);

#endif
