/* Single cases of caches that the laws (test_laws.c) do not cover, the integer functions below them, the planner, and
 * that kv_check finds broken invariants.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/kv/kv_fixture.h"

#include <math.h>

#include "base/num.h"
#include "kv/group.h"

/* ---- positions ---- */

static void visible_positions(void **state) {
    (void)state;
    for (int window = 0; window < 9; window++) {
        for (int64_t position = 0; position < 30; position++) {
            int64_t n_seen = position - visible_first(position, window) + 1;
            int64_t wanted = window > 0 && window < position + 1 ? window : position + 1;
            assert_int_equal(n_seen, wanted);
        }
    }
}

/* A query's place among the sinks and the window that it sees, itself the last of them. */
static void slots_of_queries(void **state) {
    (void)state;
    for (int sinks = 0; sinks < 5; sinks++) {
        for (int window = 0; window < 6; window++) {
            for (int64_t position = 0; position < 30; position++) {
                int64_t n_seen = 0;
                for (int64_t p = 0; p <= position; p++) n_seen += p < sinks || window == 0 || p > position - window;
                assert_int_equal(visible_slot(position, sinks, window), n_seen - 1);
            }
        }
    }
}

/* Brute force: no query from n on sees a position before visible_first(n). */
static void needed_positions(void **state) {
    (void)state;
    for (int window = 0; window < 7; window++) {
        for (int64_t n = 0; n < 30; n++) {
            int64_t first = INT64_MAX;
            for (int64_t q = n; q < n + 40; q++) {
                int64_t p = q;
                while (p > 0 && (window == 0 || q - (p - 1) < window)) p--;
                first = min_i64(first, p);
            }
            assert_int_equal(visible_first(n, window), first);
        }
    }
}

