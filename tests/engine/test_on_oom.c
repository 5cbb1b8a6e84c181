/* When memory ends: a session's cache changes its strategy while it holds tokens, by wish or because a budget
 * or an allocation failed, and goes on without recomputing anything.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>

#include "gen/session.h"
#include "kv/group.h"
#include "support/strategies.h"

static const char tiny[] = "golden/llama-untied-bias"; /* heads of 16: codes are possible */

enum { N_IDS = 220, MOST_FLOATS = 2 * 256 * 32 };

typedef struct world {
    mn_model *model;
    size_t vocab;
    int32_t ids[N_IDS];
    uint64_t seed;
} world;

static world open_threads(const char *path, int threads) {
    world w = {.seed = 3};
    mn_model_options options = mn_model_options_default();
    options.compute_type = "f32";
    options.threads = threads;
    assert_ok(mn_model_open(&w.model, strncmp(path, "golden/", 7) ? path : data_path(path), &options));
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&w.seed, w.ids, N_IDS, (int32_t)w.vocab);
    return w;
}

static world open_path(const char *path) {
    return open_threads(path, 2);
}

static world open_world(void) {
    return open_path(tiny);
}

static void close_world(world *w) {
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
}

/* Blocks before a test, and behind it. */
static int note_live(void **state) {
    static int64_t live;
    live = mem_count().live;
    *state = &live;
    return 0;
}
static int check_live(void **state) {
    int64_t *live = *state;
    if (mem_count().live == *live) return 0;
    print_error("%lld blocks are left\n", (long long)(mem_count().live - *live));
    return 1;
}

static mn_session *open_fed(world *w, engine_cache cache, size_t n) {
    mn_session *session = engine_session(w->model, cache);
    engine_feed(session, w->ids, n, -1, &w->seed, NULL);
    return session;
}

static mn_status change(mn_session *session, engine_cache cache) {
    mn_cache_options options = engine_cache_options(cache);
    return mn_session_set_cache(session, &options);
}

/* Tokens [from, n) go into both; the logits behind each are the same. */
static void go_on_alike(world *w, mn_session *got, mn_session *wanted, size_t n, int piece,
                        const char *what) {
    size_t from = (size_t)mn_session_length(wanted);
    float *logits[2];
    assert_int_equal(mn_session_length(got), from);
    for (int i = 0; i < 2; i++) {
        uint64_t seed = 8;
        logits[i] = malloc((n - from) * w->vocab * sizeof(float));
        engine_feed(i ? wanted : got, w->ids + from, n - from, piece, &seed, logits[i]);
    }
    engine_same_bits(logits[0], logits[1], n - from, w->vocab, "%s", what);
    assert_ok(kv_check(got->cache));
    for (int i = 0; i < 2; i++) free(logits[i]);
}

/* ---- strategies that give the same results ---- */

static void exact_changes_change_nothing(void **state) {
    (void)state;
    static const char *const names[] = {"dynamic", "hybrid", "static", "offloaded", "offloaded_static"};
    static const char *const exact[] = {"f32", "bf16"};
    world w = open_world();
    for (int from = 0; from < 5; from++) {
        for (int to = 0; to < 5; to++) {
            engine_cache a = {.implementation = names[from],
                              .dtype = exact[(from + to) % 2],
                              .page_tokens = 4},
                         b = a;
            char what[100];
            snprintf(what, sizeof what, "%s to %s", names[from], names[to]);
            b.implementation = names[to];
            mn_session *session = open_fed(&w, a, 70), *witness = NULL, *bystander = NULL;
            assert_ok(mn_session_fork(&witness, session));
            assert_ok(mn_session_fork(&bystander, session));
            assert_ok(change(session, b));
            assert_ok(kv_check(session->cache));
            mn_cache_info info = {.size = sizeof info};
            assert_ok(mn_session_cache(session, &info));
            assert_string_equal(info.implementation, names[to]);
            assert_int_equal(info.tokens, 70);
            assert_null(info.before); /* nobody was out of memory */
            go_on_alike(&w, session, witness, 130, -1, what);
            /* As many bytes as a session that always was so. */
            mn_session *fresh = engine_session(w.model, b);
            engine_feed(fresh, w.ids, 130, 7, NULL, NULL);
            if (kv_bytes(session->cache) != kv_bytes(fresh->cache))
                fail_msg("%s: %zu bytes, expected %zu", what, kv_bytes(session->cache),
                         kv_bytes(fresh->cache));
            mn_session_close(&fresh);
            assert_ok(mn_session_truncate(session, 50));
            assert_ok(mn_session_truncate(witness, 50));
            go_on_alike(&w, session, witness, 120, 1, what);
            assert_ok(change(session, a));
            go_on_alike(&w, session, witness, 160, 9, what);
            engine_feed(bystander, w.ids + 70, 60, 0, NULL, NULL); /* a fork from before */
            mn_session_close(&witness);
            witness = open_fed(&w, a, 130);
            engine_ends_with(bystander, mn_session_logits(witness), what);
            mn_session_close(&bystander);
            mn_session_close(&witness);
            mn_session_close(&session);
        }
    }
    close_world(&w);
}

