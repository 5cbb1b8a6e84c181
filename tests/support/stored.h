/* Sessions against the oracle over what their caches hold: keys and values as decoded, states.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_STORED_H
#define TESTS_STORED_H

#include "support/engine.h"
#include "support/oracle.h"

/* Of logits, in f32: what other correct float32 and float64 runs of the golden checkpoints differ by, with a margin of three. */
#define STORED_TOLERANCE 2e-4

/* Of logits, in parts of their spread, where keys, values or weights are bf16, which is off by 2^-9 of a number at most and by
 * a fifth of a percent of many: in each of three layers once in the scores, which are of the order of ten at most, and once in
 * the weights. */
#define STORED_BF16_TOLERANCE 0.03

/* One more token of the session against the oracle over what it holds before, under the windows of its cache; the messages
 * name the model and `what`. */
void stored_check_step(const char *model, const oracle *natural, mn_session *session, int32_t id, const char *what);

#endif
