/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels.h"
#include "kernels/simd_neon.h"

#include "kernels/simd_math.h"

#include "kernels/scan.inc"

void scan_neon_fill(kernel_table *table) {
    scan_fill(table);
}