/* A window that nothing has left yet, and one that has. */
static void windows_come_later(void **state) {
    (void)state;
    static const char *const windows[] = {"window_length=90", "window_length=24", "window_length=5"};
    world w = open_world();
    for (int i = 0; i < 3; i++) {
        engine_cache plain = {.implementation = "dynamic", .dtype = "f32", .page_tokens = 4}, narrow = plain;
        narrow.implementation = "sliding_window";
        narrow.config = windows[i];
        mn_session *session = open_fed(&w, plain, 80), *always = open_fed(&w, narrow, 80);
        size_t before = kv_bytes(session->cache);
        assert_ok(change(session, narrow));
        assert_ok(kv_check(session->cache));
        assert_int_equal(kv_bytes(session->cache), kv_bytes(always->cache));
        assert_int_equal(kv_first_held(session->cache, 0), kv_first_held(always->cache, 0));
        if (i == 0) {
            assert_int_equal(kv_bytes(session->cache), before);
            go_on_alike(&w, session, always, 200, -1, windows[i]);
        } else {
            assert_true(kv_bytes(session->cache) < before);
            engine_feed(session, w.ids + 80, 120, -1, &w.seed, NULL);
        }
        assert_fails(MN_E_UNSUPPORTED, "forgotten", change(session, plain));
        mn_session_close(&session);
        mn_session_close(&always);
    }
    /* Sums are taken in another order where sinks stand apart. */
    engine_cache plain = {.implementation = "dynamic", .dtype = "f32", .page_tokens = 4}, sink = plain;
    sink.implementation = "sink";
    sink.config = "window_length=90,num_sink_tokens=5";
    mn_session *session = open_fed(&w, plain, 80), *always = open_fed(&w, sink, 80);
    float *got = malloc(100 * w.vocab * sizeof *got), *wanted = malloc(100 * w.vocab * sizeof *wanted);
    assert_ok(change(session, sink));
    engine_feed(session, w.ids + 80, 100, -1, &w.seed, got);
    engine_feed(always, w.ids + 80, 100, -1, &w.seed, wanted);
    double distance = engine_distance(got, wanted, 100 * w.vocab);
    if (!(distance <= 2e-4)) fail_msg("a sink cache that was dynamic is %g away", distance);
    free(got);
    free(wanted);
    mn_session_close(&session);
    mn_session_close(&always);
    close_world(&w);
}

/* ---- what is stored, with rows given from outside ---- */

/* Rows of a token are functions of entry, head, position and stream alone. */
static void make_rows(float *rows, int entry, int head, bool is_key, int64_t begin, int n, int dim) {
    for (int t = 0; t < n; t++) {
        uint64_t seed = (uint64_t)(((entry * 4 + head) * 2 + is_key) * 100000 + begin + t) * 1000;
        for (int d = 0; d < dim; d++) rows[t * dim + d] = (float)test_uniform(&seed, -1, 1);
    }
}

static void append(kv_cache *cache, const kernel_table *kernels, int n) {
    float rows[2][256 * 32];
    int64_t end = kv_length(cache) + n;
    kv_call_begin(cache);
    while (kv_length(cache) < end) {
        int64_t begin = kv_length(cache), limit = kv_step_limit(cache, begin);
        int count = (int)((limit < end ? limit : end) - begin);
        if (begin + count == end) kv_call_ends(cache, true);
        assert_ok(kv_reserve(cache, count));
        for (int entry = 0; entry < kv_entries(cache); entry++) {
            kv_stage(cache, entry);
            const kv_spec *spec = kv_entry_spec(cache, entry);
            for (int head = 0; head < spec->n_heads; head++) {
                make_rows(rows[0], entry, head, true, begin, count, spec->k_dim);
                make_rows(rows[1], entry, head, false, begin, count, spec->v_dim);
                kv_append(cache, kernels, entry, head, 0, count, rows[0], rows[1], spec->k_dim, spec->v_dim);
            }
        }
        int n_tasks = kv_commit(cache);
        void *scratch = malloc(kv_seal_scratch(cache) + 64);
        for (int i = 0; i < n_tasks; i++)
            kv_seal(cache, kernels, i, (void *)(((uintptr_t)scratch + 63) / 64 * 64));
        free(scratch);
        kv_settle(cache);
        assert_ok(kv_check(cache));
    }
}

