/* Matrix products y = x W^T over packed weights.
 *
 * Weights are packed once, in panels of 16 outputs. A panel is read sequentially and the lanes of a vector are outputs:
 * no horizontal sums, and the same code serves one row (decoding) and many (prefill). Three forms:
 *
 *   WEIGHT_F32   panel [k][16] float32
 *   WEIGHT_BF16  panel [k/2][16][2] bf16 (k rounded up to even, the pad is zero); activations are rounded to bf16
 *   WEIGHT_INT   codes of 4, 5, 6 or 8 bits with a scale for each run of `group` inputs; activations are rounded to 16
 * bits with one scale for each span of 256 inputs, or to 8 with one for each 32. All quantized file types become this:
 * w = d * (code - zero)  or  w = d * code + min.
 *
 * An output is one chain in the order of k: float32: fma per input; bf16: per pair of inputs; int, for each group,
 * where dot is the exact integer sum of (code - zero) * activation: acc += (d * dot) * d_a, then, with mins,
 * acc += min * (d_a * sum of activations). Activations of 16 bits have a chain for each span, acc += d * dot, then
 * acc += min * sum of activations; at its end total += acc * d_a. So the bits of an output do not depend on the number
 * of rows or panels of a call.
 *
 * Bytes of a WEIGHT_INT panel: 16 float32 factors (powers of two, one an output), by which finished chains are
 * multiplied, then the spans. A span of 64 inputs (the last 32 may be padding) has the scales f16 [64 / group][16],
 * with has_min the mins likewise, and the codes. The factor moves the largest scale of an output to the upper end of
 * f16, so that f16 scales of a file are stored exactly.
 *
 * With byte_scales (super-blocks of a file) a span has 256 inputs: f16 [2][16], of which the first is multiplied by the
 * scales, int8 [256 / group][16], and the second, 0 without has_min, by the mins, int8 likewise, which has_min alone
 * has; then the codes. Factors are 1.
 *
 * Codes of 32 inputs:
 *   8 bits  [8 quads of inputs][16 outputs][4 inputs] bytes
 *   4 bits  [4 pairs of quads][16 outputs][4 inputs] bytes: the first quad of a pair in the low nibbles, the second in
 *           the high ones
 *           with levels: numbers of the codes, which are levels[number]
 *   6 bits  for each half [3 words][16 outputs] of two 16-bit parts
 *   5 bits  [5 words][16 outputs] of two 16-bit parts
 * Parts have the codes of pairs of inputs, the lower part that of the first: pair 2 q is inputs 4 q and 4 q + 2, pair
 * 2 q + 1 the two after them.
 *   6 bits  word j has pairs 2 j and 2 j + 1 from bits 0 and 6 on; bits 12 to 15 of words 0 and 1 are the lower bits of
 *           pairs 6 and 7, those of word 2 their upper two each
 *   5 bits  word j has pairs 3 j, 3 j + 1 and 3 j + 2 from bits 0, 5 and 10 on; its bit 15 is bit j of pair 15
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_LINEAR_LINEAR_H
#define MN_KERNELS_LINEAR_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/num.h"
#include "tensor/dtype.h"

enum {
    PANEL = 16,
    ACT_GROUP = 32,
    ACT_SUM_GROUP = 16,
    ACT_SPAN = 256, /* inputs of all rows that are beside each other */
    ACT_SPAN_GROUPS = ACT_SPAN / ACT_GROUP,
    ACT_PLAIN = 4, /* inputs of each 16 whose products are not in act_span.products */
    ACT_LARGEST = 127 * 256,
    ACT_LARGEST_A8 = 127,
    ACT_OUTLIER =
        3, /* an input whose magnitude is more than so many times the next largest of its group is an outlier */
    ACT_UPPER = 128, /* what the upper part of its code is multiplied by */
    ACT_LARGEST_OUTLIER = 127 * ACT_UPPER,
    LINEAR_MOST_ROWS = 192, /* that a kernel computes together, and panels */
    LINEAR_MOST_PANELS = 16,
    LINEAR_SCRATCH_BYTES = LINEAR_MOST_ROWS * LINEAR_MOST_PANELS * PANEL * 4
};

