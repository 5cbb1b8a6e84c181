/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/dtype.h"

#include <inttypes.h>

#include "base/mem.h"
#include "base/num.h"
#include "tensor/block_codes.h"
#include "tensor/bytes16.h"

/* ---- plain numbers ---- */

static void f32_to_f32(float *dst, const void *src, size_t n) {
    if (n) memcpy(dst, src, n * sizeof *dst);
}

static void f16_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *at = src;
    for (size_t i = 0; i < n; i++) dst[i] = load_f16(at + 2 * i);
}

static void bf16_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *at = src;
    for (size_t i = 0; i < n; i++) dst[i] = f32_from_bf16(load_u16(at + 2 * i));
}

/* Beyond the range of float32: infinity. */
static void f64_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *at = src;
    for (size_t i = 0; i < n; i++) {
        double value;
        memcpy(&value, at + i * sizeof value, sizeof value);
        dst[i] = (float)value;
    }
}

/* The bits of a float16 but for the bias of the exponent, 7 in the place of 15, and for the largest code, NaN. */
static void f8_e4m3_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *at = src;
    for (size_t i = 0; i < n; i++) {
        const uint32_t sign = (uint32_t)(at[i] & 0x80u), rest = at[i] & 0x7Fu;
        const float value = f32_from_f16((f16)(sign << 8 | rest << 7)) * 0x1p8f;
        dst[i] = rest == 0x7F ? f32_from_bits(sign << 24 | 0x7FC00000u) : value;
    }
}

/* The upper half of a float16. */
static void f8_e5m2_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *at = src;
    for (size_t i = 0; i < n; i++) dst[i] = f32_from_f16((f16)(at[i] << 8));
}

/* ---- blocks: codes times scales ---- */

static void blocks_to_f32(dtype type, float *dst, const uint8_t *block, size_t n) {
    const dtype_codes *format = &dtype_codes_table[type];
    const size_t length = (size_t)dtype_table[type].block, bytes_of_one = (size_t)dtype_table[type].bytes;
    uint8_t codes[CODE_BLOCK_MAX];
    float scales[CODE_BLOCK_MAX / 16], mins[CODE_BLOCK_MAX / 16];
    for (; n >= length; n -= length, block += bytes_of_one) {
        format->decode(block, codes, scales, mins);
        const uint8_t *code = codes;
        for (int g = 0; g < (int)length / format->group; g++, code += format->group, dst += format->group) {
            const float scale = scales[g];
            if (format->has_min) {
                for (int i = 0; i < format->group; i++) dst[i] = scale * (float)code[i] + mins[g];
            } else {
                for (int i = 0; i < format->group; i++) dst[i] = scale * (float)(code[i] - format->zero);
            }
        }
    }
}

#define BLOCKS_TO_F32(name, type)                                                                                      \
    static void name##_to_f32(float *dst, const void *src, size_t n) {                                                 \
        blocks_to_f32(type, dst, src, n);                                                                              \
    }
BLOCKS_TO_F32(q4_0, DTYPE_Q4_0)
BLOCKS_TO_F32(q4_1, DTYPE_Q4_1)
BLOCKS_TO_F32(q5_0, DTYPE_Q5_0)
BLOCKS_TO_F32(q5_1, DTYPE_Q5_1)
BLOCKS_TO_F32(q8_0, DTYPE_Q8_0)
BLOCKS_TO_F32(q2_k, DTYPE_Q2_K)
BLOCKS_TO_F32(q3_k, DTYPE_Q3_K)
BLOCKS_TO_F32(q4_k, DTYPE_Q4_K)
BLOCKS_TO_F32(q5_k, DTYPE_Q5_K)
BLOCKS_TO_F32(q6_k, DTYPE_Q6_K)
BLOCKS_TO_F32(iq4_nl, DTYPE_IQ4_NL)
BLOCKS_TO_F32(iq4_xs, DTYPE_IQ4_XS)

/* ---- the table ---- */

/* clang-format off */
const dtype_info dtype_table[N_DTYPES] = {
    /*               name      safetensors  GGUF  block  bytes  to_f32 */
    [DTYPE_F32]    = {"F32",    "F32",   0,  1,     4,   f32_to_f32},
    [DTYPE_F16]    = {"F16",    "F16",   1,  1,     2,   f16_to_f32},
    [DTYPE_BF16]   = {"BF16",   "BF16",  30, 1,     2,   bf16_to_f32},
    [DTYPE_Q4_0]   = {"Q4_0",   NULL,    2,  32,    18,  q4_0_to_f32},
    [DTYPE_Q4_1]   = {"Q4_1",   NULL,    3,  32,    20,  q4_1_to_f32},
    [DTYPE_Q5_0]   = {"Q5_0",   NULL,    6,  32,    22,  q5_0_to_f32},
    [DTYPE_Q5_1]   = {"Q5_1",   NULL,    7,  32,    24,  q5_1_to_f32},
    [DTYPE_Q8_0]   = {"Q8_0",   NULL,    8,  32,    34,  q8_0_to_f32},
    [DTYPE_Q2_K]   = {"Q2_K",   NULL,    10, 256, 84,  q2_k_to_f32},
    [DTYPE_Q3_K]   = {"Q3_K",   NULL,    11, 256, 110, q3_k_to_f32},
    [DTYPE_Q4_K]   = {"Q4_K",   NULL,    12, 256, 144, q4_k_to_f32},
    [DTYPE_Q5_K]   = {"Q5_K",   NULL,    13, 256, 176, q5_k_to_f32},
    [DTYPE_Q6_K]   = {"Q6_K",   NULL,    14, 256, 210, q6_k_to_f32},
    [DTYPE_IQ4_NL] = {"IQ4_NL", NULL,    20, 32,    18,  iq4_nl_to_f32},
    [DTYPE_IQ4_XS] = {"IQ4_XS", NULL,    23, 256, 136, iq4_xs_to_f32},
    [DTYPE_F64]    = {"F64",    "F64",   28, 1,     8,   f64_to_f32},
    [DTYPE_F8_E4M3] = {"F8_E4M3", "F8_E4M3", -1, 1, 1,   f8_e4m3_to_f32},
    [DTYPE_F8_E5M2] = {"F8_E5M2", "F8_E5M2", -1, 1, 1,   f8_e5m2_to_f32},
    [DTYPE_I8]     = {"I8",     "I8",    24, 1,     1,   NULL},
    [DTYPE_I16]    = {"I16",    "I16",   25, 1,     2,   NULL},
    [DTYPE_I32]    = {"I32",    "I32",   26, 1,     4,   NULL},
    [DTYPE_I64]    = {"I64",    "I64",   27, 1,     8,   NULL},
    [DTYPE_U8]     = {"U8",     "U8",    -1, 1,     1,   NULL},
    [DTYPE_BOOL]   = {"BOOL",   "BOOL",  -1, 1,     1,   NULL},
};
/* clang-format on */

mn_status dtype_bytes(dtype type, int64_t n, size_t *out) {
    const dtype_info *info = &dtype_table[type];
    if (n < 0 || n % info->block != 0) {
        MN_FAIL(MN_E_FORMAT, "%" PRId64 " values of type %s do not fill blocks of %d", n, info->name, info->block);
    }
    if (!size_mul((size_t)(n / info->block), (size_t)info->bytes, out) || *out > INT64_MAX) {
        MN_FAIL(MN_E_FORMAT, "%" PRId64 " values of type %s are more bytes than 64 bits can count", n, info->name);
    }
    return MN_OK;
}
