/* Speed of the matrix kernels on one thread.
 *
 *   bench_kernels [level] [m,m,...] [n k]
 *   bench_kernels [level] pack
 *
 * For each kind of weights: the work rate (a product and a sum count as two operations) and the rate at which packed
 * weights are read; the median and the best of repeated runs. With few rows, the weights are made larger than the
 * caches ("stream") and, a second time, small enough for the second-level cache. A plain read of memory is measured as
 * well.
 *
 * Without CMake: cc -O2 -Isrc -Iinclude bench/kernel_linear.c build/release/libmneme_core.a -lm
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench_read.h"
#include "bench_timer.h"
#include "base/mem.h"
#include "kernels/kernels.h"

enum { STREAM_BYTES = 192 << 20, MOST_RUNS = 400, MOST_DECODED = 64 /* rows of a decode step */ };

static double seconds(void) {
    return seconds_of(CLOCK_MONOTONIC);
}

typedef struct timing {
    double median, best; /* seconds */
} timing;

static timing measure(void (*work)(const void *), const void *arguments, double for_seconds) {
    static double times[MOST_RUNS];
    int n = 0;
    double start = seconds();
    work(arguments);
    while (n < MOST_RUNS && (n < 5 || seconds() - start < for_seconds)) {
        double before = seconds();
        work(arguments);
        times[n++] = seconds() - before;
    }
    qsort(times, (size_t)n, sizeof times[0], compare_doubles);
    return (timing){times[n / 2], times[0]};
}

/* ---- the machine ---- */

enum { HUGE_PAGE = 2 << 20 };

