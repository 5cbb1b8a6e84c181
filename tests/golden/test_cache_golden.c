/* Generation with quantized, windowed and sink caches against results of other programs.
 *
 * Groups of quantized values are inside a token or across tokens. Inside a token, quantizing once gives the same values
 * as requantizing everything, so ids and logits must equal the golden run. Across tokens, pages are quantized one by
 * one, a different cache by design: its quantized values are compared with the package's arithmetic over the same
 * tokens, and the distance to the golden run is only reported.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>

#include "session/session.h"
#include "kv/quantizers.h"
#include "tensor/safetensors.h"

enum { MOST_IDS = 64, MOST_ROWS = MOST_IDS * 64, PAGE = 16 };

typedef struct golden {
    json_doc *doc;
    tensor_set *set;
    const json *cases;
} golden;

static golden open_golden(const char *name) {
    golden g = {0};
    char path[128];
    snprintf(path, sizeof path, "caches/%s.json", name);
    g.doc = open_json(data_path(path));
    snprintf(path, sizeof path, "caches/%s.safetensors", name);
    assert_ok(safetensors_open(&g.set, data_path(path)));
    g.cases = json_get(json_root(g.doc), "cases");
    return g;
}

static void close_golden(golden *g) {
    tensor_set_close(&g->set);
    json_close(&g->doc);
}

static int64_t integer(const json *object, const char *name) {
    const json *value = json_get(object, name);
    assert_true(value && value->kind == JSON_INT);
    return value->integer;
}

static const tensor *logits_of(const golden *g, const json *test) {
    const tensor *t = tensor_set_find(g->set, json_get(test, "logits")->string);
    assert_non_null(t);
    return t;
}

static mn_session *open_session(mn_model *model, const char *implementation, const char *config, int page_tokens) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    options.implementation = implementation;
    options.config = config;
    options.page_tokens = page_tokens;
    mn_session *session = NULL;
    assert_ok(mn_session_open(&session, model, &options));
    return session;
}

static int32_t argmax(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++) best = x[i] > x[best] ? i : best;
    return (int32_t)best;
}

/* ---- windows and sinks ---- */

static const float tolerance = 2e-4f;

static float check_row(const float *got, const float *wanted, size_t vocab, const char *name, int page, int piece,
                       size_t token) {
    float worst = 0;
    for (size_t i = 0; i < vocab; i++) {
        float difference = fabsf(got[i] - wanted[i]);
        if (!(difference <= tolerance)) {
            fail_msg("%s, pages of %d, pieces of %d: logit %zu of token %zu is %g, golden %g", name, page, piece, i,
                     token, (double)got[i], (double)wanted[i]);
        }
        worst = fmaxf(worst, difference);
    }
    return worst;
}

/* The prompt in pieces (0: at once), then the chosen tokens one by one; or the whole text in pieces. */
static void check_window(mn_model *model, const golden *g, const json *test, int page, int piece, bool generates) {
    const char *name = json_get(test, "name")->string;
    const json *slides = json_get(test, "sliding_window");
    const tensor *wanted = logits_of(g, test);
    size_t vocab = (size_t)wanted->shape[1], n = (size_t)wanted->shape[0];
    int32_t ids[MOST_IDS], new[MOST_IDS];
    size_t n_prompt = engine_read_ids(json_get(test, "ids"), ids, MOST_IDS);
    size_t n_new = engine_read_ids(&json_get(test, "new")->items[0], new, MOST_IDS);
    char config[64];
    assert_int_equal(n, n_prompt + n_new);
    if (slides) {
        snprintf(config, sizeof config, "window_length=%d", (int)slides->integer);
    } else {
        snprintf(config, sizeof config, "window_length=%d,num_sink_tokens=%d", (int)integer(test, "window_length"),
                 (int)integer(test, "num_sink_tokens"));
    }
    mn_session *session = open_session(model, slides ? "sliding_window" : "sink", config, page);
    float *got = malloc(n * vocab * sizeof *got), *golden_rows = malloc(n * vocab * sizeof *got), worst = 0;
    memcpy(golden_rows, wanted->data, n * vocab * sizeof *got);
    memset(got, 0xFF, n * vocab * sizeof *got);
    if (generates) {
        engine_feed(session, ids, n_prompt, piece, NULL, got);
        for (size_t i = 0; i < n_new; i++) {
            float *row = got + (n_prompt + i) * vocab;
            int32_t next = argmax(row - vocab, vocab);
            assert_int_equal(next, new[i]);
            assert_ok(mn_session_step(session, &next, 1, row));
        }
    } else {
        memcpy(ids + n_prompt, new, n_new * sizeof *new);
        engine_feed(session, ids, n, piece, NULL, got);
    }
    for (size_t t = 0; t < n; t++) {
        worst = fmaxf(worst, check_row(got + t * vocab, golden_rows + t * vocab, vocab, name, page, piece, t));
    }
    assert_true(worst > 0);
    free(got);
    free(golden_rows);
    mn_session_close(&session);
}

