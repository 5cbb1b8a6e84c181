/* The legacy form of caches, views of layers, rows of batches.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>
#include <unistd.h>

#include "base/mem.h"
#include "session/session.h"
#include "support/scratch.h"
#include "support/strategies.h"
#include "tensor/safetensors.h"

enum { N_IDS = 140, N_MORE = 12 };

static const char *const model_path = "golden/llama-untied-bias";

typedef struct fixture {
    int64_t live; /* allocations before */
    mn_model *model;
    int32_t ids[N_IDS + N_MORE];
    size_t vocab;
    uint64_t seed;
} fixture;

static fixture open_fixture(void) {
    fixture w = {.live = mem_count().live, .seed = 3};
    w.model = engine_model(model_path, "f32", "auto", engine_threads());
    w.vocab = (size_t)engine_vocab(w.model);
    engine_ids(&w.seed, w.ids, N_IDS + N_MORE, (int32_t)w.vocab);
    return w;
}

static void close_fixture(fixture *w) {
    mn_model_close(&w->model);
    assert_int_equal(mem_count().live, w->live);
}

static mn_session *fed(fixture *w, engine_cache cache) {
    mn_session *session = engine_session(w->model, cache);
    engine_feed(session, w->ids, N_IDS, 0, NULL, NULL);
    return session;
}

/* Both continue with the same tokens and give the same bits. */
static void assert_go_on_alike(fixture *w, mn_session *a, mn_session *b, const char *what) {
    float *wanted = malloc(2 * N_MORE * w->vocab * sizeof *wanted), *got = wanted + N_MORE * w->vocab;
    assert_non_null(wanted);
    engine_feed(a, w->ids + N_IDS, N_MORE, 0, NULL, wanted);
    engine_feed(b, w->ids + N_IDS, N_MORE, 0, NULL, got);
    engine_same_bits(got, wanted, N_MORE, w->vocab, "%s", what);
    free(wanted);
}

static size_t stream_floats(const mn_session *session, int layer, bool keys, int64_t n) {
    mn_layer_info info = {.size = sizeof info};
    assert_ok(mn_session_layer(session, layer, &info));
    return (size_t)info.num_key_value_heads * (size_t)n * (size_t)(keys ? info.k_head_dim : info.v_head_dim);
}

static float *stream(const mn_session *session, int layer, bool keys, int64_t begin, int64_t n) {
    float *rows = malloc(stream_floats(session, layer, keys, n) * sizeof *rows);
    assert_non_null(rows);
    assert_ok(mn_session_read(session, layer, keys, begin, n, rows));
    return rows;
}

/* ---- round trips ---- */

static void exact_caches_are_restored(void **state) {
    (void)state;
    fixture w = open_fixture();
    for (int i = 0; i < N_ENGINE_STRATEGIES; i++) {
        const engine_strategy *strategy = &engine_strategies[i];
        if (strategy->is_lossy || strategy->forgets || !test_samples(i, 3)) continue;
        for (int d = 0; d < 2; d++) {
            engine_cache cache = strategy_cache(i, d ? "bf16" : "f32");
            mn_session *session = fed(&w, cache), *back = NULL;
            const char *path = scratch_path("legacy.safetensors");
            assert_ok(mn_sessions_export(&session, 1, path, "auto"));
            mn_cache_options options = engine_cache_options(cache);
            assert_ok(mn_session_import(&back, w.model, &options, path, 0, NULL, 0));
            assert_null(mn_session_logits(back));
            assert_int_equal(mn_session_length(back), N_IDS);
            assert_ok(kv_check(back->cache));
            assert_go_on_alike(&w, session, back, cache.implementation);
            mn_session_close(&session);
            mn_session_close(&back);
        }
    }
    close_fixture(&w);
}

