/* A session's cache changes its strategy while it holds tokens, and continues without recomputing anything.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/changing.h"

#include <math.h>

#include "kv/group.h"
#include "support/strategies.h"

enum { MOST_FLOATS = 2 * 256 * 32 };

/* ---- strategies that give the same results ---- */

static void exact_changes_change_nothing(void **state) {
    (void)state;
    static const char *const names[] = {"dynamic", "hybrid", "static", "offloaded", "offloaded_static"};
    static const char *const exact[] = {"f32", "bf16"};
    changing w = changing_open(TINY_MODEL, engine_threads());
    for (int from = 0; from < 5; from++) {
        for (int to = 0; to < 5; to++) {
            if (!test_samples(from + to, 3)) continue;
            engine_cache a = {.implementation = names[from], .dtype = exact[(from + to) % 2], .page_tokens = 4}, b = a;
            char what[100];
            snprintf(what, sizeof what, "%s to %s", names[from], names[to]);
            b.implementation = names[to];
            mn_session *session = changing_fed(&w, a, 70), *witness = NULL, *bystander = NULL;
            assert_ok(mn_session_fork(&witness, session));
            assert_ok(mn_session_fork(&bystander, session));
            assert_ok(changing_set(session, b));
            assert_ok(kv_check(session->cache));
            mn_cache_info info = {.size = sizeof info};
            assert_ok(mn_session_cache(session, &info));
            assert_string_equal(info.implementation, names[to]);
            assert_int_equal(info.tokens, 70);
            assert_null(info.original_implementation); /* memory did not run out */
            changing_go_on_alike(&w, session, witness, 130, -1, what);
            /* As many bytes as a session that had this strategy from the beginning. */
            mn_session *fresh = engine_session(w.model, b);
            engine_feed(fresh, w.ids, 130, 7, NULL, NULL);
            if (kv_bytes(session->cache) != kv_bytes(fresh->cache))
                fail_msg("%s: %zu bytes, expected %zu", what, kv_bytes(session->cache), kv_bytes(fresh->cache));
            mn_session_close(&fresh);
            assert_ok(mn_session_truncate(session, 50));
            assert_ok(mn_session_truncate(witness, 50));
            changing_go_on_alike(&w, session, witness, 120, 1, what);
            assert_ok(changing_set(session, a));
            changing_go_on_alike(&w, session, witness, 160, 9, what);
            engine_feed(bystander, w.ids + 70, 60, 0, NULL, NULL); /* a fork from before */
            mn_session_close(&witness);
            witness = changing_fed(&w, a, 130);
            engine_ends_with(bystander, mn_session_logits(witness), what);
            mn_session_close(&bystander);
            mn_session_close(&witness);
            mn_session_close(&session);
        }
    }
    changing_close(&w);
}

/* A window that has dropped nothing yet, and one that has. */
static void windows_come_later(void **state) {
    (void)state;
    static const char *const windows[] = {"window_length=90", "window_length=24", "window_length=5"};
    changing w = changing_open(TINY_MODEL, engine_threads());
    for (int i = 0; i < 3; i++) {
        engine_cache plain = {.implementation = "dynamic", .dtype = "f32", .page_tokens = 4}, narrow = plain;
        narrow.implementation = "sliding_window";
        narrow.config = windows[i];
        mn_session *session = changing_fed(&w, plain, 80), *always = changing_fed(&w, narrow, 80);
        size_t before = kv_bytes(session->cache);
        assert_ok(changing_set(session, narrow));
        assert_ok(kv_check(session->cache));
        assert_int_equal(kv_bytes(session->cache), kv_bytes(always->cache));
        assert_int_equal(kv_first_held(session->cache, 0), kv_first_held(always->cache, 0));
        if (i == 0) {
            assert_int_equal(kv_bytes(session->cache), before);
            changing_go_on_alike(&w, session, always, 200, -1, windows[i]);
        } else {
            assert_true(kv_bytes(session->cache) < before);
            engine_feed(session, w.ids + 80, 120, -1, &w.seed, NULL);
        }
        assert_fails(MN_E_UNSUPPORTED, "dropped", changing_set(session, plain));
        mn_session_close(&session);
        mn_session_close(&always);
    }
    /* With a separate head page sums have another order. */
    engine_cache plain = {.implementation = "dynamic", .dtype = "f32", .page_tokens = 4}, sink = plain;
    sink.implementation = "sink";
    sink.config = "window_length=90,num_sink_tokens=5";
    mn_session *session = changing_fed(&w, plain, 80), *always = changing_fed(&w, sink, 80);
    float *got = malloc(100 * w.vocab * sizeof *got), *wanted = malloc(100 * w.vocab * sizeof *wanted);
    assert_ok(changing_set(session, sink));
    engine_feed(session, w.ids + 80, 100, -1, &w.seed, got);
    engine_feed(always, w.ids + 80, 100, -1, &w.seed, wanted);
    double distance = engine_distance(got, wanted, 100 * w.vocab);
    if (!(distance <= 2e-4)) fail_msg("a sink cache that was dynamic is %g away", distance);
    free(got);
    free(wanted);
    mn_session_close(&session);
    mn_session_close(&always);
    changing_close(&w);
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
        void *scratch = malloc(kv_quantize_scratch(cache) + 64);
        for (int i = 0; i < n_tasks; i++) kv_quantize(cache, kernels, i, (void *)(((uintptr_t)scratch + 63) / 64 * 64));
        free(scratch);
        kv_finish_step(cache);
        assert_ok(kv_check(cache));
    }
}

