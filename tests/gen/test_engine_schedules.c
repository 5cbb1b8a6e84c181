/* Requests of many modes and strategies are added, cancelled and preempted at random, at each step in turn, or from
 * several threads: ids equal those of single runs, the memory limit holds, and every page and block is freed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stdatomic.h>

#include "session/session.h"
#include "support/strategies.h"

enum { MOST_PROMPT = 70, N_KINDS = 22, MOST_SETTINGS = 12, PAGE = 16, MOST_REQUESTS = 12, N_MODELS = 4 };

/* The first has a tokenizer; the others have attention only, states, a window. */
static const char *const models[N_MODELS] = {"embedded", "golden/llama", "golden/jamba", "golden/mistral-window"};

typedef struct kind {
    const char *settings[MOST_SETTINGS]; /* NAME VALUE by NAME VALUE */
    engine_cache cache;
    size_t n_prompt;
    bool is_fixed;                    /* its pages cannot be dropped */
    bool is_drafted, needs_tokenizer; /* assisted by a draft model; a request for this model */
    bool needs_pages;                 /* not a strategy for models with states */
} kind;

static const kind kinds[N_KINDS] = {
    {.settings = {"max_new_tokens", "20"}, .cache = {.implementation = "dynamic"}, .n_prompt = 40},
    {.settings = {"max_new_tokens", "30"}, .cache = {.implementation = "dynamic"}, .n_prompt = 3},
    {.settings = {"max_new_tokens", "5"}, .cache = {.implementation = "dynamic"}, .n_prompt = 70},
    {.settings = {"max_new_tokens", "12", "do_sample", "true", "seed", "4", "num_return_sequences", "3"},
     .cache = {.implementation = "dynamic"},
     .n_prompt = 9},
    {.settings = {"max_new_tokens", "12", "do_sample", "true", "seed", "9", "temperature", "1.5", "top_k", "20"},
     .cache = {.implementation = "offloaded"},
     .n_prompt = 33},
    {.settings = {"max_new_tokens", "10", "num_beams", "4", "num_return_sequences", "2"},
     .cache = {.implementation = "dynamic"},
     .n_prompt = 33},
    {.settings = {"max_new_tokens", "9", "num_beams", "4", "num_beam_groups", "2", "diversity_penalty", "0.7"},
     .cache = {.implementation = "dynamic"},
     .n_prompt = 20},
    {.settings = {"max_new_tokens", "8", "penalty_alpha", "0.6", "top_k", "4"},
     .cache = {.implementation = "dynamic"},
     .n_prompt = 20},
    {.settings = {"max_new_tokens", "20", "prompt_lookup_num_tokens", "5"},
     .cache = {.implementation = "quantized"},
     .n_prompt = 60,
     .needs_pages = true},
    {.settings = {"max_new_tokens", "20", "prompt_lookup_num_tokens", "5"},
     .cache = {.implementation = "dynamic"},
     .n_prompt = 50},
    {.settings = {"max_new_tokens", "6"}, .cache = {.implementation = "none"}, .n_prompt = 17},
    {.settings = {"max_new_tokens", "14", "guidance_scale", "1.5"},
     .cache = {.implementation = "sink", .config = "window_length=24,num_sink_tokens=4"},
     .n_prompt = 60,
     .needs_pages = true},
    {.settings = {"max_new_tokens", "16"},
     .cache = {.implementation = "quantized", .config = "backend=quanto,residual_length=16,q_group_size=8"},
     .n_prompt = 40,
     .is_fixed = true,
     .needs_pages = true},
    {.settings = {"max_new_tokens", "10"},
     .cache = {.implementation = "static", .max_cache_len = 48},
     .n_prompt = 20,
     .is_fixed = true},
    {.settings = {"max_new_tokens", "10"},
     .cache = {.implementation = "offloaded_static", .max_cache_len = 48},
     .n_prompt = 20,
     .is_fixed = true},
    {.settings = {"max_new_tokens", "15"},
     .cache = {.implementation = "sliding_window", .config = "sliding_window=20"},
     .n_prompt = 45,
     .needs_pages = true},
    {.settings = {"max_new_tokens", "12", "dola_layers", "\"high\""},
     .cache = {.implementation = "dynamic"},
     .n_prompt = 21},
    {.settings = {"max_new_tokens", "9", "num_beams", "3", "force_words_ids", "[[5,6]]"},
     .cache = {.implementation = "dynamic"},
     .n_prompt = 12},
    {.settings = {"max_new_tokens", "9", "num_beams", "2", "do_sample", "true", "seed", "3"},
     .cache = {.implementation = "quantized"},
     .n_prompt = 30,
     .needs_pages = true},
    {.settings = {"max_new_tokens", "15"}, .cache = {.implementation = "dynamic"}, .n_prompt = 31, .is_drafted = true},
    {.settings = {"max_new_tokens", "12", "regex", "\"[a-z ]{40}\""},
     .cache = {.implementation = "dynamic"},
     .n_prompt = 18,
     .needs_tokenizer = true},
    {.settings = {"max_new_tokens", "12", "repetition_penalty", "1.3", "do_sample", "true", "top_p", "0.8", "seed",
                  "5"},
     .cache = {.implementation = "dynamic"},
     .n_prompt = 64},
};

