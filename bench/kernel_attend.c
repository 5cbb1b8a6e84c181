/* Attention kernels at every CPU level of this machine, on one thread: arithmetic when many rows share a page
 * (prefill), bytes when few do (decode), and decode when the pages stay in the second-level cache. Medians.
 *
 * cc -std=c11 -O2 -D_GNU_SOURCE -Isrc -Iinclude bench/kernel_attend.c build/release/libmneme_core.a -lm -lpthread
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_timer.h"
#include "base/mem.h"
#include "kernels/kernels.h"

enum { N_REPEATS = 15 };

typedef struct bench_case {
    const char *name;
    int is_bf16, group, n_queries, dim, n_tokens, n_heads;
    int is_causal;
} bench_case;

/* Pages are in random order; a page holds n_heads heads, which the kernel reads one after another. */
static const bench_case cases[] = {
    {"prefill bf16, 32 x 3 rows, d 64, 2048 tokens", 1, 3, 32, 64, 2048, 1, 0},
    {"prefill bf16, 32 x 3 rows, d 64, 512 causal", 1, 3, 32, 64, 512, 1, 1},
    {"prefill bf16, 32 x 8 rows, d 64, 2048 tokens", 1, 8, 32, 64, 2048, 1, 0},
    {"prefill bf16, 32 x 4 rows, d 128, 2048 tokens", 1, 4, 32, 128, 2048, 1, 0},
    {"prefill bf16, 32 x 1 rows, d 80, 2048 tokens", 1, 1, 32, 80, 2048, 1, 0},
    {"prefill f32, 32 x 3 rows, d 64, 2048 tokens", 0, 3, 32, 64, 2048, 1, 0},
    {"prefill f32, 32 x 4 rows, d 128, 2048 tokens", 0, 4, 32, 128, 2048, 1, 0},
    {"decode bf16, 3 rows, d 64, memory", 1, 3, 1, 64, 8192, 90, 0},
    {"decode bf16, 8 rows, d 64, memory", 1, 8, 1, 64, 8192, 90, 0},
    {"decode bf16, 6 rows, d 64, memory", 1, 6, 1, 64, 8192, 90, 0},
    {"decode bf16, 7 rows, d 64, memory", 1, 7, 1, 64, 8192, 90, 0},
    {"decode bf16, 4 rows, d 64, memory", 1, 4, 1, 64, 8192, 90, 0},
    {"decode bf16, 1 row, d 128, memory", 1, 1, 1, 128, 8192, 45, 0},
    {"decode f32, 3 rows, d 64, memory", 0, 3, 1, 64, 8192, 45, 0},
    {"decode bf16, 3 rows, d 64, cached", 1, 3, 1, 64, 2048, 1, 0},
    {"decode bf16, 1 row, d 64, cached", 1, 1, 1, 64, 2048, 1, 0},
    {"decode bf16, 8 rows, d 64, cached", 1, 8, 1, 64, 2048, 1, 0},
    {"decode f32, 3 rows, d 64, cached", 0, 3, 1, 64, 1024, 1, 0},
};

static double seconds(void) {
    return seconds_of(CLOCK_MONOTONIC);
}

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static float small_random(uint32_t *state) {
    return (float)next_random(state) * 0x1p-23f - 1;
}

