/* Caches against a model of what they must hold: random sequences of operations over several caches that
 * share a pool, after each of which every token is read back from the pages by the layout of
 * kernels/attend.h, the shared pages are counted, and kv_check is asked. A sequence that fails is shortened
 * before it is shown. SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "kv/kv.h"
#include "kv/plan.h"
#include "kv/visible.h"

enum { MOST_CACHES = 5, MOST_TOKENS = 40, MOST_PAGES = MOST_TOKENS / 2, MOST_OPS = 80, N_ENTRIES = 4 };

/* Two groups: entries 0, 2, 3 are alike but for a window, 1 and 3 differ. */
static void make_specs(kv_spec *specs, kv_codec codec) {
    kv_form form = kv_form_exact(codec);
    for (int i = 0; i < N_ENTRIES; i++) {
        specs[i] = (kv_spec){.n_heads = 2, .k_dim = 6, .v_dim = 4, .key = form, .value = form};
    }
    specs[1] = (kv_spec){.n_heads = 1, .k_dim = 2, .v_dim = 8, .key = form, .value = form};
    specs[3].window = 5;
}

/* ---- what must be there ---- */

typedef struct setting {
    kv_codec codec;
    int page_tokens;
    int64_t reserve, limit;
    size_t budget_pages; /* of all groups together; 0: no limit */
    bool fails;          /* allocations fail now and then */
    bool forks;
} setting;

typedef enum op_kind {
    OP_STEP,
    OP_ABANDON,
    OP_TRUNCATE,
    OP_TRUNCATE_IN_STEP,
    OP_FORK,
    OP_CLOSE,
    N_OPS
} op_kind;

typedef struct op {
    op_kind kind;
    unsigned cache, amount, fail; /* reduced to what is possible when the operation is done */
} op;

typedef struct expected {
    kv_cache *cache;
    uint32_t tokens[MOST_TOKENS]; /* what was stored at each position */
    int64_t n;
    int pages[MOST_PAGES]; /* numbers of pages: equal ones are shared */
    int n_pages;
    size_t peak;
} expected;

typedef struct world {
    const setting *set;
    kv_spec specs[N_ENTRIES];
    kernel_table kernels;
    kv_pool *pool;
    expected caches[MOST_CACHES];
    int n_caches, next_page;
    uint32_t next_token;
    size_t page_bytes; /* of all groups */
    const char *problem;
    int n_refused; /* steps that found no room or memory */
} world;

/* The value of a token's key or value: distinct wherever it matters, exact in bf16. */
static float value_of(uint32_t token, int entry, int head, int is_value, int i) {
    uint32_t mixed = (token * 131u + (uint32_t)(entry * 29 + head * 13 + is_value * 7 + i)) * 2654435761u;
    return (float)((int)(mixed >> 24) - 128) / 16;
}

static float stored_float(const kv_view *view, const char *head, bool is_value, int dim, int slot, int i) {
    int page = view->page_tokens;
    size_t place;
    if (view->spec->key.codec == KV_F32) {
        place = is_value ? (size_t)(slot * dim + i) : (size_t)(i * page + slot);
        float x;
        memcpy(&x, head + place * sizeof x, sizeof x);
        return x;
    }
    place = is_value ? (size_t)(slot / 2 * dim * 2 + i * 2 + slot % 2)
                     : (size_t)(i / 2 * page * 2 + slot * 2 + i % 2);
    bf16 x;
    memcpy(&x, head + place * sizeof x, sizeof x);
    return f32_from_bf16(x);
}

static void check_token(world *w, const expected *e, int entry, int64_t position, uint32_t token) {
    kv_view view = kv_look(e->cache, entry);
    const char *page = view.pages[position / view.page_tokens];
    int slot = (int)(position % view.page_tokens);
    for (int head = 0; head < view.spec->n_heads; head++) {
        const char *keys = page + view.k_offset + (size_t)head * view.k_head_bytes,
                   *values = page + view.v_offset + (size_t)head * view.v_head_bytes;
        for (int i = 0; i < view.spec->k_dim; i++) {
            if (stored_float(&view, keys, false, view.spec->k_dim, slot, i) !=
                value_of(token, entry, head, 0, i))
                w->problem = "a key is not what was stored";
        }
        for (int i = 0; i < view.spec->v_dim; i++) {
            if (stored_float(&view, values, true, view.spec->v_dim, slot, i) !=
                value_of(token, entry, head, 1, i))
                w->problem = "a value is not what was stored";
        }
    }
}

