/* SPDX-License-Identifier: Apache-2.0 */
#include "model/encoder.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "model/blocks.h"
#include "model/weights.h"

/* ---- opening ---- */

mn_status encoder_plan(model_core *model, bool is_auto) {
    model_weights bound = {0};
    model->encoder = mem_alloc(1, sizeof *model->encoder);
    if (!model->encoder) return MN_E_NOMEM;
    network *net = &model->encoder->net;
    *net = (network){.config = *model->net.config.encoder, .form = model->net.form, .compute = &model->compute};
    mn_status status = model_bind(&bound, &net->config, model_tensors(model), false);
    if (status == MN_OK) status = weights_plan(net, &bound, is_auto, false);
    model_weights_clear(&bound);
    return status;
}

static mn_status open_layer(model_core *model) {
    encoder *e = model->encoder;
    const model_config *c = &e->net.config;
    kv_codec codec = model->net.form == WEIGHT_F32 ? KV_F32 : KV_BF16;
    const kv_spec spec = {.n_heads = (int)c->num_key_value_heads,
                          .k_dim = (int)c->head_dim,
                          .v_dim = (int)c->head_dim,
                          .exact = codec,
                          .key = kv_form_exact(codec),
                          .value = kv_form_exact(codec)};
    const kv_options options = {.page_tokens = PAGE_TOKENS};
    return kv_open(&e->layer, model->pool, &spec, 1, &options);
}

static size_t unfolded_values(const model_config *c) {
    return (size_t)c->max_position_embeddings * 3 * (size_t)max_i64(c->num_mel_bins, c->hidden_size);
}

static size_t convolved_values(const model_config *c) {
    return 2 * (size_t)c->max_position_embeddings * (size_t)c->hidden_size;
}

mn_status encoder_make(model_core *model, bool lazy) {
    encoder *e = model->encoder;
    const model_config *c = &e->net.config;
    e->net.workspace.rows.a8 = model->net.form == WEIGHT_INT;
    e->unfolded = mem_alloc_raw(unfolded_values(c), sizeof *e->unfolded);
    e->convolved = mem_alloc_raw(convolved_values(c), sizeof *e->convolved);
    if (!e->unfolded || !e->convolved) return MN_E_NOMEM;
    model->net.workspace.cross_keys = e->unfolded;
    MN_TRY(weights_pack(&e->net, model_tensors(model), lazy, (weights_progress){0}));
    MN_TRY(network_grow(&e->net, (int)c->max_position_embeddings, 1, 1));
    return open_layer(model);
}

void encoder_close(encoder **e) {
    if (!*e) return;
    kv_close(&(*e)->layer);
    network_clear(&(*e)->net);
    mem_free((*e)->unfolded);
    mem_free((*e)->convolved);
    mem_free(*e);
    *e = NULL;
}

size_t encoder_pass_bytes(const encoder *e) {
    const model_config *c = &e->net.config;
    return network_token_bytes(&e->net) * (size_t)c->max_position_embeddings +
           (unfolded_values(c) + convolved_values(c)) * sizeof(float);
}

size_t encoder_layer_bytes(const encoder *e) {
    int64_t pages = ceil_div(e->net.config.max_position_embeddings, PAGE_TOKENS);
    return (size_t)(pages * PAGE_TOKENS) * kv_cache_token_bytes(e->layer);
}

/* ---- the convolutions ---- */

/* Values of a signal of n channels over n_frames: channel c of frame t at x[c * of_channel + t * of_frame]. */
typedef struct signal {
    const float *x;
    int64_t n_channels, n_frames, of_channel, of_frame;
} signal;

/* The inputs of outputs [begin, begin + n) of a convolution of width 3 over frames, zeros around the signal: rows
 * [channels][3]. */
static void unfold(const signal *s, int64_t stride, int64_t begin, int64_t n, float *out) {
    for (int64_t t = begin; t < begin + n; t++) {
        for (int64_t c = 0; c < s->n_channels; c++) {
            for (int64_t k = -1; k <= 1; k++) {
                int64_t frame = t * stride + k;
                bool inside = frame >= 0 && frame < s->n_frames;
                *out++ = inside ? s->x[c * s->of_channel + frame * s->of_frame] : 0;
            }
        }
    }
}

/* gelu(convolution) of n outputs from `begin` on. */
static void convolve(encoder *e, int i, const signal *s, int64_t stride, int64_t begin, int64_t n, float *out) {
    compute *c = e->net.compute;
    workspace *ws = &e->net.workspace;
    const weight *w = &e->net.weights.convolutions[i];
    int hidden = (int)e->net.config.hidden_size;
    unfold(s, stride, begin, n, e->unfolded);
    compute_rows(c, &ws->rows, e->unfolded, (int)n, (int)(3 * s->n_channels), NULL, NULL, form_of(w));
    linear_part part = {.w = w, .y = out, .stride = hidden};
    compute_linear(c, &ws->rows, &part, 1);
    compute_activate(c, out, (int)n, hidden, ACTIVATION_GELU);
}