static void run_case(const kernel_table *table, const bench_case *c) {
    enum { P = PAGE_TOKENS };
    uint32_t state = 1;
    int n_rows = c->group * c->n_queries, n_pages = c->n_tokens / P;
    size_t unit = c->is_bf16 ? 2 : 4, area = unit * (size_t)c->dim * P;
    size_t page_bytes = 2 * area * (size_t)c->n_heads, n_values = page_bytes / unit * (size_t)n_pages;
    char *memory = mem_alloc_raw((size_t)n_pages, page_bytes);
    const char **pages = mem_alloc((size_t)n_pages, sizeof *pages);
    float *q = mem_alloc((size_t)(n_rows * c->dim), sizeof(float)), *m = mem_alloc((size_t)n_rows, sizeof(float));
    float *l = mem_alloc((size_t)n_rows, sizeof(float)), *acc = mem_alloc((size_t)(n_rows * c->dim), sizeof(float));
    int64_t *first = mem_alloc((size_t)n_rows, sizeof *first), *last = mem_alloc((size_t)n_rows, sizeof *last);
    void *scratch = mem_alloc(attend_scratch_bytes(n_rows, c->dim, c->dim, P), 1);
    if (!memory || !pages || !q || !m || !l || !acc || !first || !last || !scratch) exit(1);
    for (size_t i = 0; i < n_values; i++) {
        float x = small_random(&state);
        if (c->is_bf16) ((bf16 *)(void *)memory)[i] = bf16_from_f32(x);
        if (!c->is_bf16) ((float *)(void *)memory)[i] = x;
    }
    for (int i = 0; i < n_rows * c->dim; i++) q[i] = small_random(&state);
    for (int i = 0; i < n_pages; i++) pages[i] = memory + (size_t)i * page_bytes;
    for (int i = n_pages - 1; i > 0; i--) {
        int j = (int)(next_random(&state) % (uint32_t)(i + 1));
        const char *page = pages[i];
        pages[i] = pages[j], pages[j] = page;
    }
    double n_seen = 0;
    for (int r = 0; r < n_rows; r++) {
        last[r] = c->is_causal ? c->n_tokens - c->n_queries + r / c->group : c->n_tokens - 1;
        n_seen += (double)last[r] + 1;
    }
    double times[N_REPEATS];
    int n_rounds = c->n_heads > 1 ? 1 : c->n_queries > 1 ? 4 : 200;
    for (int repeat = -1; repeat < N_REPEATS; repeat++) {
        double start = seconds();
        for (int round = 0; round < n_rounds; round++) {
            for (int head = 0; head < c->n_heads; head++) {
                attend_job job = {
                    .pages = pages, .n_pages = n_pages, .page_tokens = P, .k_dim = c->dim, .v_dim = c->dim};
                job.k_offset = 2 * area * (size_t)head, job.v_offset = job.k_offset + area;
                job.n_rows = n_rows, job.q = q, job.first = first, job.last = last, job.hi = INT64_MAX,
                job.scratch = scratch;
                job.state.m = m, job.state.l = l, job.state.acc = acc;
                for (int r = 0; r < n_rows; r++) m[r] = -INFINITY, l[r] = 0;
                memset(acc, 0, (size_t)(n_rows * c->dim) * sizeof(float));
                (c->is_bf16 ? table->attend_bf16 : table->attend_f32)(&job);
            }
        }
        if (repeat >= 0) times[repeat] = (seconds() - start) / n_rounds;
    }
    qsort(times, N_REPEATS, sizeof times[0], compare_doubles);
    double median = times[N_REPEATS / 2], flops = 4.0 * c->dim * n_seen * c->n_heads;
    printf("%-11s %-46s %9.1f us %7.1f GFLOP/s %6.1f GB/s   (best %.1f, %.1f)\n", cpu_level_name(table->level), c->name,
           median * 1e6, flops / median * 1e-9, (double)page_bytes * n_pages / median * 1e-9, flops / times[0] * 1e-9,
           (double)page_bytes * n_pages / times[0] * 1e-9);
    fflush(stdout);
    mem_free(memory), mem_free(pages), mem_free(q), mem_free(m), mem_free(l), mem_free(acc);
    mem_free(first), mem_free(last), mem_free(scratch);
}

/* The rate of one thread in one linear read of memory: the upper limit of decoding. */
static void read_memory(void) {
    size_t n = (size_t)96 << 20;
    uint32_t *data = mem_alloc_raw(n, 4), sum = 0;
    double times[N_REPEATS];
    if (!data) exit(1);
    memset(data, 1, n * 4);
    for (int repeat = 0; repeat < N_REPEATS; repeat++) {
        double start = seconds();
        uint64_t lanes[32] = {0};
        for (size_t i = 0; i < n / 2; i += 32) {
            for (size_t j = 0; j < 32; j++) lanes[j] ^= ((const uint64_t *)(void *)data)[i + j];
        }
        for (size_t j = 0; j < 32; j++) sum += (uint32_t)lanes[j];
        times[repeat] = seconds() - start;
    }
    qsort(times, N_REPEATS, sizeof times[0], compare_doubles);
    printf("linear read of %zu MiB: %.1f GB/s (best %.1f, checksum %u)\n", n >> 18,
           (double)n * 4e-9 / times[N_REPEATS / 2], (double)n * 4e-9 / times[0], sum);
    mem_free(data);
}

/* Arguments: a part of a level's name, a part of a case's name. */
int main(int argc, char **argv) {
    read_memory();
    for (int level = N_CPU_LEVELS - 1; level > CPU_SCALAR; level--) {
        if (!cpu_has((cpu_level)level)) continue;
        if (argc > 1 && !strstr(cpu_level_name((cpu_level)level), argv[1])) continue;
        kernel_table table;
        kernel_table_fill(&table, (cpu_level)level);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            if (argc <= 2 || strstr(cases[i].name, argv[2])) run_case(&table, &cases[i]);
        }
    }
    return 0;
}
