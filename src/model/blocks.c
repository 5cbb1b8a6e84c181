/* SPDX-License-Identifier: Apache-2.0 */
#include "model/blocks.h"

#include <math.h>
#include <string.h>

#include "model/experts.h"
#include "model/rope.h"

row_norm block_norm(const batch *b, const float *scale, const float *bias) {
    const model_config *c = &b->net->config;
    return (row_norm){scale, bias, (float)c->norm_eps, c->layer_norm};
}

/* ---- before a pass ---- */

static attend_shape shape_of(const model_config *config, const packed_layer *layer) {
    return (attend_shape){
        .n_heads = (int)config->num_attention_heads,
        .n_kv_heads = (int)config->num_key_value_heads,
        .head_dim = (int)config->head_dim,
        .rotary = (int)config->rotary_dim,
        .stride = (config->num_attention_heads + 2 * config->num_key_value_heads) * config->head_dim,
        .scale = (float)config->attention_multiplier,
        .softcap = (float)config->attn_logit_softcapping,
        .q_norm = config->qk_norm_wide ? NULL : layer_vector(layer, WEIGHT_Q_NORM),
        .k_norm = config->qk_norm_wide ? NULL : layer_vector(layer, WEIGHT_K_NORM),
        .norm_eps = (float)config->norm_eps,
    };
}

/* Norms of queries and keys over all heads of a token. */
static void norm_wide(const batch *b, const packed_layer *layer, const attend_shape *shape) {
    const model_config *config = &b->net->config;
    row_norm norms[] = {block_norm(b, layer_vector(layer, WEIGHT_Q_NORM), NULL),
                        block_norm(b, layer_vector(layer, WEIGHT_K_NORM), NULL)};
    int widths[] = {shape->n_heads * shape->head_dim, shape->n_kv_heads * shape->head_dim};
    for (int t = 0; config->qk_norm_wide && t < b->m; t++) {
        float *x = b->net->workspace.qkv + t * shape->stride;
        row_norm_run(&b->net->compute->kernels, &norms[0], x, x, widths[0]);
        row_norm_run(&b->net->compute->kernels, &norms[1], x + widths[0], x + widths[0], widths[1]);
    }
}

/* Sinks of a cache's entries, equal for all that have some; NULL: none has. */
static const kv_spec *sinks_of(const kv_cache *cache) {
    for (int entry = 0; entry < kv_entries(cache); entry++) {
        const kv_spec *spec = kv_entry_spec(cache, entry);
        if (spec->sinks) return spec;
    }
    return NULL;
}

/* The rotary angles of a row's tokens; with sinks, also those of queries that attend to sinks. */
static void fill_angles(workspace *ws, angle_set *angles, int64_t half, double factor, const forward_row *row,
                        int64_t at) {
    int64_t position = kv_length(row->cache);
    const kv_spec *sinks = sinks_of(row->cache);
    rope_table(ws->frequencies, half, factor, position, row->n, angles->cos + at * half, angles->sin + at * half);
    for (int t = 0; sinks && t < row->n; t++) {
        int64_t slot = visible_slot(position + t, sinks->sinks, sinks->window);
        rope_table(ws->frequencies, half, factor, slot, 1, angles->slot_cos + (at + t) * half,
                   angles->slot_sin + (at + t) * half);
    }
}

