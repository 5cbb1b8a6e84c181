/* Properties of the cache strategies in whole models: what windows, sinks, quantization and offloading may change in
 * the results.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/strategies.h"

#include <math.h>

#include "session/session.h"
#include "kernels/cpu.h"
#include "kv/group.h"
#include "support/oracle.h"
#include "support/scratch.h"
#include "support/stored.h"

typedef strategy_fixture fixture;

enum { N_IDS = N_STRATEGY_IDS, N_ORACLE_MODELS = N_STRATEGY_MODELS - 1 };

static const double tolerance = STORED_TOLERANCE, bf16_tolerance = STORED_BF16_TOLERANCE;

/* ---- limits that are never reached change nothing ---- */

/* Sinks and the first exact tokens are in a page of their own, so sums over tokens are in another order, and with bf16
 * the softmax weights are rounded relative to another maximum. */
static void check_unfilled(fixture *w, const char *exact, const float *wanted, const engine_cache *like,
                           const char *implementation, const char *config, bool same_order) {
    engine_cache cache = {
        .implementation = implementation, .dtype = exact, .page_tokens = like->page_tokens, .config = config};
    float *got = engine_logits(w->model, cache, w->ids, N_IDS, -1, &w->seed);
    if (same_order) {
        engine_same_bits(got, wanted, N_IDS, w->vocab, "%s, %s %s, %s", w->path, implementation, config, exact);
    } else if (strcmp(exact, "f32") == 0) {
        double distance = engine_distance(got, wanted, N_IDS * w->vocab);
        if (!(distance <= tolerance)) fail_msg("%s, %s %s: %g away", w->path, implementation, config, distance);
    } else {
        double distance = engine_mean_square(got, wanted, N_IDS * w->vocab) / engine_spread(wanted, N_IDS * w->vocab);
        if (!(distance <= bf16_tolerance))
            fail_msg("%s, %s %s: %g of the spread away", w->path, implementation, config, distance);
    }
    free(got);
}

static void limits_that_are_never_reached_equal_dynamic(void **state) {
    (void)state;
    for (int m = 0; m < N_STRATEGY_MODELS; m++) {
        fixture w = strategy_fixture_open(strategy_models[m], "auto", engine_threads());
        for (int d = 0; d < 2; d++) {
            for (int page = 16; page <= 64; page *= 4) {
                if (!test_samples(m + d + page / 64, 4)) continue;
                engine_cache plain = {.dtype = strategy_dtypes[d], .page_tokens = page};
                float *wanted = engine_logits(w.model, plain, w.ids, N_IDS, 0, NULL);
                check_unfilled(&w, strategy_dtypes[d], wanted, &plain, "sliding_window", "window_length=130", true);
                check_unfilled(&w, strategy_dtypes[d], wanted, &plain, "sink", "window_length=130,num_sink_tokens=0",
                               true);
                check_unfilled(&w, strategy_dtypes[d], wanted, &plain, "sink", "window_length=130", false);
                check_unfilled(&w, strategy_dtypes[d], wanted, &plain, "sink", "window_length=1000,num_sink_tokens=60",
                               false);
                check_unfilled(&w, strategy_dtypes[d], wanted, &plain, "quantized", "residual_length=115,first_exact=0",
                               true); /* the first page ends at 16 */
                check_unfilled(&w, strategy_dtypes[d], wanted, &plain, "quantized", "residual_length=130,nbits=1",
                               false);
                check_unfilled(&w, strategy_dtypes[d], wanted, &plain, "quantized+sliding_window",
                               "residual_length=200,first_exact=0,window_length=200", true);
                free(wanted);
            }
        }
        strategy_fixture_close(&w);
    }
}

