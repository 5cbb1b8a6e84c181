/* Rows of a batch assisted by one draft model: bench_drafts MODEL ASSISTANT [ROWS [NEW [DEPTH [THREADS]]]]
 * Defaults: 8, 32, 64, 1; $COMPUTE_TYPE or f32.
 *
 * Tokens per second of all rows, without assistance and with 4 drafts a round: by processor time, which does not depend
 * on other load while there is one thread, and by wall time. Runs alternate; the best one counts. Prompts are random
 * tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <time.h>

#include "base/num.h"
#include "bench_program.h"
#include "bench_timer.h"

enum { RUNS = 5, MOST_ROWS = 64 };

typedef struct bench {
    mn_model *model, *assistant;
    mn_generation_config *config;
    mn_batch_row rows[MOST_ROWS];
    size_t n_rows;
} bench;

typedef struct rates {
    double processor, clock;
} rates;

static rates run(const bench *b, bool is_assisted, bool is_shown) {
    mn_generate_options options;
    mn_generation *generation = NULL;
    size_t n = 0, proposed = 0, accepted = 0;
    mn_generate_options_init(&options, sizeof options);
    if (is_assisted) options.assistant = b->assistant;
    double processor = seconds_of(CLOCK_PROCESS_CPUTIME_ID), clock = seconds_of(CLOCK_MONOTONIC);
    must(mn_generate_batch(b->model, NULL, b->rows, b->n_rows, b->config, &options, &generation));
    processor = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - processor;
    clock = seconds_of(CLOCK_MONOTONIC) - clock;
    for (size_t i = 0; i < generation->n_sequences; i++) {
        n += generation->sequences[i]->n_ids;
        proposed += generation->sequences[i]->draft_tokens;
        accepted += generation->sequences[i]->draft_accepted;
    }
    if (is_shown && is_assisted) printf("%zu of %zu drafts accepted\n", accepted, proposed);
    mn_generation_close(&generation);
    return (rates){.processor = (double)n / processor, .clock = (double)n / clock};
}

static void set_number(mn_generation_config *config, const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    must(mn_generation_config_set(config, name, text));
}

int main(int argc, char **argv) {
    int numbers[] = {8, 32, 64, 1};
    if (argc < 3 || argc > 7) {
        fprintf(stderr, "usage: bench_drafts MODEL ASSISTANT [ROWS [NEW [DEPTH [THREADS]]]]\n");
        return 2;
    }
    for (int i = 3; i < argc; i++) numbers[i - 3] = atoi(argv[i]);
    if (numbers[0] < 1 || numbers[0] > MOST_ROWS || numbers[1] < 1 || numbers[2] < 1 || numbers[3] < 1) {
        fprintf(stderr,
                "bench_drafts: allowed: 1 to %d rows, at least one new token, a prompt of one token and one thread\n",
                (int)MOST_ROWS);
        return 2;
    }
    bench b = {.model = open_model(argv[1], numbers[3]), .assistant = open_model(argv[2], numbers[3])};
    mn_model_info info = {.size = sizeof info};
    must(mn_model_get_info(b.model, &info));
    size_t n_prompt = (size_t)numbers[2];
    b.n_rows = (size_t)numbers[0];
    int32_t *ids = must_have(malloc((b.n_rows + n_prompt) * sizeof *ids));
    for (size_t i = 0; i < b.n_rows + n_prompt; i++)
        ids[i] = (int32_t)(random_bits(1, 0, i) % (uint64_t)info.vocab_size);
    for (size_t r = 0; r < b.n_rows; r++)
        b.rows[r] = (mn_batch_row){.size = sizeof(mn_batch_row), .prompt = ids + r, .n_prompt = n_prompt};
    must(mn_generation_config_open(&b.config, b.model));
    set_number(b.config, "max_new_tokens", numbers[1]);
    set_number(b.config, "num_assistant_tokens", 4);
    must(mn_generation_config_set(b.config, "do_sample", "false"));
    must(mn_generation_config_set(b.config, "ignore_eos", "true"));
    must(mn_generation_config_set(b.config, "num_assistant_tokens_schedule", "\"constant\""));
    must(mn_generation_config_set(b.config, "assistant_confidence_threshold", "0"));
    rates best[2] = {{0}};
    for (int i = 0; i < 2 * RUNS; i++) {
        rates now = run(&b, i % 2, i == 1), *most = &best[i % 2];
        if (now.processor > most->processor) most->processor = now.processor;
        if (now.clock > most->clock) most->clock = now.clock;
    }
    for (int i = 0; i < 2; i++)
        printf("%-8s %8.1f t/s by processor time, %8.1f by wall time\n", i ? "assisted" : "alone", best[i].processor,
               best[i].clock);
    mn_generation_config_close(&b.config);
    mn_model_close(&b.model);
    mn_model_close(&b.assistant);
    free(ids);
    return 0;
}
