/* A model's calibration of quantized keys: the file's name, and its contents when loaded.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "model/model.h"

mn_status model_set_calibration(model_core *model, const char *path) {
    char *copy = NULL;
    if (path && !file_exists(path)) MN_FAIL(MN_E_NOT_FOUND, "there is no calibration '%s'", path);
    if (path) copy = mem_copy_text(path, strlen(path));
    if (path && !copy) return mem_no_memory();
    pthread_mutex_lock(&model->lock);
    mem_free(model->calibration_path);
    model->calibration_path = copy;
    model->calibration = NULL;
    pthread_mutex_unlock(&model->lock);
    return MN_OK;
}

static mn_status load(model_core *model) {
    const model_config *c = &model->net.config;
    char identity[FINGERPRINT_HEX];
    kv_calibration *set = NULL;
    if (model->calibration || !model->calibration_path) return MN_OK;
    MN_TRY(model_fingerprint(identity, model));
    MN_TRY(kv_calibration_load(&set, model->calibration_path, identity, (int)c->num_hidden_layers,
                               (int)c->num_key_value_heads, (int)c->head_dim));
    set->older = model->calibrations;
    model->calibrations = model->calibration = set;
    return MN_OK;
}

mn_status model_calibration(const kv_calibration **out, model_core *model) {
    pthread_mutex_lock(&model->lock);
    mn_status status = load(model);
    *out = model->calibration;
    pthread_mutex_unlock(&model->lock);
    if (status != MN_E_FORMAT && status != MN_E_REFUSED) return status;
    MN_FAIL(MN_E_REFUSED, "%s; 'mneme cache calibrate' writes a new one; without the file no calibration is used",
            mn_last_error());
}
