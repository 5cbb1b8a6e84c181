/* Rows that decode together: bench_batch MODEL [ROWS [NEW [DEPTH [THREADS]]]]
 * Defaults: 16, 32, 128, 2; $COMPUTE_TYPE or f32.
 *
 * Tokens per second of all rows; cases alternate, medians of rounds:
 *   kernel   upper limit by the bf16 matrix kernel: its rate with as many rows, weights in the second-level cache and
 *            all threads, over the operations of the model's matrices
 *   steps    mn_sessions_step alone
 *   greedy   mn_generate_batch, with text and a callback per token
 *   warped   the same with sampling, the repetition penalty and every warper
 *
 * Exit code 1 when the steps of a model computed in bf16 reach less than half of the kernel's limit.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "bench_timer.h"
#include "base/clock.h"
#include "base/num.h"
#include "bench_program.h"
#include "session/session.h"

enum { ROUNDS = 5, MOST_ROWS = 64, KERNEL_BYTES = 384 << 10, KERNEL_REPEATS = 200 };

static const double allowed = 0.5;

typedef struct bench {
    mn_model *model;
    int rows, fresh, depth, threads;
    int32_t *ids; /* row r begins at the r-th id */
    mn_session *sessions[MOST_ROWS];
    mn_generation_config *greedy, *warped;
    size_t n_text; /* bytes of text that the callback has seen */
} bench;

/* ---- the kernel ---- */

typedef struct kernel_task {
    kernel_table kernels;
    linear_job job;
    float *y; /* [threads][rows][outputs] */
} kernel_task;

static void run_kernel(void *arg, int task, int thread) {
    const kernel_task *t = arg;
    linear_job job = t->job;
    (void)task;
    job.y += (size_t)thread * (size_t)job.x->m * (size_t)job.y_stride;
    for (int i = 0; i < KERNEL_REPEATS; i++) t->kernels.linear_bf16(&job);
}

/* Operations a second of all threads, each with its own rows; a product and a sum count as two. */
static double kernel_rate(const bench *b) {
    int k = (int)b->model->core->net.config.hidden_size, n = KERNEL_BYTES / (2 * k) / PANEL * PANEL;
    weight_layout layout;
    weight_layout_make(&layout, WEIGHT_BF16, DTYPE_BF16, n, k);
    size_t rows = (size_t)b->rows, x_bytes = rows * act_bf16_stride(k) * sizeof(bf16);
    char *weights = must_have(mem_alloc_raw(weight_layout_bytes(&layout), 1)),
         *x = must_have(mem_alloc_raw(x_bytes, 1));
    kernel_task task = {.kernels = b->model->core->compute.kernels};
    task.y = must_have(mem_alloc((size_t)b->threads * rows * (size_t)n, sizeof *task.y));
    memset(weights, 0x35, weight_layout_bytes(&layout));
    memset(x, 0x35, x_bytes);
    activations acts = {.form = WEIGHT_BF16, .m = b->rows, .k = k, .x = x};
    task.job = (linear_job){.layout = &layout,
                            .weights = weights,
                            .x = &acts,
                            .row_end = b->rows,
                            .panel_end = layout.n_panels,
                            .y = task.y,
                            .y_stride = n};
    thread_pool *pool = NULL;
    must(thread_pool_open(&pool, b->threads));
    thread_run(pool, b->threads, run_kernel, &task);
    double start = clock_ms();
    thread_run(pool, b->threads, run_kernel, &task);
    double seconds = (clock_ms() - start) * 1e-3;
    thread_pool_close(&pool);
    mem_free(weights);
    mem_free(x);
    mem_free(task.y);
    return 2.0 * (double)rows * n * k * KERNEL_REPEATS * b->threads / seconds;
}

/* The number of weights that a token is multiplied with. */
static double matrix_weights(const model_core *core) {
    double sum = (double)core->net.weights.head.layout.n * core->net.weights.head.layout.k;
    for (int64_t i = 0; i < core->net.config.num_hidden_layers; i++) {
        const packed_layer *l = &core->net.weights.layers[i];
        for (int j = 0; j < N_LAYER_MATRICES; j++) sum += (double)l->matrices[j].layout.n * l->matrices[j].layout.k;
    }
    return sum;
}

static double measure_kernel(bench *b) {
    return kernel_rate(b) / (2 * matrix_weights(b->model->core));
}

/* ---- the model ---- */

static double measure_steps(bench *b) {
    double start = clock_ms();
    for (int i = 0; i < b->fresh; i++) must(mn_sessions_step(b->sessions, (size_t)b->rows, b->ids + b->depth + i));
    double seconds = (clock_ms() - start) * 1e-3;
    for (int r = 0; r < b->rows; r++) must(mn_session_truncate(b->sessions[r], b->depth));
    return (double)b->rows * b->fresh / seconds;
}

static bool see_token(void *user, const mn_token_event *event) {
    bench *b = user;
    b->n_text += event->n_text;
    return true;
}

