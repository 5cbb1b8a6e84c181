/* Cost of logits processors, warpers and the choice of a token: microseconds of each alone and of whole chains, on
 * scores distributed like a model's (normal, a few far above the rest). Prints the median of several passes.
 * bench_sampling [vocabulary] [tokens of text].
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>
#include <time.h>

#include "bench_timer.h"
#include "base/num.h"
#include "bench_program.h"
#include "gen/logits/choice.h"
#include "gen/logits/processors.h"
#include "gen/logits/scores.h"

enum { PASSES = 101 };

static double microseconds(void) {
    return 1e6 * seconds_of(CLOCK_MONOTONIC);
}

typedef struct bench {
    size_t vocab, n;
    int32_t *ids;
    float *logits, *scores;
    choice choice;
} bench;

static void make_scores(bench *b) {
    for (size_t i = 0; i < b->vocab; i++) {
        double radius = sqrt(-2 * log(1 - random_uniform(1, 0, i)));
        b->logits[i] = (float)(2.5 * radius * cos(6.283185307179586 * random_uniform(1, 1, i)));
    }
    for (uint64_t i = 0; i < 20; i++) b->logits[random_bits(1, 2, i) % b->vocab] += 6;
    for (size_t i = 0; i < b->n; i++) b->ids[i] = (int32_t)(random_bits(1, 3, i) % b->vocab);
}

static mn_generation_config *config_of(const char *settings) {
    mn_generation_config *config = NULL;
    must(mn_generation_config_open(&config, NULL));
    must(mn_generation_config_set(config, "top_k", "0"));
    must(mn_generation_config_set(config, "eos_token_id", "2"));
    must(mn_generation_config_load(config, settings, strlen(settings)));
    return config;
}

static processors *open_processors(const bench *b, const mn_generation_config *config) {
    processors *p = NULL;
    processor_setup setup = {
        .config = config, .vocab = b->vocab, .prompt = b->ids, .n_prompt = b->n / 2, .max_length = (int64_t)b->n + 100};
    must(processors_open(&p, &setup));
    return p;
}

/* Every row of the table that these settings make active, one by one. */
static void time_each(bench *b, const char *settings) {
    mn_generation_config *config = config_of(settings);
    processors *p = open_processors(b, config);
    processor_step step = {.ids = b->ids, .n = b->n};
    double times[PASSES];
    for (size_t i = 0; i < processors_count(); i++) {
        if (!processors_is_active(p, i)) continue;
        for (int pass = 0; pass < PASSES; pass++) {
            memcpy(b->scores, b->logits, b->vocab * sizeof *b->scores);
            double start = microseconds();
            must(processors_run_one(p, i, &step, b->scores));
            times[pass] = microseconds() - start;
        }
        printf("%-40s %8.1f\n", processors_name(i), median_of(times, PASSES));
    }
    processors_close(&p);
    mn_generation_config_close(&config);
}

static void time_chain(bench *b, const char *name, const char *settings) {
    mn_generation_config *config = config_of(settings);
    processors *p = open_processors(b, config);
    processor_step step = {.ids = b->ids, .n = b->n};
    double chain[PASSES], drawn[PASSES];
    size_t n_left = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        memcpy(b->scores, b->logits, b->vocab * sizeof *b->scores);
        double start = microseconds();
        must(processors_run(p, &step, b->scores));
        double between = microseconds();
        b->ids[0] = choice_sample(&b->choice, b->scores, b->vocab, 1, 0, (uint64_t)pass);
        chain[pass] = between - start;
        drawn[pass] = microseconds() - between;
    }
    for (size_t i = 0; i < b->vocab; i++) n_left += b->scores[i] > -INFINITY;
    printf("%-40s %8.1f and the draw %8.1f (%zu tokens left)\n", name, median_of(chain, PASSES),
           median_of(drawn, PASSES), n_left);
    processors_close(&p);
    mn_generation_config_close(&config);
}

