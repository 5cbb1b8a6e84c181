/* Inline operations of the vector kernels, on AVX2 with FMA: vectors of 8 floats.
 *
 * The contracts are in simd_avx512.h, which has the same names.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_SIMD_AVX2_H
#define MN_KERNELS_SIMD_AVX2_H

#include <immintrin.h>

#include "base/num.h"

typedef __m256 vf;
typedef __m256i vmask;

enum {
    LANES = 8,
    TILE_VECTORS = 2, /* 6 rows x 2 vectors of sums, their operands, and a broadcast fit the 16 registers */
};

/* A macro, since GCC removes calls of a function that only prefetches. */
#define v_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)
static inline vf v_zero(void) {
    return _mm256_setzero_ps();
}
static inline vf v_set(float x) {
    return _mm256_set1_ps(x);
}
static inline vf v_load(const float *p) {
    return _mm256_loadu_ps(p);
}
static inline void v_store(float *p, vf x) {
    _mm256_storeu_ps(p, x);
}
/* Stores past the caches, p aligned to a vector; call v_stream_end before another thread reads it. */
static inline void v_stream(float *p, vf x) {
    _mm256_stream_ps(p, x);
}
static inline void v_stream_end(void) {
    _mm_sfence();
}

static inline vmask v_lanes(int lo, int hi) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
}
static inline vf v_load_part(const float *p, vmask part) {
    return _mm256_maskload_ps(p, part);
}
static inline void v_store_part(float *p, vmask part, vf x) {
    _mm256_maskstore_ps(p, part, x);
}
static inline vf v_select(vmask part, vf inside, vf outside) {
    return _mm256_blendv_ps(outside, inside, _mm256_castsi256_ps(part));
}

static inline vf v_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf v_fnma(vf a, vf b, vf c) {
    return _mm256_fnmadd_ps(a, b, c);
}
static inline vf v_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
static inline vf v_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
static inline vf v_round(vf x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf v_abs(vf x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
static inline vf v_with_sign(vf magnitude, vf sign) {
    const vf top = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_and_ps(top, sign), _mm256_andnot_ps(top, magnitude));
}
static inline vf v_scale(vf x, vf n) {
    /* In two steps, since 2^n itself may overflow. */
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

static inline float v_sum(vf x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
static inline float v_largest(vf x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
static inline double v_sum_double(vf x) {
    __m256d y = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x)), _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
    __m128d z = _mm_add_pd(_mm256_castpd256_pd128(y), _mm256_extractf128_pd(y, 1));
    return _mm_cvtsd_f64(_mm_add_sd(z, _mm_unpackhi_pd(z, z)));
}
static inline uint32_t v_equal(vf a, vf b) {
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}

static inline vf v_add_reached(vf sum, vf x, vf border, vf y) {
    return _mm256_add_ps(sum, _mm256_and_ps(_mm256_cmp_ps(x, border, _CMP_GE_OQ), y));
}
static inline void v_put_bytes(uint8_t *p, vf x) {
    __m256i whole = _mm256_cvtps_epi32(x);
    __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
}

static inline vf v_bf16_low(vf pair) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pair), 16));
}
static inline vf v_bf16_high(vf pair) {
    return _mm256_and_ps(pair, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xFFFF0000u)));
}
static inline vf v_bf16_round(vf x) {
    __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    return v_bf16_high(_mm256_castsi256_ps(rounded));
}
static inline vf v_bf16_pair(vf low, vf high) {
    return _mm256_or_ps(_mm256_castsi256_ps(_mm256_srli_epi32(_mm256_castps_si256(low), 16)), high);
}

#endif
