/* Inline operations of the vector kernels, on AVX-512: vectors of 16 floats, masks for partial vectors.
 *
 * simd_avx2.h and simd_neon.h have the same names. A file includes one of them, then simd_math.h and the templates.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_SIMD_AVX512_H
#define MN_KERNELS_SIMD_AVX512_H

#include <immintrin.h>

#include "base/num.h"

typedef __m512 vf;
typedef __mmask16 vmask;

enum {
    LANES = 16,
    TILE_VECTORS = 4, /* 6 rows x 4 vectors of sums, their operands, and a broadcast fit the 32 registers */
};

/* A macro, since GCC removes calls of a function that only prefetches. */
#define v_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
static inline vf v_zero(void) {
    return _mm512_setzero_ps();
}
static inline vf v_set(float x) {
    return _mm512_set1_ps(x);
}
static inline vf v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, vf x) {
    _mm512_storeu_ps(p, x);
}
/* Stores past the caches, p aligned to a vector; call v_stream_end before another thread reads it. */
static inline void v_stream(float *p, vf x) {
    _mm512_stream_ps(p, x);
}
static inline void v_stream_end(void) {
    _mm_sfence();
}

/* Lanes from `lo` up to but not including `hi`, 0 <= lo and hi <= LANES. */
static inline vmask v_lanes(int lo, int hi) {
    return (vmask)((1u << hi) - (1u << lo));
}
static inline vf v_load_part(const float *p, vmask part) {
    return _mm512_maskz_loadu_ps(part, p);
}
static inline void v_store_part(float *p, vmask part, vf x) {
    _mm512_mask_storeu_ps(p, part, x);
}
static inline vf v_select(vmask part, vf inside, vf outside) {
    return _mm512_mask_blend_ps(part, outside, inside);
}

static inline vf v_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
} /* a b + c */
static inline vf v_fnma(vf a, vf b, vf c) {
    return _mm512_fnmadd_ps(a, b, c);
} /* c - a b */
/* b where a or b is NaN. */
static inline vf v_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
static inline vf v_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
static inline vf v_round(vf x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf v_abs(vf x) {
    return _mm512_abs_ps(x);
}
static inline vf v_with_sign(vf magnitude, vf sign) {
    const __m512i top = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(top, _mm512_castps_si512(sign), _mm512_castps_si512(magnitude), 0xCA));
}
/* x 2^n for whole numbers |n| <= 252, overflowing to infinity, underflowing through subnormals to 0. */
static inline vf v_scale(vf x, vf n) {
    return _mm512_scalef_ps(x, n);
}

/* Halving the vector until one lane is left. */
static inline float v_sum(vf x) {
    return _mm512_reduce_add_ps(x);
}
static inline float v_largest(vf x) {
    return _mm512_reduce_max_ps(x);
}
/* Sum of the lanes in double. */
static inline double v_sum_double(vf x) {
    __m256 upper = _mm512_extractf32x8_ps(x, 1);
    return _mm512_reduce_add_pd(_mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(x)), _mm512_cvtps_pd(upper)));
}
/* Bit i: lane i of a equals that of b. */
static inline uint32_t v_equal(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

/* sum, plus y in the lanes where x >= border. */
static inline vf v_add_reached(vf sum, vf x, vf border, vf y) {
    return _mm512_mask_add_ps(sum, _mm512_cmp_ps_mask(x, border, _CMP_GE_OQ), sum, y);
}
/* Stores integers from 0 to 255 as LANES bytes. */
static inline void v_put_bytes(uint8_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}

/* The two bf16 of each 32-bit lane as floats; rounding to bf16, as a float; a pair composed of rounded floats. */
static inline vf v_bf16_low(vf pair) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pair), 16));
}
static inline vf v_bf16_high(vf pair) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pair), _mm512_set1_epi32((int)0xFFFF0000u)));
}
static inline vf v_bf16_round(vf x) {
    __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    return v_bf16_high(_mm512_castsi512_ps(rounded));
}
static inline vf v_bf16_pair(vf low, vf high) {
    return _mm512_castsi512_ps(
        _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(low), 16), _mm512_castps_si512(high)));
}

#endif
