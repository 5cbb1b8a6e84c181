/* Models with states instead of keys and values, and with both: what is taken back, forked, proposed and rejected
 * leaves no trace in the states; and operations that need a dropped state are refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include "session/session.h"
#include "support/engine.h"
#include "support/scratch.h"

static const char *const models[] = {"golden/mamba", "golden/jamba"};
enum { N_MODELS = 2, N_IDS = 40, MOST_NEW = 24 };

typedef struct fixture {
    mn_model *model;
    size_t vocab;
    int32_t ids[N_IDS];
    uint64_t seed;
} fixture;

static fixture open_fixture(const char *path) {
    fixture w = {.model = engine_model(path, "f32", "auto", engine_threads()), .seed = 23};
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&w.seed, w.ids, N_IDS, (int32_t)w.vocab);
    return w;
}

static mn_session *open_session(const fixture *w, const char *implementation) {
    return engine_session(w->model, (engine_cache){.implementation = implementation, .dtype = "f32", .page_tokens = 4});
}

/* Logits [N_IDS][vocab] of a text that is computed anew for every token. */
static float *recomputed(const fixture *w) {
    float *logits = malloc(N_IDS * w->vocab * sizeof *logits);
    mn_session *session = open_session(w, "none");
    engine_feed(session, w->ids, N_IDS, 1, NULL, logits);
    mn_session_close(&session);
    return logits;
}

static void any_split_gives_the_full_scan(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture w = open_fixture(models[m]);
        float *wanted = recomputed(&w), *got = malloc(N_IDS * w.vocab * sizeof *got);
        for (int first = 1; first < N_IDS; first += 3) {
            mn_session *session = open_session(&w, "dynamic");
            engine_feed(session, w.ids, (size_t)first, 0, NULL, got);
            engine_feed(session, w.ids + first, (size_t)(N_IDS - first), first % 2 ? 0 : -1, &w.seed,
                        got + (size_t)first * w.vocab);
            engine_same_bits(got, wanted, N_IDS, w.vocab, "%s, cut at %d", models[m], first);
            mn_session_close(&session);
        }
        free(wanted);
        free(got);
        mn_model_close(&w.model);
    }
}

/* The states of the last few steps are kept: truncating returns to one of them, or to an older one from which the
 * tokens in between are computed again; before the oldest everything is. */
static void truncation_returns_to_checkpoints(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture w = open_fixture(models[m]);
        float *wanted = recomputed(&w);
        for (int64_t keep = N_IDS - 1; keep >= N_IDS - 8; keep--) {
            mn_session *session = open_session(&w, "dynamic");
            engine_feed(session, w.ids, N_IDS - 6, 0, NULL, NULL);
            engine_feed(session, w.ids + N_IDS - 6, 6, 2, NULL, NULL); /* states behind 34, 36, 38 and 40 tokens */
            if (keep < N_IDS - 6) {
                assert_fails(MN_E_UNSUPPORTED, "has dropped", mn_session_truncate(session, keep));
                assert_int_equal(mn_session_length(session), N_IDS);
                assert_ok(mn_session_sync(session, w.ids, (size_t)keep, NULL)); /* from the first token */
            } else {
                assert_ok(mn_session_truncate(session, keep));
                assert_int_equal(kv_length(session->cache), keep / 2 * 2);
            }
            for (int64_t i = keep; i < N_IDS; i++) {
                assert_ok(mn_session_step(session, &w.ids[i], 1, NULL));
                engine_ends_with(session, wanted + (size_t)i * w.vocab, "behind a cut");
            }
            assert_ok(kv_check(session->cache));
            mn_session_close(&session);
        }
        free(wanted);
        mn_model_close(&w.model);
    }
}

static void forks_are_independent(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        fixture w = open_fixture(models[m]);
        float *wanted = recomputed(&w);
        mn_session *session = open_session(&w, "dynamic"), *fork = NULL;
        engine_feed(session, w.ids, 20, 5, NULL, NULL);
        assert_ok(mn_session_fork(&fork, session));
        engine_feed(fork, w.ids + 3, 9, -1, &w.seed, NULL); /* another text */
        assert_ok(mn_session_truncate(session, 18));
        engine_feed(session, w.ids + 18, N_IDS - 18, 4, NULL, NULL);
        engine_ends_with(session, wanted + (N_IDS - 1) * w.vocab, "a forked session");
        mn_session_close(&session);
        assert_ok(mn_session_truncate(fork, 0));
        engine_feed(fork, w.ids, N_IDS, 0, NULL, NULL);
        engine_ends_with(fork, wanted + (N_IDS - 1) * w.vocab, "a fork of its own");
        mn_session_close(&fork);
        free(wanted);
        mn_model_close(&w.model);
    }
}

