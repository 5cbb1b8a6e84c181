/* Properties of the cache strategies that hold bit for bit in whole models: results do not depend on chunking, on where
 * pages are stored, or on earlier contents of a session.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include <math.h>

#include "session/session.h"

typedef strategy_fixture fixture;

enum { N_IDS = N_STRATEGY_IDS };

/* ---- chunking ---- */

/* Pieces and chunks of any size with any number of threads; strategies that quantize per call get the same calls in
 * chunks of any size. */
static void check_cuts(fixture *w, fixture *two, int i_strategy, const char *exact, int first_chunk) {
    static const int chunks[] = {1, 3, 20, 64}, pieces[] = {0, 1, -1, -1};
    const engine_strategy *strategy = &engine_strategies[i_strategy];
    float *wanted = strategy_run(w, strategy, exact, 0, 0);
    for (size_t i = 0; i < N_IDS * w->vocab; i++) assert_true(isfinite(wanted[i]));
    for (int c = first_chunk; c < 4; c += strategy_is_long() ? 1 : 2) {
        float *got = strategy_run(c % 2 ? w : two, strategy, exact, chunks[c], pieces[c]);
        engine_same_bits(got, wanted, N_IDS, w->vocab, "%s, %s %s %s, chunks of %d", w->path,
                         strategy->cache.implementation, strategy->cache.config, exact, chunks[c]);
        free(got);
    }
    free(wanted);
}

static void bits_do_not_depend_on_chunking(void **state) {
    (void)state;
    for (int m = 0; m <= N_STRATEGY_MODELS; m += strategy_is_brief() ? 3 : 1) {
        const char *path = m < N_STRATEGY_MODELS ? strategy_models[m] : strategy_hybrid_folder();
        fixture w = strategy_fixture_open(path, "auto", 1), two = strategy_fixture_open(path, "auto", 2);
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            for (int d = 0; d < 2; d++) {
                if (strategy_tries(s, d, m))
                    check_cuts(&w, &two, s, strategy_dtypes[d], strategy_is_long() ? 0 : (s + m) / 2 % 2);
            }
        }
        strategy_fixture_close(&w);
        strategy_fixture_close(&two);
    }
}

/* ---- offloading ---- */

/* The same strategy with an offload file; false: it has one already. */
static bool add_offload_file(engine_strategy *offloaded, char name[64], const engine_strategy *resident) {
    if (strstr(resident->cache.implementation, "offloaded")) return false;
    snprintf(name, 64, "%s+offloaded", resident->cache.implementation);
    *offloaded = *resident;
    offloaded->cache.implementation = name;
    return true;
}

/* Without a limit every full page is offloaded once it is quantized or exact for good. */
static void offloaded_pages_change_nothing(void **state) {
    (void)state;
    for (int m = 0; m < N_STRATEGY_MODELS; m += strategy_is_brief() ? 3 : 1) {
        fixture w = strategy_fixture_open(strategy_models[m], "auto", engine_threads());
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            engine_strategy offloaded;
            char name[64];
            int d = (s / 2 + m) % 2;
            if ((!strategy_is_long() && s % 3 != m % 3) || !add_offload_file(&offloaded, name, &engine_strategies[s]))
                continue;
            float *wanted = strategy_run(&w, &engine_strategies[s], strategy_dtypes[d], 0, 0),
                  *got = strategy_logits(&w);
            engine_cache cache = offloaded.cache;
            cache.dtype = strategy_dtypes[d];
            mn_session *session = engine_session(w.model, cache);
            strategy_feed(&offloaded, session, w.ids, N_IDS, -1, &w.seed, got);
            engine_same_bits(got, wanted, N_IDS, w.vocab, "%s, %s %s %s", w.path, name, cache.config, cache.dtype);
            mn_cache_info info = {.size = sizeof info};
            assert_ok(mn_session_cache(session, &info));
            bool sees_all = !offloaded.forgets && strncmp(w.path, "golden/mistral", 14) != 0 &&
                            strncmp(w.path, "golden/phi3", 11) != 0;
            if (sees_all && info.offloaded_bytes == 0) fail_msg("%s %s: nothing went away", name, cache.config);
            mn_session_close(&session);
            free(wanted);
            free(got);
        }
        strategy_fixture_close(&w);
    }
}

/* Replaces the model's pool by one with a budget of `bytes` for resident pages. */
static void limit_memory(fixture *w, size_t budget) {
    kv_pool_close(&w->model->core->pool);
    assert_ok(kv_pool_open(&w->model->core->pool, budget));
}

/* Reduces the memory limit until a run fails; reports the smallest limit that sufficed relative to the memory without
 * an offload file. */
