/* Stored blocks as integer codes and scales: what a block type means before it is multiplied out.
 *
 *   value = scale * (code - zero)    or, when has_min,    value = scale * code + min
 *
 * with one scale (and min) for each run of `group` values. In float32 and in this order of operations the values are
 * those of dtype_info.to_f32. Super-blocks of 256 values have one scale and min of float16, by which those of the
 * groups, whole numbers, are multiplied.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TENSOR_BLOCK_CODES_H
#define MN_TENSOR_BLOCK_CODES_H

#include <stdbool.h>

#include "base/num.h"
#include "tensor/dtype.h"

enum { CODE_BLOCK_MAX = 256 /* values in the longest block */, CODE_GROUPS_MAX = 16 };

typedef struct block_factors {
    f16 scale, min;
    int8_t scales[CODE_GROUPS_MAX], mins[CODE_GROUPS_MAX]; /* of the groups; mins are 0 without has_min */
} block_factors;

typedef struct dtype_codes {
    int group;             /* 16 or 32 */
    int max_code;          /* codes are 0..max_code, at most 255 */
    int zero;              /* 0 when has_min */
    const uint8_t *levels; /* [16] the only codes of a type that stores their numbers; NULL: all codes are possible */
    bool has_min;
    /* One block (dtype_info.block values) to codes [block], scales [block / group] and mins (as many; untouched without
     * has_min). NULL for types without blocks. */
    void (*decode)(const uint8_t *block, uint8_t *codes, float *scales, float *mins);
    /* What the scales and mins of a super-block are the products of: scale * scales[i], min * mins[i]. NULL: other
     * types. */
    void (*factors)(const uint8_t *block, block_factors *out);
} dtype_codes;

extern const dtype_codes dtype_codes_table[N_DTYPES];

#endif