/* The memory of a dropped state is used again. */
static void steps_allocate_nothing(void **state) {
    (void)state;
    static const char *const paths[] = {"golden/mamba", "golden/jamba", "golden/gemma2", "golden/gpt2",
                                        "golden/mixtral"};
    for (size_t m = 0; m < sizeof paths / sizeof *paths; m++) {
        fixture w = open_fixture(paths[m]);
        mn_session *session = engine_session(
            w.model, (engine_cache){.implementation = "static", .dtype = "f32", .max_cache_len = 2 * N_IDS});
        engine_feed(session, w.ids, N_IDS, 0, NULL, NULL);
        engine_feed(session, w.ids, 6, 1, NULL, NULL); /* as many states as are kept */
        int64_t before = mem_count().allocations;
        engine_feed(session, w.ids, 20, 1, NULL, NULL);
        if (mem_count().allocations != before)
            fail_msg("%s: %lld allocations", paths[m], (long long)(mem_count().allocations - before));
        mn_session_close(&session);
        mn_model_close(&w.model);
    }
}

/* ---- every way of decoding, against the same without a cache ---- */

typedef struct texts {
    size_t n;
    size_t n_ids[8];
    int32_t ids[8][MOST_NEW];
} texts;

static texts generate(const fixture *w, const char *implementation, const char *fields, mn_model *assistant) {
    mn_generation_config *config = NULL;
    mn_generation *generation = NULL;
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    texts out = {0};
    char text[256];
    snprintf(text, sizeof text, "{\"max_new_tokens\": %d, \"eos_token_id\": 2, %s}", MOST_NEW, fields);
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_load(config, text, strlen(text)));
    how.assistant = assistant;
    mn_session *session = open_session(w, implementation);
    assert_ok(mn_generate(session, w->ids, N_IDS, config, &how, &generation));
    out.n = generation->n_sequences;
    for (size_t i = 0; i < out.n; i++) {
        out.n_ids[i] = generation->sequences[i]->n_ids;
        memcpy(out.ids[i], generation->sequences[i]->ids, out.n_ids[i] * sizeof(int32_t));
    }
    mn_generation_close(&generation);
    mn_generation_config_close(&config);
    mn_session_close(&session);
    return out;
}

static void every_mode_equals_itself_without_a_cache(void **state) {
    (void)state;
    static const char *const paths[] = {"golden/mamba", "golden/jamba", "golden/gemma3", "golden/gpt2",
                                        "golden/mixtral"};
    static const char *const modes[] = {
        "\"do_sample\": false",
        "\"do_sample\": true, \"seed\": 5, \"top_k\": 20",
        "\"do_sample\": false, \"num_beams\": 3, \"num_return_sequences\": 3",
        "\"do_sample\": false, \"num_beams\": 4, \"num_beam_groups\": 2, \"diversity_penalty\": 0.5",
        "\"do_sample\": false, \"penalty_alpha\": 0.6, \"top_k\": 4",
        "\"do_sample\": false, \"guidance_scale\": 1.5",
        "\"do_sample\": false, \"prompt_lookup_num_tokens\": 5",
    };
    for (size_t m = 0; m < sizeof paths / sizeof *paths; m++) {
        fixture w = open_fixture(paths[m]);
        memcpy(w.ids + 20, w.ids, 20 * sizeof *w.ids); /* so that there is something to look up */
        for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
            if (!test_samples((int)(m + i), 3)) continue;
            texts wanted = generate(&w, "none", modes[i], NULL), got = generate(&w, "dynamic", modes[i], NULL);
            if (memcmp(&wanted, &got, sizeof got) != 0) fail_msg("%s: %s", paths[m], modes[i]);
        }
        mn_model_close(&w.model);
    }
}

/* Either may be the draft model of the other: rejected tokens leave no trace. */
static void drafts_change_nothing(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"golden/mamba", "golden/llama"}, {"golden/llama", "golden/mamba"}, {"golden/jamba", "golden/mamba"},
        {"golden/mamba", "golden/mamba"}, {"golden/gpt2", "golden/jamba"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        fixture w = open_fixture(pairs[i][0]);
        mn_model *draft = engine_model(pairs[i][1], "f32", "auto", 1);
        texts wanted = generate(&w, "dynamic", "\"do_sample\": false", NULL),
              got = generate(&w, "dynamic", "\"do_sample\": false, \"num_assistant_tokens\": 4", draft);
        if (memcmp(&wanted, &got, sizeof got) != 0) fail_msg("%s with a draft of %s", pairs[i][0], pairs[i][1]);
        mn_model_close(&draft);
        mn_model_close(&w.model);
    }
}

