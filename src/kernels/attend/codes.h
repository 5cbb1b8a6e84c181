/* Quantized streams: keys or values of one head in one page, one to eight bits per value, and attention on them.
 *
 * A stream of a page is a matrix of steps and lanes, laid out for dot products of bytes, four steps at a time:
 *
 *   keys     steps are dimensions, lanes are tokens       (a score sums over dimensions)
 *   values   steps are tokens, lanes are dimensions       (an output sums over tokens)
 *
 * Value of a code:  x[step][lane] = scale * level(code) + shift.  Scale and shift are shared by a group:
 *
 *   CODE_TOKEN     `group` consecutive dimensions of one token        side data [dim / group][P]
 *   CODE_CHANNEL   `group` consecutive tokens of one dimension        side data [P / group][dim]
 *
 * level(code) is a small integer given by the grid, so products with quantized queries and weights are exact integers.
 * Keys may also have a mean, one value for each dimension of the page, which is added to x.
 *
 * Bytes of a stream: scales, shifts, means, then the codes of each run, every part padded to 64 bytes. A run is a range
 * of steps whose codes have the same number of bits. Its codes are divided into tiles of 4 steps x 16 lanes, 64 codes,
 * byte order [lane][step]; tiles are numbered along the lanes, then along the steps. A code of b bits is divided into
 * planes of 4, 2 and 1 bits by the binary digits of b (8 bits: one plane), the widest holding the lowest bits; the
 * planes of a run follow each other, widest first. In a plane of w bits tile k is in the block of 64 bytes with number
 * k / (8 / w), in each byte at bit (k % (8 / w)) * w. So one load of 64 bytes, a shift and a mask give 64 codes in the
 * order of a dot product.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_ATTEND_CODES_H
#define MN_KERNELS_ATTEND_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CODE_STEPS = 4,  /* of a tile */
    CODE_LANES = 16, /* of a tile */
    CODE_BLOCK = 64, /* bytes */
    CODE_MAX_BITS = 8,
    CODE_MAX_RUNS = 9, /* one for each number of bits, 0 to 8 */
};

typedef enum code_axis { CODE_TOKEN, CODE_CHANNEL } code_axis;

/* level(code) of b bits:
 *   UNSIGNED  code, b <= 6; code - 128 for b = 8 (the shift of such a group refers to this level)
 *   SIGNED    code - 2^(b-1) + 1/2, doubled: 2 * code - 2^b + 1 for b <= 7; code - 128 for b = 8
 *   NORMAL    the points of the Lloyd-Max quantizer of a normal distribution, as int8 (code_levels), b <= 5; SIGNED
 * from 6 on The level of a code of 0 bits is 0. */
typedef enum code_grid { CODE_UNSIGNED, CODE_SIGNED, CODE_NORMAL } code_grid;

/* Storage of a scale or shift. F16: larger values are stored as 65504, not infinity. LOG8: the byte n for 2^((n - 160)
 * / 8), 0 for 0; scales only. Every layout has a scale. */
typedef enum code_side { CODE_SIDE_NONE, CODE_SIDE_F32, CODE_SIDE_F16, CODE_SIDE_LOG8 } code_side;

typedef struct code_run {
    int begin, end; /* steps, multiples of 4 */
    int bits;       /* 0 to 8, not 7 with UNSIGNED */
    size_t offset;  /* of its first plane, from the stream's first byte */
} code_run;

typedef struct code_layout {
    bool is_key;
    int dim, page_tokens; /* multiples of 16 */
    int group;            /* divides dim (TOKEN) or page_tokens (CHANNEL) */
    code_axis axis;
    code_grid grid;
    code_side scale, shift, mean; /* shift and mean may be NONE: 0 */
    int n_runs;
    code_run runs[CODE_MAX_RUNS];
    size_t scale_offset, shift_offset, mean_offset;
    size_t bytes; /* of the stream, a multiple of 64 */
} code_layout;