/* The same tokens sealed, and every token that is held reads the same. */
static void same_contents(const kv_cache *got, const kv_cache *wanted, const kernel_table *kernels,
                          const char *what) {
    static float rows[2][MOST_FLOATS];
    int n = (int)kv_length(wanted);
    assert_int_equal(kv_length(got), n);
    for (int entry = 0; entry < kv_entries(wanted); entry++) {
        kv_view a = kv_look(got, entry), b = kv_look(wanted, entry);
        assert_int_equal(a.n_pages, b.n_pages);
        for (int i = 0; i < a.n_pages; i++) {
            if (a.n_sealed[i] != b.n_sealed[i])
                fail_msg("%s: %d tokens of page %d are sealed, expected %d", what, a.n_sealed[i], i,
                         b.n_sealed[i]);
        }
        int first = (int)kv_first_held(wanted, entry), head = a.n_head < n ? a.n_head : n;
        assert_int_equal(kv_first_held(got, entry), first);
        for (int is_key = 0; is_key < 2; is_key++) {
            const int ranges[2][2] = {{0, a.spec->sinks ? head : 0}, {first, n}};
            for (int i = 0; i < 2; i++) {
                int count = ranges[i][1] - ranges[i][0];
                size_t floats = (size_t)a.spec->n_heads * (size_t)count * (size_t)a.spec->k_dim;
                if (count <= 0) continue;
                assert_true(floats <= MOST_FLOATS);
                assert_ok(kv_read(got, kernels, entry, is_key, ranges[i][0], count, rows[0]));
                assert_ok(kv_read(wanted, kernels, entry, is_key, ranges[i][0], count, rows[1]));
                for (size_t k = 0; k < floats; k++) {
                    if (memcmp(&rows[0][k], &rows[1][k], sizeof(float)) == 0) continue;
                    fail_msg("%s: entry %d, %s: value %zu of tokens %d to %d is %g, expected %g", what, entry,
                             is_key ? "keys" : "values", k, ranges[i][0], ranges[i][1], (double)rows[0][k],
                             (double)rows[1][k]);
                }
            }
        }
    }
}

static void open_bare(kv_cache **out, kv_spec **specs, int *n, kv_options *options, world *w,
                      engine_cache cache) {
    mn_session *session = engine_session(w->model, cache);
    assert_ok(session_specs(specs, n, session));
    *options = session->plan.options;
    mn_session_close(&session);
    if (out) assert_ok(kv_open(out, w->model->core->pool, *specs, *n, options));
}

/* From one strategy to another with n tokens held; then both grow. */
static void check_conversion(world *w, engine_cache from, const engine_strategy *to, int n,
                             const char *exact) {
    const kernel_table *kernels = &w->model->core->compute.kernels;
    kv_cache *got = NULL, *wanted = NULL;
    kv_spec *specs[2];
    kv_options options[2];
    int n_entries;
    char what[200];
    engine_cache target = to->cache;
    target.dtype = from.dtype = exact;
    from.page_tokens = target.page_tokens;
    snprintf(what, sizeof what, "%s to %s %s at %d, %s", from.implementation, target.implementation,
             target.config ? target.config : "", n, exact);
    open_bare(&got, &specs[0], &n_entries, &options[0], w, from);
    open_bare(&wanted, &specs[1], &n_entries, &options[1], w, target);
    if (n) append(got, kernels, n);
    if (n) append(wanted, kernels, n);
    mn_status status = kv_convert(&got, kernels, specs[1], n_entries, &options[1]);
    if (status == MN_OK) {
        assert_ok(kv_check(got));
        /* quanto and hqq seal what was one call, so theirs is another history; the rest is the same. */
        if (!to->flushes) {
            same_contents(got, wanted, kernels, what);
            assert_int_equal(kv_bytes(got), kv_bytes(wanted));
        }
        append(got, kernels, 37);
        append(wanted, kernels, 37);
        if (!to->flushes) same_contents(got, wanted, kernels, what);
        kv_cache *fork = NULL;
        assert_ok(kv_fork(&fork, got));
        append(fork, kernels, 50);
        append(wanted, kernels, 50);
        if (!to->flushes) same_contents(fork, wanted, kernels, what);
        kv_close(&fork);
    } else { /* layers of their own form are grouped in another way */
        if (status != MN_E_UNSUPPORTED || !(target.config && strstr(target.config, "layers=")))
            fail_msg("%s: %s", what, mn_last_error());
    }
    kv_close(&got);
    kv_close(&wanted);
    mem_free(specs[0]);
    mem_free(specs[1]);
}

static void what_is_stored_is_what_always_was(void **state) {
    (void)state;
    static const int lengths[] = {0, 3, 16, 47, 100, 128};
    static const engine_cache sources[] = {
        {.implementation = "dynamic"}, {.implementation = "static"}, {.implementation = "offloaded"}};
    world w = open_world();
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        for (int i = 0; i < 6; i++) {
            for (int from = 0; from < 3; from++) {
                check_conversion(&w, sources[from], &engine_strategies[s], lengths[i],
                                 i % 2 ? "f32" : "bf16");
            }
        }
    }
    /* What has a window, or sinks, or codes already gets the other half. */
    static const struct {
        engine_cache from;
        engine_strategy to;
    } halves[] = {
        {{.implementation = "sliding_window", .config = "window_length=50"},
         {.cache = {.implementation = "quantized+sliding_window",
                    .page_tokens = 16,
                    .config = "nbits=4,residual_length=16,window_length=50"}}},
        {{.implementation = "sliding_window", .config = "window_length=50"},
         {.cache = {.implementation = "sliding_window+offloaded",
                    .page_tokens = 4,
                    .config = "window_length=30"}}},
        {{.implementation = "sink", .config = "window_length=60,num_sink_tokens=5"},
         {.cache = {.implementation = "quantized+sink+offloaded",
                    .page_tokens = 16,
                    .config = "nbits=4,residual_length=0,window_length=60,num_sink_tokens=5"}}},
        {{.implementation = "sink", .config = "window_length=60,num_sink_tokens=5"},
         {.cache = {.implementation = "sink+static",
                    .page_tokens = 4,
                    .config = "window_length=40,num_sink_tokens=5"}}},
        {{.implementation = "quantized", .config = "nbits=4,residual_length=16"},
         {.cache = {.implementation = "quantized+offloaded",
                    .page_tokens = 16,
                    .config = "nbits=4,residual_length=16"}}},
        {{.implementation = "quantized+offloaded", .config = "nbits=4,residual_length=16"},
         {.cache = {.implementation = "quantized",
                    .page_tokens = 16,
                    .config = "nbits=4,residual_length=16"}}},
        {{.implementation = "quantized", .config = "nbits=4,residual_length=16"},
         {.cache = {.implementation = "quantized+sliding_window",
                    .page_tokens = 16,
                    .config = "nbits=4,residual_length=16,window_length=50"}}},
    };
    for (size_t h = 0; h < sizeof halves / sizeof *halves; h++) {
        for (int i = 0; i < 6; i++) check_conversion(&w, halves[h].from, &halves[h].to, lengths[i], "bf16");
    }
    close_world(&w);
}