static void front(encoder *e, const float *features) {
    const model_config *c = &e->net.config;
    workspace *ws = &e->net.workspace;
    int64_t n = c->max_position_embeddings, hidden = c->hidden_size;
    signal mel = {features, c->num_mel_bins, 2 * n, 2 * n, 1};
    for (int64_t half = 0; half < 2; half++) convolve(e, 0, &mel, 1, half * n, n, e->convolved + half * n * hidden);
    signal first = {e->convolved, hidden, 2 * n, 1, hidden};
    convolve(e, 1, &first, 2, 0, n, ws->x);
    compute_add(e->net.compute, ws->x, e->net.weights.positions, (int)n, (int)hidden, NULL);
}

/* ---- keys and values of the decoder ---- */

typedef struct cross_job {
    model_core *model;
    kv_cache *cache;
    int layer, n;
    const float *rows; /* [n][2][width] keys, values */
} cross_job;

static void cross_task(void *arg, int head, int thread) {
    (void)thread;
    const cross_job *job = arg;
    const model_config *c = &job->model->net.config;
    ptrdiff_t width = c->num_key_value_heads * c->head_dim, at = head * c->head_dim;
    int entry = (int)c->num_hidden_layers + job->layer;
    kv_append(job->cache, &job->model->compute.kernels, entry, head, 0, job->n, job->rows + at, job->rows + width + at,
              2 * width, 2 * width);
}

static void fill_cross(model_core *model, kv_cache *cache, const float *states, int n) {
    encoder *e = model->encoder;
    workspace *ws = &e->net.workspace;
    const model_config *c = &model->net.config;
    compute *own = &model->compute;
    int hidden = (int)e->net.config.hidden_size;
    ptrdiff_t width = c->num_key_value_heads * c->head_dim;
    for (int i = 0; i < (int)c->num_hidden_layers; i++) {
        const weight *k = &model->net.weights.layers[i].matrices[WEIGHT_CROSS_K],
                     *v = &model->net.weights.layers[i].matrices[WEIGHT_CROSS_V];
        compute_rows(e->net.compute, &ws->rows, states, n, hidden, NULL, NULL, form_of(k) | form_of(v));
        linear_part parts[] = {{.w = k, .y = ws->qkv, .stride = 2 * width},
                               {.w = v, .y = ws->qkv + width, .stride = 2 * width}};
        compute_linear(own, &ws->rows, parts, 2);
        cross_job job = {model, cache, i, n, ws->qkv};
        thread_run(own->pool, (int)c->num_key_value_heads, cross_task, &job);
    }
    compute_quantize(own, cache, 0, kv_fill_commit(cache), &model->net.workspace.space);
    kv_finish_step(cache);
}

/* ---- the pass ---- */

static mn_status encode(model_core *model, kv_cache *cache, const float *features, float *states) {
    encoder *e = model->encoder;
    workspace *ws = &e->net.workspace;
    const model_config *c = &e->net.config;
    int n = (int)c->max_position_embeddings;
    const forward_row row = {.cache = e->layer, .n = n, .total_length = n, .sees_all = true};
    const batch b = {&e->net, &row, 1, n};
    MN_TRY(kv_reserve(e->layer, n));
    mn_status status = blocks_prepare(&e->net, &row, 1);
    if (status == MN_OK) status = kv_fill(cache, n);
    if (status == MN_OK) {
        status = model_grow_quantize(model, cache);
        if (status != MN_OK) kv_fill_abandon(cache);
    }
    if (status != MN_OK) {
        kv_abandon(e->layer);
        return status;
    }
    front(e, features);
    for (int i = 0; i < (int)c->num_hidden_layers; i++) {
        block_attention(&b, i, false);
        block_mlp(&b, i, false);
    }
    kv_abandon(e->layer);
    row_norm norm = block_norm(&b, e->net.weights.final_norm, e->net.weights.final_norm_bias);
    compute_rows(&model->compute, &ws->rows, ws->x, n, (int)c->hidden_size, &norm, ws->normed, 0);
    if (states) memcpy(states, ws->normed, (size_t)n * (size_t)c->hidden_size * sizeof *states);
    fill_cross(model, cache, ws->normed, n);
    return MN_OK;
}

mn_status model_encode(model_core *model, kv_cache *cache, const float *features, int64_t n_frames, float *states) {
    if (!model->encoder) MN_FAIL(MN_E_ARG, "'%s' is a decoder alone: it has no encoder", model->what);
    int64_t expected = 2 * model->encoder->net.config.max_position_embeddings;
    if (n_frames != expected)
        MN_FAIL(MN_E_ARG, "%" PRId64 " frames of features, '%s' takes %" PRId64, n_frames, model->what, expected);
    pthread_mutex_lock(&model->lock);
    mn_status status = encode(model, cache, features, states);
    pthread_mutex_unlock(&model->lock);
    return status;
}
