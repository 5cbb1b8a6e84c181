/* Tokens per second of mn_generate_batch on the work of bench/serve: bench_rows MODEL ROWS BATCHES [THREADS]
 *
 * Batches of ROWS prompts of 256 random tokens, 128 of which all have in common, and 64 new tokens each. The common
 * part is computed once, in the measured time. Prints new tokens per second, one number.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/num.h"
#include "bench_program.h"

enum { COMMON = 128, PROMPT = 256, MOST_ROWS = 1024 };

typedef struct bench {
    mn_model *model;
    mn_generation_config *config;
    mn_session *prefix;
    uint64_t n_vocab;
    int32_t (*prompts)[PROMPT]; /* [rows] */
    size_t n_rows;
} bench;

/* The first COMMON ids are the same in every prompt. */
static void make_prompts(bench *b, size_t batch) {
    for (size_t r = 0; r < b->n_rows; r++) {
        for (size_t i = 0; i < PROMPT; i++) {
            uint64_t stream = i < COMMON ? 0 : 1 + batch * b->n_rows + r;
            b->prompts[r][i] = (int32_t)(random_bits(1, stream, i) % b->n_vocab);
        }
    }
}

static size_t generate(bench *b) {
    mn_batch_row *rows = must_have(mem_alloc(b->n_rows, sizeof *rows));
    mn_generation *generation = NULL;
    size_t n_tokens = 0;
    for (size_t r = 0; r < b->n_rows; r++) {
        rows[r] = (mn_batch_row){.size = sizeof *rows,
                                 .prompt = b->prompts[r],
                                 .n_prompt = PROMPT,
                                 .config = b->config,
                                 .prefix = b->prefix};
    }
    must(mn_generate_batch(b->model, NULL, rows, b->n_rows, NULL, NULL, &generation));
    for (size_t r = 0; r < b->n_rows; r++) n_tokens += generation->sequences[r]->n_ids;
    mn_generation_close(&generation);
    mem_free(rows);
    return n_tokens;
}

static double measure(bench *b, size_t n_batches) {
    size_t n_tokens = 0;
    double ms = 0;
    for (size_t i = 0; i < n_batches; i++) {
        make_prompts(b, i);
        double start = clock_ms();
        if (i == 0) must(mn_session_step(b->prefix, b->prompts[0], COMMON, NULL));
        n_tokens += generate(b);
        ms += clock_ms() - start;
    }
    return (double)n_tokens / ms * 1e3;
}

int main(int argc, char **argv) {
    int rows = argc > 2 ? atoi(argv[2]) : 0, batches = argc > 3 ? atoi(argv[3]) : 0,
        threads = argc > 4 ? atoi(argv[4]) : 2;
    if (argc < 4 || argc > 5 || rows < 1 || rows > MOST_ROWS || batches < 1 || threads < 1) {
        fprintf(stderr, "usage: bench_rows MODEL ROWS BATCHES [THREADS], at most %d rows\n", (int)MOST_ROWS);
        return 2;
    }
    bench b = {.model = open_model(argv[1], threads), .n_rows = (size_t)rows};
    mn_model_info info = {.size = sizeof info};
    must(mn_model_get_info(b.model, &info));
    b.n_vocab = (uint64_t)info.vocab_size;
    must(mn_generation_config_open(&b.config, b.model));
    must(mn_generation_config_set(b.config, "max_new_tokens", "64"));
    must(mn_generation_config_set(b.config, "ignore_eos", "true"));
    must(mn_generation_config_set(b.config, "do_sample", "false"));
    must(mn_session_open(&b.prefix, b.model, NULL));
    b.prompts = must_have(mem_alloc(b.n_rows, sizeof *b.prompts));
    printf("%.1f\n", measure(&b, (size_t)batches));
    mem_free(b.prompts);
    mn_session_close(&b.prefix);
    mn_generation_config_close(&b.config);
    mn_model_close(&b.model);
    return 0;
}