typedef struct fixture {
    mn_model *model, *draft;
    int32_t ids[MOST_PROMPT];
    mn_generation_config *configs[N_KINDS];
    mn_generation *alone[N_KINDS]; /* NULL: not of this model */
    mn_generate_options how[N_KINDS];
    size_t n_rows[N_KINDS]; /* the smallest max_num_seqs with which a kind is accepted */
    size_t unit;            /* bytes: a page of keys and values; more where there are states */
    int64_t live;
} fixture;

static engine_cache cache_of(int i) {
    engine_cache cache = kinds[i].cache;
    cache.page_tokens = PAGE;
    cache.prefill_chunk = 32;
    return cache;
}

/* The first model has heads of 8 values, which are too narrow to be quantized. */
static bool is_for(int m, int i) {
    bool is_quantized = strcmp(kinds[i].cache.implementation, "quantized") == 0;
    return (!kinds[i].needs_tokenizer || m == 0) && (!kinds[i].needs_pages || m != 2) && (!is_quantized || m != 0);
}

static mn_engine *open_engine(const fixture *w, size_t limit, size_t max_num_seqs, bool caches_prefixes) {
    mn_engine *engine = NULL;
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    options.memory_limit = limit;
    options.max_num_seqs = max_num_seqs;
    options.enable_prefix_caching = caches_prefixes;
    options.max_slowdown = max_num_seqs % 2 ? 0 : 1.5 + (double)(max_num_seqs % 5); /* changes no result */
    assert_ok(mn_engine_open(&engine, w->model, &options));
    return engine;
}

static mn_status add(const fixture *w, mn_engine *engine, int i, int priority, int *id) {
    mn_cache_options cache = engine_cache_options(cache_of(i));
    mn_request request;
    mn_request_init(&request, sizeof request);
    request.prompt = w->ids;
    request.n_prompt = kinds[i].n_prompt;
    request.config = w->configs[i];
    request.cache = &cache;
    request.options = &w->how[i];
    request.priority = priority;
    request.owner = (const char *[]){NULL, "a", "b"}[i % 3]; /* changes no result */
    return mn_engine_add(engine, &request, id);
}

/* The smallest max_num_seqs with which a kind is accepted. */
static size_t rows_of(const fixture *w, int i) {
    for (size_t n = 1; n < 64; n++) {
        mn_engine *engine = open_engine(w, 0, n, false);
        int id;
        mn_status status = add(w, engine, i, 0, &id);
        mn_engine_close(&engine);
        if (status == MN_OK) return n;
    }
    fail_msg("kind %d is refused with every number of rows", i);
    return 0;
}

