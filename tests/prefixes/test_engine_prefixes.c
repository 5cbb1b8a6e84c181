/* Requests that begin like others: what they share is not computed again, and their logits are those of requests that
 * share nothing, bit for bit. Nothing is shared between salts, and what is kept makes room for what runs.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine_texts.h"

static mn_engine *open_engine(const fixture *w, engine_cache cache, size_t memory_limit, size_t max_num_seqs) {
    return open_keeping(w, cache, (mn_engine_options){.memory_limit = memory_limit, .max_num_seqs = max_num_seqs});
}

static size_t common(const text *a, const text *b) {
    size_t n = 0;
    while (n < a->n && n < b->n && a->ids[n] == b->ids[n]) n++;
    return n;
}

/* The most tokens of a text that those before it began with, or what they were answered with. */
static size_t known(const fixture *w, int i, const mn_generation *const *answers) {
    const text *t = &w->texts[i];
    size_t most = 0;
    for (int k = 0; k < i; k++) {
        size_t n = common(t, &w->texts[k]);
        const mn_sequence *answer = answers[k]->sequences[0];
        /* The last token of an answer is not computed. */
        for (size_t a = 0; n == w->texts[k].n + a && n < t->n && a + 1 < answer->n_ids && t->ids[n] == answer->ids[a];
             a++)
            n++;
        if (n > most) most = n;
    }
    return most < t->n ? most : t->n - 1;
}

/* ---- strategies ---- */

static void one_after_the_other(const fixture *w, const engine_strategy *strategy, engine_cache cache, bool is_exact,
                                mn_generation *const *wanted) {
    mn_engine *engine = open_engine(w, cache, 0, 0);
    mn_generation *got[N_TEXTS];
    size_t n_cached = 0;
    for (int i = 0; i < N_TEXTS; i++) {
        got[i] = run(w, engine, &w->texts[i], NULL);
        same(w, got[i], wanted[i], cache.implementation);
        size_t cached = got[i]->sequences[0]->cached_tokens;
        n_cached += cached;
        if (is_exact) assert_int_equal(cached, known(w, i, (const mn_generation *const *)got));
        if (!engine_shares(strategy)) assert_int_equal(cached, 0);
    }
    if (is_exact) assert_true(n_cached > 0);
    for (int i = 0; i < N_TEXTS; i++) mn_generation_close(&got[i]);
    mn_engine_close(&engine);
}

static void together(const fixture *w, engine_cache cache, mn_generation *const *wanted) {
    mn_engine *engine = open_engine(w, cache, 0, 0);
    mn_generation *generation = NULL;
    size_t running = 1;
    int id, n_taken = 0;
    for (int i = 0; i < N_TEXTS; i++) assert_int_equal(add(w, engine, &w->texts[i], NULL), i);
    while (running > 0) assert_ok(mn_engine_step(engine, &running));
    for (; n_taken < N_TEXTS; n_taken++) {
        assert_ok(mn_engine_take(engine, &id, &generation));
        same(w, generation, wanted[id], cache.implementation);
        mn_generation_close(&generation);
    }
    mn_engine_close(&engine);
}

static void hits_are_as_misses(void **state) {
    (void)state;
    for (int m = 0; m < N_STRATEGY_MODELS; m++) {
        fixture w = open_fixture(strategy_models[m]);
        /* Rotary angles of the last model depend on the length; the windows of one drop tokens. */
        bool has_own_exact = m == 0;
        for (int i = 0; i < N_ENGINE_STRATEGIES; i++) {
            if (!strategy_tries(i, m % 2, m)) continue;
            const engine_strategy *strategy = &engine_strategies[i];
            engine_cache cache = strategy_cache(i, strategy_dtypes[m % 2]);
            make_texts(&w, (uint64_t)(100 * m + i));
            bool is_exact = has_own_exact && engine_shares(strategy) && !strategy->is_lossy && !strategy->forgets;
            mn_generation *wanted[N_TEXTS];
            for (int t = 0; t < N_TEXTS; t++) wanted[t] = alone(&w, cache, &w.texts[t]);
            one_after_the_other(&w, strategy, cache, is_exact, wanted);
            together(&w, cache, wanted);
            for (int t = 0; t < N_TEXTS; t++) mn_generation_close(&wanted[t]);
        }
        close_fixture(&w);
    }
}

/* ---- at the same time ---- */

