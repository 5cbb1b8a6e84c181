/* Attention over quantized pages beside attend_bf16, on one thread: processor time per page and head, medians of
 * alternating forms. Pages hold many heads and are in random order; data are larger than the second-level cache, or
 * than all caches.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_timer.h"
#include "base/mem.h"
#include "kernels/attend/codes.h"
#include "kernels/kernels.h"

enum { P = PAGE_TOKENS, DIM = 64, N_REPEATS = 21 };

/* Bits per component with a mean of 3, as a calibration allocates them. */
static const uint8_t mixed_bits[DIM] = {6, 6, 6, 6, 5, 5, 5, 5, 5, 5, 5, 5, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4,
                                        4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2,
                                        2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0};

/* Keys per channel with a mean and values per token, as in the mneme format; or both per token with shifts. */
typedef struct variant {
    const char *name;
    int bits; /* 16: bf16; 0: mixed keys, values of 3 bits */
    bool exact_keys, exact_values, even;
} variant;

static const variant variants[] = {
    {"bf16", 16, true, true, false},       {"2 bits", 2, false, false, false},
    {"3 bits", 3, false, false, false},    {"4 bits", 4, false, false, false},
    {"8 bits", 8, false, false, false},    {"mixed 3 bits", 0, false, false, false},
    {"hqq 4 bits", 4, false, false, true}, {"bf16 keys, 4 bits", 4, true, false, false},
};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

typedef struct setting {
    const char *name;
    int n_rows, n_pages, n_heads;
} setting;

static const setting settings[] = {
    {"3 rows, beyond L2", 3, 16, 24},     {"8 rows, beyond L2", 8, 16, 24},     {"96 rows, beyond L2", 96, 16, 8},
    {"3 rows, beyond caches", 3, 64, 96}, {"8 rows, beyond caches", 8, 64, 96},
};

typedef struct data {
    code_layout keys, values;
    const code_layout *key_codes, *value_codes;
    size_t head_bytes, v_offset;
    char *memory;
    const char **pages;
    double times[N_REPEATS];
} data;

