/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/simd_avx512.h"

#include "kernels/fit.inc"

void fit_avx512_fill(kernel_table *table) {
    table->fit_rows = fit_rows;
    table->code_rows = code_rows;
    table->fit_product = fit_product;
}
