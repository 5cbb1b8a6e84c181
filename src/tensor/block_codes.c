/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/block_codes.h"

#include <string.h>

#include "tensor/bytes16.h"

#include "base/num.h"

enum { SIGNED_ZERO = 128 }; /* signed bytes are stored with this added */

/* The sixteen levels of IQ4_NL and IQ4_XS, SIGNED_ZERO added. */
static const uint8_t iq4_codes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

/* ---- blocks of 32: byte j holds value j in its low and value j + 16 in its high nibble ---- */

static void nibbles(uint8_t *codes, const uint8_t *qs) {
    for (int j = 0; j < 16; j++) {
        codes[j] = qs[j] & 15;
        codes[j + 16] = qs[j] >> 4;
    }
}

static void add_fifth_bits(uint8_t *codes, const uint8_t *bits) {
    for (int j = 0; j < 32; j++) codes[j] |= (uint8_t)((bits[j / 8] >> (j % 8) & 1) << 4);
}

static void q4_0(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    (void)mins;
    scales[0] = load_f16(b);
    nibbles(codes, b + 2);
}

static void q4_1(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    scales[0] = load_f16(b);
    mins[0] = load_f16(b + 2);
    nibbles(codes, b + 4);
}

static void q5_0(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    (void)mins;
    scales[0] = load_f16(b);
    nibbles(codes, b + 6);
    add_fifth_bits(codes, b + 2);
}

static void q5_1(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    scales[0] = load_f16(b);
    mins[0] = load_f16(b + 2);
    nibbles(codes, b + 8);
    add_fifth_bits(codes, b + 4);
}

static void q8_0(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    (void)mins;
    scales[0] = load_f16(b);
    for (int j = 0; j < 32; j++) codes[j] = b[2 + j] ^ SIGNED_ZERO;
}

static void iq4_nl(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    (void)mins;
    scales[0] = load_f16(b);
    nibbles(codes, b + 2);
    for (int j = 0; j < 32; j++) codes[j] = iq4_codes[codes[j]];
}

/* ---- super-blocks of 256 ---- */

/* Q2_K and Q3_K: 64 bytes of two-bit codes; each half of 32 bytes holds four planes of 32 values. */
static void two_bits(uint8_t *codes, const uint8_t *qs) {
    for (int plane = 0; plane < 8; plane++) {
        for (int i = 0; i < 32; i++) codes[32 * plane + i] = qs[32 * (plane / 4) + i] >> (2 * (plane % 4)) & 3;
    }
}

/* The scales and mins of n groups. */
static void multiply(const block_factors *from, int n, float *scales, float *mins) {
    for (int g = 0; g < n; g++) scales[g] = f32_from_f16(from->scale) * (float)from->scales[g];
    for (int g = 0; mins && g < n; g++) mins[g] = f32_from_f16(from->min) * (float)from->mins[g];
}

/* Stored minima are subtracted. */
static f16 negative(const uint8_t *stored) {
    return (f16)(load_u16(stored) ^ 0x8000);
}

static void q2_k_factors(const uint8_t *b, block_factors *out) {
    *out = (block_factors){.scale = load_u16(b + 80), .min = negative(b + 82)};
    for (int g = 0; g < 16; g++) {
        out->scales[g] = (int8_t)(b[g] & 15);
        out->mins[g] = (int8_t)(b[g] >> 4);
    }
}

static void q2_k(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    block_factors factors;
    q2_k_factors(b, &factors);
    multiply(&factors, 16, scales, mins);
    two_bits(codes, b + 16);
}

static void q3_k_factors(const uint8_t *b, block_factors *out) {
    const uint8_t *packed = b + 96;
    *out = (block_factors){.scale = load_u16(b + 108)};
    for (int g = 0; g < 16; g++) {
        int low4 = packed[g % 8] >> (4 * (g / 8)) & 15, high2 = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
        out->scales[g] = (int8_t)((low4 | high2 << 4) - 32);
    }
}

static void q3_k(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    (void)mins;
    const uint8_t *high = b;
    block_factors factors;
    q3_k_factors(b, &factors);
    multiply(&factors, 16, scales, NULL);
    two_bits(codes, b + 32);
    for (int i = 0; i < 256; i++) codes[i] |= (uint8_t)((high[i % 32] >> (i / 32) & 1) << 2); /* zero is 4 */
}