/* Every token, those of a step in progress included. */
static void check_tokens(world *w, const expected *e, const uint32_t *step, int64_t n_step) {
    for (int entry = 0; entry < N_ENTRIES; entry++) {
        kv_view view = kv_look(e->cache, entry);
        if (view.n_tokens != e->n + n_step) w->problem = "the view counts other tokens";
        if (view.n_pages != (int)ceil_div(e->n + n_step, w->set->page_tokens))
            w->problem = "the view has other pages";
        for (int64_t t = 0; t < e->n + n_step; t++)
            check_token(w, e, entry, t, t < e->n ? e->tokens[t] : step[t - e->n]);
    }
}

static int needed_pages(const world *w, int64_t n_tokens) {
    int64_t n = ceil_div(n_tokens, w->set->page_tokens),
            kept = ceil_div(w->set->reserve, w->set->page_tokens);
    return (int)(n > kept ? n : kept);
}

static int times_used(const world *w, int page) {
    int n = 0;
    for (int c = 0; c < w->n_caches; c++) {
        for (int i = 0; i < w->caches[c].n_pages; i++) n += w->caches[c].pages[i] == page;
    }
    return n;
}

static size_t used_pages(const world *w) {
    size_t n = 0;
    for (int page = 0; page < w->next_page; page++) n += times_used(w, page) > 0;
    return n;
}

static void check_all(world *w) {
    for (int c = 0; c < w->n_caches && !w->problem; c++) {
        const expected *e = &w->caches[c];
        check_tokens(w, e, NULL, 0);
        if (kv_length(e->cache) != e->n) w->problem = "the length is another";
        if (kv_bytes(e->cache) != (size_t)e->n_pages * w->page_bytes) w->problem = "the bytes are others";
        if (kv_room(e->cache) != e->n_pages * w->set->page_tokens) w->problem = "the room is another";
        if (kv_peak_bytes(e->cache) != e->peak) w->problem = "the peak is another";
        if (kv_check(e->cache) != MN_OK) w->problem = mn_last_error();
        if (!w->set->reserve &&
            kv_plan_bytes(w->specs, N_ENTRIES, w->set->page_tokens, e->n) != kv_bytes(e->cache))
            w->problem = "the plan is another";
    }
    if (kv_pool_used(w->pool) != used_pages(w) * w->page_bytes) w->problem = "the pool counts other pages";
}

/* ---- operations ---- */

static void note_peak(world *w, expected *e) {
    size_t now = (size_t)e->n_pages * w->page_bytes;
    if (now > e->peak) e->peak = now;
}

static bool fits(const world *w, int n_more) {
    return !w->set->budget_pages || used_pages(w) + (size_t)n_more <= w->set->budget_pages;
}

static void open_first(world *w) {
    expected *e = &w->caches[0];
    kv_options options = {w->set->page_tokens, w->set->reserve, w->set->limit};
    *e = (expected){0};
    assert_ok(kv_open(&e->cache, w->pool, w->specs, N_ENTRIES, &options));
    for (; e->n_pages < needed_pages(w, 0); e->n_pages++) e->pages[e->n_pages] = w->next_page++;
    note_peak(w, e);
    w->n_caches = 1;
}

/* Pages that a step of n tokens must take: new ones, and copies of shared ones that it writes. */
static int pages_of_step(const world *w, const expected *e, int64_t n) {
    int end = needed_pages(w, e->n + n), written = (int)ceil_div(e->n + n, w->set->page_tokens);
    int more = end > e->n_pages ? end - e->n_pages : 0;
    for (int i = (int)(e->n / w->set->page_tokens); i < written && i < e->n_pages; i++)
        more += times_used(w, e->pages[i]) > 1;
    return more;
}

