/* The Llama family: Llama 1 to 3, TinyLlama, SmolLM2, Mistral, Qwen2, Qwen3, Phi-3.
 *
 * One pass over a batch, top to bottom; sizes and switches come from the configuration, biases from the
 * weights.
 *
 *   x = embedding(ids)
 *   for each layer:  x += o(attend(rope(q), rope(k), v))       q, k, v of norm(x)
 *                    x += down(act(gate(h)) * up(h))            h = norm(x)
 *   logits = head(norm(x))
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/arch.h"

#include <math.h>
#include <string.h>

#include "model/rope.h"

static attend_shape shape_of(const model_config *config, const packed_layer *layer) {
    return (attend_shape){
        .n_heads = (int)config->num_attention_heads,
        .n_kv_heads = (int)config->num_key_value_heads,
        .head_dim = (int)config->head_dim,
        .rotary = (int)config->rotary_dim,
        .stride = (config->num_attention_heads + 2 * config->num_key_value_heads) * config->head_dim,
        .scale = (float)config->attention_multiplier,
        .q_norm = layer->q_norm,
        .k_norm = layer->k_norm,
        .norm_eps = (float)config->rms_norm_eps,
    };
}

/* Sinks of a cache's entries, which are the same for all that have some; NULL: none has. */
static const kv_spec *sinks_of(const kv_cache *cache) {
    for (int entry = 0; entry < kv_entries(cache); entry++) {
        const kv_spec *spec = kv_entry_spec(cache, entry);
        if (spec->sinks) return spec;
    }
    return NULL;
}

mn_status llama_prepare(model_core *model, const forward_row *rows, int n_rows) {
    workspace *ws = &model->workspace;
    attend_shape shape = shape_of(&model->config, &model->weights.layers[0]);
    int64_t half = model->config.rotary_dim / 2, at = 0;
    for (int i = 0; i < n_rows; i++) {
        double factor;
        int64_t position = kv_length(rows[i].cache);
        rope_frequencies(&model->config, rows[i].total_length, ws->frequencies, &factor);
        rope_table(ws->frequencies, half, factor, position, rows[i].n, ws->cos + at * half,
                   ws->sin + at * half);
        ws->attend[i] = (attend_rows){
            .cache = rows[i].cache,
            .n = rows[i].n,
            .position = position,
            .qkv = ws->qkv + at * shape.stride,
            .out = ws->attended + at * shape.n_heads * shape.head_dim,
            .cos = ws->cos + at * half,
            .sin = ws->sin + at * half,
        };
        const kv_spec *sinks = sinks_of(rows[i].cache);
        if (sinks) {
            float *cos = ws->slot_cos + at * half, *sin = ws->slot_sin + at * half;
            for (int t = 0; t < rows[i].n; t++) {
                int64_t slot = visible_slot(position + t, sinks->sinks, sinks->window);
                rope_table(ws->frequencies, half, factor, slot, 1, cos + t * half, sin + t * half);
            }
            ws->attend[i].slot_cos = cos;
            ws->attend[i].slot_sin = sin;
        }
        at += rows[i].n;
    }
    return attend_space_reserve(&ws->space, &shape, ws->attend, n_rows);
}

static void embed(const model_core *model, const forward_row *rows, int n_rows) {
    size_t hidden = (size_t)model->config.hidden_size;
    const tensor *table = model->weights.embedding;
    size_t row_bytes = table->bytes / (size_t)table->shape[0];
    float *x = model->workspace.x;
    for (int i = 0; i < n_rows; i++) {
        for (int t = 0; t < rows[i].n; t++, x += hidden) {
            if (rows[i].embeddings) {
                memcpy(x, rows[i].embeddings + (size_t)t * hidden, hidden * sizeof *x);
            } else {
                dtype_table[table->type].to_f32(x, table->data + (size_t)rows[i].ids[t] * row_bytes, hidden);
            }
        }
    }
}

static void attention(model_core *model, int i_layer, int m, int n_rows) {
    const model_config *config = &model->config;
    workspace *ws = &model->workspace;
    compute *c = &model->compute;
    packed_layer *layer = &model->weights.layers[i_layer];
    attend_shape shape = shape_of(config, layer);
    ptrdiff_t q_width = config->num_attention_heads * config->head_dim,
              kv_width = config->num_key_value_heads * config->head_dim;

    form_set forms = form_of(&layer->q) | form_of(&layer->k) | form_of(&layer->v);
    compute_rows(c, &ws->rows, ws->x, m, (int)config->hidden_size, layer->input_norm, shape.norm_eps,
                 ws->normed, forms);
    linear_part qkv[] = {
        {.w = &layer->q, .y = ws->qkv, .stride = shape.stride},
        {.w = &layer->k, .y = ws->qkv + q_width, .stride = shape.stride},
        {.w = &layer->v, .y = ws->qkv + q_width + kv_width, .stride = shape.stride},
    };
    compute_linear(c, &ws->rows, qkv, 3);

    for (int i = 0; i < n_rows; i++) ws->attend[i].entry = i_layer;
    compute_attention(c, &shape, ws->attend, n_rows, &ws->space);

    compute_rows(c, &ws->rows, ws->attended, m, (int)q_width, NULL, 0, NULL, form_of(&layer->o));
    linear_part o = {.w = &layer->o, .y = ws->x, .stride = config->hidden_size, .add = true};
    compute_linear(c, &ws->rows, &o, 1);
}