/* Parameters of a layout. bits_of_dim: keys only, bits of every dimension, equal within each four and not increasing;
 * NULL: `bits` for all. */
typedef struct code_shape {
    bool is_key;
    int dim, page_tokens, group, bits;
    code_axis axis;
    code_grid grid;
    code_side scale, shift, mean;
    const uint8_t *bits_of_dim;
} code_shape;

/* Sizes must satisfy the conditions of the fields above (asserted). */
void code_layout_make(code_layout *layout, const code_shape *shape);

static inline int code_steps(const code_layout *layout) {
    return layout->is_key ? layout->dim : layout->page_tokens;
}
static inline int code_lanes(const code_layout *layout) {
    return layout->is_key ? layout->page_tokens : layout->dim;
}
/* Groups of a token (TOKEN) or of a dimension (CHANNEL), and entries of each of them. */
static inline int code_groups(const code_layout *layout) {
    return (layout->axis == CODE_TOKEN ? layout->dim : layout->page_tokens) / layout->group;
}
static inline int code_side_width(const code_layout *layout) {
    return layout->axis == CODE_TOKEN ? layout->page_tokens : layout->dim;
}

/* level(code) for all codes of `bits` bits, int8[2^bits]. */
const int8_t *code_levels(code_grid grid, int bits);

/* Codes of tokens slot .. slot + n - 1: uint8 [n][dim]; codes of other tokens in the same bytes are preserved. */
void code_pack(const code_layout *layout, char *stream, const uint8_t *codes, int slot, int n);
void code_unpack(const code_layout *layout, const char *stream, uint8_t *codes, int slot, int n);

/* Side data. TOKEN: of tokens slot .. slot + n - 1, [dim / group][n]; CHANNEL: of the token groups that begin at slot
 * .. slot + n - 1, [n / group][dim]. Values are rounded to the stored form; code_side_round gives the value read
 * back. */
void code_put_side(const code_layout *layout, char *stream, const float *scales, const float *shifts, int slot, int n);
void code_get_side(const code_layout *layout, const char *stream, float *scales, float *shifts, int slot, int n);
void code_put_mean(const code_layout *layout, char *stream, const float *means); /* [dim] */
void code_get_mean(const code_layout *layout, const char *stream, float *means);
float code_side_round(code_side side, float x);

/* x of tokens slot .. slot + n - 1, f32 [n][dim]: the values that the kernels below compute with. */
void code_decode(const code_layout *layout, const char *stream, float *x, int slot, int n);

/* Attention on quantized pages is attend_codes(const attend_job *): the softmax and the order of pages of attend.h;
 * key_codes and value_codes of the job give the layout of each stream. NULL: the stream is exact and is multiplied as
 * in attend_f32 or attend_bf16 (`exact_bf16`), which for bf16 rounds the query (keys) or p (values). Pages hold
 * multiples of 16 tokens, rows of quantized streams multiples of 16 values, at most 512 of each.
 *
 * The factors of codes are rounded to 16 bits: numbers a that share a factor f = max(m, 2^-100) / 32639, m the largest
 * |a|, become the nearest integers to a / f, whose products with levels are summed exactly. For keys a is the query,
 * for values p, which is not rounded otherwise. If the scale of a group belongs to the lane (keys TOKEN, values
 * CHANNEL), the steps of a group share the factor, and scale * f is applied to its sum; queries are rounded once per
 * job. If it belongs to the step (keys CHANNEL, values TOKEN), the scales are first folded into a, and all steps of a
 * page share the factor, for each group of lanes. Steps of 0 bits and slots invisible to a row are not counted in m.
 * Means and shifts are multiplied by a unrounded. Every level computes this, in its own order of float operations.
 *
 * hadamard(x, n_rows, dim): each row times the orthonormal Hadamard matrix of the largest power of two that divides
 * dim, block by block. Its own inverse. */

#endif
