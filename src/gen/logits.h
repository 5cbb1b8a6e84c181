/* From raw logits to the next token: processors and warpers in Transformers' order, then the choice.
 *
 * Order (Transformers 4.45-4.56): repetition penalty, min length, min new tokens; when sampling: temperature,
 * top-k, top-p, min-p. A removed token has the score -infinity. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_LOGITS_H
#define MN_GEN_LOGITS_H

#include "gen/generation_config.h"

/* State of one row; everything is allocated at opening. */
typedef struct logits_row {
    const mn_generation_config *config;
    size_t vocab;
    float *scores;   /* [vocab] processed scores of this step */
    uint8_t *seen;   /* [vocab / 8 + 1] tokens of prompt and text so far; NULL without a repetition penalty */
    uint32_t *order; /* [vocab] scratch for the warpers */
    float *heap;     /* [top_k] scratch */
    uint64_t seed;
    size_t n_prompt, n_new;
} logits_row;

mn_status logits_open(logits_row *row, const mn_generation_config *config, size_t vocab, uint64_t seed,
                      const int32_t *prompt, size_t n_prompt);
void logits_close(logits_row *row);

/* Fills row->scores from the raw logits of this step. */
void logits_process(logits_row *row, const float *logits);

/* The next token by row->scores, which logits_process filled: the best one (lowest id on ties), or a draw
 * that depends on seed and step only. */
int32_t logits_choose(logits_row *row);

/* Counts a chosen token. */
void logits_accept(logits_row *row, int32_t id);

/* log softmax(scores)[id]. */
double logits_log_sum(const float *scores, size_t n); /* log of the sum of exp */

#endif