/* The model's own window is the default, and is kept where it is narrower than the requested one. */
static void narrower_windows_of_the_model_are_kept(void **state) {
    (void)state;
    static const char *const configs[] = {NULL, "window_length=11", "window_length=100"};
    for (int m = 3; m < 5; m++) {
        fixture w = strategy_fixture_open(strategy_models[m], "auto", engine_threads());
        engine_cache plain = {.dtype = "f32", .page_tokens = 4};
        float *wanted = engine_logits(w.model, plain, w.ids, N_IDS, 0, NULL);
        for (int i = 0; i < 3; i++) {
            plain.implementation = "sliding_window";
            plain.config = configs[i];
            float *got = engine_logits(w.model, plain, w.ids, N_IDS, 7, NULL);
            engine_same_bits(got, wanted, N_IDS, w.vocab, "%s, sliding_window %s", w.path, configs[i]);
            free(got);
        }
        free(wanted);
        strategy_fixture_close(&w);
    }
}

/* ---- windows against the definition ---- */

/* Length 0: the model's own windows. */
static void check_window(fixture *w, const oracle *natural, int length, int sinks, int page) {
    oracle o = *natural;
    oracle_layer layers[8];
    assert_true(o.n_layers <= 8);
    o.layers = layers;
    for (int i = 0; i < o.n_layers; i++) {
        layers[i] = natural->layers[i];
        if (length == 0 || (layers[i].window && layers[i].window <= length)) continue;
        layers[i].sinks = sinks;
        layers[i].window = length - sinks;
    }
    double *wanted = malloc(N_IDS * w->vocab * sizeof *wanted);
    oracle_logits(&o, w->ids, N_IDS, wanted);
    char config[64] = "";
    if (length) snprintf(config, sizeof config, "window_length=%d,num_sink_tokens=%d", length, sinks);
    if (length && !sinks) *strchr(config, ',') = 0;
    engine_cache cache = {.implementation = sinks    ? "sink"
                                            : length ? "sliding_window"
                                                     : "hybrid",
                          .dtype = "f32",
                          .page_tokens = page,
                          .config = config};
    float *got = engine_logits(w->model, cache, w->ids, N_IDS, -1, &w->seed);
    double distance = oracle_distance(got, wanted, N_IDS * w->vocab);
    if (!(distance > 0 && distance <= tolerance))
        fail_msg("%s, %s, pages of %d: %g away from the oracle", w->path, config, page, distance);
    free(got);
    free(wanted);
}

static void windows_equal_the_oracle(void **state) {
    (void)state;
    static const int sizes[][2] = {{0, 0}, {1, 0}, {5, 0}, {50, 0}, {2, 1}, {5, 2}, {40, 33}, {129, 4}};
    for (int m = 0; m <= N_ORACLE_MODELS; m++) {
        const char *path = m < N_ORACLE_MODELS ? strategy_models[m] : strategy_hybrid_folder();
        fixture w = strategy_fixture_open(path, "auto", engine_threads());
        oracle o = oracle_open(*path == '/' ? path : data_path(path));
        for (int i = 0; i < (int)(sizeof sizes / sizeof sizes[0]); i++) {
            if (m == N_ORACLE_MODELS || strategy_tries(i, 0, m))
                check_window(&w, &o, sizes[i][0], sizes[i][1], i % 2 ? 4 : 16);
        }
        oracle_close(&o);
        strategy_fixture_close(&w);
    }
}

/* Heads of sinks wider than any page. */
static void many_sinks_equal_the_oracle(void **state) {
    (void)state;
    enum { LONG = 700, SINKS = 400 };
    mn_model *model = engine_model("golden/llama-untied-bias", "f32", "auto", engine_threads());
    oracle o = oracle_open(data_path("golden/llama-untied-bias"));
    uint64_t seed = 4;
    int32_t ids[LONG];
    size_t vocab = (size_t)o.vocab;
    engine_ids(&seed, ids, LONG, o.vocab);
    for (int i = 0; i < o.n_layers; i++)
        o.layers[i] = (o.layers[i].sinks = SINKS, o.layers[i].window = 100, o.layers[i]);
    double *wanted = malloc(LONG * vocab * sizeof *wanted);
    oracle_logits(&o, ids, LONG, wanted);
    engine_cache cache = {.implementation = "sink", .dtype = "f32", .config = "window_length=500,num_sink_tokens=400"};
    float *got = engine_logits(model, cache, ids, LONG, 0, NULL);
    double distance = oracle_distance(got, wanted, LONG * vocab);
    if (!(distance > 0 && distance <= tolerance)) fail_msg("%d sinks: %g away from the oracle", SINKS, distance);
    free(got);
    free(wanted);
    oracle_close(&o);
    mn_model_close(&model);
}