static fixture open_fixture(int m) {
    fixture w = {.live = mem_count().live};
    w.model = engine_model(models[m], "f32", "auto", engine_threads());
    w.draft = engine_model(models[m], "f32", "auto", 1);
    uint64_t seed = 7;
    engine_ids(&seed, w.ids, MOST_PROMPT, engine_vocab(w.model));
    for (int i = 0; i < N_KINDS; i++) {
        if (!is_for(m, i)) continue;
        assert_ok(mn_generation_config_open(&w.configs[i], w.model));
        assert_ok(mn_generation_config_set(w.configs[i], "ignore_eos", "true"));
        for (int k = 0; k < MOST_SETTINGS && kinds[i].settings[k]; k += 2)
            assert_ok(mn_generation_config_set(w.configs[i], kinds[i].settings[k], kinds[i].settings[k + 1]));
        mn_generate_options_init(&w.how[i], sizeof w.how[i]);
        if (kinds[i].is_drafted) w.how[i].assistant = w.draft;
        mn_session *session = engine_session(w.model, cache_of(i));
        assert_ok(mn_generate(session, w.ids, kinds[i].n_prompt, w.configs[i], &w.how[i], &w.alone[i]));
        mn_session_close(&session);
    }
    w.unit = w.alone[0]->cache->peak_bytes / 4;
    for (int i = 0; i < N_KINDS; i++) w.n_rows[i] = w.alone[i] ? rows_of(&w, i) : 0;
    return w;
}

static void close_fixture(fixture *w) {
    for (int i = 0; i < N_KINDS; i++) {
        mn_generation_config_close(&w->configs[i]);
        mn_generation_close(&w->alone[i]);
    }
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    assert_int_equal(kv_pool_used(w->draft->core->pool), 0);
    mn_model_close(&w->model);
    mn_model_close(&w->draft);
    assert_int_equal(mem_count().live, w->live);
}

/* Equal to a single run, or a prefix of it if it was cancelled. */
static void same_as_alone(const fixture *w, int i, const mn_generation *got, bool may_be_cut) {
    const mn_generation *alone = w->alone[i];
    assert_int_equal(got->n_sequences, alone->n_sequences);
    for (size_t k = 0; k < alone->n_sequences; k++) {
        const mn_sequence *a = alone->sequences[k], *s = got->sequences[k];
        bool is_cut = strcmp(s->finish_reason, "cancelled") == 0;
        if (is_cut && !may_be_cut) fail_msg("kind %d is cancelled, but nothing cancelled it", i);
        if (is_cut && a->has_score) continue; /* the best beam changes until the end */
        if (!is_cut && s->n_ids != a->n_ids)
            fail_msg("kind %d has %zu ids, in a single run %zu", i, s->n_ids, a->n_ids);
        assert_true(s->n_ids <= a->n_ids);
        if (s->n_ids && memcmp(s->ids, a->ids, s->n_ids * sizeof *a->ids) != 0)
            fail_msg("kind %d has other ids after %zu preemptions", i, got->n_preemptions);
    }
}

typedef struct member {
    int kind, id;
    bool was_cancelled, is_there;
} member;

static void take_all(const fixture *w, mn_engine *engine, member *members, int n, size_t *n_preemptions,
                     size_t *n_failed) {
    for (;;) {
        mn_generation *generation = NULL;
        int id;
        mn_status status = mn_engine_take(engine, &id, &generation);
        if (id < 0) {
            assert_ok(status);
            return;
        }
        int m = 0;
        while (m < n && (members[m].id != id || !members[m].is_there)) m++;
        assert_true(m < n);
        members[m].is_there = false;
        if (status == MN_E_NOMEM) { /* the request alone needs more than the limit */
            ++*n_failed;
            continue;
        }
        assert_ok(status);
        same_as_alone(w, members[m].kind, generation, members[m].was_cancelled);
        *n_preemptions += generation->n_preemptions;
        mn_generation_close(&generation);
    }
}

static int any_kind(const fixture *w, uint64_t *seed) {
    int i;
    do i = (int)(test_random(seed) % N_KINDS);
    while (!w->alone[i]);
    return i;
}

