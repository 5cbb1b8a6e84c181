/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/kernels.h"
#include "kernels/simd_neon.h"

#include "kernels/simd_math.h"

#include "kernels/elem.inc"

void elem_neon_fill(kernel_table *table) {
    elem_fill(table);
}