/* Quantized tokens are exported dequantized; those that were not quantized are imported unchanged. */
static void quantized_tokens_are_exported_dequantized(void **state) {
    (void)state;
    fixture w = open_fixture();
    for (int i = 0; i < N_ENGINE_STRATEGIES; i++) {
        if (!engine_strategies[i].is_lossy || engine_strategies[i].forgets || !test_samples(i, 3)) continue;
        engine_cache cache = strategy_cache(i, "f32"), plain = {.dtype = "f32"};
        mn_session *session = fed(&w, cache), *back = NULL;
        const char *path = scratch_path("legacy.safetensors");
        assert_true(strategy_quantized(session) > 0);
        assert_ok(mn_sessions_export(&session, 1, path, NULL));
        mn_cache_options options = engine_cache_options(plain);
        assert_ok(mn_session_import(&back, w.model, &options, path, 0, NULL, 0));
        for (int s = 0; s < 2 * kv_entries(session->cache); s++) {
            float *wanted = stream(session, s / 2, s % 2, 0, N_IDS), *got = stream(back, s / 2, s % 2, 0, N_IDS);
            assert_memory_equal(got, wanted, stream_floats(session, s / 2, s % 2, N_IDS) * sizeof *got);
            free(wanted);
            free(got);
        }
        mn_session_close(&session);
        mn_session_close(&back);
    }
    close_fixture(&w);
}

/* Imported values are quantized as computed ones are: converting an exact cache to a quantized one gives the same
 * codes. */
static void imports_are_quantized(void **state) {
    (void)state;
    static const char *const configs[] = {"nbits=4,residual_length=16", "nbits=8,residual_length=0,first_exact=3",
                                          "key_nbits=2,value_nbits=6,residual_length=32"};
    fixture w = open_fixture();
    for (int i = 0; i < 3; i++) {
        engine_cache plain = {.dtype = "f32", .page_tokens = 16};
        engine_cache coded = {.implementation = "quantized", .dtype = "f32", .page_tokens = 16, .config = configs[i]};
        mn_session *session = fed(&w, plain), *back = NULL;
        mn_cache_options options = engine_cache_options(coded);
        const char *path = scratch_path("legacy.safetensors");
        assert_ok(mn_sessions_export(&session, 1, path, "auto"));
        assert_ok(mn_session_import(&back, w.model, &options, path, 0, w.ids, N_IDS));
        assert_ok(mn_session_set_cache(session, &options));
        assert_true(strategy_quantized(back) > 0);
        assert_int_equal(strategy_quantized(back), strategy_quantized(session));
        assert_go_on_alike(&w, session, back, configs[i]);
        mn_session_close(&session);
        mn_session_close(&back);
    }
    close_fixture(&w);
}

static void layers_are_described(void **state) {
    (void)state;
    fixture w = open_fixture();
    engine_cache sink = {.implementation = "quantized+sink",
                         .dtype = "f32",
                         .page_tokens = 16,
                         .config = "nbits=4,value_nbits=2,residual_length=0,window_length=30,num_sink_tokens=5"};
    mn_session *session = fed(&w, sink);
    mn_layer_info info = {.size = sizeof info};
    assert_ok(mn_session_layer(session, 1, &info));
    assert_string_equal(info.kind, "self");
    assert_int_equal(info.tokens, N_IDS);
    assert_int_equal(info.first_exact, 5);
    assert_int_equal(info.window_length, 30);
    assert_int_equal(info.first_held, 112); /* 140 - 25 = 115 is in the page of 112 */
    assert_int_equal(info.quantized_tokens, 16);
    assert_string_equal(info.key_codec, "mneme");
    assert_int_equal(info.key_bits, 4);
    assert_int_equal(info.value_bits, 2);
    float *rows = stream(session, 1, true, 0, 5); /* the sinks */
    free(rows);
    float one[256];
    assert_fails(MN_E_ARG, "the cache holds", mn_session_read(session, 1, true, 4, 2, one));
    assert_fails(MN_E_ARG, "the cache holds", mn_session_read(session, 1, true, N_IDS, 1, one));
    assert_fails(MN_E_ARG, "the cache holds", mn_session_read(session, 1, true, -1, 1, one));
    assert_fails(MN_E_ARG, "-3", mn_session_read(session, 1, true, 40, -3, one));
    assert_fails(MN_E_ARG, "layer is 7", mn_session_read(session, 7, true, 40, 1, one));
    assert_fails(MN_E_ARG, "layer is -1", mn_session_layer(session, -1, &info));
    mn_session_close(&session);
    close_fixture(&w);
}

