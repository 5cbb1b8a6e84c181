/* CPU levels: named sets of instructions, each containing the ones before it on the same architecture.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_CPU_H
#define MN_KERNELS_CPU_H

#include "base/status.h"

/* The levels of this build besides the scalar one: those of its architecture, or none. */
#if defined(__x86_64__) && !defined(MN_SCALAR_ONLY)
#define MN_X86_LEVELS 1
#elif defined(__aarch64__) && !defined(MN_SCALAR_ONLY)
#define MN_ARM_LEVELS 1
#endif

typedef enum cpu_level {
    CPU_SCALAR,
    CPU_AVX2,       /* AVX2, FMA, F16C */
    CPU_AVX512,     /* AVX-512 F, BW, DQ, VL */
    CPU_AVX512_DOT, /* and VNNI, BF16 */
    CPU_NEON,       /* AArch64 */
    N_CPU_LEVELS
} cpu_level;

/* The best level of this machine whose registers the operating system saves. */
cpu_level cpu_best(void);
/* Whether this build has that level and this machine can run it. */
int cpu_has(cpu_level level);
/* Whether additions of 512-bit integers have execution units besides those of products: on AMD's processors. */
int cpu_adds_beside_products(void);
/* How many bytes ahead a single row, which reads each weight once, fetches weights into the first-level cache. 0: the
 * processor's own prefetching is as fast. */
size_t cpu_prefetch_bytes(void);
const char *cpu_level_name(cpu_level level); /* "scalar", "avx2", "avx512", "avx512_dot", "neon" */

/* "auto" or NULL: the best; else a level of this machine by name. MN_E_ARG lists the allowed names. */
mn_status cpu_level_parse(cpu_level *out, const char *name);

#endif