static double check_limits(fixture *w, const engine_strategy *resident, const char *exact) {
    engine_strategy offloaded;
    char name[64];
    double smallest = INFINITY;
    if (!add_offload_file(&offloaded, name, resident)) return smallest;
    offloaded.cache.dtype = exact;
    engine_cache plain = resident->cache;
    plain.dtype = exact;
    float *wanted = strategy_logits(w), *got = strategy_logits(w);
    limit_memory(w, 0);
    mn_session *session = engine_session(w->model, plain);
    strategy_feed(resident, session, w->ids, N_IDS, 1, NULL, wanted);
    size_t bytes_near = kv_peak_bytes(session->cache);
    mn_session_close(&session);
    for (double part = 1.2; part > 0.05; part *= 0.9) {
        mn_cache_options options = engine_cache_options(offloaded.cache);
        limit_memory(w, (size_t)((double)bytes_near * part));
        mn_status status = mn_session_open(&session, w->model, &options);
        if (status == MN_OK) status = strategy_try(&offloaded, session, w->ids, N_IDS, 1, NULL, got);
        if (status == MN_OK) {
            engine_same_bits(got, wanted, N_IDS, w->vocab, "%s, %s %s in %g of the memory", w->path, name,
                             offloaded.cache.config, part);
            assert_true(kv_pool_used(w->model->core->pool) <= kv_pool_budget(w->model->core->pool));
            if (part < 1 && !resident->forgets) assert_true(kv_offloaded_held(session->cache) > 0);
            smallest = part;
        } else {
            assert_int_equal(status, MN_E_NOMEM);
        }
        mn_session_close(&session);
        if (status != MN_OK) break;
    }
    free(wanted);
    free(got);
    return smallest;
}

static void memory_limits_change_nothing(void **state) {
    (void)state;
    /* Two of five layers are resident at a time, plus pages being written. */
    fixture w = strategy_fixture_open("embedded", "auto", engine_threads());
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        const engine_strategy *strategy = &engine_strategies[s];
        if (strategy->is_lossy || strstr(strategy->cache.implementation, "static")) continue;
        if (strategy_is_brief() && s > 0) continue;
        double smallest = check_limits(&w, strategy, strategy_dtypes[s % 2]);
        if (strcmp(strategy->cache.implementation, "dynamic") == 0) assert_true(smallest < 0.7);
    }
    limit_memory(&w, 0);
    strategy_fixture_close(&w);
    w = strategy_fixture_open(strategy_models[1], "auto", engine_threads());
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        const engine_strategy *strategy = &engine_strategies[s];
        if (!strategy->is_lossy || strstr(strategy->cache.implementation, "static")) continue;
        if (strategy_is_brief() && s % 4 != 0) continue;
        check_limits(&w, strategy, strategy_dtypes[s % 2]);
    }
    limit_memory(&w, 0);
    strategy_fixture_close(&w);
}

/* ---- earlier contents ---- */

typedef struct sequence {
    const engine_strategy *strategy;
    engine_cache cache;
    const int32_t *ids; /* [N_IDS] */
    fixture *w;
} sequence;

/* A session that was fed only the first n tokens. */
static mn_session *fresh(const sequence *t, size_t n) {
    mn_session *session = engine_session(t->w->model, t->cache);
    strategy_feed(t->strategy, session, t->ids, n, -1, &t->w->seed, NULL);
    return session;
}

/* Fails unless the remaining tokens have the same logits in both; closes both. */
static void go_on_alike(const sequence *t, mn_session *session, mn_session *wanted, const char *what) {
    size_t from = (size_t)mn_session_length(session), vocab = t->w->vocab;
    assert_int_equal(mn_session_length(wanted), (int64_t)from);
    float *a = strategy_logits(t->w), *b = strategy_logits(t->w);
    strategy_feed(t->strategy, session, t->ids, N_IDS, -1, &t->w->seed, a);
    strategy_feed(t->strategy, wanted, t->ids, N_IDS, -1, &t->w->seed, b);
    engine_same_bits(a + from * vocab, b + from * vocab, N_IDS - from, vocab, "%s, %s %s, %s", t->w->path,
                     t->cache.implementation, t->cache.config ? t->cache.config : "", what);
    assert_ok(kv_check(session->cache));
    free(a);
    free(b);
    mn_session_close(&session);
    mn_session_close(&wanted);
}

