/* Changing the strategy of a cache that holds tokens: it becomes what it would be had it been so from the
 * start, or stays as it is. SPDX-License-Identifier: Apache-2.0 */
#include "kv/group.h"
#include "support/kv_world.h"

enum { PAGE = 16 };

static kv_spec exact_spec(void) {
    kv_form form = kv_form_exact(KV_BF16);
    return (kv_spec){.n_heads = 2, .k_dim = 32, .v_dim = 16, .exact = KV_BF16, .key = form, .value = form};
}

static kv_spec coded_spec(kv_codec codec, int bits, int residual, int exact_first) {
    kv_spec s = exact_spec();
    s.key = s.value = (kv_form){.codec = codec, .bits = bits};
    s.residual = residual;
    s.exact_first = exact_first;
    return s;
}

static kv_spec window_spec(kv_spec s, int sinks, int window) {
    s.sinks = sinks;
    s.window = window;
    return s;
}

static kv_spec far_spec(kv_spec s) {
    s.is_far = true;
    return s;
}

/* Two entries of one group, and one in another. */
static world_setting setting_of(kv_spec s) {
    world_setting set = {
        .n_entries = 3, .specs = {s, s, s}, .options = {.page_tokens = PAGE}, .alone = true, .is_far = true};
    set.specs[1].n_heads = 1;
    return set;
}

static void change(world *w, world_member *m, const world_setting *to) {
    assert_ok(kv_convert(&m->cache, &w->kernels, to->specs, to->n_entries, &to->options));
    assert_ok(kv_check(m->cache));
    assert_true(model_convert(m->model, to->specs, to->options.reserve));
}

/* ---- what is done ---- */

typedef struct kind {
    kv_spec from, to;
} kind;

enum { MOST_KINDS = 24 };

static int make_kinds(kind *out) {
    kv_spec plain = exact_spec(), mneme = coded_spec(KV_MNEME, 4, 0, 4),
            quanto = coded_spec(KV_QUANTO, 4, 40, 33), keys_only = coded_spec(KV_QUANTO, 2, 32, 0),
            in_bases = coded_spec(KV_MNEME, 2, 16, 3);
    keys_only.value = kv_form_exact(KV_BF16);
    in_bases.bases = model_bases(0, 32);
    const kind kinds[] = {{plain, plain},
                          {plain, mneme},
                          {plain, in_bases},
                          {plain, keys_only},
                          {plain, quanto},
                          {plain, window_spec(plain, 0, 21)},
                          {plain, window_spec(plain, 5, 30)},
                          {plain, window_spec(mneme, 4, 60)},
                          {plain, window_spec(mneme, 0, 60)},
                          {plain, far_spec(plain)},
                          {plain, far_spec(mneme)},
                          {far_spec(plain), plain},
                          {far_spec(plain), mneme},
                          {far_spec(plain), far_spec(mneme)},
                          {far_spec(mneme), mneme},
                          {mneme, far_spec(mneme)},
                          {mneme, window_spec(mneme, 4, 40)},
                          {window_spec(plain, 3, 80), window_spec(plain, 3, 40)},
                          {window_spec(plain, 3, 80), window_spec(coded_spec(KV_QUANTO, 4, 0, 0), 3, 40)},
                          {coded_spec(KV_MNEME, 4, 48, 4), mneme}};
    memcpy(out, kinds, sizeof kinds);
    return (int)(sizeof kinds / sizeof kinds[0]);
}

/* A cache of `to` with n tokens and one that became so; both go on. */
static void becomes(const world_setting *from, const world_setting *to, int n) {
    static world w;
    world_open(&w, from, NULL);
    world_member *m = world_new(&w);
    world_put(&w, m, world_tokens(), n, 17);
    w.set = to;
    world_member *wanted = world_new(&w);
    world_put(&w, wanted, world_tokens(), n, 17);
    change(&w, m, to);
    for (int more = 0; more <= 58 && !w.problem; more += 29) {
        world_check(&w, m);
        world_assert_same(&w, m->cache, wanted->cache);
        assert_int_equal(kv_bytes(m->cache), kv_bytes(wanted->cache));
        assert_int_equal(kv_bytes(m->cache),
                         kv_plan_bytes(to->specs, to->n_entries, &to->options, kv_length(m->cache)));
        if (more == 58) break;
        world_put(&w, m, world_tokens() + n + more, 29, 13);
        world_put(&w, wanted, world_tokens() + n + more, 29, 13);
    }
    world_close(&w);
    if (w.problem) fail_msg("%d tokens: %s", n, w.problem);
}

