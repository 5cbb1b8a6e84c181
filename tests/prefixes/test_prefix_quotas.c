/* Whose texts are kept, which of them goes first, and texts that come from saved sessions.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "engine_texts.h"
#include "support/scratch.h"

static const engine_cache plain = {.implementation = "dynamic", .page_tokens = PAGE, .prefill_chunk = 32};

enum { LENGTH = 96 };

static mn_engine *open_engine(const fixture *w, size_t memory_limit, size_t quota) {
    return open_keeping(w, plain, (mn_engine_options){.memory_limit = memory_limit, .owner_quota = quota});
}

static text make_text(const fixture *w, uint64_t seed, size_t n) {
    text t = {.n = n};
    engine_ids(&seed, t.ids, n, (int32_t)w->vocab);
    return t;
}

static mn_generation *ask(const fixture *w, mn_engine *engine, const text *t, const char *owner) {
    add_with(w, engine, t, (mn_request){.owner = owner});
    return take(engine);
}

static size_t cached(const fixture *w, mn_engine *engine, const text *t, const char *owner) {
    mn_generation *g = ask(w, engine, t, owner);
    const size_t n = g->sequences[0]->cached_tokens;
    mn_generation_close(&g);
    return n;
}

static size_t kept_bytes(mn_engine *engine) {
    mn_engine_info info = {.size = sizeof info};
    assert_ok(mn_engine_get_info(engine, &info));
    return info.kept_bytes;
}

static uint64_t id_of(mn_engine *engine, const text *t) {
    uint64_t id = 0;
    assert_ok(mn_engine_prefix_of(engine, t->ids, t->n, NULL, &id));
    return id;
}

static bool is_kept(mn_engine *engine, const text *t) {
    uint64_t id;
    return mn_engine_prefix_of(engine, t->ids, t->n, NULL, &id) == MN_OK;
}

/* Of one text with its answer. */
static size_t bytes_of_one(const fixture *w) {
    mn_engine *engine = open_engine(w, 0, 0);
    const text a = make_text(w, 1, LENGTH);
    cached(w, engine, &a, NULL);
    const size_t n = kept_bytes(engine);
    mn_engine_close(&engine);
    return n;
}

/* R24: with a quota, what an owner adds replaces its own texts; without one, those of everybody. */
static void r24_a_flood_of_one_owner_leaves_others_their_texts(void **state) {
    (void)state;
    enum { FLOOD = 12 };
    fixture w = open_fixture("golden/llama");
    const size_t one = bytes_of_one(&w);
    const text a = make_text(&w, 1, LENGTH);
    mn_generation *wanted = alone(&w, plain, &a);
    for (int has_quota = 0; has_quota < 2; has_quota++) {
        const size_t quota = has_quota ? 3 * one : 0;
        mn_engine *engine = open_engine(&w, 6 * one, quota);
        cached(&w, engine, &a, "quiet");
        const size_t before = kept_bytes(engine);
        for (uint64_t i = 0; i < FLOOD; i++) {
            const text other = make_text(&w, 10 + i, LENGTH);
            assert_int_equal(cached(&w, engine, &other, "loud"), 0);
            if (has_quota) assert_true(kept_bytes(engine) <= before + quota);
        }
        const text last = make_text(&w, 10 + FLOOD - 1, LENGTH);
        assert_int_equal(cached(&w, engine, &last, "loud"), LENGTH - 1); /* its newest is kept */
        mn_generation *got = ask(&w, engine, &a, "quiet");
        assert_int_equal(got->sequences[0]->cached_tokens == LENGTH - 1, has_quota);
        same(&w, got, wanted, "beside a flood");
        mn_generation_close(&got);
        mn_engine_close(&engine);
    }
    mn_generation_close(&wanted);
    close_fixture(&w);
}