/* The second waits until the first has computed what both begin with. */
static void a_prompt_in_work_is_shared(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    engine_cache cache = {.implementation = "dynamic", .page_tokens = PAGE, .prefill_chunk = 32};
    make_texts(&w, 5);
    w.texts[0].n = w.texts[1].n = MOST_TEXT;
    uint64_t seed = 9;
    engine_ids(&seed, w.texts[0].ids, MOST_TEXT, (int32_t)w.vocab);
    w.texts[1] = w.texts[0];
    w.texts[1].ids[100] = (w.texts[1].ids[100] + 1) % (int32_t)w.vocab;
    mn_engine *engine = open_engine(&w, cache, 0, 0);
    for (int i = 0; i < 2; i++) add(&w, engine, &w.texts[i], NULL);
    size_t running = 1;
    while (running > 0) assert_ok(mn_engine_step(engine, &running));
    for (int i = 0; i < 2; i++) {
        mn_generation *got = NULL, *wanted = alone(&w, cache, &w.texts[i]);
        int id;
        assert_ok(mn_engine_take(engine, &id, &got));
        assert_int_equal(id, i);
        assert_int_equal(got->sequences[0]->cached_tokens, i == 0 ? 0 : 100);
        same(&w, got, wanted, "in work");
        mn_generation_close(&got);
        mn_generation_close(&wanted);
    }
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* What is computed once at a place where texts part is kept there, though states cannot go back. */
static void states_are_kept_where_texts_part(void **state) {
    (void)state;
    static const struct {
        const char *model;
        engine_cache cache;
    } of[] = {
        {"golden/mamba", {.implementation = "mamba"}},
        {"golden/jamba", {.implementation = "dynamic"}},
        {"golden/llama", {.implementation = "quantized"}},
        {"golden/llama", {.implementation = "sliding_window", .config = "sliding_window=20"}},
    };
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        fixture w = open_fixture(of[k].model);
        engine_cache cache = of[k].cache;
        cache.page_tokens = PAGE;
        cache.prefill_chunk = 32;
        text begin = {.n = 90};
        uint64_t seed = 3;
        engine_ids(&seed, begin.ids, MOST_TEXT, (int32_t)w.vocab);
        mn_engine *engine = open_engine(&w, cache, 0, 0);
        size_t cached[4];
        for (int i = 0; i < 4; i++) {
            text t = begin;
            t.n = MOST_TEXT - (size_t)i;
            for (size_t at = begin.n; at < t.n; at++) t.ids[at] = (int32_t)((at + (size_t)i) % w.vocab);
            mn_generation *wanted = alone(&w, cache, &t), *got = run(&w, engine, &t, NULL);
            same(&w, got, wanted, of[k].model);
            cached[i] = got->sequences[0]->cached_tokens;
            mn_generation_close(&got);
            mn_generation_close(&wanted);
        }
        assert_int_equal(cached[0], 0);
        assert_int_equal(cached[2], begin.n); /* the second request saw where they part */
        assert_int_equal(cached[3], begin.n);
        mn_engine_close(&engine);
        close_fixture(&w);
    }
}

/* ---- apart ---- */

static void salts_share_nothing(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    engine_cache cache = {.implementation = "dynamic", .page_tokens = PAGE};
    make_texts(&w, 1);
    w.texts[0].n = 60;
    mn_engine *engine = open_engine(&w, cache, 0, 0);
    static const struct {
        const char *salt;
        bool hits;
    } of[] = {{NULL, false}, {"a", false}, {"b", false}, {"a", true}, {"", true}, {"ab", false}, {"b", true}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        mn_generation *got = run(&w, engine, &w.texts[0], of[i].salt);
        assert_int_equal(got->sequences[0]->cached_tokens, of[i].hits ? 59 : 0);
        mn_generation_close(&got);
    }
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* ---- memory ---- */

/* A limit that two texts fill: what was used last stays, everything is right, the limit is kept. */
static void kept_pages_make_room(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    engine_cache cache = {.implementation = "dynamic", .page_tokens = PAGE};
    text texts[6];
    uint64_t seed = 8;
    for (int i = 0; i < 6; i++) {
        texts[i].n = 90;
        engine_ids(&seed, texts[i].ids, texts[i].n, (int32_t)w.vocab);
    }
    mn_generation *wanted[6];
    for (int i = 0; i < 6; i++) wanted[i] = alone(&w, cache, &texts[i]);
    size_t one = wanted[0]->cache->peak_bytes, limit = 5 * one / 2;
    mn_engine *engine = open_engine(&w, cache, limit, 0);
    static const int order[] = {0, 1, 0, 2, 0, 3, 1, 4, 5, 0};
    /* All of a text was kept; else the older half of it, or nothing. */
    static const bool hits[] = {false, false, true, false, true, false, false, false, false, false};
    size_t n_halves = 0;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        kv_watch watch = {0};
        const text *t = &texts[order[i]];
        kv_pool_watch(w.model->core->pool, &watch);
        mn_generation *got = run(&w, engine, t, NULL);
        kv_pool_unwatch(w.model->core->pool, &watch);
        size_t cached = got->sequences[0]->cached_tokens;
        if (hits[i])
            assert_int_equal(cached, t->n - 1);
        else
            assert_true(cached <= t->n / 2 && cached % PAGE == 0);
        n_halves += !hits[i] && cached > 0;
        same(&w, got, wanted[order[i]], "with a limit");
        assert_true(watch.most <= limit);
        mn_generation_close(&got);
    }
    assert_true(n_halves > 0);
    for (int i = 0; i < 6; i++) mn_generation_close(&wanted[i]);
    mn_engine_close(&engine);
    close_fixture(&w);
}

