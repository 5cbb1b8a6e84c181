/* The history of a session: truncation, forks, synchronisation, failed and cancelled steps, threads, allocations.
 * Whatever happened before, the logits after a sequence of tokens have the bits of a session that was given only these
 * tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static const char *const strategies[] = {"dynamic", "static", "none"};
static const char *const dtypes[] = {"f32", "bf16"};
enum { N_STRATEGIES = 3, LENGTH = 96, MOST = 200 };

typedef struct fixture {
    mn_model *model;
    size_t vocab;
    engine_cache cache;
    uint64_t seed;
} fixture;

static fixture open_fixture(const char *path, int i_strategy) {
    fixture w = {.model = engine_model(path, "f32", "auto", engine_threads()), .seed = 77};
    w.vocab = (size_t)engine_vocab(w.model);
    w.cache = (engine_cache){.implementation = strategies[i_strategy],
                             .dtype = dtypes[i_strategy % 2],
                             .page_tokens = 4,
                             .prefill_chunk = 16};
    return w;
}

/* Fails unless the session continues as one that was given only ids. */
static void check_as_fresh(fixture *w, const mn_session *session, const int32_t *ids, size_t n, const char *what) {
    assert_int_equal(mn_session_length(session), (int64_t)n);
    if (n) assert_memory_equal(mn_session_ids(session), ids, n * sizeof *ids);
    mn_session *fresh = engine_session(w->model, w->cache);
    if (n) {
        assert_ok(mn_session_step(fresh, ids, n, NULL));
        if (mn_session_logits(session)) engine_ends_with(session, mn_session_logits(fresh), what);
    }
    mn_session *copy = NULL; /* so that the session itself stays as it is */
    int32_t more[3];
    engine_ids(&w->seed, more, 3, (int32_t)w->vocab);
    assert_ok(mn_session_fork(&copy, session));
    assert_ok(mn_session_step(copy, more, 3, NULL));
    assert_ok(mn_session_step(fresh, more, 3, NULL));
    engine_ends_with(copy, mn_session_logits(fresh), what);
    mn_session_close(&copy);
    mn_session_close(&fresh);
}

#define FOR_FIXTURES(w)                                                                                                \
    for (int strategy_ = 0; strategy_ < N_STRATEGIES; strategy_++)                                                     \
        for (fixture w = open_fixture("golden/llama-untied-bias", strategy_); w.model; mn_model_close(&w.model))

/* ---- truncation, forks ---- */

static void truncated_tokens_leave_no_trace(void **state) {
    (void)state;
    FOR_FIXTURES(w) {
        int32_t ids[LENGTH];
        for (size_t keep = 0; keep < 40; keep += 3) {
            mn_session *session = engine_session(w.model, w.cache);
            engine_ids(&w.seed, ids, LENGTH, (int32_t)w.vocab);
            engine_feed(session, ids, 40, 0, NULL, NULL);
            assert_ok(mn_session_truncate(session, keep % 2 ? (int64_t)keep - 40 : (int64_t)keep));
            assert_null(mn_session_logits(session));
            check_as_fresh(&w, session, ids, keep, "after truncation");
            engine_ids(&w.seed, ids + keep, 20, (int32_t)w.vocab);
            engine_feed(session, ids + keep, 20, -1, &w.seed, NULL);
            check_as_fresh(&w, session, ids, keep + 20, "after truncation and other tokens");
            mn_session_close(&session);
        }
    }
}

