/* Pairs of self and cross caches of the tiny golden Whisper checkpoints: traces, operations on rows, quantized pairs,
 * windows, and pairs that are refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/scratch.h"
#include "support/speech/whisper_golden.h"

#include <math.h>

static const char *const folders[] = {"golden/whisper/tiny80", "golden/whisper/tiny128"};
/* The same numbers as without a cache, up to rounding. */
static const char *const exact[] = {"dynamic", "static", "offloaded", "self=dynamic,cross=offloaded",
                                    "self=offloaded,cross=static"};

enum { N_EXACT = 5, MOST_IDS = 64, MOST_ROWS = 4, N_LAYERS = 2, CROSS = N_LAYERS };

static const float tolerance = 5e-4f; /* logits; from the README of the golden data */

static mn_layer_info layer_of(const mn_session *session, int layer) {
    mn_layer_info info = {.size = sizeof info};
    assert_ok(mn_session_layer(session, layer, &info));
    return info;
}

/* Tokens in every self layer and positions in every cross layer. */
static void check_lengths(const mn_session *session, const json *wanted) {
    const json *self = json_get(wanted, "self"), *cross = json_get(wanted, "cross");
    for (int i = 0; i < N_LAYERS; i++) {
        int64_t n_self = self->n ? self->items[i].integer : 0, n_cross = cross->n ? cross->items[i].integer : 0;
        mn_layer_info own = layer_of(session, i), other = layer_of(session, CROSS + i);
        assert_string_equal(own.kind, "self");
        assert_string_equal(other.kind, "cross");
        assert_int_equal(own.tokens, n_self);
        assert_int_equal(other.tokens, n_cross);
    }
}

static void check_stored(const golden *g, const mn_session *session, const char *format, int layer, bool keys) {
    size_t n;
    const tensor *t = golden_tensor(g, format, N_LAYERS - 1, 0);
    float *wanted = golden_values(t, &n), *got = malloc(n * sizeof *got);
    assert_ok(mn_session_read(session, layer, keys, 0, t->shape[1], got));
    golden_near(got, wanted, n, 2e-4f, t->name);
    free(wanted);
    free(got);
}

static void check_trace(const golden *g, const json *test, const char *strategy) {
    const json *trace = json_get(test, "trace");
    mn_session *session = golden_session(g, strategy, NULL, json_get(test, "input")->integer);
    for (size_t i = 1; i < trace->n; i++) { /* the first step has no encoder output yet */
        int32_t ids[MOST_IDS];
        size_t n = engine_read_ids(json_get(&trace->items[i], "ids"), ids, MOST_IDS);
        assert_ok(mn_session_step(session, ids, n, NULL));
        check_lengths(session, &trace->items[i]);
        assert_int_equal(mn_session_length(session), json_get(&trace->items[i], "get_seq_length")->integer);
    }
    check_stored(g, session, "cache.self.%lld.keys", N_LAYERS - 1, true);
    check_stored(g, session, "cache.self.%lld.values", N_LAYERS - 1, false);
    check_stored(g, session, "cache.cross.%lld.keys", CROSS + N_LAYERS - 1, true);
    check_stored(g, session, "cache.cross.%lld.values", CROSS + N_LAYERS - 1, false);
    mn_session_close(&session);
}

/* ---- operations on rows ---- */

typedef struct row_set {
    mn_session *rows[MOST_ROWS];
    size_t n;
} row_set;

static row_set fill_rows(const golden *g, const json *test, const char *strategy) {
    const json *rows = json_get(test, "rows"), *inputs = json_get(test, "inputs");
    row_set set = {.n = rows->n};
    for (size_t i = 0; i < set.n; i++) {
        int32_t ids[MOST_IDS];
        size_t n = engine_read_ids(&rows->items[i], ids, MOST_IDS);
        set.rows[i] = golden_session(g, strategy, NULL, inputs->items[i].integer);
        assert_ok(mn_session_step(set.rows[i], ids, n, NULL));
    }
    return set;
}

static void close_rows(row_set *set) {
    for (size_t i = 0; i < MOST_ROWS; i++) mn_session_close(&set->rows[i]);
}

static void choose_rows(row_set *set, const int32_t *index, size_t n) {
    assert_ok(mn_sessions_select(set->rows, set->n, index, n));
    set->n = n;
}

static bool name_is(const json *test, const char *part) {
    return strstr(json_get(test, "name")->string, part) != NULL;
}

static const json *trace_of(const golden *g) {
    for (size_t i = 0; i < g->cases->n; i++) {
        if (json_is_string(json_get(&g->cases->items[i], "kind"), "cache-trace")) return &g->cases->items[i];
    }
    fail_msg("no trace");
    return NULL;
}

