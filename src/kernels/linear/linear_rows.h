/* Rounding of rows of floats, in plain loops that compilers vectorize for the instruction set of the including file.
 * Operations are exact or correctly rounded, so every level gives the same bits.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_LINEAR_LINEAR_ROWS_H
#define MN_KERNELS_LINEAR_LINEAR_ROWS_H

#include "kernels/linear/linear.h"

static inline void rows_bf16(bf16 *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = bf16_from_f32(x[i]);
}

/* The largest magnitude; a NaN is larger than infinity. */
static inline float rows_largest(const float *x, int n) {
    int32_t largest = 0; /* signed, as the vector comparisons of every level are */
    for (int i = 0; i < n; i++) {
        int32_t magnitude = (int32_t)(f32_bits(x[i]) & 0x7FFFFFFFu);
        largest = magnitude > largest ? magnitude : largest;
    }
    return f32_from_bits((uint32_t)largest);
}

/* The input of the largest magnitude if it is an outlier (linear.h); -1: none. second: the next largest magnitude. */
static inline int rows_outlier(const float *x, float largest, float *second) {
    int32_t next = 0, n_largest = 0, place = 0, bits = (int32_t)f32_bits(largest);
    for (int i = 0; i < ACT_GROUP; i++) {
        const int32_t magnitude = (int32_t)(f32_bits(x[i]) & 0x7FFFFFFFu), is_largest = magnitude == bits;
        const int32_t other = is_largest ? 0 : magnitude;
        n_largest += is_largest;
        place += is_largest ? i : 0;
        next = other > next ? other : next;
    }
    *second = f32_from_bits((uint32_t)next);
    return n_largest == 1 && largest > ACT_OUTLIER * *second ? place : -1;
}

/* Notes the outlier of a run and the upper part of its code, and returns the lower one. */
static inline int32_t rows_split(act_span *span, int run, int place, int32_t code) {
    const int32_t lower = ((code + ACT_UPPER / 2) & (ACT_UPPER - 1)) - ACT_UPPER / 2;
    span->place[run] = (int16_t)place;
    span->upper[run] = (int16_t)((code - lower) / ACT_UPPER);
    span->outliers |= (uint32_t)(lower != code) << run;
    return lower;
}

/* Notes the sums of a run's codes, from those of its halves. */
static inline void rows_note_sums(act_span *span, int run, int32_t first, int32_t last, bool a8) {
    const float scale = a8 ? span->scale[run] : 1;
    span->half_sum[2 * run] = first;
    span->half_sum[2 * run + 1] = last;
    span->sum[run] = first + last;
    span->half_min_factor[2 * run] = scale * (float)first;
    span->half_min_factor[2 * run + 1] = scale * (float)last;
    span->min_factor[run] = scale * (float)(first + last);
}

/* Notes the products of a run's codes, from those of its halves. */
static inline void rows_note_products(act_span *span, int run, uint32_t first, uint32_t last) {
    span->half_products[2 * run] = (int32_t)first;
    span->half_products[2 * run + 1] = (int32_t)last;
    span->products[run] = (int32_t)(first + last);
}

static inline void rows_quantize(void *codes, act_span *span, const float *x, int k, bool a8) {
    int8_t *narrow = codes;
    int16_t *wide = codes;
    const float round = 0x1.8p23f; /* x + round has the nearest integer, ties to even, in its low bits */
    float largest = a8 ? 0 : rows_largest(x, k), second = 0;
    if (a8) span->outliers = 0;
    for (int begin = 0, run = 0; begin < k; begin += ACT_GROUP, run++, x += ACT_GROUP) {
        if (a8) largest = rows_largest(x, ACT_GROUP);
        int ordinary = largest >= 0x1p-111f && largest <= 0x1.fffffep127f;
        const int outlier = a8 && ordinary ? rows_outlier(x, largest, &second) : -1;
        float scale = largest < 0x1p-111f ? 0 : largest / (a8 ? ACT_LARGEST_A8 : ACT_LARGEST);
        if (outlier >= 0) scale = fmaxf(second / ACT_LARGEST_A8, largest / ACT_LARGEST_OUTLIER);
        const float divisor = ordinary ? scale : 1;
        uint32_t mask = ordinary ? ~0u : 0;
        int32_t code[ACT_GROUP];
        for (int i = 0; i < ACT_GROUP; i++)
            code[i] = (int32_t)((f32_bits(x[i] / divisor + round) - f32_bits(round)) & mask);
        int32_t first = 0, last = 0;
        for (int i = 0; i < ACT_SUM_GROUP; i++) {
            first += code[i];
            last += code[ACT_SUM_GROUP + i];
        }
        span->scale[run] = scale;
        rows_note_sums(span, run, first, last, a8);
        if (a8) {
            span->place[run] = span->upper[run] = 0;
            if (outlier >= 0) code[outlier] = rows_split(span, run, outlier, code[outlier]);
            for (int i = 0; i < ACT_GROUP; i++) narrow[begin + i] = (int8_t)code[i];
            continue;
        }
        uint32_t products[2] = {0};
        for (int i = ACT_PLAIN; i < ACT_SUM_GROUP; i += 2) {
            products[0] += (uint32_t)(code[i] * code[i + 1]);
            products[1] += (uint32_t)(code[ACT_SUM_GROUP + i] * code[ACT_SUM_GROUP + i + 1]);
        }
        rows_note_products(span, run, products[0], products[1]);
        int16_t ordered[ACT_GROUP];
        for (int i = 0; i < ACT_GROUP; i += 4) {
            ordered[i] = (int16_t)code[i];
            ordered[i + 1] = (int16_t)code[i + 2];
            ordered[i + 2] = (int16_t)code[i + 1];
            ordered[i + 3] = (int16_t)code[i + 3];
        }
        memcpy(wide + begin, ordered, sizeof ordered);
    }
}

#endif
