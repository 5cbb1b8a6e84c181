/* Small numbers: hexadecimal digits, bf16 and f16 conversion, integer helpers, L2 norms, the counter-based random
 * generator.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_NUM_H
#define MN_BASE_NUM_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bf16; /* upper half of an IEEE float32 */
typedef uint16_t f16;  /* IEEE half */

/* A hexadecimal digit's value; -1: it is none. */
static inline int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static inline uint32_t f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float f32_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float f32_from_bf16(bf16 x) {
    return f32_from_bits((uint32_t)x << 16);
}

/* Round to nearest, ties to even; NaN stays NaN (quiet). */
static inline bf16 bf16_from_f32(float x) {
    uint32_t u = f32_bits(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (bf16)((u >> 16) | 0x40u);
    return (bf16)((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

static inline float f32_from_f16(f16 h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1Fu, fraction = h & 0x3FFu;
    if (exponent == 0x1F) return f32_from_bits(sign | 0x7F800000u | fraction << 13);
    if (exponent == 0) {
        float magnitude = (float)fraction * 0x1p-24f;
        return f32_from_bits(sign | f32_bits(magnitude));
    }
    return f32_from_bits(sign | (exponent + 112u) << 23 | fraction << 13);
}

/* Round to nearest, ties to even; overflow gives infinity. */
static inline f16 f16_from_f32(float x) {
    uint32_t u = f32_bits(x), sign = u >> 16 & 0x8000u;
    u &= 0x7FFFFFFFu;
    if (u > 0x7F800000u) return (f16)(sign | 0x7E00u);
    if (u >= 0x477FF000u) return (f16)(sign | 0x7C00u);
    if (u < 0x38800000u) { /* subnormal: let the float adder round */
        float y = f32_from_bits(u) + 0.5f;
        return (f16)(sign | (f32_bits(y) - 0x3F000000u));
    }
    return (f16)(sign | ((u + 0xFFFu + (u >> 13 & 1u) - 0x38000000u) >> 13));
}

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* x [n] divided by its L2 norm, computed in double precision; zeros stay. out may be x. */
static inline void f32_normalize(float *out, const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    double scale = sum > 0 ? 1 / sqrt(sum) : 0;
    for (size_t i = 0; i < n; i++) out[i] = (float)((double)x[i] * scale);
}

/* Counter-based random bits: the same (seed, stream, counter) gives the same number whatever else is computed. Philox
 * 2x64 with ten rounds: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3". */
static inline uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint64_t x0 = counter, x1 = stream, key = seed;
    for (int round = 0; round < 10; round++) {
        __extension__ unsigned __int128 product = (unsigned __int128)x0 * 0xD2B74407B1CE6E93u;
        x0 = (uint64_t)(product >> 64) ^ key ^ x1;
        x1 = (uint64_t)product;
        key += 0x9E3779B97F4A7C15u;
    }
    return x0;
}

/* Uniform in [0, 1), 53 bits. */
static inline double random_uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
    return (double)(random_bits(seed, stream, counter) >> 11) * 0x1p-53;
}

#endif
