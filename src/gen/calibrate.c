/* Calibration of coded keys: a text runs through the model, and what its keys and queries have in common
 * becomes the bases of kv/basis.h. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "gen/session.h"

enum { LEAST_TOKENS = 3 * PAGE_TOKENS, MOST_TOKENS = 2048 };

/* $MNEME_TABLES, else $XDG_DATA_HOME/mneme/tables, else ~/.local/share/mneme/tables, and a name that the
 * weights decide. */
static mn_status tables_path(bytes *path, bool make, const model_core *model) {
    char identity[FINGERPRINT_HEX];
    const char *own = getenv("MNEME_TABLES"), *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    MN_TRY(model_fingerprint(identity, model));
    path->n = 0;
    if (own && *own) {
        bytes_printf(path, "%s", own);
    } else if (data && *data) {
        bytes_printf(path, "%s/mneme/tables", data);
    } else {
        bytes_printf(path, "%s/.local/share/mneme/tables", home ? home : ".");
    }
    MN_TRY(bytes_status(path));
    if (make) MN_TRY(file_make_folders(bytes_text(path), FILE_PRIVATE));
    bytes_printf(path, "/%.16s.safetensors", identity);
    return bytes_status(path);
}

mn_status model_load_bases(mn_model *model) {
    model_core *core = model->core;
    bytes path = {0};
    pthread_mutex_lock(&core->lock);
    mn_status status = core->bases ? MN_OK : tables_path(&path, false, core);
    if (status == MN_OK && !core->bases && file_exists(bytes_text(&path))) {
        char identity[FINGERPRINT_HEX];
        status = model_fingerprint(identity, core);
        if (status == MN_OK) {
            status = kv_basis_set_load(&core->bases, bytes_text(&path), identity,
                                       (int)core->config.num_hidden_layers,
                                       (int)core->config.num_key_value_heads, (int)core->config.head_dim);
        }
    }
    pthread_mutex_unlock(&core->lock);
    bytes_clear(&path);
    if (status != MN_E_FORMAT && status != MN_E_REFUSED) return status;
    MN_FAIL(MN_E_REFUSED,
            "%s; 'mneme cache calibrate' makes these tables anew, without the file none are used",
            mn_last_error());
}

/* Runs the text in one session with an exact cache; the sums are complete afterwards. */
static mn_status gather(mn_model *model, const int32_t *ids, size_t n, kv_calibration *sums) {
    mn_cache_options options = mn_cache_options_default();
    options.prefill_chunk = PAGE_TOKENS;
    mn_session *session = NULL;
    MN_TRY(mn_session_open(&session, model, &options));
    model->core->compute.calibration = sums;
    mn_status status = mn_session_step(session, ids, n, NULL);
    model->core->compute.calibration = NULL;
    mn_session_close(&session);
    return status;
}

/* What is written where sessions look is what they find from now on; what they found before is theirs. */
static mn_status renew_bases(mn_model *model) {
    kv_basis_set *older = model->core->bases;
    model->core->bases = NULL;
    mn_status status = model_load_bases(model);
    if (model->core->bases) {
        model->core->bases->older = older;
    } else {
        model->core->bases = older;
    }
    return status;
}

mn_status mn_cache_calibrate(mn_model *model, const int32_t *ids, size_t n, const char *path) {
    const model_config *c = &model->core->config;
    if (n < LEAST_TOKENS)
        MN_FAIL(MN_E_ARG, "the calibration text has %zu tokens, at least %d are needed", n, LEAST_TOKENS);
    if (c->num_key_value_heads == 0)
        MN_FAIL(MN_E_UNSUPPORTED, "no layer of this model has keys, so there are none to make tables for");
    if (c->head_dim % 16)
        MN_FAIL(MN_E_UNSUPPORTED, "heads of %lld values take no codes", (long long)c->head_dim);
    kv_calibration *sums = NULL;
    kv_basis_set *bases = NULL;
    char identity[FINGERPRINT_HEX];
    bytes own = {0};
    mn_status status =
        kv_calibration_open(&sums, (int)c->num_hidden_layers, (int)c->num_key_value_heads, (int)c->head_dim);
    if (status == MN_OK) status = gather(model, ids, n < MOST_TOKENS ? n : MOST_TOKENS, sums);
    for (int i = 0; status == MN_OK && i < (int)c->num_hidden_layers; i++)
        if (c->layer_types[i] == LAYER_MAMBA) kv_calibration_leave_out(sums, i);
    if (status == MN_OK) status = kv_calibration_finish(&bases, sums);
    if (status == MN_OK) status = model_fingerprint(identity, model->core);
    if (status == MN_OK && !path) {
        status = tables_path(&own, true, model->core);
        path = bytes_text(&own);
    }
    if (status == MN_OK) status = kv_basis_set_save(bases, path, identity);
    if (status == MN_OK && own.n > 0) status = renew_bases(model);
    bytes_clear(&own);
    kv_calibration_close(&sums);
    kv_basis_set_close(&bases);
    return status;
}
