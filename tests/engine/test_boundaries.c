/* R11: caches of every class with no token, one token, full, and one token too many: the result of each operation, and
 * that refused operations change nothing. The oracle of every state is a session of the same strategy that was fed only
 * the same tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include <unistd.h>

#include "session/session.h"
#include "support/scratch.h"

enum { LIMIT = 70 };

static const int64_t counts[] = {0, 1, 2, LIMIT - 1, LIMIT};

typedef struct fixture {
    mn_model *model;
    const engine_strategy *strategy;
    engine_cache cache;
    int32_t ids[LIMIT + 1];
    size_t vocab;
} fixture;

static mn_session *filled(const fixture *w, int64_t n) {
    mn_session *session = engine_session(w->model, w->cache);
    uint64_t seed = 5;
    if (n) strategy_feed(w->strategy, session, w->ids, (size_t)n, 0, &seed, NULL);
    return session;
}

/* The next token gives the same bits as after n tokens in a new session, or is refused for lack of space. */
static void goes_on(const fixture *w, mn_session *session, int64_t n, const char *what) {
    mn_session *plain = filled(w, n);
    mn_status status = mn_session_step(session, &w->ids[n], 1, NULL),
              wanted = mn_session_step(plain, &w->ids[n], 1, NULL);
    if (status != wanted || wanted != (n == LIMIT ? MN_E_FULL : MN_OK))
        fail_msg("%s, %s after %d tokens: status %d, in a new session %d", w->cache.implementation, what, (int)n,
                 (int)status, (int)wanted);
    int64_t length = n + (wanted == MN_OK);
    assert_int_equal(mn_session_length(session), length);
    assert_memory_equal(mn_session_ids(session), w->ids, (size_t)length * sizeof *w->ids);
    if (wanted == MN_OK) engine_ends_with(session, mn_session_logits(plain), what);
    assert_ok(kv_check(session->cache));
    mn_session_close(&plain);
}

static void steps_and_views(const fixture *w, int64_t n) {
    mn_session *session = filled(w, n);
    mn_cache_info info = {.size = sizeof info};
    int64_t shape[4];
    float *one = mem_alloc(w->vocab, sizeof *one);
    assert_ok(mn_session_cache(session, &info));
    assert_ok(mn_session_kv_shape(session, 0, shape));
    assert_int_equal(info.limit, LIMIT);
    assert_int_equal(info.next_position, n);
    assert_true(info.tokens >= 0 && info.tokens <= info.seen && info.seen <= n && shape[2] >= 0 && shape[2] <= LIMIT);
    assert_int_equal(mn_session_logits(session) != NULL, n > 0);
    assert_fails(MN_E_ARG, NULL, mn_session_read(session, 0, true, n, 1, one));
    assert_ok(mn_session_read(session, 0, true, n, 0, one));
    assert_fails(MN_E_FULL, NULL, mn_session_step(session, w->ids, (size_t)(LIMIT + 1 - n), NULL)); /* one too many */
    assert_int_equal(mn_session_length(session), n);
    assert_fails(MN_E_ARG, NULL, mn_session_truncate(session, n + 1));
    assert_ok(mn_session_truncate(session, n));
    goes_on(w, session, n, "after one too many");
    mem_free(one);
    mn_session_close(&session);
}

static void forks_and_files(const fixture *w, int64_t n) {
    mn_session *session = filled(w, n), *other = NULL;
    const char *path = scratch_path("boundary.safetensors");
    assert_ok(mn_session_fork(&other, session));
    goes_on(w, other, n, "fork");
    mn_session_close(&other);
    assert_ok(mn_session_save(session, path, false));
    assert_ok(mn_session_load(&other, w->model, path, NULL));
    assert_int_equal(mn_session_length(other), n);
    goes_on(w, other, n, "loaded");
    mn_session_close(&other);
    goes_on(w, session, n, "saved");
    mn_session_close(&session);
    unlink(path);
}

static void emptied_and_again(const fixture *w, int64_t n) {
    mn_session *session = filled(w, n);
    assert_ok(mn_session_truncate(session, 0));
    assert_int_equal(mn_session_length(session), 0);
    assert_ok(kv_check(session->cache));
    goes_on(w, session, 0, "emptied");
    mn_session_close(&session);
    session = filled(w, n);
    uint64_t seed = 5;
    assert_ok(mn_session_truncate(session, 0));
    if (n) strategy_feed(w->strategy, session, w->ids, (size_t)n, 0, &seed, NULL);
    goes_on(w, session, n, "filled again");
    mn_session_close(&session);
}

/* Generation up to the last position and from a full cache. */
static void generates(const fixture *w, int64_t n) {
    mn_session *session = filled(w, n);
    mn_generation *generation = NULL;
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    mn_status status = mn_generate(session, w->ids, (size_t)n, config, NULL, &generation);
    if (n == 0) {
        assert_int_equal(status, MN_E_ARG);
    } else {
        assert_int_equal(status, MN_OK);
        assert_int_equal(generation->sequences[0]->n_ids, LIMIT - n + 1); /* the last token needs no position */
        assert_int_equal(mn_session_length(session), LIMIT);
        assert_memory_equal(mn_session_ids(session), w->ids, (size_t)n * sizeof *w->ids);
    }
    mn_generation_close(&generation);
    status = mn_generate(session, w->ids, LIMIT + 1, config, NULL, &generation);
    if (status != MN_E_FULL && status != MN_E_ARG) fail_msg("a prompt longer than the cache: status %d", (int)status);
    assert_null(generation);
    mn_generation_config_close(&config);
    mn_session_close(&session);
}

static int try_strategy(fixture *w, int i) {
    static const engine_strategy none = {.cache = {.implementation = "none"}};
    int n_states = 0;
    w->strategy = i < N_ENGINE_STRATEGIES ? &engine_strategies[i] : &none;
    w->cache = i < N_ENGINE_STRATEGIES ? strategy_cache(i, "f32") : none.cache;
    w->cache.max_cache_len = LIMIT;
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        if (!test_samples(i + (int)k, 2)) continue;
        n_states++;
        if (i < N_ENGINE_STRATEGIES) steps_and_views(w, counts[k]);
        forks_and_files(w, counts[k]);
        emptied_and_again(w, counts[k]);
        generates(w, counts[k]);
    }
    return n_states;
}

static void every_class_of_caches_handles_its_boundaries(void **state) {
    (void)state;
    fixture w = {.model = engine_model("golden/llama", "f32", "auto", engine_threads())};
    uint64_t seed = 23;
    int n_states = 0;
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&seed, w.ids, LIMIT + 1, (int32_t)w.vocab);
    for (int i = 0; i <= N_ENGINE_STRATEGIES; i++) n_states += try_strategy(&w, i);
    int64_t live = engine_live(w.model); /* the model has allocated its workspace by now */
    for (int i = 0; i <= N_ENGINE_STRATEGIES; i += 5) try_strategy(&w, i);
    assert_int_equal(engine_live(w.model), live);
    print_message("R11: %d boundary states of %d strategies\n", n_states, N_ENGINE_STRATEGIES + 1);
    mn_model_close(&w.model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_class_of_caches_handles_its_boundaries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
