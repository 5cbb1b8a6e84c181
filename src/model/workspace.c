/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"
#include "model/weights.h"

#include <string.h>

static size_t largest(size_t a, size_t b) {
    return a > b ? a : b;
}

/* The largest number of inputs of a matrix. */
size_t model_widest_input(const model_config *c) {
    size_t most = largest((size_t)c->hidden_size, (size_t)c->intermediate_size);
    most = largest(most, (size_t)c->shared_expert_intermediate_size);
    most = largest(most, (size_t)(c->num_attention_heads * c->head_dim));
    if (c->num_mel_bins > 0) most = largest(most, 3 * (size_t)max_i64(c->num_mel_bins, c->hidden_size));
    return largest(most, (size_t)c->mamba_size);
}

/* The buffers with a size per token: their pointers and floats per token. */
typedef struct token_buffer {
    void *slot;
    size_t width, size;
} token_buffer;

enum { MOST_TOKEN_BUFFERS = 32 };

/* At least 1, so that the table exists without rotary embeddings. */
static int token_buffers(network *net, token_buffer out[MOST_TOKEN_BUFFERS]) {
    workspace *ws = &net->workspace;
    const model_config *c = &net->config;
    size_t hidden = (size_t)c->hidden_size, heads = (size_t)(c->num_attention_heads * c->head_dim),
           kv = (size_t)(c->num_key_value_heads * c->head_dim), channels = (size_t)c->mamba_size,
           experts = (size_t)c->num_local_experts, half = largest((size_t)c->rotary_dim / 2, 1),
           local = c->rope_local_base_freq > 0 ? half : 0, widest = model_widest_input(c),
           spans = (widest + ACT_SPAN - 1) / ACT_SPAN, k = experts ? (size_t)c->num_experts_per_tok : 1;
    bool branches = experts || c->post_norms || c->parallel_residual;
    angle_set *global = &ws->angles[ANGLES_GLOBAL], *other = &ws->angles[ANGLES_LOCAL];
    const token_buffer buffers[] = {
        {&ws->x, hidden, sizeof(float)},
        {&ws->normed, hidden, sizeof(float)},
        {&ws->branch, branches ? k * hidden : 0, sizeof(float)},
        {&ws->qkv, heads + 2 * kv, sizeof(float)},
        {&ws->attended, heads, sizeof(float)},
        {&ws->inner, (size_t)max_i64((int64_t)k * c->intermediate_size, c->shared_expert_intermediate_size),
         sizeof(float)},
        {&ws->gathered, experts ? k * hidden : 0, sizeof(float)},
        {&ws->routing, experts ? experts + 1 : 0, sizeof(float)},
        {&ws->routes, (size_t)c->num_experts_per_tok, sizeof(expert_route)},
        {&ws->channels, 2 * channels, sizeof(float)},
        {&ws->convolved, channels, sizeof(float)},
        {&ws->projected, channels ? (size_t)(c->time_step_rank + 2 * c->state_size) : 0, sizeof(float)},
        {&ws->ranks, (size_t)c->time_step_rank, sizeof(float)},
        {&ws->steps, channels, sizeof(float)},
        {&global->cos, half, sizeof(float)},
        {&global->sin, half, sizeof(float)},
        {&global->slot_cos, half, sizeof(float)},
        {&global->slot_sin, half, sizeof(float)},
        {&other->cos, local, sizeof(float)},
        {&other->sin, local, sizeof(float)},
        {&other->slot_cos, local, sizeof(float)},
        {&other->slot_sin, local, sizeof(float)},
        {&ws->rows.rounded, k * act_bf16_stride((int)widest), sizeof(bf16)},
        {&ws->rows.codes, k * spans * ACT_SPAN, sizeof(int16_t)},
        {&ws->rows.spans, k * spans, sizeof(act_span)},
    };
    memcpy(out, buffers, sizeof buffers);
    return (int)(sizeof buffers / sizeof *buffers);
}

void network_clear(network *net) {
    workspace *ws = &net->workspace;
    token_buffer buffers[MOST_TOKEN_BUFFERS];
    int n = token_buffers(net, buffers);
    for (int i = 0; i < n; i++) mem_free(*(void **)buffers[i].slot);
    mem_free(ws->last);
    mem_free(ws->attend);
    mem_free(ws->frequencies);
    attend_space_clear(&ws->space);
    *ws = (workspace){0};
    weights_clear(&net->weights, net->config.num_hidden_layers);
}

static mn_status replace_buffer(void *slot, size_t count, size_t size) {
    void **buffer = slot;
    void *fresh = mem_alloc_raw(count, size);
    if (!fresh) return MN_E_NOMEM;
    mem_free(*buffer);
    *buffer = fresh;
    return MN_OK;
}

static mn_status grow_tokens(network *net, int m) {
    workspace *ws = &net->workspace;
    token_buffer buffers[MOST_TOKEN_BUFFERS];
    if (m <= ws->m) return MN_OK;
    int n = token_buffers(net, buffers);
    ws->m = 0; /* until all have grown */
    for (int i = 0; i < n; i++) {
        if (buffers[i].width > 0)
            MN_TRY(replace_buffer(buffers[i].slot, (size_t)m * buffers[i].width, buffers[i].size));
    }
    ws->m = m;
    return MN_OK;
}

size_t network_token_bytes(const network *net) {
    network copy = *net; /* the list points into a workspace, which is not compared */
    token_buffer buffers[MOST_TOKEN_BUFFERS];
    size_t total = 0;
    for (int i = 0, n = token_buffers(&copy, buffers); i < n; i++) total += buffers[i].width * buffers[i].size;
    return total;
}

/* Room for n_rows sequences and for n_last states whose logits are computed together. */
static mn_status grow_rows(network *net, int n_rows, int n_last) {
    workspace *ws = &net->workspace;
    MN_TRY(mem_grow(&ws->attend, &ws->attend_capacity, (size_t)n_rows, sizeof *ws->attend));
    if (n_last <= ws->n_last) return MN_OK;
    ws->n_last = 0;
    MN_TRY(replace_buffer(&ws->last, (size_t)n_last * (size_t)net->config.hidden_size, sizeof(float)));
    ws->n_last = n_last;
    return MN_OK;
}

mn_status network_grow(network *net, int m, int n_rows, int n_last) {
    MN_TRY(grow_tokens(net, m));
    return grow_rows(net, n_rows, n_last);
}

mn_status model_grow_quantize(model_core *model, const kv_cache *cache) {
    attend_space *space = &model->net.workspace.space;
    size_t need = (kv_quantize_scratch(cache) + 63) / 64 * 64;
    if (need <= space->quantize_bytes) return MN_OK;
    MN_TRY(replace_buffer(&space->quantize, (size_t)model->compute.n_threads, need));
    space->quantize_bytes = need;
    return MN_OK;
}