static void windows_and_sinks_equal_golden(void **state) {
    (void)state;
    static const int pages[] = {4, 128}, pieces[] = {0, 1, 3, 7};
    golden g = open_golden("sink");
    for (size_t i = 0; i < g.cases->n; i++) {
        const json *test = &g.cases->items[i];
        char folder[64];
        snprintf(folder, sizeof folder, "golden/%s", json_get(test, "checkpoint")->string);
        mn_model *model = engine_model(folder, "f32", "auto", engine_threads());
        for (int p = 0; p < 2; p++) {
            for (int c = 0; c < 4; c++) {
                if (!test_samples((int)i + 4 * p + c, 8)) continue;
                check_window(model, &g, test, pages[p], pieces[c], true);
                check_window(model, &g, test, pages[p], pieces[c], false);
            }
        }
        mn_model_close(&model);
    }
    assert_int_equal(g.cases->n, 31);
    close_golden(&g);
}

/* ---- quantized caches ---- */

static const float quantized_tolerance = 1e-3f;

typedef struct quantized_case {
    const json *json;
    const char *name;
    quantizer_options key, value; /* the package's name */
    int residual;
    bool is_inside;        /* groups of both streams are inside a token */
    int32_t ids[MOST_IDS]; /* prompt and new ids */
    size_t n_prompt, n;    /* n: all */
    const tensor *logits;  /* golden [steps][vocab] */
    char config[128];
} quantized_case;

static quantized_case read_case(const golden *g, const json *test) {
    quantized_case c = {.json = test, .name = json_get(test, "name")->string, .logits = logits_of(g, test)};
    const json *cache = json_get(test, "cache");
    const char *backend = json_get(cache, "backend")->string;
    bool is_hqq = strcmp(backend, "hqq") == 0;
    c.key = (quantizer_options){.kind = is_hqq ? QUANTIZER_HQQ : QUANTIZER_QUANTO,
                                .nbits = (int)integer(cache, "nbits"),
                                .group = (int)integer(cache, "q_group_size"),
                                .dtype = QUANTIZER_F32,
                                .optimize = true};
    c.value = c.key;
    c.key.axis = (int)integer(cache, "axis_key");
    c.value.axis = (int)integer(cache, "axis_value");
    c.residual = (int)integer(cache, "residual_length");
    c.is_inside = c.key.axis == (is_hqq ? 1 : 0) && c.value.axis == c.key.axis;
    c.n_prompt = engine_read_ids(json_get(test, "ids"), c.ids, MOST_IDS);
    c.n = c.n_prompt + engine_read_ids(json_get(test, "new"), c.ids + c.n_prompt, MOST_IDS);
    snprintf(c.config, sizeof c.config,
             "backend=%s,nbits=%d,q_group_size=%d,residual_length=%d,axis_key=%d,axis_value=%d", backend, c.key.nbits,
             c.key.group, c.residual, c.key.axis, c.value.axis);
    return c;
}

/* The prompt, then the golden ids one by one; the last is not fed. Returns the largest distance of the logits. */
static float run_case(mn_model *model, const quantized_case *c, mn_session **out) {
    size_t vocab = (size_t)c->logits->shape[1], steps = c->n - c->n_prompt;
    assert_int_equal(c->logits->shape[0], steps);
    mn_session *session = open_session(model, "quantized", c->config, PAGE);
    float *wanted = malloc(vocab * sizeof *wanted), worst = 0;
    assert_ok(mn_session_step(session, c->ids, c->n_prompt, NULL));
    for (size_t i = 0; i < steps; i++) {
        const float *got = mn_session_logits(session);
        memcpy(wanted, c->logits->data + i * vocab * sizeof *wanted, vocab * sizeof *wanted);
        for (size_t j = 0; j < vocab; j++) assert_true(isfinite(got[j]));
        float distance = (float)engine_distance(got, wanted, vocab);
        worst = fmaxf(worst, distance);
        if (c->is_inside && !(distance <= quantized_tolerance))
            fail_msg("%s: step %zu is %g away from the golden logits", c->name, i, (double)distance);
        if (c->is_inside) assert_int_equal(argmax(got, vocab), c->ids[c->n_prompt + i]);
        if (i + 1 < steps) assert_ok(mn_session_step(session, &c->ids[c->n_prompt + i], 1, NULL));
    }
    free(wanted);
    *out = session;
    return worst;
}