mn_status blocks_prepare(network *net, const forward_row *rows, int n_rows) {
    workspace *ws = &net->workspace;
    const model_config *c = &net->config;
    if (c->num_attention_heads == 0) return MN_OK;
    attend_shape shape = shape_of(c, &net->weights.layers[0]);
    int64_t half = c->rotary_dim / 2, at = 0;
    for (int i = 0; i < n_rows; i++) {
        double factor;
        rope_frequencies(c, rows[i].total_length, ws->frequencies, &factor);
        fill_angles(ws, &ws->angles[ANGLES_GLOBAL], half, factor, &rows[i], at);
        if (c->rope_local_base_freq > 0) {
            rope_plain_frequencies(c->rope_local_base_freq, half, ws->frequencies);
            fill_angles(ws, &ws->angles[ANGLES_LOCAL], half, 1, &rows[i], at);
        }
        ws->attend[i] = (attend_rows){
            .cache = rows[i].cache,
            .n = rows[i].n,
            .position = kv_length(rows[i].cache),
            .seen = rows[i].sees_all ? rows[i].n : 0,
            .qkv = ws->qkv + at * shape.stride,
            .out = ws->attended + at * shape.n_heads * shape.head_dim,
            .calibrator = rows[i].calibrator,
            .has_slots = sinks_of(rows[i].cache) != NULL,
        };
        at += rows[i].n;
    }
    return attend_space_reserve(&ws->space, &shape, ws->attend, n_rows);
}

/* ---- embeddings ---- */

static void embed_row(const network *net, const forward_row *row, int t, float *x) {
    size_t hidden = (size_t)net->config.hidden_size;
    const tensor *table = net->weights.embedding;
    size_t row_bytes = table->bytes / (size_t)table->shape[0];
    if (row->embeddings) {
        memcpy(x, row->embeddings + (size_t)t * hidden, hidden * sizeof *x);
    } else {
        dtype_table[table->type].to_f32(x, table->data + (size_t)row->ids[t] * row_bytes, hidden);
    }
    if (net->config.embedding_multiplier != 1)
        net->compute->kernels.scale(x, (float)net->config.embedding_multiplier, hidden);
    if (net->weights.positions) {
        size_t position = (size_t)kv_length(row->cache) + (size_t)t;
        net->compute->kernels.add(x, net->weights.positions + position * hidden, hidden);
    }
}

void block_embed(const batch *b) {
    size_t hidden = (size_t)b->net->config.hidden_size;
    float *x = b->net->workspace.x;
    for (int i = 0; i < b->n_rows; i++) {
        for (int t = 0; t < b->rows[i].n; t++, x += hidden) embed_row(b->net, &b->rows[i], t, x);
    }
    block_exits(b, -1);
}

/* ---- sub-layers ---- */

/* The destination of a sub-layer's last matrix. */
static linear_part into_stream(const batch *b, const weight *w, bool branch) {
    workspace *ws = &b->net->workspace;
    return (linear_part){
        .w = w, .y = branch ? ws->branch : ws->x, .stride = b->net->config.hidden_size, .add = !branch};
}

/* The residual multiplier is applied to the input of the last matrix, which then adds directly to the stream. */
static void scale_residual(const batch *b, float *x, int64_t width) {
    const model_config *c = &b->net->config;
    if (c->residual_multiplier != 1) compute_scale(b->net->compute, x, b->m, (int)width, (float)c->residual_multiplier);
}

static void use_angles(const batch *b, int i) {
    const model_config *c = &b->net->config;
    workspace *ws = &b->net->workspace;
    bool local = c->rope_local_base_freq > 0 && c->layer_types[i] == LAYER_SLIDING_ATTENTION;
    const angle_set *angles = &ws->angles[local ? ANGLES_LOCAL : ANGLES_GLOBAL];
    int64_t half = c->rotary_dim / 2, at = 0;
    for (int r = 0; r < b->n_rows; r++) {
        attend_rows *row = &ws->attend[r];
        row->entry = b->rows[r].sees_all ? 0 : i;
        row->cos = angles->cos + at * half;
        row->sin = angles->sin + at * half;
        row->slot_cos = angles->slot_cos + at * half;
        row->slot_sin = angles->slot_sin + at * half;
        at += row->n;
    }
}

