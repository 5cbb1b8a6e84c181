/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/attend/codes_avx512.h"
#include "kernels/simd_avx512.h"

#include "kernels/attend/attend_forms.inc"

#include "kernels/attend/attend_codes.inc"

void attend_avx512_fill(kernel_table *table) {
    table->attend_f32 = attend_f32;
    table->attend_bf16 = attend_bf16;
    table->attend_codes = attend_codes;
    table->hadamard = hadamard_rows;
    table->attend_merge = merge_rows;
    table->attend_finish = finish_rows;
}
