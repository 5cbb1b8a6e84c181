/* What an engine reports: requests in each state, bytes of what is kept; a thread that waits is woken, and returns idle
 * memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "base/mem.h"
#include "kv/page_memory.h"
#include "session/session.h"
#include "support/engine.h"
#include "support/hostile/moved_clock.h"
#include "support/patience.h"

enum { PAGE = 16, N_PROMPT = 100 };

typedef struct fixture {
    mn_model *model;
    mn_generation_config *config;
    mn_engine *engine;
    int32_t ids[N_PROMPT];
} fixture;

static fixture open_fixture(size_t max_num_seqs) {
    fixture w = {.model = engine_model("embedded", "f32", "auto", engine_threads())};
    uint64_t seed = 7;
    engine_ids(&seed, w.ids, N_PROMPT, engine_vocab(w.model));
    assert_ok(mn_generation_config_open(&w.config, w.model));
    assert_ok(mn_generation_config_set(w.config, "ignore_eos", "true"));
    assert_ok(mn_generation_config_set(w.config, "max_new_tokens", "4"));
    mn_cache_options cache = engine_cache_options((engine_cache){.page_tokens = PAGE, .prefill_chunk = PAGE});
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    options.cache = &cache;
    options.max_num_seqs = max_num_seqs;
    options.enable_prefix_caching = true;
    assert_ok(mn_engine_open(&w.engine, w.model, &options));
    return w;
}

static void close_fixture(fixture *w) {
    mn_engine_close(&w->engine);
    mn_generation_config_close(&w->config);
    mn_model_close(&w->model);
}

static int add(const fixture *w, size_t n) {
    mn_request request;
    int id = -1;
    mn_request_init(&request, sizeof request);
    request.prompt = w->ids;
    request.n_prompt = n;
    request.config = w->config;
    assert_ok(mn_engine_add(w->engine, &request, &id));
    return id;
}

static mn_engine_info info_of(const fixture *w) {
    mn_engine_info info = {.size = sizeof info};
    assert_ok(mn_engine_get_info(w->engine, &info));
    return info;
}

static mn_request_info request_of(const fixture *w, int id) {
    mn_request_info info = {.size = sizeof info};
    assert_ok(mn_engine_request(w->engine, id, &info));
    return info;
}

static void requests_go_through_their_states(void **state) {
    (void)state;
    fixture w = open_fixture(1);
    int first = add(&w, N_PROMPT), second = add(&w, N_PROMPT);
    mn_request_info r = request_of(&w, first);
    assert_string_equal(r.state, "queued");
    assert_string_equal(r.implementation, "dynamic");
    assert_int_equal(r.prompt_tokens, N_PROMPT);
    assert_int_equal(info_of(&w).num_requests_waiting, 2);
    size_t running = 2;
    for (size_t done = PAGE; done < N_PROMPT; done += PAGE) {
        assert_ok(mn_engine_step(w.engine, &running));
        r = request_of(&w, first);
        assert_string_equal(r.state, "prompt");
        assert_int_equal(r.prompt_done, done);
        assert_string_equal(request_of(&w, second).state, "queued");
    }
    assert_ok(mn_engine_step(w.engine, &running)); /* the last tokens of the prompt */
    assert_int_equal(request_of(&w, first).prompt_done, N_PROMPT);
    for (size_t n = 1; n < 4; n++) {
        assert_ok(mn_engine_step(w.engine, &running));
        r = request_of(&w, first);
        assert_string_equal(r.state, "decode");
        assert_int_equal(r.generated_tokens, n);
    }
    mn_engine_info e = info_of(&w);
    assert_int_equal(e.num_requests_running, 1);
    assert_int_equal(e.num_requests_waiting, 1);
    assert_ok(mn_engine_step(w.engine, &running)); /* ends the first */
    mn_request_info none = {.size = sizeof none};
    assert_fails(MN_E_ARG, "no request 0", mn_engine_request(w.engine, first, &none));
    assert_ok(mn_engine_step(w.engine, &running));
    r = request_of(&w, second);
    assert_int_equal(r.cached_tokens, N_PROMPT - 1);
    assert_int_equal(r.prompt_done, N_PROMPT);
    close_fixture(&w);
}

