/* Matrix products with AVX-512 F, BW, DQ and VL.
 * SPDX-License-Identifier: Apache-2.0 */
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

void linear_avx512_fill(kernel_table *table) {
    table->linear_f32 = linear_f32;
    table->linear_bf16 = linear_bf16;
    table->linear_int = linear_int;
    table->quantize_row = rows_quantize;
    table->bf16_row = rows_bf16;
}