static void truncation_is_checked(void **state) {
    (void)state;
    FOR_FIXTURES(w) {
        int32_t ids[10];
        engine_ids(&w.seed, ids, 10, (int32_t)w.vocab);
        mn_session *session = engine_session(w.model, w.cache);
        assert_null(mn_session_logits(session));
        assert_int_equal(mn_session_length(session), 0);
        assert_fails(MN_E_ARG, "holds 0", mn_session_truncate(session, 1));
        assert_ok(mn_session_truncate(session, -1));
        engine_feed(session, ids, 10, 0, NULL, NULL);
        assert_fails(MN_E_ARG, "11", mn_session_truncate(session, 11));
        assert_fails(MN_E_ARG, NULL, mn_session_truncate(session, INT64_MAX));
        check_as_fresh(&w, session, ids, 10, "after refused truncations");
        assert_ok(mn_session_truncate(session, 10));
        assert_non_null(mn_session_logits(session));
        mn_session *copy = NULL;
        assert_ok(mn_session_fork(&copy, session));
        assert_ok(mn_session_truncate(copy, -3));
        assert_int_equal(mn_session_length(copy), 7);
        assert_ok(mn_session_truncate(copy, -8)); /* more than there are */
        assert_int_equal(mn_session_length(copy), 0);
        mn_session_close(&copy);
        assert_ok(mn_session_truncate(session, INT64_MIN));
        assert_int_equal(mn_session_length(session), 0);
        mn_session_close(&session);
    }
}

/* A tree of forks at random places; each is checked while the others continue. */
static void forks_are_separate(void **state) {
    (void)state;
    enum { N = 6 };
    FOR_FIXTURES(w) {
        mn_session *sessions[N] = {0};
        int32_t ids[N][MOST];
        size_t n[N] = {0};
        int n_open = 1;
        sessions[0] = engine_session(w.model, w.cache);
        for (int round = 0; round < 60; round++) {
            int i = (int)(test_random(&w.seed) % (uint64_t)n_open);
            uint64_t action = test_random(&w.seed) % 8;
            if (action == 0 && n_open < N) {
                assert_ok(mn_session_fork(&sessions[n_open], sessions[i]));
                memcpy(ids[n_open], ids[i], sizeof ids[i]);
                n[n_open++] = n[i];
            } else if (action == 1) {
                n[i] = (size_t)(test_random(&w.seed) % (n[i] + 1));
                assert_ok(mn_session_truncate(sessions[i], (int64_t)n[i]));
            } else if (action == 2 && n_open > 1) {
                mn_session_close(&sessions[i]);
                n_open--;
                sessions[i] = sessions[n_open];
                sessions[n_open] = NULL;
                memcpy(ids[i], ids[n_open], sizeof ids[i]);
                n[i] = n[n_open];
            } else {
                size_t count = 1 + (size_t)(test_random(&w.seed) % 9);
                if (n[i] + count > MOST) continue;
                engine_ids(&w.seed, ids[i] + n[i], count, (int32_t)w.vocab);
                assert_ok(mn_session_step(sessions[i], ids[i] + n[i], count, NULL));
                n[i] += count;
            }
            if (round % 4 == 3) {
                for (int j = 0; j < n_open; j++) check_as_fresh(&w, sessions[j], ids[j], n[j], "a fork");
            }
        }
        for (int i = 0; i < n_open; i++) mn_session_close(&sessions[i]);
    }
}

/* ---- synchronisation ---- */

static void sync_keeps_the_common_prefix(void **state) {
    (void)state;
    FOR_FIXTURES(w) {
        mn_session *session = engine_session(w.model, w.cache);
        int32_t ids[LENGTH], wanted[LENGTH];
        size_t n = 0;
        bool keeps = strcmp(w.cache.implementation, "none") != 0;
        for (int round = 0; round < 60; round++) {
            size_t common = (size_t)(test_random(&w.seed) % (n + 1)), more = (size_t)(test_random(&w.seed) % 9);
            if (common + more > LENGTH) more = LENGTH - common;
            if (common + more == 0) continue;
            memcpy(wanted, ids, common * sizeof *ids);
            engine_ids(&w.seed, wanted + common, more, (int32_t)w.vocab);
            size_t total = common + more, reused = SIZE_MAX, longest = 0;
            while (longest < n && longest < total && ids[longest] == wanted[longest]) longest++;
            /* The last token is computed again unless its logits are there. */
            if (longest == total && !(n == total && mn_session_logits(session))) longest = total - 1;
            bool complete = longest == total;
            assert_ok(mn_session_sync(session, wanted, total, round % 5 ? &reused : NULL));
            if (round % 5) assert_int_equal(reused, keeps || complete ? longest : 0);
            memcpy(ids, wanted, total * sizeof *ids);
            n = total;
            assert_non_null(mn_session_logits(session));
            check_as_fresh(&w, session, ids, n, "after synchronisation");
        }
        mn_session_close(&session);
    }
}