/* Reserves, and knows whether that must succeed. */
static bool reserve(world *w, expected *e, int64_t n, const op *o) {
    int more = pages_of_step(w, e, n);
    bool full = w->set->limit && e->n + n > w->set->limit, room = fits(w, more);
    if (w->set->fails && o->fail % 4 == 0) mem_fail_after(1 + o->fail / 4 % 6);
    mn_status status = kv_reserve(e->cache, n);
    mem_fail_after(0);
    if (status != MN_OK) {
        w->n_refused++;
        if (status == MN_E_FULL && !full) w->problem = "refused as full with room left";
        if (status == MN_E_NOMEM && room && !w->set->fails) w->problem = "refused within the budget";
        if (status != MN_E_FULL && status != MN_E_NOMEM) w->problem = "refused for another reason";
        return false;
    }
    if (full || !room) w->problem = "more was reserved than allowed";
    int written = (int)ceil_div(e->n + n, w->set->page_tokens);
    for (int i = (int)(e->n / w->set->page_tokens); i < written && i < e->n_pages; i++) {
        if (times_used(w, e->pages[i]) > 1) e->pages[i] = w->next_page++;
    }
    for (; e->n_pages < written; e->n_pages++) e->pages[e->n_pages] = w->next_page++;
    note_peak(w, e);
    return true;
}

/* Stores tokens [begin, end) of a step for one head, from rows with a gap between them. */
static void append(world *w, const expected *e, const uint32_t *tokens, int entry, int head, int begin,
                   int end) {
    enum { STRIDE = 20 };
    float rows[MOST_TOKENS][STRIDE];
    const kv_spec *spec = kv_entry_spec(e->cache, entry);
    for (int t = begin; t < end; t++) {
        for (int i = 0; i < spec->k_dim; i++) rows[t][i] = value_of(tokens[t], entry, head, 0, i);
        for (int i = 0; i < spec->v_dim; i++) rows[t][10 + i] = value_of(tokens[t], entry, head, 1, i);
    }
    kv_append(e->cache, &w->kernels, entry, head, begin, end, &rows[0][0], &rows[0][10], STRIDE, STRIDE);
}

/* All heads of all entries, cut at a page edge and stored in another order. */
static void append_all(world *w, const expected *e, const uint32_t *tokens, int n, unsigned order) {
    int edge = w->set->page_tokens - (int)(e->n % w->set->page_tokens);
    if (edge > n) edge = n;
    for (int i = 0; i < N_ENTRIES; i++) {
        int entry = order % 2 ? N_ENTRIES - 1 - i : i;
        for (int head = 0; head < kv_entry_spec(e->cache, entry)->n_heads; head++) {
            if (order / 2 % 2) append(w, e, tokens, entry, head, edge, n);
            append(w, e, tokens, entry, head, 0, edge);
            if (order / 2 % 2 == 0) append(w, e, tokens, entry, head, edge, n);
        }
    }
}

static void drop_pages(world *w, expected *e, int64_t n) {
    int keep = needed_pages(w, n);
    if (e->n_pages > keep) e->n_pages = keep;
}

static void do_step(world *w, expected *e, const op *o) {
    uint32_t tokens[MOST_TOKENS];
    int n = 1 + (int)(o->amount % 11);
    if (e->n + n > MOST_TOKENS) n = (int)(MOST_TOKENS - e->n);
    int pages_before = e->n_pages;
    if (n == 0 || !reserve(w, e, n, o)) return;
    for (int i = 0; i < n; i++) tokens[i] = w->next_token++;
    if (o->kind == OP_ABANDON) {
        append_all(w, e, tokens, n / 2, o->amount);
        kv_abandon(e->cache);
        e->n_pages = pages_before;
        return;
    }
    append_all(w, e, tokens, n, o->amount);
    check_tokens(w, e, tokens, n);
    if (kv_check(e->cache) != MN_OK) w->problem = mn_last_error();
    if (o->kind == OP_TRUNCATE_IN_STEP) {
        int64_t keep = (int64_t)(o->amount % (unsigned)(e->n + 1));
        assert_ok(kv_truncate(e->cache, keep));
        e->n = keep;
        e->n_pages = pages_before;
        drop_pages(w, e, keep);
        return;
    }
    kv_commit(e->cache);
    memcpy(e->tokens + e->n, tokens, (size_t)n * sizeof *tokens);
    e->n += n;
}

