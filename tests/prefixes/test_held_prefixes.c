/* Texts that are kept on request: ids that stay, pins that no need of memory drops, times to live, dropping.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine_texts.h"
#include "support/hostile/moved_clock.h"

static const engine_cache plain = {.implementation = "dynamic", .page_tokens = PAGE, .prefill_chunk = 32};

static mn_engine *open_engine(const fixture *w, size_t memory_limit, double ttl_ms) {
    return open_keeping(w, plain, (mn_engine_options){.memory_limit = memory_limit, .prefix_ttl_ms = ttl_ms});
}

/* Of n tokens, the first `same` of which are those of `like`. */
static text make_text(const fixture *w, uint64_t seed, size_t n, const text *like, size_t same) {
    text t = {.n = n};
    engine_ids(&seed, t.ids, n, (int32_t)w->vocab);
    if (like) memcpy(t.ids, like->ids, same * sizeof *t.ids);
    if (like) t.ids[same] = (like->ids[same] + 1) % (int32_t)w->vocab;
    return t;
}

static size_t cached(const fixture *w, mn_engine *engine, const text *t) {
    mn_generation *g = run(w, engine, t, NULL);
    const size_t n = g->sequences[0]->cached_tokens;
    mn_generation_close(&g);
    return n;
}

typedef struct nodes {
    mn_prefix_info all[16];
    size_t n;
} nodes;

static bool take_node(void *user, const mn_prefix_info *info) {
    nodes *list = user;
    assert_true(list->n < 16);
    list->all[list->n++] = *info;
    return true;
}

static nodes nodes_of(mn_engine *engine) {
    nodes list = {0};
    assert_ok(mn_engine_prefixes(engine, take_node, &list));
    return list;
}

static const mn_prefix_info *node_with(const nodes *list, uint64_t id) {
    for (size_t i = 0; i < list->n; i++) {
        if (list->all[i].id == id) return &list->all[i];
    }
    return NULL;
}

static uint64_t id_of(mn_engine *engine, const text *t, size_t n) {
    uint64_t id = 0;
    assert_ok(mn_engine_prefix_of(engine, t->ids, n, NULL, &id));
    assert_true(id > 0);
    return id;
}

static size_t kept_bytes(mn_engine *engine) {
    mn_engine_info info = {.size = sizeof info};
    assert_ok(mn_engine_get_info(engine, &info));
    return info.kept_bytes;
}