/* ---- rows ---- */

enum { ROWS = 3 };

/* Row r has N_IDS - r tokens, then one of its own. */
static mn_session *make_row(fixture *w, engine_cache cache, int r) {
    mn_session *session = engine_session(w->model, cache);
    int32_t last = r + 1;
    engine_feed(session, w->ids, (size_t)(N_IDS - r), 0, NULL, NULL);
    engine_feed(session, &last, 1, 0, NULL, NULL);
    return session;
}

static void assert_row(fixture *w, engine_cache cache, mn_session *row, int r) {
    mn_session *fresh = make_row(w, cache, r);
    assert_int_equal(mn_session_length(row), N_IDS - r + 1);
    assert_memory_equal(mn_session_ids(row), mn_session_ids(fresh), (size_t)(N_IDS - r + 1) * sizeof(int32_t));
    assert_go_on_alike(w, fresh, row, cache.implementation);
    mn_session_close(&fresh);
}

static void rows_are_reordered(void **state) {
    (void)state;
    static const struct {
        int n;
        int32_t index[7];
    } cases[] = {{3, {2, 0, 1}}, {3, {1, 1, 1}}, {1, {2}}, {6, {0, 0, 1, 1, 2, 2}}, {7, {2, 2, 0, 2, 0, 0, 0}},
                 {0, {0}}};
    fixture w = open_fixture();
    for (int i = 0; i < N_ENGINE_STRATEGIES; i++) {
        engine_cache cache = strategy_cache(i, "bf16");
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            if (!test_samples(i + (int)c, 12)) continue;
            mn_session *rows[7] = {NULL};
            for (int r = 0; r < ROWS; r++) rows[r] = make_row(&w, cache, r);
            assert_ok(mn_sessions_select(rows, ROWS, cases[c].index, (size_t)cases[c].n));
            for (int r = cases[c].n; r < 7; r++) assert_null(rows[r]);
            for (int r = 0; r < cases[c].n; r++) assert_row(&w, cache, rows[r], cases[c].index[r]);
            for (int r = 0; r < cases[c].n; r++) mn_session_close(&rows[r]);
        }
    }
    close_fixture(&w);
}

static void failing_selections_change_nothing(void **state) {
    (void)state;
    fixture w = open_fixture();
    engine_cache cache = {.dtype = "f32", .page_tokens = 4};
    const int32_t index[] = {0, 2, 2, 2}, bad[] = {0, 3}, negative[] = {-1};
    mn_session *rows[4] = {NULL}, *before[ROWS];
    for (int r = 0; r < ROWS; r++) before[r] = rows[r] = make_row(&w, cache, r);
    assert_fails(MN_E_ARG, "index 1 is 3", mn_sessions_select(rows, ROWS, bad, 2));
    assert_fails(MN_E_ARG, "index 0 is -1", mn_sessions_select(rows, ROWS, negative, 1));
    mn_status status = MN_E_NOMEM;
    for (int k = 0; status == MN_E_NOMEM; k++) {
        assert_true(k < 1000);
        int64_t live = mem_count().live;
        mem_fail_after(k);
        status = mn_sessions_select(rows, ROWS, index, 4);
        mem_fail_after(-1);
        if (status == MN_OK) break;
        assert_int_equal(mem_count().live, live);
        assert_memory_equal(rows, before, sizeof before);
        assert_null(rows[3]);
    }
    assert_ok(status);
    for (int r = 0; r < 4; r++) assert_row(&w, cache, rows[r], index[r]);
    for (int r = 0; r < 4; r++) mn_session_close(&rows[r]);
    close_fixture(&w);
}

/* ---- memory ---- */

typedef struct layers {
    float *keys[8], *values[8];
    size_t n;
} layers;

static layers read_layers(const mn_session *session, int64_t n_tokens) {
    layers l = {.n = (size_t)kv_entries(session->cache)};
    assert_in_range(l.n, 1, 8);
    for (size_t i = 0; i < l.n; i++) {
        l.keys[i] = stream(session, (int)i, true, 0, n_tokens);
        l.values[i] = stream(session, (int)i, false, 0, n_tokens);
    }
    return l;
}

