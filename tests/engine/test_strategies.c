/* Laws of the cache strategies, through whole models: what a window, a sink, a code, a far page may change in
 * the results and what not.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>

#include "gen/session.h"
#include "kernels/cpu.h"
#include "kv/group.h"
#include "support/oracle.h"
#include "support/strategies.h"

static const char *const models[] = {"golden/llama",       "golden/llama-untied-bias",
                                     "golden/qwen3",       "golden/mistral-window",
                                     "golden/phi3-window", "golden/llama-rope-yarn"};
static const char *const dtypes[] = {"f32", "bf16"};

enum { N_MODELS = 6, N_ORACLE_MODELS = 5, N_IDS = 130, N_PROMPT = 90, YARN = 5 };

/* What other correct float32 and float64 runs of these checkpoints differ by, with a margin of three. */
static const double tolerance = 2e-4;

typedef struct world {
    const char *path;
    mn_model *model;
    int32_t ids[N_IDS];
    size_t vocab;
    uint64_t seed;
} world;

static world open_world(const char *path, const char *cpu, int threads) {
    world w = {.path = path, .model = engine_model(path, "f32", cpu, threads), .seed = 41};
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&w.seed, w.ids, N_IDS, (int32_t)w.vocab);
    return w;
}

static void close_world(world *w) {
    mn_model_close(&w->model);
}

static float *new_logits(const world *w) {
    float *logits = malloc(N_IDS * w->vocab * sizeof *logits);
    assert_non_null(logits);
    memset(logits, 0xFF, N_IDS * w->vocab * sizeof *logits);
    return logits;
}

/* Logits of all ids through a strategy. */
static float *run(world *w, int strategy, const char *exact, int chunk, int piece) {
    engine_cache cache = strategy_cache(strategy, exact);
    cache.prefill_chunk = chunk;
    float *logits = new_logits(w);
    mn_session *session = engine_session(w->model, cache);
    strategy_feed(&engine_strategies[strategy], session, w->ids, N_PROMPT, N_IDS, piece, &w->seed, logits);
    assert_ok(kv_check(session->cache));
    mn_session_close(&session);
    return logits;
}

/* Spread of the logits: what a distance is measured against. */
static double deviation(const float *x, size_t n) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    return sqrt(squares / (double)n - sum / (double)n * (sum / (double)n));
}

static double mean_square_distance(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / (double)n);
}

/* ---- what never fills changes nothing ---- */

/* Sinks and first exact tokens lie in a page of their own, so sums over tokens are taken in another order;
 * with bf16 the weights of the values are rounded against another maximum then. */
static void check_unfilled(world *w, const char *exact, const float *wanted, const engine_cache *like,
                           const char *implementation, const char *config, bool same_order) {
    engine_cache cache = {
        .implementation = implementation, .dtype = exact, .page_tokens = like->page_tokens, .config = config};
    float *got = engine_logits(w->model, cache, w->ids, N_IDS, -1, &w->seed);
    if (same_order) {
        engine_same_bits(got, wanted, N_IDS, w->vocab, "%s, %s %s, %s", w->path, implementation, config,
                         exact);
    } else if (strcmp(exact, "f32") == 0) {
        double distance = engine_distance(got, wanted, N_IDS * w->vocab);
        if (!(distance <= tolerance))
            fail_msg("%s, %s %s: %g away", w->path, implementation, config, distance);
    } else {
        double distance =
            mean_square_distance(got, wanted, N_IDS * w->vocab) / deviation(wanted, N_IDS * w->vocab);
        if (!(distance <= 0.03))
            fail_msg("%s, %s %s: %g of the spread away", w->path, implementation, config, distance);
    }
    free(got);
}