void block_attention(const batch *b, int i, bool branch) {
    network *net = b->net;
    const model_config *config = &net->config;
    workspace *ws = &net->workspace;
    compute *c = net->compute;
    packed_layer *layer = &net->weights.layers[i];
    const weight *q = &layer->matrices[WEIGHT_Q], *k = &layer->matrices[WEIGHT_K], *v = &layer->matrices[WEIGHT_V],
                 *o = &layer->matrices[WEIGHT_O];
    attend_shape shape = shape_of(config, layer);
    if (config->unrotated && config->unrotated[i]) shape.rotary = 0;
    ptrdiff_t q_width = config->num_attention_heads * config->head_dim,
              kv_width = config->num_key_value_heads * config->head_dim;
    row_norm norm =
        block_norm(b, layer_vector(layer, WEIGHT_ATTENTION_NORM), layer_vector(layer, WEIGHT_ATTENTION_NORM_BIAS));

    compute_rows(c, &ws->rows, ws->x, b->m, (int)config->hidden_size, norm.weight ? &norm : NULL, ws->normed,
                 form_of(q) | form_of(k) | form_of(v));
    linear_part qkv[] = {
        {.w = q, .y = ws->qkv, .stride = shape.stride},
        {.w = k, .y = ws->qkv + q_width, .stride = shape.stride},
        {.w = v, .y = ws->qkv + q_width + kv_width, .stride = shape.stride},
    };
    compute_linear(c, &ws->rows, qkv, 3);
    norm_wide(b, layer, &shape);

    use_angles(b, i);
    compute_attention(c, &shape, ws->attend, b->n_rows, &ws->space);

    scale_residual(b, ws->attended, q_width);
    compute_rows(c, &ws->rows, ws->attended, b->m, (int)q_width, NULL, NULL, form_of(o));
    linear_part out = into_stream(b, o, branch);
    compute_linear(c, &ws->rows, &out, 1);
}

/* One head's attention of one query over n keys [n][dim], as weights that sum to 1. */
static void weigh_keys(const float *query, const float *keys, int n, int dim, double scale, float *out) {
    double max = -HUGE_VAL, sum = 0;
    for (int k = 0; k < n; k++) {
        double dot = 0;
        for (int d = 0; d < dim; d++) dot += (double)query[d] * (double)keys[(ptrdiff_t)k * dim + d];
        out[k] = (float)(dot * scale);
        max = fmax(max, (double)out[k]);
    }
    for (int k = 0; k < n; k++) sum += exp((double)out[k] - max);
    for (int k = 0; k < n; k++) out[k] = (float)(exp((double)out[k] - max) / sum);
}

/* The cross-attention weights of layer i that a row requests; its queries are computed. */
static void keep_cross_weights(const batch *b, int i, const forward_row *row, const attend_rows *from) {
    network *net = b->net;
    const model_config *c = &net->config;
    int dim = (int)c->head_dim, n_keys = (int)from->seen;
    ptrdiff_t stride = (c->num_attention_heads + 2 * c->num_key_value_heads) * c->head_dim;
    float *keys = net->workspace.cross_keys;
    bool is_read = false;
    for (int h = 0; h < row->n_cross_heads; h++) {
        if (row->cross_heads[h].layer != i) continue;
        if (!is_read) kv_read(row->cache, &net->compute->kernels, from->entry, true, 0, n_keys, keys);
        is_read = true;
        int head = row->cross_heads[h].head;
        ptrdiff_t group = c->num_attention_heads / c->num_key_value_heads;
        for (int t = 0; t < row->n; t++)
            weigh_keys(from->qkv + t * stride + (ptrdiff_t)head * dim, keys + head / group * n_keys * dim, n_keys, dim,
                       c->attention_multiplier, row->cross_weights + ((ptrdiff_t)h * row->cross_rows + t) * n_keys);
    }
}

