/* CPU levels: named sets of instructions, each containing the ones before it on the same architecture.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_CPU_H
#define MN_KERNELS_CPU_H

#include "base/status.h"

typedef enum cpu_level {
    CPU_SCALAR,
    CPU_AVX2,       /* AVX2, FMA, F16C */
    CPU_AVX512,     /* AVX-512 F, BW, DQ, VL */
    CPU_AVX512_DOT, /* and VNNI, BF16 */
    CPU_NEON,       /* AArch64 */
    N_CPU_LEVELS
} cpu_level;

/* The best level of this machine, as far as the operating system saves its registers. */
cpu_level cpu_best(void);
/* Whether this machine can run code of that level. */
int cpu_has(cpu_level level);
const char *cpu_level_name(cpu_level level); /* "scalar", "avx2", "avx512", "avx512_dot", "neon" */

/* "auto" or NULL: the best; else a level of this machine by name. MN_E_ARG names the ones allowed. */
mn_status cpu_level_parse(cpu_level *out, const char *name);

#endif
