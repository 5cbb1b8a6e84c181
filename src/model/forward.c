/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"

#include <assert.h>

#include "model/arch.h"
#include "model/mixer.h"
#include "model/rope.h"

enum {
    STATE_CHECKPOINTS = 4, /* states kept of past steps, so that steps can be reverted */
};

static mn_status check_encoded(const model_core *model, const forward_row *rows, int n_rows) {
    for (int i = 0; model->encoder && i < n_rows; i++) {
        if (kv_filled(rows[i].cache, (int)model->net.config.num_hidden_layers) == 0)
            MN_FAIL(
                MN_E_ARG,
                "'%s' is a speech model, and no recording was encoded for it; `mneme transcribe` and mn_transcribe do that",
                model->what);
    }
    return MN_OK;
}

/* The first row of a pass, before row i, that shares pages with it; NULL: none. */
static const kv_cache *relative_of(const forward_row *rows, int i) {
    for (int j = 0; j < i; j++) {
        if (kv_shares_pages(rows[j].cache, rows[i].cache)) return rows[j].cache;
    }
    return NULL;
}

/* All preparation that can fail; then nothing has changed. */
static mn_status reserve_rows(model_core *model, const forward_row *rows, int n_rows) {
    mn_status status = MN_OK;
    int n_reserved = 0;
    while (n_reserved < n_rows && status == MN_OK) {
        status = kv_reserve_beside(rows[n_reserved].cache, rows[n_reserved].n, relative_of(rows, n_reserved));
        if (status == MN_OK) n_reserved++;
    }
    for (int i = 0; i < n_rows && status == MN_OK; i++) status = kv_restage(rows[i].cache);
    for (int i = 0; i < n_rows && status == MN_OK; i++) status = model_grow_quantize(model, rows[i].cache);
    if (status == MN_OK) status = blocks_prepare(&model->net, rows, n_rows);
    for (int i = 0; status != MN_OK && i < n_reserved; i++) kv_abandon(rows[i].cache);
    return status;
}

/* When a row runs out of memory, other rows may offload pages. */
static mn_status send_one_of_each(const forward_row *rows, int n_rows, bool *sent) {
    *sent = false;
    for (int i = 0; i < n_rows; i++) {
        bool one;
        MN_TRY(kv_send_one(rows[i].cache, &one));
        *sent = *sent || one;
    }
    return MN_OK;
}

static mn_status forward_locked(model_core *model, const forward_row *rows, int n_rows) {
    int64_t m = 0, n_last = 1;
    assert(n_rows > 0);
    MN_TRY(check_encoded(model, rows, n_rows));
    for (int i = 0; i < n_rows; i++) {
        assert(rows[i].n > 0 && (rows[i].ids || rows[i].embeddings));
        assert(rows[i].want == WANT_NOTHING || rows[i].logits);
        m += rows[i].n;
        n_last += forward_gathered(&rows[i]);
    }
    MN_TRY(network_grow(&model->net, (int)m, n_rows, (int)min_i64(n_last, HEAD_ROWS)));
    mn_status status = reserve_rows(model, rows, n_rows);
    bool sent = true;
    while (status == MN_E_NOMEM && sent) {
        MN_TRY(send_one_of_each(rows, n_rows, &sent));
        if (sent) status = reserve_rows(model, rows, n_rows);
    }
    MN_TRY(status);
    arch_forwards[model->net.config.model_type](&(batch){&model->net, rows, n_rows, (int)m});
    for (int i = 0; status == MN_OK && i < n_rows; i++) status = kv_fault(rows[i].cache);
    if (status != MN_OK) {
        for (int i = 0; i < n_rows; i++) kv_abandon(rows[i].cache);
        return status;
    }
    for (int i = 0; i < n_rows; i++) {
        compute_quantize(&model->compute, rows[i].cache, 0, kv_commit(rows[i].cache), &model->net.workspace.space);
        kv_finish_step(rows[i].cache);
    }
    return MN_OK;
}

mn_status model_forward(model_core *model, const forward_row *rows, int n_rows) {
    pthread_mutex_lock(&model->lock);
    mn_status status = forward_locked(model, rows, n_rows);
    pthread_mutex_unlock(&model->lock);
    return status;
}

mn_status model_between_passes(model_core *model, mn_status (*work)(void *), void *arg) {
    pthread_mutex_lock(&model->lock);
    mn_status status = work(arg);
    pthread_mutex_unlock(&model->lock);
    return status;
}

mn_status model_convert_begin(model_core *model, kv_cache **cache, const kv_spec *specs, int n_entries,
                              const kv_options *options, const kv_cache *beside) {
    pthread_mutex_lock(&model->lock);
    mn_status status = kv_convert_begin(cache, &model->compute.kernels, specs, n_entries, options, beside);
    pthread_mutex_unlock(&model->lock);
    return status;
}

void model_convert_end(model_core *model, kv_cache *const *caches, int n) {
    pthread_mutex_lock(&model->lock);
    kv_convert_end(caches, n, &model->compute.kernels);
    pthread_mutex_unlock(&model->lock);
}

void model_run_tasks(model_core *model, int n_tasks, int64_t n_values, thread_task run, void *arg) {
    if (pthread_mutex_trylock(&model->lock) == 0) {
        compute_tasks(&model->compute, n_tasks, n_values, run, arg);
        pthread_mutex_unlock(&model->lock);
        return;
    }
    for (int task = 0; task < n_tasks; task++) run(arg, task, 0);
}

static kv_spec layer_spec(const model_config *c, int64_t layer, kv_codec codec) {
    if (c->layer_types[layer] == LAYER_MAMBA) {
        return (kv_spec){.kind = KV_STATE, .state_bytes = mixer_state_bytes(c), .checkpoints = STATE_CHECKPOINTS};
    }
    return (kv_spec){
        .n_heads = (int)c->num_key_value_heads,
        .k_dim = (int)c->head_dim,
        .v_dim = (int)c->head_dim,
        .exact = codec,
        .key = kv_form_exact(codec),
        .value = kv_form_exact(codec),
        .window = c->layer_types[layer] == LAYER_SLIDING_ATTENTION ? (int)c->sliding_window : 0,
        .is_fixed = c->positions == POSITIONS_LEARNED,
    };
}

mn_status model_cache_specs(kv_spec **out, int *n, const model_core *model, kv_codec codec) {
    int64_t n_layers = model->net.config.num_hidden_layers, n_cross = model->encoder ? n_layers : 0;
    kv_spec *specs = mem_alloc((size_t)(n_layers + n_cross), sizeof *specs);
    *out = NULL;
    if (!specs) return MN_E_NOMEM;
    for (int64_t i = 0; i < n_layers + n_cross; i++) {
        specs[i] = layer_spec(&model->net.config, i % n_layers, codec);
        specs[i].write_once = i >= n_layers;
    }
    *out = specs;
    *n = (int)(n_layers + n_cross);
    return MN_OK;
}
