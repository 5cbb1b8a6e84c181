/* Matrix products with AVX-512 F, BW, DQ and VL.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/linear/linear_rows.h"
#include "kernels/linear/linear_simd512.h"

static inline vf v_low(vf pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}
static inline vf v_high(vf pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32(-65536)));
}
static inline void i_store(void *p, vi x) {
    _mm512_storeu_si512(p, x);
}
static inline vi i_widen(const int8_t *p) {
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_cvtepi8_epi16(_mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order)));
}
static inline vi i_sub8(vi a, vi b) {
    return _mm512_sub_epi8(a, b);
}
static inline vi i_sub16(vi a, vi b) {
    return _mm512_sub_epi16(a, b);
}
static inline vi i_add16(vi a, vi b) {
    return _mm512_add_epi16(a, b);
}
static inline vi i_right32(vi a, int bits) {
    return _mm512_srai_epi32(a, (unsigned)bits);
}
static inline vi i_even(vi a) {
    return _mm512_and_si512(a, _mm512_set1_epi16(255));
}
static inline vi i_odd(vi a) {
    return _mm512_srli_epi16(a, 8);
}
static inline vi i_even_signed(vi a) {
    return _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8);
}
static inline vi i_odd_signed(vi a) {
    return _mm512_srai_epi16(a, 8);
}
static inline vi i_madd8(vi codes, vi x) {
    return _mm512_maddubs_epi16(codes, x);
}
static inline vi i_madd16(vi a, vi b) {
    return _mm512_madd_epi16(a, b);
}

#include "kernels/linear/linear_drive.inc"
#include "kernels/linear/linear_dense.inc"
#include "kernels/linear/linear_madd.inc"

DENSE_TILES(linear_f32, 1, false)
DENSE_TILES(linear_f32, 4, false)
DENSE_KERNEL(linear_f32, 4)
DENSE_TILES(linear_bf16, 1, true)
DENSE_TILES(linear_bf16, 4, true)
DENSE_KERNEL(linear_bf16, 4)

/* ---- rounding of rows: the bits of rows_quantize ---- */

/* Magnitudes as integers, in whose order a NaN is larger than infinity. */
static inline __m512i sizes_of(__m512 x) {
    return i_and(_mm512_castps_si512(x), i_value(INT32_MAX));
}

static inline int32_t largest_of(__m512i low, __m512i high) {
    return _mm512_reduce_max_epi32(_mm512_max_epi32(low, high));
}

/* The input of the largest magnitude of a run of 32 if it is an outlier (linear.h); -1: none. second: the next largest
 * magnitude. */
static inline int outlier_of(__m512i low, __m512i high, int32_t magnitude, float *second) {
    const __m512i largest = i_value(magnitude);
    const __mmask16 is_low = _mm512_cmpeq_epi32_mask(low, largest), is_high = _mm512_cmpeq_epi32_mask(high, largest);
    const uint32_t places = (uint32_t)is_low | (uint32_t)is_high << LANES;
    const int32_t next =
        largest_of(_mm512_maskz_mov_epi32((__mmask16)~is_low, low), _mm512_maskz_mov_epi32((__mmask16)~is_high, high));
    *second = f32_from_bits((uint32_t)next);
    const bool is_one = (places & (places - 1)) == 0;
    return is_one && f32_from_bits((uint32_t)magnitude) > ACT_OUTLIER * *second ? __builtin_ctz(places) : -1;
}

/* The sums of 32 codes and, of those in the order of act_place, the products. */
static inline void sum_codes(act_span *span, int run, __m512i codes, bool a8) {
    _Static_assert(ACT_PLAIN == 4, "the mask below leaves out one quad of each half");
    const __m512i sums = _mm512_madd_epi16(codes, _mm512_set1_epi16(1));
    /* The even inputs of a quad times the odd ones, once for each quad that is not multiplied plainly (ACT_PLAIN). */
    const __m512i products =
        _mm512_maskz_madd_epi16(a8 ? 0 : 0x5454, codes, _mm512_shuffle_epi32(codes, _MM_PERM_CDAB));
    __m512i both = i_add32(_mm512_unpacklo_epi32(sums, products), _mm512_unpackhi_epi32(sums, products));
    both = i_add32(both, _mm512_shuffle_epi32(both, _MM_PERM_BADC));
    both = i_add32(both, _mm512_shuffle_i32x4(both, both, 0xB1));
    int32_t values[LANES]; /* a half has the sum and the product of a half */
    _mm512_storeu_si512(values, both);
    const int32_t *first = values, *last = values + LANES / 2;
    rows_note_sums(span, run, first[0], last[0], a8);
    if (!a8) rows_note_products(span, run, (uint32_t)first[1], (uint32_t)last[1]);
}

