/* Arithmetic on the scores of one position: one float for each token, minus infinity where the token is removed.
 *
 * Sums are taken in a fixed order that does not depend on the machine's vector length, so the same scores give the same
 * bits on every x86-64 level. Exponentials are within 2 units in the last place; below -87 they are 0. NaN counts as
 * removed.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_LOGITS_SCORES_H
#define MN_GEN_LOGITS_SCORES_H

#include <stddef.h>

/* The largest score; -infinity when there is none. */
float scores_max(const float *scores, size_t n);

/* The smallest value, and the largest that is not infinite (-infinity when there is none). */
void scores_range(const float *values, size_t n, float *least, float *most);

/* out[i] = exp(scores[i] - max), max at least as large as every score and finite; returns their sum. `out` may be
 * `scores`. */
double scores_exp(float *out, const float *scores, size_t n, float max);

/* log(sum of exp(score)); -infinity when nothing is left, +infinity when a score is. */
double scores_log_sum(const float *scores, size_t n);

/* scores - scores_log_sum; unchanged where that is not finite. */
void scores_log_softmax(float *scores, size_t n);

/* Classifier-free guidance (Sanchez et al. 2023): scores become g (log_softmax(scores) - log_softmax(u)) +
 * log_softmax(u), with u the scores of the same position without the prompt. */
void scores_guide(float *scores, const float *unconditional, size_t n, double g);

#endif