static void ids_stay_while_the_tree_changes(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    mn_engine *engine = open_engine(&w, 0, 0);
    const text a = make_text(&w, 1, 96, NULL, 0), b = make_text(&w, 2, 96, &a, 48);
    cached(&w, engine, &a);
    const uint64_t first = id_of(engine, &a, a.n);
    assert_int_equal(cached(&w, engine, &b), 48);
    const uint64_t second = id_of(engine, &b, b.n), both = id_of(engine, &a, 48);
    assert_int_equal(id_of(engine, &a, a.n), first);
    assert_true(first != second && both != first && both != second);
    nodes list = nodes_of(engine);
    const mn_prefix_info *v = node_with(&list, first), *common = node_with(&list, both);
    assert_true(v && common && node_with(&list, second));
    assert_int_equal(v->n_tokens, 96);
    assert_int_equal(v->parent_id, both);
    assert_int_equal(common->parent_id, 0);
    assert_true(common->is_kept); /* its id was requested, and it is a fork of a longer one */
    assert_int_equal(common->unique_bytes, 0);
    assert_int_equal(v->unique_bytes, 0); /* the text with its answer has its pages, too */

    /* What dropping a text frees is its unique bytes. */
    const mn_prefix_info *whole = &list.all[0];
    while (whole->parent_id != first) whole++;
    assert_true(whole->unique_bytes > 0 && whole->unique_bytes < whole->bytes);
    const size_t before = kept_bytes(engine);
    assert_ok(mn_engine_prefix_drop(engine, whole->id));
    assert_int_equal(before - kept_bytes(engine), whole->unique_bytes);
    assert_ok(mn_engine_prefix_drop(engine, first));
    assert_int_equal(mn_engine_prefix_drop(engine, first), MN_E_NOT_FOUND);
    assert_int_equal(id_of(engine, &b, b.n), second);
    list = nodes_of(engine);
    assert_null(node_with(&list, first));
    assert_ok(mn_engine_prefix_drop(engine, both));
    assert_int_equal(kept_bytes(engine), 0);
    assert_int_equal(nodes_of(engine).n, 0);
    assert_int_equal(mn_engine_prefix_hold(engine, both, true, 0), MN_E_NOT_FOUND);
    uint64_t id;
    assert_int_equal(mn_engine_prefix_of(engine, a.ids, a.n, NULL, &id), MN_E_NOT_FOUND);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* A beginning that nobody holds is superfluous when a longer one is kept, which then takes its place in the list. */
static void an_id_is_of_the_text_that_was_asked_for(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    mn_engine *engine = open_engine(&w, 0, 0);
    const text a = make_text(&w, 1, 96, NULL, 0), other = make_text(&w, 2, 96, NULL, 0);
    cached(&w, engine, &a);
    id_of(engine, &a, 32);
    cached(&w, engine, &other);
    const uint64_t id = id_of(engine, &a, 48);
    const nodes list = nodes_of(engine);
    assert_non_null(node_with(&list, id));
    assert_int_equal(node_with(&list, id)->n_tokens, 48);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* A node without a cache of its own has texts behind it: dropping it drops all of them. */
static void dropping_drops_what_begins_with_it(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    mn_engine *engine = open_engine(&w, 0, 0);
    const text a = make_text(&w, 1, 96, NULL, 0), b = make_text(&w, 2, 96, &a, 48), c = make_text(&w, 3, 96, &a, 48);
    cached(&w, engine, &a);
    cached(&w, engine, &b);
    cached(&w, engine, &c);
    const nodes list = nodes_of(engine);
    assert_int_equal(list.all[0].n_tokens, 48);
    assert_false(list.all[0].is_kept);
    add(&w, engine, &b, NULL);
    assert_ok(mn_engine_step(engine, NULL));
    assert_int_equal(mn_engine_prefix_drop(engine, list.all[0].id), MN_E_REFUSED); /* it is being computed */
    mn_generation *g = take(engine);
    mn_generation_close(&g);
    assert_ok(mn_engine_prefix_drop(engine, list.all[0].id));
    assert_int_equal(nodes_of(engine).n, 0);
    assert_int_equal(kept_bytes(engine), 0);
    mn_engine_close(&engine);
    close_fixture(&w);
}

/* Pinned texts survive a flood of others under a limit, unpinned ones do not; hits give the same bits. */
static void pins_are_never_evicted(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const text a = make_text(&w, 1, 96, NULL, 0);
    mn_generation *wanted = alone(&w, plain, &a);
    for (int pin = 0; pin < 2; pin++) {
        mn_engine *engine = open_engine(&w, 0, 0);
        cached(&w, engine, &a);
        const size_t one = kept_bytes(engine);
        mn_engine_close(&engine);
        engine = open_engine(&w, 4 * one, 0);
        cached(&w, engine, &a);
        assert_ok(mn_engine_prefix_hold(engine, id_of(engine, &a, a.n), pin, 0));
        for (uint64_t i = 0; i < 8; i++) {
            const text other = make_text(&w, 10 + i, 96, NULL, 0);
            assert_int_equal(cached(&w, engine, &other), 0);
        }
        mn_generation *got = run(&w, engine, &a, NULL);
        assert_int_equal(got->sequences[0]->cached_tokens == 95, pin);
        same(&w, got, wanted, "pinned");
        mn_generation_close(&got);
        mn_engine_close(&engine);
    }
    mn_generation_close(&wanted);
    close_fixture(&w);
}

static void pins_have_half_of_the_memory(void **state) {
    (void)state;
    fixture w = open_fixture("golden/llama");
    const text a = make_text(&w, 1, 96, NULL, 0), b = make_text(&w, 2, 96, NULL, 0);
    mn_engine *engine = open_engine(&w, 0, 0);
    cached(&w, engine, &a);
    const size_t one = kept_bytes(engine);
    mn_engine_close(&engine);
    engine = open_engine(&w, 3 * one, 0);
    cached(&w, engine, &a);
    cached(&w, engine, &b);
    const uint64_t first = id_of(engine, &a, a.n), second = id_of(engine, &b, b.n);
    assert_ok(mn_engine_prefix_hold(engine, first, true, 0));
    assert_int_equal(mn_engine_prefix_hold(engine, second, true, 0), MN_E_FULL);
    assert_non_null(strstr(mn_last_error(), "half of the memory limit"));
    nodes list = nodes_of(engine);
    assert_true(node_with(&list, first)->is_pinned);
    assert_false(node_with(&list, second)->is_pinned);
    assert_ok(mn_engine_prefix_hold(engine, first, false, 0));
    assert_ok(mn_engine_prefix_hold(engine, second, true, 0));
    mn_engine_close(&engine);
    close_fixture(&w);
}

static bool is_kept(mn_engine *engine, const text *t) {
    uint64_t id;
    bool has_work;
    assert_ok(mn_engine_wait(engine, 0, &has_work));
    return mn_engine_prefix_of(engine, t->ids, t->n, NULL, &id) == MN_OK;
}

static void texts_go_when_their_time_ends(void **state) {
    (void)state;
    enum { TTL_MS = 10000 };
    fixture w = open_fixture("golden/llama");
    clock_hold();
    const text a = make_text(&w, 1, 96, NULL, 0), b = make_text(&w, 2, 96, NULL, 0), c = make_text(&w, 3, 96, NULL, 0);
    mn_engine *engine = open_engine(&w, 0, TTL_MS);
    cached(&w, engine, &a);
    cached(&w, engine, &b);
    cached(&w, engine, &c);
    assert_ok(mn_engine_prefix_hold(engine, id_of(engine, &a, a.n), true, 0)); /* without the engine's time */
    assert_ok(mn_engine_prefix_hold(engine, id_of(engine, &b, b.n), false, 1e9));
    clock_move(TTL_MS);
    assert_true(is_kept(engine, &a) && is_kept(engine, &b));
    assert_false(is_kept(engine, &c));
    assert_ok(mn_engine_prefix_hold(engine, id_of(engine, &a, a.n), true, TTL_MS)); /* pinned, with a time */
    clock_move(TTL_MS);
    assert_false(is_kept(engine, &a));
    assert_true(is_kept(engine, &b));
    assert_int_equal(mn_engine_prefix_hold(engine, id_of(engine, &b, b.n), false, -1), MN_E_ARG);
    clock_run();
    mn_engine_close(&engine);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_stay_while_the_tree_changes),    cmocka_unit_test(an_id_is_of_the_text_that_was_asked_for),
        cmocka_unit_test(dropping_drops_what_begins_with_it), cmocka_unit_test(pins_are_never_evicted),
        cmocka_unit_test(pins_have_half_of_the_memory),       cmocka_unit_test(texts_go_when_their_time_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
