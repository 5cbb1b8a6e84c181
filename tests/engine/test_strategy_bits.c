/* Laws of the cache strategies that hold to the bit, through whole models: how a text was cut, where pages
 * rest, and what happened to other tokens of a session leave no trace.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include <math.h>

#include "gen/session.h"

typedef strategy_world world;

enum { N_IDS = N_STRATEGY_IDS };

/* ---- the cut ---- */

/* Pieces and chunks of any size with any number of threads; those that flush are given the same calls in
 * chunks of any size. */
static void check_cuts(world *w, world *two, int i_strategy, const char *exact, int first_chunk) {
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

static void bits_do_not_depend_on_the_cut(void **state) {
    (void)state;
    for (int m = 0; m <= N_STRATEGY_MODELS; m += strategy_is_brief() ? 3 : 1) {
        const char *path = m < N_STRATEGY_MODELS ? strategy_models[m] : strategy_hybrid_folder();
        world w = strategy_world_open(path, "auto", 1), two = strategy_world_open(path, "auto", 2);
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            for (int d = 0; d < 2; d++) {
                if (strategy_tries(s, d, m))
                    check_cuts(&w, &two, s, strategy_dtypes[d], strategy_is_long() ? 0 : (s + m) / 2 % 2);
            }
        }
        strategy_world_close(&w);
        strategy_world_close(&two);
    }
}

/* ---- where pages rest ---- */

/* The same strategy with a far home; false: it has one already. */
static bool add_far_home(engine_strategy *far, char name[64], const engine_strategy *near) {
    if (strstr(near->cache.implementation, "offloaded")) return false;
    snprintf(name, 64, "%s+offloaded", near->cache.implementation);
    *far = *near;
    far->cache.implementation = name;
    return true;
}

/* Without a limit every page that is full and settled goes away. */
static void far_pages_change_nothing(void **state) {
    (void)state;
    for (int m = 0; m < N_STRATEGY_MODELS; m += strategy_is_brief() ? 3 : 1) {
        world w = strategy_world_open(strategy_models[m], "auto", 2);
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            engine_strategy far;
            char name[64];
            int d = (s / 2 + m) % 2;
            if ((!strategy_is_long() && s % 3 != m % 3) || !add_far_home(&far, name, &engine_strategies[s]))
                continue;
            float *wanted = strategy_run(&w, &engine_strategies[s], strategy_dtypes[d], 0, 0),
                  *got = strategy_logits(&w);
            engine_cache cache = far.cache;
            cache.dtype = strategy_dtypes[d];
            mn_session *session = engine_session(w.model, cache);
            strategy_feed(&far, session, w.ids, N_IDS, -1, &w.seed, got);
            engine_same_bits(got, wanted, N_IDS, w.vocab, "%s, %s %s %s", w.path, name, cache.config,
                             cache.dtype);
            mn_cache_info info = {.size = sizeof info};
            assert_ok(mn_session_cache(session, &info));
            bool sees_all = !far.forgets && strncmp(w.path, "golden/mistral", 14) != 0 &&
                            strncmp(w.path, "golden/phi3", 11) != 0;
            if (sees_all && info.far_bytes == 0) fail_msg("%s %s: nothing went away", name, cache.config);
            mn_session_close(&session);
            free(wanted);
            free(got);
        }
        strategy_world_close(&w);
    }
}

/* The model's pool again, with room for so many bytes of near pages. */
static void limit_memory(world *w, size_t budget) {
    kv_pool_close(&w->model->core->pool);
    assert_ok(kv_pool_open(&w->model->core->pool, budget));
}

/* Less and less memory, until it does not do any more; the smallest that did, in parts of what the strategy
 * takes without a far home. */