static void what_never_fills_is_dynamic(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        world w = open_world(models[m], "auto", 2);
        for (int d = 0; d < 2; d++) {
            for (int page = 16; page <= 64; page *= 4) {
                engine_cache plain = {.dtype = dtypes[d], .page_tokens = page};
                float *wanted = engine_logits(w.model, plain, w.ids, N_IDS, 0, NULL);
                check_unfilled(&w, dtypes[d], wanted, &plain, "sliding_window", "window_length=130", true);
                check_unfilled(&w, dtypes[d], wanted, &plain, "sink", "window_length=130,num_sink_tokens=0",
                               true);
                check_unfilled(&w, dtypes[d], wanted, &plain, "sink", "window_length=130", false);
                check_unfilled(&w, dtypes[d], wanted, &plain, "sink", "window_length=1000,num_sink_tokens=60",
                               false);
                check_unfilled(&w, dtypes[d], wanted, &plain, "quantized",
                               "residual_length=130,first_exact=0", true);
                check_unfilled(&w, dtypes[d], wanted, &plain, "quantized", "residual_length=130,nbits=1",
                               false);
                check_unfilled(&w, dtypes[d], wanted, &plain, "quantized+sliding_window",
                               "residual_length=200,first_exact=0,window_length=200", true);
                free(wanted);
            }
        }
        close_world(&w);
    }
}

/* A model's own window is kept where it is the narrower one, and is the default. */
static void natural_windows_stay(void **state) {
    (void)state;
    static const char *const configs[] = {NULL, "window_length=11", "window_length=100"};
    for (int m = 3; m < 5; m++) {
        world w = open_world(models[m], "auto", 2);
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
        close_world(&w);
    }
}

/* ---- windows against the definition ---- */

static void check_window(world *w, const oracle *natural, int length, int sinks, int page) {
    oracle o = *natural;
    oracle_layer layers[8];
    assert_true(o.n_layers <= 8);
    o.layers = layers;
    for (int i = 0; i < o.n_layers; i++) {
        layers[i] = natural->layers[i];
        if (layers[i].window && layers[i].window <= length) continue;
        layers[i].sinks = sinks;
        layers[i].window = length - sinks;
    }
    double *wanted = malloc(N_IDS * w->vocab * sizeof *wanted);
    oracle_logits(&o, w->ids, N_IDS, wanted);
    char config[64];
    snprintf(config, sizeof config, "window_length=%d,num_sink_tokens=%d", length, sinks);
    if (!sinks) *strchr(config, ',') = 0;
    engine_cache cache = {.implementation = sinks ? "sink" : "sliding_window",
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
    static const int sizes[][2] = {{1, 0}, {5, 0}, {50, 0}, {2, 1}, {5, 2}, {40, 33}, {129, 4}};
    for (int m = 0; m < N_ORACLE_MODELS; m++) {
        world w = open_world(models[m], "auto", 2);
        oracle o = oracle_open(data_path(models[m]));
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            check_window(&w, &o, sizes[i][0], sizes[i][1], i % 2 ? 4 : 16);
        oracle_close(&o);
        close_world(&w);
    }
}

/* Heads of sinks wider than any page. */
static void many_sinks_equal_the_oracle(void **state) {
    (void)state;
    enum { LONG = 700, SINKS = 400 };
    mn_model *model = engine_model("golden/llama-untied-bias", "f32", "auto", 2);
    oracle o = oracle_open(data_path("golden/llama-untied-bias"));
    uint64_t seed = 4;
    int32_t ids[LONG];
    size_t vocab = (size_t)o.vocab;
    engine_ids(&seed, ids, LONG, o.vocab);
    for (int i = 0; i < o.n_layers; i++)
        o.layers[i] = (o.layers[i].sinks = SINKS, o.layers[i].window = 100, o.layers[i]);
    double *wanted = malloc(LONG * vocab * sizeof *wanted);
    oracle_logits(&o, ids, LONG, wanted);
    engine_cache cache = {
        .implementation = "sink", .dtype = "f32", .config = "window_length=500,num_sink_tokens=400"};
    float *got = engine_logits(model, cache, ids, LONG, 0, NULL);
    double distance = oracle_distance(got, wanted, LONG * vocab);
    if (!(distance > 0 && distance <= tolerance))
        fail_msg("%d sinks: %g away from the oracle", SINKS, distance);
    free(got);
    free(wanted);
    oracle_close(&o);
    mn_model_close(&model);
}

/* The session's cache again with the same specs, but for the tokens kept beyond windows. */
static void keep_everything(mn_session *session) {
    kv_spec *specs = NULL;
    int n = 0;
    assert_ok(model_cache_specs(&specs, &n, session->model, session->plan.exact));
    assert_ok(kv_plan_specs(&session->plan, specs, n, n, NULL));
    for (int i = 0; i < n; i++) specs[i].slack = 1 << 20;
    kv_close(&session->cache);
    assert_ok(kv_open(&session->cache, session->model->pool, specs, n, &session->plan.options));
    mem_free(specs);
}

/* Whether pages that no one sees are dropped shows nowhere but in the memory. */
static void forgotten_pages_are_not_missed(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        world w = open_world(models[m], "auto", 2);
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            const engine_strategy *strategy = &engine_strategies[s];
            if (!strategy->forgets) continue;
            for (int d = 0; d < 2; d++) {
                float *wanted = run(&w, s, dtypes[d], 0, 1), *got = new_logits(&w);
                mn_session *session = engine_session(w.model, strategy_cache(s, dtypes[d]));
                keep_everything(session);
                strategy_feed(strategy, session, w.ids, N_PROMPT, N_IDS, 1, NULL, got);
                assert_int_equal(kv_first_held(session->cache, 0), 0);
                engine_same_bits(got, wanted, N_IDS, w.vocab, "%s, %s %s without forgetting", w.path,
                                 strategy->cache.implementation, dtypes[d]);
                mn_session_close(&session);
                free(wanted);
                free(got);
            }
        }
        close_world(&w);
    }
}

