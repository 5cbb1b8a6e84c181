/* Contrastive search, contrasted layers and guidance over every cache: afterwards a session holds exactly its tokens,
 * rows of a batch equal single runs, and failures and cancellation leave a valid session. tests/golden checks which
 * tokens they choose.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include "session/session.h"

enum { N_NEW = 20, MOST_PROMPT = 70, N_AFTER = 2 };

/* Settings of one search, NAME VALUE by NAME VALUE. */
typedef struct search_case {
    const char *name;
    const char *settings[12];
    bool has_negative;
} search_case;

static const search_case cases[] = {
    {"contrastive", {"penalty_alpha", "0.6", "top_k", "4"}, false},
    {"contrasted layers", {"dola_layers", "[0,1,2]", "repetition_penalty", "1.2"}, false},
    {"guidance", {"guidance_scale", "1.7"}, true},
    {"guidance and layers, sampled",
     {"guidance_scale", "1.4", "dola_layers", "\"low\"", "do_sample", "true", "num_return_sequences", "3", "seed", "5"},
     false},
};
enum { N_CASES = sizeof cases / sizeof *cases };

typedef struct fixture {
    mn_model *model;
    mn_generation_config *config;
    mn_generate_options options;
    size_t vocab, n_prompt;
    int32_t prompt[MOST_PROMPT];
} fixture;

static const int32_t negative[] = {9, 4, 200, 17, 9};

static fixture open_fixture(const char *path, const search_case *c) {
    fixture w = {.model = engine_model(path, "f32", "auto", engine_threads()), .n_prompt = 45};
    mn_generate_options_init(&w.options, sizeof w.options);
    uint64_t seed = 3;
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&seed, w.prompt, MOST_PROMPT, (int32_t)w.vocab);
    assert_ok(mn_generation_config_open(&w.config, w.model));
    assert_ok(mn_generation_config_set(w.config, "max_new_tokens", "20"));
    assert_ok(mn_generation_config_set(w.config, "ignore_eos", "true"));
    for (int i = 0; c->settings[i]; i += 2)
        assert_ok(mn_generation_config_set(w.config, c->settings[i], c->settings[i + 1]));
    w.options.keep_scores = true;
    w.options.negative_prompt = negative;
    w.options.n_negative_prompt = c->has_negative ? sizeof negative / sizeof *negative : 0;
    return w;
}

static void close_fixture(fixture *w) {
    mn_generation_config_close(&w->config);
    mn_model_close(&w->model);
}

static mn_status try_run(const fixture *w, mn_session *session, mn_generation **out) {
    return mn_generate(session, w->prompt, w->n_prompt, w->config, &w->options, out);
}

/* Compares the session with one that was fed the prompt and then the tokens without the last. */
static void holds_its_tokens(const fixture *w, mn_session *session, engine_cache cache, const mn_sequence *s,
                             const char *what) {
    mn_session *plain = engine_session(w->model, cache);
    assert_ok(mn_session_step(plain, w->prompt, w->n_prompt, NULL));
    for (size_t i = 0; i + 1 < s->n_ids; i++) assert_ok(mn_session_step(plain, &s->ids[i], 1, NULL));
    assert_int_equal(mn_session_length(session), mn_session_length(plain));
    assert_memory_equal(mn_session_ids(session), mn_session_ids(plain),
                        (size_t)mn_session_length(plain) * sizeof(int32_t));
    assert_ok(kv_check(session->cache));
    assert_int_equal(strategy_quantized(session), strategy_quantized(plain));
    for (int32_t i = 0; i < N_AFTER; i++) {
        int32_t id = i + 11;
        assert_ok(mn_session_step(session, &id, 1, NULL));
        assert_ok(mn_session_step(plain, &id, 1, NULL));
        engine_same_bits(mn_session_logits(session), mn_session_logits(plain), 1, w->vocab, "%s", what);
    }
    mn_session_close(&plain);
}

static void sessions_hold_exactly_their_tokens_with_every_cache(void **state) {
    (void)state;
    for (int c = 0; c < N_CASES; c++) {
        fixture w = open_fixture(strategy_models[c % N_STRATEGY_MODELS], &cases[c]);
        for (int i = 0; i < N_ENGINE_STRATEGIES; i++) {
            if (!test_samples(c + i, 4)) continue;
            char what[160];
            engine_cache cache = strategy_cache(i, "f32");
            snprintf(what, sizeof what, "%s, strategy %d (%s)", cases[c].name, i, cache.implementation);
            mn_session *session = engine_session(w.model, cache);
            mn_generation *generation = NULL;
            assert_ok(try_run(&w, session, &generation));
            const mn_sequence *s = generation->sequences[0];
            assert_int_equal(s->n_ids, N_NEW);
            holds_its_tokens(&w, session, cache, s, what);
            mn_generation_close(&generation);
            mn_session_close(&session);
        }
        close_fixture(&w);
    }
}

