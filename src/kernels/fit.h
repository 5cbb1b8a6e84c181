/* Fitting rows of numbers to grids of levels: x[i] is near scale * level(code[i]) + mean, one scale (and
 * mean) for a row.
 *
 * fit_rows finds scale and mean of every row. An even grid takes them from the row's range: no value is cut
 * off. Another starts with mean and deviation, and FIT_ROUNDS times codes the row and refits both by least
 * squares to the levels chosen (Lloyd 1982 with the levels tied to a grid).
 *
 * code_rows gives the nearest level of every value, for given scale and mean; of two equally near ones the
 * outer. A scale of 0 gives one of the two innermost codes.
 *
 * fit_product: y[n_rows][n] = a[n_rows][dim] x[dim][n], each element one chain of products and sums in order
 * of dim; n a multiple of FIT_LANES.
 *
 * All levels of one architecture give the same bits: there is no fused multiply-add, and a row is summed in
 * 16 lanes (element i in lane i % 16) that are then halved until one is left.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_FIT_H
#define MN_KERNELS_FIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FIT_LANES = 16,
    FIT_ROUNDS = 3,
    FIT_BORDERS = 15, /* between magnitudes of a grid that is not even, 5 bits at most */
};

/* The levels of a number of bits as arithmetic. They are symmetric, so magnitudes count; of 8 bits, where 0
 * is a level and the lowest one has no partner, that one is not used. */
typedef struct fit_grid {
    bool is_even;                                   /* from 6 bits on */
    int n_borders;                                  /* not even */
    float borders[FIT_BORDERS], steps[FIT_BORDERS]; /* magnitudes change from borders[i] on, by steps[i] */
    float first;                                    /* the smallest magnitude */
    float spacing, offset;                          /* even: magnitude number round(|u| / spacing - offset) */
    float n_magnitudes;                             /* beyond the first */
    float largest;
    float per_deviation; /* not even: the level that stands for one deviation, to start with */
    float centre, half;  /* code = centre + sign * (number of the magnitude + half) */
} fit_grid;

/* levels: int8[2^bits], 1 to 8 bits, rising and symmetric (8 bits: code - 128). */
void fit_grid_make(fit_grid *grid, const int8_t *levels, int bits);

typedef struct fit_job {
    const fit_grid *grid;
    int n_rows, n;  /* n: of a row, a multiple of FIT_LANES */
    const float *x; /* [n_rows][n] */
    float *scale;   /* [n_rows] */
    float *mean;    /* [n_rows]; NULL: there is none */
    uint8_t *codes; /* [n_rows][n]; code_rows */
} fit_job;

#endif