/* ---- the cut ---- */

static void bits_do_not_depend_on_the_cut(void **state) {
    const char *path = *state;
    static const int chunks[] = {1, 3, 20, 64};
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        const engine_strategy *strategy = &engine_strategies[s];
        for (int d = 0; d < 2; d++) {
            world w = open_world(path, "auto", 1), two = open_world(path, "auto", 2);
            float *wanted = run(&w, s, dtypes[d], 0, 0);
            for (size_t i = 0; i < N_IDS * w.vocab; i++) assert_true(isfinite(wanted[i]));
            for (int c = 0; c < 4; c++) {
                float *got = run(c % 2 ? &w : &two, s, dtypes[d], chunks[c], c == 0 ? 0 : c == 1 ? 1 : -1);
                engine_same_bits(got, wanted, N_IDS, w.vocab, "%s, %s %s %s, chunks of %d", path,
                                 strategy->cache.implementation, strategy->cache.config, dtypes[d],
                                 chunks[c]);
                free(got);
            }
            free(wanted);
            close_world(&w);
            close_world(&two);
        }
    }
}

static void levels_agree_within_rounding(void **state) {
    (void)state;
    world scalar = open_world(models[1], "scalar", 2);
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        float *wanted = run(&scalar, s, "f32", 0, 9);
        for (cpu_level level = CPU_AVX2; level < N_CPU_LEVELS; level = (cpu_level)(level + 1)) {
            if (!cpu_has(level)) continue;
            world w = open_world(models[1], cpu_level_name(level), 2);
            float *got = run(&w, s, "f32", 0, 9);
            double distance = engine_distance(got, wanted, N_IDS * w.vocab);
            if (!(distance <= tolerance)) {
                fail_msg("%s %s on %s: %g away from the scalar level",
                         engine_strategies[s].cache.implementation, engine_strategies[s].cache.config,
                         cpu_level_name(level), distance);
            }
            free(got);
            close_world(&w);
        }
        free(wanted);
    }
    close_world(&scalar);
}