/* ---- failures ---- */

/* Sixty tokens, after which failing steps are tried. */
static mn_session *open_filled(fixture *w, int32_t *ids) {
    engine_ids(&w->seed, ids, LENGTH, (int32_t)w->vocab);
    mn_session *session = engine_session(w->model, w->cache);
    engine_feed(session, ids, 60, 0, NULL, NULL);
    return session;
}

static void refused_ids_change_nothing(void **state) {
    (void)state;
    FOR_FIXTURES(w) {
        int32_t ids[LENGTH], more[5] = {1, 2, 3, 4, 5};
        mn_session *session = open_filled(&w, ids);
        const int32_t bad[] = {-1, (int32_t)w.vocab, INT32_MAX, INT32_MIN};
        for (int i = 0; i < 4; i++) {
            more[i] = bad[i];
            assert_fails(MN_E_ARG, "allowed: 0 to", mn_session_step(session, more, 5, NULL));
            assert_fails(MN_E_ARG, "allowed: 0 to", mn_session_sync(session, more, 5, NULL));
            check_as_fresh(&w, session, ids, 60, "after a refused id");
            more[i] = 1;
        }
        assert_fails(MN_E_ARG, NULL, mn_session_step(session, more, 0, NULL));
        assert_fails(MN_E_ARG, NULL, mn_session_sync(session, more, 0, NULL));
        check_as_fresh(&w, session, ids, 60, "after an empty step");
        mn_session_close(&session);
    }
}

static void full_caches_change_nothing(void **state) {
    (void)state;
    FOR_FIXTURES(w) {
        int32_t ids[LENGTH];
        w.cache.max_cache_len = 66;
        mn_session *session = open_filled(&w, ids);
        w.cache.max_cache_len = 200; /* of the sessions that are compared with */
        assert_fails(MN_E_FULL, "66", mn_session_step(session, ids, 7, NULL));
        assert_int_equal(mn_session_length(session), 60);
        assert_ok(mn_session_step(session, ids + 60, 3, NULL));
        assert_fails(MN_E_FULL, "66", mn_session_step(session, ids, 4, NULL));
        assert_ok(mn_session_step(session, ids + 63, 3, NULL));
        mn_session *fresh = engine_session(w.model, w.cache);
        engine_feed(fresh, ids, 66, 0, NULL, NULL);
        engine_ends_with(session, mn_session_logits(fresh), "a full cache");
        assert_fails(MN_E_FULL, "66", mn_session_step(session, ids, 1, NULL));
        engine_ends_with(session, mn_session_logits(fresh), "a full cache after a refused step");
        assert_ok(mn_session_truncate(session, 50));
        check_as_fresh(&w, session, ids, 50, "a cache that was full");
        mn_session_close(&fresh);
        mn_session_close(&session);
    }
}

/* Call number k of the allocator fails during the call; true when it did. */
#define failed_at(k, call)                                                                                             \
    (mem_fail_after(k), attempt = (call), mem_fail_after(0), check_attempt(attempt), attempt != MN_OK)

static void check_attempt(mn_status status) {
    if (status != MN_OK) assert_int_equal(status, MN_E_NOMEM);
}

/* One step, fork and opening with their k-th allocations failing; whether any did. */
static bool try_with_failure(fixture *w, int64_t k) {
    int32_t ids[LENGTH];
    engine_ids(&w->seed, ids, LENGTH, (int32_t)w->vocab);
    mn_session *session = engine_session(w->model, w->cache), *other = NULL;
    mn_cache_options options = engine_cache_options(w->cache);
    mn_status attempt;
    engine_feed(session, ids, 60, 1, NULL, NULL); /* token by token, so that the workspace has yet to grow */
    float *before = malloc(w->vocab * sizeof *before);
    memcpy(before, mn_session_logits(session), w->vocab * sizeof *before);
    bool failed = failed_at(k, mn_session_step(session, ids + 60, 33, NULL));
    if (failed) {
        engine_ends_with(session, before, "after a failed allocation");
        if (k % 4 == 0) check_as_fresh(w, session, ids, 60, "after a failed allocation");
        assert_ok(mn_session_step(session, ids + 60, 33, NULL));
    }
    if (failed_at(k, mn_session_fork(&other, session))) {
        assert_null(other);
        failed = true;
    }
    mn_session_close(&other);
    check_as_fresh(w, session, ids, 93, "after a fork that may have failed");
    if (failed_at(k, mn_session_open(&other, w->model, &options))) {
        assert_null(other);
        failed = true;
    }
    mn_session_close(&other);
    mn_session_close(&session);
    free(before);
    return failed;
}