/* Pages are shared, but that a cache with reserved pages keeps those to itself that are not full. */
static void do_fork(world *w, const expected *e, const op *o) {
    if (w->n_caches == MOST_CACHES || !w->set->forks) return;
    int64_t full = e->n / w->set->page_tokens;
    int own = w->set->reserve ? e->n_pages - (int)full : 0;
    expected *fork = &w->caches[w->n_caches];
    kv_cache *cache = NULL;
    if (w->set->fails && o->fail % 3 == 0) mem_fail_after(1 + o->fail / 3 % 12);
    mn_status status = kv_fork(&cache, e->cache);
    mem_fail_after(0);
    if (status != MN_OK) {
        w->n_refused++;
        if (cache) w->problem = "a failed fork gave a cache";
        if (fits(w, own) && !w->set->fails) w->problem = "a fork was refused within the budget";
        return;
    }
    if (!fits(w, own)) w->problem = "a fork took more than the budget";
    *fork = *e;
    fork->cache = cache;
    for (int i = fork->n_pages - own; i < fork->n_pages; i++) fork->pages[i] = w->next_page++;
    fork->peak = 0;
    note_peak(w, fork);
    w->n_caches++;
}

static void do_close(world *w, int i) {
    if (w->n_caches == 1) return;
    kv_close(&w->caches[i].cache);
    if (w->caches[i].cache) w->problem = "a closed cache is still there";
    w->caches[i] = w->caches[--w->n_caches];
}

static void do_truncate(world *w, expected *e, const op *o) {
    int64_t keep = (int64_t)(o->amount % (unsigned)(e->n + 1));
    if (kv_truncate(e->cache, e->n + 1) != MN_E_ARG || kv_truncate(e->cache, -1) != MN_E_ARG)
        w->problem = "truncation to more than there is";
    if (kv_truncate(e->cache, keep) != MN_OK) w->problem = "truncation was refused";
    e->n = keep;
    drop_pages(w, e, keep);
}

static void do_op(world *w, const op *o) {
    int i = (int)(o->cache % (unsigned)w->n_caches);
    expected *e = &w->caches[i];
    switch (o->kind) {
    case OP_STEP:
    case OP_ABANDON:
    case OP_TRUNCATE_IN_STEP: do_step(w, e, o); break;
    case OP_TRUNCATE: do_truncate(w, e, o); break;
    case OP_FORK: do_fork(w, e, o); break;
    case OP_CLOSE: do_close(w, i); break;
    default: break;
    }
}

/* NULL, or what went wrong at *n_done. */
static const char *run(const setting *set, const op *ops, int n, int *n_done, int *n_refused) {
    static world w;
    int64_t live = mem_count().live;
    w = (world){.set = set, .next_token = 1};
    make_specs(w.specs, set->codec);
    kernel_table_fill(&w.kernels, cpu_best());
    w.page_bytes = kv_plan_bytes(w.specs, N_ENTRIES, set->page_tokens, 1);
    assert_ok(kv_pool_open(&w.pool, set->budget_pages * w.page_bytes));
    open_first(&w);
    for (*n_done = 0; *n_done < n && !w.problem; ++*n_done) {
        do_op(&w, &ops[*n_done]);
        if (!w.problem) check_all(&w);
    }
    for (int i = 0; i < w.n_caches; i++) kv_close(&w.caches[i].cache);
    if (!w.problem && kv_pool_used(w.pool) != 0) w.problem = "pages were not returned";
    kv_pool_close(&w.pool);
    if (!w.problem && mem_count().live != live) w.problem = "memory was not returned";
    if (n_refused) *n_refused += w.n_refused;
    return w.problem;
}

/* ---- random sequences ---- */

static const char *const op_names[N_OPS] = {"step", "abandoned step", "truncate", "truncate in a step",
                                            "fork", "close"};

/* Leaves out every operation without which the sequence still fails, and shows the rest. */
static void show_shortest(const setting *set, op *ops, int n, uint64_t seed) {
    char text[2048] = "";
    int done;
    for (int i = n - 1; i >= 0; i--) {
        op gone = ops[i];
        memmove(ops + i, ops + i + 1, (size_t)(n - i - 1) * sizeof *ops);
        if (run(set, ops, n - 1, &done, NULL)) {
            n--;
            continue;
        }
        memmove(ops + i + 1, ops + i, (size_t)(n - i - 1) * sizeof *ops);
        ops[i] = gone;
    }
    const char *problem = run(set, ops, n, &done, NULL);
    for (int i = 0; i < n; i++) {
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "\n  %s of cache %u, amount %u, fail %u", op_names[ops[i].kind],
                 ops[i].cache, ops[i].amount, ops[i].fail);
    }
    fail_msg("seed %d, %s, pages of %d, reserve %d, limit %d, budget %zu: %s after%s", (int)seed,
             kv_codec_name(set->codec), set->page_tokens, (int)set->reserve, (int)set->limit,
             set->budget_pages, problem ? problem : "(no longer)", text);
}

