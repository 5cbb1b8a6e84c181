/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/simd_neon.h"

#include "kernels/simd_math.h"

#include "kernels/elem.inc"

void elem_neon_fill(kernel_table *table) {
    table->rms_norm = rms_norm;
    table->rope = rope;
    table->silu_mul = silu_mul;
    table->gelu_tanh_mul = gelu_tanh_mul;
    table->add = add;
    table->scale = scale;
    table->exp_sum = exp_sum;
    table->max_index = max_index;
}