/* A file of four tensors a layer, keys and values of self and of cross attention, of the shapes
 * [4][1][heads][tokens][dim]. */
static void check_legacy(const char *path, const json *shapes) {
    static const char *const streams[] = {"key", "value", "cross_key", "cross_value"};
    tensor_set *file = NULL;
    assert_ok(safetensors_open(&file, path));
    for (int i = 0; i < 4 * N_LAYERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s.%d", streams[i % 4], i / 4);
        const tensor *t = tensor_set_find(file, name);
        assert_true(t && t->n_dims == 4 && t->type == DTYPE_F32);
        for (int k = 0; k < 4; k++) assert_int_equal(t->shape[k], shapes->items[i % 4].items[k].integer);
    }
    tensor_set_close(&file);
}

/* The operation of the case between prefill and probe. */
static void operate(const golden *g, const json *test, const char *strategy, row_set *set) {
    const json *order = json_get(test, "order"), *argument = json_get(test, "argument");
    int32_t index[MOST_ROWS];
    if (order) {
        choose_rows(set, index, engine_read_ids(order, index, MOST_ROWS));
    } else if (name_is(test, "select")) {
        choose_rows(set, index, engine_read_ids(argument, index, MOST_ROWS));
    } else if (name_is(test, "repeat")) {
        size_t times = (size_t)argument->integer, n = set->n * times;
        for (size_t i = 0; i < n; i++) index[i] = (int32_t)(i / times);
        choose_rows(set, index, n);
    } else if (name_is(
                   test,
                   "crop")) { /* Transformers keeps all tokens when the length is beyond the end; here it is an error */
        if (argument->integer > mn_session_length(set->rows[0])) {
            assert_fails(MN_E_ARG, NULL, mn_session_truncate(set->rows[0], argument->integer));
        } else {
            assert_ok(mn_session_truncate(set->rows[0], argument->integer));
        }
        check_lengths(set->rows[0], json_get(test, "after_crop"));
    } else if (name_is(test, "other-encoder")) { /* the encoder's output is kept */
        const float *other = g->features[json_get(test, "ignored_input")->integer];
        assert_fails(MN_E_ARG, NULL, mn_session_encode(set->rows[0], other, g->mels, g->frames));
    } else if (name_is(test, "shared-cross")) { /* the cross cache of one session with new tokens */
        int32_t ids[MOST_IDS];
        size_t n = engine_read_ids(json_get(test, "base"), ids, MOST_IDS);
        mn_session *fork = NULL;
        assert_ok(mn_session_fork(&fork, set->rows[0]));
        mn_session_close(&set->rows[0]);
        assert_ok(mn_session_truncate(fork, 0));
        check_lengths(fork, json_get(test, "before"));
        assert_ok(mn_session_step(fork, ids, n, NULL));
        set->rows[0] = fork;
    } else if (name_is(test, "legacy")) { /* to the legacy format and back */
        const char *path = scratch_path("legacy.safetensors");
        check_lengths(set->rows[0], json_get(test, "before"));
        assert_ok(mn_sessions_export(set->rows, 1, path, "f32"));
        check_legacy(path, json_get(json_get(trace_of(g), "legacy"), "shapes"));
        mn_session_close(&set->rows[0]);
        const mn_cache_options options = golden_options(strategy, NULL);
        assert_ok(mn_session_import(&set->rows[0], g->model, &options, path, 0, NULL, 0));
        check_lengths(set->rows[0], json_get(test, "before"));
    }
}

/* Logits of every row after the probe, [rows][vocab]; the caller frees them. */
static float *probe_rows(const golden *g, const json *test, row_set *set) {
    int32_t ids[MOST_ROWS];
    float *logits = malloc(set->n * g->vocab * sizeof *logits);
    for (size_t i = 0; i < set->n; i++) ids[i] = (int32_t)json_get(test, "probe")->integer;
    assert_ok(mn_sessions_step(set->rows, set->n, ids));
    for (size_t i = 0; i < set->n; i++)
        memcpy(logits + i * g->vocab, mn_session_logits(set->rows[i]), g->vocab * sizeof *logits);
    return logits;
}

static float *golden_logits(const golden *g, const json *test, size_t n_rows) {
    char name[96];
    size_t n;
    snprintf(name, sizeof name, "%s.logits", json_get(test, "name")->string);
    const tensor *t = tensor_set_find(g->set, name);
    if (!t) fail_msg("no tensor %s", name);
    float *wanted = golden_values(t, &n);
    assert_int_equal(n, n_rows * g->vocab);
    return wanted;
}

