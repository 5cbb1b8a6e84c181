/* Rotary angles that follow the length of the text (LongRoPE, dynamic NTK): a text that crosses the learned
 * length, up or down, in any way, has the logits of a full recomputation with the angles of its length.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>
#include <unistd.h>

#include "support/oracle.h"
#include "support/scratch.h"

enum { BORDER = 32, N_IDS = 60, HALF = 16 }; /* pairs of a head of 32 */

static const double tolerance = 2e-4; /* as in test_oracle */
static const char *const strategies[] = {"dynamic", "none"};

typedef struct fixture {
    oracle o;
    mn_model *model;
    bool is_dynamic; /* NTK; else LongRoPE */
    double frequencies[HALF];
    double *logits; /* of the oracle */
    int32_t ids[N_IDS];
    uint64_t seed;
    engine_cache cache;
} fixture;

/* golden/llama with 32 learned positions, twice as many by dynamic NTK. */
static const char *dynamic_folder(void) {
    static char folder[1024];
    static const char config[] =
        "{\"model_type\": \"llama\", \"hidden_size\": 96, \"head_dim\": 32, \"intermediate_size\": 208, "
        "\"num_attention_heads\": 3, \"num_key_value_heads\": 1, \"num_hidden_layers\": 3, \"vocab_size\": 320, "
        "\"max_position_embeddings\": 32, \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000.0, "
        "\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2.0}, \"tie_word_embeddings\": true}";
    if (*folder) return folder;
    scratch_file("config.json", config, strlen(config));
    assert_int_equal(symlink(data_path("golden/llama/model.safetensors"), scratch_path("model.safetensors")), 0);
    snprintf(folder, sizeof folder, "%s", scratch_path("."));
    return folder;
}

static fixture open_fixture(bool is_dynamic, const char *strategy) {
    fixture w = {.is_dynamic = is_dynamic, .seed = 5};
    const char *path = is_dynamic ? dynamic_folder() : "golden/phi3-longrope";
    w.o = oracle_open(is_dynamic ? path : data_path(path));
    w.model = engine_model(path, "f32", "auto", engine_threads());
    w.cache = (engine_cache){.implementation = strategy, .dtype = "f32", .page_tokens = 4, .prefill_chunk = 16};
    assert_int_equal(w.o.rotary, 2 * HALF);
    w.logits = test_malloc(N_IDS * (size_t)w.o.vocab * sizeof *w.logits);
    engine_ids(&w.seed, w.ids, N_IDS, w.o.vocab);
    return w;
}

static void close_fixture(fixture *w) {
    test_free(w->logits);
    oracle_close(&w->o);
    mn_model_close(&w->model);
}

/* The angles of a text of n tokens, from the definitions. */
static void set_angles(fixture *w, size_t n) {
    double theta = 10000;
    bool is_long = n > BORDER;
    if (w->is_dynamic && is_long) theta *= pow(2.0 * (double)n / BORDER - 1, 2.0 * HALF / (2.0 * HALF - 2));
    for (int i = 0; i < HALF; i++) {
        w->frequencies[i] = pow(theta, -(double)i / HALF);
        if (!w->is_dynamic) w->frequencies[i] /= is_long ? 1.5 + 0.3 * i : 1 + 0.02 * i; /* as config.json lists them */
    }
    w->o.frequencies = w->frequencies;
    w->o.turn_scale = w->is_dynamic ? 1 : sqrt(1 + log(128.0 / BORDER) / log(BORDER));
}

/* The oracle's logits behind each of n tokens, all of them with the angles of n. */
static const double *wanted(fixture *w, const int32_t *ids, size_t n) {
    set_angles(w, n);
    oracle_logits(&w->o, ids, n, w->logits);
    return w->logits;
}

static void check_logits(fixture *w, const float *got, const int32_t *ids, size_t n, const char *what) {
    size_t vocab = (size_t)w->o.vocab;
    double distance = oracle_distance(got, wanted(w, ids, n) + (n - 1) * vocab, vocab);
    if (!(distance > 0 && distance <= tolerance))
        fail_msg("%s, %s, %s: %zu tokens are %g away from the oracle", w->is_dynamic ? "dynamic NTK" : "LongRoPE",
                 w->cache.implementation, what, n, distance);
}

static void check_session(fixture *w, const mn_session *session, const char *what) {
    assert_non_null(mn_session_logits(session));
    check_logits(w, mn_session_logits(session), mn_session_ids(session), (size_t)mn_session_length(session), what);
}

/* The short tier has two of the four in each case: both kinds of angles, both strategies. */
#define FOR_WORLDS(w)                                                                                                  \
    for (int i_fixture_ = 0; i_fixture_ < 4; i_fixture_ += test_is_long() ? 1 : 3)                                     \
        for (fixture w = open_fixture(i_fixture_ / 2, strategies[i_fixture_ % 2]); w.model; close_fixture(&w))

/* Feeds the next n tokens, `piece` at a time, and compares after each piece. */
static void feed(fixture *w, mn_session *session, size_t n, size_t piece, const char *what) {
    for (size_t done = 0; done < n; done += piece) {
        size_t now = n - done < piece ? n - done : piece;
        assert_ok(mn_session_step(session, w->ids + mn_session_length(session), now, NULL));
        check_session(w, session, what);
    }
}

static void step_by_step_and_in_pieces(void **state) {
    (void)state;
    FOR_WORLDS(w) {
        for (size_t piece = 1; piece <= 7; piece += 3) {
            mn_session *session = engine_session(w.model, w.cache);
            feed(&w, session, BORDER - 5, BORDER - 5, "a prompt");
            feed(&w, session, 10, piece, "pieces");
            mn_session_close(&session);
        }
    }
}

