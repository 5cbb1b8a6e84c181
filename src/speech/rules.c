/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/rules.h"

#include <math.h>

#include "gen/logits/scores.h"

static void forbid_each(float *scores, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) scores[ids[i]] = -INFINITY;
}

static void forbid_range(float *scores, int64_t from, int64_t to) {
    for (int64_t id = from; id < to; id++) scores[id] = -INFINITY;
}

/* The first timestamp that may follow, and whether text or timestamps are forbidden. */
static void apply_grammar(float *scores, const speech_tokens *t, const int32_t *ids, size_t n) {
    int64_t first = t->first_timestamp;
    bool after_timestamp = n >= 1 && speech_is_timestamp(t, ids[n - 1]);
    bool is_opened = n < 2 || speech_is_timestamp(t, ids[n - 2]); /* the last timestamp opens a segment */
    if (after_timestamp) {
        if (is_opened) {
            forbid_range(scores, first, t->vocab_size);
        } else {
            forbid_range(scores, 0, t->end);
        }
    }
    size_t last = n;
    while (last > 0 && !speech_is_timestamp(t, ids[last - 1])) last--;
    if (last > 0) forbid_range(scores, first, ids[last - 1] + (after_timestamp ? 0 : 1));
    if (n > 0) return;
    forbid_range(scores, 0, first);
    if (t->max_initial_timestamp >= 0) forbid_range(scores, first + t->max_initial_timestamp + 1, t->vocab_size);
}

void speech_rules_apply(float *scores, const speech_tokens *tokens, bool timestamps, const int32_t *ids, size_t n) {
    const speech_tokens *t = tokens;
    forbid_each(scores, t->suppress, t->n_suppress);
    if (n == 0) forbid_each(scores, t->begin_suppress, t->n_begin_suppress);
    if (!timestamps) return;
    scores[t->no_timestamps] = -INFINITY;
    apply_grammar(scores, t, ids, n);
    size_t n_other = (size_t)t->first_timestamp, n_timestamps = (size_t)t->vocab_size - n_other;
    /* Both sides lack the same normalizer. */
    if (scores_log_sum(scores + n_other, n_timestamps) > scores_max(scores, n_other))
        forbid_range(scores, 0, t->first_timestamp);
}

double speech_no_speech_probability(const float *logits, const speech_tokens *tokens) {
    double p = exp((double)logits[tokens->no_speech] - scores_log_sum(logits, (size_t)tokens->vocab_size));
    return p <= 1.0 ? p : p > 1.0 ? 1.0 : 0.0; /* 0 when the logits are NaN */
}

const speech_language *speech_detect_language(double *probabilities, const float *logits, const speech_tokens *tokens) {
    const speech_language *best = NULL;
    double sum = 0.0;
    for (size_t i = 0; i < tokens->n_languages; i++) {
        float score = logits[tokens->languages[i].id];
        if (score > (best ? logits[best->id] : -INFINITY)) best = &tokens->languages[i];
    }
    for (size_t i = 0; best && i < tokens->n_languages; i++) {
        float score = logits[tokens->languages[i].id];
        if (score <= logits[best->id]) sum += exp((double)score - logits[best->id]);
    }
    for (size_t i = 0; probabilities && i < tokens->n_languages; i++) {
        float score = logits[tokens->languages[i].id];
        probabilities[i] = best && score <= logits[best->id] ? exp((double)score - logits[best->id]) / sum : 0.0;
    }
    return best;
}