static void free_layers(layers *l) {
    for (size_t i = 0; i < l->n; i++) {
        free(l->keys[i]);
        free(l->values[i]);
    }
}

static mn_status import_layers(mn_session **back, const fixture *w, engine_cache cache, size_t n, const layers *l) {
    mn_cache_options options = engine_cache_options(cache);
    return mn_session_import_layers(back, w->model, &options, w->ids, n, (const float *const *)l->keys,
                                    (const float *const *)l->values, l->n);
}

/* What was read of every layer gives the session back, also for a family whose keys have another order inside. */
static void layers_go_through_memory(void **state) {
    (void)state;
    static const char *const paths[] = {"golden/llama-untied-bias", "golden/cohere", "golden/gemma3"};
    for (size_t m = 0; m < 3; m++) {
        fixture w = {.live = mem_count().live, .seed = 3};
        w.model = engine_model(paths[m], "f32", "auto", engine_threads());
        w.vocab = (size_t)engine_vocab(w.model);
        engine_ids(&w.seed, w.ids, N_IDS + N_MORE, (int32_t)w.vocab);
        for (int c = 0; c < 2; c++) {
            engine_cache cache = {.implementation = c ? "offloaded" : "dynamic", .dtype = "f32", .page_tokens = 16};
            mn_session *session = engine_session(w.model, cache), *back = NULL;
            engine_feed(session, w.ids, 7, 0, NULL, NULL);
            layers l = read_layers(session, 7);
            assert_ok(import_layers(&back, &w, cache, 7, &l));
            assert_ok(kv_check(back->cache));
            assert_int_equal(mn_session_length(back), 7);
            assert_memory_equal(mn_session_ids(back), w.ids, 7 * sizeof *w.ids);
            assert_go_on_alike(&w, session, back, paths[m]);
            free_layers(&l);
            mn_session_close(&session);
            mn_session_close(&back);
        }
        close_fixture(&w);
    }
}

static void bad_layers_are_refused(void **state) {
    (void)state;
    fixture w = open_fixture();
    engine_cache cache = {.dtype = "f32", .page_tokens = 16}, none = {.implementation = "none"};
    mn_session *session = fed(&w, cache), *back = session;
    layers l = read_layers(session, N_IDS), fewer = l, lacking = l;
    fewer.n--;
    lacking.values[1] = NULL;
    assert_fails(MN_E_ARG, "layers, the model has", import_layers(&back, &w, cache, N_IDS, &fewer));
    assert_null(back);
    assert_fails(MN_E_ARG, "layer 1: values is NULL", import_layers(&back, &w, cache, N_IDS, &lacking));
    assert_fails(MN_E_ARG, "0 tokens", import_layers(&back, &w, cache, 0, &l));
    assert_fails(MN_E_UNSUPPORTED, "without a cache", import_layers(&back, &w, none, N_IDS, &l));
    l.keys[1][5] = NAN;
    assert_fails(MN_E_REFUSED, "keys holds a value that is not finite", import_layers(&back, &w, cache, N_IDS, &l));
    l.keys[1][5] = 0;
    w.ids[9] = (int32_t)w.vocab;
    assert_fails(MN_E_REFUSED, "token 9 is", import_layers(&back, &w, cache, N_IDS, &l));
    free_layers(&l);
    mn_session_close(&session);
    close_fixture(&w);
}

/* ---- several rows in a file, and bad ones ---- */

