/* Shared by tests of kernels: outputs between guard bytes, unaligned inputs, CPU levels of this machine, tolerances.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_KERNEL_CHECK_H
#define TESTS_KERNEL_CHECK_H

#include "kernels/kernels.h"
#include "support/support.h"

/* A block of n bytes between guard bytes and inaccessible pages: a write outside the block fails the test, an access 64
 * bytes after it ends the program. `shift` moves it off 64-byte alignment. Contents start as 0xA5. */
typedef struct guarded {
    void *data;
    size_t bytes;
    char *base; /* owned; of the mapping */
    size_t n_inner;
} guarded;

guarded guarded_make(size_t n, size_t shift);
void guarded_check(const guarded *block, const char *what); /* fails the test when a guard byte has changed */
void guarded_free(guarded *block);                          /* checks, then frees */

/* Every level this machine can run, from `first` on. */
#define FOR_LEVELS(level, first)                                                                                       \
    for (cpu_level level = (first); level < N_CPU_LEVELS; level = (cpu_level)(level + 1))                              \
        if (cpu_has(level))

/* Fails unless |got - expected| <= c * eps * terms, with eps = 2^-24 and terms the sum of the absolute values of the
 * summands. The message names the case. */
void check_close(double got, double expected, double terms, double c, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Random floats: uniform in -1..1 with a few zeros and some values ten times as large. */
void random_floats(uint64_t *seed, float *x, size_t n);

#endif