static size_t steps_to_end(mn_engine *engine) {
    size_t running = 1, n = 0;
    for (; running > 0; n++) {
        assert_true(n < 1000);
        assert_ok(mn_engine_step(engine, &running));
    }
    return n;
}

/* Eight requests with a common text of 90 tokens: a limit that two of them alone would fill has room for all. */
static void shared_pages_count_once(void **state) {
    (void)state;
    enum { N = 8, N_MORE = 20 };
    fixture w = open_fixture("golden/llama");
    engine_cache cache = {.implementation = "dynamic", .page_tokens = PAGE};
    text t = {.n = 97};
    uint64_t seed = 5;
    engine_ids(&seed, t.ids, t.n, (int32_t)w.vocab);
    assert_ok(mn_generation_config_set(w.config, "max_new_tokens", "20"));
    mn_generation *wanted[N];
    for (int i = 0; i < N; i++) {
        t.ids[t.n - 1] = 10 + i;
        wanted[i] = alone(&w, cache, &t);
    }
    mn_engine *engine = open_engine(&w, cache, 5 * wanted[0]->cache->peak_bytes / 2, 0);
    t.n--;
    mn_generation *first = run(&w, engine, &t, NULL);
    mn_generation_close(&first);
    t.n++;
    for (int i = 0; i < N; i++) {
        t.ids[t.n - 1] = 10 + i;
        add(&w, engine, &t, NULL);
    }
    size_t n_steps = steps_to_end(engine);
    if (n_steps > 3 * N_MORE) fail_msg("%zu steps", n_steps); /* two at a time: four times as many as one alone */
    for (int i = 0; i < N; i++) {
        mn_generation *got = NULL;
        int id = -1;
        assert_ok(mn_engine_take(engine, &id, &got));
        assert_int_equal(got->n_preemptions, 0);
        same(&w, got, wanted[id - 1], "together");
        mn_generation_close(&got);
        mn_generation_close(&wanted[id - 1]);
    }
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* A request with a text is preempted after its prompt and two tokens, by another of higher priority, and ends as it
 * does alone. The steps until both have ended. */
static size_t preempt(const fixture *w, mn_engine *engine, const text *t, const text *other,
                      const mn_generation *wanted) {
    size_t running;
    add(w, engine, t, NULL);
    for (int i = 0; i < 8; i++) assert_ok(mn_engine_step(engine, &running));
    add_with(w, engine, other, (mn_request){.priority = 1});
    const size_t n_steps = steps_to_end(engine);
    for (int i = 0; i < 2; i++) {
        mn_generation *got = NULL;
        int id = -1;
        assert_ok(mn_engine_take(engine, &id, &got));
        if (id == 0) {
            assert_int_equal(got->n_preemptions, 1);
            same(w, got, wanted, "preempted");
        }
        mn_generation_close(&got);
    }
    return n_steps;
}

/* A request that is preempted goes on with its pages when nobody needed them. */
static void preempted_requests_keep_their_pages(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    engine_cache cache = {.implementation = "dynamic", .page_tokens = PAGE, .prefill_chunk = PAGE};
    text t = {.n = 90}, other = {.n = 2};
    uint64_t seed = 6;
    engine_ids(&seed, t.ids, t.n, (int32_t)w.vocab);
    engine_ids(&seed, other.ids, other.n, (int32_t)w.vocab);
    mn_generation *wanted = alone(&w, cache, &t);
    mn_engine *engine = open_engine(&w, cache, 0, 1);
    const size_t after = preempt(&w, engine, &t, &other, wanted);
    if (after > 2 * N_NEW + 2) fail_msg("%zu steps", after); /* computed again, the prompt takes six */
    mn_generation_close(&wanted);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* A request that was given a prefix is preempted in the same step, before it has computed anything, and starts anew:
 * one of higher priority waited for a prompt in work, whose request had to make room for it. */
static void a_request_is_preempted_before_it_begins(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    engine_cache cache = {.implementation = "dynamic", .page_tokens = PAGE, .prefill_chunk = PAGE};
    text texts[2] = {{.n = 90}, {.n = 90}}, beginning = {.n = 40};
    uint64_t seed = 8;
    for (int i = 0; i < 2; i++) engine_ids(&seed, texts[i].ids, texts[i].n, (int32_t)w.vocab);
    memcpy(beginning.ids, texts[1].ids, beginning.n * sizeof *beginning.ids);
    mn_generation *wanted[] = {alone(&w, cache, &texts[0]), alone(&w, cache, &texts[1])};
    mn_engine *engine = open_engine(&w, cache, 0, 1);
    mn_generation *got = run(&w, engine, &beginning, NULL);
    mn_generation_close(&got);
    static const struct { int text, priority, n_preemptions; } requests[] = {{0, 0, 1}, {1, 1, 1}, {0, 2, 0}};
    size_t running;
    for (int i = 0; i < 3; i++) {
        add_with(&w, engine, &texts[requests[i].text], (mn_request){.priority = requests[i].priority});
        if (i == 0) assert_ok(mn_engine_step(engine, &running));
    }
    steps_to_end(engine);
    for (int i = 2; i >= 0; i--) {
        int id = -1;
        assert_ok(mn_engine_take(engine, &id, &got));
        assert_int_equal(id, 1 + i);
        assert_int_equal(got->n_preemptions, requests[i].n_preemptions);
        same(&w, got, wanted[requests[i].text], "preempted before it began");
        mn_generation_close(&got);
    }
    for (int i = 0; i < 2; i++) mn_generation_close(&wanted[i]);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* Rows that are computed again after their pages were needed by another share what they have in common, as before: they
 * fit where they fitted. */
static void rows_share_again_after_preemption(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    engine_cache cache = {.implementation = "dynamic", .page_tokens = PAGE, .prefill_chunk = PAGE};
    text t = {.n = 90}, other = {.n = 90};
    uint64_t seed = 7;
    engine_ids(&seed, t.ids, t.n, (int32_t)w.vocab);
    engine_ids(&seed, other.ids, other.n, (int32_t)w.vocab);
    assert_ok(mn_generation_config_set(w.config, "num_beams", "4"));
    mn_generation *wanted = alone(&w, cache, &t);
    mn_engine *engine = open_engine(&w, cache, wanted->cache->peak_bytes * 9 / 8, 0);
    preempt(&w, engine, &t, &other, wanted);
    mn_generation_close(&wanted);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* The k-th allocation fails from a request on: it ends without memory or is right, and nothing is lost. `beside`: so
 * does one that runs already, and what cannot be started beside it waits for its end. Returns the number of
 * allocations. */
static int64_t run_with_failure(const fixture *w, engine_cache cache, int64_t k, bool beside,
                                mn_generation *const *wanted) {
    mn_engine *engine = open_engine(w, cache, 0, 0);
    size_t running = 1;
    for (int i = 0; i < 3; i++) {
        mn_generation *got = run(w, engine, &w->texts[i], NULL);
        mn_generation_close(&got);
    }
    if (beside) {
        add(w, engine, &w->texts[2], NULL);
        assert_ok(mn_engine_step(engine, &running));
    }
    const int last = add(w, engine, &w->texts[3], NULL);
    const int64_t before = mem_count().allocations;
    mem_fail_after(k);
    while (running > 0) assert_ok(mn_engine_step(engine, &running));
    mem_fail_after(0);
    const int64_t n = mem_count().allocations - before;
    for (int i = 0; i <= beside; i++) {
        mn_generation *got = NULL;
        int id = -1;
        const mn_status status = mn_engine_take(engine, &id, &got);
        assert_true(id == last || (beside && id == last - 1));
        if (status == MN_OK)
            same(w, got, wanted[id == last], "without memory");
        else
            assert_int_equal(status, MN_E_NOMEM);
        mn_generation_close(&got);
    }
    mn_engine_close(&engine);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    return n;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    engine_cache cache = {.implementation = "dynamic", .page_tokens = PAGE};
    make_texts(&w, 4);
    mn_generation *wanted[] = {alone(&w, cache, &w.texts[2]), alone(&w, cache, &w.texts[3])};
    for (int beside = 0; beside < 2; beside++) {
        int64_t n_allocations = 1;
        for (int64_t k = 1; k <= n_allocations; k++) {
            const int64_t n = run_with_failure(&w, cache, k, beside, wanted);
            if (n > n_allocations) n_allocations = n;
        }
        assert_true(n_allocations > 10);
    }
    for (int i = 0; i < 2; i++) mn_generation_close(&wanted[i]);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hits_are_as_misses),
        cmocka_unit_test(a_prompt_in_work_is_shared),
        cmocka_unit_test(states_are_kept_where_texts_part),
        cmocka_unit_test(salts_share_nothing),
        cmocka_unit_test(kept_pages_make_room),
        cmocka_unit_test(shared_pages_count_once),
        cmocka_unit_test(preempted_requests_keep_their_pages),
        cmocka_unit_test(a_request_is_preempted_before_it_begins),
        cmocka_unit_test(rows_share_again_after_preemption),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
