/* Decoding does not allocate: every strategy in every mode, after the search is set up and while no page begins. Where
 * beams or candidates are forked in every step, one step of the run may grow a fork's list of ids, and quanto and HQQ
 * caches begin a page for each fork that quantizes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include "session/session.h"

enum {
    N_PROMPT = 64, /* the first step allocates for all others */
    FIRST_REVERTIBLE = 3,
    FORKS_MAY = 1,
    FLUSHES_MAY = 3 /* steps of 13 that allocate */
};

static const struct mode {
    const char *name;
    const char *settings[12];
    bool forks, several;
} modes[] = {
    {"greedy", {"top_k", "50"}, false, false},
    {"drawn", {"do_sample", "true", "seed", "4", "num_return_sequences", "3", "top_p", "0.9"}, false, true},
    {"processed", {"repetition_penalty", "1.2", "no_repeat_ngram_size", "3", "min_new_tokens", "4"}, false, false},
    {"lookup", {"prompt_lookup_num_tokens", "4"}, false, false},
    {"contrastive", {"penalty_alpha", "0.6", "top_k", "4"}, true, true},
    {"layers", {"dola_layers", "\"low\""}, false, false},
    {"guided", {"guidance_scale", "1.5"}, false, false},
    {"beams", {"num_beams", "4", "num_return_sequences", "2"}, true, true},
    {"drawn beams", {"num_beams", "3", "do_sample", "true", "seed", "4"}, true, true},
    {"groups", {"num_beams", "4", "num_beam_groups", "2", "diversity_penalty", "0.8"}, true, true},
    {"phrases", {"num_beams", "3", "force_words_ids", "[[5],[7,9]]"}, true, true},
};
enum { N_MODES = sizeof modes / sizeof *modes };

static void run(mn_model *model, const int32_t *ids, int strategy, const struct mode *mode) {
    mn_engine *engine = NULL;
    mn_generation_config *config = NULL;
    engine_cache cache = strategy_cache(strategy, "f32");
    cache.page_tokens = 128;
    mn_cache_options options = engine_cache_options(cache);
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "16"));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    for (int k = 0; mode->settings[k]; k += 2)
        assert_ok(mn_generation_config_set(config, mode->settings[k], mode->settings[k + 1]));
    mn_request request;
    mn_request_init(&request, sizeof request);
    request.prompt = ids;
    request.n_prompt = N_PROMPT;
    request.config = config;
    request.cache = &options;
    int id = -1, n_loud = 0;
    size_t running = 1;
    assert_ok(mn_engine_open(&engine, model, NULL));
    for (int again = 0; again < 2; again++) { /* the second run reuses the pages of the first */
        assert_ok(mn_engine_add(engine, &request, &id));
        running = 1;
        for (int step = 0; running > 0; step++) {
            int64_t before = mem_count().allocations;
            assert_ok(mn_engine_step(engine, &running));
            if (again && step >= FIRST_REVERTIBLE && running > 0 && mem_count().allocations != before) n_loud++;
        }
    }
    int may = mode->forks ? FORKS_MAY : 0;
    if (mode->several && engine_strategies[strategy].flushes) may = FLUSHES_MAY;
    if (n_loud > may)
        fail_msg("%s, strategy %d, %s %s: %d steps allocate", mode->name, strategy, cache.implementation,
                 cache.config ? cache.config : "", n_loud);
    mn_engine_close(&engine);
    mn_generation_config_close(&config);
}

static void decoding_does_not_allocate(void **state) {
    (void)state;
    mn_model *model = engine_model("golden/llama", "f32", "auto", 1);
    uint64_t seed = 3;
    int32_t ids[N_PROMPT];
    engine_ids(&seed, ids, N_PROMPT, engine_vocab(model));
    for (int m = 0; m < N_MODES; m++) {
        for (int i = 0; i < N_ENGINE_STRATEGIES; i++) {
            if (test_samples(m + i, 4)) run(model, ids, i, &modes[m]);
        }
    }
    mn_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(decoding_does_not_allocate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