static void files_hold_rows(void **state) {
    (void)state;
    fixture w = open_fixture();
    engine_cache cache = {.dtype = "bf16", .page_tokens = 16};
    mn_session *rows[2] = {fed(&w, cache), engine_session(w.model, cache)}, *back = NULL;
    const char *path = scratch_path("rows.safetensors");
    engine_feed(rows[1], w.ids + N_MORE, N_IDS, 0, NULL, NULL);
    assert_ok(mn_sessions_export(rows, 2, path, "f32"));
    tensor_set *file = NULL;
    assert_ok(safetensors_open(&file, path));
    const tensor *key = tensor_set_find(file, "key.0"), *value = tensor_set_find(file, "value.1");
    assert_non_null(key);
    assert_non_null(value);
    assert_int_equal(key->type, DTYPE_F32);
    assert_int_equal(key->n_dims, 4);
    assert_int_equal(key->shape[0], 2);
    assert_int_equal(key->shape[2], N_IDS);
    float *wanted = stream(rows[1], 0, true, 0, N_IDS);
    size_t n = stream_floats(rows[1], 0, true, N_IDS) * sizeof *wanted;
    assert_memory_equal(key->data + n, wanted, n);
    free(wanted);
    tensor_set_close(&file);
    mn_cache_options options = engine_cache_options(cache);
    assert_ok(mn_session_import(&back, w.model, &options, path, 1, NULL, 0));
    assert_memory_equal(mn_session_ids(back), w.ids + N_MORE, N_IDS * sizeof *w.ids);
    assert_go_on_alike(&w, rows[1], back, "second row");
    mn_session_close(&back);
    assert_fails(MN_E_ARG, "row is 2", mn_session_import(&back, w.model, &options, path, 2, NULL, 0));
    assert_fails(MN_E_ARG, "140 tokens", mn_session_import(&back, w.model, &options, path, 0, w.ids, 7));
    assert_fails(MN_E_ARG, "dtype", mn_sessions_export(rows, 1, path, "f8"));
    assert_fails(MN_E_ARG, "no row", mn_sessions_export(rows, 0, path, "f32"));
    mn_session_close(&rows[0]);
    mn_session_close(&rows[1]);
    close_fixture(&w);
}

/* Rows of different lengths in one file: what is not padding equals an export of the row alone, the mask tells where,
 * and each is imported as if it had been alone, also with other padding. */
static void shorter_rows_are_padded(void **state) {
    (void)state;
    enum { N_ROWS = 3 };
    static const size_t lengths[N_ROWS] = {40, 77, 5};
    static const engine_cache caches[] = {{.dtype = "f32", .page_tokens = 16},
                                          {.dtype = "bf16", .page_tokens = 4},
                                          {.implementation = "quantized", .dtype = "f32", .page_tokens = 16}};
    fixture w = open_fixture();
    const char *path = scratch_path("padded.safetensors"), *single = scratch_path("single.safetensors");
    for (size_t c = 0; c < sizeof caches / sizeof *caches; c++) {
        mn_cache_options options = engine_cache_options(caches[c]);
        mn_session *rows[N_ROWS];
        for (size_t r = 0; r < N_ROWS; r++) {
            rows[r] = engine_session(w.model, caches[c]);
            engine_feed(rows[r], w.ids + r, lengths[r], 0, NULL, NULL);
        }
        assert_ok(mn_sessions_export(rows, N_ROWS, path, NULL));
        tensor_set *all = NULL;
        assert_ok(safetensors_open(&all, path));
        const tensor *mask = tensor_set_find(all, "attention_mask"), *ids = tensor_set_find(all, "ids");
        assert_non_null(mask);
        assert_int_equal(mask->type, DTYPE_I64);
        assert_int_equal(mask->shape[0], N_ROWS);
        assert_int_equal(mask->shape[1], 77);
        for (size_t r = 0; r < N_ROWS; r++) {
            tensor_set *alone = NULL;
            mn_session *back = NULL;
            size_t padding = 77 - lengths[r];
            for (size_t i = 0; i < 77; i++) {
                int64_t one = 7;
                int32_t id = -1;
                memcpy(&one, mask->data + (r * 77 + i) * sizeof one, sizeof one);
                memcpy(&id, ids->data + (r * 77 + i) * sizeof id, sizeof id);
                assert_int_equal(one, i >= padding);
                if (i >= padding) assert_int_equal(id, w.ids[r + i - padding]);
            }
            assert_ok(mn_sessions_export(&rows[r], 1, single, NULL));
            assert_ok(safetensors_open(&alone, single));
            for (size_t k = 0; k < tensor_set_count(alone); k++) {
                const tensor *t = tensor_set_at(alone, k), *whole = tensor_set_find(all, t->name);
                if (t->n_dims != 4) continue;
                size_t each = t->bytes / (size_t)(t->shape[1] * t->shape[2]), heads = (size_t)t->shape[1];
                for (size_t h = 0; h < heads; h++) {
                    const uint8_t *got = whole->data + (r * heads + h) * 77 * each;
                    for (size_t i = 0; i < padding * each; i++) assert_int_equal(got[i], 0);
                    assert_memory_equal(got + padding * each, t->data + h * lengths[r] * each, lengths[r] * each);
                }
            }
            tensor_set_close(&alone);
            assert_ok(mn_session_import(&back, w.model, &options, path, r, NULL, 0));
            assert_int_equal(mn_session_length(back), lengths[r]);
            assert_memory_equal(mn_session_ids(back), w.ids + r, lengths[r] * sizeof *w.ids);
            mn_session *reference = NULL;
            assert_ok(mn_session_import(&reference, w.model, &options, single, 0, w.ids + r, lengths[r]));
            assert_go_on_alike(&w, reference, back, "a padded row");
            mn_session_close(&reference);
            mn_session_close(&back);
        }
        tensor_set_close(&all);
        for (size_t r = 0; r < N_ROWS; r++) mn_session_close(&rows[r]);
    }
    close_fixture(&w);
}

