/* The bytes that `mn_model_describe` gives for every strategy, against sessions with as many tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/plan.h"
#include "session/session.h"
#include "support/engine.h"
#include "support/scratch.h"

static int64_t integer(const json *object, const char *key) {
    const json *value = json_get(object, key);
    if (!value || value->kind != JSON_INT) fail_msg("%s is not a number", key);
    return value->integer;
}

static const char *text(const json *object, const char *key) {
    const json *value = json_get(object, key);
    if (!value || value->kind != JSON_STRING) fail_msg("%s is not a string", key);
    return value->string;
}

enum { ANSWER = 4 };

/* Encodes a window of silence; models without an encoder do nothing. */
static void detect_silence(mn_session *session, const mn_model *model) {
    mn_model_info info = {.size = sizeof info};
    assert_ok(mn_model_get_info(model, &info));
    if (info.num_mel_bins == 0) return;
    size_t bands = (size_t)info.num_mel_bins, frames = 2 * (size_t)info.max_source_positions;
    float *features = calloc(bands * frames, sizeof *features);
    assert_ok(mn_session_encode(session, features, bands, frames));
    free(features);
}

/* One row: refused, or exactly what a session reports. */
static void check_row(mn_model *model, const json *row, int64_t n, const int32_t *ids) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    options.implementation = text(row, "implementation");
    options.config = text(row, "config");
    options.dtype = text(row, "dtype");
    mn_cache_summary summary = {.size = sizeof summary};
    assert_ok(mn_cache_check(&options, &summary));
    if (summary.preallocates) options.max_cache_len = n;
    mn_session *session = NULL;
    if (*text(row, "refused")) {
        assert_fails(MN_E_ARG, text(row, "refused"), mn_session_open(&session, model, &options));
        return;
    }
    mn_cache_info info = {.size = sizeof info};
    assert_ok(mn_session_open(&session, model, &options));
    detect_silence(session, model);
    /* The last tokens one by one, as in decoding: snapshots of states are kept for steps. */
    for (int64_t at = 0, size; at < n; at += size) {
        size = at == 0 && n > ANSWER ? n - ANSWER : 1;
        assert_ok(mn_session_step(session, ids + at, (size_t)size, NULL));
    }
    assert_ok(mn_session_cache(session, &info));
    assert_string_equal(info.implementation, options.implementation);
    assert_string_equal(info.dtype, options.dtype);
    if ((int64_t)info.bytes != integer(row, "bytes")) {
        fail_msg("%s, '%s', %s, %d tokens: %lld bytes are described, %llu are held", options.implementation,
                 options.config, options.dtype, (int)n, (long long)integer(row, "bytes"),
                 (unsigned long long)info.bytes);
    }
    bool keeps = strcmp(options.implementation, "none") != 0;
    assert_int_equal(keeps ? (int64_t)info.bytes_per_token : 0, integer(row, "bytes_per_token"));
    assert_int_equal(integer(row, "context"), n);
    mn_session_close(&session);
}

/* The rows of a description for strategies with one of these traits, or for all (0): each in both exact forms, with
 * four sets of options where it quantizes. */
static size_t n_rows(unsigned traits) {
    size_t n = 0;
    for (const kv_strategy *s = kv_strategies; s->name; s++) {
        if (!traits || s->traits & traits) n += s->traits & KV_TRAIT_QUANTIZED ? 8 : 2;
    }
    return n;
}

static void descriptions_equal_the_bytes_of_sessions(void **state) {
    (void)state;
    enum { NEED_KEYS = KV_TRAIT_OFFLOADED | KV_TRAIT_QUANTIZED | KV_TRAIT_WINDOW | KV_TRAIT_SINKS };
    static const struct {
        const char *path;
        unsigned refused;                           /* traits */
    } models[] = {{"embedded", KV_TRAIT_QUANTIZED}, /* its heads cannot be quantized */
                  {"golden/llama", 0},
                  {"golden/mistral-window", 0},
                  {"golden/qwen3", 0},
                  {"golden/gemma3", 0},
                  {"golden/jamba", 0},
                  {"golden/mamba", NEED_KEYS},
                  {"golden/whisper/tiny80", KV_TRAIT_SINKS}}; /* its keys cannot be moved */
    static const int64_t lengths[] = {1, 90, 127, 128, 129, 300, 500};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        mn_model *model = engine_model(models[m].path, "auto", "auto", engine_threads());
        int32_t ids[500];
        uint64_t seed = 5;
        mn_model_info info = {.size = sizeof info};
        assert_ok(mn_model_get_info(model, &info));
        engine_ids(&seed, ids, 500, engine_vocab(model));
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            if (info.has_learned_positions && lengths[i] > info.max_position_embeddings) break;
            if (!test_is_long() && (m + i) % 2) continue;
            char *described = NULL;
            json_doc *doc = NULL;
            size_t n_refused = 0;
            assert_ok(mn_model_describe(model, lengths[i], &described));
            assert_ok(json_parse(&doc, described, strlen(described), JSON_STRICT, "the description"));
            const json *rows = json_get(json_root(doc), "caches");
            assert_int_equal(rows->n, n_rows(0));
            for (size_t k = 0; k < rows->n; k++) {
                check_row(model, &rows->items[k], lengths[i], ids);
                n_refused += *text(&rows->items[k], "refused") != 0;
            }
            assert_int_equal(n_refused, models[m].refused ? n_rows(models[m].refused) : 0);
            json_close(&doc);
            mn_free(described);
        }
        mn_model_close(&model);
    }
}

