/* Element types of stored tensors: one row of a table each (block length, block bytes, names, dequantiser). Formulas:
 * the GGUF block formats as ggml defines them; checked bit for bit against vectors in tests/data.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TENSOR_DTYPE_H
#define MN_TENSOR_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q8_0,
    DTYPE_Q2_K,
    DTYPE_Q3_K,
    DTYPE_Q4_K,
    DTYPE_Q5_K,
    DTYPE_Q6_K,
    DTYPE_IQ4_NL,
    DTYPE_IQ4_XS,
    DTYPE_F64,
    DTYPE_F8_E4M3, /* without infinities, as PyTorch's float8_e4m3fn */
    DTYPE_F8_E5M2,
    N_COMPUTED_DTYPES, /* weights are computed from the types above */
    DTYPE_I8 = N_COMPUTED_DTYPES,
    DTYPE_I16,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U8,
    DTYPE_BOOL, /* for storage only */
    N_DTYPES
} dtype;

typedef struct dtype_info {
    const char *name;             /* as GGUF tools print it: "Q4_K" */
    const char *safetensors_name; /* "BF16"; NULL when that format has no such type */
    int gguf_id;                  /* type number in GGUF files; -1 when it has none */
    int block;                    /* values in a block */
    int bytes;                    /* bytes of a block */
    /* n (a multiple of block) values to float32, in the written order of the formulas, without fused multiply-add. NULL
     * for types that are not computed with. src needs no alignment. */
    void (*to_f32)(float *dst, const void *src, size_t n);
} dtype_info;

extern const dtype_info dtype_table[N_DTYPES];

/* Bytes of n values (n a multiple of the block length); MN_E_FORMAT when it is not or the size overflows. */
mn_status dtype_bytes(dtype type, int64_t n, size_t *out);

#endif