/* The mask of a file of one row of N_IDS tokens, as another program might write it. */
static void other_masks(void **state) {
    (void)state;
    enum { RIGHT = N_IDS - 3 };
    static const struct {
        int begin, end, hole; /* ones, except at one place; -1: none */
        bool is_short;
        const char *refusal; /* NULL: taken */
    } masks[] = {{0, N_IDS, -1, false, NULL},      {0, RIGHT, -1, false, NULL},   {0, N_IDS, 9, false, "both sides"},
                 {0, 0, -1, false, "every token"}, {0, N_IDS, -1, true, "shape"}, {2, 30, 20, false, "both sides"}};
    fixture w = open_fixture();
    mn_session *session = fed(&w, (engine_cache){.dtype = "f32"}), *back = NULL;
    const char *good = scratch_path("masked.safetensors"), *other = scratch_path("other.safetensors");
    assert_ok(mn_sessions_export(&session, 1, good, "f32"));
    tensor_set *file = NULL;
    assert_ok(safetensors_open(&file, good));
    tensor tensors[64];
    size_t n = tensor_set_count(file);
    assert_true(n <= 64);
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++) {
        for (int is_bytes = 0; is_bytes < 2; is_bytes++) {
            uint8_t flags[N_IDS] = {0};
            int64_t words[N_IDS] = {0};
            for (int i = masks[m].begin; i < masks[m].end; i++) words[i] = flags[i] = i != masks[m].hole;
            for (size_t i = 0; i < n; i++) {
                tensors[i] = *tensor_set_at(file, i);
                if (strcmp(tensors[i].name, "attention_mask") != 0) continue;
                tensors[i].type = is_bytes ? DTYPE_BOOL : DTYPE_I64;
                tensors[i].data = is_bytes ? flags : (const uint8_t *)words;
                tensors[i].shape[1] = N_IDS - masks[m].is_short;
                tensors[i].bytes = (size_t)tensors[i].shape[1] * (is_bytes ? 1 : sizeof *words);
            }
            assert_ok(safetensors_write(other, tensors, n, NULL));
            if (masks[m].refusal) {
                assert_fails(MN_E_REFUSED, masks[m].refusal,
                             mn_session_import(&back, w.model, NULL, other, 0, NULL, 0));
                continue;
            }
            assert_ok(mn_session_import(&back, w.model, NULL, other, 0, NULL, 0));
            assert_int_equal(mn_session_length(back), masks[m].end);
            float *got = stream(back, 1, true, 0, masks[m].end), *wanted = stream(session, 1, true, 0, masks[m].end);
            assert_memory_equal(got, wanted, stream_floats(back, 1, true, masks[m].end) * sizeof *got);
            free(got);
            free(wanted);
            mn_session_close(&back);
        }
    }
    tensor_set_close(&file);
    mn_session_close(&session);
    close_fixture(&w);
}

