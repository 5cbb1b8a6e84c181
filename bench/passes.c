/* Forward passes of a model beside each other: bench_passes MODEL [PREFILL [DECODE [THREADS]]]
 * $COMPUTE_TYPE or f32.
 *
 * Time per token; cases alternate, medians of rounds:
 *   read     one linear read, by all threads, of as many bytes as a token's weights: all but the embedding table, and
 *            of experts only as many as a token uses
 *   decode   greedy decoding
 *   fed      tokens of a prompt one by one
 *   prefill  a prompt of 512 tokens in one call
 *   rows     a step of 16 sequences
 *
 * Wall time, and processor time of all threads, which depends less on other load. Exit code 1 when prefill is less than
 * PREFILL times as fast as fed, or the read takes less than DECODE of the time of a decoded token.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <time.h>

#include "bench_read.h"
#include "bench_timer.h"
#include "base/clock.h"
#include "base/num.h"
#include "bench_program.h"
#include "session/session.h"

enum { ROUNDS = 9, PROMPT = 512, FED = 24, FRESH = 25, ROWS = 16, ROW_STEPS = 4, READS = 8, MOST_THREADS = 64 };

typedef struct bench {
    mn_model *model;
    mn_session *sessions[ROWS];
    int32_t ids[PROMPT + ROWS];
    size_t token_bytes;
    uint64_t sums[MOST_THREADS]; /* keeps the compiler from removing the read */
} bench;

/* ---- the read ---- */

static size_t weight_bytes(const weight *w) {
    return w->layout.n ? weight_layout_bytes(&w->layout) : 0;
}

static size_t layer_bytes(const model_config *config, const packed_layer *layer) {
    size_t sum = 0, channels = (size_t)config->mamba_size;
    for (int i = 0; i < N_LAYER_MATRICES; i++) sum += weight_bytes(&layer->matrices[i]);
    for (int64_t e = 0; layer->experts && e < config->num_experts_per_tok; e++) {
        for (int i = 0; i < N_EXPERT_MATRICES; i++) sum += weight_bytes(&layer->experts[e][i]);
    }
    if (layer_vector(layer, WEIGHT_A))
        sum += (size_t)(config->state_size + config->conv_kernel) * channels * sizeof(float);
    return sum;
}

static size_t bytes_of_token(const model_core *core) {
    size_t sum = weight_bytes(&core->net.weights.head);
    for (int64_t i = 0; i < core->net.config.num_hidden_layers; i++)
        sum += layer_bytes(&core->net.config, &core->net.weights.layers[i]);
    return sum;
}

typedef struct reading {
    bench *b;
    size_t part; /* values per thread */
} reading;

static void read_part(void *arg, int task, int thread) {
    const reading *r = arg;
    const uint64_t *data =
        (const uint64_t *)(const void *)r->b->model->core->net.weights.arena + (size_t)task * r->part;
    (void)thread;
    r->b->sums[task] += read_words(data, r->part);
}

static int run_read(bench *b) {
    const compute *c = &b->model->core->compute;
    reading r = {b, b->token_bytes / sizeof(uint64_t) / (size_t)c->n_threads};
    for (int i = 0; i < READS; i++) thread_run(c->pool, c->n_threads, read_part, &r);
    return READS;
}

/* ---- the passes ---- */

static mn_session *open_session(const bench *b) {
    mn_session *session = NULL;
    must(mn_session_open(&session, b->model, NULL));
    return session;
}

static int run_decode(bench *b) {
    const model_core *core = b->model->core;
    for (int i = 0; i < FRESH; i++) {
        int64_t best;
        core->compute.kernels.max_index(&best, mn_session_logits(b->sessions[0]), (size_t)core->net.config.vocab_size);
        must(mn_session_step(b->sessions[0], &(int32_t){(int32_t)best}, 1, NULL));
    }
    return FRESH;
}

static int run_fed(bench *b) {
    for (int i = 0; i < FED; i++) must(mn_session_step(b->sessions[1], b->ids + i, 1, NULL));
    return FED;
}