/* Logits behind tokens 150 to 220, and how far they are from others, of the size of these. */
static double error_of(const float *got, const float *wanted, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += pow((double)got[i] - (double)wanted[i], 2);
        size += pow((double)wanted[i], 2);
    }
    return sqrt(error / size);
}

/* Through the model: what was exact and is quantized now is no worse than what always was quantized. */
static void late_codes_are_as_good_as_early_ones(void **state) {
    (void)state;
    static const char *const configs[] = {
        "nbits=8,residual_length=16", "nbits=6,residual_length=0,first_exact=0", "nbits=4,residual_length=16",
        "backend=hqq,nbits=8,residual_length=16", "backend=quanto,nbits=4,residual_length=16"};
    world w = open_world();
    engine_cache plain = {.implementation = "dynamic", .dtype = "f32", .page_tokens = 16};
    size_t n = 70 * w.vocab;
    float *logits[3];
    for (int i = 0; i < 3; i++) logits[i] = malloc(n * sizeof(float));
    for (int i = 0; i < 5; i++) {
        engine_cache coded = {
            .implementation = "quantized", .page_tokens = 16, .dtype = "f32", .config = configs[i]};
        mn_session *sessions[3] = {open_fed(&w, plain, 150), open_fed(&w, plain, 150),
                                   engine_session(w.model, coded)};
        engine_feed(sessions[2], w.ids, 150, 0, NULL, NULL);
        assert_ok(change(sessions[1], coded));
        assert_true(strategy_sealed(sessions[1]) > 0);
        for (int k = 0; k < 3; k++) engine_feed(sessions[k], w.ids + 150, 70, 1, NULL, logits[k]);
        double late = error_of(logits[1], logits[0], n), early = error_of(logits[2], logits[0], n);
        if (!(late > 0 && late < 1.2 * early))
            fail_msg("%s: error %g, of codes from the start %g", configs[i], late, early);
        for (int k = 0; k < 3; k++) mn_session_close(&sessions[k]);
    }
    for (int i = 0; i < 3; i++) free(logits[i]);
    close_world(&w);
}

/* ---- what cannot be ---- */

static const struct {
    engine_cache from, to;
    mn_status status;
    const char *message;
} refusals[] = {
    {{.implementation = "none"}, {.implementation = "dynamic"}, MN_E_UNSUPPORTED, "without a cache"},
    {{.implementation = "dynamic"}, {.implementation = "none"}, MN_E_UNSUPPORTED, "without a cache"},
    {{.implementation = "dynamic", .page_tokens = 4},
     {.implementation = "dynamic", .page_tokens = 8},
     MN_E_UNSUPPORTED,
     "pages"},
    {{.implementation = "dynamic"},
     {.implementation = "dynamic", .dtype = "bf16"},
     MN_E_UNSUPPORTED,
     "another form"},
    {{.implementation = "dynamic"},
     {.implementation = "static", .max_cache_len = 60},
     MN_E_UNSUPPORTED,
     "60"},
    {{.implementation = "dynamic"},
     {.implementation = "dynamic", .max_cache_len = 99},
     MN_E_UNSUPPORTED,
     "99"},
    {{.implementation = "dynamic"}, {.implementation = "dinamic"}, MN_E_ARG, "did you mean dynamic"},
    {{.implementation = "dynamic"}, {.implementation = "sliding_window"}, MN_E_ARG, "window_length"},
    {{.implementation = "dynamic"}, {.implementation = "quantized", .config = "nbits=7"}, MN_E_ARG, "7"},
    {{.implementation = "dynamic"},
     {.implementation = "quantized", .config = "layers=0:f32,rest:4bit"},
     MN_E_UNSUPPORTED,
     "grouped"},
    {{.implementation = "quantized"}, {.implementation = "dynamic"}, MN_E_UNSUPPORTED, "quantized stays"},
    {{.implementation = "quantized"},
     {.implementation = "quantized", .config = "nbits=2"},
     MN_E_UNSUPPORTED,
     "quantized stays"},
    {{.implementation = "quantized", .config = "residual_length=0", .page_tokens = 16},
     {.implementation = "quantized+sink", .config = "residual_length=0,num_sink_tokens=2", .page_tokens = 16},
     MN_E_UNSUPPORTED,
     "exact"},
    {{.implementation = "quantized+offloaded", .config = "residual_length=16", .page_tokens = 16},
     {.implementation = "dynamic", .page_tokens = 16},
     MN_E_UNSUPPORTED,
     "quantized stays"},
    {{.implementation = "sliding_window", .config = "window_length=20", .page_tokens = 4},
     {.implementation = "dynamic", .page_tokens = 4},
     MN_E_UNSUPPORTED,
     "forgotten"},
    {{.implementation = "sliding_window", .config = "window_length=20", .page_tokens = 4},
     {.implementation = "sliding_window", .config = "window_length=21", .page_tokens = 4},
     MN_E_UNSUPPORTED,
     "forgotten"},
    {{.implementation = "sliding_window", .config = "window_length=20", .page_tokens = 4},
     {.implementation = "sink", .config = "window_length=20", .page_tokens = 4},
     MN_E_UNSUPPORTED,
     "first tokens"},
    {{.implementation = "sink", .config = "window_length=40", .page_tokens = 4},
     {.implementation = "sink", .config = "window_length=20,num_sink_tokens=3", .page_tokens = 4},
     MN_E_UNSUPPORTED,
     "sinks"},
};