static void mlp(model_core *model, int i_layer, int m) {
    const model_config *config = &model->config;
    workspace *ws = &model->workspace;
    compute *c = &model->compute;
    packed_layer *layer = &model->weights.layers[i_layer];
    form_set forms = form_of(&layer->gate) | form_of(&layer->up);
    compute_rows(c, &ws->rows, ws->x, m, (int)config->hidden_size, layer->post_norm,
                 (float)config->rms_norm_eps, ws->normed, forms);
    compute_gated(c, &ws->rows, &layer->gate, &layer->up, config->hidden_act != ACTIVATION_SILU, ws->inner);
    compute_rows(c, &ws->rows, ws->inner, m, (int)config->intermediate_size, NULL, 0, NULL,
                 form_of(&layer->down));
    linear_part down = {.w = &layer->down, .y = ws->x, .stride = config->hidden_size, .add = true};
    compute_linear(c, &ws->rows, &down, 1);
}

/* n states [n][hidden] through the last norm, to normed [n][hidden], and the head, to `to`, whose matrix is the head. */
static void head(model_core *model, const float *states, int n, float *normed, linear_part to) {
    workspace *ws = &model->workspace;
    to.w = &model->weights.head;
    compute_rows(&model->compute, &ws->rows, states, n, (int)model->config.hidden_size,
                 model->weights.final_norm, (float)model->config.rms_norm_eps, normed, form_of(to.w));
    compute_linear(&model->compute, &ws->rows, &to, 1);
}

/* Logits that were gathered so that the head is read once for all of them. */
typedef struct gathered {
    int n;
    float *to[HEAD_ROWS]; /* where those of each gathered state are wanted */
} gathered;

static void flush(model_core *model, gathered *g) {
    float *states = model->workspace.last;
    if (g->n > 0) head(model, states, g->n, states, (linear_part){.rows = g->to});
    g->n = 0;
}

static void gathered_logits(model_core *model, const forward_row *rows, int n_rows) {
    workspace *ws = &model->workspace;
    size_t hidden = (size_t)model->config.hidden_size, vocab = (size_t)model->config.vocab_size;
    const float *x = ws->x;
    gathered g = {.n = 0};
    for (int i = 0; i < n_rows; x += (size_t)rows[i].n * hidden, i++) {
        int wanted = forward_gathered(&rows[i]);
        for (int k = 0; k < wanted; k++) {
            const float *state = x + (size_t)(rows[i].n - wanted + k) * hidden;
            memcpy(ws->last + (size_t)g.n * hidden, state, hidden * sizeof *x);
            g.to[g.n++] = rows[i].logits + (size_t)k * vocab;
            if (g.n == ws->n_last) flush(model, &g);
        }
    }
    flush(model, &g);
}

static void logits(model_core *model, const forward_row *rows, int n_rows) {
    workspace *ws = &model->workspace;
    size_t hidden = (size_t)model->config.hidden_size;
    const float *x = ws->x;
    gathered_logits(model, rows, n_rows);
    for (int i = 0; i < n_rows; x += (size_t)rows[i].n * hidden, i++) {
        if (rows[i].want == WANT_ALL && !forward_gathered(&rows[i])) {
            linear_part all = {.y = rows[i].logits, .stride = model->config.vocab_size};
            head(model, x, rows[i].n, ws->normed, all);
        }
        for (int t = 0; rows[i].states && t < rows[i].n; t++) {
            model->compute.kernels.rms_norm(rows[i].states + (size_t)t * hidden, x + (size_t)t * hidden,
                                            model->weights.final_norm, (int)hidden,
                                            (float)model->config.rms_norm_eps);
        }
    }
}

/* What early exits want of layer `i_layer`'s output (0: the embedding): the last token's state through the head, without the norm. */
static void exits(model_core *model, const forward_row *rows, int n_rows, int i_layer) {
    workspace *ws = &model->workspace;
    const weight *w = &model->weights.head;
    size_t hidden = (size_t)model->config.hidden_size, vocab = (size_t)model->config.vocab_size;
    const float *x = ws->x;
    for (int i = 0; i < n_rows; x += (size_t)rows[i].n * hidden, i++) {
        for (int e = 0; e < rows[i].n_exits; e++) {
            if (rows[i].exits[e] != i_layer) continue;
            compute_rows(&model->compute, &ws->rows, x + (size_t)(rows[i].n - 1) * hidden, 1, (int)hidden,
                         NULL, 0, NULL, form_of(w));
            linear_part part = {
                .w = w, .y = rows[i].exit_logits + (size_t)e * vocab, .stride = (ptrdiff_t)vocab};
            compute_linear(&model->compute, &ws->rows, &part, 1);
        }
    }
}

void llama_forward(model_core *model, const forward_row *rows, int n_rows) {
    int m = 0;
    for (int i = 0; i < n_rows; i++) m += rows[i].n;
    embed(model, rows, n_rows);
    exits(model, rows, n_rows, 0);
    for (int i = 0; i < (int)model->config.num_hidden_layers; i++) {
        attention(model, i, m, n_rows);
        mlp(model, i, m);
        exits(model, rows, n_rows, i + 1);
    }
    logits(model, rows, n_rows);
}
