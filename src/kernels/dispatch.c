/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels.h"

#include <string.h>

typedef void (*kernel_fill)(kernel_table *table);

/* Low to high; the files of a level overwrite pointers that lower levels have set. */
static const struct {
    cpu_level level;
    kernel_fill fill;
} fills[] = {
    {CPU_SCALAR, linear_ref_fill},
    {CPU_SCALAR, attend_ref_fill},
    {CPU_SCALAR, codes_ref_fill},
    {CPU_SCALAR, elem_ref_fill},
    {CPU_SCALAR, fit_ref_fill},
    {CPU_SCALAR, scan_ref_fill},
#if defined(MN_X86_LEVELS)
    {CPU_AVX2, linear_avx2_fill},
    {CPU_AVX2, attend_avx2_fill},
    {CPU_AVX2, elem_avx2_fill},
    {CPU_AVX2, fit_avx2_fill},
    {CPU_AVX2, scan_avx2_fill},
    {CPU_AVX512, linear_avx512_fill},
    {CPU_AVX512, attend_avx512_fill},
    {CPU_AVX512, elem_avx512_fill},
    {CPU_AVX512, fit_avx512_fill},
    {CPU_AVX512, scan_avx512_fill},
    {CPU_AVX512_DOT, linear_avx512_dot_fill},
    {CPU_AVX512_DOT, attend_avx512_dot_fill},
#elif defined(MN_ARM_LEVELS)
    {CPU_NEON, linear_neon_fill},  {CPU_NEON, attend_neon_fill},  {CPU_NEON, elem_neon_fill},
    {CPU_NEON, fit_neon_fill},     {CPU_NEON, scan_neon_fill},
#endif
};

enum { N_FILLS = sizeof fills / sizeof fills[0] };

void kernel_table_fill(kernel_table *table, cpu_level level) {
    memset(table, 0, sizeof *table);
    table->level = level;
    table->prefetch_bytes = cpu_prefetch_bytes();
    for (int i = 0; i < N_FILLS; i++) {
        if (fills[i].level <= level) fills[i].fill(table);
    }
}

const char *kernel_name(int i_kernel) {
    static const char *const names[] = {
#define KERNEL(name, arguments) #name,
#include "kernels/kernels.inc"
#undef KERNEL
    };
    return names[i_kernel];
}

/* The pointer of the i-th kernel, as bytes: functions of different types cannot share an array. */
static void read_pointer(const kernel_table *table, int i_kernel, void (**out)(void)) {
    static const size_t offsets[] = {
#define KERNEL(name, arguments) offsetof(kernel_table, name),
#include "kernels/kernels.inc"
#undef KERNEL
    };
    memcpy(out, (const char *)table + offsets[i_kernel], sizeof *out);
}

cpu_level kernel_level(int i_kernel, cpu_level level) {
    kernel_table table;
    kernel_table_fill(&table, level);
    void (*wanted)(void), (*candidate)(void);
    read_pointer(&table, i_kernel, &wanted);
    for (int lower = 0; lower < (int)level; lower++) {
        kernel_table_fill(&table, (cpu_level)lower);
        read_pointer(&table, i_kernel, &candidate);
        if (candidate == wanted) return (cpu_level)lower;
    }
    return level;
}
