/* Attention on bf16 pages with VDPBF16PS, which multiplies and adds two bf16 per lane and treats subnormal numbers as
 * 0.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/attend/codes_avx512.h"
#include "kernels/simd_avx512.h"

#include "kernels/attend/attend_tile.h"
#include "kernels/simd_math.h"

#include "kernels/attend/attend_form_f32.inc"

static inline vf dot_bf16(vf sum, vf a, vf b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}

/* Rounds 16 floats to 8 words of two bf16. The rounded values are summed by a dot product with ones, in 8 lanes. */
static inline vf put_bf16(vf sum, float *row, size_t i, vf x) {
    const __m256i ones = _mm256_set1_epi32(0x3F803F80);
    __m256bh words = _mm512_cvtneps_pbh(x);
    _mm256_storeu_si256((__m256i *)(void *)(row + i / 2), (__m256i)words);
    return _mm512_zextps256_ps512(_mm256_dpbf16_ps(_mm512_castps512_ps256(sum), words, (__m256bh)ones));
}

#define FORM(name)               name##_bf16
#define FORM_WORD                2
#define FORM_PARTS               1
#define FORM_B(word, part)       (word)
#define FORM_MAC(sum, a, b)      dot_bf16(sum, a, b)
#define FORM_PUT(sum, row, i, x) put_bf16(sum, row, i, x)
#define FORM_WIDE_ROWS           3
#define FORM_CONVERTS_Q          1
#include "kernels/attend/attend.inc"

#include "kernels/attend/attend_codes.inc"

void attend_avx512_dot_fill(kernel_table *table) {
    table->attend_bf16 = attend_bf16;
    table->attend_codes = attend_codes;
    table->hadamard = hadamard_rows;
}