/* Scales and minima of Q4_K and Q5_K: eight of six bits each, in 12 bytes. */
static void k_factors(const uint8_t *b, block_factors *out) {
    const uint8_t *s = b + 4;
    *out = (block_factors){.scale = load_u16(b), .min = negative(b + 2)};
    for (int j = 0; j < 4; j++) {
        out->scales[j] = (int8_t)(s[j] & 63);
        out->mins[j] = (int8_t)(s[j + 4] & 63);
        out->scales[j + 4] = (int8_t)((s[j + 8] & 15) | s[j] >> 6 << 4);
        out->mins[j + 4] = (int8_t)(s[j + 8] >> 4 | s[j + 4] >> 6 << 4);
    }
}

static void k_nibbles(uint8_t *codes, const uint8_t *qs) {
    for (int g = 0; g < 8; g++) {
        for (int i = 0; i < 32; i++) codes[32 * g + i] = qs[32 * (g / 2) + i] >> (4 * (g % 2)) & 15;
    }
}

static void q4_k(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    block_factors factors;
    k_factors(b, &factors);
    multiply(&factors, 8, scales, mins);
    k_nibbles(codes, b + 16);
}

static void q5_k(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    block_factors factors;
    k_factors(b, &factors);
    multiply(&factors, 8, scales, mins);
    k_nibbles(codes, b + 48);
    for (int i = 0; i < 256; i++) codes[i] |= (uint8_t)((b[16 + i % 32] >> (i / 32) & 1) << 4);
}

static void q6_k_factors(const uint8_t *b, block_factors *out) {
    *out = (block_factors){.scale = load_u16(b + 208)};
    memcpy(out->scales, b + 192, 16);
}

static void q6_k(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    (void)mins;
    block_factors factors;
    q6_k_factors(b, &factors);
    multiply(&factors, 16, scales, NULL);
    for (int quarter = 0; quarter < 8; quarter++) { /* of 32 values; four to each half */
        int half = quarter / 4, k = quarter % 4;
        const uint8_t *low = b + 64 * half + 32 * (k & 1), *high = b + 128 + 32 * half;
        for (int i = 0; i < 32; i++) {
            codes[32 * quarter + i] = (uint8_t)((low[i] >> (k < 2 ? 0 : 4) & 15) | (high[i] >> (2 * k) & 3) << 4);
        }
    }
}

static void iq4_xs_factors(const uint8_t *b, block_factors *out) {
    *out = (block_factors){.scale = load_u16(b)};
    int scales_high = load_u16(b + 2);
    for (int g = 0; g < 8; g++) {
        int low4 = b[4 + g / 2] >> (4 * (g % 2)) & 15, high2 = scales_high >> (2 * g) & 3;
        out->scales[g] = (int8_t)((low4 | high2 << 4) - 32);
    }
}

static void iq4_xs(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    (void)mins;
    block_factors factors;
    iq4_xs_factors(b, &factors);
    multiply(&factors, 8, scales, NULL);
    for (int g = 0; g < 8; g++) nibbles(codes + 32 * g, b + 8 + 16 * g);
    for (int i = 0; i < 256; i++) codes[i] = iq4_codes[codes[i]];
}

/* ---- the table ---- */

/* clang-format off */
const dtype_codes dtype_codes_table[N_DTYPES] = {
    /*               group  max  zero  levels  has_min  decode, factors */
    [DTYPE_Q4_0]   = {32,   15,  8,    NULL, false,   q4_0, NULL},
    [DTYPE_Q4_1]   = {32,   15,  0,    NULL, true,    q4_1, NULL},
    [DTYPE_Q5_0]   = {32,   31,  16,   NULL, false,   q5_0, NULL},
    [DTYPE_Q5_1]   = {32,   31,  0,    NULL, true,    q5_1, NULL},
    [DTYPE_Q8_0]   = {32,   255, SIGNED_ZERO, NULL, false, q8_0, NULL},
    [DTYPE_Q2_K]   = {16,   3,   0,    NULL, true,    q2_k, q2_k_factors},
    [DTYPE_Q3_K]   = {16,   7,   4,    NULL, false,   q3_k, q3_k_factors},
    [DTYPE_Q4_K]   = {32,   15,  0,    NULL, true,    q4_k, k_factors},
    [DTYPE_Q5_K]   = {32,   31,  0,    NULL, true,    q5_k, k_factors},
    [DTYPE_Q6_K]   = {16,   63,  32,   NULL, false,   q6_k, q6_k_factors},
    [DTYPE_IQ4_NL] = {32,   255, SIGNED_ZERO, iq4_codes, false, iq4_nl, NULL},
    [DTYPE_IQ4_XS] = {32,   255, SIGNED_ZERO, iq4_codes, false, iq4_xs, iq4_xs_factors},
};
/* clang-format on */
