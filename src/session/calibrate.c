/* Calibration of quantized keys: computes a text and collects the statistics of its keys and queries
 * (kv/calibration.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "session/session.h"

enum { LEAST_TOKENS = 3 * PAGE_TOKENS, MOST_TOKENS = 2048 };

mn_status mn_model_set_calibration(mn_model *model, const char *path) {
    return model_set_calibration(model->core, path);
}

/* Runs the text in one session with an exact cache; the sums are complete afterwards. */
static mn_status gather(mn_model *model, const int32_t *ids, size_t n, kv_calibrator *sums) {
    mn_cache_options options;
    mn_cache_options_init(&options, sizeof options);
    options.prefill_chunk = PAGE_TOKENS;
    mn_session *session = NULL;
    MN_TRY(mn_session_open(&session, model, &options));
    session->calibrator = sums;
    mn_status status = mn_session_step(session, ids, n, NULL);
    mn_session_close(&session);
    return status;
}

mn_status mn_cache_calibrate(mn_model *model, const int32_t *ids, size_t n, const char *path) {
    const model_config *c = &model->core->net.config;
    if (!path || !*path) MN_FAIL(MN_E_ARG, "no file was named to write the calibration to");
    if (n < LEAST_TOKENS)
        MN_FAIL(MN_E_ARG, "the calibration text has %zu tokens, at least %d are needed", n, LEAST_TOKENS);
    if (c->num_key_value_heads == 0)
        MN_FAIL(MN_E_UNSUPPORTED, "no layer of this model has keys, so there is nothing to calibrate");
    if (c->head_dim % 16) MN_FAIL(MN_E_UNSUPPORTED, "heads of %lld values cannot be quantized", (long long)c->head_dim);
    kv_calibrator *sums = NULL;
    kv_calibration *calibration = NULL;
    char identity[FINGERPRINT_HEX];
    mn_status status =
        kv_calibrator_open(&sums, (int)c->num_hidden_layers, (int)c->num_key_value_heads, (int)c->head_dim);
    if (status == MN_OK) status = gather(model, ids, n < MOST_TOKENS ? n : MOST_TOKENS, sums);
    for (int i = 0; status == MN_OK && i < (int)c->num_hidden_layers; i++)
        if (c->layer_types[i] == LAYER_MAMBA) kv_calibration_leave_out(sums, i);
    if (status == MN_OK) status = kv_calibrator_finish(&calibration, sums);
    if (status == MN_OK) status = model_fingerprint(identity, model->core);
    if (status == MN_OK) status = kv_calibration_save(calibration, path, identity);
    kv_calibrator_close(&sums);
    kv_calibration_close(&calibration);
    return status;
}