static void check_operation(const golden *g, const json *test, const char *strategy) {
    row_set set = fill_rows(g, test, strategy);
    operate(g, test, strategy, &set);
    float *got = probe_rows(g, test, &set), *wanted = golden_logits(g, test, set.n);
    golden_near(got, wanted, set.n * g->vocab, tolerance, json_get(test, "name")->string);
    const json *after = json_get(test, "after");
    if (after && after->kind == JSON_OBJECT) {
        for (size_t i = 0; i < set.n; i++) check_lengths(set.rows[i], after);
    }
    free(got);
    free(wanted);
    close_rows(&set);
}

static void operations(void **state) {
    golden g = golden_open(*state);
    int n_traces = 0, n_operations = 0;
    for (size_t i = 0; i < g.cases->n; i++) {
        const json *test = &g.cases->items[i], *kind = json_get(test, "kind");
        for (int s = 0; s < N_EXACT; s++) {
            if (json_is_string(kind, "cache-trace")) {
                check_trace(&g, test, exact[s]);
                n_traces++;
            } else if (json_is_string(kind, "cache-op")) {
                check_operation(&g, test, exact[s]);
                n_operations++;
            }
        }
    }
    assert_true(n_traces >= N_EXACT && n_operations >= 10 * N_EXACT);
    golden_close(&g);
}

/* ---- quantized caches ---- */

static const struct {
    const char *strategy, *config;
    bool self, cross; /* which cache is quantized */
    int bits;
} coded[] = {
    {"self=quantized,cross=quantized", "nbits=8,residual_length=4", true, true, 8},
    {"self=quantized,cross=quantized", "nbits=4,residual_length=4", true, true, 4},
    {"self=dynamic,cross=quantized", "nbits=8,residual_length=4", false, true, 8},
    {"self=quantized,cross=dynamic", "nbits=8,residual_length=4", true, false, 8},
    {"self=quantized,cross=offloaded", "backend=quanto,nbits=4,residual_length=4", true, false, 4},
    {"self=quantized,cross=quantized", "backend=hqq,nbits=8,residual_length=4", true, true, 8},
};

enum { N_CODED = sizeof coded / sizeof *coded };

/* Relative root mean square difference of the keys and values of a layer in two sessions. */
static double stored_error(const mn_session *a, const mn_session *b, int layer, bool keys) {
    mn_layer_info info = layer_of(a, layer);
    int64_t n = info.tokens;
    size_t numbers = (size_t)info.num_key_value_heads * (size_t)n * (size_t)(keys ? info.k_head_dim : info.v_head_dim);
    float *x = malloc(numbers * sizeof *x), *y = malloc(numbers * sizeof *y);
    double wrong = 0, all = 0;
    assert_ok(mn_session_read(a, layer, keys, 0, n, x));
    assert_ok(mn_session_read(b, layer, keys, 0, n, y));
    for (size_t i = 0; i < numbers; i++) {
        wrong += pow((double)x[i] - (double)y[i], 2);
        all += pow((double)x[i], 2);
    }
    free(x);
    free(y);
    return sqrt(wrong / all);
}

/* The error of b-bit quantization is uniform within half a step: step / sqrt(12) root mean square, with step = range of
 * the group / (2^b - 1). Ranges of groups here stay below 6 times the root mean square. */
static double code_error(int bits) {
    return 6.0 / (double)((1 << bits) - 1) / sqrt(12.0);
}

/* The relative error of quantized values is the quantizer's where nothing quantized precedes (the first self layer,
 * every cross layer), and at most twice that in later layers; that of the logits, to first order linear in it, is at
 * most twice that relative to their spread. */
static void check_coded(const golden *g, const int32_t *ids, size_t n, int64_t input, int c) {
    mn_session *session = golden_session(g, coded[c].strategy, coded[c].config, input),
               *plain = golden_session(g, "dynamic", NULL, input);
    for (size_t i = 0; i < 2 * n; i++) {
        assert_ok(mn_session_step(session, &ids[i % n], 1, NULL));
        assert_ok(mn_session_step(plain, &ids[i % n], 1, NULL));
    }
    double bound = code_error(coded[c].bits);
    for (int layer = 0; layer < 2 * N_LAYERS; layer++) {
        bool is_coded = layer < CROSS ? coded[c].self : coded[c].cross, is_first = layer == 0 || layer >= CROSS;
        int64_t quantized = layer_of(session, layer).quantized_tokens;
        if (is_coded != (quantized > 0))
            fail_msg("%s, %s: layer %d has %d coded tokens", coded[c].strategy, coded[c].config, layer, (int)quantized);
        for (int keys = 0; keys < 2; keys++) {
            double wrong = stored_error(plain, session, layer, keys);
            bool is_right = is_coded ? wrong > 0 && wrong <= (is_first ? bound : 2 * bound) : !is_first || wrong == 0;
            if (!is_right)
                fail_msg("%s, %s: the error of layer %d is %g, that of the quantizer %g", coded[c].strategy,
                         coded[c].config, layer, wrong, bound);
        }
    }
    const float *got = mn_session_logits(session), *wanted = mn_session_logits(plain);
    double wrong = engine_mean_square(got, wanted, g->vocab), spread = engine_spread(wanted, g->vocab);
    if (!(wrong > 0 && wrong <= 2 * bound * spread))
        fail_msg("%s, %s: logits of spread %g are off by %g", coded[c].strategy, coded[c].config, spread, wrong);
    mn_session_close(&session);
    mn_session_close(&plain);
}