/* Dropping pages outside every window changes only the memory: a step drops none before its end, single tokens drop
 * each one as soon as the window has passed it. */
static void dropped_pages_change_nothing(void **state) {
    (void)state;
    for (int m = 0; m < N_STRATEGY_MODELS; m++) {
        fixture w = strategy_fixture_open(strategy_models[m], "auto", engine_threads());
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            const engine_strategy *strategy = &engine_strategies[s];
            for (int d = 0; d < 2; d++) {
                if (!strategy->forgets || !strategy_tries(s, d, m)) continue;
                if (strategy->flushes) continue; /* what is quantized depends on the calls */
                float *wanted = strategy_run(&w, strategy, strategy_dtypes[d], 0, 1),
                      *got = strategy_run(&w, strategy, strategy_dtypes[d], N_IDS, 0);
                engine_same_bits(got, wanted, N_IDS, w.vocab, "%s, %s %s in one step", w.path,
                                 strategy->cache.implementation, strategy_dtypes[d]);
                free(wanted);
                free(got);
            }
        }
        strategy_fixture_close(&w);
    }
}

/* ---- attention over quantized tokens ---- */

/* Steps at the end, truncation into the quantized part, and steps from there. */
static void check_attention(fixture *w, const oracle *o, int i_strategy, const char *exact) {
    static const int64_t cuts[] = {119, 101, 70, 33, 3};
    const engine_strategy *strategy = &engine_strategies[i_strategy];
    mn_session *session = engine_session(w->model, strategy_cache(i_strategy, exact));
    strategy_feed(strategy, session, w->ids, 118, -1, &w->seed, NULL);
    if (strategy_must_quantize(session) && strategy_quantized(session) == 0) {
        fail_msg("%s, %s %s quantizes nothing", w->path, strategy->cache.implementation, strategy->cache.config);
    }
    for (int i = 0; i < 4; i++) stored_check_step(w->path, o, session, w->ids[118 + i], "at the end");
    for (int i = 0; i < 5; i++) {
        if (mn_session_truncate(session, cuts[i]) != MN_OK) continue;
        stored_check_step(w->path, o, session, w->ids[5 + i], "after truncation");
        engine_feed(session, w->ids + i, 12, 5, NULL, NULL);
        assert_ok(kv_check(session->cache));
        stored_check_step(w->path, o, session, w->ids[9 + i], "some tokens after truncation");
    }
    mn_session_close(&session);
}

static void attention_equals_attention_over_dequantized_values(void **state) {
    (void)state;
    for (int m = 0; m <= N_ORACLE_MODELS; m++) {
        const char *path = m < N_ORACLE_MODELS ? strategy_models[m] : strategy_hybrid_folder();
        fixture w = strategy_fixture_open(path, "auto", engine_threads());
        oracle o = oracle_open(*path == '/' ? path : data_path(path));
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            for (int d = 0; d < 2; d++) {
                if (strategy_tries(s, d, m)) check_attention(&w, &o, s, strategy_dtypes[d]);
            }
        }
        oracle_close(&o);
        strategy_fixture_close(&w);
    }
}

