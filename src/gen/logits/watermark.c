/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/logits/watermark.h"

#include "base/num.h"

enum { ROUNDS = 4, CANDIDATES = 40 };

/* A permutation of 0..n-1. */
typedef struct permutation {
    uint32_t n;
    int half; /* bits of each half of the network's words */
    uint32_t keys[ROUNDS];
} permutation;

static permutation permutation_of(uint64_t seed, size_t n) {
    permutation p = {.n = (uint32_t)n, .half = 1};
    while ((UINT64_C(1) << 2 * p.half) < n) p.half++;
    for (uint64_t round = 0; round < ROUNDS; round++) p.keys[round] = (uint32_t)random_bits(seed, 0, round);
    return p;
}

/* Multiplying and mixing downwards twice, as 32-bit hashes do. */
static uint32_t scramble(uint32_t x, uint32_t key) {
    x = (x ^ key) * 0x9E3779B1u;
    x = (x ^ x >> 15) * 0x85EBCA77u;
    return x ^ x >> 13;
}

static uint32_t network(const permutation *p, uint32_t x, bool is_inverse) {
    uint32_t mask = (UINT32_C(1) << p->half) - 1, left = x >> p->half, right = x & mask;
    for (int round = 0; round < ROUNDS; round++) {
        if (is_inverse) {
            uint32_t before = right ^ (scramble(left, p->keys[ROUNDS - 1 - round]) & mask);
            right = left;
            left = before;
        } else {
            uint32_t next = left ^ (scramble(right, p->keys[round]) & mask);
            left = right;
            right = next;
        }
    }
    return left << p->half | right;
}

static uint32_t walk(const permutation *p, uint32_t x, bool is_inverse) {
    do { x = network(p, x, is_inverse); } while (x >= p->n);
    return x;
}

static size_t n_green_of(const watermark_config *config, size_t vocab) {
    return (size_t)((double)vocab * config->greenlist_ratio);
}

/* The hash of a token that selfhash multiplies: 1 to a million. */
static uint64_t token_hash(int32_t id) {
    return 1 + random_bits(0x73656C66, 0, (uint64_t)id) % 1000000;
}

static uint64_t seed_of(const watermark_config *config, const int32_t *ids, size_t n, int32_t candidate) {
    uint64_t key = (uint64_t)config->hashing_key;
    if (config->seeding_scheme == WATERMARK_LEFT_HASH) return key * (uint64_t)ids[n - 1];
    /* The candidate is part of its own context, as its last token. */
    uint64_t own = token_hash(candidate), least = key * own * own;
    for (size_t i = n - (size_t)config->context_width; i < n; i++) {
        uint64_t product = key * token_hash(ids[i]) * own;
        if (product < least) least = product;
    }
    return least;
}

bool watermark_is_green(const watermark_config *config, const int32_t *ids, size_t n, int32_t id, size_t vocab) {
    permutation p = permutation_of(seed_of(config, ids, n, id), vocab);
    return walk(&p, (uint32_t)id, true) < n_green_of(config, vocab);
}

void watermark_add(float *scores, const int32_t *green, size_t n_green, double bias) {
    for (size_t i = 0; i < n_green; i++) scores[green[i]] += (float)bias;
}

static void add_left_hash(const watermark_config *config, const int32_t *ids, size_t n, float *scores, size_t vocab) {
    permutation p = permutation_of(seed_of(config, ids, n, 0), vocab);
    for (size_t i = 0; i < n_green_of(config, vocab); i++) {
        int32_t green = (int32_t)walk(&p, (uint32_t)i, false);
        watermark_add(scores, &green, 1, config->bias);
    }
}

/* The best candidates, best first. */
static size_t find_candidates(const float *scores, size_t vocab, int32_t *best) {
    size_t n = 0;
    for (size_t i = 0; i < vocab; i++) {
        if (n == CANDIDATES && !(scores[i] > scores[best[n - 1]])) continue;
        size_t at = n < CANDIDATES ? n++ : n - 1;
        for (; at > 0 && scores[best[at - 1]] < scores[i]; at--) best[at] = best[at - 1];
        best[at] = (int32_t)i;
    }
    return n;
}

static void add_self_hash(const watermark_config *config, const int32_t *ids, size_t n, float *scores, size_t vocab) {
    int32_t best[CANDIDATES], green[CANDIDATES];
    size_t n_best = find_candidates(scores, vocab, best), n_green = 0;
    for (size_t i = 0; i < n_best; i++) {
        if (watermark_is_green(config, ids, n, best[i], vocab)) green[n_green++] = best[i];
    }
    watermark_add(scores, green, n_green, config->bias);
}

void watermark_apply(const watermark_config *config, const int32_t *ids, size_t n, float *scores, size_t vocab) {
    if (n < (size_t)config->context_width) return;
    if (config->seeding_scheme == WATERMARK_LEFT_HASH) {
        add_left_hash(config, ids, n, scores, vocab);
    } else {
        add_self_hash(config, ids, n, scores, vocab);
    }
}