static void refused_changes_change_nothing(void **state) {
    (void)state;
    world w = open_world();
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        mn_session *session = open_fed(&w, refusals[i].from, 100), *witness = NULL;
        size_t used = kv_pool_used(w.model->core->pool), held = kv_bytes(session->cache);
        char name[sizeof session->plan.name];
        memcpy(name, session->plan.name, sizeof name);
        assert_ok(mn_session_fork(&witness, session));
        assert_fails(refusals[i].status, refusals[i].message, change(session, refusals[i].to));
        assert_string_equal(session->plan.name, name);
        assert_int_equal(kv_bytes(session->cache), held);
        assert_true(kv_pool_used(w.model->core->pool) <= used + held); /* the fork's own pages */
        go_on_alike(&w, session, witness, 140, -1, refusals[i].message);
        mn_session_close(&session);
        mn_session_close(&witness);
    }
    close_world(&w);
}

/* Every allocation of a change failing in turn. */
static void changes_without_memory_change_nothing(void **state) {
    (void)state;
    static const engine_cache targets[] = {
        {.implementation = "offloaded", .page_tokens = 16},
        {.implementation = "static", .page_tokens = 16},
        {.implementation = "sink", .page_tokens = 16, .config = "window_length=30,num_sink_tokens=3"},
        {.implementation = "quantized", .page_tokens = 16, .config = "nbits=4,residual_length=16"},
        {.implementation = "quantized+sink+offloaded",
         .page_tokens = 16,
         .config = "residual_length=0,window_length=64"},
    };
    world w = open_world();
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        engine_cache plain = {.implementation = i % 2 ? "offloaded" : "dynamic", .page_tokens = 16};
        bool failed = true;
        int64_t k = 1;
        for (; failed; k++) {
            mn_session *session = open_fed(&w, plain, 100), *witness = NULL;
            assert_ok(mn_session_fork(&witness, session));
            int64_t before = mem_count().allocations;
            mem_fail_after(k);
            mn_status status = change(session, targets[i]);
            mem_fail_after(0);
            failed = mem_count().allocations - before >= k - 1;
            assert_ok(kv_check(session->cache));
            if (status == MN_OK) { /* pages that found no memory are sealed by the next step */
                assert_string_equal(session->plan.name, targets[i].implementation);
                engine_feed(session, w.ids + 100, 60, 0, NULL, NULL);
                assert_ok(kv_check(session->cache));
            } else {
                assert_int_equal(status, MN_E_NOMEM);
                assert_string_equal(session->plan.name, plain.implementation);
                go_on_alike(&w, session, witness, 120, 0, "after a change that found no memory");
            }
            mn_session_close(&session);
            mn_session_close(&witness);
        }
        assert_true(k > 10);
    }
    close_world(&w);
}

/* ---- a budget ---- */

enum { LONG = 300, N_NEW = 40 };

/* The embedded model has five layers, so that two areas for far pages are less than all of them. */
typedef struct limited {
    world w;
    size_t budget;
    int32_t ids[LONG];
    engine_cache cache;
} limited;

/* A model whose pages may take `budget` bytes. Its weights and buffers, which a memory limit counts besides,
 * are larger than that. */
static limited open_budget(size_t budget, const char *path, int page) {
    limited l = {
        .budget = budget,
        .cache = {.implementation = "dynamic", .dtype = "f32", .page_tokens = page, .prefill_chunk = 32}};
    l.w = open_path(path);
    kv_pool_close(&l.w.model->core->pool);
    assert_ok(kv_pool_open(&l.w.model->core->pool, budget));
    engine_ids(&l.w.seed, l.ids, LONG, (int32_t)l.w.vocab);
    return l;
}

static mn_generation_config *greedy(const mn_model *model, int n_new) {
    mn_generation_config *config = NULL;
    char number[16];
    assert_ok(mn_generation_config_open(&config, model));
    snprintf(number, sizeof number, "%d", n_new);
    assert_ok(mn_generation_config_set(config, "max_new_tokens", number));
    assert_ok(mn_generation_config_set(config, "do_sample", "false"));
    assert_ok(mn_generation_config_set(config, "ignore_eos", "true"));
    return config;
}

