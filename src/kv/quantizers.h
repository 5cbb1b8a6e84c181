/* quanto and hqq as functions of arrays: the arithmetic of optimum-quanto 0.2.7 (QBits tensors with the max optimizer)
 * and hqq 0.2.8 (Quantizer.quantize), for every axis and group, to the bit where their own results are stable.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_QUANTIZERS_H
#define MN_KV_QUANTIZERS_H

#include "base/status.h"

typedef enum quantizer { QUANTIZER_QUANTO, QUANTIZER_HQQ } quantizer;
typedef enum quantizer_dtype { QUANTIZER_F32, QUANTIZER_F16, QUANTIZER_BF16 } quantizer_dtype;

typedef struct quantizer_options {
    quantizer kind;
    int nbits;             /* quanto 2, 4; hqq 1, 2, 3, 4, 8 */
    int axis;              /* quanto 0, -1; hqq 0, 1 */
    int group;             /* q_group_size */
    quantizer_dtype dtype; /* of x (quanto) or compute_dtype (hqq): scales, shifts and results are rounded to it */
    bool optimize;         /* hqq: refine the zero points (its default) */
} quantizer_options;

/* A tensor x of shape [B][H][T][D], n = B H T D values, as `n / group` groups. codes are in the packages' grouped
 * layout: rows x columns; which of the two is a group, and where an element of x is stored, is given by
 * quantizer_place. */
typedef struct quantized {
    int64_t n_rows, n_columns;
    int64_t n_groups;
    uint8_t *codes; /* [n_rows][n_columns] */
    float *scale;   /* [n_groups] */
    float *shift;   /* [n_groups]: quanto's shift, y = scale * code - shift; hqq's zero, y = (code - zero) *
                       scale */
    int rounds;     /* hqq: of the optimization */
} quantized;

/* MN_E_ARG for what the package refuses (bits, axis, a group that does not divide, rows that cannot be packed). shape:
 * B, H, T, D. Arrays of *out are owned by the caller (quantized_clear). With axis 0 and a single group quanto makes
 * every element its own group and saves nothing; here that is one ordinary group. */
mn_status quantizer_run(quantized *out, const quantizer_options *options, const float *x, const int64_t shape[4]);
void quantized_clear(quantized *q);
/* y[B][H][T][D] */
void quantizer_dequantize(float *y, const quantized *q, const quantizer_options *options, const int64_t shape[4]);
/* Index into codes, and group, of element i of x. */
void quantizer_place(const quantizer_options *options, const int64_t shape[4], int64_t i, int64_t *code,
                     int64_t *group);
/* The packages' packed bytes of the codes: *n bytes (owned by the caller). */
mn_status quantizer_pack(uint8_t **packed, size_t *n, const quantized *q, const quantizer_options *options);

/* Any set of groups in an array: item i of group j of block b is element b * block_stride + j * group_stride
 * + i * item_stride, and the group has number b * n_groups + j. */
typedef struct quantizer_view {
    int64_t n_blocks, n_groups; /* groups: of one block */
    int64_t group;              /* items of a group */
    ptrdiff_t block_stride, group_stride, item_stride;
} quantizer_view;

/* The same arithmetic without the packages' restrictions on shapes: kind, nbits, dtype and optimize of the options
 * count. Codes are stored at the index of their elements in x. The zeros of hqq are refined while the mean error over
 * the whole view falls; returns the number of rounds. */
int quantizer_view_run(uint8_t *codes, float *scale, float *shift, const quantizer_options *options, const float *x,
                       const quantizer_view *view);

#endif
