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
static inline vi i_add16(vi a, vi b) {
    return _mm512_add_epi16(a, b);
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

/* The magnitudes of a run of 32 and the largest of them, as integers, in whose order a NaN is larger than infinity. */
typedef struct run_sizes {
    __m512i low, high;
    int32_t largest;
} run_sizes;

static inline int32_t largest_of(__m512i low, __m512i high) {
    return _mm512_reduce_max_epi32(_mm512_max_epi32(low, high));
}

static inline run_sizes sizes_of(__m512 low, __m512 high) {
    const __m512i magnitude = i_value(INT32_MAX);
    run_sizes sizes = {i_and(_mm512_castps_si512(low), magnitude), i_and(_mm512_castps_si512(high), magnitude), 0};
    sizes.largest = largest_of(sizes.low, sizes.high);
    return sizes;
}

/* The input of the largest magnitude if it is an outlier (linear.h); -1: none. second: the next largest magnitude. */
static inline int outlier_of(const run_sizes *sizes, float *second) {
    const __m512i largest = i_value(sizes->largest);
    const __mmask16 low = _mm512_cmpeq_epi32_mask(sizes->low, largest),
                    high = _mm512_cmpeq_epi32_mask(sizes->high, largest);
    const uint32_t places = (uint32_t)low | (uint32_t)high << LANES;
    const int32_t next = largest_of(_mm512_maskz_mov_epi32((__mmask16)~low, sizes->low),
                                    _mm512_maskz_mov_epi32((__mmask16)~high, sizes->high));
    *second = f32_from_bits((uint32_t)next);
    const bool is_one = (places & (places - 1)) == 0;
    return is_one && f32_from_bits((uint32_t)sizes->largest) > ACT_OUTLIER * *second ? __builtin_ctz(places) : -1;
}

/* The sums of 32 codes and, of those in the order of act_place, the products. */
static inline void sum_codes(act_group *group, __m512i codes, bool has_products) {
    _Static_assert(ACT_PLAIN == 4, "the mask below leaves out one quad of each half");
    const __m512i sums = _mm512_madd_epi16(codes, _mm512_set1_epi16(1));
    /* The even inputs of a quad times the odd ones, once for each quad that is not multiplied plainly (ACT_PLAIN). */
    const __m512i products =
        _mm512_maskz_madd_epi16(has_products ? 0x5454 : 0, codes, _mm512_shuffle_epi32(codes, _MM_PERM_CDAB));
    __m512i both = i_add32(_mm512_unpacklo_epi32(sums, products), _mm512_unpackhi_epi32(sums, products));
    both = i_add32(both, _mm512_shuffle_epi32(both, _MM_PERM_BADC));
    both = i_add32(both, _mm512_shuffle_i32x4(both, both, 0xB1));
    int32_t values[LANES]; /* a half has the sum and the product of a half */
    _mm512_storeu_si512(values, both);
    const int32_t *first = values, *last = values + LANES / 2;
    *group = (act_group){.scale = group->scale,
                         .sum = {first[0], last[0], first[0] + last[0]},
                         .products = {first[1], last[1], (int32_t)((uint32_t)first[1] + (uint32_t)last[1])}};
    for (int i = 0; i < 3; i++) group->scaled_sum[i] = group->scale * (float)group->sum[i];
}

/* Sixteen codes of each half as 16-bit numbers. */
static inline __m512i join_halves(__m512i low, __m512i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low)), _mm512_cvtepi32_epi16(high), 1);
}

/* Codes of 8 bits, from those of 16; the outlier is split. */
static inline void store_narrow(int8_t *out, act_group *group, __m512i codes, int outlier) {
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtepi16_epi8(codes));
    if (outlier < 0) return;
    int16_t wide[ACT_GROUP];
    _mm512_storeu_si512(wide, codes);
    out[outlier] = (int8_t)rows_split(group, outlier, wide[outlier]);
}

static void quantize_row(void *codes, act_group *groups, const float *x, int k, bool a8) {
    for (int begin = 0; begin < k; begin += ACT_GROUP, groups++, x += ACT_GROUP) {
        const __m512 low = v_load(x), high = v_load(x + LANES);
        const run_sizes sizes = sizes_of(low, high);
        const float largest = f32_from_bits((uint32_t)sizes.largest);
        const bool ordinary = largest >= 0x1p-111f && largest <= 0x1.fffffep127f;
        float second = 0, scale = largest < 0x1p-111f ? 0 : largest / (a8 ? ACT_LARGEST_A8 : ACT_LARGEST);
        const int outlier = a8 && ordinary ? outlier_of(&sizes, &second) : -1;
        if (outlier >= 0) scale = fmaxf(second / ACT_LARGEST_A8, largest / ACT_LARGEST_OUTLIER);
        const __mmask16 kept = ordinary ? 0xFFFF : 0;
        const __m512 divisor = v_value(ordinary ? scale : 1);
        const __m512i first = _mm512_maskz_cvtps_epi32(kept, _mm512_div_ps(low, divisor)),
                      last = _mm512_maskz_cvtps_epi32(kept, _mm512_div_ps(high, divisor));
        groups->scale = scale;
        if (a8) {
            const __m512i all = join_halves(first, last);
            sum_codes(groups, all, false);
            store_narrow((int8_t *)codes + begin, groups, all, outlier);
        } else {
            const __m512i all =
                join_halves(_mm512_shuffle_epi32(first, _MM_PERM_DBCA), _mm512_shuffle_epi32(last, _MM_PERM_DBCA));
            sum_codes(groups, all, true);
            _mm512_storeu_si512((int16_t *)codes + begin, all);
        }
    }
}

void linear_avx512_fill(kernel_table *table) {
    table->linear_f32 = linear_f32;
    table->linear_bf16 = linear_bf16;
    table->linear_int = linear_int;
    table->quantize_row = quantize_row;
    table->bf16_row = rows_bf16;
}