static mn_session *open_session(mn_model *model, engine_cache cache, const char *wish) {
    mn_cache_options options = engine_cache_options(cache);
    mn_session *session = NULL;
    options.on_oom = wish;
    assert_ok(mn_session_open(&session, model, &options));
    return session;
}

typedef struct watch {
    const limited *l;
    size_t most;
    int n_looks;
} watch;

static void look(watch *it) {
    size_t used = kv_pool_used(it->l->w.model->core->pool);
    if (used > it->most) it->most = used;
    it->n_looks++;
}
static bool watch_token(void *user, const mn_token_event *event) {
    (void)event;
    look(user);
    return true;
}
static void watch_prefill(void *user, size_t done, size_t total) {
    (void)done;
    (void)total;
    look(user);
}

static mn_generation *generate(const limited *l, mn_session *session, watch *it, mn_status wanted,
                               int n_prompt, int n_new) {
    mn_generate_options how = mn_generate_options_default();
    mn_generation_config *config = greedy(l->w.model, n_new);
    mn_generation *generation = NULL;
    *it = (watch){.l = l};
    how.user = it;
    how.on_token = watch_token;
    how.on_prefill = watch_prefill;
    mn_status status = mn_generate(session, l->ids, (size_t)n_prompt, config, &how, &generation);
    mn_generation_config_close(&config);
    if (status != wanted) fail_msg("status %d, expected %d: %s", status, wanted, mn_last_error());
    assert_ok(kv_check(session->cache));
    return generation;
}

/* A prompt and an answer that want 340 tokens of 1,280 bytes, and pages of 16 of them. */
static void offloading_gives_the_same_tokens(void **state) {
    (void)state;
    static const size_t budgets[] = {260000, 320000, 400000};
    for (int i = 0; i < 3; i++) {
        limited l = open_budget(budgets[i], "embedded", 16);
        world free_world = open_path("embedded");
        limited free_l = {.w = free_world, .cache = l.cache};
        memcpy(free_l.ids, l.ids, sizeof l.ids);
        watch it;
        mn_session *session = open_session(l.w.model, l.cache, "offload"),
                   *plain = open_session(free_world.model, l.cache, NULL);
        mn_generation *got = generate(&l, session, &it, MN_OK, LONG, N_NEW);
        assert_true(it.n_looks > N_NEW + 5);
        if (it.most > budgets[i]) fail_msg("%zu bytes near, allowed: %zu", it.most, budgets[i]);
        mn_generation *wanted = generate(&free_l, plain, &it, MN_OK, LONG, N_NEW);
        assert_true(it.most > budgets[i]); /* or there was no need */
        assert_int_equal(got->sequences[0].n_ids, N_NEW);
        assert_memory_equal(got->sequences[0].ids, wanted->sequences[0].ids, N_NEW * sizeof(int32_t));
        engine_ends_with(session, mn_session_logits(plain), "offloaded under way");
        assert_string_equal(got->cache.implementation, "offloaded");
        assert_string_equal(got->cache.before, "dynamic");
        assert_true(got->cache.far_bytes > 0);
        assert_true(got->cache.bytes - got->cache.far_bytes < budgets[i]);
        assert_null(wanted->cache.before);
        assert_int_equal(wanted->cache.far_bytes, 0);
        mn_generation_close(&got);
        mn_generation_close(&wanted);
        mn_session_close(&session);
        mn_session_close(&plain);
        close_world(&free_world);
        close_world(&l.w);
    }
}

static void without_a_wish_it_is_a_failure(void **state) {
    (void)state;
    static const char *const wishes[] = {NULL, "fail"};
    limited l = open_budget(260000, "embedded", 16);
    for (int i = 0; i < 2; i++) {
        watch it;
        mn_session *session = open_session(l.w.model, l.cache, wishes[i]);
        assert_null(generate(&l, session, &it, MN_E_NOMEM, LONG, N_NEW));
        assert_non_null(strstr(mn_last_error(), "260000 allowed"));
        assert_true(it.most <= l.budget);
        mn_generation *short_one = generate(&l, session, &it, MN_OK, 100, 10); /* what fits goes on */
        assert_null(short_one->cache.before);
        mn_generation_close(&short_one);
        mn_session_close(&session);
    }
    mn_cache_options options = engine_cache_options(l.cache);
    mn_session *session = NULL;
    options.on_oom = "pray";
    assert_fails(MN_E_ARG, "fail, offload, quantize, evict", mn_session_open(&session, l.w.model, &options));
    close_world(&l.w);
}

/* Under a budget every kind of relief is what mn_session_set_cache does at the same length; nothing is
 * computed again. */
