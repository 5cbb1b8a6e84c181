/* Drafts join the shared pass: all rows with the same draft model are computed together, beside the tokens of other
 * rows, and every row equals a single run.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include "session/session.h"

enum { N_ROWS = 6, N_NEW = 30, MOST_PROMPT = 300, CHUNK = 64 };

/* ---- passes, counted by model ---- */

static const model_core *counted[2];   /* the target, the assistant */
static int n_passes[2], n_together[2]; /* largest number of rows in a pass */

mn_status __wrap_model_forward(model_core *model, const forward_row *rows, int n_rows);
mn_status __real_model_forward(model_core *model, const forward_row *rows, int n_rows);

mn_status __wrap_model_forward(model_core *model, const forward_row *rows, int n_rows) {
    for (int i = 0; i < 2; i++) {
        if (counted[i] != model) continue;
        n_passes[i]++;
        if (n_rows > n_together[i]) n_together[i] = n_rows;
    }
    return __real_model_forward(model, rows, n_rows);
}

static void count_anew(void) {
    memset(n_passes, 0, sizeof n_passes);
    memset(n_together, 0, sizeof n_together);
}

/* ---- requests ---- */

typedef struct fixture {
    mn_model *model, *assistant;
    int32_t ids[MOST_PROMPT + N_ROWS];
    int64_t live;
} fixture;

static fixture open_fixture(const char *model, const char *assistant) {
    fixture w = {.live = mem_count().live};
    uint64_t seed = 5;
    w.model = engine_model(model, "f32", "auto", engine_threads());
    w.assistant = engine_model(assistant, "f32", "auto", engine_threads());
    engine_ids(&seed, w.ids, MOST_PROMPT + N_ROWS, (int32_t)engine_vocab(w.model));
    counted[0] = w.model->core;
    counted[1] = w.assistant->core;
    return w;
}

static void close_fixture(fixture *w) {
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    assert_int_equal(kv_pool_used(w->assistant->core->pool), 0);
    mn_model_close(&w->model);
    mn_model_close(&w->assistant);
    assert_int_equal(mem_count().live, w->live);
}

/* One request. */
typedef struct wanted_row {
    bool is_assisted;
    const int32_t *prompt;
    size_t n_prompt;
    const char *settings[8]; /* NAME VALUE by NAME VALUE */
    size_t n_tokens;         /* events so far */
    bool wants_cancel;       /* by its callback, at the third token */
} wanted_row;

static bool count_token(void *user, const mn_token_event *event) {
    wanted_row *row = user;
    row->n_tokens += event->id >= 0;
    return !row->wants_cancel || row->n_tokens < 3;
}

static mn_generation_config *config_of(const fixture *w, const wanted_row *row) {
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "30"));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    assert_ok(mn_generation_config_set(config, "num_assistant_tokens", "4"));
    assert_ok(mn_generation_config_set(config, "num_assistant_tokens_schedule", "\"constant\""));
    assert_ok(mn_generation_config_set(config, "assistant_confidence_threshold", "0"));
    for (int k = 0; row->settings[k]; k += 2)
        assert_ok(mn_generation_config_set(config, row->settings[k], row->settings[k + 1]));
    return config;
}

static mn_generate_options options_of(const fixture *w, wanted_row *row) {
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    options.keep_logits = true;
    options.assistant = row->is_assisted ? w->assistant : NULL;
    options.on_token = count_token;
    options.user = row;
    return options;
}

static mn_cache_options cache_of(void) {
    return engine_cache_options((engine_cache){.page_tokens = 128, .prefill_chunk = CHUNK});
}

static mn_generation *alone(const fixture *w, wanted_row *row) {
    mn_generation_config *config = config_of(w, row);
    mn_generate_options options = options_of(w, row);
    mn_cache_options cache = cache_of();
    mn_session *session = NULL;
    mn_generation *generation = NULL;
    row->n_tokens = 0;
    assert_ok(mn_session_open(&session, w->model, &cache));
    assert_ok(mn_generate(session, row->prompt, row->n_prompt, config, &options, &generation));
    mn_session_close(&session);
    mn_generation_config_close(&config);
    row->n_tokens = 0;
    return generation;
}