/* Cohere rotates neighbouring values together: its keys are exported and imported in that order. */
static void rotated_neighbours_are_reordered(void **state) {
    (void)state;
    enum { N = 40 };
    int64_t live = mem_count().live;
    uint64_t seed = 5;
    int32_t ids[N + 1];
    mn_model *model = engine_model("golden/cohere", "f32", "auto", engine_threads());
    engine_cache cache = {.dtype = "f32", .page_tokens = 16};
    mn_session *session = engine_session(model, cache), *back = NULL;
    const char *path = scratch_path("neighbours.safetensors");
    engine_ids(&seed, ids, N + 1, engine_vocab(model));
    engine_feed(session, ids, N, 0, NULL, NULL);
    assert_ok(mn_sessions_export(&session, 1, path, "f32"));
    tensor_set *file = NULL;
    assert_ok(safetensors_open(&file, path));
    const tensor *key = tensor_set_find(file, "key.1");
    assert_non_null(key);
    float *ours = malloc(key->bytes), *out = stream(session, 1, true, 0, N);
    assert_non_null(ours);
    assert_ok(session_read_rows(session, 1, true, 0, N, ours));
    assert_memory_equal(out, key->data, key->bytes);
    size_t dim = (size_t)key->shape[3];
    for (size_t row = 0; row < key->bytes / sizeof *out / dim; row++) {
        for (size_t i = 0; i < dim / 2; i++) {
            assert_true(out[row * dim + 2 * i] == ours[row * dim + i]);
            assert_true(out[row * dim + 2 * i + 1] == ours[row * dim + dim / 2 + i]);
        }
    }
    mn_cache_options options = engine_cache_options(cache);
    assert_ok(mn_session_import(&back, model, &options, path, 0, NULL, 0));
    assert_ok(session_read_rows(back, 1, true, 0, N, out));
    assert_memory_equal(out, ours, key->bytes);
    free(ours);
    free(out);
    tensor_set_close(&file);
    mn_session_close(&session);
    mn_session_close(&back);
    mn_model_close(&model);
    assert_int_equal(mem_count().live, live);
}

static void caches_without_a_legacy_form_are_refused(void **state) {
    (void)state;
    fixture w = open_fixture();
    const char *path = scratch_path("refused.safetensors");
    engine_cache window = {.implementation = "sliding_window", .page_tokens = 4, .config = "window_length=9"};
    engine_cache none = {.implementation = "none"};
    mn_session *session = fed(&w, window);
    assert_fails(MN_E_UNSUPPORTED, "dropped", mn_sessions_export(&session, 1, path, "auto"));
    mn_session_close(&session);
    session = fed(&w, none);
    assert_fails(MN_E_UNSUPPORTED, "without a cache", mn_sessions_export(&session, 1, path, "auto"));
    mn_session_close(&session);
    session = engine_session(w.model, (engine_cache){.dtype = "f32"});
    assert_fails(MN_E_ARG, "0 tokens", mn_sessions_export(&session, 1, path, "auto"));
    mn_session_close(&session);
    assert_int_not_equal(access(scratch_path("refused.safetensors"), F_OK), 0);
    close_fixture(&w);
}

