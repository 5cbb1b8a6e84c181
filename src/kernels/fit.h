/* Fitting rows of numbers to grids of levels: x[i] is approximately scale * level(code[i]) + mean, with one scale (and
 * mean) for each row.
 *
 * fit_rows computes scale and mean of every row. For a uniform grid they follow from the row's range: no value is
 * clipped. For another grid they start as mean and standard deviation; then FIT_ROUNDS times the row is quantized and
 * both are refitted by least squares to the levels chosen (Lloyd 1982 with the levels tied to a grid).
 *
 * code_rows gives the code of the nearest level for every value, for given scale and mean; of two equally near levels
 * the one of larger magnitude. A scale of 0 gives one of the two innermost codes.
 *
 * fit_product: y[n_rows][n] = a[n_rows][dim] x[dim][n], each element one chain of products and sums in order of dim; n
 * a multiple of FIT_LANES.
 *
 * All levels of one architecture give the same bits: there is no fused multiply-add, and a row is summed in 16 lanes
 * (element i in lane i % 16) that are then halved until one is left.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_FIT_H
#define MN_KERNELS_FIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FIT_LANES = 16,
    FIT_ROUNDS = 3,
    FIT_BORDERS = 15, /* between magnitudes of a non-uniform grid, which has at most 5 bits */
};

/* The levels of a number of bits, in the form that the kernels compute with. They are symmetric, so magnitudes suffice.
 * With 8 bits 0 is a level and the lowest level has no counterpart; that one is not used. */
typedef struct fit_grid {
    bool is_even;                                   /* uniform: 6 bits and more */
    int n_borders;                                  /* non-uniform */
    float borders[FIT_BORDERS], steps[FIT_BORDERS]; /* magnitudes change from borders[i] on, by steps[i] */
    float first;                                    /* the smallest magnitude */
    float spacing, offset;                          /* uniform: magnitude number round(|u| / spacing - offset) */
    float n_magnitudes;                             /* beyond the first */
    float largest;
    float per_deviation; /* non-uniform: initial level of one standard deviation */
    float centre, half;  /* code = centre + sign * (number of the magnitude + half) */
} fit_grid;

/* levels: int8[2^bits], 1 to 8 bits, rising and symmetric (8 bits: code - 128). */
void fit_grid_make(fit_grid *grid, const int8_t *levels, int bits);

typedef struct fit_job {
    const fit_grid *grid;
    int n_rows, n;  /* n: of a row, a multiple of FIT_LANES */
    const float *x; /* [n_rows][n] */
    float *scale;   /* [n_rows] */
    float *mean;    /* [n_rows]; NULL: no mean */
    uint8_t *codes; /* [n_rows][n]; code_rows */
} fit_job;

#endif
