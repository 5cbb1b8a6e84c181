/* The kernel table: pure functions on pointers, chosen once by CPU level.
 *
 * A kernel computes a part of an output: it does not allocate, cannot fail, has no state and starts no threads. The
 * *_ref.c files (plain C, obvious loops) are the specification; a faster kernel replaces a pointer and is tested
 * against them. Within one level, an output element has the same bits however the work is divided: it depends on its
 * own row and column only, never on how many rows or columns are computed together.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_KERNELS_H
#define MN_KERNELS_KERNELS_H

#include "kernels/attend/attend.h"
#include "kernels/cpu.h"
#include "kernels/elem.h"
#include "kernels/fit.h"
#include "kernels/linear/linear.h"
#include "kernels/scan.h"

typedef struct kernel_table {
    cpu_level level;
    size_t prefetch_bytes; /* for linear_job */
#define KERNEL(name, arguments) void(*name) arguments;
#include "kernels/kernels.inc"
#undef KERNEL
} kernel_table;

/* Fills the table with the reference kernels, then overwrites them with those of each level up to `level`. */
void kernel_table_fill(kernel_table *table, cpu_level level);

enum {
#define KERNEL(name, arguments) KERNEL_##name,
#include "kernels/kernels.inc"
#undef KERNEL
    N_KERNELS
};

/* For listings and tests: the i-th kernel's name, and the level whose code the table of `level` holds for it. */
const char *kernel_name(int i_kernel);
cpu_level kernel_level(int i_kernel, cpu_level level);

/* One for each source file of kernels; it overwrites the pointers of the kernels that the file implements. */
void linear_ref_fill(kernel_table *table);
void attend_ref_fill(kernel_table *table);
void codes_ref_fill(kernel_table *table);
void elem_ref_fill(kernel_table *table);
void fit_ref_fill(kernel_table *table);
void scan_ref_fill(kernel_table *table);
#if defined(__x86_64__)
void linear_avx2_fill(kernel_table *table);
void attend_avx2_fill(kernel_table *table);
void elem_avx2_fill(kernel_table *table);
void fit_avx2_fill(kernel_table *table);
void scan_avx2_fill(kernel_table *table);
void linear_avx512_fill(kernel_table *table);
void attend_avx512_fill(kernel_table *table);
void elem_avx512_fill(kernel_table *table);
void fit_avx512_fill(kernel_table *table);
void scan_avx512_fill(kernel_table *table);
void linear_avx512_dot_fill(kernel_table *table);
void attend_avx512_dot_fill(kernel_table *table);
#elif defined(__aarch64__)
void linear_neon_fill(kernel_table *table);
void attend_neon_fill(kernel_table *table);
void elem_neon_fill(kernel_table *table);
void fit_neon_fill(kernel_table *table);
void scan_neon_fill(kernel_table *table);
#endif

#endif
