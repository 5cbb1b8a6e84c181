/* Integer operations on AVX-512 for quantized streams: a vector holds 4 steps of 16 lanes as bytes, or 16 integers of
 * 32 bits. A dot product multiplies 16-bit integers two at a time, or, with byte dot products, unsigned levels and the
 * two halves of a weight four at a time.
 *
 * Contracts are beside the same names in codes_avx2.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_ATTEND_CODES_AVX512_H
#define MN_KERNELS_ATTEND_CODES_AVX512_H

#include "kernels/attend/codes_tile.h"
#include "kernels/simd_avx512.h"

typedef __m512i vi;
/* The operand type of GCC's instruction: with another GCC copies sums between registers and memory. */
typedef int vsum __attribute__((vector_size(64)));

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
static inline vi i_right16_by(vi x, int n) {
    return _mm512_srl_epi16(x, _mm_cvtsi32_si128(n));
}
static inline vi i_right16(vi x, const uint8_t n) {
    return _mm512_srli_epi16(x, n);
}
static inline vi i_left16(vi x, const uint8_t n) {
    return _mm512_slli_epi16(x, n);
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
/* Rows with NaN have sums that overflow: these additions wrap around, those of _mm512_reduce_add_epi32 are signed. */
static inline int32_t i_sum(vi x) {
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1)));
}

/* Puts integers packed within the four parts of two vectors into the order of their tiles. */
static inline vi i_in_order(vi packed) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
}

#if defined(__AVX512VNNI__)

enum { CODE_BIAS = 128, CODE_SUMS = 2 };

/* w = 256 * upper + lower: the words are four upper bytes and four lower ones, all signed. */
static inline void i_put_words(int32_t *words, vi a, vi b) {
    vi both = _mm512_packs_epi32(a, b);
    vi upper = _mm512_srai_epi16(_mm512_add_epi16(both, _mm512_set1_epi16(128)), 8);
    vi lower = _mm512_sub_epi16(both, _mm512_slli_epi16(upper, 8));
    i_store(words, i_in_order(_mm512_shuffle_epi32(_mm512_packs_epi16(upper, lower), (_MM_PERM_ENUM)0xD8)));
}
static inline vi i_part(vi levels, int part) {
    (void)part;
    return levels;
}
static inline vsum i_dot(vsum sum, vi part, vi word) {
    return (vsum)_mm512_dpbusd_epi32((vi)sum, part, word);
}
static inline vi i_total(vsum first, vsum last) {
    return _mm512_add_epi32(_mm512_slli_epi32((vi)first, 8), (vi)last);
}

#else

enum { CODE_BIAS = 0, CODE_SUMS = 1 };

static inline void i_put_words(int32_t *words, vi a, vi b) {
    vi first = _mm512_shuffle_epi32(a, (_MM_PERM_ENUM)0xD8), second = _mm512_shuffle_epi32(b, (_MM_PERM_ENUM)0xD8);
    i_store(words, i_in_order(_mm512_packs_epi32(first, second)));
}
static inline vi i_part(vi levels, int part) {
    return _mm512_srai_epi16(part ? levels : _mm512_slli_epi16(levels, 8), 8);
}
static inline vsum i_dot(vsum sum, vi part, vi word) {
    return (vsum)_mm512_add_epi32((vi)sum, _mm512_madd_epi16(part, word));
}
static inline vi i_total(vsum first, vsum last) {
    (void)last;
    return (vi)first;
}

#endif

static inline vf v_from_f16(const void *stored) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)stored));
}
static inline vf v_from_log8(const void *stored) {
    const vi n = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)stored));
    const vi powers = _mm512_broadcast_i32x8(_mm256_loadu_si256((const __m256i *)(const void *)code_log8_bits));
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
