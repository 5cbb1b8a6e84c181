/* Integer operations on AVX2 for quantized streams: a vector holds 4 steps of 8 lanes as bytes, or 8 integers of 32
 * bits. A dot product multiplies 16-bit integers two at a time.
 *
 * codes_avx512.h has the same names.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_ATTEND_CODES_AVX2_H
#define MN_KERNELS_ATTEND_CODES_AVX2_H

#include "kernels/attend/codes_tile.h"
#include "kernels/simd_avx2.h"

typedef __m256i vi;
typedef __m256i vsum; /* 32-bit sums */

enum {
    CODE_BIAS = 0, /* added to levels in scratch, so that they have the sign that dot products need */
    CODE_SUMS = 1, /* vectors of a sum */
};

static inline vi i_load(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
static inline void i_store(void *p, vi x) {
    _mm256_storeu_si256((__m256i *)p, x);
}
static inline vi i_zero(void) {
    return _mm256_setzero_si256();
}
static inline vi i_set8(int x) {
    return _mm256_set1_epi8((char)x);
}
static inline vi i_set32(int32_t x) {
    return _mm256_set1_epi32(x);
}
static inline vi i_and(vi a, vi b) {
    return _mm256_and_si256(a, b);
}
static inline vi i_or(vi a, vi b) {
    return _mm256_or_si256(a, b);
}
static inline vi i_add8(vi a, vi b) {
    return _mm256_add_epi8(a, b);
}
static inline vi i_add32(vi a, vi b) {
    return _mm256_add_epi32(a, b);
}
static inline vi i_right16_by(vi x, int n) {
    return _mm256_srl_epi16(x, _mm_cvtsi32_si128(n));
}
/* Constants, of a type that converts to the parameter type of each compiler. */
static inline vi i_right16(vi x, const uint8_t n) {
    return _mm256_srli_epi16(x, n);
}
static inline vi i_left16(vi x, const uint8_t n) {
    return _mm256_slli_epi16(x, n);
}
/* The lower four bits of each byte of x, which is below 128, pick one of the 16 bytes of a table. */
static inline vi i_table(const void *bytes) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
}
static inline vi i_pick(vi table, vi x) {
    return _mm256_shuffle_epi8(table, x);
}
/* Bytes of `on` where the top bit of a byte is set, of `off` elsewhere. */
static inline vi i_select8(vi top, vi on, vi off) {
    return _mm256_blendv_epi8(off, on, top);
}
static inline vi i_round(vf x) {
    return _mm256_cvtps_epi32(x);
}
static inline vf i_float(vi x) {
    return _mm256_cvtepi32_ps(x);
}
static inline int32_t i_sum(vi x) {
    __m128i y = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    y = _mm_add_epi32(y, _mm_unpackhi_epi64(y, y));
    return _mm_cvtsi128_si32(_mm_add_epi32(y, _mm_shuffle_epi32(y, 1)));
}

/* A step tile of weights w is two words: the first is multiplied by part 0 of the levels, the second by part 1; here w0
 * w2 and w1 w3. Stores the words of twice LANES weights, of 16 bits each. */
static inline void i_put_words(int32_t *words, vi a, vi b) {
    vi pairs = _mm256_packs_epi32(_mm256_shuffle_epi32(a, 0xD8), _mm256_shuffle_epi32(b, 0xD8));
    i_store(words, _mm256_permute4x64_epi64(pairs, 0xD8));
}
static inline vi i_part(vi levels, int part) {
    return _mm256_srai_epi16(part ? levels : _mm256_slli_epi16(levels, 8), 8);
}
static inline vsum i_dot(vsum sum, vi part, vi word) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(part, word));
}
static inline vi i_total(vsum first, vsum last) {
    (void)last;
    return first;
}

/* LANES stored side values as floats. */
static inline vf v_from_f16(const void *stored) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)stored));
}
static inline vf v_from_log8(const void *stored) {
    const vi n = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)stored));
    const vi powers = _mm256_loadu_si256((const __m256i *)(const void *)code_log8_bits);
    vi exponent = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_srli_epi32(n, 3), _mm256_set1_epi32(20)), 23);
    vi x = _mm256_add_epi32(_mm256_permutevar8x32_epi32(powers, n), exponent);
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpeq_epi32(n, _mm256_setzero_si256()), x));
}

/* Exchanges the lanes whose indices differ in the bit `step` (1, 2, 4 ...). */
static inline vf v_swap(vf x, const int step) {
    return step == 1   ? _mm256_permute_ps(x, 0xB1)
           : step == 2 ? _mm256_permute_ps(x, 0x4E)
                       : _mm256_permute2f128_ps(x, x, 1);
}

#endif
