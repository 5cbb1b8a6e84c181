/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/logits/choice.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "gen/logits/scores.h"

enum { BLOCK = 256 };

mn_status choice_open(choice *c, size_t capacity) {
    *c = (choice){.capacity = capacity};
    c->weights = mem_alloc_raw(capacity, sizeof *c->weights);
    c->block_sums = mem_alloc_raw(capacity / BLOCK + 1, sizeof *c->block_sums);
    if (c->weights && c->block_sums) return MN_OK;
    choice_close(c);
    return MN_E_NOMEM;
}

void choice_close(choice *c) {
    mem_free(c->weights);
    mem_free(c->block_sums);
    *c = (choice){0};
}

int32_t choice_best(const float *scores, size_t n) {
    assert(n > 0);
    float max = scores_max(scores, n);
    size_t at = 0;
    while (at + BLOCK < n && scores_max(scores + at, BLOCK) != max) at += BLOCK;
    while (at + 1 < n && scores[at] != max) at++;
    return scores[at] == max ? (int32_t)at : 0;
}

static size_t block_length(const choice *c, size_t block) {
    return c->n - block * BLOCK < BLOCK ? c->n - block * BLOCK : BLOCK;
}

/* Most blocks after the warpers have only removed tokens and need no exponentials. */
static double weigh_block(float *weights, const float *scores, size_t n, float max) {
    if (scores_max(scores, n) > -INFINITY) return scores_exp(weights, scores, n, max);
    memset(weights, 0, n * sizeof *weights);
    return 0;
}

static double weigh_infinite(float *weights, const float *scores, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        weights[i] = scores[i] == INFINITY ? 1.0f : 0.0f;
        sum += (double)weights[i];
    }
    return sum;
}

static size_t n_blocks(const choice *c) {
    return (c->n + BLOCK - 1) / BLOCK;
}

static void add_blocks(choice *c) {
    c->total = 0;
    for (size_t b = 0; b < n_blocks(c); b++) c->total += c->block_sums[b];
}

void choice_weigh(choice *c, const float *scores, size_t n) {
    float max = scores_max(scores, n);
    c->n = n;
    for (size_t b = 0; b < n_blocks(c); b++) {
        float *weights = c->weights + b * BLOCK;
        const float *block = scores + b * BLOCK;
        c->block_sums[b] = max == INFINITY ? weigh_infinite(weights, block, block_length(c, b))
                                           : weigh_block(weights, block, block_length(c, b), max);
    }
    add_blocks(c);
}

double choice_probability(const choice *c, size_t i) {
    return c->total > 0 ? (double)c->weights[i] / c->total : 0;
}

/* Rounding may carry the search past the end of a block or of the array; then the last index with a weight is returned.
 */
static size_t draw_in_block(const choice *c, size_t block, double left) {
    size_t found = c->n, begin = block * BLOCK;
    for (size_t i = begin; i < begin + block_length(c, block); i++) {
        if (c->weights[i] == 0) continue;
        found = i;
        left -= (double)c->weights[i];
        if (left < 0) break;
    }
    return found;
}

size_t choice_draw(const choice *c, double u) {
    double left = u * c->total;
    size_t last = SIZE_MAX;
    for (size_t b = 0; b < n_blocks(c); b++) {
        if (c->block_sums[b] == 0) continue;
        last = b;
        if (left < c->block_sums[b]) break;
        left -= c->block_sums[b];
    }
    return last == SIZE_MAX ? c->n : draw_in_block(c, last, left);
}

void choice_remove(choice *c, size_t i) {
    size_t block = i / BLOCK, begin = block * BLOCK;
    c->weights[i] = 0;
    c->block_sums[block] = 0;
    for (size_t j = begin; j < begin + block_length(c, block); j++) c->block_sums[block] += (double)c->weights[j];
    add_blocks(c);
}

int32_t choice_sample(choice *c, const float *scores, size_t n, uint64_t seed, uint64_t stream, uint64_t step) {
    choice_weigh(c, scores, n);
    size_t drawn = choice_draw(c, random_uniform(seed, stream, step));
    return drawn < n ? (int32_t)drawn : choice_best(scores, n);
}

size_t choice_sample_several(choice *c, const float *scores, size_t n, uint64_t seed, uint64_t stream, uint64_t step,
                             size_t *drawn, size_t n_drawn) {
    choice_weigh(c, scores, n);
    for (size_t i = 0; i < n_drawn; i++) {
        /* Steps and streams count up from 0, so the upper half of the stream is unused and numbers the draws of a step.
         */
        drawn[i] = choice_draw(c, random_uniform(seed, stream + ((uint64_t)i << 32), step));
        if (drawn[i] == n) return i;
        choice_remove(c, drawn[i]);
    }
    return n_drawn;
}
