/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/logits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"

mn_status logits_open(logits_row *row, const mn_generation_config *config, size_t vocab, uint64_t seed,
                      const int32_t *prompt, size_t n_prompt) {
    *row = (logits_row){.config = config, .vocab = vocab, .seed = seed, .n_prompt = n_prompt};
    size_t k = config->top_k > 0 && (size_t)config->top_k < vocab ? (size_t)config->top_k : 0;
    row->scores = mem_alloc(vocab, sizeof *row->scores);
    if (config->do_sample) row->order = mem_alloc_raw(vocab, sizeof *row->order);
    if (config->do_sample && k) row->heap = mem_alloc_raw(k, sizeof *row->heap);
    if (config->repetition_penalty != 1) row->seen = mem_alloc(vocab / 8 + 1, 1);
    if (!row->scores || (config->do_sample && (!row->order || (k && !row->heap))) ||
        (config->repetition_penalty != 1 && !row->seen)) {
        logits_close(row);
        return MN_E_NOMEM;
    }
    for (size_t i = 0; row->seen && i < n_prompt; i++)
        row->seen[prompt[i] / 8] |= (uint8_t)(1u << prompt[i] % 8);
    return MN_OK;
}

void logits_close(logits_row *row) {
    mem_free(row->scores);
    mem_free(row->seen);
    mem_free(row->order);
    mem_free(row->heap);
    *row = (logits_row){0};
}

void logits_accept(logits_row *row, int32_t id) {
    if (row->seen) row->seen[id / 8] |= (uint8_t)(1u << id % 8);
    row->n_new++;
}

static void penalize_repetition(logits_row *row) {
    float penalty = (float)row->config->repetition_penalty;
    for (size_t byte = 0; byte < row->vocab / 8 + 1; byte++) {
        for (unsigned bits = row->seen[byte]; bits; bits &= bits - 1) {
            size_t id = byte * 8 + (size_t)__builtin_ctz(bits);
            float *score = &row->scores[id];
            *score = *score < 0 ? *score * penalty : *score / penalty;
        }
    }
}

static void forbid_end(logits_row *row) {
    const id_list *end = &row->config->eos_token_id;
    for (size_t i = 0; i < end->n; i++) {
        if ((size_t)end->ids[i] < row->vocab) row->scores[end->ids[i]] = -INFINITY;
    }
}

/* Ties with the k-th largest score are kept. A min-heap of the k largest finds it in one pass. */
static void keep_top_k(logits_row *row, size_t k) {
    float *heap = row->heap;
    for (size_t i = 0; i < row->vocab; i++) {
        float score = row->scores[i];
        size_t at = i;
        if (i < k) { /* sift up */
            for (; at > 0 && heap[(at - 1) / 2] > score; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
            heap[at] = score;
            continue;
        }
        if (!(score > heap[0])) continue;
        for (at = 0;;) { /* replace the smallest, sift down */
            size_t child = 2 * at + 1;
            if (child >= k) break;
            if (child + 1 < k && heap[child + 1] < heap[child]) child++;
            if (heap[child] >= score) break;
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = score;
    }
    float smallest = heap[0];
    for (size_t i = 0; i < row->vocab; i++) {
        if (row->scores[i] < smallest) row->scores[i] = -INFINITY;
    }
}

/* Ids that are not removed, in order of id; how many. */
static size_t list_kept(const logits_row *row) {
    size_t n = 0;
    for (size_t i = 0; i < row->vocab; i++) {
        if (row->scores[i] > -INFINITY) row->order[n++] = (uint32_t)i;
    }
    return n;
}

static int by_score(const void *a, const void *b, void *scores) {
    const float *s = scores;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    if (s[i] != s[j]) return s[i] < s[j] ? -1 : 1;
    return i > j ? -1 : i < j; /* of equals the lower id is kept longer */
}

static double largest_score(const logits_row *row, size_t n) {
    double most = -INFINITY;
    for (size_t i = 0; i < n; i++) most = fmax(most, (double)row->scores[row->order[i]]);
    return most;
}

static double sum_exp(const logits_row *row, size_t n, double most) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += exp((double)row->scores[row->order[i]] - most);
    return sum;
}

/* From the least probable up, tokens go while their probabilities add up to at most 1 - p; the best one
 * stays. */
static void keep_top_p(logits_row *row, double p) {
    size_t n = list_kept(row);
    qsort_r(row->order, n, sizeof *row->order, by_score, row->scores);
    double most = largest_score(row, n), sum = sum_exp(row, n, most), cumulative = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        uint32_t id = row->order[i];
        cumulative += exp((double)row->scores[id] - most) / sum;
        if (cumulative > 1 - p) break;
        row->scores[id] = -INFINITY;
    }
}

static void keep_min_p(logits_row *row, double share) {
    size_t n = list_kept(row);
    double least = largest_score(row, n) + log(share);
    for (size_t i = 0; i < n; i++) {
        if ((double)row->scores[row->order[i]] < least) row->scores[row->order[i]] = -INFINITY;
    }
}

void logits_process(logits_row *row, const float *logits) {
    const mn_generation_config *config = row->config;
    memcpy(row->scores, logits, row->vocab * sizeof *logits);
    if (row->seen) penalize_repetition(row);
    if ((int64_t)(row->n_prompt + row->n_new) < config->min_length ||
        (int64_t)row->n_new < config->min_new_tokens)
        forbid_end(row);
    if (!config->do_sample) return;
    if (config->temperature != 1) {
        float temperature = (float)config->temperature;
        for (size_t i = 0; i < row->vocab; i++) row->scores[i] /= temperature;
    }
    if (row->heap) keep_top_k(row, (size_t)config->top_k);
    if (config->top_p < 1) keep_top_p(row, config->top_p);
    if (config->min_p > 0) keep_min_p(row, config->min_p);
}

static int32_t best_token(const logits_row *row) {
    size_t best = 0;
    for (size_t i = 1; i < row->vocab; i++) {
        if (row->scores[i] > row->scores[best] || isnan(row->scores[best])) best = i;
    }
    return (int32_t)best;
}

int32_t logits_choose(logits_row *row) {
    if (!row->config->do_sample) return best_token(row);
    size_t n = list_kept(row);
    if (n == 0) return best_token(row);
    double most = largest_score(row, n),
           left = sum_exp(row, n, most) * random_uniform(row->seed, 0, row->n_new);
    for (size_t i = 0; i < n; i++) {
        left -= exp((double)row->scores[row->order[i]] - most);
        if (left < 0) return (int32_t)row->order[i];
    }
    return (int32_t)row->order[n - 1];
}

double logits_log_sum(const float *scores, size_t n) {
    double most = -INFINITY, sum = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, (double)scores[i]);
    if (!(most > -INFINITY)) return most;
    for (size_t i = 0; i < n; i++) sum += exp((double)scores[i] - most);
    return most + log(sum);
}
