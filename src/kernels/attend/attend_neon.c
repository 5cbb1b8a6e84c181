/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/simd_neon.h"

#include "kernels/attend/attend_forms.inc"

void attend_neon_fill(kernel_table *table) {
    table->attend_f32 = attend_f32;
    table->attend_bf16 = attend_bf16;
    table->attend_merge = merge_rows;
    table->attend_finish = finish_rows;
}
