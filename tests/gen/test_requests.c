/* What requests of one engine share and what they copy: constraints, negative prompts, callbacks, length limits.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

enum { N_IDS = 40, MOST_SETTINGS = 8 };

typedef struct wanted_request {
    const char *settings[MOST_SETTINGS]; /* NAME VALUE by NAME VALUE */
    size_t n_prompt, n_negative;
} wanted_request;

static mn_model *model;
static int32_t ids[N_IDS];

static mn_generation_config *config_of(const wanted_request *w) {
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "24"));
    for (int k = 0; k < MOST_SETTINGS && w->settings[k]; k += 2)
        assert_ok(mn_generation_config_set(config, w->settings[k], w->settings[k + 1]));
    return config;
}

static mn_generation *alone(const wanted_request *w) {
    mn_generation_config *config = config_of(w);
    mn_generation *generation = NULL;
    mn_session *session = engine_session(model, (engine_cache){.page_tokens = 16});
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    options.negative_prompt = w->n_negative ? ids + 20 : NULL;
    options.n_negative_prompt = w->n_negative;
    assert_ok(mn_generate(session, ids, w->n_prompt, config, &options, &generation));
    mn_session_close(&session);
    mn_generation_config_close(&config);
    return generation;
}

static void add(mn_engine *engine, const wanted_request *w, int *id) {
    mn_generation_config *config = config_of(w);
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    mn_request request;
    mn_request_init(&request, sizeof request);
    int32_t prompt[N_IDS], negative[N_IDS];
    memcpy(prompt, ids, sizeof prompt);
    memcpy(negative, ids, sizeof negative);
    options.negative_prompt = w->n_negative ? negative + 20 : NULL;
    options.n_negative_prompt = w->n_negative;
    request.prompt = prompt;
    request.n_prompt = w->n_prompt;
    request.config = config;
    request.options = &options;
    assert_ok(mn_engine_add(engine, &request, id));
    memset(prompt, 0, sizeof prompt); /* the engine keeps no pointer to it */
    memset(negative, 0, sizeof negative);
    mn_generation_config_close(&config);
}

static mn_engine *open_engine(void) {
    mn_engine *engine = NULL;
    mn_cache_options cache = engine_cache_options((engine_cache){.page_tokens = 16});
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    options.cache = &cache;
    assert_ok(mn_engine_open(&engine, model, &options));
    return engine;
}

/* All requests together, each added `apart` steps after the one before; each equals a single run. */
static void check_together(const wanted_request *requests, int n, int apart) {
    mn_engine *engine = open_engine();
    int *added = test_calloc((size_t)n, sizeof *added), n_added = 0, n_taken = 0;
    size_t n_running = 1;
    for (int step = 0; n_added < n || n_running > 0; step++) {
        while (n_added < n && (apart == 0 || step >= n_added * apart)) {
            add(engine, &requests[n_added], &added[n_added]);
            n_added++;
        }
        assert_ok(mn_engine_step(engine, &n_running));
    }
    for (;; n_taken++) {
        mn_generation *got = NULL;
        int id, i = 0;
        assert_ok(mn_engine_take(engine, &id, &got));
        if (id < 0) break;
        while (i < n && added[i] != id) i++;
        mn_generation *wanted = alone(&requests[i]);
        const mn_sequence *a = wanted->sequences[0], *s = got->sequences[0];
        assert_int_equal(s->n_ids, a->n_ids);
        assert_memory_equal(s->ids, a->ids, a->n_ids * sizeof *a->ids);
        assert_string_equal(s->text, a->text);
        assert_string_equal(s->finish_reason, a->finish_reason);
        mn_generation_close(&wanted);
        mn_generation_close(&got);
    }
    assert_int_equal(n_taken, n);
    mn_engine_close(&engine);
    test_free(added);
}

/* Requests with the same constraint share its automaton; the request that opened it may end first. */
static void requests_with_the_same_constraint_share_its_automaton(void **state) {
    (void)state;
    static const wanted_request requests[] = {
        {{"regex", "\"[a-f]{3,9}\"", "max_new_tokens", "3"}, 5, 0},
        {{"regex", "\"[a-f]{3,9}\""}, 9, 0},
        {{"regex", "\"[0-9]+x\""}, 9, 0},
        {{"grammar", "\"root ::= [0-9]+ \\\"x\\\"\""}, 9, 0},
        {{"json_schema", "\"{\\\"type\\\": \\\"boolean\\\"}\""}, 4, 0},
        {{"regex", "\"[a-f]{3,9}\"", "eos_token_id", "3"}, 9, 0},
        {{"json_schema", "\"{\\\"type\\\": \\\"boolean\\\"}\"", "do_sample", "true", "seed", "5"}, 7, 0},
        {{"json_schema", "\"{\\\"type\\\": \\\"integer\\\"}\""}, 7, 0},
        {{NULL}, 3, 0},
        {{"regex", "\"[0-9]+x\"", "do_sample", "true", "seed", "9"}, 2, 0},
        {{"regex", "\"[a-f]{3,9}\"", "eos_token_id", "[2, 3]"}, 9, 0},
    };
    enum { N = sizeof requests / sizeof *requests };
    check_together(requests, N, 0);
    int64_t live = engine_live(model); /* the model has allocated its workspace by now */
    for (int apart = 1; apart < 4; apart++) check_together(requests, N, apart);
    assert_int_equal(engine_live(model), live);
}