typedef enum weight_form { WEIGHT_F32, WEIGHT_BF16, WEIGHT_INT } weight_form;

/* The layout of a packed matrix, without its bytes. */
typedef struct weight_layout {
    weight_form form;
    int n, k;           /* outputs, inputs */
    int n_panels;       /* ceil(n / 16); outputs beyond n are zero */
    size_t panel_bytes; /* from one panel to the next, a multiple of 64 */
    /* WEIGHT_INT only */
    int bits;              /* 4, 5, 6 or 8: width of a stored code */
    int group;             /* 16 or 32 inputs share a scale */
    int zero;              /* subtracted from every code; 0 when has_min */
    const uint8_t *levels; /* [16] codes that 4 bits are the numbers of; NULL: they are the codes */
    bool has_min;          /* w = d * code + min instead */
    bool byte_scales;      /* scales and mins are products of an f16 and a byte */
} weight_layout;

/* What a span of integer codes of a row has for each of its runs of 32 inputs, and for their halves. Each is an array
 * of its own, since a kernel reads few of them. */
typedef struct act_span {
    float scale[ACT_SPAN_GROUPS]; /* activation = scale * code; all are equal with codes of 16 bits */
    /* What mins are multiplied by: scale * sum; with codes of 16 bits, sum. */
    float min_factor[ACT_SPAN_GROUPS], half_min_factor[2 * ACT_SPAN_GROUPS];
    int32_t sum[ACT_SPAN_GROUPS], half_sum[2 * ACT_SPAN_GROUPS];
    union {
        /* Of codes of 16 bits: the sum of the products of inputs 2 i and 2 i + 1, except the first ACT_PLAIN inputs of
         * a half, modulo 2^32. */
        struct {
            int32_t products[ACT_SPAN_GROUPS], half_products[2 * ACT_SPAN_GROUPS];
        };
        /* Of codes of 8 bits, and read for these alone: the code of input `place` of the run is the stored one +
         * ACT_UPPER * upper. 0: no outlier. */
        struct {
            int16_t place[ACT_SPAN_GROUPS], upper[ACT_SPAN_GROUPS];
            uint32_t outliers; /* bit i: run i has one */
        };
    };
} act_span;

/* Activations in the form that a weight form needs, in consecutive rows. x needs the alignment of its elements only. */
typedef struct activations {
    weight_form form;
    int m, k;      /* rows, inputs */
    const void *x; /* f32 [m][k]; bf16 [m][act_bf16_stride(k)], of which k rounded up to even are read, the pad zero;
                      WEIGHT_INT: codes in spans, int16 [ceil(k / 256)][m][256], k a multiple of 32; input i of a span
                      is at act_place(i) */
    const act_span *spans; /* WEIGHT_INT: [ceil(k / 256)][m] */
    bool a8;               /* WEIGHT_INT: codes have 8 bits, x is int8 and has the order of the inputs */
} activations;

/* The index of the code of input i of a row of m, i a multiple of 32. Rows that a tile reads together are beside each
 * other, where the processor's own prefetching follows them. */
static inline size_t act_index(int m, int row, int i) {
    return ((size_t)(i / ACT_SPAN) * (size_t)m + (size_t)row) * ACT_SPAN + (size_t)(i % ACT_SPAN);
}

/* Where a row of 16-bit codes has input i. Four inputs have the order 0, 2, 1, 3: each pair is multiplied by the even
 * or the odd bytes of a 32-bit lane of weights. */
static inline int act_place(int i) {
    return (i & ~3) | (i & 1) << 1 | (i >> 1 & 1);
}

/* The span of a row that has input i. */
static inline const act_span *act_span_at(const activations *x, int row, int i) {
    return &x->spans[(size_t)(i / ACT_SPAN) * (size_t)x->m + (size_t)row];
}

