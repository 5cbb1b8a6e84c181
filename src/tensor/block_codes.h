/* Stored blocks as integer codes and scales: what a block type means before it is multiplied out.
 *
 *   value = scale * (code - zero)    or, when has_min,    value = scale * code + min
 *
 * with one scale (and min) for each run of `group` values. In float32 and in this order of operations the values are
 * those of dtype_info.to_f32.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TENSOR_BLOCK_CODES_H
#define MN_TENSOR_BLOCK_CODES_H

#include <stdbool.h>

#include "tensor/dtype.h"

enum { CODE_BLOCK_MAX = 256 }; /* values in the longest block */

typedef struct dtype_codes {
    int group;    /* 16 or 32 */
    int max_code; /* codes are 0..max_code, at most 255 */
    int zero;     /* 0 when has_min */
    bool has_min;
    /* One block (dtype_info.block values) to codes [block], scales [block / group] and mins (as many; untouched without
     * has_min). NULL for types without blocks. */
    void (*decode)(const uint8_t *block, uint8_t *codes, float *scales, float *mins);
} dtype_codes;

extern const dtype_codes dtype_codes_table[N_DTYPES];

#endif