/* The text takes one page in each layer, the 1,500 positions of a window of 30 seconds twelve; a token adds only to the
 * text's pages. */
static void cross_attention_is_counted_once(void **state) {
    (void)state;
    enum { TOKEN = 2 * 4 * 16 * 2 * 4, PAGE = 128 }; /* layers, heads, numbers, keys and values, bytes */
    mn_model *model = engine_model("golden/whisper/tiny80", "f32", "auto", 1);
    char *described = NULL;
    json_doc *doc = NULL;
    model->core->net.config.encoder->max_position_embeddings = 1500; /* for the description only */
    assert_ok(mn_model_describe(model, 90, &described));
    assert_ok(json_parse(&doc, described, strlen(described), JSON_STRICT, "the description"));
    const json *row = json_get(json_root(doc), "caches")->items;
    while (strcmp(text(row, "implementation"), "dynamic") != 0 || strcmp(text(row, "dtype"), "f32") != 0) row++;
    assert_int_equal(integer(row, "bytes_per_token"), TOKEN);
    assert_int_equal(integer(row, "bytes"), (1 + 12) * PAGE * TOKEN);
    json_close(&doc);
    mn_free(described);
    mn_model_close(&model);
}

/* Calibrated keys have other sizes than uncalibrated ones, so both are checked. */
static void calibrated_keys_are_planned(void **state) {
    (void)state;
    enum { N = 500 };
    mn_model *model = engine_model("golden/llama", "auto", "auto", engine_threads());
    int32_t ids[N];
    uint64_t seed = 6;
    int64_t per_token[2];
    engine_ids(&seed, ids, N, engine_vocab(model));
    for (int calibrated = 0; calibrated < 2; calibrated++) {
        if (calibrated) engine_calibrate(model, ids, N, scratch_path("calibration"));
        char *described = NULL;
        json_doc *doc = NULL;
        assert_ok(mn_model_describe(model, N, &described));
        assert_ok(json_parse(&doc, described, strlen(described), JSON_STRICT, "the description"));
        const json *rows = json_get(json_root(doc), "caches");
        for (size_t i = 0; i < rows->n; i++) {
            check_row(model, &rows->items[i], N, ids);
            if (strcmp(text(&rows->items[i], "config"), "nbits=4") == 0)
                per_token[calibrated] = integer(&rows->items[i], "bytes_per_token");
        }
        json_close(&doc);
        mn_free(described);
    }
    assert_int_not_equal(per_token[0], per_token[1]);
    mn_model_close(&model);
}

/* The largest context is the last one that fits a memory budget. */
static void the_largest_context_is_the_last_that_fits_the_budget(void **state) {
    (void)state;
    mn_model *model = NULL;
    mn_model_options limited;
    mn_model_options_init(&limited, sizeof limited);
    limited.compute_type = "f32";
    limited.threads = 1;
    limited.memory_limit = (uint64_t)24 << 20;
    assert_ok(mn_model_open(&model, data_path("golden/llama"), &limited));
    char *described = NULL;
    json_doc *doc = NULL;
    assert_ok(mn_model_describe(model, 500, &described));
    assert_ok(json_parse(&doc, described, strlen(described), JSON_STRICT, "the description"));
    const json *rows = json_get(json_root(doc), "caches"), *memory = json_get(json_root(doc), "memory");
    int64_t room =
        integer(memory, "available_bytes") - integer(memory, "packed_bytes") - integer(memory, "buffer_bytes");
    assert_true(room > 0);
    for (size_t i = 0; i < rows->n; i++) {
        const json *row = &rows->items[i], *largest = json_get(row, "largest_context");
        const char *name = text(row, "implementation");
        if (largest->kind == JSON_STRING) { /* a window bounds the memory */
            assert_true(strcmp(name, "sink") == 0 || strcmp(name, "sliding_window") == 0);
            continue;
        }
        if (strcmp(name, "none") == 0) continue;
        char *again = NULL;
        json_doc *docs[2] = {NULL, NULL};
        int64_t need[2];
        for (int k = 0; k < 2; k++) {
            assert_ok(mn_model_describe(model, largest->integer + k, &again));
            assert_ok(json_parse(&docs[k], again, strlen(again), JSON_STRICT, "the description"));
            need[k] = integer(&json_get(json_root(docs[k]), "caches")->items[i], "bytes");
            mn_free(again);
            json_close(&docs[k]);
        }
        /* Two of three layers of an offloaded cache are resident. */
        int64_t resident = strncmp(name, "offloaded", 9) == 0 ? 2 : 3;
        if (need[0] * resident / 3 > room || need[1] * resident / 3 <= room)
            fail_msg("%s: %lld tokens need %lld bytes, one more %lld, of %lld", name, (long long)largest->integer,
                     (long long)need[0], (long long)need[1], (long long)room);
    }
    json_close(&doc);
    mn_free(described);
    mn_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptions_equal_the_bytes_of_sessions),
        cmocka_unit_test(calibrated_keys_are_planned),
        cmocka_unit_test(cross_attention_is_counted_once),
        cmocka_unit_test(the_largest_context_is_the_last_that_fits_the_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
