/* Requests of different lengths through a number of rows: bench_continuous MODEL [REQUESTS [ROWS [THREADS [ROUNDS]]]]
 * Defaults: 64, 16, 2, 3.
 *
 * Prompts of 32 tokens; new tokens from 16 to 512, uniform in their logarithm: most requests are short. Tokens per
 * second of all requests; cases alternate, medians of rounds:
 *   fixed        mn_generate_batch of ROWS requests in order of arrival; a batch begins when the last row of the one
 *                before has ended
 *   continuous   mn_engine with max_num_seqs ROWS: a request begins as soon as another has ended
 *
 * Exit code 1 when continuous is less than 1.3 times fixed, or the tokens of a request differ.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/num.h"
#include "bench_program.h"
#include "bench_timer.h"
#include "session/session.h"

enum { MOST_ROUNDS = 15, PROMPT = 32, SHORTEST = 16, LONGEST = 512 };

static const double wanted = 1.3;

typedef struct bench {
    mn_model *model;
    size_t n, n_rows, n_tokens;
    int32_t *prompts;               /* [n][PROMPT] */
    mn_generation_config **configs; /* [n] */
    uint64_t *sums;                 /* [n] hash of each request's ids; 0: not known */
    bool differs;
} bench;

/* The ids of request i must be the same each time. */
static void check(bench *b, size_t i, const mn_sequence *s) {
    uint64_t sum = 1;
    for (size_t k = 0; k < s->n_ids; k++) sum = sum * 0x9E3779B97F4A7C15u + (uint64_t)s->ids[k];
    b->differs = b->differs || (b->sums[i] && b->sums[i] != sum);
    b->sums[i] = sum;
}

static void run_fixed(bench *b) {
    mn_batch_row *rows = must_have(mem_alloc(b->n_rows, sizeof *rows));
    for (size_t first = 0, n; first < b->n; first += n) {
        mn_generation *generation = NULL;
        n = b->n - first < b->n_rows ? b->n - first : b->n_rows;
        for (size_t r = 0; r < n; r++) {
            rows[r] = (mn_batch_row){.size = sizeof *rows,
                                     .prompt = b->prompts + (first + r) * PROMPT,
                                     .n_prompt = PROMPT,
                                     .config = b->configs[first + r]};
        }
        must(mn_generate_batch(b->model, NULL, rows, n, NULL, NULL, &generation));
        for (size_t r = 0; r < n; r++) check(b, first + r, generation->sequences[r]);
        mn_generation_close(&generation);
    }
    mem_free(rows);
}

static void run_continuous(bench *b) {
    mn_engine *engine = NULL;
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    options.max_num_seqs = b->n_rows;
    must(mn_engine_open(&engine, b->model, &options));
    int first = 0;
    for (size_t i = 0; i < b->n; i++) {
        mn_request request;
        int id;
        mn_request_init(&request, sizeof request);
        request.prompt = b->prompts + i * PROMPT;
        request.n_prompt = PROMPT;
        request.config = b->configs[i];
        must(mn_engine_add(engine, &request, &id));
        if (i == 0) first = id;
    }
    for (size_t running = b->n; running > 0;) {
        mn_generation *generation = NULL;
        int id;
        must(mn_engine_step(engine, &running));
        for (;;) {
            must(mn_engine_take(engine, &id, &generation));
            if (id < 0) break;
            check(b, (size_t)(id - first), generation->sequences[0]);
            mn_generation_close(&generation);
        }
    }
    mn_engine_close(&engine);
}

static void open_bench(bench *b) {
    uint64_t vocab = (uint64_t)b->model->core->net.config.vocab_size;
    b->prompts = must_have(mem_alloc(b->n * PROMPT, sizeof *b->prompts));
    b->configs = must_have(mem_alloc(b->n, sizeof(mn_generation_config *)));
    b->sums = must_have(mem_alloc(b->n, sizeof *b->sums));
    for (size_t i = 0; i < b->n * PROMPT; i++) b->prompts[i] = (int32_t)(random_bits(1, 0, i) % vocab);
    for (size_t i = 0; i < b->n; i++) {
        char number[16];
        int length = (int)(SHORTEST * pow((double)LONGEST / SHORTEST, random_uniform(2, 0, i)));
        snprintf(number, sizeof number, "%d", length);
        b->n_tokens += (size_t)length;
        must(mn_generation_config_open(&b->configs[i], b->model));
        must(mn_generation_config_set(b->configs[i], "max_new_tokens", number));
        must(mn_generation_config_set(b->configs[i], "ignore_eos", "true"));
        must(mn_generation_config_set(b->configs[i], "do_sample", "false"));
    }
}

static void close_bench(bench *b) {
    for (size_t i = 0; i < b->n; i++) mn_generation_config_close(&b->configs[i]);
    mem_free(b->configs);
    mem_free(b->prompts);
    mem_free(b->sums);
    mn_model_close(&b->model);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(bench *b);
    } kinds[] = {{"fixed", run_fixed}, {"continuous", run_continuous}};
    int numbers[] = {64, 16, 2, 3};
    double rates[2][MOST_ROUNDS];
    bool is_good = argc >= 2 && argc <= 6;
    for (int i = 2; is_good && i < argc; i++) is_good = (numbers[i - 2] = atoi(argv[i])) > 0;
    if (!is_good || numbers[3] > MOST_ROUNDS) {
        fprintf(stderr, "usage: bench_continuous MODEL [REQUESTS [ROWS [THREADS [ROUNDS]]]], at most %d rounds\n",
                (int)MOST_ROUNDS);
        return 2;
    }
    bench b = {.n = (size_t)numbers[0], .n_rows = (size_t)numbers[1]};
    b.model = open_model(argv[1], numbers[2]);
    open_bench(&b);
    for (int round = 0; round < numbers[3]; round++) {
        for (int i = 0; i < 2; i++) {
            double start = clock_ms();
            kinds[i].run(&b);
            rates[i][round] = (double)b.n_tokens / ((clock_ms() - start) * 1e-3);
        }
    }
    printf("%s, %zu requests of %d to %d tokens (%zu in all), %zu rows, %d threads\n", b.model->core->compute_name, b.n,
           (int)SHORTEST, (int)LONGEST, b.n_tokens, b.n_rows, numbers[2]);
    for (int i = 0; i < 2; i++) {
        qsort(rates[i], (size_t)numbers[3], sizeof rates[i][0], compare_doubles);
        printf("%-10s %8.1f t/s (%.1f to %.1f)\n", kinds[i].name, rates[i][numbers[3] / 2], rates[i][0],
               rates[i][numbers[3] - 1]);
    }
    double ratio = rates[1][numbers[3] / 2] / rates[0][numbers[3] / 2];
    printf("continuous is %.2f times fixed, required: at least %.2f%s\n", ratio, wanted,
           b.differs ? "; TOKENS DIFFER" : "");
    bool missed = b.differs || ratio < wanted;
    close_bench(&b);
    return missed;
}