/* ---- what is reported of states ---- */

static void states_are_described(void **state) {
    (void)state;
    fixture w = open_fixture("golden/mamba");
    mn_model_info info = {.size = sizeof info};
    mn_layer_info layer = {.size = sizeof layer};
    mn_cache_info cache = {.size = sizeof cache};
    mn_session *session = open_session(&w, "mamba");
    float row[8];
    assert_ok(mn_model_get_info(w.model, &info));
    assert_int_equal(info.max_position_embeddings, 0);
    assert_false(info.has_learned_positions);
    engine_feed(session, w.ids, N_IDS, 1, NULL, NULL);
    assert_ok(mn_session_layer(session, 1, &layer));
    assert_string_equal(layer.kind, "state");
    assert_ok(mn_session_cache(session, &cache));
    assert_int_equal(cache.bytes_per_token, 0);
    /* Three layers, five states of (4 - 1 + 8) x 192 numbers: the newest and four that steps may be taken back to. */
    assert_int_equal(cache.bytes, 3 * 5 * 11 * 192 * 4);
    assert_fails(MN_E_UNSUPPORTED, "layer 1 holds a state", mn_session_read(session, 1, true, 0, 1, row));
    assert_fails(MN_E_UNSUPPORTED, "layer 0", mn_sessions_export(&session, 1, scratch_path("legacy"), "f32"));
    static const char *const targets[] = {"offloaded", "quantized", "sink"};
    for (int i = 0; i < 3; i++) {
        mn_cache_options options;
        mn_cache_options_init(&options, sizeof options);
        options.implementation = targets[i];
        assert_fails(MN_E_ARG, "holds a recurrent state instead", mn_session_set_cache(session, &options));
    }
    assert_ok(mn_session_step(session, w.ids, 1, NULL));
    mn_session_close(&session);
    int32_t many[400] = {0};
    assert_fails(MN_E_UNSUPPORTED, "no layer of this model has keys",
                 mn_cache_calibrate(w.model, many, 400, scratch_path("t")));
    session = NULL;
    mn_cache_options bare;
    mn_cache_options_init(&bare, sizeof bare);
    bare.implementation = "static";
    assert_fails(MN_E_ARG, "max_cache_len", mn_session_open(&session, w.model, &bare));
    bare.max_cache_len = 10;
    assert_ok(mn_session_open(&session, w.model, &bare));
    assert_fails(MN_E_FULL, "at most 10", mn_session_step(session, w.ids, 11, NULL));
    assert_ok(mn_session_step(session, w.ids, 10, NULL));
    mn_session_close(&session);
    mn_model_close(&w.model);
}

/* Layers without keys are left out. */
static void mixed_layers_are_calibrated(void **state) {
    (void)state;
    enum { TEXT = 400 };
    fixture w = open_fixture("golden/jamba");
    int32_t text[TEXT];
    engine_ids(&w.seed, text, TEXT, (int32_t)w.vocab);
    engine_calibrate(w.model, text, TEXT, scratch_path("calibration"));
    mn_session *session = engine_session(w.model, (engine_cache){.implementation = "quantized", .dtype = "f32"}),
               *exact = open_session(&w, "dynamic");
    engine_feed(session, text, TEXT, 0, NULL, NULL);
    engine_feed(exact, text, TEXT, 0, NULL, NULL);
    assert_non_null(session->calibration);
    double error = engine_mean_square(mn_session_logits(session), mn_session_logits(exact), w.vocab);
    assert_true(error > 0 && error < 0.3 * engine_spread(mn_session_logits(exact), w.vocab));
    mn_session_close(&session);
    mn_session_close(&exact);
    mn_model_close(&w.model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_gives_the_full_scan),
        cmocka_unit_test(truncation_returns_to_checkpoints),
        cmocka_unit_test(forks_are_independent),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(every_mode_equals_itself_without_a_cache),
        cmocka_unit_test(drafts_change_nothing),
        cmocka_unit_test(states_are_described),
        cmocka_unit_test(mixed_layers_are_calibrated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
