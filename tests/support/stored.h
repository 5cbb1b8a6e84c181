/* Sessions against the oracle over the contents of their caches: dequantized keys and values, states.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_STORED_H
#define TESTS_STORED_H

#include "support/engine.h"
#include "support/oracle.h"

/* Tolerance of logits in f32: the difference between correct float32 and float64 runs of the golden checkpoints, with a
 * margin of three. */
#define STORED_TOLERANCE 2e-4

/* Tolerance of logits relative to their spread where keys, values or weights are bf16, whose relative error is at most
 * 2^-9: in each of three layers once in the scores, which are of the order of ten at most, and once in the weights. */
#define STORED_BF16_TOLERANCE 0.03

/* Steps the session by one token and compares with the oracle over the cache's contents before, with the windows of its
 * cache; messages name the model and `what`. */
void stored_check_step(const char *model, const oracle *natural, mn_session *session, int32_t id, const char *what);

#endif