/* ---- sealed tokens are what their codes say ---- */

/* Everything that the session's cache holds; what it has forgotten stays zero. */
static void read_past(const mn_session *session, oracle_past *past) {
    const kernel_table *kernels = &session->model->compute.kernels;
    size_t n = (size_t)kv_length(session->cache);
    for (int entry = 0; entry < kv_entries(session->cache); entry++) {
        const kv_spec *spec = kv_entry_spec(session->cache, entry);
        size_t dim = (size_t)spec->k_dim, heads = (size_t)spec->n_heads;
        size_t first = (size_t)kv_first_held(session->cache, entry),
               head = first < (size_t)spec->sinks ? first : (size_t)spec->sinks;
        assert_true(first <= n);
        for (int is_key = 0; is_key < 2; is_key++) {
            float *all = calloc(heads * n * dim, sizeof *all), *part = malloc(heads * n * dim * sizeof *part);
            const size_t ranges[2][2] = {{0, head}, {first, n}};
            for (int i = 0; i < 2; i++) {
                size_t begin = ranges[i][0], count = ranges[i][1] - begin;
                assert_ok(kv_read(session->cache, kernels, entry, is_key, (int64_t)begin, (int)count, part));
                for (size_t h = 0; h < heads; h++)
                    memcpy(all + (h * n + begin) * dim, part + h * count * dim, count * dim * sizeof *all);
            }
            free(part);
            *(is_key ? &past[entry].k : &past[entry].v) = all;
        }
    }
}

/* One more token of the session against the oracle over the keys and values that it holds before. */
static void check_step(world *w, const oracle *natural, mn_session *session, int32_t id, bool is_f32,
                       const char *what) {
    oracle o = *natural;
    oracle_layer layers[8];
    oracle_past past[8];
    o.layers = layers;
    for (int i = 0; i < o.n_layers; i++) {
        const kv_spec *spec = kv_entry_spec(session->cache, i);
        layers[i] = natural->layers[i];
        layers[i].window = spec->window;
        layers[i].sinks = spec->sinks;
    }
    read_past(session, past);
    size_t n = (size_t)kv_length(session->cache);
    double *wanted = malloc(w->vocab * sizeof *wanted);
    float *narrow = malloc(w->vocab * sizeof *narrow);
    oracle_continue(&o, id, past, n, wanted);
    assert_ok(mn_session_step(session, &id, 1, NULL));
    const float *got = mn_session_logits(session);
    for (size_t i = 0; i < w->vocab; i++) narrow[i] = (float)wanted[i];
    double distance = is_f32 ? oracle_distance(got, wanted, w->vocab)
                             : mean_square_distance(got, narrow, w->vocab) / deviation(narrow, w->vocab);
    if (!(distance > 0 && distance <= (is_f32 ? tolerance : 0.03)))
        fail_msg("%s, %s %s, token %zu %s: %g away from the oracle", w->path, session->plan.name,
                 is_f32 ? "f32" : "bf16", n, what, distance);
    for (int i = 0; i < o.n_layers; i++) {
        free((void *)(uintptr_t)past[i].k);
        free((void *)(uintptr_t)past[i].v);
    }
    free(wanted);
    free(narrow);
}