/* The end of the quantized part after each call of the run, by the rule of the package: ends[i] for call i. */
static size_t flush_ends(const quantized_case *c, size_t *ends) {
    size_t n_flushes = 0, n_quantized = c->n_prompt;
    ends[n_flushes++] = n_quantized;
    for (size_t held = c->n_prompt; held + 1 < c->n; held++) {
        size_t r = held - n_quantized;
        if (r >= 1 && (int)r >= c->residual - 1) ends[n_flushes++] = n_quantized = held + 1;
    }
    return n_flushes;
}

static void read_rows(const mn_session *session, bool is_key, size_t begin, size_t n, float *rows) {
    assert_ok(kv_read(session->cache, &session->model->compute.kernels, 0, is_key, (int64_t)begin, (int)n, rows));
}

/* Quantizes and dequantizes rows x[n][dim] in place as the package does, with groups inside or across tokens. */
static void quantize_rows(const quantizer_options *options, bool across, float *x, size_t n, size_t dim) {
    quantizer_options now = *options;
    size_t block = across && now.kind == QUANTIZER_HQQ ? (size_t)now.group : n;
    assert_int_equal(n % block, 0);
    for (size_t at = 0; at < n; at += block) {
        int64_t shape[4] = {1, 1, (int64_t)block, (int64_t)dim};
        quantized q = {0};
        assert_ok(quantizer_run(&q, &now, x + at * dim, shape));
        quantizer_dequantize(x + at * dim, &q, &now, shape);
        quantized_clear(&q);
    }
}

/* Keys and values of the first layer do not depend on the cache: the quantized ones equal the package's result for the
 * same tokens, and the rest is exact. Groups across tokens are quantized in whole pages, one in each run. */
static void check_first_layer(mn_model *model, const quantized_case *c, const mn_session *session, bool is_key) {
    const quantizer_options *options = is_key ? &c->key : &c->value;
    bool across = options->axis != (options->kind == QUANTIZER_HQQ ? 1 : 0);
    const kv_spec *spec = kv_entry_spec(session->cache, 0);
    size_t dim = (size_t)(is_key ? spec->k_dim : spec->v_dim), held = (size_t)kv_length(session->cache);
    assert_int_equal(spec->n_heads, 1);
    assert_int_equal(held, c->n - 1);
    float *wanted = malloc(MOST_ROWS * sizeof *wanted), *got = malloc(MOST_ROWS * sizeof *got);
    mn_session *exact = open_session(model, "dynamic", NULL, PAGE);
    assert_ok(mn_session_step(exact, c->ids, held, NULL));
    read_rows(exact, is_key, 0, held, wanted);
    read_rows(session, is_key, 0, held, got);
    size_t ends[MOST_IDS], n_flushes = flush_ends(c, ends), n_quantized = 0;
    for (size_t i = 0; i < n_flushes; i++) {
        size_t end = c->is_inside ? ends[i] : ends[i] / PAGE * PAGE;
        if (end > n_quantized) quantize_rows(options, across, wanted + n_quantized * dim, end - n_quantized, dim);
        n_quantized = end > n_quantized ? end : n_quantized;
    }
    assert_true(n_quantized >= 1);
    double distance = engine_distance(got, wanted, held * dim);
    if (!(distance <= 1e-5)) {
        fail_msg("%s: quantized %s of the first layer are %g away from the package's", c->name,
                 is_key ? "keys" : "values", distance);
    }
    free(wanted);
    free(got);
    mn_session_close(&exact);
}

static void quantized_generation_equals_golden(void **state) {
    (void)state;
    golden g = open_golden("quantized-generation");
    mn_model *model = engine_model("golden/llama", "f32", "auto", engine_threads());
    int n_equal = 0, n_others = 0;
    float worst = 0, farthest = 0;
    for (size_t i = 0; i < g.cases->n; i++) {
        quantized_case c = read_case(&g, &g.cases->items[i]);
        mn_session *session = NULL;
        float distance = run_case(model, &c, &session);
        check_first_layer(model, &c, session, true);
        check_first_layer(model, &c, session, false);
        *(c.is_inside ? &n_equal : &n_others) += 1;
        float *most = c.is_inside ? &worst : &farthest;
        *most = fmaxf(*most, distance);
        mn_session_close(&session);
    }
    print_message("%d cases equal, at most %g away; %d with groups across tokens for information, at most %g away\n",
                  n_equal, (double)worst, n_others, (double)farthest);
    assert_int_equal(n_equal, 16);
    assert_int_equal(n_others, 26);
    mn_model_close(&model);
    close_golden(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_and_sinks_equal_golden),
        cmocka_unit_test(quantized_generation_equals_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