/* One schedule, from a seed. */
static void run_schedule(const fixture *w, uint64_t seed, size_t *n_preemptions, size_t *n_failed, size_t *n_ended) {
    member members[MOST_REQUESTS];
    kv_watch watch;
    size_t limit = test_random(&seed) % 4 ? (8 + test_random(&seed) % 16) * w->unit : 0;
    size_t most_rows = test_random(&seed) % 3 ? 0 : 4 + test_random(&seed) % 6;
    int n = 4 + (int)(test_random(&seed) % (MOST_REQUESTS - 3)), n_added = 0;
    size_t running = 0;
    mn_engine *engine = open_engine(w, limit, most_rows, test_random(&seed) % 2);
    kv_pool_watch(w->model->core->pool, &watch);
    for (int step = 0; n_added < n || running > 0; step++) {
        if (step > 2000) fail_msg("seed %llu does not end", (unsigned long long)seed);
        while (n_added < n && (running == 0 || test_random(&seed) % 2 == 0)) {
            member *m = &members[n_added];
            *m = (member){.kind = any_kind(w, &seed), .is_there = true};
            mn_status status = add(w, engine, m->kind, (int)(test_random(&seed) % 3), &m->id);
            if (status == MN_E_NOMEM) {
                m->is_there = false;
                m->id = -1;
                ++*n_failed;
            } else {
                assert_ok(status);
            }
            n_added++;
            running++;
        }
        if (n_added > 0 && test_random(&seed) % 40 == 0) {
            member *m = &members[test_random(&seed) % (uint64_t)n_added];
            if (m->is_there && mn_engine_cancel(engine, m->id) == MN_OK) m->was_cancelled = true;
        }
        assert_ok(mn_engine_step(engine, &running));
        take_all(w, engine, members, n_added, n_preemptions, n_failed);
    }
    for (int m = 0; m < n; m++) assert_false(members[m].is_there);
    *n_ended += (size_t)n;
    kv_pool_unwatch(w->model->core->pool, &watch);
    if (limit && watch.most > limit) fail_msg("%zu bytes were held, %zu are allowed", watch.most, limit);
    mn_engine_close(&engine);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
}

static void random_schedules_give_the_ids_of_single_runs(void **state) {
    (void)state;
    const size_t n = test_is_long() ? (TEST_IS_SANITIZED ? 2000 : 10000) / N_MODELS : 15 / (size_t)test_stride(2);
    for (int m = 0; m < N_MODELS; m++) {
        if (!test_samples(m, 2)) continue;
        size_t n_preemptions = 0, n_failed = 0, n_ended = 0;
        fixture w = open_fixture(m);
        for (size_t i = 0; i < n; i++) run_schedule(&w, 1000 + i, &n_preemptions, &n_failed, &n_ended);
        print_message("%s: %zu schedules, %zu requests, %zu preemptions, %zu without memory\n", models[m], n, n_ended,
                      n_preemptions, n_failed);
        assert_true(n_preemptions > n / 4);
        assert_true(n_failed < n_ended / 4);
        close_fixture(&w);
    }
}

/* ---- at each step in turn ---- */

/* Half an hour under the thread sanitizer, with the threads of random_schedules. */
static void skip_under_tsan(void) {
#if defined(__SANITIZE_THREAD__)
    skip();
#endif
}

enum { URGENT = 21 }; /* a kind of one row */

/* The least memory_limit, in units, with which a kind is not refused. */
static size_t limit_of(const fixture *w, int i) {
    for (size_t n = 1; n < 64; n++) {
        mn_engine *engine = open_engine(w, n * w->unit, 0, false);
        int id;
        mn_status status = add(w, engine, i, 0, &id);
        mn_engine_close(&engine);
        if (status == MN_OK) return n;
        assert_int_equal(status, MN_E_NOMEM);
    }
    fail_msg("kind %d takes no limit", i);
    return 0;
}

/* A draft model that is the same model needs as many pages as the model. */
static void draft_models_are_counted(void **state) {
    (void)state;
    fixture w = open_fixture(0);
    int i = 0;
    while (!kinds[i].is_drafted) i++;
    size_t drafted = limit_of(&w, i);
    w.how[i].assistant = NULL;
    assert_int_equal(drafted, 2 * limit_of(&w, i));
    close_fixture(&w);
}