/* A negative prompt is copied when the request is added. */
static void negative_prompts_are_copied(void **state) {
    (void)state;
    static const wanted_request requests[] = {{{"guidance_scale", "1.5"}, 9, 7},
                                              {{"guidance_scale", "1.5"}, 9, 0},
                                              {{"guidance_scale", "3"}, 12, 1},
                                              {{NULL}, 9, 0}};
    for (int apart = 0; apart < 3; apart++) check_together(requests, 4, apart);
    int64_t before = engine_live(model);
    mn_engine *engine = open_engine();
    int64_t live = engine_live(model);
    for (int64_t k = 1;; k++) { /* added completely or refused */
        mn_generation_config *config = config_of(&requests[0]);
        mn_generate_options options;
        mn_generate_options_init(&options, sizeof options);
        mn_request request;
        mn_request_init(&request, sizeof request);
        options.negative_prompt = ids;
        options.n_negative_prompt = 9;
        request.prompt = ids;
        request.n_prompt = 5;
        request.config = config;
        request.options = &options;
        int id = -7;
        mem_fail_after(k);
        mn_status status = mn_engine_add(engine, &request, &id);
        mem_fail_after(0);
        mn_generation_config_close(&config);
        if (status == MN_OK) {
            assert_true(k > 5);
            assert_ok(mn_engine_cancel(engine, id));
            break;
        }
        assert_int_equal(status, MN_E_NOMEM);
        assert_int_equal(id, -7);
        assert_true(engine_live(model) - live <= 1); /* the engine keeps a grown array */
    }
    mn_engine_close(&engine);
    assert_int_equal(engine_live(model), before);
}

typedef struct prefill_progress {
    size_t last, total;
    int n;
} prefill_progress;

static void on_prefill(void *user, size_t done, size_t total) {
    prefill_progress *h = user;
    assert_true(done > h->last && done <= total);
    h->last = done;
    h->total = total;
    h->n++;
}

/* Each request's prompt progress rises to its total. */
static void prompt_progress_is_reported_per_request(void **state) {
    (void)state;
    mn_engine *engine = NULL;
    mn_cache_options cache = engine_cache_options((engine_cache){.page_tokens = 4, .prefill_chunk = 8});
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    options.cache = &cache;
    assert_ok(mn_engine_open(&engine, model, &options));
    prefill_progress progress[3] = {{0}};
    for (int i = 0; i < 3; i++) {
        mn_generate_options how;
        mn_generate_options_init(&how, sizeof how);
        mn_request request;
        mn_request_init(&request, sizeof request);
        const wanted_request w = {{"max_new_tokens", "2"}, 0, 0};
        mn_generation_config *config = config_of(&w);
        int id;
        how.on_prefill = on_prefill;
        how.user = &progress[i];
        request.prompt = ids;
        request.n_prompt = (size_t)(10 + 13 * i);
        request.config = config;
        request.options = &how;
        assert_ok(mn_engine_add(engine, &request, &id));
        mn_generation_config_close(&config);
    }
    for (size_t n_running = 1; n_running > 0;) assert_ok(mn_engine_step(engine, &n_running));
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(progress[i].total, 10 + 13 * i);
        assert_int_equal(progress[i].last, progress[i].total);
        assert_true(progress[i].n >= (int)i + 2);
    }
    mn_engine_close(&engine);
}

static int open_all(void **state) {
    (void)state;
    uint64_t seed = 3;
    model = engine_model("embedded", "f32", "auto", engine_threads());
    engine_ids(&seed, ids, N_IDS, engine_vocab(model));
    return 0;
}

static int close_all(void **state) {
    (void)state;
    mn_model_close(&model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_with_the_same_constraint_share_its_automaton),
        cmocka_unit_test(negative_prompts_are_copied),
        cmocka_unit_test(prompt_progress_is_reported_per_request),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
