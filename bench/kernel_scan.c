/* Mamba's convolution and scan at every CPU level of this machine, on one thread, with the sizes of Mamba-130M: 1536
 * channels, 16 states, a convolution of 4. One token at a time passes through more layers than fit into the caches, as
 * in decoding, where the weights of other matrices are read in between; 512 tokens pass through one layer. Each is
 * compared with one linear read of as many bytes as the kernels read and write, in alternation. Medians of processor
 * time, which depends less on other load.
 * usage: bench_scan [part of a level's name]
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_timer.h"
#include "base/mem.h"
#include "kernels/kernels.h"

enum { CHANNELS = 1536, STATES = 16, WIDTH = 4, RANK = 48, REPEATS = 21, MOST_TOKENS = 512 };

/* Memory of a layer: rates, skips, convolution, and its two states. */
enum { LAYER = (2 * STATES + 1 + WIDTH + 1 + WIDTH - 1) * CHANNELS };

/* Inputs and outputs of tokens: u with its gate, dt, b and c, the convolution's output, y. */
typedef struct tokens {
    float *in, *dt, *x, *u, *y;
} tokens;

enum { X_ROW = RANK + 2 * STATES };

static double seconds(void) {
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

static float *random_block(size_t n, float lo, float hi) {
    static uint32_t state = 1;
    float *x = mem_alloc_raw(n, sizeof *x);
    if (!x) exit(1);
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = lo + (hi - lo) * (float)(state >> 8) * 0x1p-24f;
    }
    return x;
}

static void run_layer(const kernel_table *table, float *layer, const tokens *t, int n, double *conv_time) {
    float *a = layer, *state = a + STATES * CHANNELS, *d = state + STATES * CHANNELS, *weight = d + CHANNELS;
    float *bias = weight + WIDTH * CHANNELS, *conv_state = bias + CHANNELS;
    conv_job conv = {.n_tokens = n, .n_channels = CHANNELS, .end = CHANNELS, .width = WIDTH};
    conv.u = t->in, conv.u_stride = 2 * CHANNELS;
    conv.weight = weight, conv.bias = bias;
    conv.state_in = conv_state, conv.state_out = conv_state;
    conv.out = t->u, conv.out_stride = CHANNELS;
    scan_job scan = {.n_tokens = n, .n_channels = CHANNELS, .end = CHANNELS, .n_states = STATES};
    scan.u = t->u, scan.u_stride = CHANNELS;
    scan.dt = t->dt, scan.dt_stride = CHANNELS;
    scan.gate = t->in + CHANNELS, scan.gate_stride = 2 * CHANNELS;
    scan.a = a, scan.d = d;
    scan.b = t->x + RANK, scan.c = t->x + RANK + STATES, scan.b_stride = scan.c_stride = X_ROW;
    scan.state_in = state, scan.state_out = state;
    scan.y = t->y, scan.y_stride = CHANNELS;
    double start = seconds();
    table->causal_conv(&conv);
    *conv_time += seconds() - start;
    table->selective_scan(&scan);
}

static uint64_t read_block(const void *block, size_t n_bytes) {
    const uint64_t *data = block;
    uint64_t lanes[32] = {0}, sum = 0;
    for (size_t i = 0; i + 32 <= n_bytes / sizeof *data; i += 32) {
        for (size_t j = 0; j < 32; j++) lanes[j] += data[i + j];
    }
    for (size_t j = 0; j < 32; j++) sum += lanes[j];
    return sum;
}

/* n tokens through each layer; the bytes are read from a block that is as little cached as the layers. */
static void run_case(const kernel_table *table, float *layers, int n_layers, const tokens *t, int n, const float *cold,
                     size_t cold_bytes) {
    const size_t states = (STATES + WIDTH - 1) * CHANNELS, per_token = 6 * CHANNELS + 2 * STATES;
    const size_t n_bytes = sizeof(float) * (size_t)n_layers * (LAYER + states + (n > 1 ? (size_t)n * per_token : 0));
    double times[REPEATS], conv_times[REPEATS], reads[REPEATS];
    uint64_t sum = 0;
    for (int repeat = -1; repeat < REPEATS; repeat++) {
        double conv_time = 0, start = seconds();
        for (size_t left = n_bytes; left > 0;) {
            size_t part = left < cold_bytes ? left : cold_bytes;
            sum += read_block(cold, part);
            left -= part;
        }
        double middle = seconds();
        for (int i = 0; i < n_layers; i++) run_layer(table, layers + (size_t)i * LAYER, t, n, &conv_time);
        if (repeat < 0) continue;
        times[repeat] = (seconds() - middle) / n_layers / n;
        conv_times[repeat] = conv_time / n_layers / n;
        reads[repeat] = (middle - start) / n_layers / n;
    }
    double time = median_of(times, REPEATS), read = median_of(reads, REPEATS);
    printf(
        "%-10s n = %-3d  %8.0f tokens/s a layer (%.2f us, convolution %.2f us)   memory read %8.0f tokens/s (%.1f GB/s)   "
        "ratio %.2f%s\n",
        cpu_level_name(table->level), n, 1 / time, time * 1e6, median_of(conv_times, REPEATS) * 1e6, 1 / read,
        (double)n_bytes / n_layers / n / read * 1e-9, read / time, sum ? "" : ".");
    fflush(stdout);
}

int main(int argc, char **argv) {
    enum { N_LAYERS = 512, COLD = LAYER * N_LAYERS };
    tokens t = {random_block((size_t)MOST_TOKENS * 2 * CHANNELS, -2, 2), random_block(MOST_TOKENS * CHANNELS, -6, 1),
                random_block(MOST_TOKENS * X_ROW, -1, 1), random_block(MOST_TOKENS * CHANNELS, -1, 1),
                random_block(MOST_TOKENS * CHANNELS, -1, 1)};
    float *layers = random_block(COLD, 0, 1), *cold = random_block(COLD, 0, 1);
    for (int i = 0; i < N_LAYERS; i++) { /* rates of -1 to -16, as in initialized models */
        for (int j = 0; j < STATES * CHANNELS; j++) layers[i * LAYER + j] = -1.0f - (float)(j / CHANNELS);
    }
    for (int level = 0; level < N_CPU_LEVELS; level++) {
        if (!cpu_has((cpu_level)level) || level == CPU_AVX512_DOT) continue; /* has no kernel of its own */
        if (argc > 1 && !strstr(cpu_level_name((cpu_level)level), argv[1])) continue;
        kernel_table table;
        kernel_table_fill(&table, (cpu_level)level);
        run_case(&table, layers, N_LAYERS, &t, 1, cold, COLD * sizeof(float));
        run_case(&table, layers, 1, &t, MOST_TOKENS, cold, COLD * sizeof(float));
    }
    mem_free(t.in), mem_free(t.dt), mem_free(t.x), mem_free(t.u), mem_free(t.y), mem_free(layers), mem_free(cold);
    return 0;
}