static int run_prefill(bench *b) {
    mn_session_close(&b->sessions[2]);
    b->sessions[2] = open_session(b);
    must(mn_session_step(b->sessions[2], b->ids, PROMPT, NULL));
    return PROMPT;
}

static int run_rows(bench *b) {
    for (int i = 0; i < ROW_STEPS; i++) must(mn_sessions_step(b->sessions, ROWS, b->ids + i));
    return ROWS * ROW_STEPS;
}

enum { READ, DECODE, FED_ONE, PREFILL, STEP_ROWS, KINDS };
static const struct {
    const char *name;
    int (*run)(bench *b); /* how many tokens */
} kinds[KINDS] = {
    {"read", run_read}, {"decode", run_decode}, {"fed", run_fed}, {"prefill", run_prefill}, {"rows", run_rows}};

static void open_bench(bench *b) {
    b->token_bytes = bytes_of_token(b->model->core);
    for (size_t i = 0; i < PROMPT + ROWS; i++)
        b->ids[i] = (int32_t)(random_bits(1, 0, i) % (uint64_t)b->model->core->net.config.vocab_size);
    for (int r = 0; r < ROWS; r++) {
        b->sessions[r] = open_session(b);
        must(mn_session_step(b->sessions[r], b->ids + r, 8, NULL));
    }
}

static void close_bench(bench *b) {
    for (int r = 0; r < ROWS; r++) mn_session_close(&b->sessions[r]);
    mn_model_close(&b->model);
}

/* ---- the rounds ---- */

static double processor_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

typedef double table[KINDS][ROUNDS];

/* Median over rounds of the ratio of two kinds' times. */
static double ratio(table times, int over, int under) {
    double ratios[ROUNDS];
    for (int r = 0; r < ROUNDS; r++) ratios[r] = times[over][r] / times[under][r];
    return median_of(ratios, ROUNDS);
}

static void measure(bench *b, table wall, table processor) {
    for (int round = -1; round < ROUNDS; round++) {
        for (int i = 0; i < KINDS; i++) {
            double start = clock_ms(), busy = processor_ms();
            int n = kinds[i].run(b);
            if (round < 0) continue;
            wall[i][round] = (clock_ms() - start) / n;
            processor[i][round] = (processor_ms() - busy) / n;
        }
    }
}

int main(int argc, char **argv) {
    static table wall, processor;
    if (argc < 2 || argc > 5) {
        fprintf(stderr, "usage: bench_passes MODEL [PREFILL [DECODE [THREADS]]]\n");
        return 2;
    }
    int threads = argc > 4 ? atoi(argv[4]) : 2;
    if (threads < 1 || threads > MOST_THREADS) return 2;
    bench b = {.model = open_model(argv[1], threads)};
    open_bench(&b);
    measure(&b, wall, processor);
    double reads[] = {ratio(wall, READ, DECODE), ratio(processor, READ, DECODE)};
    double prefills[] = {ratio(wall, FED_ONE, PREFILL), ratio(processor, FED_ONE, PREFILL)};
    double rows[] = {ratio(wall, FED_ONE, STEP_ROWS), ratio(processor, FED_ONE, STEP_ROWS)};
    printf("%s, %d threads, %.1f MB of weights a token\n", b.model->core->compute_name, threads,
           (double)b.token_bytes * 1e-6);
    for (int i = 0; i < KINDS; i++) {
        double ms = median_of(wall[i], ROUNDS);
        printf("%-8s %8.3f ms (%.3f to %.3f), processor %8.3f ms%s", kinds[i].name, ms, wall[i][0], wall[i][ROUNDS - 1],
               median_of(processor[i], ROUNDS), i == READ ? "" : "\n");
        if (i == READ) printf(", %.1f GB/s\n", (double)b.token_bytes * 1e-6 / ms);
    }
    printf("read / decode %.3f (processor %.3f), fed / prefill %.2f (%.2f), fed / rows %.2f (%.2f)%s\n", reads[0],
           reads[1], prefills[0], prefills[1], rows[0], rows[1], b.sums[0] ? "" : ".");
    close_bench(&b);
    return (argc > 2 && prefills[0] < atof(argv[2])) || (argc > 3 && reads[0] < atof(argv[3]));
}
