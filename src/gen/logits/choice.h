/* From processed scores to tokens: the best one, or draws from their distribution.
 *
 * Draws depend on seed, stream and step only. With several returned sequences the stream is the sequence's index.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_LOGITS_CHOICE_H
#define MN_GEN_LOGITS_CHOICE_H

#include "base/mem.h"

/* Scratch of the draws of one row, or of all beams of a row (then n is beams times vocabulary). */
typedef struct choice {
    float *weights;     /* [n] exp(score - max) */
    double *block_sums; /* sums of blocks of weights */
    double total;       /* 0: nothing to draw */
    size_t n, capacity;
} choice;

mn_status choice_open(choice *c, size_t capacity);
void choice_close(choice *c);

/* Index of the largest score, the lowest on ties; NaN never wins over a number. n at least
 * 1. */
int32_t choice_best(const float *scores, size_t n);

/* Computes the distribution softmax(scores); n up to the capacity. Infinite scores share all of it. */
void choice_weigh(choice *c, const float *scores, size_t n);

/* After choice_weigh: the probability of i, and the index whose part of the cumulative distribution contains u in [0,
 * 1). An index of probability 0 is never drawn; with a total of 0 it is n. */
double choice_probability(const choice *c, size_t i);
size_t choice_draw(const choice *c, double u);

/* After choice_weigh: removes i from the distribution; the others keep their proportions. */
void choice_remove(choice *c, size_t i);

/* One draw from softmax(scores); the best score if nothing can be drawn. */
int32_t choice_sample(choice *c, const float *scores, size_t n, uint64_t seed, uint64_t stream, uint64_t step);

/* Draws `n_drawn` different indices from softmax(scores), without replacement, into `drawn`. Returns their number:
 * fewer only when fewer have a probability. */
size_t choice_sample_several(choice *c, const float *scores, size_t n, uint64_t seed, uint64_t stream, uint64_t step,
                             size_t *drawn, size_t n_drawn);

#endif