static void codes(void **state) {
    (void)state;
    golden g = golden_open(folders[0]);
    int32_t ids[MOST_IDS];
    for (size_t i = 0; i < g.cases->n; i++) {
        const json *test = &g.cases->items[i];
        if (!json_is_string(json_get(test, "kind"), "score")) continue;
        size_t n = engine_read_ids(json_get(test, "ids"), ids, MOST_IDS);
        for (int c = 0; c < N_CODED; c++) check_coded(&g, ids, n, json_get(test, "input")->integer, c);
    }
    golden_close(&g);
}

/* ---- windows ---- */

static float *logits_of(const golden *g, const char *strategy, const char *config, const int32_t *ids, size_t n) {
    float *logits = malloc(n * g->vocab * sizeof *logits);
    mn_session *session = golden_session(g, strategy, config, 0);
    for (size_t i = 0; i < n; i++) assert_ok(mn_session_step(session, &ids[i], 1, logits + i * g->vocab));
    for (int i = 0; i < N_LAYERS; i++) assert_int_equal(layer_of(session, CROSS + i).tokens, (int64_t)g->frames / 2);
    mn_session_close(&session);
    return logits;
}

/* A window applies to the self cache only; a window as long as the text changes no bit, one token less does. */
static void windows(void **state) {
    (void)state;
    enum { N = 30 };
    golden g = golden_open(folders[0]);
    int32_t ids[N];
    uint64_t seed = 5;
    engine_ids(&seed, ids, N, (int)g.vocab);
    float *wanted = logits_of(&g, "dynamic", NULL, ids, N);
    static const char *const names[] = {"sliding_window", "self=sliding_window,cross=static",
                                        "self=sliding_window,cross=offloaded"};
    for (int i = 0; i < 3; i++) {
        for (int window = N - 1; window <= N; window++) {
            char config[64];
            snprintf(config, sizeof config, "window_length=%d", window);
            float *got = logits_of(&g, names[i], config, ids, N);
            size_t same = (size_t)window;
            engine_same_bits(got, wanted, same, g.vocab, "%s, %s", names[i], config);
            if (same < N) assert_memory_not_equal(got + same * g.vocab, wanted + same * g.vocab, g.vocab * sizeof *got);
            free(got);
        }
    }
    free(wanted);
    golden_close(&g);
}

static void what_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *strategy, *why;
    } refused[] = {
        {"sink", "learned positions are part of its keys"},
        {"self=sink,cross=dynamic", "learned positions are part of its keys"},
        {"self=dynamic,cross=sliding_window", "cross attention sees all of its tokens always"},
        {"self=dynamic,cross=sink", "cross attention sees all of its tokens always"},
        {"self=dynamic,cross=none", "cross attention sees all of its tokens always"},
    };
    golden g = golden_open(folders[0]);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const mn_cache_options options = golden_options(refused[i].strategy, NULL);
        mn_session *session = NULL;
        assert_fails(MN_E_ARG, refused[i].why, mn_session_open(&session, g.model, &options));
        assert_null(session);
    }
    golden_close(&g);
}

/* Heads of 24 values cannot be quantized. */
static void codes_that_do_not_fit(void **state) {
    (void)state;
    golden g = golden_open(folders[1]);
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    mn_session *session = NULL;
    options.implementation = "self=dynamic,cross=quantized";
    assert_fails(MN_E_ARG, "heads of 16", mn_session_open(&session, g.model, &options));
    assert_null(session);
    golden_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        {.name = "operations of tiny80", .test_func = operations, .initial_state = (void *)(uintptr_t)folders[0]},
        {.name = "operations of tiny128", .test_func = operations, .initial_state = (void *)(uintptr_t)folders[1]},
        cmocka_unit_test(codes),
        cmocka_unit_test(windows),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(codes_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