static void rows_of_a_batch_equal_single_runs(void **state) {
    (void)state;
    enum { N_ROWS = 3 };
    static const size_t lengths[N_ROWS] = {1, 70, 29};
    for (int c = 0; c < N_CASES; c++) {
        fixture w = open_fixture("golden/llama", &cases[c]);
        for (int i = c; i < N_ENGINE_STRATEGIES; i += 4) {
            if (!test_samples(i / 4, 3)) continue;
            engine_cache cache = strategy_cache(i, "bf16");
            mn_cache_options options = engine_cache_options(cache);
            mn_batch_row rows[N_ROWS];
            mn_generation *all = NULL;
            for (size_t r = 0; r < N_ROWS; r++)
                rows[r] = (mn_batch_row){.size = sizeof(mn_batch_row), .prompt = w.prompt, .n_prompt = lengths[r]};
            assert_ok(mn_generate_batch(w.model, &options, rows, N_ROWS, w.config, &w.options, &all));
            size_t each = all->n_sequences / N_ROWS;
            for (size_t r = 0; r < N_ROWS; r++) {
                mn_session *session = engine_session(w.model, cache);
                mn_generation *alone = NULL;
                w.n_prompt = lengths[r];
                assert_ok(try_run(&w, session, &alone));
                assert_int_equal(alone->n_sequences, each);
                for (size_t k = 0; k < each; k++) {
                    const mn_sequence *a = alone->sequences[k], *s = all->sequences[r * each + k];
                    assert_memory_equal(s->ids, a->ids, N_NEW * sizeof *a->ids);
                    engine_same_bits(s->scores, a->scores, N_NEW, w.vocab, "%s, row %zu, %s", cases[c].name, r,
                                     cache.implementation);
                }
                mn_generation_close(&alone);
                mn_session_close(&session);
            }
            mn_generation_close(&all);
        }
        close_fixture(&w);
    }
}

static bool stop_after(void *user, const mn_token_event *event) {
    (void)event;
    return --*(int *)user > 0;
}

static void cancelled_runs_keep_their_tokens(void **state) {
    (void)state;
    for (int c = 0; c < N_CASES - 1; c++) {
        fixture w = open_fixture("golden/llama", &cases[c]);
        engine_cache cache = {.page_tokens = 4};
        for (int n = 1; n < 6; n++) {
            mn_session *session = engine_session(w.model, cache);
            mn_generation *generation = NULL;
            int left = n;
            w.options.on_token = stop_after;
            w.options.user = &left;
            assert_ok(try_run(&w, session, &generation));
            const mn_sequence *s = generation->sequences[0];
            assert_string_equal(s->finish_reason, "cancelled");
            assert_int_equal(s->n_ids, n);
            holds_its_tokens(&w, session, cache, s, cases[c].name);
            mn_generation_close(&generation);
            mn_session_close(&session);
        }
        close_fixture(&w);
    }
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    for (int c = 0; c < N_CASES; c++) {
        fixture w = open_fixture("golden/llama", &cases[c]);
        engine_cache cache = {.page_tokens = 16};
        w.options.keep_scores = false;
        w.n_prompt = 9;
        assert_ok(mn_generation_config_set(w.config, "max_new_tokens", "6"));
        bool done = false;
        for (int64_t k = 1; !done; k++) {
            mn_session *session = engine_session(w.model, cache);
            mn_generation *generation = NULL;
            mem_fail_after(k);
            mn_status status = try_run(&w, session, &generation);
            mem_fail_after(0);
            done = status == MN_OK;
            if (!done) {
                assert_int_equal(status, MN_E_NOMEM);
                assert_null(generation);
                assert_ok(kv_check(session->cache));
                assert_ok(try_run(&w, session, &generation));
            }
            holds_its_tokens(&w, session, cache, generation->sequences[0], cases[c].name);
            mn_generation_close(&generation);
            mn_session_close(&session);
            assert_true(k < 3000);
        }
        close_fixture(&w);
    }
}

static void bad_settings_are_refused(void **state) {
    (void)state;
    static const struct {
        int c;
        const char *name, *value, *part;
        mn_status status;
    } bad[] = {
        {1, "dola_layers", "[3,4]", "allowed: 0 to 2", MN_E_ARG},
        {0, "num_return_sequences", "2", "num_return_sequences", MN_E_ARG},
        {0, "guidance_scale", "2", "guidance_scale", MN_E_ARG},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fixture w = open_fixture("golden/llama", &cases[bad[i].c]);
        mn_session *session = engine_session(w.model, (engine_cache){0});
        mn_generation *generation = NULL;
        assert_ok(mn_generation_config_set(w.config, bad[i].name, bad[i].value));
        assert_fails(bad[i].status, bad[i].part, try_run(&w, session, &generation));
        assert_int_equal(mn_session_length(session), 0);
        mn_session_close(&session);
        close_fixture(&w);
    }
    fixture w = open_fixture("golden/llama", &cases[2]);
    static const int32_t beyond[] = {5, 320};
    mn_session *session = engine_session(w.model, (engine_cache){0});
    mn_generation *generation = NULL;
    w.options.negative_prompt = beyond;
    w.options.n_negative_prompt = 2;
    assert_fails(MN_E_ARG, "token 1 of the negative prompt is 320", try_run(&w, session, &generation));
    mn_session_close(&session);
    session = engine_session(w.model, (engine_cache){.implementation = "static", .max_cache_len = 24});
    w.n_prompt = 2;
    w.options.negative_prompt = w.prompt;
    w.options.n_negative_prompt = 6;
    assert_fails(MN_E_FULL, "negative prompt", try_run(&w, session, &generation));
    w.options.n_negative_prompt = 5;
    assert_ok(try_run(&w, session, &generation));
    mn_generation_close(&generation);
    mn_session_close(&session);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_hold_exactly_their_tokens_with_every_cache),
        cmocka_unit_test(rows_of_a_batch_equal_single_runs),
        cmocka_unit_test(cancelled_runs_keep_their_tokens),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(bad_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
