/* SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>

#include "session/session.h"

enum { STATIC_LENGTH = 512, MOST_PIECE = 9 };

int64_t engine_live(const mn_model *model) {
    kv_pool_release(model->core->pool);
    return mem_count().live;
}

int engine_threads(void) {
    static int n;
    return test_is_long() || n++ % 4 == 0 ? 2 : 1;
}

mn_model *engine_model(const char *path, const char *compute_type, const char *cpu, int threads) {
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    options.compute_type = compute_type;
    options.cpu = cpu;
    options.threads = threads;
    mn_model *model = NULL;
    bool is_data = strncmp(path, "golden/", 7) == 0;
    assert_ok(mn_model_open(&model, is_data ? data_path(path) : path, &options));
    return model;
}

void engine_calibrate(mn_model *model, const int32_t *ids, size_t n, const char *path) {
    assert_ok(mn_cache_calibrate(model, ids, n, path));
    assert_ok(mn_model_set_calibration(model, path));
}

int32_t engine_vocab(const mn_model *model) {
    mn_model_info info = {.size = sizeof info};
    assert_ok(mn_model_get_info(model, &info));
    return info.vocab_size;
}

mn_cache_options engine_cache_options(engine_cache cache) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    options.implementation = cache.implementation ? cache.implementation : "dynamic";
    if (cache.dtype) options.dtype = cache.dtype;
    options.page_tokens = cache.page_tokens;
    options.prefill_chunk = cache.prefill_chunk;
    options.max_cache_len = cache.max_cache_len;
    options.config = cache.config;
    if (strstr(options.implementation, "static") && !cache.max_cache_len) options.max_cache_len = STATIC_LENGTH;
    return options;
}

mn_session *engine_session(mn_model *model, engine_cache cache) {
    mn_cache_options options = engine_cache_options(cache);
    mn_session *session = NULL;
    assert_ok(mn_session_open(&session, model, &options));
    return session;
}

void engine_ids(uint64_t *seed, int32_t *ids, size_t n, int32_t vocab) {
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(test_random(seed) % (uint64_t)vocab);
}

void engine_feed(mn_session *session, const int32_t *ids, size_t n, int piece, uint64_t *seed, float *logits) {
    size_t vocab = (size_t)session->model->net.config.vocab_size;
    for (size_t at = 0; at < n;) {
        size_t size = piece > 0 ? (size_t)piece : n;
        if (piece < 0) size = 1 + (size_t)(test_random(seed) % MOST_PIECE);
        if (size > n - at) size = n - at;
        assert_ok(mn_session_step(session, ids + at, size, logits ? logits + at * vocab : NULL));
        at += size;
    }
}

float *engine_logits(mn_model *model, engine_cache cache, const int32_t *ids, size_t n, int piece, uint64_t *seed) {
    size_t n_values = n * (size_t)engine_vocab(model);
    float *logits = malloc(n_values * sizeof *logits);
    assert_non_null(logits);
    memset(logits, 0xFF, n_values * sizeof *logits);
    mn_session *session = engine_session(model, cache);
    engine_feed(session, ids, n, piece, seed, logits);
    mn_session_close(&session);
    return logits;
}

void engine_same_bits(const float *got, const float *wanted, size_t n, size_t vocab, const char *format, ...) {
    if (memcmp(got, wanted, n * vocab * sizeof *got) == 0) return;
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    for (size_t i = 0; i < n * vocab; i++) {
        if (memcmp(&got[i], &wanted[i], sizeof *got) != 0) {
            fail_msg("%s: logit %zu of token %zu is %.9g, expected the bits of %.9g", what, i % vocab, i / vocab,
                     (double)got[i], (double)wanted[i]);
        }
    }
}

double engine_distance(const float *a, const float *b, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);
        if (!(difference <= worst)) worst = isnan(difference) ? INFINITY : difference;
    }
    return worst;
}

void engine_ends_with(const mn_session *session, const float *wanted, const char *what) {
    const float *got = mn_session_logits(session);
    if (!got) fail_msg("%s: there are no logits", what);
    engine_same_bits(got, wanted, 1, (size_t)session->model->net.config.vocab_size, "%s", what);
}

double engine_spread(const float *x, size_t n) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    return sqrt(squares / (double)n - sum / (double)n * (sum / (double)n));
}

double engine_mean_square(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / (double)n);
}

size_t engine_read_ids(const json *list, int32_t *ids, size_t most) {
    if (!list) return 0;
    assert_true(list->n <= most);
    for (size_t i = 0; i < list->n; i++) ids[i] = (int32_t)list->items[i].integer;
    return list->n;
}

mn_generation_config *engine_config(const mn_model *model, const json *fields) {
    mn_generation_config *config = NULL;
    bytes text = {0};
    json_put(&text, fields);
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_load(config, bytes_text(&text), text.n));
    bytes_clear(&text);
    return config;
}