static void failed_allocations_change_nothing(void **state) {
    (void)state;
    for (int s = 0; s < N_STRATEGIES; s++) {
        int64_t live = mem_count().live, k = 1;
        for (bool failed = true; failed; k += test_stride(2)) {
            fixture w = open_fixture("golden/llama-untied-bias", s); /* with a workspace of its own */
            w.cache.page_tokens = 16;
            if (s == 1) w.cache.max_cache_len = 128; /* few pages, so few allocations to fail */
            failed = try_with_failure(&w, k);
            mn_model_close(&w.model);
            assert_int_equal(mem_count().live, live);
        }
        /* Without a cache the first tokens' own recomputation has made the workspace large already. */
        assert_true(k > (s == 2 ? 3 : 10));
    }
}

/* ---- cancellation ---- */

typedef struct canceller {
    mn_session *session;
    atomic_bool ready;
    int n;
} canceller;

static void *cancel_soon(void *arg) {
    canceller *c = arg;
    while (!atomic_load(&c->ready)) usleep(100);
    usleep(2000);
    mn_session_cancel(c->session);
    return NULL;
}

static void steps_are_cancelled_from_another_thread(void **state) {
    (void)state;
    enum { LONG = 4096 };
    int32_t *long_ids = malloc(LONG * sizeof *long_ids);
    FOR_FIXTURES(w) {
        int32_t ids[LENGTH];
        w.cache.max_cache_len = LONG + LENGTH;
        w.cache.prefill_chunk = 2;
        mn_session *session = open_filled(&w, ids);
        engine_ids(&w.seed, long_ids, LONG, (int32_t)w.vocab);
        canceller c = {.session = session};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &c), 0);
        atomic_store(&c.ready, true);
        mn_status status = mn_session_step(session, long_ids, LONG, NULL);
        pthread_join(thread, NULL);
        if (status != MN_E_CANCELLED) fail_msg("%s: the step was not cancelled", w.cache.implementation);
        check_as_fresh(&w, session, ids, 60, "a cancelled step");
        mn_session_close(&session);
    }
    free(long_ids);
}

static bool stop_after_five(void *user, const mn_token_event *event) {
    int *n = user;
    (void)event;
    return ++*n < 5;
}

static void generations_are_cancelled(void **state) {
    (void)state;
    FOR_FIXTURES(w) {
        int32_t ids[LENGTH];
        engine_ids(&w.seed, ids, 10, (int32_t)w.vocab);
        mn_session *session = engine_session(w.model, w.cache);
        mn_generation_config *config = NULL;
        assert_ok(mn_generation_config_open(&config, NULL));
        assert_ok(mn_generation_config_set(config, "max_new_tokens", "50"));
        mn_generate_options options;
        mn_generate_options_init(&options, sizeof options);
        int n = 0;
        options.on_token = stop_after_five;
        options.user = &n;
        mn_generation *generation = NULL;
        assert_ok(mn_generate(session, ids, 10, config, &options, &generation));
        assert_string_equal(generation->sequences[0]->finish_reason, "cancelled");
        assert_int_equal(generation->sequences[0]->n_ids, 5);
        memcpy(ids + 10, generation->sequences[0]->ids, 5 * sizeof *ids);
        check_as_fresh(&w, session, ids, (size_t)mn_session_length(session), "a cancelled generation");
        mn_generation_close(&generation);
        mn_generation_config_close(&config);
        mn_session_close(&session);
    }
}