/* All logits of a call are those of its final length, however the call is cut. */
static void prompts_across_the_border(void **state) {
    (void)state;
    FOR_WORLDS(w) {
        size_t vocab = (size_t)w.o.vocab;
        float *got = test_malloc(N_IDS * vocab * sizeof *got);
        for (size_t n = BORDER - 1; n <= BORDER + 17; n += 3) {
            mn_session *session = engine_session(w.model, w.cache);
            assert_ok(mn_session_step(session, w.ids, n, got));
            double distance = oracle_distance(got, wanted(&w, w.ids, n), n * vocab);
            assert_true(distance > 0 && distance <= tolerance);
            check_session(&w, session, "a prompt");
            mn_session_close(&session);
        }
        test_free(got);
    }
}

static void truncated_below_the_border(void **state) {
    (void)state;
    FOR_WORLDS(w) {
        for (int64_t keep = BORDER - 6; keep <= BORDER + 2; keep += 4) {
            mn_session *session = engine_session(w.model, w.cache);
            feed(&w, session, BORDER + 8, BORDER + 8, "a prompt");
            assert_ok(mn_session_truncate(session, keep));
            feed(&w, session, 5, 2, "cut back");
            assert_ok(mn_session_truncate(session, 3));
            feed(&w, session, BORDER, 9, "cut back again");
            mn_session_close(&session);
        }
    }
}

/* Recomputed keys of one fork do not change the other. */
static void forks_on_both_sides(void **state) {
    (void)state;
    FOR_WORLDS(w) {
        mn_session *below = engine_session(w.model, w.cache), *above = NULL, *third = NULL;
        feed(&w, below, BORDER - 3, BORDER - 3, "a prompt");
        assert_ok(mn_session_fork(&above, below));
        feed(&w, above, 7, 1, "a fork above");
        feed(&w, below, 2, 1, "the other below");
        assert_ok(mn_session_fork(&third, above));
        feed(&w, above, 2, 1, "the fork above");
        assert_ok(mn_session_truncate(third, BORDER - 4));
        feed(&w, third, 3, 1, "a fork of it, cut back");
        feed(&w, below, 6, 3, "the other, above at last");
        mn_session_close(&below);
        mn_session_close(&above);
        mn_session_close(&third);
    }
}

/* Synchronised with another text of another length; saved on one side and continued on the other. */
static void synchronised_and_saved(void **state) {
    (void)state;
    FOR_WORLDS(w) {
        static const size_t lengths[] = {BORDER - 4, BORDER + 6, BORDER - 2, BORDER, BORDER + 1, BORDER + 9};
        mn_cache_options options = engine_cache_options(w.cache);
        mn_session *session = engine_session(w.model, w.cache), *loaded = NULL;
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            char path[1024];
            assert_ok(mn_session_sync(session, w.ids, lengths[i], NULL));
            check_session(&w, session, "synchronised");
            snprintf(path, sizeof path, "%s", scratch_path("saved"));
            assert_ok(mn_session_save(session, path, false));
            assert_ok(mn_session_load(&loaded, w.model, path, &options));
            feed(&w, loaded, 4, 2, "loaded");
            mn_session_close(&loaded);
        }
        mn_session_close(&session);
    }
}

/* Greedy decoding across the border, with and without drafts: each token's logits. */
static void decoded_with_and_without_drafts(void **state) {
    (void)state;
    static const char *const numbers[] = {"null", "1", "5"};
    size_t n_accepted = 0;
    FOR_WORLDS(w) {
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
            mn_generation_config *config = NULL;
            mn_generation *got = NULL;
            mn_session *session = engine_session(w.model, w.cache);
            mn_generate_options options;
            mn_generate_options_init(&options, sizeof options);
            options.keep_logits = true;
            bool has_proposals = strcmp(numbers[i], "null") != 0;
            if (has_proposals) options.assistant = w.model;
            assert_ok(mn_generation_config_open(&config, w.model));
            assert_ok(mn_generation_config_set(config, "do_sample", "false"));
            assert_ok(mn_generation_config_set(config, "max_new_tokens", "14"));
            assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
            if (has_proposals) assert_ok(mn_generation_config_set(config, "num_assistant_tokens", numbers[i]));
            assert_ok(mn_generate(session, w.ids, BORDER - 7, config, &options, &got));
            const mn_sequence *s = got->sequences[0];
            int32_t ids[N_IDS];
            memcpy(ids, w.ids, sizeof ids);
            assert_int_equal(s->n_ids, 14);
            for (size_t k = 0; k < s->n_ids; k++) {
                check_logits(&w, s->logits + k * (size_t)w.o.vocab, ids, BORDER - 7 + k,
                             has_proposals ? "with proposals" : "greedily");
                ids[BORDER - 7 + k] = s->ids[k];
            }
            n_accepted += s->draft_accepted;
            mn_generation_close(&got);
            mn_generation_config_close(&config);
            mn_session_close(&session);
        }
    }
    assert_true(n_accepted > (test_is_long() ? 20 : 10));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_by_step_and_in_pieces), cmocka_unit_test(prompts_across_the_border),
        cmocka_unit_test(truncated_below_the_border), cmocka_unit_test(forks_on_both_sides),
        cmocka_unit_test(synchronised_and_saved),     cmocka_unit_test(decoded_with_and_without_drafts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