/* The same tokens quantized, and every token that is held reads the same. */
static void same_contents(const kv_cache *got, const kv_cache *wanted, const kernel_table *kernels, const char *what) {
    static float rows[2][MOST_FLOATS];
    int n = (int)kv_length(wanted);
    assert_int_equal(kv_length(got), n);
    for (int entry = 0; entry < kv_entries(wanted); entry++) {
        kv_view a = kv_attention_view(got, entry), b = kv_attention_view(wanted, entry);
        assert_int_equal(a.n_pages, b.n_pages);
        for (int i = 0; i < a.n_pages; i++) {
            if (a.n_quantized[i] != b.n_quantized[i])
                fail_msg("%s: %d tokens of page %d are quantized, expected %d", what, a.n_quantized[i], i,
                         b.n_quantized[i]);
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

static void open_bare(kv_cache **out, kv_spec **specs, int *n, kv_options *options, changing *w, engine_cache cache) {
    mn_session *session = engine_session(w->model, cache);
    assert_ok(session_specs(specs, n, session));
    *options = session->plan.options;
    mn_session_close(&session);
    if (out) assert_ok(kv_open(out, w->model->core->pool, *specs, *n, options));
}

/* From one strategy to another with n tokens held; then both grow. */
static void check_conversion(changing *w, engine_cache from, const engine_strategy *to, int n, const char *exact) {
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
        /* quanto and hqq quantize by calls, so their histories differ; the rest is equal. */
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
    changing w = changing_open(TINY_MODEL, engine_threads());
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        for (int i = 0; i < 6; i++) {
            for (int from = 0; from < 3; from++) {
                if (!test_samples(s + i + from, 8)) continue;
                check_conversion(&w, sources[from], &engine_strategies[s], lengths[i], i % 2 ? "f32" : "bf16");
            }
        }
    }
    /* A cache with a window, sinks or quantized tokens gets the missing trait. */
    static const struct {
        engine_cache from;
        engine_strategy to;
    } halves[] = {
        {{.implementation = "sliding_window", .config = "window_length=50"},
         {.cache = {.implementation = "quantized+sliding_window",
                    .page_tokens = 16,
                    .config = "nbits=4,residual_length=16,window_length=50"}}},
        {{.implementation = "sliding_window", .config = "window_length=50"},
         {.cache = {.implementation = "sliding_window+offloaded", .page_tokens = 4, .config = "window_length=30"}}},
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
         {.cache = {.implementation = "quantized", .page_tokens = 16, .config = "nbits=4,residual_length=16"}}},
        {{.implementation = "quantized", .config = "nbits=4,residual_length=16"},
         {.cache = {.implementation = "quantized+sliding_window",
                    .page_tokens = 16,
                    .config = "nbits=4,residual_length=16,window_length=50"}}},
    };
    for (size_t h = 0; h < sizeof halves / sizeof *halves; h++) {
        for (int i = 0; i < 6; i++) {
            if (test_samples((int)h + i, 3)) check_conversion(&w, halves[h].from, &halves[h].to, lengths[i], "bf16");
        }
    }
    changing_close(&w);
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

/* With a model: converted to quantized is no worse than quantized from the beginning. */
static void late_codes_are_as_good_as_early_ones(void **state) {
    (void)state;
    static const char *const configs[] = {"nbits=8,residual_length=16", "nbits=6,residual_length=0,first_exact=0",
                                          "nbits=4,residual_length=16", "backend=hqq,nbits=8,residual_length=16",
                                          "backend=quanto,nbits=4,residual_length=16"};
    changing w = changing_open(TINY_MODEL, engine_threads());
    engine_cache plain = {.implementation = "dynamic", .dtype = "f32", .page_tokens = 16};
    size_t n = 70 * w.vocab;
    float *logits[3];
    for (int i = 0; i < 3; i++) logits[i] = malloc(n * sizeof(float));
    for (int i = 0; i < 5; i++) {
        if (!test_samples(i, 3)) continue;
        engine_cache coded = {.implementation = "quantized", .page_tokens = 16, .dtype = "f32", .config = configs[i]};
        mn_session *sessions[3] = {changing_fed(&w, plain, 150), changing_fed(&w, plain, 150),
                                   engine_session(w.model, coded)};
        engine_feed(sessions[2], w.ids, 150, 0, NULL, NULL);
        assert_ok(changing_set(sessions[1], coded));
        assert_true(strategy_quantized(sessions[1]) > 0);
        for (int k = 0; k < 3; k++) engine_feed(sessions[k], w.ids + 150, 70, 1, NULL, logits[k]);
        double late = error_of(logits[1], logits[0], n), early = error_of(logits[2], logits[0], n);
        if (!(late > 0 && late < 1.2 * early))
            fail_msg("%s: error %g, of codes from the start %g", configs[i], late, early);
        for (int k = 0; k < 3; k++) mn_session_close(&sessions[k]);
    }
    for (int i = 0; i < 3; i++) free(logits[i]);
    changing_close(&w);
}

/* ---- refusals ---- */

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
     "type of exact tokens"},
    {{.implementation = "dynamic"}, {.implementation = "static", .max_cache_len = 60}, MN_E_UNSUPPORTED, "60"},
    {{.implementation = "dynamic"}, {.implementation = "dynamic", .max_cache_len = 99}, MN_E_UNSUPPORTED, "99"},
    {{.implementation = "dynamic"}, {.implementation = "dinamic"}, MN_E_ARG, "did you mean dynamic"},
    {{.implementation = "dynamic"}, {.implementation = "sliding_window"}, MN_E_ARG, "window_length"},
    {{.implementation = "dynamic"}, {.implementation = "quantized", .config = "nbits=7"}, MN_E_ARG, "7"},
    {{.implementation = "dynamic"},
     {.implementation = "quantized", .config = "layers=0:f32,rest:4bit"},
     MN_E_UNSUPPORTED,
     "grouped"},
    {{.implementation = "quantized"}, {.implementation = "dynamic"}, MN_E_UNSUPPORTED, "form of quantized tokens"},
    {{.implementation = "quantized"},
     {.implementation = "quantized", .config = "nbits=2"},
     MN_E_UNSUPPORTED,
     "form of quantized tokens"},
    {{.implementation = "quantized", .config = "residual_length=0", .page_tokens = 16},
     {.implementation = "quantized+sink", .config = "residual_length=0,num_sink_tokens=2", .page_tokens = 16},
     MN_E_UNSUPPORTED,
     "exact"},
    {{.implementation = "quantized+offloaded", .config = "residual_length=16", .page_tokens = 16},
     {.implementation = "dynamic", .page_tokens = 16},
     MN_E_UNSUPPORTED,
     "form of quantized tokens"},
    {{.implementation = "sliding_window", .config = "window_length=20", .page_tokens = 4},
     {.implementation = "dynamic", .page_tokens = 4},
     MN_E_UNSUPPORTED,
     "dropped"},
    {{.implementation = "sliding_window", .config = "window_length=20", .page_tokens = 4},
     {.implementation = "sliding_window", .config = "window_length=21", .page_tokens = 4},
     MN_E_UNSUPPORTED,
     "dropped"},
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
    changing w = changing_open(TINY_MODEL, engine_threads());
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        mn_session *session = changing_fed(&w, refusals[i].from, 100), *witness = NULL;
        size_t used = kv_pool_used(w.model->core->pool), held = kv_bytes(session->cache);
        char name[sizeof session->plan.name];
        memcpy(name, session->plan.name, sizeof name);
        assert_ok(mn_session_fork(&witness, session));
        assert_fails(refusals[i].status, refusals[i].message, changing_set(session, refusals[i].to));
        assert_string_equal(session->plan.name, name);
        assert_int_equal(kv_bytes(session->cache), held);
        assert_true(kv_pool_used(w.model->core->pool) <= used + held); /* the fork's own pages */
        changing_go_on_alike(&w, session, witness, 140, -1, refusals[i].message);
        mn_session_close(&session);
        mn_session_close(&witness);
    }
    changing_close(&w);
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
    changing w = changing_open(TINY_MODEL, engine_threads());
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        engine_cache plain = {.implementation = i % 2 ? "offloaded" : "dynamic", .page_tokens = 16};
        bool failed = true;
        int64_t k = 1;
        for (; failed; k += test_stride(2)) {
            mn_session *session = changing_fed(&w, plain, 100), *witness = NULL;
            assert_ok(mn_session_fork(&witness, session));
            int64_t before = mem_count().allocations;
            mem_fail_after(k);
            mn_status status = changing_set(session, targets[i]);
            mem_fail_after(0);
            failed = mem_count().allocations - before >= k - 1;
            assert_ok(kv_check(session->cache));
            if (status == MN_OK) { /* pages that found no memory are quantized by the next step */
                assert_string_equal(session->plan.name, targets[i].implementation);
                engine_feed(session, w.ids + 100, 60, 0, NULL, NULL);
                assert_ok(kv_check(session->cache));
            } else {
                assert_int_equal(status, MN_E_NOMEM);
                assert_string_equal(session->plan.name, plain.implementation);
                changing_go_on_alike(&w, session, witness, 120, 0, "after a change that found no memory");
            }
            mn_session_close(&session);
            mn_session_close(&witness);
        }
        assert_true(k > 10);
    }
    changing_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CHANGING_TEST(exact_changes_change_nothing),      CHANGING_TEST(windows_come_later),
        CHANGING_TEST(what_is_stored_is_what_always_was), CHANGING_TEST(late_codes_are_as_good_as_early_ones),
        CHANGING_TEST(refused_changes_change_nothing),    CHANGING_TEST(changes_without_memory_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
