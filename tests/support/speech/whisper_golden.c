/* SPDX-License-Identifier: Apache-2.0 */
#include "support/speech/whisper_golden.h"

#include <math.h>

const tensor *golden_tensor(const golden *g, const char *format, int64_t a, int64_t b) {
    char name[96];
    snprintf(name, sizeof name, format, (long long)a, (long long)b);
    const tensor *t = tensor_set_find(g->set, name);
    if (!t) fail_msg("no tensor %s", name);
    return t;
}

float *golden_values(const tensor *t, size_t *n) {
    *n = 1;
    for (int i = 0; i < t->n_dims; i++) *n *= (size_t)t->shape[i];
    float *x = malloc(*n * sizeof *x);
    dtype_table[t->type].to_f32(x, t->data, *n);
    return x;
}

golden golden_open(const char *folder) {
    char path[128];
    golden g = {0};
    snprintf(path, sizeof path, "%s/cases.json", folder);
    g.doc = open_json(data_path(path));
    g.cases = json_get(json_root(g.doc), "cases");
    g.end = (int32_t)json_get(json_get(json_root(g.doc), "special"), "eos")->integer;
    snprintf(path, sizeof path, "%s/tensors.safetensors", folder);
    assert_ok(safetensors_open(&g.set, data_path(path)));
    g.model = engine_model(folder, "f32", "auto", engine_threads());
    mn_model_info info = {.size = sizeof info};
    assert_ok(mn_model_get_info(g.model, &info));
    g.vocab = (size_t)info.vocab_size;
    g.mels = (size_t)info.num_mel_bins;
    g.frames = 2 * (size_t)info.max_source_positions;
    for (int i = 0; i < MOST_INPUTS; i++) {
        size_t n;
        g.features[i] = golden_values(golden_tensor(&g, "features.%lld", i, 0), &n);
        assert_int_equal(n, g.mels * g.frames);
    }
    return g;
}

void golden_close(golden *g) {
    for (int i = 0; i < MOST_INPUTS; i++) free(g->features[i]);
    mn_model_close(&g->model);
    tensor_set_close(&g->set);
    json_close(&g->doc);
}

mn_cache_options golden_options(const char *strategy, const char *config) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    options.implementation = strategy;
    options.config = config;
    options.page_tokens = strstr(strategy, "quantized") ? 16 : 4; /* many page edges */
    if (strstr(strategy, "static")) options.max_cache_len = 96;
    return options;
}

mn_session *golden_session(const golden *g, const char *strategy, const char *config, int64_t input) {
    const mn_cache_options options = golden_options(strategy, config);
    mn_session *session = NULL;
    assert_ok(mn_session_open(&session, g->model, &options));
    assert_ok(mn_session_encode(session, g->features[input], g->mels, g->frames));
    return session;
}

void golden_near(const float *got, const float *wanted, size_t n, float tolerance, const char *what) {
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(got[i] - wanted[i]) <= tolerance))
            fail_msg("%s: value %zu is %g, golden %g", what, i, (double)got[i], (double)wanted[i]);
    }
}