static double seconds(void) {
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

static float small_random(uint64_t i) {
    return (float)(random_uniform(1, 2, i) * 2 - 1);
}

static void fill_stream(const code_layout *layout, char *stream, size_t n_bytes, uint64_t seed) {
    static float sides[2][DIM * P];
    for (size_t i = 0; i < n_bytes; i += 8) {
        uint64_t random = random_bits(3, seed, i);
        if (!layout) random = (random & 0x807F807F807F807F) | 0x3F003F003F003F00; /* bf16 of size about 1 */
        memcpy(stream + i, &random, 8);
    }
    if (!layout) return;
    for (int i = 0; i < DIM * P; i++) sides[0][i] = 0.01f, sides[1][i] = small_random((uint64_t)i);
    code_put_side(layout, stream, sides[0], sides[1], 0, P);
    code_put_mean(layout, stream, sides[1]);
}

static void open_data(data *d, const variant *v, const setting *s) {
    code_shape key = {true,
                      DIM,
                      P,
                      P,
                      v->bits,
                      CODE_CHANNEL,
                      CODE_NORMAL,
                      CODE_SIDE_LOG8,
                      CODE_SIDE_NONE,
                      CODE_SIDE_F16,
                      v->bits ? NULL : mixed_bits};
    code_shape value = {
        false,          DIM, P, DIM, v->bits ? v->bits : 3, CODE_TOKEN, CODE_NORMAL, CODE_SIDE_LOG8, CODE_SIDE_NONE,
        CODE_SIDE_NONE, NULL};
    if (v->even) {
        key.axis = CODE_TOKEN, key.group = DIM, key.grid = value.grid = CODE_UNSIGNED, key.mean = CODE_SIDE_NONE;
        key.scale = key.shift = value.scale = value.shift = CODE_SIDE_F16;
    }
    memset(d, 0, sizeof *d);
    size_t key_bytes = DIM * P * 2, value_bytes = DIM * P * 2;
    if (!v->exact_keys) code_layout_make(&d->keys, &key), d->key_codes = &d->keys, key_bytes = d->keys.bytes;
    if (!v->exact_values)
        code_layout_make(&d->values, &value), d->value_codes = &d->values, value_bytes = d->values.bytes;
    d->v_offset = key_bytes;
    d->head_bytes = key_bytes + value_bytes;
    size_t page_bytes = d->head_bytes * (size_t)s->n_heads;
    d->memory = mem_alloc_raw((size_t)s->n_pages, page_bytes);
    d->pages = mem_alloc((size_t)s->n_pages, sizeof *d->pages);
    if (!d->memory || !d->pages) exit(1);
    for (int i = 0; i < s->n_pages; i++) {
        d->pages[i] = d->memory + (size_t)i * page_bytes;
        for (int head = 0; head < s->n_heads;
             head++) { /* all equal: the time does not depend on the quantized values */
            char *at = d->memory + (size_t)i * page_bytes + (size_t)head * d->head_bytes;
            if (i + head > 0) memcpy(at, d->memory, d->head_bytes);
            if (i + head > 0) continue;
            fill_stream(d->key_codes, at, key_bytes, 1);
            fill_stream(d->value_codes, at + key_bytes, value_bytes, 2);
        }
    }
    for (int i = s->n_pages - 1; i > 0; i--) {
        int j = (int)(random_bits(5, 5, (uint64_t)i) % (uint64_t)(i + 1));
        const char *page = d->pages[i];
        d->pages[i] = d->pages[j], d->pages[j] = page;
    }
}

/* All pages of all heads once. */
static void pass(const kernel_table *table, const data *d, const setting *s, attend_job job) {
    for (int head = 0; head < s->n_heads; head++) {
        job.pages = d->pages, job.k_offset = (size_t)head * d->head_bytes, job.v_offset = job.k_offset + d->v_offset;
        job.key_codes = d->key_codes, job.value_codes = d->value_codes, job.exact_bf16 = true;
        for (int r = 0; r < s->n_rows; r++) job.state.m[r] = -INFINITY, job.state.l[r] = 0;
        memset(job.state.acc, 0, (size_t)(s->n_rows * DIM) * sizeof(float));
        (d->key_codes || d->value_codes ? table->attend_codes : table->attend_bf16)(&job);
    }
}

static void run_setting(const kernel_table *table, const setting *s, const char *only) {
    static data all[N_VARIANTS];
    size_t n_rows = (size_t)s->n_rows;
    float *q = mem_alloc(n_rows * DIM, 4), *m = mem_alloc(n_rows, 4), *l = mem_alloc(n_rows, 4);
    float *acc = mem_alloc(n_rows * DIM, 4);
    int64_t *first = mem_alloc(n_rows, 8), *last = mem_alloc(n_rows, 8);
    void *scratch = mem_alloc(attend_scratch_bytes(s->n_rows, DIM, DIM, P), 1);
    if (!q || !m || !l || !acc || !first || !last || !scratch) exit(1);
    for (size_t i = 0; i < n_rows * DIM; i++) q[i] = small_random(i);
    for (size_t i = 0; i < n_rows; i++) last[i] = (int64_t)s->n_pages * P;
    attend_job job = {.n_pages = s->n_pages, .page_tokens = P, .k_dim = DIM, .v_dim = DIM, .n_rows = s->n_rows, .q = q};
    job.first = first, job.last = last, job.hi = INT64_MAX, job.state = (attend_state){m, l, acc},
    job.scratch = scratch;
    for (int i = 0; i < N_VARIANTS; i++) open_data(&all[i], &variants[i], s);
    double n_page_heads = (double)s->n_pages * s->n_heads;
    for (int repeat = -1; repeat < N_REPEATS; repeat++) {
        for (int i = 0; i < N_VARIANTS; i++) {
            double start = seconds();
            if (only && !strstr(variants[i].name, only)) continue;
            pass(table, &all[i], s, job);
            if (repeat >= 0) all[i].times[repeat] = (seconds() - start) / n_page_heads * 1e9;
        }
    }
    double bf16_time = 0;
    for (int i = 0; i < N_VARIANTS; i++) {
        qsort(all[i].times, N_REPEATS, sizeof(double), compare_doubles);
        double median = all[i].times[N_REPEATS / 2];
        if (i == 0) bf16_time = median;
        printf("%-11s %-22s %-18s %9.0f ns (best %7.0f)   %5.2f of bf16's speed   %6zu bytes\n",
               cpu_level_name(table->level), s->name, variants[i].name, median, all[i].times[0], bf16_time / median,
               all[i].head_bytes);
        mem_free(all[i].memory), mem_free(all[i].pages);
    }
    fflush(stdout);
    mem_free(q), mem_free(m), mem_free(l), mem_free(acc), mem_free(first), mem_free(last), mem_free(scratch);
}

/* Arguments: a part of a level's name, a part of a setting's name, a part of a form's name. */
int main(int argc, char **argv) {
    for (int level = N_CPU_LEVELS - 1; level > CPU_SCALAR; level--) {
        if (!cpu_has((cpu_level)level)) continue;
        if (argc > 1 && strcmp(cpu_level_name((cpu_level)level), argv[1]) != 0) continue;
        kernel_table table;
        kernel_table_fill(&table, (cpu_level)level);
        for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
            if (argc <= 2 || strstr(settings[i].name, argv[2]))
                run_setting(&table, &settings[i], argc > 3 ? argv[3] : NULL);
        }
    }
    return 0;
}
