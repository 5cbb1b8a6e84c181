/* The text generation checkpoints of tests/data/golden.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAMILIES_H
#define TESTS_FAMILIES_H

#include <stddef.h>

/* The first N_GOLDEN_BEAMS have beams and N_GOLDEN_CASES other continuations; the rest, made by tools/make_goldens.py,
 * has N_GOLDEN_SMALL_CASES and no beams. */
enum {
    N_GOLDEN_FAMILIES = 28,
    N_GOLDEN_BEAMS = 20,
    N_GOLDEN_CASES = 8,
    N_GOLDEN_SMALL_CASES = 2,
};

extern const char *const golden_families[N_GOLDEN_FAMILIES]; /* folders of golden/ */

/* Fails for a model type of config.h, other than Whisper's, that no checkpoint of a table of a test has: its n rows of
 * `size` bytes name folders of golden/, the first of them at `first`. */
void families_need_every_type(const char *table, const char *const *first, size_t size, size_t n);

#endif