static void time_rest(bench *b) {
    double best[PASSES], softmax[PASSES], guide[PASSES];
    for (int pass = 0; pass < PASSES; pass++) {
        memcpy(b->scores, b->logits, b->vocab * sizeof *b->scores);
        double start = microseconds();
        b->ids[0] = choice_best(b->scores, b->vocab);
        best[pass] = microseconds() - start;
        start = microseconds();
        scores_log_softmax(b->scores, b->vocab);
        softmax[pass] = microseconds() - start;
        start = microseconds();
        scores_guide(b->scores, b->logits, b->vocab, 1.5);
        guide[pass] = microseconds() - start;
    }
    printf("%-40s %8.1f\n%-40s %8.1f\n%-40s %8.1f\n", "best token", median_of(best, PASSES), "log-softmax",
           median_of(softmax, PASSES), "guidance_scale", median_of(guide, PASSES));
}

int main(int n, char **words) {
    bench b = {.vocab = n > 1 ? (size_t)atoi(words[1]) : 50000, .n = n > 2 ? (size_t)atoi(words[2]) : 1000};
    if (b.vocab < 100 || b.vocab > 1 << 24 || b.n < 10 || b.n > 1 << 24) return 2;
    b.ids = must_have(mem_alloc(b.n, sizeof *b.ids));
    b.logits = must_have(mem_alloc(b.vocab, sizeof *b.logits));
    b.scores = must_have(mem_alloc(b.vocab, sizeof *b.scores));
    must(choice_open(&b.choice, b.vocab));
    make_scores(&b);
    printf("%zu tokens of vocabulary, %zu of text; microseconds\n", b.vocab, b.n);
    time_each(&b, "{\"sequence_bias\": [[[5], 1.0], [[7, 8], 2.0]], \"encoder_repetition_penalty\": 1.1,"
                  " \"repetition_penalty\": 1.1, \"presence_penalty\": 0.5, \"frequency_penalty\": 0.5,"
                  " \"logit_bias\": {\"5\": 1}, \"no_repeat_ngram_size\": 3, \"encoder_no_repeat_ngram_size\": 3,"
                  " \"bad_words_ids\": [[5], [7, 8]], \"min_length\": 5, \"min_new_tokens\": 5,"
                  " \"forced_bos_token_id\": 1, \"forced_eos_token_id\": 2, \"remove_invalid_values\": true,"
                  " \"exponential_decay_length_penalty\": [1, 1.01], \"suppress_tokens\": [5, 6],"
                  " \"begin_suppress_tokens\": [7], \"watermarking_config\": {}, \"renormalize_logits\": true}");
    time_each(&b, "{\"do_sample\": true, \"temperature\": 0.7, \"top_k\": 50, \"top_p\": 0.95, \"min_p\": 0.05,"
                  " \"typical_p\": 0.95, \"epsilon_cutoff\": 0.0003, \"eta_cutoff\": 0.0003}");
    time_rest(&b);
    time_chain(&b, "sampling without warpers", "{\"do_sample\": true}");
    time_chain(&b, "temperature, top_k, top_p",
               "{\"do_sample\": true, \"temperature\": 0.7, \"top_k\": 50, \"top_p\": 0.95}");
    time_chain(&b, "all warpers",
               "{\"do_sample\": true, \"temperature\": 0.7, \"top_k\": 50, \"top_p\": 0.95, \"min_p\": 0.05,"
               " \"typical_p\": 0.95, \"epsilon_cutoff\": 0.0003, \"eta_cutoff\": 0.0003}");
    time_chain(&b, "all warpers but top_k",
               "{\"do_sample\": true, \"temperature\": 0.7, \"top_p\": 0.95, \"min_p\": 0.05,"
               " \"typical_p\": 0.95, \"epsilon_cutoff\": 0.0003, \"eta_cutoff\": 0.0003}");
    time_chain(&b, "all warpers but top_k, flat",
               "{\"do_sample\": true, \"temperature\": 20, \"top_p\": 0.95, \"min_p\": 0.00001,"
               " \"typical_p\": 0.95, \"epsilon_cutoff\": 0.000001, \"eta_cutoff\": 0.000001}");
    time_chain(&b, "top_k of 10000", "{\"do_sample\": true, \"top_k\": 10000}");
    choice_close(&b.choice);
    mem_free(b.ids);
    mem_free(b.logits);
    mem_free(b.scores);
    return 0;
}
