/* Rounding of rows of floats, in plain loops that compilers vectorize for the instruction set of the including file.
 * Operations are exact or correctly rounded, so every level gives the same bits.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_LINEAR_LINEAR_ROWS_H
#define MN_KERNELS_LINEAR_LINEAR_ROWS_H

#include "kernels/linear/linear.h"

static inline void rows_bf16(bf16 *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = bf16_from_f32(x[i]);
}

/* The bits of the largest magnitude; a NaN is larger than infinity. */
static inline uint32_t rows_largest(const float *x) {
    int32_t largest = 0; /* signed, as the vector comparisons of every level are */
    for (int i = 0; i < ACT_GROUP; i++) {
        int32_t magnitude = (int32_t)(f32_bits(x[i]) & 0x7FFFFFFFu);
        largest = magnitude > largest ? magnitude : largest;
    }
    return (uint32_t)largest;
}

static inline void rows_quantize(int8_t *q, float *scale, int32_t *sum, const float *x, int k, bool coarse) {
    int8_t *lower = q + k;
    const int shift = coarse ? 8 : 0;
    const float round = 0x1.8p23f; /* x + round has the nearest integer, ties to even, in its low bits */
    for (int begin = 0; begin < k; begin += ACT_GROUP, scale++, sum += 2, x += ACT_GROUP) {
        float largest = f32_from_bits(rows_largest(x));
        int ordinary = largest >= 0x1p-111f && largest <= 0x1.fffffep127f;
        *scale = largest < 0x1p-111f ? 0 : largest / ACT_LARGEST;
        float divisor = ordinary ? *scale * (float)(1 << shift) : 1;
        uint32_t mask = ordinary ? ~0u : 0;
        int32_t codes[ACT_GROUP];
        int8_t upper_half[ACT_GROUP], lower_half[ACT_GROUP];
        for (int i = 0; i < ACT_GROUP; i++) {
            codes[i] = (int32_t)((f32_bits(x[i] / divisor + round) - f32_bits(round)) & mask) * (1 << shift);
            int32_t upper = (codes[i] + 128) >> 8;
            upper_half[i] = (int8_t)upper;
            lower_half[i] = (int8_t)(codes[i] - upper * 256);
        }
        for (int half = 0; half < 2; half++) {
            int32_t total = 0;
            for (int i = 0; i < ACT_SUM_GROUP; i++) total += codes[half * ACT_SUM_GROUP + i];
            sum[half] = total;
        }
        memcpy(q + begin, upper_half, sizeof upper_half);
        memcpy(lower + begin, lower_half, sizeof lower_half);
    }
}

#endif