static void check_relief(const char *path, size_t budget, engine_cache cache, const char *wish,
                         const char *name) {
    limited l = open_budget(budget, path, cache.page_tokens);
    world free_world = open_path(path);
    mn_session *session = open_session(l.w.model, cache, wish),
               *twin = open_session(free_world.model, cache, NULL);
    bool was_changed = false;
    for (int t = 0; t < LONG; t++) {
        mn_status status = mn_session_step(session, &l.ids[t], 1, NULL);
        if (status != MN_OK) fail_msg("%s, token %d: %s", name, t, mn_last_error());
        assert_ok(kv_check(session->cache));
        size_t used = kv_pool_used(l.w.model->core->pool);
        if (used > budget) fail_msg("%s, token %d: %zu bytes, allowed: %zu", name, t, used, budget);
        if (*session->before && !was_changed) {
            mn_cache_options options = mn_cache_options_default();
            was_changed = true;
            assert_string_equal(session->before, cache.implementation);
            assert_string_equal(session->plan.name, name);
            options.implementation = name;
            options.config = session->config;
            options.dtype = cache.dtype;
            options.page_tokens = cache.page_tokens;
            assert_ok(mn_session_set_cache(twin, &options));
        }
        assert_ok(mn_session_step(twin, &l.ids[t], 1, NULL));
        engine_ends_with(session, mn_session_logits(twin), name);
    }
    if (!was_changed) fail_msg("%s: the memory never ended", name);
    mn_cache_info info = {.size = sizeof info};
    assert_ok(mn_session_cache(session, &info));
    assert_string_equal(info.before, cache.implementation);
    /* The change is the session's, and its forks'. */
    mn_session *fork = NULL;
    assert_ok(mn_session_fork(&fork, session));
    assert_ok(mn_session_cache(fork, &info));
    assert_string_equal(info.before, cache.implementation);
    mn_session_close(&fork);
    mn_session_close(&session);
    mn_session_close(&twin);
    close_world(&free_world);
    close_world(&l.w);
}

static void relief_is_a_change_of_strategy(void **state) {
    (void)state;
    engine_cache f32 = {.implementation = "dynamic", .dtype = "f32", .page_tokens = 16}, narrow = f32;
    narrow.dtype = "bf16";
    /* The tiny model takes 768 bytes a token in f32; three layers. */
    check_relief("embedded", 300000, f32, "offload", "offloaded");
    check_relief(tiny, 200000, f32, "offload", "offloaded");
    check_relief(tiny, 80000, narrow, "quantize", "quantized");
    check_relief(tiny, 130000, f32, "quantize", "quantized");
    check_relief(tiny, 150000, f32, "evict", "sink");
    check_relief(tiny, 50000, narrow, "evict", "sink");
    engine_cache coded = {.implementation = "quantized",
                          .dtype = "bf16",
                          .page_tokens = 16,
                          .config = "residual_length=16,nbits=8"};
    check_relief(tiny, 60000, coded, "evict", "quantized+sink");
    coded.config = " {\"residual_length\": 16, \"nbits\": 8 } ";
    check_relief(tiny, 60000, coded, "evict", "quantized+sink");
    coded.config = "{ }";
    check_relief(tiny, 50000, coded, "evict", "quantized+sink");
    coded.config = "backend=quanto,residual_length=16,nbits=4";
    check_relief(tiny, 60000, coded, "offload", "quantized+offloaded");
    engine_cache window = {
        .implementation = "sliding_window", .dtype = "f32", .page_tokens = 16, .config = "window_length=250"};
    check_relief(tiny, 165000, window, "offload", "sliding_window+offloaded");
    check_relief(tiny, 130000, window, "quantize", "sliding_window+quantized");
}

/* What cannot be relieved fails as if nothing had been wished, and nothing has changed. */
static void relief_that_cannot_be_is_a_failure(void **state) {
    (void)state;
    static const struct {
        engine_cache cache;
        const char *on_oom;
    } tries[] = {
        {{.implementation = "dynamic", .dtype = "f32", .page_tokens = 6},
         "quantize"}, /* pages of another kind */
        {{.implementation = "sliding_window",
          .dtype = "f32",
          .page_tokens = 16,
          .config = "window_length=290"},
         "evict"},
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        limited l = open_budget(130000, tiny, 16);
        mn_session *session = open_session(l.w.model, tries[i].cache, tries[i].on_oom), *witness = NULL;
        engine_feed(session, l.ids, 30, 0, NULL, NULL);
        mn_status status = mn_session_step(session, l.ids + 30, LONG - 30, NULL);
        assert_int_equal(status, MN_E_NOMEM);
        assert_non_null(strstr(mn_last_error(), "130000 allowed"));
        assert_int_equal(mn_session_length(session), 30);
        assert_string_equal(session->before, "");
        assert_string_equal(session->plan.name, tries[i].cache.implementation);
        witness = open_session(l.w.model, tries[i].cache, NULL);
        engine_feed(witness, l.ids, 30, 0, NULL, NULL);
        memcpy(l.w.ids, l.ids, 100 * sizeof *l.ids);
        mn_session *fork = NULL;
        assert_ok(mn_session_fork(&fork, session));
        go_on_alike(&l.w, fork, witness, 40, 1, "after relief that could not be");
        mn_session_close(&fork);
        mn_session_close(&session);
        mn_session_close(&witness);
        close_world(&l.w);
    }
}