/* Keys or values of layer 0, [heads][n][dim], tokens from `begin` on: they do not depend on the cache. */
static float *read_first_layer(const mn_session *session, bool is_key, int64_t begin) {
    const kv_spec *spec = kv_entry_spec(session->cache, 0);
    int n = (int)(kv_length(session->cache) - begin);
    float *rows = malloc((size_t)spec->n_heads * (size_t)n * (size_t)spec->k_dim * sizeof *rows);
    assert_ok(kv_read(session->cache, &session->model->compute.kernels, 0, is_key, begin, n, rows));
    return rows;
}

/* CPU levels of the kernels round in different places. Without quantization that is the only difference; a value
 * between two quantization levels may be rounded to either, so quantized values are equal except a few, and results are
 * checked against the values that are stored. */
static void check_levels(fixture *w, fixture *scalar, const oracle *o, int s) {
    const engine_strategy *strategy = &engine_strategies[s];
    if (!strategy->is_lossy) {
        float *wanted = strategy_run(scalar, strategy, "f32", 0, 9), *got = strategy_run(w, strategy, "f32", 0, 9);
        double distance = engine_distance(got, wanted, N_IDS * w->vocab);
        if (!(distance <= tolerance)) {
            fail_msg("%s %s: %g away from the scalar level", strategy->cache.implementation, strategy->cache.config,
                     distance);
        }
        free(got);
        free(wanted);
        return;
    }
    for (int d = 0; d < 2; d++) {
        if (strategy_tries(s, d, 0)) check_attention(w, o, s, strategy_dtypes[d]);
    }
    mn_session *sessions[2];
    for (int i = 0; i < 2; i++) {
        sessions[i] = engine_session((i ? scalar : w)->model, strategy_cache(s, "f32"));
        strategy_feed(strategy, sessions[i], w->ids, N_IDS, 9, NULL, NULL);
    }
    int64_t first = kv_first_held(sessions[0]->cache, 0);
    size_t n = (size_t)kv_entry_spec(sessions[0]->cache, 0)->n_heads * (size_t)(N_IDS - first) *
               (size_t)kv_entry_spec(sessions[0]->cache, 0)->k_dim;
    for (int is_key = 0; is_key < 2; is_key++) {
        float *got = read_first_layer(sessions[0], is_key, first),
              *wanted = read_first_layer(sessions[1], is_key, first);
        double spread = engine_spread(wanted, n);
        size_t n_other = 0;
        for (size_t i = 0; i < n; i++) n_other += !(fabs((double)got[i] - (double)wanted[i]) <= 1e-4 * spread);
        if (n_other * 100 > n) {
            fail_msg("%s %s: %zu of %zu stored values are not those of the scalar level",
                     strategy->cache.implementation, strategy->cache.config, n_other, n);
        }
        free(got);
        free(wanted);
    }
    for (int i = 0; i < 2; i++) mn_session_close(&sessions[i]);
}

static void cpu_levels_agree_within_rounding(void **state) {
    (void)state;
    const char *path = strategy_models[1];
    fixture scalar = strategy_fixture_open(path, "scalar", engine_threads());
    oracle o = oracle_open(data_path(path));
    for (cpu_level level = CPU_SCALAR; level < N_CPU_LEVELS; level = (cpu_level)(level + 1)) {
        if (!cpu_has(level)) continue;
        fixture w = strategy_fixture_open(path, cpu_level_name(level), engine_threads());
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            if (strategy_is_long() || ((s + (int)level) % 3 == 0 && test_samples(s, 4)))
                check_levels(&w, &scalar, &o, s);
        }
        strategy_fixture_close(&w);
    }
    oracle_close(&o);
    strategy_fixture_close(&scalar);
}

/* ---- every form ---- */

typedef struct backend {
    const char *name;
    int n_bits, bits[7], n_axes, axes[2];
    bool flushes;
} backend;

static const backend backends[] = {
    {"mneme", 7, {1, 2, 3, 4, 5, 6, 8}, 1, {0}, false},
    {"quanto", 2, {2, 4}, 2, {0, -1}, true},
    {"hqq", 5, {1, 2, 3, 4, 8}, 2, {0, 1}, true},
};