static bool cancel_after_five(void *user, const mn_token_event *event) {
    canceller *c = user;
    (void)event;
    if (++c->n == 5) mn_session_cancel(c->session);
    return true;
}

/* As a signal handler does: the session is cancelled while the callback continues. */
static void generations_are_cancelled_by_their_session(void **state) {
    (void)state;
    FOR_FIXTURES(w) {
        mn_session *session = engine_session(w.model, w.cache);
        mn_generation_config *config = NULL;
        mn_generation *generation = NULL;
        assert_ok(mn_generation_config_open(&config, NULL));
        assert_ok(mn_generation_config_set(config, "max_new_tokens", "50"));
        canceller c = {.session = session};
        mn_generate_options options;
        mn_generate_options_init(&options, sizeof options);
        options.on_token = cancel_after_five;
        options.user = &c;
        assert_ok(mn_generate(session, (int32_t[]){1, 2, 3}, 3, config, &options, &generation));
        assert_string_equal(generation->sequences[0]->finish_reason, "cancelled");
        assert_int_equal(generation->sequences[0]->n_ids, 5);
        mn_generation_close(&generation);
        /* The request is used up. */
        assert_ok(mn_session_step(session, (int32_t[]){4}, 1, NULL));
        mn_generation_config_close(&config);
        mn_session_close(&session);
    }
}

/* ---- threads ---- */

typedef struct runner {
    fixture *w;
    int32_t ids[LENGTH];
    float *wanted;
    mn_session *session; /* a fork of the common parent */
    bool same;
} runner;

static void *run_session(void *arg) {
    runner *r = arg;
    r->same = true;
    for (int round = 0; round < 6 / test_stride(2) && r->same; round++) {
        for (size_t at = 20; at < LENGTH && r->same; at += 4)
            r->same = mn_session_step(r->session, r->ids + at, 4, NULL) == MN_OK;
        const float *logits = mn_session_logits(r->session);
        r->same = r->same && memcmp(logits, r->wanted, r->w->vocab * sizeof *logits) == 0;
        r->same = r->same && mn_session_truncate(r->session, 20) == MN_OK;
    }
    return NULL;
}

/* Sessions of one model in several threads, with pages of a common past. */
static void sessions_run_in_several_threads(void **state) {
    (void)state;
    enum { N = 3 };
    FOR_FIXTURES(w) {
        static runner runners[N];
        pthread_t threads[N];
        int32_t past[20];
        engine_ids(&w.seed, past, 20, (int32_t)w.vocab);
        mn_session *parent = engine_session(w.model, w.cache);
        assert_ok(mn_session_step(parent, past, 18, NULL));
        assert_ok(mn_session_step(parent, past + 18, 2, NULL));
        for (int i = 0; i < N; i++) {
            runner *r = &runners[i];
            *r = (runner){.w = &w};
            memcpy(r->ids, past, sizeof past);
            engine_ids(&w.seed, r->ids + 20, LENGTH - 20, (int32_t)w.vocab);
            float *all = engine_logits(w.model, w.cache, r->ids, LENGTH, 0, NULL);
            r->wanted = malloc(w.vocab * sizeof *all);
            memcpy(r->wanted, all + (LENGTH - 1) * w.vocab, w.vocab * sizeof *all);
            free(all);
            assert_ok(mn_session_fork(&r->session, parent));
        }
        mn_session_close(&parent);
        for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_session, &runners[i]), 0);
        for (int i = 0; i < N; i++) {
            pthread_join(threads[i], NULL);
            mn_session_close(&runners[i].session);
            free(runners[i].wanted);
        }
        for (int i = 0; i < N; i++) assert_true(runners[i].same);
    }
}

/* ---- allocations ---- */

static void static_steps_do_not_allocate(void **state) {
    (void)state;
    for (int page = 4; page <= 128; page += 124) {
        fixture w = open_fixture("golden/llama-untied-bias", 1);
        int32_t ids[300];
        engine_ids(&w.seed, ids, 300, (int32_t)w.vocab);
        w.cache.page_tokens = page;
        mn_session *session = engine_session(w.model, w.cache);
        engine_feed(session, ids, 80, 0, NULL, NULL);
        engine_feed(session, ids + 80, 1, 0, NULL, NULL);
        int64_t before = mem_count().allocations;
        engine_feed(session, ids + 81, 200, 1, NULL, NULL);
        assert_int_equal(mem_count().allocations - before, 0);
        mn_session_close(&session);
        mn_model_close(&w.model);
    }
}

