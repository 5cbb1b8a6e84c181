/* Beam search against a batch of as many rows: bench_beams MODEL [CACHE]. Both decode the same number of tokens after
 * prompts of the same length, in alternation; then the selection of the next beams alone. Ends with 1 when a step of
 * four beams costs more than 1.3 times one of four rows.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_timer.h"
#include "base/clock.h"
#include "gen/search/beams.h"

enum { BEAMS = 4, ROUNDS = 9, NEW = 17, CHOICES = 301 };
static const double allowed = 1.3;
static const size_t prompts[] = {60, 700};

static void check(mn_status status) {
    if (status == MN_OK) return;
    fprintf(stderr, "bench_beams: %s\n", mn_last_error());
    exit(1);
}

static mn_generation_config *config_of(const mn_model *model, int n_beams, bool draws) {
    char text[256];
    mn_generation_config *config = NULL;
    snprintf(text, sizeof text,
             "{\"max_new_tokens\": %d, \"ignore_eos\": true, \"do_sample\": %s, \"num_beams\": %d, \"seed\": 5}", NEW,
             draws ? "true" : "false", n_beams);
    check(mn_generation_config_open(&config, model));
    check(mn_generation_config_load(config, text, strlen(text)));
    return config;
}

/* Sessions that hold the prompt; the first one is the beams'. */
typedef struct readers {
    mn_model *model;
    mn_session *sessions[BEAMS + 1];
    const int32_t *ids;
    size_t n;
} readers;

static void open_readers(readers *r, const mn_cache_options *cache) {
    for (size_t i = 0; i <= BEAMS; i++) {
        check(mn_session_open(&r->sessions[i], r->model, cache));
        check(mn_session_step(r->sessions[i], r->ids + i, r->n, NULL));
    }
}

static void close_readers(readers *r) {
    for (size_t i = 0; i <= BEAMS; i++) mn_session_close(&r->sessions[i]);
}

/* Milliseconds of a step. */
static double time_beams(readers *r, bool draws) {
    mn_generation_config *config = config_of(r->model, BEAMS, draws);
    mn_generation *g = NULL;
    check(mn_generate(r->sessions[0], r->ids, r->n, config, NULL, &g));
    double time = g->predicted_ms / (NEW - 1);
    mn_generation_close(&g);
    mn_generation_config_close(&config);
    return time;
}

static double time_rows(readers *r) {
    int32_t next[BEAMS];
    for (size_t i = 0; i < BEAMS; i++) check(mn_session_sync(r->sessions[i + 1], r->ids + i + 1, r->n, NULL));
    double start = clock_ms();
    for (size_t step = 0; step + 1 < NEW; step++) {
        for (size_t i = 0; i < BEAMS; i++)
            next[i] = choice_best(mn_session_logits(r->sessions[i + 1]), (size_t)r->model->core->net.config.vocab_size);
        check(mn_sessions_step(r->sessions + 1, BEAMS, next));
    }
    return (clock_ms() - start) / (NEW - 1);
}

/* The selection of the four best beams after a prompt alone. */
static double time_choice(mn_model *model, const int32_t *ids, size_t n, bool draws) {
    static double times[CHOICES];
    mn_generation_config *config = config_of(model, BEAMS, draws);
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    mn_session *session = NULL;
    sequence text;
    step_log steps = {0};
    beams b;
    check(mn_session_open(&session, model, NULL));
    check(mn_session_step(session, ids, n, NULL));
    check(sequence_open(&text, session, config, &options, ids, n, NEW));
    search_setup setup = {.session = session,
                          .prompt = ids,
                          .n_prompt = n,
                          .config = config,
                          .options = &options,
                          .max_new = NEW,
                          .sequences = &text,
                          .n_sequences = 1,
                          .steps = &steps};
    check(beams_open(&b, &setup, 1, draws));
    for (size_t i = 0; i < CHOICES; i++) {
        double start = clock_ms();
        check(beams_score(&b, 0, BEAMS, NULL, 0));
        if (beams_rank(&b, 0, BEAMS, b.n_ranked, b.candidates) != b.n_ranked) exit(1);
        times[i] = clock_ms() - start;
    }
    beams_close(&b);
    sequence_close(&text);
    mn_session_close(&session);
    mn_generation_config_close(&config);
    return median_of(times, CHOICES);
}

int main(int argc, char **argv) {
    mn_model *model = NULL;
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    mn_cache_options cache;
    mn_cache_options_init(&cache, sizeof cache);
    bool slow = false;
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: bench_beams MODEL [CACHE]\n");
        return 2;
    }
    options.threads = 2;
    check(mn_model_open(&model, argv[1], &options));
    cache.implementation = argc == 3 ? argv[2] : "dynamic";
    static int32_t ids[4096];
    for (size_t i = 0; i < 4096; i++) ids[i] = (int32_t)(i * 2654435761u % 40000u);
    for (size_t p = 0; p < sizeof prompts / sizeof *prompts; p++) {
        double rows[ROUNDS], chosen[ROUNDS], drawn[ROUNDS];
        readers r = {.model = model, .ids = ids, .n = prompts[p]};
        cache.max_cache_len = strstr(cache.implementation, "static") ? (int64_t)prompts[p] + NEW : 0;
        open_readers(&r, &cache);
        for (size_t i = 0; i < ROUNDS; i++) {
            rows[i] = time_rows(&r);
            chosen[i] = time_beams(&r, false);
            drawn[i] = time_beams(&r, true);
        }
        close_readers(&r);
        double one = median_of(rows, ROUNDS), other = median_of(chosen, ROUNDS), third = median_of(drawn, ROUNDS);
        printf(
            "%s, prompt of %zu: %d rows %.3f ms a step (best %.3f), %d beams %.3f (%.3f): %.2f times; drawn %.3f (%.3f): "
            "%.2f times\n",
            cache.implementation, prompts[p], BEAMS, one, rows[0], BEAMS, other, chosen[0], other / one, third,
            drawn[0], third / one);
        fflush(stdout);
        slow = slow || other > allowed * one;
    }
    printf("the choice of %d beams: %.3f ms, drawn with warpers %.3f ms (medians of %d)\n", BEAMS,
           time_choice(model, ids, 60, false), time_choice(model, ids, 60, true), CHOICES);
    mn_model_close(&model);
    return slow;
}