/* Forms of keys and of values. */
typedef struct form_try {
    const backend *backend;
    int key_bits, value_bits, key_axis, value_axis;
    int first_exact;
    char config[192];
    const char *implementation;
} form_try;

enum { FORM_TOKENS = 75, FORM_PAGE = 16, FORM_WINDOWS = 3 };

static form_try make_try(const backend *b, int i_key, int i_value, int i_key_axis, int i_value_axis, int window) {
    static const char *const implementations[FORM_WINDOWS] = {"quantized", "quantized+sliding_window",
                                                              "quantized+sink"},
                             *const windows[FORM_WINDOWS] = {"", ",window_length=61",
                                                             ",window_length=65,num_sink_tokens=3"};
    form_try t = {.backend = b,
                  .key_bits = b->bits[i_key],
                  .value_bits = b->bits[i_value],
                  .key_axis = b->axes[i_key_axis],
                  .value_axis = b->axes[i_value_axis],
                  .first_exact = window == 2 ? 3 : (i_key + i_value) % 3,
                  .implementation = implementations[window]};
    int n = snprintf(t.config, sizeof t.config,
                     "backend=%s,key_nbits=%d,value_nbits=%d,q_group_size=16,residual_length=16%s", b->name, t.key_bits,
                     t.value_bits, windows[window]);
    if (window != 2) n += snprintf(t.config + n, sizeof t.config - (size_t)n, ",first_exact=%d", t.first_exact);
    if (b->n_axes > 1)
        snprintf(t.config + n, sizeof t.config - (size_t)n, ",axis_key=%d,axis_value=%d", t.key_axis, t.value_axis);
    return t;
}

/* One bit more halves the error. For normally distributed values the mean square error of the grid over the range of 16
 * values, and of the best uniform grid, is between 1 and 6 times 4^-bits of the mean square, depending on the bits. */
static void check_error(const mn_session *session, const mn_session *exact, const form_try *t, bool is_key) {
    const kv_spec *spec = kv_entry_spec(session->cache, 0);
    int64_t first = kv_first_held(session->cache, 0), length = kv_length(session->cache);
    kv_view view = kv_attention_view(session->cache, 0);
    float *got = read_first_layer(session, is_key, first), *wanted = read_first_layer(exact, is_key, first);
    size_t n = (size_t)(length - first), dim = (size_t)spec->k_dim;
    double error = 0, square = 0;
    for (size_t row = 0; row < (size_t)spec->n_heads * n; row++) {
        int64_t token = first + (int64_t)(row % n);
        bool quantized = token % FORM_PAGE < view.n_quantized[token / FORM_PAGE - view.first_page];
        const float *a = got + row * dim, *b = wanted + row * dim;
        if (token < t->first_exact || !quantized) {
            assert_memory_equal(a, b, dim * sizeof *a);
            continue;
        }
        for (size_t i = 0; i < dim; i++) {
            error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
            square += (double)b[i] * (double)b[i];
        }
    }
    free(got);
    free(wanted);
    assert_true(square > 0);
    int bits = is_key ? t->key_bits : t->value_bits;
    double most = 6 * pow(4, -bits);
    if (!(error > 0 && error <= most * square)) {
        fail_msg("%s %s: the mean square error of the %s is %g of their mean square, at most %g was expected",
                 t->implementation, t->config, is_key ? "keys" : "values", error / square, most);
    }
}

static void check_form(fixture *w, const oracle *o, mn_session *const exact[2], const form_try *t, int d) {
    engine_strategy strategy = {.cache = {.implementation = t->implementation,
                                          .dtype = strategy_dtypes[d],
                                          .page_tokens = FORM_PAGE,
                                          .config = t->config},
                                .flushes = t->backend->flushes};
    mn_session *session = engine_session(w->model, strategy.cache);
    assert_ok(mn_session_step(session, w->ids, FORM_TOKENS - 20, NULL));
    for (int i = FORM_TOKENS - 20; i < FORM_TOKENS; i++) assert_ok(mn_session_step(session, &w->ids[i], 1, NULL));
    for (int is_key = 0; is_key < 2; is_key++) check_error(session, exact[d], t, is_key);
    for (int i = 0; i < 2; i++) stored_check_step(w->path, o, session, w->ids[i], "of a form");
    mn_session_close(&session);
}

