/* Learned positions: a text ends where their table ends, with every cache, and keys cannot be moved.
 * SPDX-License-Identifier: Apache-2.0 */
#include "session/session.h"
#include "support/engine.h"

enum { TABLE = 128, N_IDS = 140 };

typedef struct fixture {
    mn_model *model;
    int32_t ids[N_IDS];
} fixture;

static fixture open_fixture(void) {
    fixture w = {.model = engine_model("golden/gpt2", "f32", "auto", engine_threads())};
    uint64_t seed = 31;
    engine_ids(&seed, w.ids, N_IDS, engine_vocab(w.model));
    return w;
}

static mn_generation_config *config_of(const fixture *w, const char *fields) {
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_load(config, fields, strlen(fields)));
    return config;
}

static const engine_cache caches[] = {
    {.implementation = "none"},
    {.implementation = "dynamic"},
    {.implementation = "static", .max_cache_len = TABLE},
    {.implementation = "offloaded"},
    {.implementation = "sliding_window", .config = "window_length=10"},
    {.implementation = "sink", .config = "window_length=10,num_sink_tokens=0"},
};
enum { N_CACHES = sizeof caches / sizeof *caches };

static void steps_end_with_the_table(void **state) {
    (void)state;
    fixture w = open_fixture();
    for (int i = 0; i < N_CACHES; i++) {
        mn_session *session = engine_session(w.model, caches[i]);
        assert_fails(MN_E_FULL, "128", mn_session_step(session, w.ids, TABLE + 1, NULL));
        assert_int_equal(mn_session_length(session), 0);
        assert_ok(mn_session_step(session, w.ids, TABLE - 1, NULL));
        assert_fails(MN_E_FULL, "no room for 2 more", mn_session_step(session, w.ids, 2, NULL));
        assert_ok(mn_session_step(session, w.ids, 1, NULL));
        assert_fails(MN_E_FULL, "no room for 1 more", mn_session_step(session, w.ids, 1, NULL));
        assert_int_equal(mn_session_length(session), TABLE);
        mn_cache_info info = {.size = sizeof info};
        assert_ok(mn_session_cache(session, &info));
        assert_false(info.has_unbounded_context);
        mn_session_close(&session);
    }
    mn_model_close(&w.model);
}

static void generation_ends_with_the_table(void **state) {
    (void)state;
    fixture w = open_fixture();
    mn_generation_config *config =
        config_of(&w, "{\"do_sample\": false, \"max_new_tokens\": 50, \"eos_token_id\": null}");
    for (int i = 0; i < N_CACHES; i++) {
        bool is_static = strcmp(caches[i].implementation, "static") == 0;
        mn_session *session = engine_session(w.model, caches[i]);
        mn_generation *generation = NULL;
        assert_fails(is_static ? MN_E_FULL : MN_E_ARG, "128",
                     mn_generate(session, w.ids, TABLE + 1, config, NULL, &generation));
        if (is_static) { /* what is allocated at once must hold all requested tokens */
            assert_fails(MN_E_FULL, "128", mn_generate(session, w.ids, 100, config, NULL, &generation));
        } else { /* the last token is never fed */
            assert_ok(mn_generate(session, w.ids, 100, config, NULL, &generation));
            assert_int_equal(generation->sequences[0]->n_ids, TABLE - 100 + 1);
            assert_string_equal(generation->sequences[0]->finish_reason, "length");
            mn_generation_close(&generation);
        }
        mn_session_close(&session);
    }
    mn_generation_config_close(&config);
    mn_model_close(&w.model);
}

