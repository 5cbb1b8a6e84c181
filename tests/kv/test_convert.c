/* Changing the strategy of a cache that holds tokens: the result equals a cache that had the strategy from the start,
 * or nothing changes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/group.h"
#include "support/kv/kv_fixture.h"

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
    s.is_offloaded = true;
    return s;
}

/* Two entries of one group, and one in another. */
static fixture_setting setting_of(kv_spec s) {
    fixture_setting set = {
        .n_entries = 3, .specs = {s, s, s}, .options = {.page_tokens = PAGE}, .alone = true, .is_offloaded = true};
    set.specs[1].n_heads = 1;
    return set;
}

static void change(fixture *w, fixture_member *m, const fixture_setting *to) {
    assert_ok(kv_convert(&m->cache, &w->kernels, to->specs, to->n_entries, &to->options));
    assert_ok(kv_check(m->cache));
    assert_true(model_convert(m->model, to->specs, to->options.reserve));
}

/* ---- conversions ---- */

typedef struct kind {
    kv_spec from, to;
} kind;

enum { MOST_KINDS = 24 };

static int make_kinds(kind *out) {
    kv_spec plain = exact_spec(), mneme = coded_spec(KV_MNEME, 4, 0, 4), quanto = coded_spec(KV_QUANTO, 4, 40, 33),
            keys_only = coded_spec(KV_QUANTO, 2, 32, 0), in_calibration = coded_spec(KV_MNEME, 2, 16, 3);
    keys_only.value = kv_form_exact(KV_BF16);
    in_calibration.calibration = model_calibration(0, 32);
    const kind kinds[] = {{plain, plain},
                          {plain, mneme},
                          {plain, in_calibration},
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

/* A cache of `to` with n tokens and one that was converted to it; both continue. */
static void becomes(const fixture_setting *from, const fixture_setting *to, int n) {
    static fixture w;
    fixture_open(&w, from, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_put(&w, m, fixture_tokens(), n, 17);
    w.set = to;
    fixture_member *wanted = fixture_new(&w);
    fixture_put(&w, wanted, fixture_tokens(), n, 17);
    change(&w, m, to);
    for (int more = 0; more <= 58 && !w.problem; more += 29) {
        fixture_check(&w, m);
        fixture_assert_same(&w, m->cache, wanted->cache);
        assert_int_equal(kv_bytes(m->cache), kv_bytes(wanted->cache));
        assert_int_equal(kv_bytes(m->cache),
                         kv_plan_bytes(to->specs, to->n_entries, &to->options, kv_length(m->cache)));
        if (more == 58) break;
        fixture_put(&w, m, fixture_tokens() + n + more, 29, 13);
        fixture_put(&w, wanted, fixture_tokens() + n + more, 29, 13);
    }
    fixture_close(&w);
    if (w.problem) fail_msg("%d tokens: %s", n, w.problem);
}

static void conversions_are_as_if_from_the_start(void **state) {
    (void)state;
    kind kinds[MOST_KINDS];
    int n_kinds = make_kinds(kinds);
    for (int i = 0; i < n_kinds; i++) {
        for (int n = 0; n <= 104; n += n < 10 ? 5 : 19) {
            if (!test_samples(i + n, 3)) continue;
            fixture_setting from = setting_of(kinds[i].from), to = setting_of(kinds[i].to);
            bool is_offloaded = kinds[i].from.is_offloaded || kinds[i].to.is_offloaded;
            if (n % 2 && !is_offloaded) to.options.reserve = 180;
            if (n % 3 == 0 && !is_offloaded) from.options.reserve = 170;
            becomes(&from, &to, n);
        }
    }
}

/* No query sees the first tokens that a window has dropped, so they need not become exact. */
static void dropped_first_tokens_do_not_matter(void **state) {
    (void)state;
    static fixture w;
    fixture_setting from = setting_of(window_spec(exact_spec(), 0, 40)),
                    to = setting_of(window_spec(coded_spec(KV_MNEME, 4, 0, 20), 0, 40));
    fixture_open(&w, &from, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_put(&w, m, fixture_tokens(), 100, 17);
    assert_int_equal(kv_first_held(m->cache, 0), 48);
    change(&w, m, &to);
    fixture_put(&w, m, fixture_tokens() + 100, 40, 17);
    fixture_check(&w, m);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* Pages shared with a fork stay shared, and the fork is unchanged. */
static void forks_stay_as_they_are(void **state) {
    (void)state;
    static fixture w;
    kv_spec mneme = coded_spec(KV_MNEME, 3, 0, 4);
    fixture_setting plain = setting_of(exact_spec()), coded = setting_of(mneme), offload = setting_of(far_spec(mneme));
    plain.is_offloaded = coded.is_offloaded = false;
    fixture_open(&w, &plain, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_put(&w, m, fixture_tokens(), 100, 17);
    fixture_member *fork = fixture_fork_of(&w, m);
    size_t used = kv_pool_used(w.pool), held = kv_bytes(fork->cache);
    change(&w, m, &coded);
    fixture_check_all(&w);
    assert_int_equal(kv_bytes(fork->cache), held);
    /* 6 of 7 pages are quantized now, the last is shared, and heads are new. */
    const kv_group *g = m->cache->groups;
    size_t more = 0;
    for (int i = 0; i < m->cache->n_groups; i++) more += 6 * g[i].page_bytes[PAGE_CODED] + g[i].page_bytes[PAGE_HEAD];
    assert_int_equal(kv_pool_used(w.pool), used + more);
    fixture_put(&w, fork, fixture_tokens() + 100, 20, 20);
    fixture_check_all(&w);
    w.set = &offload;
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* Pages that a resident cache reads stay resident when forks that share them are offloaded. */
static void pages_shared_with_a_resident_cache_stay_resident(void **state) {
    (void)state;
    static fixture w;
    fixture_setting resident = setting_of(exact_spec()), offload = setting_of(far_spec(exact_spec()));
    fixture_open(&w, &resident, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_put(&w, m, fixture_tokens(), 70, 17);
    fixture_member *fork = fixture_fork_of(&w, m);
    change(&w, fork, &offload);
    fixture_put(&w, fork, fixture_tokens() + 70, 40, 20);
    fixture_put(&w, fork, fixture_tokens() + 110, 10, 10);
    assert_true(kv_offloaded_held(fork->cache) > 0 && kv_offloaded_held(fork->cache) < kv_bytes(m->cache));
    fixture_put(&w, m, fixture_tokens() + 70, 20, 20);
    fixture_check_all(&w);
    size_t before = kv_offloaded_held(fork->cache);
    kv_close(&m->cache); /* now they may be offloaded */
    model_close(&m->model);
    *m = *fork;
    w.n_members = 1;
    fixture_put(&w, m, fixture_tokens() + 120, 10, 10);
    assert_true(kv_offloaded_held(m->cache) > before + kv_plan_bytes(resident.specs, 3, &resident.options, 64) / 2);
    fixture_check_all(&w);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* A page that truncating left quantized in part, with exact tokens after them. */
static void partly_quantized_pages_are_finished(void **state) {
    (void)state;
    static fixture w;
    fixture_setting from = setting_of(coded_spec(KV_QUANTO, 4, 40, 0)), to = setting_of(coded_spec(KV_QUANTO, 4, 0, 0));
    for (int i = 0; i < 3; i++) to.specs[i].flush = true;
    for (int shared = 0; shared < 2; shared++) {
        fixture_open(&w, &from, NULL);
        fixture_member *m = fixture_new(&w), *fork = NULL;
        fixture_put(&w, m, fixture_tokens(), 100, 16);
        fixture_cut(m, 42);
        fixture_put(&w, m, fixture_tokens() + 42, 48, 16);
        assert_int_equal(kv_attention_view(m->cache, 0).n_quantized[2], 10);
        if (shared) fork = fixture_fork_of(&w, m);
        change(&w, m, &to);
        kv_view view = kv_attention_view(m->cache, 0);
        for (int page = 0; page < 6; page++) assert_int_equal(view.n_quantized[page], page < 5 ? PAGE : 0);
        fixture_check_all(&w);
        for (int n = 90; n < 120; n += 10) fixture_put(&w, m, fixture_tokens() + n, 10, 10);
        if (fork) fixture_put(&w, fork, fixture_tokens() + 90, 40, 16);
        fixture_check_all(&w);
        fixture_close(&w);
        if (w.problem) fail_msg("%s", w.problem);
    }
}

static kv_spec cross_spec(kv_spec s) {
    s.write_once = true;
    return s;
}

/* Entries that are filled once are quantized as far as whole pages go. */
static void filled_entries_follow(void **state) {
    (void)state;
    static fixture w;
    fixture_setting from = setting_of(exact_spec()), to = from;
    from.specs[2] = cross_spec(exact_spec());
    to.specs[2] = cross_spec(coded_spec(KV_QUANTO, 4, 7, 3));
    fixture_open(&w, &from, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_do(&w, &(fixture_op){.kind = FIXTURE_FILL, .amount = 39});
    fixture_put(&w, m, fixture_tokens(), 20, 20);
    assert_int_equal(kv_filled(m->cache, 2), 40);
    change(&w, m, &to);
    fixture_check(&w, m);
    kv_view view = kv_attention_view(m->cache, 2);
    assert_int_equal(view.n_quantized[0], 16);
    assert_int_equal(view.n_quantized[1], 16);
    assert_int_equal(view.n_quantized[2], 0);
    fixture_put(&w, m, fixture_tokens() + 20, 20, 20);
    fixture_check(&w, m);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

static void states_are_kept(void **state) {
    (void)state;
    static fixture w;
    fixture_setting from = setting_of(exact_spec()), to = setting_of(coded_spec(KV_MNEME, 4, 0, 4));
    from.specs[1] = to.specs[1] = (kv_spec){.kind = KV_STATE, .state_bytes = 100, .checkpoints = 3};
    fixture_open(&w, &from, NULL);
    fixture_member *m = fixture_new(&w);
    for (int i = 0; i < 40; i++) fixture_put(&w, m, fixture_tokens() + i, 1, 1);
    change(&w, m, &to);
    fixture_cut(m, 38); /* to a checkpoint of before */
    fixture_put(&w, m, fixture_tokens() + 38, 5, 5);
    fixture_check(&w, m);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* ---- refusals ---- */

static void refused(kv_spec a, kv_spec b, const kv_options *options, int n, const char *part) {
    static fixture w;
    int64_t live = mem_count().live;
    fixture_setting from = setting_of(a), to = setting_of(b);
    from.options = (kv_options){.page_tokens = PAGE};
    fixture_open(&w, &from, NULL);
    fixture_member *m = fixture_new(&w);
    if (a.write_once) {
        fixture_do(&w, &(fixture_op){.kind = FIXTURE_FILL, .amount = (unsigned)n});
    } else {
        fixture_put(&w, m, fixture_tokens(), n, a.kind == KV_STATE ? 1 : 17);
    }
    kv_cache *before = m->cache;
    size_t used = kv_pool_used(w.pool);
    assert_fails(MN_E_UNSUPPORTED, part, kv_convert(&m->cache, &w.kernels, to.specs, to.n_entries, options));
    assert_ptr_equal(m->cache, before);
    assert_int_equal(kv_pool_used(w.pool), used);
    fixture_check(&w, m);
    fixture_close(&w);
    assert_int_equal(mem_count().live, live);
    if (w.problem) fail_msg("%s: %s", part, w.problem);
}

static void impossible_conversions_are_refused(void **state) {
    (void)state;
    kv_options same = {.page_tokens = PAGE};
    kv_spec plain = exact_spec(), mneme = coded_spec(KV_MNEME, 4, 0, 4), other;
    other = plain, other.n_heads = 1;
    refused(plain, other, &same, 50, "grouped");
    other = plain, other.k_dim = 16;
    refused(plain, other, &same, 50, "kinds or sizes");
    other = plain, other.v_dim = 32;
    refused(plain, other, &same, 50, "kinds or sizes");
    other = plain, other.write_once = true;
    refused(plain, other, &same, 50, "kinds or sizes");
    other = plain, other.exact = KV_F32, other.key = other.value = kv_form_exact(KV_F32);
    refused(plain, other, &same, 50, "type of exact tokens");
    refused(plain, plain, &(kv_options){.page_tokens = 2 * PAGE}, 50, "grouped");
    refused(plain, plain, &(kv_options){.page_tokens = PAGE, .limit = 49}, 50, "more tokens");
    refused(mneme, coded_spec(KV_MNEME, 3, 0, 4), &same, 50, "form of quantized tokens");
    refused(mneme, plain, &same, 50, "form of quantized tokens");
    other = mneme, other.value = kv_form_exact(KV_BF16);
    refused(mneme, other, &same, 50, "form of quantized tokens");
    other = mneme, other.calibration = model_calibration(0, 32);
    refused(mneme, other, &same, 50, "form of quantized tokens");
    refused(other, mneme, &same, 50, "form of quantized tokens");
    refused(mneme, coded_spec(KV_MNEME, 4, 0, 3), &same, 50, "first tokens");
    refused(mneme, window_spec(mneme, 3, 40), &same, 50, "first tokens");
    refused(window_spec(plain, 0, 20), window_spec(plain, 0, 21), &same, 60, "grow");
    refused(window_spec(plain, 0, 20), plain, &same, 60, "grow");
    refused(window_spec(plain, 2, 20), window_spec(plain, 3, 20), &same, 30, "number of sinks");
    refused(window_spec(plain, 2, 20), window_spec(plain, 0, 20), &same, 30, "number of sinks");
    refused(window_spec(plain, 0, 20), window_spec(plain, 2, 10), &same, 60, "first tokens were dropped");
    kv_spec state_of = {.kind = KV_STATE, .state_bytes = 100, .checkpoints = 3};
    other = state_of, other.checkpoints = 4;
    refused(state_of, other, &same, 20, "checkpoints");
    other = state_of, other.state_bytes = 101;
    refused(state_of, other, &same, 20, "kinds or sizes");
}

/* Entries share a table or not, as before: also where there are as many tables. */
static void other_groups_are_refused(void **state) {
    (void)state;
    static fixture w;
    kv_spec plain = exact_spec(), other = window_spec(plain, 0, 100);
    fixture_setting from = setting_of(plain), to = from;
    for (int i = 0; i < 3; i++) {
        from.specs[i] = i == 1 ? other : plain;
        to.specs[i] = i >= 1 ? other : plain;
    }
    fixture_open(&w, &from, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_put(&w, m, fixture_tokens(), 50, 17);
    assert_fails(MN_E_UNSUPPORTED, "grouped", kv_convert(&m->cache, &w.kernels, to.specs, 3, &to.options));
    assert_fails(MN_E_UNSUPPORTED, "grouped", kv_convert(&m->cache, &w.kernels, from.specs, 2, &to.options));
    fixture_check(&w, m);
    fixture_close(&w);
    if (w.problem) fail_msg("%s", w.problem);
}

/* Differences that are no reason to refuse. */
static void edges_of_what_is_possible(void **state) {
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
                {window_spec(plain, 0, 20), plain, same, 33}, /* nothing is dropped yet */
                {window_spec(plain, 0, 20), window_spec(plain, 2, 60), same, 33},
                {coded_spec(KV_MNEME, 4, 0, 4), coded_spec(KV_MNEME, 4, 0, 7), same, 60},
                {coded_spec(KV_MNEME, 4, 0, 4), coded_spec(KV_MNEME, 4, 30, 4), same, 60}};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        static fixture w;
        fixture_setting from = setting_of(fine[i].from), to = setting_of(fine[i].to);
        to.options = fine[i].options;
        fixture_open(&w, &from, NULL);
        fixture_member *m = fixture_new(&w);
        fixture_put(&w, m, fixture_tokens(), fine[i].n, 17);
        change(&w, m, &to);
        m->model->options = to.options;
        fixture_check(&w, m);
        fixture_close(&w);
        if (w.problem) fail_msg("%d: %s", (int)i, w.problem);
    }
}

/* ---- without memory ---- */

/* Entries of `m` hold pages quantized up to some page and exact ones from there on. */
static int quantized_pages(const kv_cache *cache) {
    int n = 0;
    for (int i = 0; i < kv_entries(cache); i++) {
        kv_view view = kv_attention_view(cache, i);
        for (int page = 0; page < view.n_pages; page++) {
            int quantized = view.n_quantized[page];
            assert_true(quantized == 0 || quantized == PAGE);
            assert_true(page == 0 || quantized <= view.n_quantized[page - 1]);
            n += quantized > 0;
        }
    }
    return n;
}

/* Each allocation fails once: the cache is as before, or converted but for pages that a later step quantizes. */
static void every_allocation_may_fail(void **state) {
    (void)state;
    static fixture w;
    kv_spec quanto = coded_spec(KV_QUANTO, 4, 0, 4);
    fixture_setting from = setting_of(exact_spec()), to = setting_of(quanto);
    to.options.reserve = 80;
    int n_late = 0, n_refused = 0;
    bool is_done = false;
    for (int k = 1; !is_done; k++) {
        int64_t live = mem_count().live;
        fixture_open(&w, &from, NULL);
        fixture_member *m = fixture_new(&w), *wanted = fixture_new(&w);
        fixture_put(&w, m, fixture_tokens(), 70, 17);
        fixture_put(&w, wanted, fixture_tokens(), 70, 17);
        change(&w, wanted, &to);
        kv_cache *before = m->cache;
        mem_fail_after(k);
        mn_status status = kv_convert(&m->cache, &w.kernels, to.specs, to.n_entries, &to.options);
        mem_fail_after(0);
        assert_ok(kv_check(m->cache));
        if (status != MN_OK) {
            assert_int_equal(status, MN_E_NOMEM);
            assert_ptr_equal(m->cache, before);
            fixture_check(&w, m);
            n_refused++;
        } else {
            assert_true(model_convert(m->model, to.specs, to.options.reserve));
            is_done = quantized_pages(m->cache) == quantized_pages(wanted->cache);
            n_late += !is_done;
            for (int i = 0; i < 2; i++) {
                fixture_member *both[] = {m, wanted};
                kernel_table *kernels = &w.kernels;
                kv_call_begin(both[i]->cache);
                assert_ok(kv_reserve(both[i]->cache, 10)); /* rows of zeros */
                int n_tasks = kv_commit(both[i]->cache);
                void *scratch = mem_alloc_raw(kv_quantize_scratch(both[i]->cache), 1);
                for (int task = 0; task < n_tasks; task++) kv_quantize(both[i]->cache, kernels, task, scratch);
                mem_free(scratch);
                kv_finish_step(both[i]->cache);
            }
            fixture_assert_same(&w, m->cache, wanted->cache);
            assert_int_equal(kv_bytes(m->cache), kv_bytes(wanted->cache));
            assert_int_equal(quantized_pages(m->cache), quantized_pages(wanted->cache));
        }
        fixture_close(&w);
        assert_int_equal(mem_count().live, live);
        if (w.problem) fail_msg("allocation %d: %s", k, w.problem);
    }
    assert_true(n_refused > 10);
    assert_true(n_late > 1);
}

/* A budget without room beside what is held is enough: quantized pages take the memory of exact ones. */
static void conversion_needs_no_room(void **state) {
    (void)state;
    static fixture w;
    fixture_setting from = setting_of(exact_spec()), to = setting_of(coded_spec(KV_MNEME, 4, 0, 0));
    size_t held = kv_plan_bytes(from.specs, 3, &from.options, 128);
    from.budget = held;
    from.is_offloaded = to.is_offloaded = false;
    fixture_open(&w, &from, NULL);
    fixture_member *m = fixture_new(&w);
    fixture_put(&w, m, fixture_tokens(), 128, 17);
    assert_int_equal(kv_bytes(m->cache), held);
    assert_ok(kv_convert(&m->cache, &w.kernels, to.specs, 3, &to.options));
    assert_ok(kv_check(m->cache));
    assert_int_equal(quantized_pages(m->cache), 3 * 8);
    assert_int_equal(kv_bytes(m->cache), kv_plan_bytes(to.specs, 3, &to.options, 128));
    assert_int_equal(kv_peak_bytes(m->cache), held);
    fixture_close(&w);
}

/* Caches that share pages are converted together: each page is quantized once, its codes and the head are shared as it
 * was, and no more is held on the way than before and a page of codes. */
static void sharing_survives(void **state) {
    (void)state;
    enum { CACHES = 4, TOKENS = 8 * PAGE + 5 };
    static fixture w;
    fixture_setting from = setting_of(exact_spec()), to = setting_of(coded_spec(KV_MNEME, 4, 0, 3));
    from.is_offloaded = to.is_offloaded = false;
    fixture_open(&w, &from, NULL);
    fixture_member *m = fixture_new(&w);
    kv_cache *caches[CACHES];
    fixture_put(&w, m, fixture_tokens(), TOKENS, 17);
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
        assert_int_equal(quantized_pages(caches[i]), 3 * 8);
        fixture_assert_same(&w, caches[i], caches[0]);
    }
    for (int i = 0; i < CACHES; i++) kv_close(&caches[i]);
    assert_int_equal(kv_pool_used(w.pool), 0);
    w.n_members = 0;
    model_close(&m->model);
    fixture_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharing_survives),
        cmocka_unit_test(conversions_are_as_if_from_the_start),
        cmocka_unit_test(dropped_first_tokens_do_not_matter),
        cmocka_unit_test(forks_stay_as_they_are),
        cmocka_unit_test(pages_shared_with_a_resident_cache_stay_resident),
        cmocka_unit_test(partly_quantized_pages_are_finished),
        cmocka_unit_test(filled_entries_follow),
        cmocka_unit_test(states_are_kept),
        cmocka_unit_test(impossible_conversions_are_refused),
        cmocka_unit_test(other_groups_are_refused),
        cmocka_unit_test(edges_of_what_is_possible),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(conversion_needs_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