static void check_backend(fixture *w, const oracle *o, mn_session *const exact[2], const backend *b, int *count) {
    int sizes[] = {b->n_bits, b->n_bits, b->n_axes, b->n_axes};
    for (int i = 0; i < sizes[0] * sizes[1] * sizes[2] * sizes[3]; i++) {
        for (int window = 0; window < FORM_WINDOWS; window++) {
            int number = (*count)++;
            if (!strategy_is_long() && window != i % FORM_WINDOWS) continue;
            if (!test_samples(number, 8)) continue;
            form_try t = make_try(b, i % sizes[0], i / sizes[0] % sizes[1], i / sizes[0] / sizes[1] % sizes[2],
                                  i / sizes[0] / sizes[1] / sizes[2], window);
            for (int d = 0; d < 2; d++) {
                if (strategy_is_long() || number / 3 % 2 == d) check_form(w, o, exact, &t, d);
            }
        }
    }
}

/* Backends, bits and axes, of keys and values each, under windows and sinks; those of this project with and without a
 * calibration. */
static void every_form_is_within_its_error_and_attended_as_stored(void **state) {
    (void)state;
    enum { CALIBRATION = 400 };
    int count = 0;
    for (int m = 0; m < 2; m++) {
        fixture w = strategy_fixture_open(strategy_models[m], "auto", engine_threads());
        oracle o = oracle_open(data_path(strategy_models[m]));
        mn_session *exact[2];
        for (int d = 0; d < 2; d++) {
            exact[d] = engine_session(w.model, (engine_cache){.dtype = strategy_dtypes[d]});
            engine_feed(exact[d], w.ids, FORM_TOKENS, 0, NULL, NULL);
        }
        for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
            if (strategy_is_long() || (m == 0) == (i < 2)) /* hqq takes longest */
                check_backend(&w, &o, exact, &backends[i], &count);
        }
        int32_t ids[CALIBRATION];
        uint64_t seed = 9;
        engine_ids(&seed, ids, CALIBRATION, (int32_t)w.vocab);
        engine_calibrate(w.model, ids, CALIBRATION, scratch_path("calibration"));
        check_backend(&w, &o, exact, &backends[0], &count);
        assert_non_null(w.model->core->calibration);
        for (int d = 0; d < 2; d++) mn_session_close(&exact[d]);
        oracle_close(&o);
        strategy_fixture_close(&w);
    }
}

/* ---- large positions ---- */

/* The window of a cache that jumped has a gap, which assertions would refuse. */
#ifdef NDEBUG
static const bool may_jump = true;
#else
static const bool may_jump = false;
#endif

/* An empty or windowed cache continues at `position`, as if so many tokens had passed that only sinks remain. */
static void jump(kv_cache *cache, int64_t position) {
    cache->n_tokens = position;
    for (int g = 0; g < cache->n_groups; g++) {
        group_tidy(&cache->groups[g], cache->pool, position);
        group_tidy(&cache->groups[g], cache->pool, position);
        assert_int_equal(cache->groups[g].n_slots, 0);
    }
}

/* Logits [n][vocab] after each of ids; the first n_sinks are at the beginning, the rest from `position` on. */
static float *run_at(const fixture *w, engine_cache cache, const int32_t *ids, size_t n, size_t n_sinks,
                     int64_t position) {
    mn_session *session = engine_session(w->model, cache);
    float *logits = malloc(n * w->vocab * sizeof *logits);
    for (size_t t = 0; t < n; t++) {
        if (t == n_sinks) jump(session->cache, position);
        forward_row row = {.cache = session->cache,
                           .ids = ids + t,
                           .n = 1,
                           .total_length = 1,
                           .want = WANT_LAST,
                           .logits = logits + t * w->vocab};
        kv_call_begin(session->cache);
        kv_call_ends(session->cache, true);
        assert_ok(model_forward(session->model, &row, 1));
    }
    mn_session_close(&session);
    return logits;
}