/* Runs a request of kind i until step `at`; false when it ended before. */
static bool run_until(const fixture *w, int i, size_t at, bool is_cancelled) {
    member members[2] = {{.kind = i, .is_there = true}, {.kind = URGENT}};
    size_t n_preemptions = 0, n_failed = 0, running = 1;
    mn_engine *engine = open_engine(w, 0, w->n_rows[i], false);
    bool was_there = false;
    assert_ok(add(w, engine, i, 0, &members[0].id));
    for (size_t step = 0; running > 0; step++) {
        if (step == at) {
            was_there = true;
            if (is_cancelled) {
                assert_ok(mn_engine_cancel(engine, members[0].id));
                members[0].was_cancelled = true;
            } else {
                assert_ok(add(w, engine, URGENT, 1, &members[1].id));
                members[1].is_there = true;
            }
        }
        assert_ok(mn_engine_step(engine, &running));
        if (is_cancelled && was_there) assert_int_equal(running, 0);
        /* A request that waits holds no pages of its draft model. */
        if (!is_cancelled && step == at) assert_int_equal(kv_pool_used(w->draft->core->pool), 0);
        take_all(w, engine, members, 2, &n_preemptions, &n_failed);
    }
    assert_false(members[0].is_there || members[1].is_there);
    assert_int_equal(n_failed, 0);
    if (was_there && !is_cancelled && at > 0) assert_int_equal(n_preemptions, kinds[i].is_fixed ? 0 : 1);
    mn_engine_close(&engine);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    return was_there;
}

static void at_every_step(bool is_cancelled) {
    for (int m = 0; m < N_MODELS; m++) {
        if (!test_samples(m, 2)) continue;
        fixture w = open_fixture(m);
        size_t n_runs = 0;
        for (int i = 0; i < N_KINDS; i++) {
            if (!test_is_long() && (i + m) % N_MODELS) continue;
            for (size_t at = 0; w.alone[i] && run_until(&w, i, at, is_cancelled); at += (size_t)test_stride(2))
                n_runs++;
        }
        assert_true(n_runs > 20 / (size_t)test_stride(2));
        close_fixture(&w);
    }
}

static void preemption_at_every_step_keeps_the_ids(void **state) {
    (void)state;
    skip_under_tsan();
    at_every_step(false);
}

static void cancellation_at_every_step_is_clean(void **state) {
    (void)state;
    skip_under_tsan();
    at_every_step(true);
}

/* A preempted request resumes beside a request with the same constraint that began meanwhile; each has its own
 * constraint object. */