static void conversions_are_as_if_from_the_start(void **state) {
    (void)state;
    kind kinds[MOST_KINDS];
    int n_kinds = make_kinds(kinds);
    for (int i = 0; i < n_kinds; i++) {
        for (int n = 0; n <= 104; n += n < 10 ? 5 : 19) {
            world_setting from = setting_of(kinds[i].from), to = setting_of(kinds[i].to);
            bool is_far = kinds[i].from.is_far || kinds[i].to.is_far;
            if (n % 2 && !is_far) to.options.reserve = 180;
            if (n % 3 == 0 && !is_far) from.options.reserve = 170;
            becomes(&from, &to, n);
        }
    }
}

/* First tokens that a window forgot are seen by no query, so they need not become exact. */
static void forgotten_first_tokens_do_not_matter(void **state) {
    (void)state;
    static world w;
    world_setting from = setting_of(window_spec(exact_spec(), 0, 40)),
                  to = setting_of(window_spec(coded_spec(KV_MNEME, 4, 0, 20), 0, 40));
    world_open(&w, &from, NULL);
    world_member *m = world_new(&w);
    world_put(&w, m, world_tokens(), 100, 17);
    assert_int_equal(kv_first_held(m->cache, 0), 48);
    change(&w, m, &to);
    world_put(&w, m, world_tokens() + 100, 40, 17);
    world_check(&w, m);
    world_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* What a fork shares stays shared, and the fork stays as it was. */
static void forks_stay_as_they_are(void **state) {
    (void)state;
    static world w;
    kv_spec mneme = coded_spec(KV_MNEME, 3, 0, 4);
    world_setting plain = setting_of(exact_spec()), coded = setting_of(mneme),
                  far = setting_of(far_spec(mneme));
    plain.is_far = coded.is_far = false;
    world_open(&w, &plain, NULL);
    world_member *m = world_new(&w);
    world_put(&w, m, world_tokens(), 100, 17);
    world_member *fork = world_fork_of(&w, m);
    size_t used = kv_pool_used(w.pool), held = kv_bytes(fork->cache);
    change(&w, m, &coded);
    world_check_all(&w);
    assert_int_equal(kv_bytes(fork->cache), held);
    /* 6 of 7 pages have codes now, the last is shared, and heads are new. */
    const kv_group *g = m->cache->groups;
    size_t more = 0;
    for (int i = 0; i < m->cache->n_groups; i++)
        more += 6 * g[i].page_bytes[PAGE_CODED] + g[i].page_bytes[PAGE_HEAD];
    assert_int_equal(kv_pool_used(w.pool), used + more);
    world_put(&w, fork, world_tokens() + 100, 20, 20);
    world_check_all(&w);
    w.set = &far;
    world_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* Pages that a near cache reads stay near, whatever becomes of forks that share them. */
static void near_caches_keep_their_pages(void **state) {
    (void)state;
    static world w;
    world_setting near = setting_of(exact_spec()), far = setting_of(far_spec(exact_spec()));
    world_open(&w, &near, NULL);
    world_member *m = world_new(&w);
    world_put(&w, m, world_tokens(), 70, 17);
    world_member *fork = world_fork_of(&w, m);
    change(&w, fork, &far);
    world_put(&w, fork, world_tokens() + 70, 40, 20);
    world_put(&w, fork, world_tokens() + 110, 10, 10);
    assert_true(kv_far_held(fork->cache) > 0 && kv_far_held(fork->cache) < kv_bytes(m->cache));
    world_put(&w, m, world_tokens() + 70, 20, 20);
    world_check_all(&w);
    size_t before = kv_far_held(fork->cache);
    kv_close(&m->cache); /* now they may go */
    model_close(&m->model);
    *m = *fork;
    w.n_members = 1;
    world_put(&w, m, world_tokens() + 120, 10, 10);
    assert_true(kv_far_held(m->cache) > before + kv_plan_bytes(near.specs, 3, &near.options, 64) / 2);
    world_check_all(&w);
    world_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* A page that a cut left sealed in part, with exact tokens behind them. */
static void partly_sealed_pages_are_finished(void **state) {
    (void)state;
    static world w;
    world_setting from = setting_of(coded_spec(KV_QUANTO, 4, 40, 0)),
                  to = setting_of(coded_spec(KV_QUANTO, 4, 0, 0));
    for (int i = 0; i < 3; i++) to.specs[i].flush = true;
    for (int shared = 0; shared < 2; shared++) {
        world_open(&w, &from, NULL);
        world_member *m = world_new(&w), *fork = NULL;
        world_put(&w, m, world_tokens(), 100, 16);
        world_cut(m, 42);
        world_put(&w, m, world_tokens() + 42, 48, 16);
        assert_int_equal(kv_look(m->cache, 0).n_sealed[2], 10);
        if (shared) fork = world_fork_of(&w, m);
        change(&w, m, &to);
        kv_view view = kv_look(m->cache, 0);
        for (int page = 0; page < 6; page++) assert_int_equal(view.n_sealed[page], page < 5 ? PAGE : 0);
        world_check_all(&w);
        for (int n = 90; n < 120; n += 10) world_put(&w, m, world_tokens() + n, 10, 10);
        if (fork) world_put(&w, fork, world_tokens() + 90, 40, 16);
        world_check_all(&w);
        world_close(&w);
        if (w.problem) fail_msg("%s", w.problem);
    }
}

static kv_spec cross_spec(kv_spec s) {
    s.write_once = true;
    return s;
}

/* Entries that are filled once are sealed as far as whole pages go. */
static void filled_entries_follow(void **state) {
    (void)state;
    static world w;
    world_setting from = setting_of(exact_spec()), to = from;
    from.specs[2] = cross_spec(exact_spec());
    to.specs[2] = cross_spec(coded_spec(KV_QUANTO, 4, 7, 3));
    world_open(&w, &from, NULL);
    world_member *m = world_new(&w);
    world_do(&w, &(world_op){.kind = WORLD_FILL, .amount = 39});
    world_put(&w, m, world_tokens(), 20, 20);
    assert_int_equal(kv_filled(m->cache, 2), 40);
    change(&w, m, &to);
    world_check(&w, m);
    kv_view view = kv_look(m->cache, 2);
    assert_int_equal(view.n_sealed[0], 16);
    assert_int_equal(view.n_sealed[1], 16);
    assert_int_equal(view.n_sealed[2], 0);
    world_put(&w, m, world_tokens() + 20, 20, 20);
    world_check(&w, m);
    world_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

static void states_go_over(void **state) {
    (void)state;
    static world w;
    world_setting from = setting_of(exact_spec()), to = setting_of(coded_spec(KV_MNEME, 4, 0, 4));
    from.specs[1] = to.specs[1] = (kv_spec){.kind = KV_STATE, .state_bytes = 100, .checkpoints = 3};
    world_open(&w, &from, NULL);
    world_member *m = world_new(&w);
    for (int i = 0; i < 40; i++) world_put(&w, m, world_tokens() + i, 1, 1);
    change(&w, m, &to);
    world_cut(m, 38); /* to a checkpoint of before */
    world_put(&w, m, world_tokens() + 38, 5, 5);
    world_check(&w, m);
    world_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* ---- what is refused ---- */

static void refused(kv_spec a, kv_spec b, const kv_options *options, int n, const char *part) {
    static world w;
    int64_t live = mem_count().live;
    world_setting from = setting_of(a), to = setting_of(b);
    from.options = (kv_options){.page_tokens = PAGE};
    world_open(&w, &from, NULL);
    world_member *m = world_new(&w);
    if (a.write_once) {
        world_do(&w, &(world_op){.kind = WORLD_FILL, .amount = (unsigned)n});
    } else {
        world_put(&w, m, world_tokens(), n, a.kind == KV_STATE ? 1 : 17);
    }
    kv_cache *before = m->cache;
    size_t used = kv_pool_used(w.pool);
    assert_fails(MN_E_UNSUPPORTED, part, kv_convert(&m->cache, &w.kernels, to.specs, to.n_entries, options));
    assert_ptr_equal(m->cache, before);
    assert_int_equal(kv_pool_used(w.pool), used);
    world_check(&w, m);
    world_close(&w);
    assert_int_equal(mem_count().live, live);
    if (w.problem) fail_msg("%s: %s", part, w.problem);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    kv_options same = {.page_tokens = PAGE};
    kv_spec plain = exact_spec(), mneme = coded_spec(KV_MNEME, 4, 0, 4), other;
    other = plain, other.n_heads = 1;
    refused(plain, other, &same, 50, "grouped");
    other = plain, other.k_dim = 16;
    refused(plain, other, &same, 50, "other sizes");
    other = plain, other.v_dim = 32;
    refused(plain, other, &same, 50, "other sizes");
    other = plain, other.write_once = true;
    refused(plain, other, &same, 50, "other sizes");
    other = plain, other.exact = KV_F32, other.key = other.value = kv_form_exact(KV_F32);
    refused(plain, other, &same, 50, "another form");
    refused(plain, plain, &(kv_options){.page_tokens = 2 * PAGE}, 50, "grouped");
    refused(plain, plain, &(kv_options){.page_tokens = PAGE, .limit = 49}, 50, "more tokens");
    refused(mneme, coded_spec(KV_MNEME, 3, 0, 4), &same, 50, "stays as it is");
    refused(mneme, plain, &same, 50, "stays as it is");
    other = mneme, other.value = kv_form_exact(KV_BF16);
    refused(mneme, other, &same, 50, "stays as it is");
    other = mneme, other.bases = model_bases(0, 32);
    refused(mneme, other, &same, 50, "stays as it is");
    refused(other, mneme, &same, 50, "stays as it is");
    refused(mneme, coded_spec(KV_MNEME, 4, 0, 3), &same, 50, "first tokens");
    refused(mneme, window_spec(mneme, 3, 40), &same, 50, "first tokens");
    refused(window_spec(plain, 0, 20), window_spec(plain, 0, 21), &same, 60, "grow");
    refused(window_spec(plain, 0, 20), plain, &same, 60, "grow");
    refused(window_spec(plain, 2, 20), window_spec(plain, 3, 20), &same, 30, "as many as they are");
    refused(window_spec(plain, 2, 20), window_spec(plain, 0, 20), &same, 30, "as many as they are");
    refused(window_spec(plain, 0, 20), window_spec(plain, 2, 10), &same, 60, "first tokens are forgotten");
    kv_spec state_of = {.kind = KV_STATE, .state_bytes = 100, .checkpoints = 3};
    other = state_of, other.checkpoints = 4;
    refused(state_of, other, &same, 20, "checkpoints");
    other = state_of, other.state_bytes = 101;
    refused(state_of, other, &same, 20, "other sizes");
}

/* Entries share a table or not, as before: also where there are as many tables. */
static void other_groups_are_refused(void **state) {
    (void)state;
    static world w;
    kv_spec plain = exact_spec(), other = window_spec(plain, 0, 100);
    world_setting from = setting_of(plain), to = from;
    for (int i = 0; i < 3; i++) {
        from.specs[i] = i == 1 ? other : plain;
        to.specs[i] = i >= 1 ? other : plain;
    }
    world_open(&w, &from, NULL);
    world_member *m = world_new(&w);
    world_put(&w, m, world_tokens(), 50, 17);
    assert_fails(MN_E_UNSUPPORTED, "grouped", kv_convert(&m->cache, &w.kernels, to.specs, 3, &to.options));
    assert_fails(MN_E_UNSUPPORTED, "grouped", kv_convert(&m->cache, &w.kernels, from.specs, 2, &to.options));
    world_check(&w, m);
    world_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* What looks like it, and is no reason to refuse. */
static void edges_of_what_can_be(void **state) {
    (void)state;
    kv_options same = {.page_tokens = PAGE};
    kv_spec plain = exact_spec();
    const struct {
        kv_spec from, to;
        kv_options options;
        int n;
    } fine[] = {{plain, plain, {.page_tokens = PAGE, .limit = 50}, 50},
                {window_spec(plain, 0, 20), window_spec(plain, 0, 20), same, 60},
                {window_spec(plain, 0, 20), window_spec(plain, 0, 19), same, 60},
                {window_spec(plain, 0, 20), plain, same, 33}, /* nothing is forgotten yet */
                {window_spec(plain, 0, 20), window_spec(plain, 2, 60), same, 33},
                {coded_spec(KV_MNEME, 4, 0, 4), coded_spec(KV_MNEME, 4, 0, 7), same, 60},
                {coded_spec(KV_MNEME, 4, 0, 4), coded_spec(KV_MNEME, 4, 30, 4), same, 60}};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        static world w;
        world_setting from = setting_of(fine[i].from), to = setting_of(fine[i].to);
        to.options = fine[i].options;
        world_open(&w, &from, NULL);
        world_member *m = world_new(&w);
        world_put(&w, m, world_tokens(), fine[i].n, 17);
        change(&w, m, &to);
        m->model->options = to.options;
        world_check(&w, m);
        world_close(&w);
        if (w.problem) fail_msg("%d: %s", (int)i, w.problem);
    }
}

/* ---- without memory ---- */

/* Entries of `m` hold pages sealed up to some page and exact ones from there on. */
static int sealed_pages(const kv_cache *cache) {
    int n = 0;
    for (int i = 0; i < kv_entries(cache); i++) {
        kv_view view = kv_look(cache, i);
        for (int page = 0; page < view.n_pages; page++) {
            int sealed = view.n_sealed[page];
            assert_true(sealed == 0 || sealed == PAGE);
            assert_true(page == 0 || sealed <= view.n_sealed[page - 1]);
            n += sealed > 0;
        }
    }
    return n;
}

/* Each allocation fails once: the cache is as before, or converted but for pages that a later step seals. */
static void every_allocation_may_fail(void **state) {
    (void)state;
    static world w;
    kv_spec quanto = coded_spec(KV_QUANTO, 4, 0, 4);
    world_setting from = setting_of(exact_spec()), to = setting_of(quanto);
    to.options.reserve = 80;
    int n_late = 0, n_refused = 0;
    bool is_done = false;
    for (int k = 1; !is_done; k++) {
        int64_t live = mem_count().live;
        world_open(&w, &from, NULL);
        world_member *m = world_new(&w), *wanted = world_new(&w);
        world_put(&w, m, world_tokens(), 70, 17);
        world_put(&w, wanted, world_tokens(), 70, 17);
        change(&w, wanted, &to);
        kv_cache *before = m->cache;
        mem_fail_after(k);
        mn_status status = kv_convert(&m->cache, &w.kernels, to.specs, to.n_entries, &to.options);
        mem_fail_after(0);
        assert_ok(kv_check(m->cache));
        if (status != MN_OK) {
            assert_int_equal(status, MN_E_NOMEM);
            assert_ptr_equal(m->cache, before);
            world_check(&w, m);
            n_refused++;
        } else {
            assert_true(model_convert(m->model, to.specs, to.options.reserve));
            is_done = sealed_pages(m->cache) == sealed_pages(wanted->cache);
            n_late += !is_done;
            for (int i = 0; i < 2; i++) {
                world_member *both[] = {m, wanted};
                kernel_table *kernels = &w.kernels;
                kv_call_begin(both[i]->cache);
                assert_ok(kv_reserve(both[i]->cache, 10)); /* rows of zeros */
                int n_tasks = kv_commit(both[i]->cache);
                void *scratch = mem_alloc_raw(kv_seal_scratch(both[i]->cache), 1);
                for (int task = 0; task < n_tasks; task++) kv_seal(both[i]->cache, kernels, task, scratch);
                mem_free(scratch);
                kv_settle(both[i]->cache);
            }
            world_assert_same(&w, m->cache, wanted->cache);
            assert_int_equal(kv_bytes(m->cache), kv_bytes(wanted->cache));
            assert_int_equal(sealed_pages(m->cache), sealed_pages(wanted->cache));
        }
        world_close(&w);
        assert_int_equal(mem_count().live, live);
        if (w.problem) fail_msg("allocation %d: %s", k, w.problem);
    }
    assert_true(n_refused > 10);
    assert_true(n_late > 1);
}

/* A budget without room beside what is held is enough: codes take the place of exact pages. */
static void no_room_is_enough(void **state) {
    (void)state;
    static world w;
    world_setting from = setting_of(exact_spec()), to = setting_of(coded_spec(KV_MNEME, 4, 0, 0));
    size_t held = kv_plan_bytes(from.specs, 3, &from.options, 128);
    from.budget = held;
    from.is_far = to.is_far = false;
    world_open(&w, &from, NULL);
    world_member *m = world_new(&w);
    world_put(&w, m, world_tokens(), 128, 17);
    assert_int_equal(kv_bytes(m->cache), held);
    assert_ok(kv_convert(&m->cache, &w.kernels, to.specs, 3, &to.options));
    assert_ok(kv_check(m->cache));
    assert_int_equal(sealed_pages(m->cache), 3 * 8);
    assert_int_equal(kv_bytes(m->cache), kv_plan_bytes(to.specs, 3, &to.options, 128));
    assert_int_equal(kv_peak_bytes(m->cache), held);
    world_close(&w);
}

/* Caches that share pages are converted together: each page is sealed once, its codes and the head are shared as it was, and
 * no more is held on the way than before and a page of codes. */
static void sharing_survives(void **state) {
    (void)state;
    enum { CACHES = 4, TOKENS = 8 * PAGE + 5 };
    static world w;
    world_setting from = setting_of(exact_spec()), to = setting_of(coded_spec(KV_MNEME, 4, 0, 3));
    from.is_far = to.is_far = false;
    world_open(&w, &from, NULL);
    world_member *m = world_new(&w);
    kv_cache *caches[CACHES];
    world_put(&w, m, world_tokens(), TOKENS, 17);
    for (int i = 0; i < CACHES; i++) assert_ok(kv_fork(&caches[i], m->cache));
    kv_close(&m->cache);
    m->cache = NULL;
    size_t before = kv_pool_used(w.pool);
    kv_watch watch;
    kv_pool_watch(w.pool, &watch);
    for (int i = 0; i < CACHES; i++)
        assert_ok(kv_convert_begin(&caches[i], &w.kernels, to.specs, 3, &to.options, i ? caches[0] : NULL));
    kv_convert_end(caches, CACHES, &w.kernels);
    kv_pool_unwatch(w.pool, &watch);
    size_t heads = 0, codes = 0;
    for (int g = 0; g < caches[0]->n_groups; g++) {
        heads += caches[0]->groups[g].page_bytes[PAGE_HEAD];
        codes += caches[0]->groups[g].page_bytes[PAGE_CODED];
    }
    assert_int_equal(kv_pool_used(w.pool), kv_bytes(caches[0]));
    assert_int_equal(kv_bytes(caches[0]), kv_plan_bytes(to.specs, 3, &to.options, TOKENS));
    assert_true(watch.most <= before + heads + codes);
    for (int i = 0; i < CACHES; i++) {
        assert_ok(kv_check(caches[i]));
        assert_int_equal(sealed_pages(caches[i]), 3 * 8);
        world_assert_same(&w, caches[i], caches[0]);
    }
    for (int i = 0; i < CACHES; i++) kv_close(&caches[i]);
    assert_int_equal(kv_pool_used(w.pool), 0);
    w.n_members = 0;
    model_close(&m->model);
    world_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharing_survives),
        cmocka_unit_test(conversions_are_as_if_from_the_start),
        cmocka_unit_test(forgotten_first_tokens_do_not_matter),
        cmocka_unit_test(forks_stay_as_they_are),
        cmocka_unit_test(near_caches_keep_their_pages),
        cmocka_unit_test(partly_sealed_pages_are_finished),
        cmocka_unit_test(filled_entries_follow),
        cmocka_unit_test(states_go_over),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(other_groups_are_refused),
        cmocka_unit_test(edges_of_what_can_be),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(no_room_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
