/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu.h"

#include <string.h>

#if defined(MN_X86_LEVELS)
#include <cpuid.h>
#endif

#include "base/mem.h"

#if !defined(MN_HIGHEST_LEVEL)
#define MN_HIGHEST_LEVEL N_CPU_LEVELS
#endif

static const char *const names[N_CPU_LEVELS] = {"scalar", "avx2", "avx512", "avx512_dot", "neon"};

const char *cpu_level_name(cpu_level level) {
    return names[level];
}

#if defined(MN_X86_LEVELS)
/* Not every compiler's run-time check knows the name "f16c". It uses the registers of AVX. */
static int has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#endif

/* The compiler's run-time check looks at the registers that the operating system saves as well as at CPUID. */
int cpu_has(cpu_level level) {
    if (level > MN_HIGHEST_LEVEL) return 0;
    switch (level) {
    case CPU_SCALAR: return 1;
#if defined(MN_X86_LEVELS)
    case CPU_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case CPU_AVX512:
        return cpu_has(CPU_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case CPU_AVX512_DOT:
        return cpu_has(CPU_AVX512) && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
#elif defined(MN_ARM_LEVELS)
    case CPU_NEON: return 1;
#endif
    default: return 0;
    }
}

int cpu_adds_beside_products(void) {
#if defined(MN_X86_LEVELS)
    return __builtin_cpu_is("amd");
#else
    return 0;
#endif
}

#if defined(MN_X86_LEVELS)
/* The family of an AMD processor, else 0. */
static unsigned amd_family(void) {
    unsigned a, b, c, d;
    if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &a, &b, &c, &d)) return 0;
    return (a >> 8 & 0xF) + (a >> 20 & 0xFF);
}
#endif

/* Measured on Zen 4, where fetching is slower than none, and on Zen 5 (docs/notes/speed-history.md). */
size_t cpu_prefetch_bytes(void) {
#if defined(MN_X86_LEVELS)
    enum { ZEN5 = 0x1A };
    return amd_family() >= ZEN5 ? 8192 : 0;
#else
    return 0;
#endif
}

cpu_level cpu_best(void) {
    cpu_level best = CPU_SCALAR;
    for (int level = 0; level < N_CPU_LEVELS; level++) {
        if (cpu_has((cpu_level)level)) best = (cpu_level)level;
    }
    return best;
}

mn_status cpu_level_parse(cpu_level *out, const char *name) {
    *out = cpu_best();
    if (!name || strcmp(name, "auto") == 0) return MN_OK;
    bytes allowed = {0};
    mn_status status = MN_E_ARG;
    for (int level = 0; level < N_CPU_LEVELS; level++) {
        if (!cpu_has((cpu_level)level)) continue;
        bytes_printf(&allowed, ", %s", names[level]);
        if (strcmp(name, names[level]) == 0) {
            *out = (cpu_level)level;
            status = MN_OK;
        }
    }
    if (status != MN_OK) {
        status =
            status_fail(MN_E_ARG, "CPU level is '%s', allowed on this machine: auto%s", name, bytes_text(&allowed));
    }
    bytes_clear(&allowed);
    return status;
}