/* Only relative positions matter, at four million as at four hundred; angles rounded to float32 would be off by half a
 * turn. */
static void results_do_not_depend_on_the_absolute_position(void **state) {
    (void)state;
    if (!may_jump) skip();
    enum { FAR = (4000000 / 512 + 1) * 512 };
    static const struct {
        engine_cache cache;
        size_t sinks;
    } tries[] = {
        {{.implementation = "sliding_window", .dtype = "f32", .page_tokens = 4, .config = "window_length=200"}, 0},
        {{.implementation = "sink", .dtype = "f32", .page_tokens = 4, .config = "window_length=25,num_sink_tokens=4"},
         4},
        {{.implementation = "sink+offloaded",
          .dtype = "f32",
          .page_tokens = 16,
          .config = "window_length=100,num_sink_tokens=1"},
         1},
    };
    for (int m = 0; m < N_STRATEGY_MODELS; m++) {
        fixture w = strategy_fixture_open(strategy_models[m], "auto", engine_threads());
        for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
            if (!test_samples(m + (int)i, 3)) continue;
            float *near = run_at(&w, tries[i].cache, w.ids, N_IDS, tries[i].sinks, 512),
                  *far = run_at(&w, tries[i].cache, w.ids, N_IDS, tries[i].sinks, FAR);
            double distance = engine_distance(near, far, N_IDS * w.vocab);
            if (!(distance <= tolerance))
                fail_msg("%s, %s: %g away at four million", w.path, tries[i].cache.config, distance);
            free(near);
            free(far);
        }
        strategy_fixture_close(&w);
    }
}

/* ---- long runs ---- */

enum {
    RUN_SINKS = 4,
    RUN_WINDOW = 60,
    RUN_PAGE = 16,
    RUN_LAYERS = 5,
    RUN_TAIL = (RUN_LAYERS + 1) * RUN_WINDOW / 16 * 16
};

static const engine_cache run_cache = {
    .implementation = "sink", .dtype = "f32", .page_tokens = RUN_PAGE, .config = "window_length=64,num_sink_tokens=4"};

/* A million steps where that takes minutes. */
static int64_t run_steps(void) {
#ifdef __OPTIMIZE__
    if (strategy_is_long()) return 1000000;
#endif
    return strategy_is_long() ? 20000 : 1500 / test_stride(2);
}