/* One defect each in a file of one row. */
static void damaged_files_are_refused(void **state) {
    (void)state;
    enum { MISSING, NAN_INSIDE, SHORTER, WRONG_TYPE, NO_IDS, BAD_ID, N_DEFECTS };
    fixture w = open_fixture();
    mn_session *session = fed(&w, (engine_cache){.dtype = "f32"}), *back = NULL;
    const char *good = scratch_path("good.safetensors"), *bad = scratch_path("bad.safetensors");
    assert_ok(mn_sessions_export(&session, 1, good, "f32"));
    tensor_set *file = NULL;
    assert_ok(safetensors_open(&file, good));
    size_t n = tensor_set_count(file);
    tensor *tensors = calloc(n, sizeof *tensors);
    assert_non_null(tensors);
    for (int defect = 0; defect < N_DEFECTS; defect++) {
        size_t kept = 0;
        float *copy = NULL;
        int32_t *ids = NULL;
        for (size_t i = 0; i < n; i++) {
            tensor t = *tensor_set_at(file, i);
            bool is_key = strcmp(t.name, "key.1") == 0, is_ids = strcmp(t.name, "ids") == 0;
            if ((defect == MISSING && is_key) || (defect == NO_IDS && is_ids)) continue;
            if (defect == NAN_INSIDE && is_key) {
                copy = malloc(t.bytes);
                assert_non_null(copy);
                memcpy(copy, t.data, t.bytes);
                copy[t.bytes / sizeof *copy - 1] = NAN;
                t.data = (const uint8_t *)copy;
            }
            if (defect == SHORTER && is_key) {
                t.shape[2]--;
                t.bytes = t.bytes / N_IDS * (N_IDS - 1);
            }
            if (defect == WRONG_TYPE && is_key) t.type = DTYPE_I32;
            if (defect == BAD_ID && is_ids) {
                ids = malloc(t.bytes);
                assert_non_null(ids);
                memcpy(ids, t.data, t.bytes);
                ids[3] = (int32_t)w.vocab;
                t.data = (const uint8_t *)ids;
            }
            tensors[kept++] = t;
        }
        assert_ok(safetensors_write(bad, tensors, kept, NULL));
        static const char *const words[N_DEFECTS] = {"key.1", "finite", "shape", "I32", "no ids", "token 3"};
        assert_fails(defect == NO_IDS ? MN_E_ARG : MN_E_REFUSED, words[defect],
                     mn_session_import(&back, w.model, NULL, bad, 0, NULL, 0));
        assert_null(back);
        free(copy);
        free(ids);
    }
    tensor_set_close(&file);
    free(tensors);
    assert_fails(MN_E_NOT_FOUND, "nowhere", mn_session_import(&back, w.model, NULL, "/nowhere", 0, NULL, 0));
    mn_model *other = engine_model("embedded", "f32", "auto", 1);
    assert_fails(MN_E_REFUSED, NULL, mn_session_import(&back, other, NULL, good, 0, NULL, 0));
    mn_model_close(&other);
    mn_session_close(&session);
    close_fixture(&w);
}

static void every_allocation_fails_once(void **state) {
    (void)state;
    fixture w = open_fixture();
    engine_cache cache = {
        .implementation = "quantized", .dtype = "f32", .page_tokens = 16, .config = "residual_length=16"};
    mn_cache_options options = engine_cache_options(cache);
    mn_session *session = fed(&w, (engine_cache){.dtype = "f32", .page_tokens = 16}), *back = NULL;
    const char *path = scratch_path("k.safetensors");
    mn_status exported = MN_E_NOMEM, imported = MN_E_NOMEM;
    int64_t live = mem_count().live;
    for (int k = 0; exported == MN_E_NOMEM; k++) {
        assert_true(k < 1000);
        mem_fail_after(k);
        exported = mn_sessions_export(&session, 1, path, "bf16");
        mem_fail_after(-1);
        assert_int_equal(mem_count().live, live);
    }
    assert_ok(exported);
    for (int k = 0; imported == MN_E_NOMEM; k++) {
        assert_true(k < 5000);
        mem_fail_after(k);
        imported = mn_session_import(&back, w.model, &options, path, 0, NULL, 0);
        mem_fail_after(-1);
        if (imported != MN_OK) assert_null(back);
    }
    assert_ok(imported);
    mn_session_close(&back);
    mn_session_close(&session);
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_caches_are_restored),
        cmocka_unit_test(quantized_tokens_are_exported_dequantized),
        cmocka_unit_test(imports_are_quantized),
        cmocka_unit_test(layers_go_through_memory),
        cmocka_unit_test(bad_layers_are_refused),
        cmocka_unit_test(layers_are_described),
        cmocka_unit_test(rows_are_reordered),
        cmocka_unit_test(failing_selections_change_nothing),
        cmocka_unit_test(files_hold_rows),
        cmocka_unit_test(shorter_rows_are_padded),
        cmocka_unit_test(other_masks),
        cmocka_unit_test(rotated_neighbours_are_reordered),
        cmocka_unit_test(caches_without_a_legacy_form_are_refused),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(every_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
