/* Which ids may follow: Whisper's rules on the scores of one decoding step; language and speech detection from the
 * first scores.
 *
 * The rules of OpenAI's decoder and of Transformers' logits processors for Whisper (they are the same): suppressed ids,
 * those suppressed at the beginning, and the grammar of timestamps, which come in pairs around text and never go back.
 * Pure functions of the scores and of the ids so far, so greedy search, sampling and beam search share them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_RULES_H
#define MN_SPEECH_RULES_H

#include "speech/tokens.h"

/* scores [vocab_size]: logits or log-probabilities of the next id, changed in place; -infinity where an id may not
 * follow. ids: the n ids generated so far, without the prompt. timestamps: whether they were requested; without them
 * only the suppressed ids are removed (the prompt ends with no_timestamps then). Allocates nothing.
 *
 * With timestamps:
 * - no_timestamps never;
 * - the first id is a timestamp, of max_initial_timestamp steps at most;
 * - behind one timestamp with text before it: another timestamp or the end; behind a pair or behind the first: no
 * timestamp;
 * - no timestamp before the last one; one equal to it only as the second of a pair;
 * - when the timestamps together are more probable than every other id, one of them is taken. */
void speech_rules_apply(float *scores, const speech_tokens *tokens, bool timestamps, const int32_t *ids, size_t n);

/* Probability that there is no speech: of no_speech in the step after the start token. logits [vocab_size], before the
 * rules. */
double speech_no_speech_probability(const float *logits, const speech_tokens *tokens);

/* The most probable language in the logits [vocab_size] of the step behind the start token, NULL when the model has
 * none or the logits are NaN. probabilities: NULL or [n_languages], the softmax over the languages alone. */
const speech_language *speech_detect_language(double *probabilities, const float *logits, const speech_tokens *tokens);

#endif