/* The unconditional context has the same end. */
static void guidance_has_the_same_end(void **state) {
    (void)state;
    fixture w = open_fixture();
    mn_generation_config *config = config_of(
        &w, "{\"do_sample\": false, \"max_new_tokens\": 20, \"guidance_scale\": 1.5, \"eos_token_id\": null}");
    mn_generate_options how;
    mn_generate_options_init(&how, sizeof how);
    how.negative_prompt = w.ids;
    how.n_negative_prompt = TABLE - 10;
    mn_session *session = engine_session(w.model, (engine_cache){.implementation = "dynamic"});
    mn_generation *generation = NULL;
    assert_fails(MN_E_FULL, "learned positions are 128: too small for a negative prompt of 118",
                 mn_generate(session, w.ids, 5, config, &how, &generation));
    assert_int_equal(mn_session_length(session), 0);
    how.n_negative_prompt = TABLE - 19;
    assert_ok(mn_generate(session, w.ids, 5, config, &how, &generation));
    assert_int_equal(generation->sequences[0]->n_ids, 20);
    mn_generation_close(&generation);
    mn_session_close(&session);
    mn_generation_config_close(&config);
    mn_model_close(&w.model);
}

static void longer_or_moving_caches_are_refused(void **state) {
    (void)state;
    static const struct {
        engine_cache cache;
        const char *part;
    } tries[] = {
        {{.implementation = "static", .max_cache_len = TABLE + 1}, "max_cache_len is 129, allowed: up to 128"},
        {{.implementation = "dynamic", .max_cache_len = 4096}, "max_cache_len is 4096, allowed: up to 128"},
        {{.implementation = "sink"}, "num_sink_tokens=0 and sliding_window keep their positions"},
        {{.implementation = "sink+offloaded", .config = "window_length=30"}, "learned positions are part of its keys"},
    };
    fixture w = open_fixture();
    mn_session *talking = engine_session(w.model, (engine_cache){.implementation = "dynamic"});
    engine_feed(talking, w.ids, 20, 0, NULL, NULL);
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        mn_cache_options options = engine_cache_options(tries[i].cache);
        mn_session *session = NULL;
        assert_fails(MN_E_ARG, tries[i].part, mn_session_open(&session, w.model, &options));
        assert_null(session);
        assert_fails(MN_E_ARG, tries[i].part, mn_session_set_cache(talking, &options));
    }
    assert_ok(mn_session_step(talking, w.ids, 1, NULL));
    mn_session_close(&talking);
    mn_model_info info = {.size = sizeof info};
    assert_ok(mn_model_get_info(w.model, &info));
    assert_true(info.has_learned_positions);
    mn_model_close(&w.model);
}

static void the_planner_knows_the_end(void **state) {
    (void)state;
    fixture w = open_fixture();
    char *text = NULL;
    json_doc *doc = NULL;
    assert_fails(MN_E_ARG, "context is 129, allowed: up to 128", mn_model_describe(w.model, TABLE + 1, &text));
    assert_ok(mn_model_describe(w.model, 0, &text));
    assert_ok(json_parse(&doc, text, strlen(text), JSON_STRICT, "the description"));
    const json *rows = json_get(json_root(doc), "caches"), *config = json_get(json_root(doc), "config");
    assert_true(json_is_string(json_get(config, "positions"), "learned"));
    assert_null(json_get(config, "rope_theta"));
    int n_refused = 0;
    for (size_t i = 0; i < rows->n; i++) {
        const json *row = &rows->items[i];
        bool refused = *json_get(row, "refused")->string != 0;
        n_refused += refused;
        assert_int_equal(json_get(row, "context")->integer, TABLE);
        assert_int_equal(json_get(row, "largest_context")->integer, refused ? 0 : TABLE);
    }
    assert_int_equal(n_refused, 2 + 8); /* sinks; codes, as this checkpoint's heads have 24 numbers */
    json_close(&doc);
    mn_free(text);
    mn_model_close(&w.model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_end_with_the_table),  cmocka_unit_test(generation_ends_with_the_table),
        cmocka_unit_test(guidance_has_the_same_end), cmocka_unit_test(longer_or_moving_caches_are_refused),
        cmocka_unit_test(the_planner_knows_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