/* What the weight groups of a span, of so many inputs, are added with, in their order. */
static inline const int32_t *act_sums(const act_span *span, int group) {
    return group == ACT_GROUP ? span->sum : span->half_sum;
}
static inline const float *act_min_factors(const act_span *span, int group) {
    return group == ACT_GROUP ? span->min_factor : span->half_min_factor;
}
static inline const int32_t *act_products(const act_span *span, int group) {
    return group == ACT_GROUP ? span->products : span->half_products;
}

/* Elements from one bf16 row to the next: an odd number of cache lines, so that the same column of many rows, which a
 * tile reads together, maps to as many sets of the first-level cache. */
static inline size_t act_bf16_stride(int k) {
    return (((size_t)k + 31) / 32 | 1) * 32;
}

typedef struct linear_job {
    const weight_layout *layout;
    const void *weights; /* packed panels, 64-byte aligned */
    const activations *x;
    int row_begin, row_end; /* rows of x to compute */
    int panel_begin, panel_end;
    const void *next;      /* memory that is probably read after the last panel, prefetched; NULL: not known */
    size_t prefetch_bytes; /* bytes from the weights of a single row to what it prefetches; 0: as the kernel does */
    float *y;              /* f32, row r at y + r * y_stride; outputs of the panels, at most n */
    ptrdiff_t y_stride;    /* floats */
    const float *bias;     /* [n] or NULL: added to the finished chain */
    bool add;              /* y += result (after the bias) instead of y = result */
    void *scratch;         /* LINEAR_SCRATCH_BYTES of any content, 64-byte aligned, of this job alone */
} linear_job;

/* linear_f32, linear_bf16, linear_int: y of the job's rows and panels; layout and activations have the form of the
 * kernel. y and bias need the alignment of floats only.
 *
 * quantize_row(codes, span, x, k, a8): k inputs of a row's span as activations has them; k a multiple of 32, at most
 * 256. scale = max |x| / 32512 of them all, or with a8 max |x| / 127 of each 32, and code = x / scale rounded to
 * nearest, ties to even. With a8 one input of the 32 can be an outlier: if its magnitude is more than 3 times the next
 * largest one, that / 127 is the scale, at least max |x| / 16256, and its code has 15 bits. Below max |x| = 2^-111
 * scale and codes are 0. A NaN or infinity makes the codes 0 and the scale NaN or infinite, so that it affects every
 * output. bf16_row(y, x, n): bf16_from_f32 of n values. */

/* ---- packing (pack.c) ---- */

/* The layout of a stored type (one with dtype_info.to_f32) for a compute form: WEIGHT_INT for block types, and for
 * plain ones by rounding them to 8 bits with a scale for each 32 inputs; WEIGHT_INT needs a k that is a multiple of 32,
 * else the layout falls back to WEIGHT_BF16. n and k are positive. */
void weight_layout_make(weight_layout *out, weight_form wanted, dtype type, int n, int k);
size_t weight_layout_bytes(const weight_layout *layout); /* n_panels * panel_bytes */

/* Scales of a stored matrix, one for each block of rows x columns; plain types without blocks of their own. */
typedef struct stored_scales {
    dtype type;
    const void *data;             /* NULL: none */
    size_t rows, columns, stride; /* of a block; blocks side by side */
} stored_scales;

/* A matrix as a checkpoint stores it. */
typedef struct stored_matrix {
    dtype type;
    const void *data;
    size_t row_bytes;                            /* from one stored row to the next */
    bool is_transposed;                          /* an output is a column, not a row; plain types only */
    int (*row_of)(const void *user, int output); /* the row (column) of an output; NULL: identity */
    const void *user;
    stored_scales scales; /* of a plain type whose outputs are rows */
} stored_matrix;

/* Packs panels [panel_begin, panel_end) of a matrix to their places in `packed`. scratch: pack_scratch_bytes(layout),
 * aligned to 64 bytes, of any content. Threads may pack different panels concurrently. */
void weight_pack(void *packed, const weight_layout *layout, const stored_matrix *stored, int panel_begin, int panel_end,
                 void *scratch);
size_t pack_scratch_bytes(const weight_layout *layout);

#endif