static void attention_is_over_what_is_stored(void **state) {
    (void)state;
    static const int64_t cuts[] = {119, 101, 70, 33, 3};
    for (int m = 0; m < N_ORACLE_MODELS; m++) {
        world w = open_world(models[m], "auto", 2);
        oracle o = oracle_open(data_path(models[m]));
        for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
            for (int d = 0; d < 2; d++) {
                const engine_strategy *strategy = &engine_strategies[s];
                mn_session *session = engine_session(w.model, strategy_cache(s, dtypes[d]));
                strategy_feed(strategy, session, w.ids, N_PROMPT, 118, -1, &w.seed, NULL);
                if (strategy->is_lossy && strategy_sealed(session) == 0)
                    fail_msg("%s %s seals nothing", strategy->cache.implementation, strategy->cache.config);
                for (int i = 0; i < 4; i++) check_step(&w, &o, session, w.ids[118 + i], d == 0, "at the end");
                for (int i = 0; i < 5; i++) { /* taken back into the sealed part, and on from there */
                    if (mn_session_truncate(session, cuts[i]) != MN_OK) continue;
                    check_step(&w, &o, session, w.ids[5 + i], d == 0, "behind a cut");
                    engine_feed(session, w.ids + i, 12, 5, NULL, NULL);
                    assert_ok(kv_check(session->cache));
                    check_step(&w, &o, session, w.ids[9 + i], d == 0, "some way behind a cut");
                }
                mn_session_close(&session);
            }
        }
        oracle_close(&o);
        close_world(&w);
    }
}

/* ---- far positions ---- */

/* An empty or windowed cache goes on at `position`, as if so many tokens had passed that nothing but sinks is
 * left. */
static void jump(kv_cache *cache, int64_t position) {
    cache->n_tokens = position;
    for (int g = 0; g < cache->n_groups; g++) {
        group_tidy(&cache->groups[g], cache->pool, position);
        group_tidy(&cache->groups[g], cache->pool, position);
        assert_int_equal(cache->groups[g].n_slots, 0);
    }
}

static float *run_at(world *w, engine_cache cache, size_t n_sinks, int64_t position) {
    mn_session *session = engine_session(w->model, cache);
    float *logits = new_logits(w);
    for (size_t t = 0; t < N_IDS; t++) {
        if (t == n_sinks) jump(session->cache, position);
        forward_row row = {.cache = session->cache,
                           .ids = w->ids + t,
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

/* Only distances count, at four million as at four hundred; angles rounded to float32 would be off by half a
 * turn. */
static void far_positions_are_as_near_ones(void **state) {
    (void)state;
    static const struct {
        engine_cache cache;
        size_t sinks;
    } tries[] = {
        {{.implementation = "sliding_window",
          .dtype = "f32",
          .page_tokens = 4,
          .config = "window_length=200"},
         0},
        {{.implementation = "sink",
          .dtype = "f32",
          .page_tokens = 4,
          .config = "window_length=25,num_sink_tokens=4"},
         4},
        {{.implementation = "sink",
          .dtype = "f32",
          .page_tokens = 16,
          .config = "window_length=100,num_sink_tokens=1"},
         1},
    };
    for (int m = 0; m < N_MODELS; m++) {
        world w = open_world(models[m], "auto", 2);
        for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
            float *near = run_at(&w, tries[i].cache, tries[i].sinks, 512),
                  *far = run_at(&w, tries[i].cache, tries[i].sinks, 4000000 / 512 * 512);
            double distance = engine_distance(near, far, N_IDS * w.vocab);
            if (!(distance <= tolerance))
                fail_msg("%s, %s: %g away at four million", w.path, tries[i].cache.config, distance);
            free(near);
            free(far);
        }
        close_world(&w);
    }
}

int main(void) {
    struct CMUnitTest tests[N_MODELS + 8] = {
        cmocka_unit_test(what_never_fills_is_dynamic),      cmocka_unit_test(natural_windows_stay),
        cmocka_unit_test(windows_equal_the_oracle),         cmocka_unit_test(many_sinks_equal_the_oracle),
        cmocka_unit_test(forgotten_pages_are_not_missed),   cmocka_unit_test(levels_agree_within_rounding),
        cmocka_unit_test(attention_is_over_what_is_stored), cmocka_unit_test(far_positions_are_as_near_ones),
    };
    for (int i = 0; i < N_MODELS; i++) {
        tests[8 + i] = (struct CMUnitTest){.name = models[i],
                                           .test_func = bits_do_not_depend_on_the_cut,
                                           .initial_state = (void *)(uintptr_t)models[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
