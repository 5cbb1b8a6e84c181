/* A linear read of memory, as fast as one thread can.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BENCH_READ_H
#define MN_BENCH_READ_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu.h"

/* The sum of n words, a multiple of 32; it keeps the compiler from removing the read. Fetches ahead as far as a single
 * row of weights does. */
static inline uint64_t read_words(const uint64_t *words, size_t n) {
    const size_t ahead = cpu_prefetch_bytes();
    uint64_t lanes[32] = {0}, sum = 0;
    for (size_t i = 0; i + 32 <= n; i += 32) {
        for (size_t line = 0; line < 4; line++) __builtin_prefetch((const char *)(words + i + line * 8) + ahead, 0, 3);
        for (size_t j = 0; j < 32; j++) lanes[j] += words[i + j];
    }
    for (size_t j = 0; j < 32; j++) sum += lanes[j];
    return sum;
}

#endif
