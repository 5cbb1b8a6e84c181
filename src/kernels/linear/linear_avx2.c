/* Matrix products with AVX2, FMA and F16C.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/kernels.h"
#include "kernels/linear/linear_rows.h"

/* ---- vectors of eight lanes ---- */

typedef __m256 vf;
typedef __m256i vi;
enum { LANES = 8 };

static inline vf v_zero(void) {
    return _mm256_setzero_ps();
}
static inline vf v_load(const void *p) {
    return _mm256_loadu_ps(p);
}
static inline void v_store(float *p, vf x) {
    _mm256_storeu_ps(p, x);
}
static inline vf v_value(float x) {
    return _mm256_set1_ps(x);
}
static inline vf v_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf v_half(const char *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
/* Eight signed bytes. */
static inline vf v_bytes(const char *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
static inline vf v_low(vf pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
}
static inline vf v_high(vf pairs) {
    return _mm256_and_ps(pairs, _mm256_castsi256_ps(_mm256_set1_epi32(-65536)));
}

static inline vi i_load(const char *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
static inline void i_store(void *p, vi x) {
    _mm256_storeu_si256((__m256i *)p, x);
}
static inline vi i_widen(const int8_t *p) {
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)p), order));
}
static inline vi i_value(int32_t x) {
    return _mm256_set1_epi32(x);
}
static inline vi i_broadcast(const void *unit) {
    int32_t bits;
    memcpy(&bits, unit, sizeof bits);
    return _mm256_set1_epi32(bits);
}
static inline vf v_broadcast(const void *unit) {
    return _mm256_castsi256_ps(i_broadcast(unit));
}
static inline vi i_and(vi a, vi b) {
    return _mm256_and_si256(a, b);
}
static inline vi i_or(vi a, vi b) {
    return _mm256_or_si256(a, b);
}
static inline vi i_shift16(vi a, int left) {
    return left < 0 ? _mm256_srli_epi16(a, -left) : _mm256_slli_epi16(a, left);
}
static inline vi i_table(const uint8_t *bytes) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes));
}
static inline vi i_choose(vi table, vi numbers) {
    return _mm256_shuffle_epi8(table, numbers);
}
static inline vi i_add16(vi a, vi b) {
    return _mm256_add_epi16(a, b);
}
static inline vi i_sub8(vi a, vi b) {
    return _mm256_sub_epi8(a, b);
}
static inline vi i_sub16(vi a, vi b) {
    return _mm256_sub_epi16(a, b);
}
static inline vi i_add32(vi a, vi b) {
    return _mm256_add_epi32(a, b);
}
static inline vi i_right32(vi a, int bits) {
    return _mm256_srai_epi32(a, bits);
}
static inline vi i_even(vi a) {
    return _mm256_and_si256(a, _mm256_set1_epi16(255));
}
static inline vi i_odd(vi a) {
    return _mm256_srli_epi16(a, 8);
}
static inline vi i_even_signed(vi a) {
    return _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8);
}
static inline vi i_odd_signed(vi a) {
    return _mm256_srai_epi16(a, 8);
}
static inline vi i_madd8(vi codes, vi x) {
    return _mm256_maddubs_epi16(codes, x);
}
static inline vi i_madd16(vi a, vi b) {
    return _mm256_madd_epi16(a, b);
}
static inline vf i_to_float(vi a) {
    return _mm256_cvtepi32_ps(a);
}

#include "kernels/linear/linear_drive.inc"
#include "kernels/linear/linear_dense.inc"
#include "kernels/linear/linear_dense_block.inc"
#include "kernels/linear/linear_madd.inc"

DENSE_TILES(linear_f32, 1, false)
DENSE_KERNEL(linear_f32, 1)
DENSE_TILES(linear_bf16, 1, true)

static void linear_bf16(const linear_job *job) {
    static const tile_set set = {MOST_ROWS, 1, linear_bf16_1, linear_bf16_1, 2};
    if (job->row_end - job->row_begin >= SPAN_FROM)
        drive_spans(job);
    else
        drive(job, &set);
}

void linear_avx2_fill(kernel_table *table) {
    table->linear_f32 = linear_f32;
    table->linear_bf16 = linear_bf16;
    table->linear_int = linear_int;
    table->quantize_row = rows_quantize;
    table->bf16_row = rows_bf16;
}