/* Weights are in huge pages: with small pages the same reads are slower by a quarter. */
static char *allocate_weights(size_t n, void **block) {
    *block = mem_alloc_raw(n + HUGE_PAGE, 1);
    if (!*block) exit(1);
    char *data = (char *)(((uintptr_t)*block + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (n >= HUGE_PAGE) madvise(data, n, MADV_HUGEPAGE);
    return data;
}

typedef struct word_block {
    const uint64_t *words;
    size_t n;
} word_block;

static volatile uint64_t sink;

static void read_block(const void *arguments) {
    const word_block *b = arguments;
    sink = read_words(b->words, b->n);
}

/* ---- the kernels ---- */

typedef struct kind {
    const char *name;
    weight_form form;
    dtype type;
    bool a8;
} kind;

static const kind kinds[] = {
    {"f32", WEIGHT_F32, DTYPE_F32, false},
    {"bf16", WEIGHT_BF16, DTYPE_BF16, false},
    {"int8 (Q8_0)", WEIGHT_INT, DTYPE_Q8_0, false},
    {"int4 (Q4_0)", WEIGHT_INT, DTYPE_Q4_0, false},
    {"int4+min (Q4_K)", WEIGHT_INT, DTYPE_Q4_K, false},
    {"int6 (Q6_K)", WEIGHT_INT, DTYPE_Q6_K, false},
    {"int5+min (Q5_K)", WEIGHT_INT, DTYPE_Q5_K, false},
    {"IQ4_XS", WEIGHT_INT, DTYPE_IQ4_XS, false},
    {"Q8_0, 8 bits", WEIGHT_INT, DTYPE_Q8_0, true},
    {"Q4_0, 8 bits", WEIGHT_INT, DTYPE_Q4_0, true},
    {"Q4_K, 8 bits", WEIGHT_INT, DTYPE_Q4_K, true},
    {"Q5_K, 8 bits", WEIGHT_INT, DTYPE_Q5_K, true},
    {"Q6_K, 8 bits", WEIGHT_INT, DTYPE_Q6_K, true},
    {"IQ4_XS, 8 bits", WEIGHT_INT, DTYPE_IQ4_XS, true},
};

typedef struct task {
    void (*kernel)(const linear_job *job);
    linear_job job;
} task;

static void run_task(const void *arguments) {
    const task *t = arguments;
    t->kernel(&t->job);
}

/* Quantized values and scales are any valid bytes: the speed does not depend on them as long as no number is subnormal.
 */
static void fill_weights(char *weights, const weight_layout *layout) {
    memset(weights, 0x35, weight_layout_bytes(layout));
}

static void bench(const kernel_table *table, const kind *what, int m, int n, int k, const char *place) {
    weight_layout layout;
    weight_layout_make(&layout, what->form, what->type, n, k);
    /* Activations with space between rows, or in whole spans. */
    size_t size = weight_layout_bytes(&layout), inputs = (size_t)m * (size_t)((k + ACT_SPAN - 1) / ACT_SPAN * ACT_SPAN);
    void *block;
    char *weights = allocate_weights(size, &block);
    void *x = mem_alloc(inputs + 64 * (size_t)m, sizeof(float));
    float *y = mem_alloc((size_t)m * (size_t)n, sizeof(float));
    void *scratch = mem_alloc(LINEAR_SCRATCH_BYTES, 1);
    act_span *spans = mem_alloc(inputs / ACT_SPAN + 1, sizeof *spans);
    if (!x || !y || !scratch || !spans) exit(1);
    fill_weights(weights, &layout);
    memset(x, 0x35, (inputs + 64 * (size_t)m) * sizeof(float));
    for (size_t i = 0; i < inputs / ACT_SPAN; i++) {
        for (int run = 0; run < ACT_SPAN_GROUPS; run++) spans[i].scale[run] = 1e-3f;
    }
    activations acts = {.form = what->form, .m = m, .k = k, .x = x, .spans = spans, .a8 = what->a8};
    task t = {.job = {.layout = &layout,
                      .weights = weights,
                      .x = &acts,
                      .row_end = m,
                      .panel_end = layout.n_panels,
                      .prefetch_bytes = table->prefetch_bytes,
                      .y = y,
                      .y_stride = n,
                      .scratch = scratch}};
    t.kernel = what->form == WEIGHT_F32    ? table->linear_f32
               : what->form == WEIGHT_BF16 ? table->linear_bf16
                                           : table->linear_int;
    timing time = measure(run_task, &t, 0.25);
    double operations = 2.0 * m * (double)n * k;
    printf("%-10s %-16s m %4d  %6d x %-5d %-7s %8.1f GFLOP/s (best %7.1f) %7.1f GB/s (best %6.1f)\n",
           cpu_level_name(table->level), what->name, m, n, k, place, operations / time.median * 1e-9,
           operations / time.best * 1e-9, (double)size / time.median * 1e-9, (double)size / time.best * 1e-9);
    mem_free(block);
    mem_free(x);
    mem_free(spans);
    mem_free(scratch);
    mem_free(y);
}

static void bench_read(void) {
    word_block b = {.n = STREAM_BYTES / 8};
    void *memory;
    uint64_t *words = (uint64_t *)(void *)allocate_weights(STREAM_BYTES, &memory);
    memset(words, 1, STREAM_BYTES);
    b.words = words;
    timing time = measure(read_block, &b, 0.25);
    printf("plain read of %d MiB: %.1f GB/s (best %.1f)\n", STREAM_BYTES >> 20, STREAM_BYTES / time.median * 1e-9,
           STREAM_BYTES / time.best * 1e-9);
    mem_free(memory);
}

typedef struct pack_task {
    weight_layout layout;
    dtype type;
    const void *rows;
    size_t row_bytes;
    void *out, *scratch;
} pack_task;

static void run_pack(const void *arguments) {
    const pack_task *t = arguments;
    const stored_matrix from = {.type = t->type, .data = t->rows, .row_bytes = t->row_bytes};
    weight_pack(t->out, &t->layout, &from, 0, t->layout.n_panels, t->scratch);
}

/* Packing of a matrix of 1024 x 2048 in every stored type, rate of weights. */
static void bench_pack(weight_form form, const char *name) {
    for (int type = DTYPE_F32; type < N_COMPUTED_DTYPES; type++) {
        pack_task t = {.type = (dtype)type};
        weight_layout_make(&t.layout, form, t.type, 1024, 2048);
        if (dtype_bytes(t.type, 2048, &t.row_bytes) != MN_OK) exit(1);
        void *rows = mem_alloc(1024, t.row_bytes);
        t.rows = rows;
        t.out = mem_alloc(weight_layout_bytes(&t.layout), 1);
        t.scratch = mem_alloc(pack_scratch_bytes(&t.layout), 1);
        if (!rows || !t.out || !t.scratch) exit(1);
        memset(rows, 0x35, 1024 * t.row_bytes);
        timing time = measure(run_pack, &t, 0.1);
        printf("pack %-6s to %-4s %8.1f million weights/s\n", dtype_table[type].name, name,
               1024 * 2048 / time.median * 1e-6);
        mem_free(rows);
        mem_free(t.out);
        mem_free(t.scratch);
    }
}

int main(int argc, char **argv) {
    cpu_level level;
    if (cpu_level_parse(&level, argc > 1 ? argv[1] : "auto") != MN_OK) {
        fprintf(stderr, "%s\n", mn_last_error());
        return 2;
    }
    if (argc > 2 && strcmp(argv[2], "pack") == 0) {
        bench_pack(WEIGHT_BF16, "bf16");
        bench_pack(WEIGHT_INT, "int");
        return 0;
    }
    kernel_table table;
    kernel_table_fill(&table, level);
    char rows[256];
    snprintf(rows, sizeof rows, "%s", argc > 2 ? argv[2] : "1,4,32,512");
    int n = argc > 4 ? atoi(argv[3]) : 2048, k = argc > 4 ? atoi(argv[4]) : 2048;
    for (char *at = strtok(rows, ","); at; at = strtok(NULL, ",")) {
        int m = atoi(at);
        if (m <= MOST_DECODED) bench_read();
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            if (m <= MOST_DECODED) {
                weight_layout one;
                weight_layout_make(&one, kinds[i].form, kinds[i].type, 16, k);
                bench(&table, &kinds[i], m, (int)(STREAM_BYTES / one.panel_bytes) * 16, k, "stream");
                bench(&table, &kinds[i], m, (int)((384u << 10) / one.panel_bytes) * 16, k, "cache");
            } else {
                bench(&table, &kinds[i], m, n, k, "");
            }
        }
    }
    return 0;
}
