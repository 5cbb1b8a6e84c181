/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/block_codes.h"
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

static void q2_k(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    float d = load_f16(b + 80), dmin = load_f16(b + 82);
    for (int g = 0; g < 16; g++) {
        scales[g] = d * (float)(b[g] & 15);
        mins[g] = -(dmin * (float)(b[g] >> 4));
    }
    two_bits(codes, b + 16);
}

static void q3_k(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    (void)mins;
    const uint8_t *high = b, *packed = b + 96;
    float d = load_f16(b + 108);
    for (int g = 0; g < 16; g++) {
        int low4 = packed[g % 8] >> (4 * (g / 8)) & 15, high2 = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
        scales[g] = d * (float)((low4 | high2 << 4) - 32);
    }
    two_bits(codes, b + 32);
    for (int i = 0; i < 256; i++) codes[i] |= (uint8_t)((high[i % 32] >> (i / 32) & 1) << 2); /* zero is 4 */
}

/* Scales and minima of Q4_K and Q5_K: eight of six bits each, in 12 bytes. */
static void k_scales(const uint8_t *b, float *scales, float *mins) {
    const uint8_t *s = b + 4;
    float d = load_f16(b), dmin = load_f16(b + 2);
    for (int j = 0; j < 4; j++) {
        scales[j] = d * (float)(s[j] & 63);
        mins[j] = -(dmin * (float)(s[j + 4] & 63));
        scales[j + 4] = d * (float)((s[j + 8] & 15) | s[j] >> 6 << 4);
        mins[j + 4] = -(dmin * (float)(s[j + 8] >> 4 | s[j + 4] >> 6 << 4));
    }
}

static void k_nibbles(uint8_t *codes, const uint8_t *qs) {
    for (int g = 0; g < 8; g++) {
        for (int i = 0; i < 32; i++) codes[32 * g + i] = qs[32 * (g / 2) + i] >> (4 * (g % 2)) & 15;
    }
}

static void q4_k(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    k_scales(b, scales, mins);
    k_nibbles(codes, b + 16);
}

static void q5_k(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    k_scales(b, scales, mins);
    k_nibbles(codes, b + 48);
    for (int i = 0; i < 256; i++) codes[i] |= (uint8_t)((b[16 + i % 32] >> (i / 32) & 1) << 4);
}

static void q6_k(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    (void)mins;
    float d = load_f16(b + 208);
    for (int g = 0; g < 16; g++) scales[g] = d * (float)(int8_t)b[192 + g];
    for (int quarter = 0; quarter < 8; quarter++) { /* of 32 values; four to each half */
        int half = quarter / 4, k = quarter % 4;
        const uint8_t *low = b + 64 * half + 32 * (k & 1), *high = b + 128 + 32 * half;
        for (int i = 0; i < 32; i++) {
            codes[32 * quarter + i] = (uint8_t)((low[i] >> (k < 2 ? 0 : 4) & 15) | (high[i] >> (2 * k) & 3) << 4);
        }
    }
}

static void iq4_xs(const uint8_t *b, uint8_t *codes, float *scales, float *mins) {
    (void)mins;
    float d = load_f16(b);
    int scales_high = load_u16(b + 2);
    for (int g = 0; g < 8; g++) {
        int low4 = b[4 + g / 2] >> (4 * (g % 2)) & 15, high2 = scales_high >> (2 * g) & 3;
        scales[g] = d * (float)((low4 | high2 << 4) - 32);
        nibbles(codes + 32 * g, b + 8 + 16 * g);
    }
    for (int i = 0; i < 256; i++) codes[i] = iq4_codes[codes[i]];
}

/* ---- the table ---- */

/* clang-format off */
const dtype_codes dtype_codes_table[N_DTYPES] = {
    /*               group  max  zero  has_min  decode */
    [DTYPE_Q4_0]   = {32,   15,  8,    false,   q4_0},
    [DTYPE_Q4_1]   = {32,   15,  0,    true,    q4_1},
    [DTYPE_Q5_0]   = {32,   31,  16,   false,   q5_0},
    [DTYPE_Q5_1]   = {32,   31,  0,    true,    q5_1},
    [DTYPE_Q8_0]   = {32,   255, SIGNED_ZERO, false, q8_0},
    [DTYPE_Q2_K]   = {16,   3,   0,    true,    q2_k},
    [DTYPE_Q3_K]   = {16,   7,   4,    false,   q3_k},
    [DTYPE_Q4_K]   = {32,   15,  0,    true,    q4_k},
    [DTYPE_Q5_K]   = {32,   31,  0,    true,    q5_k},
    [DTYPE_Q6_K]   = {16,   63,  32,   false,   q6_k},
    [DTYPE_IQ4_NL] = {32,   255, SIGNED_ZERO, false, iq4_nl},
    [DTYPE_IQ4_XS] = {32,   255, SIGNED_ZERO, false, iq4_xs},
};
/* clang-format on */