void block_cross(const batch *b, int i) {
    network *net = b->net;
    const model_config *config = &net->config;
    workspace *ws = &net->workspace;
    compute *c = net->compute;
    packed_layer *layer = &net->weights.layers[i];
    const weight *q = &layer->matrices[WEIGHT_CROSS_Q], *o = &layer->matrices[WEIGHT_CROSS_O];
    attend_shape shape = shape_of(config, layer);
    int hidden = (int)config->hidden_size, width = shape.n_heads * shape.head_dim;
    row_norm norm = block_norm(b, layer_vector(layer, WEIGHT_CROSS_NORM), layer_vector(layer, WEIGHT_CROSS_NORM_BIAS));

    compute_rows(c, &ws->rows, ws->x, b->m, hidden, &norm, ws->normed, form_of(q));
    linear_part queries = {.w = q, .y = ws->qkv, .stride = shape.stride};
    compute_linear(c, &ws->rows, &queries, 1);
    for (int r = 0; r < b->n_rows; r++) {
        attend_rows *row = &ws->attend[r];
        row->entry = (int)config->num_hidden_layers + i;
        row->seen = kv_filled(row->cache, row->entry);
        row->is_cross = true;
        keep_cross_weights(b, i, &b->rows[r], row);
    }
    compute_attention(c, &shape, ws->attend, b->n_rows, &ws->space);
    for (int r = 0; r < b->n_rows; r++) {
        ws->attend[r].seen = 0;
        ws->attend[r].is_cross = false;
    }

    compute_rows(c, &ws->rows, ws->attended, b->m, width, NULL, NULL, form_of(o));
    linear_part out = into_stream(b, o, false);
    compute_linear(c, &ws->rows, &out, 1);
}

static void dense_mlp(const batch *b, const packed_layer *layer, bool branch) {
    const model_config *config = &b->net->config;
    workspace *ws = &b->net->workspace;
    compute *c = b->net->compute;
    const weight *gate = &layer->matrices[WEIGHT_GATE], *up = &layer->matrices[WEIGHT_UP],
                 *down = &layer->matrices[WEIGHT_DOWN];
    if (config->gated_mlp) {
        linear_part part = {.w = gate, .up = up, .y = ws->inner, .stride = config->intermediate_size};
        compute_gated(c, &ws->rows, &part, 1, config->hidden_act);
    } else {
        linear_part part = {.w = up, .y = ws->inner, .stride = config->intermediate_size};
        compute_linear(c, &ws->rows, &part, 1);
        compute_activate(c, ws->inner, b->m, (int)config->intermediate_size, config->hidden_act);
    }
    scale_residual(b, ws->inner, config->intermediate_size);
    compute_rows(c, &ws->rows, ws->inner, b->m, (int)config->intermediate_size, NULL, NULL, form_of(down));
    linear_part out = into_stream(b, down, branch);
    compute_linear(c, &ws->rows, &out, 1);
}

void block_mlp(const batch *b, int i, bool branch) {
    const model_config *config = &b->net->config;
    workspace *ws = &b->net->workspace;
    packed_layer *layer = &b->net->weights.layers[i];
    row_norm norm = block_norm(b, layer_vector(layer, WEIGHT_MLP_NORM), layer_vector(layer, WEIGHT_MLP_NORM_BIAS));
    form_set forms = layer->experts ? form_of(&layer->matrices[WEIGHT_ROUTER])
                                    : form_of(&layer->matrices[WEIGHT_UP]) |
                                          (config->gated_mlp ? form_of(&layer->matrices[WEIGHT_GATE]) : 0);
    compute_rows(b->net->compute, &ws->rows, ws->x, b->m, (int)config->hidden_size, norm.weight ? &norm : NULL,
                 ws->normed, forms);
    if (layer->experts) {
        experts_mlp(b, layer);
    } else {
        dense_mlp(b, layer, branch);
    }
}

void block_add_branch(const batch *b, const float *scale) {
    workspace *ws = &b->net->workspace;
    row_norm norm = block_norm(b, scale, NULL);
    compute_add(b->net->compute, ws->x, ws->branch, b->m, (int)b->net->config.hidden_size, scale ? &norm : NULL);
}

/* ---- the end ---- */

/* One row of logits from the head's products: logits_scaling, soft cap. */
static void finish_logits(network *net, float *y) {
    const model_config *c = &net->config;
    if (c->logits_scaling == 1 && c->final_logit_softcapping == 0) return;
    compute_cap(net->compute, y, (size_t)c->vocab_size, (float)(1 / c->logits_scaling),
                (float)c->final_logit_softcapping);
}