static void waiting_counts_as_queued(void **state) {
    (void)state;
    fixture w = open_fixture(1);
    clock_hold();
    add(&w, N_PROMPT);
    add(&w, N_PROMPT);
    size_t n_steps = 0;
    for (size_t running = 1; running > 0; n_steps++) {
        clock_move(1000); /* before each step */
        assert_ok(mn_engine_step(w.engine, &running));
    }
    double queued[2], all[2];
    for (int i = 0; i < 2; i++) {
        mn_generation *g = NULL;
        int id;
        assert_ok(mn_engine_take(w.engine, &id, &g));
        assert_int_equal(id, i);
        queued[i] = g->queue_ms;
        all[i] = g->prompt_ms + g->predicted_ms;
        assert_true(g->queue_ms <= g->prompt_ms);
        mn_generation_close(&g);
    }
    /* The second began in the step after the one that ended the first. */
    assert_true(queued[0] == 1000 && queued[1] == all[0] + 1000);
    assert_true(all[1] == 1000 * (double)n_steps);
    clock_run();
    close_fixture(&w);
}

/* Nothing runs, so what caches hold is what is kept: pages that texts share count once. */
static void kept_bytes_are_what_is_held(void **state) {
    (void)state;
    fixture w = open_fixture(0);
    assert_int_equal(info_of(&w).kept_bytes, 0);
    for (int i = 0; i < 3; i++) {
        w.ids[60 + i] ^= 1; /* parts from those before it, behind whole pages */
        add(&w, N_PROMPT);
        for (size_t running = 1; running > 0;) assert_ok(mn_engine_step(w.engine, &running));
        mn_engine_info e = info_of(&w);
        assert_int_equal(e.n_kept, i + 1);
        assert_int_equal(e.kept_bytes, kv_pool_used(w.model->core->pool));
        assert_int_equal(e.cache_bytes, e.kept_bytes);
        mn_generation *g = NULL;
        int id;
        assert_ok(mn_engine_take(w.engine, &id, &g));
        mn_generation_close(&g);
    }
    close_fixture(&w);
}

static void *wake_later(void *arg) {
    mn_engine_wake(arg);
    return NULL;
}

static void waiting_ends_when_it_is_woken(void **state) {
    (void)state;
    fixture w = open_fixture(0);
    pthread_t thread;
    bool has_work = true;
    const int n_before = clock_timed_out();
    mn_engine_wake(w.engine); /* counts for the next wait, and for one only */
    assert_ok(mn_engine_wait(w.engine, PATIENCE_MS, &has_work));
    assert_false(has_work);
    assert_int_equal(pthread_create(&thread, NULL, wake_later, w.engine), 0);
    assert_ok(mn_engine_wait(w.engine, PATIENCE_MS, &has_work));
    assert_false(has_work);
    pthread_join(thread, NULL);
    assert_int_equal(clock_timed_out(), n_before);
    assert_ok(mn_engine_wait(w.engine, 20, &has_work));
    assert_int_equal(clock_timed_out(), n_before + 1);
    close_fixture(&w);
}

/* ---- idle memory ---- */

static void wait_once(const fixture *w) {
    bool has_work = true;
    mn_engine_wake(w->engine); /* the wait returns at once */
    assert_ok(mn_engine_wait(w->engine, 1000, &has_work));
    assert_false(has_work);
}

/* Pages that a session returned stay for the next one, until an engine has waited long enough without using them. */
static void waiting_returns_idle_memory(void **state) {
    (void)state;
    fixture w = open_fixture(0);
    mn_session *session = engine_session(w.model, (engine_cache){.implementation = "dynamic", .page_tokens = PAGE});
    assert_ok(mn_session_step(session, w.ids, N_PROMPT, NULL));
    mn_session_close(&session);
    const int64_t idle = mem_count().live;
    wait_once(&w);
    assert_int_equal(mem_count().live, idle);
    for (int i = 0; i < 2; i++) { /* the first search finds what was used since the one before */
        clock_move(PAGE_IDLE_MS + 1000);
        wait_once(&w);
    }
    assert_true(mem_count().live <= idle - N_PROMPT / PAGE); /* headers of pages stay */
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_go_through_their_states), cmocka_unit_test(waiting_counts_as_queued),
        cmocka_unit_test(kept_bytes_are_what_is_held),      cmocka_unit_test(waiting_ends_when_it_is_woken),
        cmocka_unit_test(waiting_returns_idle_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
