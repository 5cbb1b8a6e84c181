/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/dtype.h"

#include <inttypes.h>

#include "base/mem.h"
#include "base/num.h"

enum { SUPER = 256 }; /* values in a super-block of the K formats */

/* The sixteen levels of IQ4_NL and IQ4_XS. */
static const int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

static uint16_t load_u16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t load_u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static float load_f16(const uint8_t *at) {
    return f32_from_f16(load_u16(at));
}

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

/* ---- blocks of 32: byte j holds value j in its low and value j + 16 in its high nibble ---- */

static int nibble(const uint8_t *qs, int i) {
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

static int five_bits(const uint8_t *qs, uint32_t high, int i) {
    return nibble(qs, i) | (int)(high >> i & 1u) << 4;
}

static void q4_0_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *b = src;
    for (; n >= 32; n -= 32, b += 18, dst += 32) {
        float d = load_f16(b);
        for (int i = 0; i < 32; i++) dst[i] = d * (float)(nibble(b + 2, i) - 8);
    }
}

static void q4_1_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *b = src;
    for (; n >= 32; n -= 32, b += 20, dst += 32) {
        float d = load_f16(b), m = load_f16(b + 2);
        for (int i = 0; i < 32; i++) dst[i] = d * (float)nibble(b + 4, i) + m;
    }
}

static void q5_0_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *b = src;
    for (; n >= 32; n -= 32, b += 22, dst += 32) {
        float d = load_f16(b);
        uint32_t high = load_u32(b + 2);
        for (int i = 0; i < 32; i++) dst[i] = d * (float)(five_bits(b + 6, high, i) - 16);
    }
}

static void q5_1_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *b = src;
    for (; n >= 32; n -= 32, b += 24, dst += 32) {
        float d = load_f16(b), m = load_f16(b + 2);
        uint32_t high = load_u32(b + 4);
        for (int i = 0; i < 32; i++) dst[i] = d * (float)five_bits(b + 8, high, i) + m;
    }
}

static void q8_0_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *b = src;
    for (; n >= 32; n -= 32, b += 34, dst += 32) {
        float d = load_f16(b);
        for (int i = 0; i < 32; i++) dst[i] = d * (float)(int8_t)b[2 + i];
    }
}

static void iq4_nl_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *b = src;
    for (; n >= 32; n -= 32, b += 18, dst += 32) {
        float d = load_f16(b);
        for (int i = 0; i < 32; i++) dst[i] = d * (float)iq4_levels[nibble(b + 2, i)];
    }
}

/* ---- super-blocks of 256 ---- */

/* Q2_K and Q3_K share this order: sixteen groups of 16 values, two bits each. Group g is lane g % 2 of half g
 * / 8. */
static int two_bits(const uint8_t *qs, int group, int i) {
    int half = group / 8, shift = 2 * (group % 8 / 2), lane = group % 2;
    return qs[32 * half + 16 * lane + i] >> shift & 3;
}

static void q2_k_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *b = src;
    for (; n >= SUPER; n -= SUPER, b += 84) {
        float d = load_f16(b + 80), dmin = load_f16(b + 82);
        for (int g = 0; g < 16; g++, dst += 16) {
            float scale = d * (float)(b[g] & 15), minimum = dmin * (float)(b[g] >> 4);
            for (int i = 0; i < 16; i++) dst[i] = scale * (float)two_bits(b + 16, g, i) - minimum;
        }
    }
}

/* The six-bit scale of group 0..15 of Q3_K: four low bits in the first 8 bytes, two high bits in the last 4.
 */
static int q3_k_scale(const uint8_t *scales, int group) {
    int low = group < 8 ? scales[group] & 15 : scales[group - 8] >> 4;
    int high = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
    return (low | high << 4) - 32;
}

static void q3_k_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *b = src;
    for (; n >= SUPER; n -= SUPER, b += 110) {
        float d = load_f16(b + 108);
        for (int g = 0; g < 16; g++, dst += 16) {
            float scale = d * (float)q3_k_scale(b + 96, g);
            for (int i = 0; i < 16; i++) {
                int high = b[16 * (g % 2) + i] >> (g / 2) & 1; /* a clear bit subtracts */
                dst[i] = scale * (float)(two_bits(b + 32, g, i) - (high ? 0 : 4));
            }
        }
    }
}