static void units_of_quantizing(void **state) {
    (void)state;
    const struct {
        int residual, page, unit;
    } known[] = {{0, 128, 128}, {128, 128, 128}, {256, 128, 128}, {64, 128, 64}, {192, 128, 64}, {32, 128, 32},
                 {96, 128, 32}, {1, 128, 32},    {33, 128, 32},   {16, 16, 16},  {5, 16, 16},    {5, 32, 32},
                 {5, 64, 32},   {64, 64, 64},    {5, 48, 24},     {48, 48, 48},  {100, 256, 32}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_int_equal(quantize_unit(known[i].residual, known[i].page), known[i].unit);
    for (int residual = 0; residual < 200; residual += 7) {
        for (int page = 16; page <= 128; page *= 2) {
            int unit = quantize_unit(residual, page);
            int64_t before = 0;
            for (int64_t n = 0; n < 600; n++) {
                int64_t quantized = quantize_until(n, residual, page);
                assert_int_equal(quantized % page, 0);
                assert_true(quantized == 0 || n - quantized >= residual); /* the residual is exact at least */
                assert_true(n - quantized < residual + unit + page);      /* and what no rule keeps is quantized */
                assert_true(quantized >= before && (quantized == before || n % unit == 0));
                before = quantized;
            }
        }
    }
}

/* ---- steps over several units ---- */

static kv_spec spec_of_unit(kv_codec codec, int residual) {
    kv_form form = codec == KV_F32 ? kv_form_exact(KV_F32) : (kv_form){.codec = codec, .bits = 4};
    return (kv_spec){.kind = KV_PAGES,
                     .n_heads = 1,
                     .k_dim = 16,
                     .v_dim = 16,
                     .exact = KV_F32,
                     .key = form,
                     .value = form,
                     .residual = residual};
}

static void append_rows(kv_cache *cache, const kernel_table *kernels, int n) {
    static float rows[256 * 16];
    uint64_t seed = 5;
    for (int i = 0; i < n * 16; i++) rows[i] = (float)test_uniform(&seed, -2, 2);
    for (int entry = 0; entry < kv_entries(cache); entry++)
        kv_append(cache, kernels, entry, 0, 0, n, rows, rows, 16, 16);
}

/* The tokens that later units of a step read quantized are listed entry by entry, once; if they are not listed before
 * the commit, the commit quantizes them. */
static void steps_over_units(void **state) {
    (void)state;
    enum { N = 200, ENTRIES = 3 };
    const kv_spec specs[ENTRIES] = {spec_of_unit(KV_MNEME, 64), spec_of_unit(KV_F32, 0), spec_of_unit(KV_MNEME, 32)};
    const kv_options options = {.page_tokens = 64};
    kernel_table kernels;
    kv_pool *pool = NULL;
    kv_cache *caches[2] = {NULL, NULL};
    kernel_table_fill(&kernels, CPU_SCALAR);
    assert_ok(kv_pool_open(&pool, 0));
    for (int listed = 0; listed < 2; listed++) {
        assert_ok(kv_open(&caches[listed], pool, specs, ENTRIES, &options));
        kv_cache *cache = caches[listed];
        assert_int_equal(kv_unit(cache), 32);
        assert_int_equal(kv_step_limit(cache, 0), INT64_MAX);
        assert_int_equal(kv_step_limit(cache, 40), 64);
        assert_int_equal(kv_step_limit(cache, 96), 128); /* the first entry's unit is 64 */
        assert_int_equal(kv_step_limit(cache, 128), INT64_MAX);
        assert_ok(kv_reserve(cache, N));
        append_rows(cache, &kernels, N);
        void *scratch = malloc(kv_quantize_scratch(cache));
        assert_non_null(scratch);
        assert_true(kv_spans_units(cache));
        kv_view view = kv_attention_view(cache, 0), exact = kv_attention_view(cache, 1);
        assert_int_equal(kv_quantized_for(&exact, N - 1), 0);
        for (int64_t p = 0; p < N; p++) assert_int_equal(kv_quantized_for(&view, p), quantize_until(p, 64, 64));
        for (int entry = 0, next = 0; listed && entry < ENTRIES; entry++) {
            int first, n = kv_early(cache, entry, &first);
            assert_int_equal(n, entry == 1 ? 0 : 4); /* keys and values of two pages */
            if (n) assert_int_equal(first, next);
            for (int i = 0; i < n; i++) kv_quantize(cache, &kernels, next++, scratch);
        }
        assert_int_equal(view.n_quantized[0], 0); /* not before the commit */
        int n_tasks = kv_commit(cache);
        assert_int_equal(n_tasks, listed ? 0 : 8);
        for (int i = 0; i < n_tasks; i++) kv_quantize(cache, &kernels, i, scratch);
        kv_finish_step(cache);
        free(scratch);
        assert_ok(kv_check(cache));
        assert_false(kv_spans_units(cache));
        assert_int_equal(kv_quantized(cache, 0), 128);
        assert_int_equal(kv_quantized(cache, 1), 0);
        assert_int_equal(kv_quantized(cache, 2), 128);
    }
    for (int entry = 0; entry < ENTRIES; entry++) {
        static float rows[2][N * 16];
        for (int i = 0; i < 2; i++) assert_ok(kv_read(caches[i], &kernels, entry, true, 0, N, rows[i]));
        assert_memory_equal(rows[0], rows[1], sizeof rows[0]);
    }
    /* A step inside a unit lists nothing, and an abandoned one leaves nothing listed. */
    assert_ok(kv_reserve(caches[0], 3));
    assert_false(kv_spans_units(caches[0]));
    kv_abandon(caches[0]);
    assert_ok(kv_truncate(caches[0], 192));
    assert_ok(kv_reserve(caches[0], 200));
    assert_true(kv_spans_units(caches[0]));
    kv_abandon(caches[0]);
    assert_false(kv_spans_units(caches[0]));
    assert_ok(kv_check(caches[0]));
    for (int i = 0; i < 2; i++) kv_close(&caches[i]);
    kv_pool_close(&pool);
}

/* ---- pools ---- */

static void budgets_are_named(void **state) {
    (void)state;
    kv_pool *pool = NULL;
    kv_page *a = NULL, *b = NULL;
    assert_ok(kv_pool_open(&pool, 1000));
    assert_ok(kv_pool_take(&a, pool, 600));
    assert_fails(MN_E_NOMEM, "1000", kv_pool_take(&b, pool, 401));
    assert_fails(MN_E_NOMEM, "600 of", kv_pool_take(&b, pool, SIZE_MAX));
    assert_null(b);
    assert_ok(kv_pool_take(&b, pool, 400));
    assert_int_equal(kv_pool_used(pool), 1000);
    kv_page_share(b);
    kv_pool_return(pool, b);
    assert_int_equal(kv_pool_used(pool), 1000);
    kv_pool_return(pool, b);
    kv_pool_return(pool, a);
    assert_int_equal(kv_pool_used(pool), 0);
    kv_pool_close(&pool);
}

/* Bytes that one form left in a page may be infinite in another form. */
/* Pages of a size that is allocated in slabs: each separate and clean; their blocks are used again after the pages were
 * offloaded. */
static void pages_of_slabs(void **state) {
    (void)state;
    enum { N = 100, BYTES = 192 << 10 };
    int64_t live = mem_count().live;
    kv_pool *pool = NULL;
    kv_page *pages[N];
    assert_ok(kv_pool_open(&pool, 0));
    assert_ok(kv_pool_open_offload(pool, NULL));
    for (int i = 0; i < N; i++) {
        assert_ok(kv_pool_take(&pages[i], pool, BYTES));
        assert_int_equal((uintptr_t)pages[i]->data % 64, 0);
        for (int b = 0; b < BYTES; b += 509) assert_int_equal(pages[i]->data[b], 0);
        memset(pages[i]->data, i + 1, BYTES);
    }
    assert_int_equal(kv_pool_used(pool), (size_t)N * BYTES);
    int64_t held = mem_count().live;
    for (int i = 0; i < N; i += 3) assert_ok(kv_pool_send(pool, pages[i]));
    for (int round = 0; round < 3; round++) { /* no more memory is needed: the blocks are free */
        kv_page *more[N / 3];
        for (int i = 0; i < N / 3; i++) {
            assert_ok(kv_pool_take(&more[i], pool, BYTES));
            for (int b = 0; b < BYTES; b += 509) assert_int_equal(more[i]->data[b], 0);
            memset(more[i]->data, 0x7F, BYTES);
        }
        for (int i = 0; i < N / 3; i++) assert_ok(kv_pool_send(pool, more[i]));
        for (int i = 0; i < N / 3; i++) kv_pool_return(pool, more[i]);
    }
    assert_true(mem_count().live <= held + 8);
    char *other = mem_alloc(BYTES / 2, 1);
    assert_non_null(other);
    kv_pool_refill(pool, pages[1], other, BYTES / 2);
    for (int i = 0; i < N; i++) {
        static char copied[BYTES];
        if (i == 1) continue;
        assert_ok(kv_pool_copy(pool, pages[i], 0, BYTES, copied));
        for (int b = 0; b < BYTES; b++) assert_int_equal(copied[b], i + 1);
    }
    for (int i = 0; i < N; i++) kv_pool_return(pool, pages[i]);
    assert_int_equal(kv_pool_used(pool), 0);
    kv_pool_close(&pool);
    assert_int_equal(mem_count().live, live);
}

static void pages_are_clean_when_taken(void **state) {
    (void)state;
    kv_pool *pool = NULL;
    kv_page *page = NULL;
    assert_ok(kv_pool_open(&pool, 0));
    for (int round = 0; round < 2; round++) {
        assert_ok(kv_pool_take(&page, pool, 256));
        for (int i = 0; i < 256; i++) assert_int_equal(page->data[i], 0);
        memset(page->data, 0xFF, 256);
        kv_pool_return(pool, page);
    }
    kv_pool_close(&pool);
}

/* ---- specs ---- */

static void make_specs(kv_spec *specs) {
    kv_form form = kv_form_exact(KV_F32);
    for (int i = 0; i < 4; i++) specs[i] = (kv_spec){.n_heads = 2, .k_dim = 6, .v_dim = 4, .key = form, .value = form};
    specs[1] = (kv_spec){.n_heads = 1, .k_dim = 2, .v_dim = 8, .key = form, .value = form};
    specs[3].window = 5;
}

static void bad_specs_are_refused(void **state) {
    (void)state;
    kv_pool *pool = NULL;
    int64_t live = mem_count().live;
    assert_ok(kv_pool_open(&pool, 0));
    for (int i = 0; i < 10; i++) {
        kv_spec specs[4];
        kv_cache *cache = (kv_cache *)(void *)&pool;
        make_specs(specs);
        kv_spec *s = &specs[i % 4];
        switch (i) {
        case 0: s->n_heads = 0; break;
        case 1: s->k_dim = 0; break;
        case 2: s->v_dim = 0; break;
        case 3: s->k_dim = 3; break;
        case 4: s->v_dim = 5; break;
        case 5: s->n_heads = -1; break;
        case 6: s->key = (kv_form){.codec = KV_QUANTO, .bits = 3}; break;
        case 7: s->value = (kv_form){.codec = KV_MNEME, .bits = 4}; break; /* rows of 4 */
        case 8: *s = (kv_spec){.kind = KV_STATE}; break;
        default: *s = (kv_spec){.kind = KV_STATE, .state_bytes = 4, .checkpoints = -1};
        }
        kv_options options = {.page_tokens = 4};
        mn_status wanted = i == 6 || i == 7 ? MN_E_ARG : MN_E_UNSUPPORTED;
        assert_fails(wanted, NULL, kv_open(&cache, pool, specs, 4, &options));
        assert_null(cache);
        assert_true(kv_plan_bytes(specs, 4, &options, 10) == SIZE_MAX);
    }
    for (int page = -2; page <= 7; page++) {
        kv_spec specs[4];
        kv_cache *cache = NULL;
        make_specs(specs);
        mn_status status = kv_open(&cache, pool, specs, 4, &(kv_options){.page_tokens = page});
        assert_int_equal(status, page >= 2 && page % 2 == 0 ? MN_OK : MN_E_ARG);
        kv_close(&cache);
    }
    assert_int_equal(kv_pool_used(pool), 0);
    kv_pool_close(&pool);
    assert_int_equal(mem_count().live, live);
}

/* Entries share a table exactly when their specs are equal. */
static void different_specs_are_unequal(void **state) {
    (void)state;
    const kv_spec base = {.n_heads = 2,
                          .k_dim = 16,
                          .v_dim = 16,
                          .key = {.codec = KV_QUANTO, .bits = 4},
                          .value = {.codec = KV_QUANTO, .bits = 4},
                          .residual = 4,
                          .exact_first = 2,
                          .sinks = 1,
                          .window = 9,
                          .state_bytes = 8,
                          .checkpoints = 2};
    kv_spec other[17];
    for (int i = 0; i < 17; i++) other[i] = base;
    other[0].kind = KV_STATE;
    other[1].n_heads++;
    other[2].k_dim += 2;
    other[3].v_dim += 2;
    other[4].exact = KV_BF16;
    other[5].key.bits = 2;
    other[6].value.bits = 2;
    other[7].residual++;
    other[8].flush = true;
    other[9].exact_first++;
    other[10].sinks++;
    other[11].window++;
    other[12].write_once = true;
    other[13].is_offloaded = true;
    other[14].state_bytes++;
    other[15].checkpoints++;
    other[16].calibration = model_calibration(0, 16);
    assert_true(kv_spec_equal(&base, &base));
    for (int i = 0; i < 17; i++) {
        if (kv_spec_equal(&base, &other[i])) fail_msg("spec %d equals a different one", i);
        assert_true(kv_spec_equal(&other[i], &other[i]));
    }
    kv_spec elsewhere = other[16];
    elsewhere.calibration = model_calibration(1, 16);
    assert_true(kv_spec_equal(&other[16], &elsewhere));
}

/* ---- static caches ---- */

static void step(kv_cache *cache, int64_t n) {
    kernel_table kernels;
    kernel_table_fill(&kernels, CPU_SCALAR);
    assert_ok(kv_reserve(cache, n));
    int n_tasks = kv_commit(cache);
    void *scratch = mem_alloc(kv_quantize_scratch(cache), 1);
    for (int i = 0; i < n_tasks; i++) kv_quantize(cache, &kernels, i, scratch);
    mem_free(scratch);
    kv_finish_step(cache);
}

static void static_caches_stay_where_they_are(void **state) {
    (void)state;
    kv_spec specs[4];
    kv_pool *pool = NULL;
    kv_cache *cache = NULL;
    make_specs(specs);
    specs[3].window = 0;
    assert_ok(kv_pool_open(&pool, 0));
    kv_options options = {.page_tokens = 4, .reserve = 30, .limit = 30};
    assert_ok(kv_open(&cache, pool, specs, 4, &options));
    size_t held = kv_bytes(cache), used = kv_pool_used(pool);
    assert_int_equal(held, kv_plan_bytes(specs, 4, &options, 30));
    const char *const *table = kv_attention_view(cache, 0).exact;
    const char *pages[8];
    for (int round = 0; round < 3; round++) {
        while (kv_length(cache) < 30) {
            if (kv_length(cache) % 2) {
                assert_ok(kv_reserve(cache, 3));
                kv_abandon(cache);
            }
            step(cache, 3);
        }
        int64_t before = mem_count().allocations;
        assert_fails(MN_E_FULL, "holds 30 tokens of at most 30", kv_reserve(cache, 1));
        assert_int_equal(mem_count().allocations, before);
        assert_ptr_equal(kv_attention_view(cache, 0).exact, table);
        if (round == 0) memcpy(pages, table, sizeof pages);
        assert_memory_equal(pages, table, sizeof pages);
        assert_int_equal(kv_bytes(cache), held);
        assert_int_equal(kv_pool_used(pool), used);
        assert_ok(kv_truncate(cache, 3 * round));
        assert_int_equal(kv_bytes(cache), held);
    }
    assert_int_equal(kv_room(cache), 30);
    kv_close(&cache);
    kv_pool_close(&pool);
}

/* A fork of a preallocated cache, and its parent, continue at their addresses: no page that is still written is shared.
 */
static void reserved_pages_stay_after_forks(void **state) {
    (void)state;
    kv_pool *pool = NULL;
    kv_cache *cache = NULL, *fork = NULL;
    kv_form form = {.codec = KV_QUANTO, .bits = 4};
    kv_spec spec = {
        .n_heads = 1, .k_dim = 16, .v_dim = 16, .key = form, .value = form, .exact_first = 5, .residual = 16};
    kv_options options = {.page_tokens = 16, .reserve = 64, .limit = 64};
    assert_ok(kv_pool_open(&pool, 0));
    assert_ok(kv_open(&cache, pool, &spec, 1, &options));
    step(cache, 3);
    const char *head = kv_attention_view(cache, 0).head, *page = kv_attention_view(cache, 0).exact[0];
    assert_ok(kv_fork(&fork, cache));
    assert_ptr_not_equal(kv_attention_view(fork, 0).head, head);
    size_t used = kv_pool_used(pool);
    step(cache, 2);
    step(fork, 2);
    assert_ptr_equal(kv_attention_view(cache, 0).head, head);
    assert_ptr_equal(kv_attention_view(cache, 0).exact[0], page);
    assert_int_equal(kv_pool_used(pool), used);
    kv_close(&fork);
    assert_ok(kv_fork(&fork, cache)); /* the head is complete */
    assert_ptr_equal(kv_attention_view(fork, 0).head, head);
    kv_close(&fork);
    kv_close(&cache);
    kv_pool_close(&pool);
}

/* ---- failures ---- */

/* Every allocation of opening, stepping, filling and forking fails once; each time nothing has changed. */
static void fail_each_once(void (*make)(fixture_setting *, uint64_t), uint64_t n_seeds) {
    for (uint64_t seed = 1; seed <= n_seeds; seed++) {
        static fixture w;
        fixture_setting set;
        make(&set, seed);
        set.fails = true; /* refusals are no problem */
        fixture_open(&w, &set, NULL);
        for (unsigned k = 1; w.n_members == 0; k++) {
            if (fixture_add(&w, &w.members[0], 3 * (k - 1) % 42)) w.n_members = 1;
        }
        uint32_t tokens[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
        for (int round = 0; round < 4; round++) {
            kv_call_begin(w.members[0].cache);
            model_call_begin(w.members[0].model);
            kv_call_ends(w.members[0].cache, true);
            w.members[0].model->call_ends = true;
            int n = (int)min_i64(16, kv_step_limit(w.members[0].cache, kv_length(w.members[0].cache)) -
                                         kv_length(w.members[0].cache));
            for (unsigned k = 0; !fixture_step(&w, &w.members[0], tokens, n, 0, 3 * (k % 14)); k++) {
                fixture_check_all(&w);
                if (w.problem) fail_msg("seed %d: %s", (int)seed, w.problem);
                if (k > 14) fail_msg("seed %d: a step is always refused", (int)seed);
            }
            fixture_commit(&w, &w.members[0], tokens, 0);
            for (unsigned k = 0; !fixture_fork(&w, &w.members[1], &w.members[0], 3 * (k % 14)); k++) {
                fixture_check_all(&w);
                if (w.problem) fail_msg("seed %d: %s", (int)seed, w.problem);
                if (k > 14) break;
            }
            if (w.members[1].cache) w.n_members = 2;
            fixture_check_all(&w);
            if (w.n_members == 2) fixture_drop(&w.members[--w.n_members]);
        }
        fixture_close(&w);
        if (w.problem) fail_msg("seed %d: %s", (int)seed, w.problem);
    }
}

static void every_allocation_fails_once(void **state) {
    (void)state;
    fail_each_once(fixture_setting_free, 60);
    fail_each_once(fixture_setting_offloaded, 30);
}

static void reading_without_memory(void **state) {
    (void)state;
    kernel_table kernels;
    kv_pool *pool = NULL;
    kv_cache *cache = NULL;
    kv_spec specs[4];
    float rows[2 * 5 * 6];
    kernel_table_fill(&kernels, CPU_SCALAR);
    make_specs(specs);
    assert_ok(kv_pool_open(&pool, 0));
    assert_ok(kv_open(&cache, pool, specs, 4, &(kv_options){.page_tokens = 4}));
    step(cache, 5);
    mem_fail_after(1);
    assert_fails(MN_E_NOMEM, NULL, kv_read(cache, &kernels, 0, true, 0, 5, rows));
    mem_fail_after(2);
    assert_fails(MN_E_NOMEM, NULL, kv_read(cache, &kernels, 0, true, 0, 5, rows));
    mem_fail_after(0);
    assert_ok(kv_read(cache, &kernels, 0, true, 0, 5, rows));
    assert_fails(MN_E_ARG, "tokens 3 to 6 of layer 2", kv_read(cache, &kernels, 2, true, 3, 3, rows));
    kv_close(&cache);
    kv_pool_close(&pool);
}

/* ---- the planner ---- */

/* The bytes of a cache after one call; recurrent states come one a step, so these steps are of one token. */
static void plans_and_caches_agree(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        static fixture w;
        fixture_setting set;
        uint32_t tokens[MODEL_TOKENS] = {0};
        int n = (int)(seed * 37 % 120);
        fixture_setting_make(&set, seed);
        set.fails = false;
        set.budget = 0;
        set.options.limit = 0;
        bool has_states = false, has_cross = false;
        for (int i = 0; i < set.n_entries; i++) {
            has_states = has_states || set.specs[i].kind == KV_STATE;
            has_cross = has_cross || set.specs[i].write_once;
        }
        fixture_open(&w, &set, NULL);
        assert_true(fixture_add(&w, &w.members[0], 1));
        w.n_members = 1;
        if (has_cross) n %= 48;
        if (has_cross && n) fixture_do(&w, &(fixture_op){.kind = FIXTURE_FILL, .amount = (unsigned)n - 1});
        if (n && !fixture_call(&w, &w.members[0], tokens, n, has_states ? 1 : MODEL_TOKENS)) fail_msg("%s", w.problem);
        assert_false(w.problem);
        size_t planned = kv_plan_bytes(set.specs, set.n_entries, &set.options, n);
        if (kv_bytes(w.members[0].cache) != planned)
            fail_msg("seed %d: %zu bytes are held, %zu planned", (int)seed, kv_bytes(w.members[0].cache), planned);
        fixture_close(&w);
    }
}

static void bytes_of_a_token(void **state) {
    (void)state;
    kv_form exact = kv_form_exact(KV_BF16), coded = {.codec = KV_QUANTO, .bits = 4};
    kv_spec specs[] = {
        {.n_heads = 3, .k_dim = 64, .v_dim = 32, .exact = KV_BF16, .key = exact, .value = exact},
        {.kind = KV_STATE, .state_bytes = 4000},
        {.n_heads = 1, .k_dim = 64, .v_dim = 64, .exact = KV_BF16, .key = coded, .value = exact},
    };
    kv_pool *pool = NULL;
    kv_cache *cache = NULL;
    /* 64 values of 4 bits and, in groups of 64, an f16 scale and shift. */
    size_t wanted = 3 * (64 + 32) * 2 + (64 / 2 + 4) + 64 * 2;
    assert_int_equal(kv_token_bytes(specs, 3), wanted);
    assert_ok(kv_pool_open(&pool, 0));
    assert_ok(kv_open(&cache, pool, specs, 3, &(kv_options){.page_tokens = 16}));
    assert_int_equal(kv_cache_token_bytes(cache), wanted);
    assert_int_equal(kv_entries(cache), 3);
    for (int i = 0; i < 3; i++) assert_true(kv_spec_equal(kv_entry_spec(cache, i), &specs[i]));
    kv_close(&cache);
    kv_pool_close(&pool);
}

static void absurd_plans_do_not_overflow(void **state) {
    (void)state;
    kv_form exact = kv_form_exact(KV_F32);
    kv_spec specs[2] = {{.n_heads = 1 << 20, .k_dim = 1 << 20, .v_dim = 1 << 20, .key = exact, .value = exact}};
    specs[1] = specs[0];
    size_t one = kv_plan_bytes(specs, 1, &(kv_options){.page_tokens = 128}, 128);
    assert_true(one == (size_t)128 << 43);
    assert_true(kv_plan_bytes(specs, 1, &(kv_options){.page_tokens = 128}, 128 * 8192) == (size_t)1 << 63);
    assert_true(kv_plan_bytes(specs, 2, &(kv_options){.page_tokens = 128}, 128 * 8192) == SIZE_MAX);
    assert_true(kv_plan_bytes(specs, 1, &(kv_options){.page_tokens = 128}, 128 * 16384) == SIZE_MAX);
}

/* ---- kv_check ---- */

/* A cache with a window, quantized pages, a head and a state, in which one thing at a time is wrong. */
typedef struct broken {
    kv_pool *pool;
    kv_cache *cache;
    kv_group *pages, *window, *states; /* quantized and exact pages; a window that dropped some */
} broken;

static broken broken_open(void) {
    kv_form form = {.codec = KV_QUANTO, .bits = 4}, exact = kv_form_exact(KV_F32);
    const kv_spec specs[] = {
        {.n_heads = 1, .k_dim = 16, .v_dim = 16, .key = form, .value = form, .exact_first = 2},
        {.n_heads = 1, .k_dim = 4, .v_dim = 4, .key = exact, .value = exact, .window = 21},
        {.kind = KV_STATE, .state_bytes = 8, .checkpoints = 3},
    };
    broken b = {0};
    assert_ok(kv_pool_open(&b.pool, 0));
    assert_ok(kv_open(&b.cache, b.pool, specs, 3, &(kv_options){.page_tokens = 16, .limit = 100}));
    while (kv_length(b.cache) < 69) step(b.cache, kv_length(b.cache) < 64 ? 16 : 5);
    b.pages = &b.cache->groups[0];
    b.window = &b.cache->groups[1];
    b.states = &b.cache->groups[2];
    assert_ok(kv_check(b.cache));
    return b;
}

#define BROKEN(b, part, change, undo)                                                                                  \
    do {                                                                                                               \
        change;                                                                                                        \
        assert_fails(MN_E_UNSUPPORTED, part, kv_check((b).cache));                                                     \
        undo;                                                                                                          \
        assert_ok(kv_check((b).cache));                                                                                \
    } while (0)

static void broken_tables_are_found(void **state) {
    (void)state;
    broken b = broken_open();
    kv_group *g = b.pages;
    kv_page *page = NULL, *extra = NULL;
    assert_int_equal(g->n_slots, 5);
    assert_int_equal(g->n_quantized[3], 16);
    assert_int_equal(g->n_quantized[4], 0);
    assert_ok(kv_pool_take(&extra, b.pool, g->page_bytes[PAGE_EXACT]));
    BROKEN(b, "limit", b.cache->options.limit = 68, b.cache->options.limit = 100);
    BROKEN(b, "peak", b.cache->peak_bytes = kv_bytes(b.cache) - 1, b.cache->peak_bytes = SIZE_MAX);
    BROKEN(b, "table ends", g->n_slots--, g->n_slots++);
    BROKEN(b, "more quantized tokens than tokens", g->n_quantized[4] = 6, g->n_quantized[4] = 0);
    BROKEN(b, "more quantized tokens than tokens", g->n_quantized[3] = 17, g->n_quantized[3] = 16);
    BROKEN(b, "more quantized tokens than tokens", g->n_quantized[4] = -1, g->n_quantized[4] = 0);
    BROKEN(b, "neither exact nor quantized", g->n_quantized[3] = 15, g->n_quantized[3] = 16);
    BROKEN(b, "no quantized page", (page = g->pages[1][2], group_put(g, PAGE_CODED, 2, NULL)),
           group_put(g, PAGE_CODED, 2, page));
    BROKEN(b, "holds an exact page that no token needs", group_put(g, PAGE_EXACT, 2, extra),
           group_put(g, PAGE_EXACT, 2, NULL));
    BROKEN(b, "holds a quantized page that no token needs", group_put(g, PAGE_CODED, 4, extra),
           group_put(g, PAGE_CODED, 4, NULL));
    BROKEN(b, "table for kernels", g->addresses[PAGE_CODED][1] += 1, g->addresses[PAGE_CODED][1] -= 1);
    BROKEN(b, "table for kernels", g->addresses[PAGE_EXACT][1] = extra->data, g->addresses[PAGE_EXACT][1] = NULL);
    BROKEN(b, "no reference", g->pages[1][1]->references = 0, g->pages[1][1]->references = 1);
    BROKEN(b, "differs from that of its group", g->pages[1][1]->bytes += 64, g->pages[1][1]->bytes -= 64);
    BROKEN(b, "neither resident nor offloaded", g->pages[1][1]->region = 1, g->pages[1][1]->region = 0);
    BROKEN(b, "not counted as resident", g->pages[1][1]->n_resident = 0, g->pages[1][1]->n_resident = 1);
    BROKEN(b, "head page", (page = g->head, g->head = NULL), g->head = page);
    BROKEN(b, "differs from those in the table", g->n_held[PAGE_EXACT]++, g->n_held[PAGE_EXACT]--);
    BROKEN(b, "differs from those in the table", g->n_held[PAGE_CODED]--, g->n_held[PAGE_CODED]++);
    BROKEN(b, "beyond the table", g->pages[PAGE_EXACT][5] = extra, g->pages[PAGE_EXACT][5] = NULL);
    BROKEN(b, "beyond the table", g->pages[PAGE_CODED][7] = extra, g->pages[PAGE_CODED][7] = NULL);
    kv_pool_return(b.pool, extra);
    kv_close(&b.cache);
    kv_pool_close(&b.pool);
}

static void broken_windows_and_states_are_found(void **state) {
    (void)state;
    broken b = broken_open();
    kv_group *g = b.window, *s = b.states;
    /* 69 tokens: the next query sees 49 on, so pages from 48 are there. */
    assert_int_equal(g->first_page, 3);
    assert_int_equal(s->n_states, 4);
    BROKEN(b, "inside the attention window is missing", (g->spec.window = 23), (g->spec.window = 21));
    BROKEN(b, "outside the attention window", (g->spec.window = 1), (g->spec.window = 21));
    BROKEN(b, "newest state", s->states[3].position++, s->states[3].position--);
    BROKEN(b, "newest state", s->n_states--, s->n_states++);
    BROKEN(b, "out of order", s->states[1].position = s->states[2].position, s->states[1].position = 48);
    BROKEN(b, "more states", s->spec.checkpoints = 2, s->spec.checkpoints = 3);
    BROKEN(b, "out of order", s->states[0].position = 0, s->states[0].position = 32);
    /* A step's pages must exist and be unshared. */
    assert_ok(kv_reserve(b.cache, 3));
    assert_ok(kv_check(b.cache));
    BROKEN(b, "will be written", b.pages->pages[PAGE_EXACT][4]->references = 2,
           b.pages->pages[PAGE_EXACT][4]->references = 1);
    BROKEN(b, "limit", b.cache->options.limit = 71, b.cache->options.limit = 72);
    kv_abandon(b.cache);
    b.cache->options.limit = 0;
    assert_ok(kv_reserve(b.cache, 11)); /* into a new page */
    kv_page *page = b.pages->pages[PAGE_EXACT][4];
    BROKEN(b, NULL, group_put(b.pages, PAGE_EXACT, 4, NULL), group_put(b.pages, PAGE_EXACT, 4, page));
    kv_abandon(b.cache);
    kv_close(&b.cache);
    kv_pool_close(&b.pool);
}

/* A step of tokens whose head, exact page and codes are about to be written. */
static void broken_steps_are_found(void **state) {
    (void)state;
    kv_form form = {.codec = KV_QUANTO, .bits = 4};
    const kv_spec spec = {
        .n_heads = 1, .k_dim = 16, .v_dim = 16, .key = form, .value = form, .exact_first = 20, .flush = true};
    kv_pool *pool = NULL;
    kv_cache *cache = NULL;
    assert_ok(kv_pool_open(&pool, 0));
    assert_ok(kv_open(&cache, pool, &spec, 1, &(kv_options){.page_tokens = 16, .reserve = 64}));
    kv_group *g = &cache->groups[0];
    broken b = {.cache = cache};
    BROKEN(b, "more pages are reserved", g->reserved[0].capacity--, g->reserved[0].capacity++);
    BROKEN(b, "more pages are reserved", g->reserved[1].capacity--, g->reserved[1].capacity++);
    kv_call_begin(cache);
    kv_call_ends(cache, true);
    step(cache, 18);
    kv_call_begin(cache);
    g->flushes = true;
    kv_call_ends(cache, true);
    assert_ok(kv_reserve(cache, 20));
    assert_ok(kv_check(cache));
    for (int slot = 1; slot < 3; slot++) {
        for (int kind = 0; kind < 2; kind++) {
            kv_page *page = g->pages[kind][slot];
            BROKEN(b, "will be written", page->references = 2, page->references = 1);
            BROKEN(b, NULL, group_put(g, (page_kind)kind, (size_t)slot, NULL),
                   group_put(g, (page_kind)kind, (size_t)slot, page));
        }
    }
    BROKEN(b, "head page will be written", g->head->references = 2, g->head->references = 1);
    kv_abandon(cache);
    kv_close(&cache);
    kv_pool_close(&pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(visible_positions),
        cmocka_unit_test(slots_of_queries),
        cmocka_unit_test(needed_positions),
        cmocka_unit_test(units_of_quantizing),
        cmocka_unit_test(steps_over_units),
        cmocka_unit_test(budgets_are_named),
        cmocka_unit_test(pages_of_slabs),
        cmocka_unit_test(pages_are_clean_when_taken),
        cmocka_unit_test(bad_specs_are_refused),
        cmocka_unit_test(different_specs_are_unequal),
        cmocka_unit_test(static_caches_stay_where_they_are),
        cmocka_unit_test(reserved_pages_stay_after_forks),
        cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(reading_without_memory),
        cmocka_unit_test(plans_and_caches_agree),
        cmocka_unit_test(bytes_of_a_token),
        cmocka_unit_test(absurd_plans_do_not_overflow),
        cmocka_unit_test(broken_tables_are_found),
        cmocka_unit_test(broken_windows_and_states_are_found),
        cmocka_unit_test(broken_steps_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
