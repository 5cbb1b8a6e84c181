/* Whole numbers on AVX-512, for coded streams: a vector holds 4 steps of 16 lanes as bytes, or 16 numbers of
 * 32 bits. A sum of products takes numbers of 16 bits two at a time, or, where there are dot products of
 * bytes, unsigned levels and the two halves of a weight, four at a time.
 *
 * Contracts are beside the same names in codes_avx2.h. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_CODES_AVX512_H
#define MN_KERNELS_CODES_AVX512_H

#include "kernels/codes_tile.h"
#include "kernels/simd_avx512.h"

typedef __m512i vi;

static inline vi i_load(const void *p) {
    return _mm512_loadu_si512(p);
}
static inline void i_store(void *p, vi x) {
    _mm512_storeu_si512(p, x);
}
static inline vi i_zero(void) {
    return _mm512_setzero_si512();
}
static inline vi i_set8(int x) {
    return _mm512_set1_epi8((char)x);
}
static inline vi i_set32(int32_t x) {
    return _mm512_set1_epi32(x);
}
static inline vi i_and(vi a, vi b) {
    return _mm512_and_si512(a, b);
}
static inline vi i_or(vi a, vi b) {
    return _mm512_or_si512(a, b);
}
static inline vi i_add8(vi a, vi b) {
    return _mm512_add_epi8(a, b);
}
static inline vi i_add32(vi a, vi b) {
    return _mm512_add_epi32(a, b);
}
static inline vi i_right16(vi x, int n) {
    return _mm512_srl_epi16(x, _mm_cvtsi32_si128(n));
}
static inline vi i_left16(vi x, int n) {
    return _mm512_sll_epi16(x, _mm_cvtsi32_si128(n));
}
static inline vi i_table(const void *bytes) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)bytes));
}
static inline vi i_pick(vi table, vi x) {
    return _mm512_shuffle_epi8(table, x);
}
static inline vi i_select8(vi top, vi on, vi off) {
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(top), off, on);
}
static inline vi i_round(vf x) {
    return _mm512_cvtps_epi32(x);
}
static inline vf i_float(vi x) {
    return _mm512_cvtepi32_ps(x);
}
static inline int32_t i_sum(vi x) {
    return _mm512_reduce_add_epi32(x);
}

#if defined(__AVX512VNNI__)

enum { CODE_BIAS = 128, CODE_SUMS = 2 };

/* w = 256 * upper + lower: the words are four upper bytes and four lower ones, all signed. */
static inline void i_put_words(int32_t *words, vi w) {
    __m128i upper = _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(w, _mm512_set1_epi32(128)), 8));
    __m128i lower = _mm512_cvtepi32_epi8(w);
    _mm_storeu_si128((__m128i *)(void *)words, _mm_unpacklo_epi32(upper, lower));
    _mm_storeu_si128((__m128i *)(void *)(words + 4), _mm_unpackhi_epi32(upper, lower));
}
static inline vi i_part(vi levels, int part) {
    (void)part;
    return levels;
}
static inline vi i_dot(vi sum, vi part, vi word) {
    return _mm512_dpbusd_epi32(sum, part, word);
}
static inline vi i_total(const vi *sums) {
    return _mm512_add_epi32(_mm512_slli_epi32(sums[0], 8), sums[1]);
}

#else

enum { CODE_BIAS = 0, CODE_SUMS = 1 };

static inline void i_put_words(int32_t *words, vi w) {
    __m256i halves = _mm512_cvtepi32_epi16(_mm512_shuffle_epi32(w, (_MM_PERM_ENUM)0xD8));
    _mm256_storeu_si256((__m256i *)(void *)words, halves);
}
static inline vi i_part(vi levels, int part) {
    return _mm512_srai_epi16(part ? levels : _mm512_slli_epi16(levels, 8), 8);
}
static inline vi i_dot(vi sum, vi part, vi word) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(part, word));
}
static inline vi i_total(const vi *sums) {
    return sums[0];
}

#endif

static inline vf v_from_f16(const void *stored) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)stored));
}
static inline vf v_from_log8(const void *stored) {
    const vi n = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)stored));
    const vi powers =
        _mm512_broadcast_i32x8(_mm256_loadu_si256((const __m256i *)(const void *)code_log8_bits));
    vi exponent = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_srli_epi32(n, 3), _mm512_set1_epi32(20)), 23);
    vi x = _mm512_add_epi32(_mm512_permutexvar_epi32(n, powers), exponent);
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi32(_mm512_test_epi32_mask(n, n), x));
}

static inline vf v_swap(vf x, const int step) {
    return step == 1   ? _mm512_permute_ps(x, 0xB1)
           : step == 2 ? _mm512_permute_ps(x, 0x4E)
           : step == 4 ? _mm512_shuffle_f32x4(x, x, 0xB1)
                       : _mm512_shuffle_f32x4(x, x, 0x4E);
}

#endif