static int run_random(const setting *set, int n_runs) {
    int n_refused = 0;
    for (uint64_t seed = 0; seed < (uint64_t)n_runs; seed++) {
        uint64_t state = seed << 20;
        op ops[MOST_OPS];
        int done;
        for (int i = 0; i < MOST_OPS; i++) {
            uint64_t r = test_random(&state);
            static const op_kind often[] = {OP_STEP,    OP_STEP,     OP_STEP,
                                            OP_ABANDON, OP_TRUNCATE, OP_TRUNCATE_IN_STEP,
                                            OP_FORK,    OP_FORK,     OP_CLOSE};
            ops[i] = (op){often[r % 9], (unsigned)(r >> 8 & 0xFF), (unsigned)(r >> 16 & 0xFFFF),
                          (unsigned)(r >> 32 & 0xFFFF)};
        }
        if (run(set, ops, MOST_OPS, &done, &n_refused)) show_shortest(set, ops, done, seed);
    }
    return n_refused;
}

#define FOR_FORMS(set)                                                                                       \
    for (kv_codec codec_ = KV_F32; codec_ <= KV_BF16; codec_ = (kv_codec)(codec_ + 1))                       \
        for (int page_ = 2; page_ <= 6; page_ += 2)                                                          \
            for (setting set = {.codec = codec_, .page_tokens = page_, .forks = true}; set.codec == codec_;  \
                 set.codec = N_KV_CODECS)

static void dynamic_caches(void **state) {
    (void)state;
    FOR_FORMS(set) assert_int_equal(run_random(&set, 60), 0);
}

static void limited_caches(void **state) {
    (void)state;
    FOR_FORMS(set) {
        set.limit = 17;
        assert_true(run_random(&set, 40) > 0);
    }
}

static void static_caches(void **state) {
    (void)state;
    FOR_FORMS(set) {
        set.limit = set.reserve = 21;
        assert_true(run_random(&set, 40) > 0);
    }
}

/* Budgets of every size, so that they are exhausted at every place. */
static void exhausted_budgets(void **state) {
    (void)state;
    FOR_FORMS(set) {
        for (set.budget_pages = 1; set.budget_pages < 24; set.budget_pages += 2) {
            int n_refused = run_random(&set, 8);
            if (set.budget_pages < 10) assert_true(n_refused > 0);
        }
        set.limit = set.reserve = 10;
        for (set.budget_pages = 5; set.budget_pages < 24; set.budget_pages += 3) run_random(&set, 8);
    }
}

static void failing_allocations(void **state) {
    (void)state;
    FOR_FORMS(set) {
        set.fails = true;
        assert_true(run_random(&set, 60) > 0);
        set.limit = set.reserve = 21;
        run_random(&set, 30);
    }
}

/* ---- single facts ---- */

static void static_caches_stay_where_they_are(void **state) {
    (void)state;
    kv_spec specs[N_ENTRIES];
    kernel_table kernels;
    kv_pool *pool = NULL;
    kv_cache *cache = NULL;
    make_specs(specs, KV_F32);
    kernel_table_fill(&kernels, CPU_SCALAR);
    assert_ok(kv_pool_open(&pool, 0));
    assert_ok(kv_open(&cache, pool, specs, N_ENTRIES, &(kv_options){4, 30, 30}));
    size_t held = kv_bytes(cache), used = kv_pool_used(pool);
    assert_int_equal(held, kv_plan_bytes(specs, N_ENTRIES, 4, 30));
    const char *const *table = kv_look(cache, 0).pages;
    const char *pages[8];
    memcpy(pages, table, sizeof pages);
    int64_t before = mem_count().allocations;
    for (int round = 0; round < 3; round++) {
        while (kv_length(cache) < 30) {
            assert_ok(kv_reserve(cache, 3));
            if (kv_length(cache) % 2) {
                kv_abandon(cache);
                assert_ok(kv_reserve(cache, 3));
            }
            kv_commit(cache);
        }
        assert_fails(MN_E_FULL, "30", kv_reserve(cache, 1));
        assert_ok(kv_truncate(cache, round));
        assert_ptr_equal(kv_look(cache, 0).pages, table);
        assert_memory_equal(pages, table, sizeof pages);
        assert_int_equal(kv_bytes(cache), held);
        assert_int_equal(kv_pool_used(pool), used);
        while (kv_length(cache) % 3) {
            assert_ok(kv_reserve(cache, 1));
            kv_commit(cache);
        }
    }
    /* Refused reservations say what they say without allocating. */
    assert_int_equal(mem_count().allocations, before);
    kv_close(&cache);
    kv_pool_close(&pool);
}