/* Applies the last norm to n states [n][hidden], giving normed [n][hidden], and the head, whose output goes to `to`. */
static void head(const batch *b, const float *states, int n, float *normed, linear_part to) {
    network *net = b->net;
    workspace *ws = &net->workspace;
    to.w = &net->weights.head;
    row_norm norm = block_norm(b, net->weights.final_norm, net->weights.final_norm_bias);
    const bool a8 = ws->rows.a8;
    ws->rows.a8 = false; /* of few rows, which are no faster with 8 bits */
    compute_rows(net->compute, &ws->rows, states, n, (int)net->config.hidden_size, &norm, normed, form_of(to.w));
    compute_linear(net->compute, &ws->rows, &to, 1);
    ws->rows.a8 = a8;
    for (int r = 0; r < n; r++) finish_logits(net, to.rows ? to.rows[r] : to.y + r * to.stride);
}

/* Logits of the gathered states, so that the head's weights are read once for all. */
typedef struct gathered {
    int n;
    float *to[HEAD_ROWS]; /* destinations of the logits of each gathered state */
} gathered;

static void flush(const batch *b, gathered *g) {
    float *states = b->net->workspace.last;
    if (g->n > 0) head(b, states, g->n, states, (linear_part){.rows = g->to});
    g->n = 0;
}

static void gathered_logits(const batch *b) {
    workspace *ws = &b->net->workspace;
    size_t hidden = (size_t)b->net->config.hidden_size, vocab = (size_t)b->net->config.vocab_size;
    const float *x = ws->x;
    gathered g = {.n = 0};
    for (int i = 0; i < b->n_rows; x += (size_t)b->rows[i].n * hidden, i++) {
        const forward_row *row = &b->rows[i];
        int n_states = forward_gathered(row);
        for (int k = 0; k < n_states; k++) {
            const float *state = x + (size_t)(row->n - n_states + k) * hidden;
            memcpy(ws->last + (size_t)g.n * hidden, state, hidden * sizeof *x);
            g.to[g.n++] = row->logits + (size_t)k * vocab;
            if (g.n == ws->n_last) flush(b, &g);
        }
    }
    flush(b, &g);
}

void block_finish(const batch *b) {
    network *net = b->net;
    workspace *ws = &net->workspace;
    size_t hidden = (size_t)net->config.hidden_size;
    row_norm norm = block_norm(b, net->weights.final_norm, net->weights.final_norm_bias);
    const float *x = ws->x;
    gathered_logits(b);
    for (int i = 0; i < b->n_rows; x += (size_t)b->rows[i].n * hidden, i++) {
        const forward_row *row = &b->rows[i];
        if (row->want == WANT_ALL && !forward_gathered(row)) {
            linear_part all = {.y = row->logits, .stride = net->config.vocab_size};
            head(b, x, row->n, ws->normed, all);
        }
        for (int t = 0; row->states && t < row->n; t++)
            row_norm_run(&net->compute->kernels, &norm, row->states + (size_t)t * hidden, x + (size_t)t * hidden,
                         (int)hidden);
    }
}

/* Applies the head to the last token's state, without the norm. */
void block_exits(const batch *b, int i) {
    network *net = b->net;
    workspace *ws = &net->workspace;
    const weight *w = &net->weights.head;
    size_t hidden = (size_t)net->config.hidden_size, vocab = (size_t)net->config.vocab_size;
    const float *x = ws->x;
    for (int r = 0; r < b->n_rows; x += (size_t)b->rows[r].n * hidden, r++) {
        const forward_row *row = &b->rows[r];
        for (int e = 0; e < row->n_exits; e++) {
            if (row->exits[e] != i + 1) continue;
            compute_rows(net->compute, &ws->rows, x + (size_t)(row->n - 1) * hidden, 1, (int)hidden, NULL, NULL,
                         form_of(w));
            linear_part part = {.w = w, .y = row->exit_logits + (size_t)e * vocab, .stride = (ptrdiff_t)vocab};
            compute_linear(net->compute, &ws->rows, &part, 1);
            finish_logits(net, part.y);
        }
    }
}