/* What all owners have stays under the limit, after each text; the newest is kept, and a text alone above it is not. */
static void all_owners_have_a_limit(void **state) {
    (void)state;
    enum { N_ADDED = 12 };
    static const char *const owners[] = {"one", "two", NULL};
    fixture w = open_fixture("golden/llama");
    const size_t one = bytes_of_one(&w), limit = 4 * one;
    mn_engine *engine = open_keeping(&w, plain, (mn_engine_options){.prefix_limit = limit});
    for (uint64_t i = 0; i < N_ADDED; i++) {
        const text t = make_text(&w, 10 + i, LENGTH);
        mn_generation *wanted = alone(&w, plain, &t);
        assert_int_equal(cached(&w, engine, &t, owners[i % 3]), 0);
        assert_in_range(kept_bytes(engine), one, limit);
        mn_generation *got = ask(&w, engine, &t, owners[i % 3]);
        assert_int_equal(got->sequences[0]->cached_tokens, LENGTH - 1);
        same(&w, got, wanted, "under a limit");
        mn_generation_close(&got);
        mn_generation_close(&wanted);
    }
    assert_true(kept_bytes(engine) > limit / 2); /* no more goes than has to */
    const text first = make_text(&w, 10, LENGTH);
    assert_false(is_kept(engine, &first));
    mn_engine_close(&engine);

    engine = open_keeping(&w, plain, (mn_engine_options){.prefix_limit = one / 4});
    assert_int_equal(cached(&w, engine, &first, NULL), 0);
    assert_true(kept_bytes(engine) <= one / 4);
    mn_session *session = engine_session(w.model, plain);
    uint64_t id = 0;
    assert_ok(mn_session_step(session, first.ids, first.n, NULL));
    assert_fails(MN_E_FULL, "the limit of the prefix cache", mn_engine_prefix_add(engine, session, NULL, NULL, &id));
    mn_session_close(&session);
    mn_engine_close(&engine);
    close_fixture(&w);
}

static void pins_have_half_of_the_limit(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const text a = make_text(&w, 1, LENGTH), b = make_text(&w, 2, LENGTH);
    mn_engine *engine = open_keeping(&w, plain, (mn_engine_options){.prefix_limit = 3 * bytes_of_one(&w)});
    cached(&w, engine, &a, "one");
    cached(&w, engine, &b, "two");
    assert_ok(mn_engine_prefix_hold(engine, id_of(engine, &a), true, 0));
    assert_fails(MN_E_FULL, "half of the limit of the prefix cache",
                 mn_engine_prefix_hold(engine, id_of(engine, &b), true, 0));
    mn_engine_close(&engine);
    close_fixture(&w);
}