static mn_engine *open_engine(const fixture *w, wanted_row *rows, int n) {
    mn_engine *engine = NULL;
    mn_engine_options engine_options;
    mn_cache_options cache = cache_of();
    mn_engine_options_init(&engine_options, sizeof engine_options);
    engine_options.cache = &cache;
    assert_ok(mn_engine_open(&engine, w->model, &engine_options));
    for (int i = 0; i < n; i++) {
        mn_generation_config *config = config_of(w, &rows[i]);
        mn_generate_options options = options_of(w, &rows[i]);
        mn_request request;
        int id = -1;
        mn_request_init(&request, sizeof request);
        request.prompt = rows[i].prompt;
        request.n_prompt = rows[i].n_prompt;
        request.config = config;
        request.options = &options;
        assert_ok(mn_engine_add(engine, &request, &id));
        assert_int_equal(id, i);
        mn_generation_config_close(&config);
    }
    return engine;
}

static void step_to_the_end(mn_engine *engine) {
    size_t n_running = 1;
    for (int step = 0; n_running > 0; step++) {
        assert_true(step < 1000);
        assert_ok(mn_engine_step(engine, &n_running));
    }
}

/* Takes one finished request of this `status`; successful ones are compared with a single run. */
static int take(const fixture *w, mn_engine *engine, wanted_row *rows, mn_status status) {
    mn_generation *got = NULL;
    int id = -1;
    assert_int_equal(mn_engine_take(engine, &id, &got), status);
    if (id < 0 || status != MN_OK) return id;
    mn_generation *wanted = alone(w, &rows[id]);
    assert_int_equal(got->n_sequences, wanted->n_sequences);
    for (size_t k = 0; k < got->n_sequences; k++) {
        const mn_sequence *a = wanted->sequences[k], *s = got->sequences[k];
        assert_int_equal(s->n_ids, a->n_ids);
        assert_memory_equal(s->ids, a->ids, a->n_ids * sizeof *a->ids);
        assert_string_equal(s->finish_reason, a->finish_reason);
        assert_int_equal(s->draft_tokens, a->draft_tokens);
        assert_int_equal(s->draft_accepted, a->draft_accepted);
        engine_same_bits(s->logits, a->logits, a->n_ids, (size_t)engine_vocab(w->model), "row %d", id);
    }
    mn_generation_close(&wanted);
    mn_generation_close(&got);
    return id;
}

static void take_all(const fixture *w, mn_engine *engine, wanted_row *rows, int n) {
    int n_taken = 0;
    while (take(w, engine, rows, MN_OK) >= 0) n_taken++;
    assert_int_equal(n_taken, n);
    mn_engine_close(&engine);
}

/* ---- passes ---- */

/* As many passes as the row that needs most of them alone, whatever the number of rows. */
static void drafts_of_all_rows_share_a_pass(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama", "golden/decoding/draft");
    wanted_row rows[N_ROWS] = {{0}};
    int most[2] = {0};
    for (int i = 0; i < N_ROWS; i++) {
        rows[i] = (wanted_row){.is_assisted = true, .prompt = w.ids + i, .n_prompt = 20};
        count_anew();
        mn_generation *generation = alone(&w, &rows[i]);
        mn_generation_close(&generation);
        for (int k = 0; k < 2; k++) most[k] = n_passes[k] > most[k] ? n_passes[k] : most[k];
    }
    count_anew();
    mn_engine *engine = open_engine(&w, rows, N_ROWS);
    step_to_the_end(engine);
    assert_int_equal(n_together[1], N_ROWS);
    assert_int_equal(n_passes[0], most[0]);
    assert_int_equal(n_passes[1], most[1]);
    take_all(&w, engine, rows, N_ROWS);
    close_fixture(&w);
}

/* Prompts of different lengths, drafts that end early: verification waits for the drafts of other rows, so few passes
 * are added. */