/* Prompts are forks of sessions without their last token; only tokens after the prompts' step are timed. */
static double measure_loop(bench *b, const mn_generation_config *config) {
    mn_batch_row rows[MOST_ROWS];
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    mn_generation *generation = NULL;
    options.on_token = see_token;
    options.user = b;
    for (int r = 0; r < b->rows; r++)
        rows[r] = (mn_batch_row){
            .size = sizeof(mn_batch_row), .prompt = b->ids + r, .n_prompt = (size_t)b->depth, .prefix = b->sessions[r]};
    must(mn_generate_batch(b->model, NULL, rows, (size_t)b->rows, config, &options, &generation));
    double rate = (double)b->rows * (b->fresh - 1) / (generation->predicted_ms * 1e-3);
    mn_generation_close(&generation);
    return rate;
}

static double measure_greedy(bench *b) {
    return measure_loop(b, b->greedy);
}

static double measure_warped(bench *b) {
    return measure_loop(b, b->warped);
}

static const char warpers[] =
    "{\"do_sample\": true, \"seed\": 3, \"temperature\": 0.8, \"top_k\": 200, \"top_p\": 0.95, \"min_p\": 0.001, "
    "\"typical_p\": 0.98, \"epsilon_cutoff\": 0.00001, \"eta_cutoff\": 0.00001, \"repetition_penalty\": 1.1}";

static mn_generation_config *config_of(const bench *b, const char *settings) {
    mn_generation_config *config = NULL;
    char number[16];
    snprintf(number, sizeof number, "%d", b->fresh);
    must(mn_generation_config_open(&config, b->model));
    must(mn_generation_config_load(config, settings, strlen(settings)));
    must(mn_generation_config_set(config, "max_new_tokens", number));
    must(mn_generation_config_set(config, "ignore_eos", "true"));
    return config;
}

static void open_bench(bench *b) {
    int64_t vocab = b->model->core->net.config.vocab_size;
    size_t n = (size_t)(b->depth + b->fresh + b->rows);
    b->ids = must_have(mem_alloc(n, sizeof *b->ids));
    for (size_t i = 0; i < n; i++) b->ids[i] = (int32_t)(random_bits(1, 0, i) % (uint64_t)vocab);
    for (int r = 0; r < b->rows; r++) {
        must(mn_session_open(&b->sessions[r], b->model, NULL));
        must(mn_session_step(b->sessions[r], b->ids + r, (size_t)b->depth, NULL));
    }
    b->greedy = config_of(b, "{\"do_sample\": false}");
    b->warped = config_of(b, warpers);
}

static void close_bench(bench *b) {
    for (int r = 0; r < b->rows; r++) mn_session_close(&b->sessions[r]);
    mn_generation_config_close(&b->greedy);
    mn_generation_config_close(&b->warped);
    mn_model_close(&b->model);
    mem_free(b->ids);
}

/* ---- the rounds ---- */

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        double (*measure)(bench *b);
    } kinds[] = {
        {"kernel", measure_kernel}, {"steps", measure_steps}, {"greedy", measure_greedy}, {"warped", measure_warped}};
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    int numbers[] = {16, 32, 128, 2};
    double rates[KINDS][ROUNDS], medians[KINDS];
    if (argc < 2 || argc > 6) {
        fprintf(stderr, "usage: bench_batch MODEL [ROWS [NEW [DEPTH [THREADS]]]]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) numbers[i - 2] = atoi(argv[i]);
    bench b = {.rows = numbers[0], .fresh = numbers[1], .depth = numbers[2], .threads = numbers[3]};
    if (b.rows < 1 || b.rows > MOST_ROWS || b.fresh < 2 || b.depth < 2 || b.threads < 1) {
        fprintf(stderr, "bench_batch: allowed: 1 to %d rows, at least two new tokens, a depth of two and one thread\n",
                (int)MOST_ROWS);
        return 2;
    }
    b.model = open_model(argv[1], b.threads);
    open_bench(&b);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < KINDS; i++) rates[i][round] = kinds[i].measure(&b);
    }
    printf("%s, %d rows, %d new tokens at depth %d, %d threads\n", b.model->core->compute_name, b.rows, b.fresh,
           b.depth, b.threads);
    for (int i = 0; i < KINDS; i++) {
        qsort(rates[i], ROUNDS, sizeof rates[i][0], compare_doubles);
        medians[i] = rates[i][ROUNDS / 2];
        printf("%-7s %8.1f t/s (%.1f to %.1f)", kinds[i].name, medians[i], rates[i][0], rates[i][ROUNDS - 1]);
        if (i > 0) printf(", %.2f of the kernel", medians[i] / medians[0]);
        if (i > 1) printf(", %.2f of the steps", medians[i] / medians[1]);
        printf("\n");
    }
    printf("text: %zu bytes\n", b.n_text);
    bool missed = strcmp(b.model->core->compute_name, "bf16") == 0 && medians[1] < allowed * medians[0];
    close_bench(&b);
    return missed;
}
