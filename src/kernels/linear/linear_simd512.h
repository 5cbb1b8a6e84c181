/* Vector operations of the 512-bit levels for linear_drive.inc and linear_dense.inc.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_LINEAR_LINEAR_SIMD512_H
#define MN_KERNELS_LINEAR_LINEAR_SIMD512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

typedef __m512 vf;
typedef __m512i vi;
enum { LANES = 16 };

static inline vf v_zero(void) {
    return _mm512_setzero_ps();
}
static inline vf v_load(const void *p) {
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, vf x) {
    _mm512_storeu_ps(p, x);
}
static inline vf v_value(float x) {
    return _mm512_set1_ps(x);
}
static inline vf v_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf v_half(const char *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* Sixteen signed bytes. */
static inline vf v_bytes(const char *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

static inline vi i_load(const char *p) {
    return _mm512_loadu_si512(p);
}
static inline vi i_value(int32_t x) {
    return _mm512_set1_epi32(x);
}
static inline vi i_broadcast(const void *unit) {
    int32_t bits;
    memcpy(&bits, unit, sizeof bits);
    return _mm512_set1_epi32(bits);
}
static inline vf v_broadcast(const void *unit) {
    return _mm512_castsi512_ps(i_broadcast(unit));
}
static inline vi i_and(vi a, vi b) {
    return _mm512_and_si512(a, b);
}
static inline vi i_or(vi a, vi b) {
    return _mm512_or_si512(a, b);
}
static inline vi i_shift16(vi a, int left) {
    const __m128i count = _mm_cvtsi32_si128(left < 0 ? -left : left);
    return left < 0 ? _mm512_srl_epi16(a, count) : _mm512_sll_epi16(a, count);
}
static inline vi i_table(const uint8_t *bytes) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)bytes));
}
static inline vi i_choose(vi table, vi numbers) {
    return _mm512_shuffle_epi8(table, numbers);
}
static inline vi i_add32(vi a, vi b) {
    return _mm512_add_epi32(a, b);
}
static inline vf i_to_float(vi a) {
    return _mm512_cvtepi32_ps(a);
}

#endif