/* Parents and forks do not affect each other; they are closed in either order. */
static void check_fork(const sequence *t, size_t at, bool parent_first) {
    int32_t other[N_IDS];
    sequence branch = *t;
    mn_session *parent = fresh(t, at), *fork = NULL;
    memcpy(other, t->ids, at * sizeof *other);
    engine_ids(&t->w->seed, other + at, N_IDS - at, (int32_t)t->w->vocab);
    branch.ids = other;
    assert_ok(mn_session_fork(&fork, parent));
    if (mn_session_logits(parent)) engine_ends_with(fork, mn_session_logits(parent), "a fork");
    if (parent_first) {
        go_on_alike(t, parent, fresh(t, at), "a parent whose fork waits");
        go_on_alike(&branch, fork, fresh(&branch, at), "a fork whose parent is closed");
    } else {
        /* Both are fed in turn. */
        for (size_t n = at + 1; n < N_IDS - 10; n++) {
            if (t->strategy->flushes && !strategy_call_ends(n)) continue;
            strategy_feed(t->strategy, parent, t->ids, n, -1, &t->w->seed, NULL);
            strategy_feed(t->strategy, fork, other, n, -1, &t->w->seed, NULL);
        }
        size_t n = (size_t)mn_session_length(fork);
        go_on_alike(&branch, fork, fresh(&branch, n), "a fork");
        go_on_alike(t, parent, fresh(t, n), "a parent");
    }
}

static void check_reset(const sequence *t) {
    mn_session *session = fresh(t, 117);
    assert_ok(mn_session_truncate(session, 0));
    assert_null(mn_session_logits(session));
    go_on_alike(t, session, fresh(t, 0), "after a reset");
}

/* After truncation a session continues like a new one, unless more tokens are quantized than in a new one (quantized
 * tokens stay quantized) or tokens that the remaining ones see were dropped. Returns whether it was compared. */
static bool check_truncation(const sequence *t, size_t from, size_t keep) {
    mn_session *session = fresh(t, from), *wanted = fresh(t, keep);
    size_t n = (size_t)kv_length(session->cache);
    mn_status status = mn_session_truncate(session, (int64_t)keep);
    if (status != MN_OK) {
        assert_int_equal(status, MN_E_UNSUPPORTED);
        assert_int_equal(mn_session_length(session), (int64_t)n);
        mn_session_close(&wanted);
        go_on_alike(t, session, fresh(t, from), "after a refused truncation");
        return false;
    }
    if (t->strategy->is_lossy && strategy_quantize_ends(session) != strategy_quantize_ends(wanted)) {
        mn_session_close(&session);
        mn_session_close(&wanted);
        return false;
    }
    go_on_alike(t, session, wanted, "after truncation");
    return true;
}

/* A prompt that differs from the first token on is recomputed. One that differs later keeps the exact tokens or
 * recomputes them, whatever the window has dropped. */
static void check_sync(const sequence *t, size_t common) {
    int32_t other[N_IDS];
    sequence branch = *t;
    memcpy(other, t->ids, sizeof other);
    engine_ids(&t->w->seed, other + common, N_IDS - common, (int32_t)t->w->vocab);
    other[common] = (t->ids[common] + 1) % (int32_t)t->w->vocab;
    branch.ids = other;
    mn_session *session = fresh(t, 117);
    assert_ok(mn_session_sync(session, other, STRATEGY_PROMPT, NULL));
    mn_session *wanted = fresh(&branch, STRATEGY_PROMPT);
    engine_ends_with(session, mn_session_logits(wanted), "after synchronisation");
    go_on_alike(&branch, session, wanted, "after synchronisation");
}

static void check_history(fixture *w, int i_strategy, const char *exact) {
    sequence t = {
        .strategy = &engine_strategies[i_strategy], .cache = strategy_cache(i_strategy, exact), .ids = w->ids, .w = w};
    static const size_t keeps[][2] = {{97, 96}, {101, 99}, {117, 93}, {121, 118}, {128, 127}};
    int n_compared = 0;
    check_fork(&t, STRATEGY_PROMPT, true);
    check_fork(&t, 99, false);
    check_reset(&t);
    check_sync(&t, 0);
    if (!t.strategy->is_lossy) check_sync(&t, 50);
    for (int i = 0; i < 5; i++) n_compared += check_truncation(&t, keeps[i][0], keeps[i][1]);
    if (n_compared == 0) fail_msg("%s %s: no truncation could be compared", t.cache.implementation, t.cache.config);
}

static void earlier_contents_change_nothing(void **state) {
    (void)state;
    for (int m = 0; m <= N_STRATEGY_MODELS; m += strategy_is_brief() ? 4 : 1) {
        const char *path = m < N_STRATEGY_MODELS ? strategy_models[m] : strategy_hybrid_folder();
        fixture w = strategy_fixture_open(path, "auto", engine_threads());
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            if (strategy_is_long() || (s % 5 == m % 5 && test_samples(s / 5, 2)))
                check_history(&w, s, strategy_dtypes[(s / 5 + m) % 2]);
        }
        strategy_fixture_close(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_chunking),
        cmocka_unit_test(offloaded_pages_change_nothing),
        cmocka_unit_test(memory_limits_change_nothing),
        cmocka_unit_test(earlier_contents_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