static void pins_have_half_of_the_quota(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const size_t one = bytes_of_one(&w);
    const text a = make_text(&w, 1, LENGTH), b = make_text(&w, 2, LENGTH), c = make_text(&w, 3, LENGTH);
    mn_engine *engine = open_engine(&w, 0, 3 * one);
    cached(&w, engine, &a, "one");
    cached(&w, engine, &b, "one");
    cached(&w, engine, &c, "two");
    assert_ok(mn_engine_prefix_hold(engine, id_of(engine, &a), true, 0));
    assert_int_equal(mn_engine_prefix_hold(engine, id_of(engine, &b), true, 0), MN_E_FULL);
    assert_non_null(strstr(mn_last_error(), "half of the quota"));
    assert_ok(mn_engine_prefix_hold(engine, id_of(engine, &c), true, 0)); /* of another owner */
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* A text that has more tokens costs more for its bytes, since its tokens attend to more: it stays although a short one
 * was used later. Of two that cost the same the one goes that was used longer ago, and use counts more the more has
 * been dropped. */
static void what_is_cheap_to_compute_again_goes_first(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const text expensive = make_text(&w, 1, MOST_TEXT), first = make_text(&w, 2, 32), second = make_text(&w, 3, 32);
    mn_engine *engine = open_engine(&w, 1 << 24, 0);
    w.how.keep_logits = false;
    assert_ok(mn_generation_config_set(w.config, "max_new_tokens", "1"));
    cached(&w, engine, &expensive, NULL);
    cached(&w, engine, &first, NULL);
    cached(&w, engine, &second, NULL);
    const size_t limit = 1 << 24;
    for (int i = 0; is_kept(engine, &first) && i < 8; i++) { /* halved first */
        assert_true(is_kept(engine, &expensive) && is_kept(engine, &second));
        mn_engine_prefix_room(engine, limit - kv_pool_used(w.model->core->pool) + 1);
    }
    assert_false(is_kept(engine, &first));
    assert_true(is_kept(engine, &expensive) && is_kept(engine, &second));
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* Salts come from outside: those that were used once leave nothing behind when their texts are gone. */
static void salts_leave_nothing_behind(void **state) {
    (void)state;
    enum { N_SALTS = 40 };
    fixture w = open_fixture("golden/llama");
    const text a = make_text(&w, 1, 8);
    mn_engine *engine = open_engine(&w, 1 << 24, 0);
    int64_t before = 0;
    for (int i = 0; i < N_SALTS; i++) {
        char salt[32];
        snprintf(salt, sizeof salt, "salt-%02d", i);
        mn_generation *g = run(&w, engine, &a, salt);
        assert_int_equal(g->sequences[0]->cached_tokens, 0);
        mn_generation_close(&g);
        mn_engine_prefix_room(engine, SIZE_MAX);
        assert_int_equal(kept_bytes(engine), 0);
        if (i == N_SALTS / 2) before = mem_count().live;
    }
    assert_int_equal(mem_count().live, before);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* ---- saved sessions ---- */

/* R13: a kept text that was saved and is loaded by the next engine is found whole, and answers are the same bits. */
static void r13_a_saved_text_is_found_by_the_next_engine(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const text a = make_text(&w, 1, LENGTH);
    const char *path = scratch_path("saved.safetensors");
    mn_generation *wanted = alone(&w, plain, &a);
    mn_session *session = NULL;
    uint64_t id = 0;
    mn_engine *engine = open_engine(&w, 0, 0);
    cached(&w, engine, &a, NULL);
    assert_ok(mn_engine_prefix_session(engine, id_of(engine, &a), &session));
    mn_engine_close(&engine); /* the session is of no engine */
    assert_int_equal(mn_session_length(session), LENGTH);
    assert_ok(mn_session_save(session, path, false));
    mn_session_close(&session);

    engine = open_engine(&w, 0, 0);
    assert_int_equal(mn_engine_prefix_session(engine, 1, &session), MN_E_NOT_FOUND);
    assert_null(session);
    assert_ok(mn_session_load(&session, w.model, path, NULL));
    assert_ok(mn_engine_prefix_add(engine, session, NULL, "loader", &id));
    assert_int_equal(id, id_of(engine, &a));
    mn_session_close(&session);
    mn_generation *got = ask(&w, engine, &a, NULL);
    assert_int_equal(got->sequences[0]->cached_tokens, LENGTH - 1);
    same(&w, got, wanted, "loaded");
    mn_generation_close(&got);
    mn_engine_close(&engine);
    mn_generation_close(&wanted);
    close_fixture(&w);
}

static void sessions_that_cannot_be_kept_are_refused(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const text a = make_text(&w, 1, LENGTH);
    uint64_t id = 0;
    mn_engine *engine = open_engine(&w, 0, 1024);
    mn_session *session = engine_session(w.model, plain);
    assert_int_equal(mn_engine_prefix_add(engine, session, NULL, NULL, &id), MN_E_ARG);
    assert_ok(mn_session_step(session, a.ids, a.n, NULL));
    assert_int_equal(mn_engine_prefix_add(engine, session, NULL, NULL, &id), MN_E_FULL);
    mn_session_close(&session);
    session = engine_session(w.model, (engine_cache){.implementation = "static", .max_cache_len = 128});
    assert_ok(mn_session_step(session, a.ids, a.n, NULL));
    assert_int_equal(mn_engine_prefix_add(engine, session, NULL, NULL, &id), MN_E_REFUSED);
    mn_session_close(&session);
    assert_int_equal(kept_bytes(engine), 0);
    mn_engine_close(&engine);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r24_a_flood_of_one_owner_leaves_others_their_texts),
        cmocka_unit_test(all_owners_have_a_limit),
        cmocka_unit_test(pins_have_half_of_the_limit),
        cmocka_unit_test(pins_have_half_of_the_quota),
        cmocka_unit_test(what_is_cheap_to_compute_again_goes_first),
        cmocka_unit_test(salts_leave_nothing_behind),
        cmocka_unit_test(r13_a_saved_text_is_found_by_the_next_engine),
        cmocka_unit_test(sessions_that_cannot_be_kept_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