static void bad_specs_are_refused(void **state) {
    (void)state;
    kv_pool *pool = NULL;
    int64_t live = mem_count().live;
    assert_ok(kv_pool_open(&pool, 0));
    for (int i = 0; i < 5; i++) {
        kv_spec specs[N_ENTRIES];
        kv_cache *cache = (kv_cache *)(void *)&pool;
        make_specs(specs, KV_F32);
        int *const fields[] = {&specs[2].n_heads, &specs[2].k_dim, &specs[2].v_dim, &specs[0].k_dim,
                               &specs[3].v_dim};
        *fields[i] = i == 3 ? 3 : 0;
        assert_fails(MN_E_UNSUPPORTED, NULL, kv_open(&cache, pool, specs, N_ENTRIES, &(kv_options){4, 0, 0}));
        assert_null(cache);
    }
    for (int page = -2; page <= 7; page++) {
        kv_spec specs[N_ENTRIES];
        kv_cache *cache = NULL;
        make_specs(specs, KV_F32);
        mn_status status = kv_open(&cache, pool, specs, N_ENTRIES, &(kv_options){page, 0, 0});
        assert_int_equal(status, page >= 2 && page % 2 == 0 ? MN_OK : MN_E_ARG);
        kv_close(&cache);
    }
    assert_int_equal(kv_pool_used(pool), 0);
    kv_pool_close(&pool);
    assert_int_equal(mem_count().live, live);
}

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

static void plans(void **state) {
    (void)state;
    kv_plan plan;
    mn_cache_options options = mn_cache_options_default();
    assert_ok(kv_plan_make(&plan, &options, KV_BF16));
    assert_string_equal(plan.strategy->name, "dynamic");
    assert_int_equal(plan.codec, KV_BF16);
    assert_int_equal(plan.options.page_tokens, PAGE_TOKENS);
    options.dtype = "f32";
    options.page_tokens = 6;
    options.max_cache_len = 11;
    assert_ok(kv_plan_make(&plan, &options, KV_BF16));
    assert_int_equal(plan.codec, KV_F32);
    assert_int_equal(plan.options.limit, 11);
    assert_int_equal(plan.options.reserve, 0);
    options.implementation = "static";
    assert_ok(kv_plan_make(&plan, &options, KV_BF16));
    assert_int_equal(plan.options.reserve, 11);
    const struct {
        const char *implementation, *dtype, *part;
        int64_t length;
        int page;
    } wrong[] = {
        {"dynamics", "f32", "dynamic, static, none", 0, 0},
        {"static", "f32", "max_cache_len", 0, 0},
        {"dynamic", "f16", "auto, f32, bf16", 0, 0},
        {"dynamic", "", "auto, f32, bf16", 0, 0},
        {"dynamic", "f32", "-1", -1, 0},
        {"static", "f32", "2^40", INT64_MAX, 0},
        {"dynamic", "f32", "page_tokens", 0, 3},
        {"dynamic", "f32", "page_tokens", 0, -2},
        {"dynamic", "f32", "page_tokens", 0, 256},
        {"", "f32", "allowed", 0, 0},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        options = (mn_cache_options){.size = sizeof options,
                                     .implementation = wrong[i].implementation,
                                     .dtype = wrong[i].dtype,
                                     .max_cache_len = wrong[i].length,
                                     .page_tokens = wrong[i].page};
        assert_fails(MN_E_ARG, wrong[i].part, kv_plan_make(&plan, &options, KV_F32));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dynamic_caches),        cmocka_unit_test(limited_caches),
        cmocka_unit_test(static_caches),         cmocka_unit_test(exhausted_budgets),
        cmocka_unit_test(failing_allocations),   cmocka_unit_test(static_caches_stay_where_they_are),
        cmocka_unit_test(bad_specs_are_refused), cmocka_unit_test(budgets_are_named),
        cmocka_unit_test(visible_positions),     cmocka_unit_test(plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