/* The model's own text, with random tokens at times so that it does not repeat itself. */
static int32_t next_id(fixture *w, const float *logits, int64_t n) {
    size_t best = 0;
    if (n % 37 == 0) return (int32_t)(test_random(&w->seed) % w->vocab);
    for (size_t i = 1; i < w->vocab; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

/* The receptive field of a token grows by one window with each layer, besides the sinks: the last tokens alone,
 * recomputed at the same positions, give the same bits; the oracle, computed at the first positions, gives the same
 * logits within rounding. */
static void check_end(const fixture *w, oracle *o, const mn_session *session) {
    int64_t n = mn_session_length(session), begin = (n - RUN_TAIL) / RUN_PAGE * RUN_PAGE;
    int32_t ids[RUN_SINKS + RUN_TAIL + RUN_PAGE];
    size_t count = RUN_SINKS + (size_t)(n - begin);
    memcpy(ids, mn_session_ids(session), RUN_SINKS * sizeof *ids);
    memcpy(ids + RUN_SINKS, mn_session_ids(session) + begin, (size_t)(n - begin) * sizeof *ids);
    if (may_jump) {
        float *again = run_at(w, run_cache, ids, count, RUN_SINKS, begin);
        engine_ends_with(session, again + (count - 1) * w->vocab, "a long run, against its last tokens alone");
        free(again);
    }
    double *wanted = malloc(count * w->vocab * sizeof *wanted);
    oracle_logits(o, ids, count, wanted);
    const float *last = mn_session_logits(session);
    double distance = oracle_distance(last, wanted + (count - 1) * w->vocab, w->vocab),
           spread = engine_spread(last, w->vocab);
    if (!(distance > 0 && distance <= tolerance * fmax(spread, 1)))
        fail_msg("after %lld tokens: %g away from the oracle", (long long)n, distance);
    free(wanted);
}

static void long_runs_keep_their_accuracy_and_memory(void **state) {
    (void)state;
    enum { FULL = 4 * RUN_PAGE + RUN_WINDOW, CHECKS = 4 };
    uint64_t held[RUN_PAGE], peak = 0;
    int64_t steps = run_steps(), live = 0;
    fixture w = strategy_fixture_open("embedded", "auto", 1);
    oracle o = oracle_open(data_path("../../models-embedded/stories260K"));
    assert_int_equal(o.n_layers, RUN_LAYERS);
    for (int i = 0; i < o.n_layers; i++) {
        o.layers[i].sinks = RUN_SINKS;
        o.layers[i].window = RUN_WINDOW;
    }
    mn_session *session = engine_session(w.model, run_cache);
    assert_ok(mn_session_step(session, w.ids, 10, NULL));
    for (int64_t n = 10; n < steps; n++) {
        int32_t id = next_id(&w, mn_session_logits(session), n);
        assert_ok(mn_session_step(session, &id, 1, NULL));
        mn_cache_info info = {.size = sizeof info};
        assert_ok(mn_session_cache(session, &info));
        if (n < FULL) {
            held[n % RUN_PAGE] = info.bytes;
            peak = info.peak_bytes;
            live = mem_count().live;
        } else if (info.bytes != held[n % RUN_PAGE] || info.peak_bytes != peak || mem_count().live > live) {
            /* Fewer blocks: a pause of the machine was longer than the pool keeps unused memory. */
            fail_msg(
                "the cache has grown after %lld tokens: from %llu bytes, at most %llu, %lld blocks to %llu, %llu, %lld",
                (long long)n, (unsigned long long)held[n % RUN_PAGE], (unsigned long long)peak, (long long)live,
                (unsigned long long)info.bytes, (unsigned long long)info.peak_bytes, (long long)mem_count().live);
        }
        if (n > FULL + RUN_TAIL && (n + 1) % (steps / CHECKS) == 0) {
            check_end(&w, &o, session);
            live = mem_count().live; /* the pool retains pages of the other session */
        }
    }
    mn_session_close(&session);
    oracle_close(&o);
    strategy_fixture_close(&w);
}

static void every_strategy_has_a_row(void **state) {
    (void)state;
    strategy_need_rows("engine_strategies", &engine_strategies[0].cache.implementation, sizeof *engine_strategies,
                       N_ENGINE_STRATEGIES, "none, mamba"); /* tested beside them; the same as dynamic */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_has_a_row),
        cmocka_unit_test(limits_that_are_never_reached_equal_dynamic),
        cmocka_unit_test(narrower_windows_of_the_model_are_kept),
        cmocka_unit_test(windows_equal_the_oracle),
        cmocka_unit_test(many_sinks_equal_the_oracle),
        cmocka_unit_test(dropped_pages_change_nothing),
        cmocka_unit_test(attention_equals_attention_over_dequantized_values),
        cmocka_unit_test(cpu_levels_agree_within_rounding),
        cmocka_unit_test(every_form_is_within_its_error_and_attended_as_stored),
        cmocka_unit_test(results_do_not_depend_on_the_absolute_position),
        cmocka_unit_test(long_runs_keep_their_accuracy_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