/* A dynamic cache allocates when it takes a page or more room for the open one, and not inside that. */
static void dynamic_steps_allocate_at_page_edges_only(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama-untied-bias", 0);
    int32_t ids[400];
    engine_ids(&w.seed, ids, 400, (int32_t)w.vocab);
    w.cache.page_tokens = 128;
    mn_session *session = engine_session(w.model, w.cache);
    engine_feed(session, ids, 100, 0, NULL, NULL);
    for (size_t n = 100; n < 400; n++) {
        int64_t before = mem_count().allocations;
        assert_ok(mn_session_step(session, ids + n, 1, NULL));
        bool is_edge = n % 128 == 0 || n % 128 == 16 || n % 128 == 32 || n % 128 == 64;
        if (!is_edge && n != 100) assert_int_equal(mem_count().allocations - before, 0);
    }
    mn_session_close(&session);
    mn_model_close(&w.model);
}

typedef struct allocation_log {
    int n;
    int64_t counts[256];
} allocation_log;

static bool log_allocations(void *user, const mn_token_event *event) {
    allocation_log *log = user;
    (void)event;
    log->counts[log->n++] = mem_count().allocations;
    return true;
}

/* The whole loop: choice, text, stop strings, step. */
static void generation_does_not_allocate(void **state) {
    (void)state;
    for (int sample = 0; sample < 2; sample++) {
        fixture w = open_fixture("embedded", 1);
        int32_t ids[10];
        engine_ids(&w.seed, ids, 10, (int32_t)w.vocab);
        mn_session *session = engine_session(w.model, w.cache);
        mn_generation_config *config = NULL;
        assert_ok(mn_generation_config_open(&config, NULL));
        assert_ok(mn_generation_config_set(config, "max_new_tokens", "200"));
        assert_ok(mn_generation_config_set(config, "repetition_penalty", "1.2"));
        assert_ok(mn_generation_config_set(config, "do_sample", sample ? "true" : "false"));
        assert_ok(mn_generation_config_set(config, "top_p", "0.9"));
        assert_ok(mn_generation_config_set(config, "seed", "3"));
        assert_ok(mn_generation_config_set(config, "stop_strings", "[\"never in a story\"]"));
        mn_generate_options options;
        mn_generate_options_init(&options, sizeof options);
        allocation_log log = {0};
        options.on_token = log_allocations;
        options.user = &log;
        options.top_logprobs = 3;
        mn_generation *generation = NULL;
        assert_ok(mn_generate(session, ids, 10, config, &options, &generation));
        assert_int_equal(generation->sequences[0]->n_ids, 200);
        for (int i = 3; i < log.n; i++) {
            if (log.counts[i] != log.counts[i - 1])
                fail_msg("%d allocations before token %d", (int)(log.counts[i] - log.counts[i - 1]), i);
        }
        mn_generation_close(&generation);
        mn_generation_config_close(&config);
        mn_session_close(&session);
        mn_model_close(&w.model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(truncated_tokens_leave_no_trace),
        cmocka_unit_test(truncation_is_checked),
        cmocka_unit_test(forks_are_separate),
        cmocka_unit_test(sync_keeps_the_common_prefix),
        cmocka_unit_test(refused_ids_change_nothing),
        cmocka_unit_test(full_caches_change_nothing),
        cmocka_unit_test(failed_allocations_change_nothing),
        cmocka_unit_test(steps_are_cancelled_from_another_thread),
        cmocka_unit_test(generations_are_cancelled),
        cmocka_unit_test(generations_are_cancelled_by_their_session),
        cmocka_unit_test(sessions_run_in_several_threads),
        cmocka_unit_test(static_steps_do_not_allocate),
        cmocka_unit_test(dynamic_steps_allocate_at_page_edges_only),
        cmocka_unit_test(generation_does_not_allocate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
