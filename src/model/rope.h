/* Angles of rotary position embeddings: inverse frequencies under every scaling rule, and tables of cosines and sines.
 *
 * Su and others 2021 (RoPE); linear interpolation: Chen and others 2023; yarn: Peng and others 2023; longrope: Ding and
 * others 2024; dynamic and llama3 as Transformers defines them. Value j of the first half of the rotated part pairs
 * with value j of the second half.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_ROPE_H
#define MN_MODEL_ROPE_H

#include "model/config.h"

/* Fills inverse_frequencies[rotary_dim / 2] (radians per position) and the factor that multiplies cosines and sines.
 * total_length: tokens of the whole text at the end of the call; only the rules dynamic and longrope use it. */
void rope_frequencies(const model_config *config, int64_t total_length, double *inverse_frequencies,
                      double *attention_factor);

/* base^(-2 j / (2 n)) for j < n: the frequencies without a rule. */
void rope_plain_frequencies(double base, int64_t n, double *inverse_frequencies);

/* A number that differs exactly when the frequencies differ: keys that were cached under another one must be computed
 * again from the ids. 0 always for rules that do not depend on the length; dynamic: 0 up to max_position_embeddings,
 * the length beyond; longrope: 0 up to original_max_position_embeddings, 1 beyond. */
int64_t rope_regime(const model_config *config, int64_t total_length);

/* Rows for the positions first .. first + n - 1 into cosines[n][n_pairs] and sines[n][n_pairs], computed in double and
 * rounded once. Positions up to 2^31 are accurate. */
void rope_table(const double *inverse_frequencies, int64_t n_pairs, double attention_factor, int64_t first, int64_t n,
                float *cosines, float *sines);

#endif