static void rounds_of_different_rows_synchronize(void **state) {
    (void)state;
    static const size_t lengths[N_ROWS] = {150, 20, 290, 33, 64, 200};
    fixture w = open_fixture("golden/llama", "golden/decoding/draft");
    wanted_row rows[N_ROWS] = {{0}};
    int most[2] = {0}, sum[2] = {0};
    for (int i = 0; i < N_ROWS; i++) {
        rows[i] = (wanted_row){.is_assisted = true, .prompt = w.ids + i, .n_prompt = lengths[i]};
        if (i % 2) rows[i].settings[0] = "assistant_confidence_threshold", rows[i].settings[1] = "0.02";
        count_anew();
        mn_generation *generation = alone(&w, &rows[i]);
        mn_generation_close(&generation);
        for (int k = 0; k < 2; k++) {
            most[k] = n_passes[k] > most[k] ? n_passes[k] : most[k];
            sum[k] += n_passes[k];
        }
    }
    count_anew();
    mn_engine *engine = open_engine(&w, rows, N_ROWS);
    step_to_the_end(engine);
    print_message("passes of the model: %d, at most %d alone, %d one after the other; of the draft model: %d, %d, %d\n",
                  n_passes[0], most[0], sum[0], n_passes[1], most[1], sum[1]);
    assert_true(2 * n_passes[0] <= 3 * most[0] && 2 * n_passes[1] <= 3 * most[1]);
    take_all(&w, engine, rows, N_ROWS);
    close_fixture(&w);
}

/* ---- rows without drafts ---- */

static void rows_without_drafts_get_a_token_a_step(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama", "golden/decoding/draft");
    wanted_row rows[N_ROWS] = {{0}};
    for (int i = 0; i < N_ROWS; i++) rows[i] = (wanted_row){.is_assisted = true, .prompt = w.ids + i, .n_prompt = 290};
    rows[2] = (wanted_row){.prompt = w.ids, .n_prompt = 5};
    rows[4] = (wanted_row){.prompt = w.ids, .n_prompt = 9, .settings = {"prompt_lookup_num_tokens", "3"}};
    mn_engine *engine = open_engine(&w, rows, N_ROWS);
    size_t n_running = 1;
    for (size_t step = 0; step <= N_NEW; step++) {
        assert_ok(mn_engine_step(engine, &n_running));
        assert_int_equal(rows[2].n_tokens, step);
        assert_true(rows[4].n_tokens >= step || rows[4].n_tokens == N_NEW);
    }
    step_to_the_end(engine);
    take_all(&w, engine, rows, N_ROWS);
    close_fixture(&w);
}

/* ---- every kind of draft together ---- */

static void all_kinds_of_drafts_run_together(void **state) {
    (void)state;
    for (int self = 0; self < 2; self++) {
        fixture w = open_fixture("golden/llama", self ? "golden/llama" : "golden/decoding/draft");
        wanted_row rows[N_ROWS] = {
            {true, w.ids, 30, {"do_sample", "true", "seed", "3", "num_return_sequences", "3"}, 0, false},
            {true, w.ids, 200, {"num_assistant_tokens_schedule", "\"heuristic\""}, 0, false},
            {true, w.ids + 1, 9, {"assistant_confidence_threshold", "0.05"}, 0, false},
            {false, w.ids + 2, 70, {"num_beams", "3"}, 0, false},
            {true, w.ids + 3, 290, {"max_new_tokens", "7"}, 0, true},
            {false, w.ids, 12, {"prompt_lookup_num_tokens", "3"}, 0, false},
        };
        mn_engine *engine = open_engine(&w, rows, N_ROWS);
        step_to_the_end(engine);
        take_all(&w, engine, rows, N_ROWS);
        close_fixture(&w);
    }
}

/* ---- errors ---- */

/* At every step of a round. */
static void requests_can_be_cancelled_while_drafting(void **state) {
    (void)state;
    for (int n_steps = 1; n_steps < 14; n_steps += test_stride(2)) {
        fixture w = open_fixture("golden/llama", "golden/decoding/draft");
        wanted_row rows[3] = {{.is_assisted = true, .prompt = w.ids, .n_prompt = 20},
                              {.is_assisted = true, .prompt = w.ids + 1, .n_prompt = 20},
                              {.prompt = w.ids + 2, .n_prompt = 20}};
        mn_engine *engine = open_engine(&w, rows, 3);
        mn_generation *got = NULL;
        int id = -1;
        for (int step = 0; step < n_steps; step++) assert_ok(mn_engine_step(engine, NULL));
        assert_ok(mn_engine_cancel(engine, 1));
        assert_ok(mn_engine_step(engine, NULL));
        assert_ok(mn_engine_take(engine, &id, &got));
        assert_int_equal(id, 1);
        assert_string_equal(got->sequences[0]->finish_reason, "cancelled");
        assert_int_equal(got->sequences[0]->n_ids, rows[1].n_tokens);
        mn_generation_close(&got);
        step_to_the_end(engine);
        take_all(&w, engine, rows, 2);
        close_fixture(&w);
    }
}

