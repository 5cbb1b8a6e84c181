/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <xxhash.h>

#include "base/mem.h"

struct fingerprint {
    XXH3_state_t *state;
};

uint64_t hash_of(const void *data, size_t n) {
    return XXH3_64bits(data, n);
}

uint64_t hash_seeded(const void *data, size_t n, uint64_t seed) {
    return XXH3_64bits_withSeed(data, n, seed) & MN_HASH_MASK;
}

uint64_t hash_seed(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) == (ssize_t)sizeof seed) return seed;
    struct timespec now; /* early after the system's start; better than a constant */
    clock_gettime(CLOCK_MONOTONIC, &now);
    const uint64_t parts[] = {(uint64_t)now.tv_sec, (uint64_t)now.tv_nsec, (uint64_t)(uintptr_t)&seed};
    return XXH3_64bits(parts, sizeof parts);
}

void hash_put(char out[HASH_HEX], uint64_t hash) {
    snprintf(out, HASH_HEX, "%016" PRIx64, hash);
}

bool hash_read(uint64_t *out, const char *text) {
    static const char digits[] = "0123456789abcdef";
    uint64_t hash = 0;
    for (int i = 0; i < HASH_HEX - 1; i++) {
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit) return false;
        hash = hash << 4 | (uint64_t)(digit - digits);
    }
    *out = hash;
    return text[HASH_HEX - 1] == 0;
}

mn_status fingerprint_open(fingerprint **out) {
    *out = mem_alloc(1, sizeof **out);
    if (!*out) return MN_E_NOMEM;
    (*out)->state = XXH3_createState();
    if ((*out)->state) {
        XXH3_128bits_reset((*out)->state);
        return MN_OK;
    }
    fingerprint_close(out);
    return mem_no_memory();
}

void fingerprint_close(fingerprint **f) {
    if (!*f) return;
    XXH3_freeState((*f)->state);
    mem_free(*f);
    *f = NULL;
}

void fingerprint_add(fingerprint *f, const void *data, size_t n) {
    if (n) XXH3_128bits_update(f->state, data, n);
}

void fingerprint_add_sized(fingerprint *f, const void *data, size_t n) {
    uint64_t size = n;
    fingerprint_add(f, &size, sizeof size);
    fingerprint_add(f, data, n);
}

void fingerprint_put(char out[FINGERPRINT_HEX], const fingerprint *f) {
    XXH128_hash_t hash = XXH3_128bits_digest(f->state);
    snprintf(out, FINGERPRINT_HEX, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64, (uint64_t)hash.low64);
}