/* Sixteen codes of each half as 16-bit numbers. */
static inline __m512i join_halves(__m512i low, __m512i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low)), _mm512_cvtepi32_epi16(high), 1);
}

/* Codes of 8 bits, from those of 16; the outlier is split. */
static inline void store_narrow(int8_t *out, act_span *span, int run, __m512i codes, int outlier) {
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtepi16_epi8(codes));
    span->place[run] = span->upper[run] = 0;
    if (outlier < 0) return;
    int16_t wide[ACT_GROUP];
    _mm512_storeu_si512(wide, codes);
    out[outlier] = (int8_t)rows_split(span, run, outlier, wide[outlier]);
}

/* Codes of 16 values; kept: 0 where there are none. */
static inline __m512i codes_of(__m512 x, __m512 divisor, __mmask16 kept) {
    return _mm512_maskz_cvtps_epi32(kept, _mm512_div_ps(x, divisor));
}

static bool has_codes(float largest) {
    return largest >= 0x1p-111f && largest <= 0x1.fffffep127f;
}

static void quantize_narrow(int8_t *codes, act_span *span, const float *x, int k) {
    span->outliers = 0;
    for (int begin = 0, run = 0; begin < k; begin += ACT_GROUP, run++, x += ACT_GROUP) {
        const __m512 low = v_load(x), high = v_load(x + LANES);
        const __m512i low_sizes = sizes_of(low), high_sizes = sizes_of(high);
        const int32_t magnitude = largest_of(low_sizes, high_sizes);
        const float largest = f32_from_bits((uint32_t)magnitude);
        const bool ordinary = has_codes(largest);
        float second = 0, scale = largest < 0x1p-111f ? 0 : largest / ACT_LARGEST_A8;
        const int outlier = ordinary ? outlier_of(low_sizes, high_sizes, magnitude, &second) : -1;
        if (outlier >= 0) scale = fmaxf(second / ACT_LARGEST_A8, largest / ACT_LARGEST_OUTLIER);
        const __mmask16 kept = ordinary ? 0xFFFF : 0;
        const __m512 divisor = v_value(ordinary ? scale : 1);
        const __m512i all = join_halves(codes_of(low, divisor, kept), codes_of(high, divisor, kept));
        span->scale[run] = scale;
        sum_codes(span, run, all, true);
        store_narrow(codes + begin, span, run, all, outlier);
    }
}

static void quantize_wide(int16_t *codes, act_span *span, const float *x, int k) {
    __m512i magnitudes = i_value(0);
    for (int i = 0; i < k; i += LANES) magnitudes = _mm512_max_epi32(magnitudes, sizes_of(v_load(x + i)));
    const float largest = f32_from_bits((uint32_t)_mm512_reduce_max_epi32(magnitudes));
    const float scale = largest < 0x1p-111f ? 0 : largest / ACT_LARGEST;
    const __mmask16 kept = has_codes(largest) ? 0xFFFF : 0;
    const __m512 divisor = v_value(kept ? scale : 1);
    for (int begin = 0, run = 0; begin < k; begin += ACT_GROUP, run++) {
        const __m512i first = codes_of(v_load(x + begin), divisor, kept),
                      last = codes_of(v_load(x + begin + LANES), divisor, kept);
        const __m512i all =
            join_halves(_mm512_shuffle_epi32(first, _MM_PERM_DBCA), _mm512_shuffle_epi32(last, _MM_PERM_DBCA));
        span->scale[run] = scale;
        sum_codes(span, run, all, false);
        _mm512_storeu_si512(codes + begin, all);
    }
}

static void quantize_row(void *codes, act_span *span, const float *x, int k, bool a8) {
    if (a8) {
        quantize_narrow(codes, span, x, k);
    } else {
        quantize_wide(codes, span, x, k);
    }
}

void linear_avx512_fill(kernel_table *table) {
    table->linear_f32 = linear_f32;
    table->linear_bf16 = linear_bf16;
    table->linear_int = linear_int;
    table->quantize_row = quantize_row;
    table->bf16_row = rows_bf16;
}