static void preempted_requests_do_not_share_constraints(void **state) {
    (void)state;
    enum { FORM = 20 };
    static const struct {
        int kind, priority;
        size_t step;
    } added[] = {{FORM, 0, 0}, {URGENT, 1, 2}, {FORM, 1, 5}};
    fixture w = open_fixture(0);
    mn_engine *engine = open_engine(&w, 0, 2, false);
    member members[3];
    size_t n_preemptions = 0, n_failed = 0, running = 1;
    int n = 0;
    for (size_t step = 0; running > 0; step++) {
        for (; n < 3 && added[n].step == step; n++) {
            members[n] = (member){.kind = added[n].kind, .is_there = true};
            assert_ok(add(&w, engine, added[n].kind, added[n].priority, &members[n].id));
        }
        assert_ok(mn_engine_step(engine, &running));
        take_all(&w, engine, members, n, &n_preemptions, &n_failed);
    }
    assert_int_equal(n, 3);
    assert_int_equal(n_preemptions, 1);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* ---- failing allocations ---- */

/* Two requests, of which the second comes later and, with the higher priority, preempts the first, with allocation `k`
 * failing. Returns whether both succeeded. */
static bool run_failing(const fixture *w, int i, int64_t k) {
    size_t n_preemptions = 0, running = 1;
    bool is_whole = true;
    mn_engine *engine = NULL;
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    options.max_num_seqs = w->n_rows[i];
    mem_fail_after(k);
    mn_status status = mn_engine_open(&engine, w->model, &options);
    member members[2] = {{.kind = i}, {.kind = URGENT}};
    for (size_t step = 0; status == MN_OK && (step < 4 || running > 0); step++) {
        if (step == 0 || step == 3) {
            member *m = &members[step > 0];
            mn_status added = add(w, engine, m->kind, step > 0, &m->id);
            if (added != MN_OK) assert_int_equal(added, MN_E_NOMEM);
            m->is_there = added == MN_OK;
            is_whole = is_whole && m->is_there;
        }
        status = mn_engine_step(engine, &running);
        size_t n_failed = 0;
        take_all(w, engine, members, 2, &n_preemptions, &n_failed);
        is_whole = is_whole && n_failed == 0;
    }
    mem_fail_after(0);
    if (status != MN_OK) assert_int_equal(status, MN_E_NOMEM);
    assert_false(status == MN_OK && (members[0].is_there || members[1].is_there));
    mn_engine_close(&engine);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    return status == MN_OK && is_whole;
}

static void every_failed_allocation_is_clean(void **state) {
    (void)state;
    skip_under_tsan();
    static const int tries[] = {0, 3, 5, 8, 13, 16, 19};
    for (int m = 0; m < 2; m++) {
        fixture w = open_fixture(m);
        for (size_t t = 0; t < sizeof tries / sizeof *tries; t++) {
            int64_t k = 1, in_a_row = 0;
            if (!w.alone[tries[t]] || (!test_is_long() && (t + (size_t)m) % 4)) continue;
            /* The request's on_oom policy or waiting may compensate a failure: only a run of consecutive successes ends
             * the loop. */
            const int stride = test_stride(5);
            for (; in_a_row < 20; k += stride) in_a_row = run_failing(&w, tries[t], k) ? in_a_row + stride : 0;
            assert_true(k > 60);
        }
        close_fixture(&w);
    }
}

/* ---- threads ---- */

enum { N_ADDERS = 3, ADDED_EACH = 12 };

typedef struct crowd {
    const fixture *w;
    mn_engine *engine;
    atomic_int n_taken;
    atomic_int kind_of[N_ADDERS * ADDED_EACH]; /* by id, 1 more; 0: not known yet */
} crowd;

typedef struct adder {
    crowd *c;
    uint64_t seed;
    pthread_t thread;
} adder;

static void *add_some(void *arg) {
    adder *a = arg;
    for (int k = 0; k < ADDED_EACH; k++) {
        int i = any_kind(a->c->w, &a->seed), id;
        assert_ok(add(a->c->w, a->c->engine, i, (int)(test_random(&a->seed) % 3), &id));
        atomic_store(&a->c->kind_of[id], i + 1);
        if (test_random(&a->seed) % 4 == 0) mn_engine_cancel(a->c->engine, id);
    }
    return NULL;
}

static void *take_some(void *arg) {
    crowd *c = arg;
    while (atomic_load(&c->n_taken) < N_ADDERS * ADDED_EACH) {
        mn_generation *generation = NULL;
        int id, known = 0;
        assert_ok(mn_engine_take(c->engine, &id, &generation));
        if (id < 0) {
            sched_yield();
            continue;
        }
        while ((known = atomic_load(&c->kind_of[id])) == 0) sched_yield();
        same_as_alone(c->w, known - 1, generation, true);
        mn_generation_close(&generation);
        atomic_fetch_add(&c->n_taken, 1);
    }
    return NULL;
}

static void requests_are_added_cancelled_and_taken_from_several_threads(void **state) {
    (void)state;
    fixture w = open_fixture(0);
    crowd c = {.w = &w, .engine = open_engine(&w, 40 * w.unit, 12, true)};
    adder adders[N_ADDERS];
    pthread_t taker;
    bool has_work = true;
    for (int i = 0; i < N_ADDERS; i++) {
        adders[i] = (adder){.c = &c, .seed = 90 + (uint64_t)i};
        assert_int_equal(pthread_create(&adders[i].thread, NULL, add_some, &adders[i]), 0);
    }
    assert_int_equal(pthread_create(&taker, NULL, take_some, &c), 0);
    while (atomic_load(&c.n_taken) < N_ADDERS * ADDED_EACH) {
        assert_ok(mn_engine_wait(c.engine, 20, &has_work));
        if (has_work) assert_ok(mn_engine_step(c.engine, NULL));
    }
    for (int i = 0; i < N_ADDERS; i++) pthread_join(adders[i].thread, NULL);
    pthread_join(taker, NULL);
    mn_engine_close(&c.engine);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_schedules_give_the_ids_of_single_runs),
        cmocka_unit_test(draft_models_are_counted),
        cmocka_unit_test(preemption_at_every_step_keeps_the_ids),
        cmocka_unit_test(cancellation_at_every_step_is_clean),
        cmocka_unit_test(every_failed_allocation_is_clean),
        cmocka_unit_test(preempted_requests_do_not_share_constraints),
        cmocka_unit_test(requests_are_added_cancelled_and_taken_from_several_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