static double check_limits(world *w, const engine_strategy *near, const char *exact) {
    engine_strategy far;
    char name[64];
    double smallest = INFINITY;
    if (!add_far_home(&far, name, near)) return smallest;
    far.cache.dtype = exact;
    engine_cache plain = near->cache;
    plain.dtype = exact;
    float *wanted = strategy_logits(w), *got = strategy_logits(w);
    limit_memory(w, 0);
    mn_session *session = engine_session(w->model, plain);
    strategy_feed(near, session, w->ids, N_IDS, 1, NULL, wanted);
    size_t bytes_near = kv_peak_bytes(session->cache);
    mn_session_close(&session);
    for (double part = 1.2; part > 0.05; part *= 0.9) {
        mn_cache_options options = engine_cache_options(far.cache);
        limit_memory(w, (size_t)((double)bytes_near * part));
        mn_status status = mn_session_open(&session, w->model, &options);
        if (status == MN_OK) status = strategy_try(&far, session, w->ids, N_IDS, 1, NULL, got);
        if (status == MN_OK) {
            engine_same_bits(got, wanted, N_IDS, w->vocab, "%s, %s %s in %g of the memory", w->path, name,
                             far.cache.config, part);
            assert_true(kv_pool_used(w->model->core->pool) <= kv_pool_budget(w->model->core->pool));
            if (part < 1 && !near->forgets) assert_true(kv_far_held(session->cache) > 0);
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

static void little_memory_changes_nothing(void **state) {
    (void)state;
    /* Two of five layers are near at a time, and what is being written. */
    world w = strategy_world_open("embedded", "auto", 2);
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        const engine_strategy *strategy = &engine_strategies[s];
        if (strategy->is_lossy || strstr(strategy->cache.implementation, "static")) continue;
        if (strategy_is_brief() && s > 0) continue;
        double smallest = check_limits(&w, strategy, strategy_dtypes[s % 2]);
        if (strcmp(strategy->cache.implementation, "dynamic") == 0) assert_true(smallest < 0.7);
    }
    limit_memory(&w, 0);
    strategy_world_close(&w);
    w = strategy_world_open(strategy_models[1], "auto", 2);
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        const engine_strategy *strategy = &engine_strategies[s];
        if (!strategy->is_lossy || strstr(strategy->cache.implementation, "static")) continue;
        if (strategy_is_brief() && s % 4 != 0) continue;
        check_limits(&w, strategy, strategy_dtypes[s % 2]);
    }
    limit_memory(&w, 0);
    strategy_world_close(&w);
}

/* ---- what happened before ---- */

typedef struct timeline {
    const engine_strategy *strategy;
    engine_cache cache;
    const int32_t *ids; /* [N_IDS] */
    world *w;
} timeline;

/* A session that was given the first n tokens and nothing else. */
static mn_session *fresh(const timeline *t, size_t n) {
    mn_session *session = engine_session(t->w->model, t->cache);
    strategy_feed(t->strategy, session, t->ids, n, -1, &t->w->seed, NULL);
    return session;
}

/* Fails unless the rest of the tokens has the same logits in both; closes both. */
static void go_on_alike(const timeline *t, mn_session *session, mn_session *wanted, const char *what) {
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

/* Parents and forks are as if the other did not exist; closed in either order. */
static void check_fork(const timeline *t, size_t at, bool parent_first) {
    int32_t other[N_IDS];
    timeline branch = *t;
    mn_session *parent = fresh(t, at), *fork = NULL;
    memcpy(other, t->ids, at * sizeof *other);
    engine_ids(&t->w->seed, other + at, N_IDS - at, (int32_t)t->w->vocab);
    branch.ids = other;
    assert_ok(mn_session_fork(&fork, parent));
    if (mn_session_logits(parent)) engine_ends_with(fork, mn_session_logits(parent), "a fork");
    if (parent_first) {
        go_on_alike(t, parent, fresh(t, at), "a parent whose fork waits");
        go_on_alike(&branch, fork, fresh(&branch, at), "a fork whose parent is gone");
    } else {
        /* Both take turns. */
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

static void check_reset(const timeline *t) {
    mn_session *session = fresh(t, 117);
    assert_ok(mn_session_truncate(session, 0));
    assert_null(mn_session_logits(session));
    go_on_alike(t, session, fresh(t, 0), "after a reset");
}

/* Back and on again: as fresh, unless more is sealed now than was then (what was sealed stays so), or what
 * the remaining tokens see is gone. Returns whether it was compared. */
static bool check_truncation(const timeline *t, size_t from, size_t keep) {
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
    if (t->strategy->is_lossy && strategy_seal_ends(session) != strategy_seal_ends(wanted)) {
        mn_session_close(&session);
        mn_session_close(&wanted);
        return false;
    }
    go_on_alike(t, session, wanted, "after truncation");
    return true;
}

/* Other tokens from the first one on: everything is computed anew. From a later one on, where exact tokens
 * are kept or computed anew, whatever the window has forgotten. */
static void check_sync(const timeline *t, size_t common) {
    int32_t other[N_IDS];
    timeline branch = *t;
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

static void check_history(world *w, int i_strategy, const char *exact) {
    timeline t = {.strategy = &engine_strategies[i_strategy],
                  .cache = strategy_cache(i_strategy, exact),
                  .ids = w->ids,
                  .w = w};
    static const size_t keeps[][2] = {{97, 96}, {101, 99}, {117, 93}, {121, 118}, {128, 127}};
    int n_compared = 0;
    check_fork(&t, STRATEGY_PROMPT, true);
    check_fork(&t, 99, false);
    check_reset(&t);
    check_sync(&t, 0);
    if (!t.strategy->is_lossy) check_sync(&t, 50);
    for (int i = 0; i < 5; i++) n_compared += check_truncation(&t, keeps[i][0], keeps[i][1]);
    if (n_compared == 0)
        fail_msg("%s %s: no truncation could be compared", t.cache.implementation, t.cache.config);
}

static void other_tokens_leave_no_trace(void **state) {
    (void)state;
    for (int m = 0; m <= N_STRATEGY_MODELS; m += strategy_is_brief() ? 4 : 1) {
        const char *path = m < N_STRATEGY_MODELS ? strategy_models[m] : strategy_hybrid_folder();
        world w = strategy_world_open(path, "auto", 2);
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            if (strategy_is_long() || s % 5 == m % 5) check_history(&w, s, strategy_dtypes[(s / 5 + m) % 2]);
        }
        strategy_world_close(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_the_cut),
        cmocka_unit_test(far_pages_change_nothing),
        cmocka_unit_test(little_memory_changes_nothing),
        cmocka_unit_test(other_tokens_leave_no_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