/* Six-bit scale and minimum of group 0..7 of Q4_K and Q5_K, packed into 12 bytes. */
static void q4_k_scale(const uint8_t *s, int group, int *scale, int *minimum) {
    if (group < 4) {
        *scale = s[group] & 63;
        *minimum = s[group + 4] & 63;
    } else {
        *scale = (s[group + 4] & 15) | s[group - 4] >> 6 << 4;
        *minimum = s[group + 4] >> 4 | s[group] >> 6 << 4;
    }
}

/* Q5_K when `five`, else Q4_K. The fifth bits of Q5_K lie between scales and nibbles. */
static void q45_k_to_f32(float *dst, const uint8_t *b, size_t n, bool five) {
    const size_t block_bytes = five ? 176 : 144;
    for (; n >= SUPER; n -= SUPER, b += block_bytes) {
        float d = load_f16(b), dmin = load_f16(b + 2);
        const uint8_t *high = b + 16, *qs = five ? b + 48 : b + 16;
        for (int g = 0; g < 8; g++, dst += 32) {
            int scale, minimum;
            q4_k_scale(b + 4, g, &scale, &minimum);
            float step = d * (float)scale, offset = dmin * (float)minimum;
            for (int i = 0; i < 32; i++) {
                int q = qs[32 * (g / 2) + i] >> 4 * (g % 2) & 15;
                if (five) q |= (high[i] >> g & 1) << 4;
                dst[i] = step * (float)q - offset;
            }
        }
    }
}

static void q4_k_to_f32(float *dst, const void *src, size_t n) {
    q45_k_to_f32(dst, src, n, false);
}
static void q5_k_to_f32(float *dst, const void *src, size_t n) {
    q45_k_to_f32(dst, src, n, true);
}

static void q6_k_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *b = src;
    for (; n >= SUPER; n -= SUPER, b += 210) {
        float d = load_f16(b + 208);
        for (int g = 0; g < 8; g++, dst += 32) { /* two halves of four quarters */
            int half = g / 4, quarter = g % 4;
            const uint8_t *low = b + 64 * half + 32 * (quarter & 1), *high = b + 128 + 32 * half;
            for (int i = 0; i < 32; i++) {
                int q = (low[i] >> (quarter < 2 ? 0 : 4) & 15) | (high[i] >> 2 * quarter & 3) << 4;
                float scale = d * (float)(int8_t)b[192 + 2 * g + i / 16];
                dst[i] = scale * (float)(q - 32);
            }
        }
    }
}

static void iq4_xs_to_f32(float *dst, const void *src, size_t n) {
    const uint8_t *b = src;
    for (; n >= SUPER; n -= SUPER, b += 136) {
        float d = load_f16(b);
        int high = load_u16(b + 2);
        for (int g = 0; g < 8; g++, dst += 32) {
            int scale = (b[4 + g / 2] >> 4 * (g % 2) & 15) | (high >> 2 * g & 3) << 4;
            float step = d * (float)(scale - 32);
            for (int i = 0; i < 32; i++) dst[i] = step * (float)iq4_levels[nibble(b + 8 + 16 * g, i)];
        }
    }
}

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
    [DTYPE_Q2_K]   = {"Q2_K",   NULL,    10, SUPER, 84,  q2_k_to_f32},
    [DTYPE_Q3_K]   = {"Q3_K",   NULL,    11, SUPER, 110, q3_k_to_f32},
    [DTYPE_Q4_K]   = {"Q4_K",   NULL,    12, SUPER, 144, q4_k_to_f32},
    [DTYPE_Q5_K]   = {"Q5_K",   NULL,    13, SUPER, 176, q5_k_to_f32},
    [DTYPE_Q6_K]   = {"Q6_K",   NULL,    14, SUPER, 210, q6_k_to_f32},
    [DTYPE_IQ4_NL] = {"IQ4_NL", NULL,    20, 32,    18,  iq4_nl_to_f32},
    [DTYPE_IQ4_XS] = {"IQ4_XS", NULL,    23, SUPER, 136, iq4_xs_to_f32},
    [DTYPE_F64]    = {"F64",    "F64",   28, 1,     8,   NULL},
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
        MN_FAIL(MN_E_FORMAT, "%" PRId64 " values of type %s do not fill blocks of %d", n, info->name,
                info->block);
    }
    if (!size_mul((size_t)(n / info->block), (size_t)info->bytes, out) || *out > INT64_MAX) {
        MN_FAIL(MN_E_FORMAT, "%" PRId64 " values of type %s are more bytes than 64 bits can count", n,
                info->name);
    }
    return MN_OK;
}
