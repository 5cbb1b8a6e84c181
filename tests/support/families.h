/* The checkpoints of tests/data/golden that write text.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAMILIES_H
#define TESTS_FAMILIES_H

enum {
    N_GOLDEN_FAMILIES = 28,
    N_GOLDEN_BEAMS =
        20, /* the first ones: with beams and eight other continuations; the rest, of tools/make_goldens.py, has two */
    N_GOLDEN_CASES = 8,
    N_GOLDEN_SMALL_CASES = 2,
};

extern const char *const golden_families[N_GOLDEN_FAMILIES]; /* folders of golden/ */

#endif