/* No preemption would free enough memory: assisted requests fail, the others continue. */
static void a_memory_limit_of_the_draft_model_fails_assisted_rows_only(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama", "golden/decoding/draft");
    wanted_row rows[4] = {{.is_assisted = true, .prompt = w.ids, .n_prompt = 20},
                          {.prompt = w.ids, .n_prompt = 150},
                          {.is_assisted = true, .prompt = w.ids + 1, .n_prompt = 90},
                          {.prompt = w.ids + 2, .n_prompt = 20}};
    kv_pool_set_budget(w.assistant->core->pool, 1);
    mn_engine *engine = open_engine(&w, rows, 4);
    step_to_the_end(engine);
    int n_failed = 0;
    for (int i = 0; i < 2; i++) n_failed += take(&w, engine, rows, MN_E_NOMEM) % 2 == 0;
    assert_int_equal(n_failed, 2);
    take_all(&w, engine, rows, 2);
    kv_pool_set_budget(w.assistant->core->pool, 0);
    close_fixture(&w);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama", "golden/decoding/draft");
    wanted_row row = {true, w.ids, 20, {"do_sample", "true", "seed", "3", "num_return_sequences", "2"}, 0, false};
    mn_generation_config *config = config_of(&w, &row);
    mn_generate_options options = options_of(&w, &row);
    mn_cache_options cache = cache_of();
    mn_status status = MN_E_NOMEM;
    mn_generation *generation = alone(&w, &row); /* workspaces are allocated by now */
    mn_generation_close(&generation);
    for (int64_t k = 1; status != MN_OK; k++) {
        mn_session *session = NULL;
        assert_ok(mn_session_open(&session, w.model, &cache));
        mem_fail_after(k);
        status = mn_generate(session, row.prompt, row.n_prompt, config, &options, &generation);
        mem_fail_after(0);
        if (status != MN_OK) assert_int_equal(status, MN_E_NOMEM);
        mn_generation_close(&generation);
        mn_session_close(&session);
        assert_true(k < 2000);
    }
    mn_generation_config_close(&config);
    close_fixture(&w);
}

/* After the first rounds, and while no new page is needed. */
static void steps_do_not_allocate(void **state) {
    (void)state;
    enum { FIRST = 12, LAST = 40 };
    fixture w = open_fixture("golden/llama", "golden/decoding/draft");
    wanted_row rows[3] = {{.is_assisted = true, .prompt = w.ids, .n_prompt = 64},
                          {.is_assisted = true, .prompt = w.ids + 1, .n_prompt = 64},
                          {.prompt = w.ids + 2, .n_prompt = 64}};
    for (int again = 0; again < 2; again++) { /* the second run reuses the pages of the first */
        mn_engine *engine = open_engine(&w, rows, 3);
        for (int step = 0; step < LAST; step++) {
            int64_t before = mem_count().allocations;
            assert_ok(mn_engine_step(engine, NULL));
            if (again && step >= FIRST && rows[0].n_tokens < N_NEW) assert_int_equal(mem_count().allocations, before);
        }
        step_to_the_end(engine);
        take_all(&w, engine, rows, 3);
    }
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_of_all_rows_share_a_pass),
        cmocka_unit_test(rounds_of_different_rows_synchronize),
        cmocka_unit_test(rows_without_drafts_get_a_token_a_step),
        cmocka_unit_test(all_kinds_of_drafts_run_together),
        cmocka_unit_test(requests_can_be_cancelled_while_drafting),
        cmocka_unit_test(a_memory_limit_of_the_draft_model_fails_assisted_rows_only),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(steps_do_not_allocate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