/* Rows of a batch share the budget. */
static void batches_go_on_too(void **state) {
    (void)state;
    limited l = open_budget(420000, "embedded", 16);
    world free_world = open_path("embedded");
    mn_batch_row rows[3] = {{l.ids, 90, NULL}, {l.ids + 50, 120, NULL}, {l.ids + 100, 60, NULL}};
    mn_generation *results[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        mn_model *model = i ? free_world.model : l.w.model;
        mn_cache_options options = engine_cache_options(l.cache);
        mn_generation_config *config = greedy(model, 60);
        options.on_oom = "offload";
        assert_ok(mn_generate_batch(model, &options, rows, 3, config, NULL, &results[i]));
        mn_generation_config_close(&config);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(results[0]->sequences[i].n_ids, 60);
        assert_memory_equal(results[0]->sequences[i].ids, results[1]->sequences[i].ids, 60 * sizeof(int32_t));
    }
    assert_non_null(results[0]->cache.before);
    assert_string_equal(results[0]->cache.before, "dynamic");
    assert_true(results[0]->cache.far_bytes > 0);
    assert_null(results[1]->cache.before);
    for (int i = 0; i < 2; i++) mn_generation_close(&results[i]);
    close_world(&free_world);
    close_world(&l.w);
}

/* ---- every allocation of a generation ---- */

enum { PROMPT = 40, NEW = 20 };

static mn_status try_generation(mn_session *session, const int32_t *ids, const mn_generation_config *config,
                                int32_t *out) {
    mn_generation *generation = NULL;
    mn_status status = mn_generate(session, ids, PROMPT, config, NULL, &generation);
    if (status != MN_OK) return status;
    assert_int_equal(generation->sequences[0].n_ids, NEW);
    memcpy(out, generation->sequences[0].ids, NEW * sizeof *out);
    mn_generation_close(&generation);
    return MN_OK;
}

/* What a generation without failures leaves. */
typedef struct outcome {
    int32_t ids[NEW];
    int64_t n_sealed;
} outcome;

/* One generation whose k-th allocation fails, by a model that was just opened; whether one failed. */
static bool fail_one(const char *wish, engine_cache cache, int64_t k, outcome *wanted, bool *has_changed) {
    world w = open_threads(tiny, 1);
    mn_generation_config *config = greedy(w.model, NEW);
    mn_session *session = open_session(w.model, cache, wish);
    int32_t got[NEW];
    int64_t before = mem_count().allocations;
    mem_fail_after(k);
    mn_status status = try_generation(session, w.ids, config, got);
    mem_fail_after(0);
    bool failed = k > 0 && mem_count().allocations - before >= k - 1;
    if (status != MN_OK && status != MN_E_NOMEM)
        fail_msg("allocation %lld: %s", (long long)k, mn_last_error());
    assert_ok(kv_check(session->cache));
    *has_changed = *session->before != 0;
    /* Another strategy that loses bits has other tokens of its own right; they are all there. */
    bool is_exact = !*has_changed || strcmp(wish, "offload") == 0;
    if (k == 0) {
        memcpy(wanted->ids, got, sizeof got);
        wanted->n_sealed = strategy_sealed(session);
    }
    if (status == MN_OK && is_exact) {
        assert_memory_equal(got, wanted->ids, sizeof got);
        assert_int_equal(strategy_sealed(session), wanted->n_sealed);
    }
    if (status != MN_OK) {
        failed = true;
        assert_ok(try_generation(session, w.ids, config, got));
        if (is_exact) assert_memory_equal(got, wanted->ids, sizeof got);
    } else if (failed) {
        assert_int_equal(mn_session_length(session), PROMPT + NEW - 1);
    }
    mn_session_close(&session);
    mn_generation_config_close(&config);
    close_world(&w);
    return failed;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const struct {
        const char *on_oom;
        engine_cache cache;
    } tries[] = {
        {"fail", {.implementation = "dynamic", .page_tokens = 4}},
        {"offload", {.implementation = "dynamic", .page_tokens = 4}},
        {"quantize", {.implementation = "dynamic", .page_tokens = 16}},
        {"evict", {.implementation = "dynamic", .page_tokens = 4}},
        {"offload",
         {.implementation = "quantized", .page_tokens = 16, .config = "backend=quanto,residual_length=4"}},
    };
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        outcome wanted;
        int n_changed = 0;
        bool failed = true, has_changed;
        fail_one(tries[i].on_oom, tries[i].cache, 0, &wanted, &has_changed);
        int64_t k = 1;
        for (; failed; k++) {
            failed = fail_one(tries[i].on_oom, tries[i].cache, k, &wanted, &has_changed);
            n_changed += has_changed;
            assert_true(k < 5000);
        }
        if (k < 30) fail_msg("%s: %lld allocations are too few", tries[i].on_oom, (long long)k);
        assert_int_equal(n_changed > 0, i > 0);
    }
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, note_live, check_live)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(exact_changes_change_nothing),
        CASE(windows_come_later),
        CASE(what_is_stored_is_what_always_was),
        CASE(late_codes_are_as_good_as_early_ones),
        CASE(refused_changes_change_nothing),
        CASE(changes_without_memory_change_nothing),
        CASE(offloading_gives_the_same_tokens),
        CASE(without_a_wish_it_is_a_failure),
        CASE(relief_is_a_change_of_strategy),
        CASE(relief_that_cannot_be_is_a_failure),
        CASE(batches_go_on_too),
        CASE(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
