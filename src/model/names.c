/* SPDX-License-Identifier: Apache-2.0 */
#include "model/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- tables ---- */

/* A size of the configuration. */
typedef enum extent {
    NONE, /* 0: first row of a whole tensor; columns of a vector */
    HIDDEN,
    INTERMEDIATE,
    VOCAB,
    HEAD,
    QUERIES, /* heads x head_dim */
    KEYS,    /* key-value heads x head_dim; as many values */
    QUERIES_KEYS,
    QUERIES_KEYS_VALUES,
    GATE_UP,
    N_EXTENTS
} extent;

typedef struct weight_rule {
    weight_role role;
    const char *hf, *gguf;    /* in a layer: what follows its prefix */
    extent rows, columns;     /* of the tensor */
    extent first_row, n_rows; /* of the weight in it; n_rows NONE: all */
    size_t given;             /* offset in model_config of the switch that brings it; 0: always there */
    bool rotated; /* rows of q and k: stored in another order where config.permuted_rows says so */
} weight_rule;

#define ALWAYS       .given = 0
#define GIVEN(field) .given = offsetof(model_config, field)

static const weight_rule global_rules[] = {
    {WEIGHT_EMBED, "model.embed_tokens.weight", "token_embd.weight", VOCAB, HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM, "model.norm.weight", "output_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_HEAD, "lm_head.weight", "output.weight", VOCAB, HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule common_rules[] = {
    {WEIGHT_ATTENTION_NORM, "input_layernorm.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_O, "self_attn.o_proj.weight", "attn_output.weight", HIDDEN, QUERIES, ALWAYS},
    {WEIGHT_O_BIAS, "self_attn.o_proj.bias", "attn_output.bias", HIDDEN, GIVEN(attention_bias.o)},
    {WEIGHT_Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", HEAD, GIVEN(qk_norm)},
    {WEIGHT_K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", HEAD, GIVEN(qk_norm)},
    {WEIGHT_MLP_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_DOWN, "mlp.down_proj.weight", "ffn_down.weight", HIDDEN, INTERMEDIATE, ALWAYS},
    {WEIGHT_DOWN_BIAS, "mlp.down_proj.bias", "ffn_down.bias", HIDDEN, GIVEN(mlp_bias)},
    {.role = N_WEIGHTS},
};

static const weight_rule separate_rules[] = {
    {WEIGHT_Q, "self_attn.q_proj.weight", "attn_q.weight", QUERIES, HIDDEN, ALWAYS, .rotated = true},
    {WEIGHT_K, "self_attn.k_proj.weight", "attn_k.weight", KEYS, HIDDEN, ALWAYS, .rotated = true},
    {WEIGHT_V, "self_attn.v_proj.weight", "attn_v.weight", KEYS, HIDDEN, ALWAYS},
    {WEIGHT_Q_BIAS, "self_attn.q_proj.bias", "attn_q.bias", QUERIES, GIVEN(attention_bias.q),
     .rotated = true},
    {WEIGHT_K_BIAS, "self_attn.k_proj.bias", "attn_k.bias", KEYS, GIVEN(attention_bias.k), .rotated = true},
    {WEIGHT_V_BIAS, "self_attn.v_proj.bias", "attn_v.bias", KEYS, GIVEN(attention_bias.v)},
    {WEIGHT_GATE, "mlp.gate_proj.weight", "ffn_gate.weight", INTERMEDIATE, HIDDEN, ALWAYS},
    {WEIGHT_UP, "mlp.up_proj.weight", "ffn_up.weight", INTERMEDIATE, HIDDEN, ALWAYS},
    {WEIGHT_GATE_BIAS, "mlp.gate_proj.bias", "ffn_gate.bias", INTERMEDIATE, GIVEN(mlp_bias)},
    {WEIGHT_UP_BIAS, "mlp.up_proj.bias", "ffn_up.bias", INTERMEDIATE, GIVEN(mlp_bias)},
    {.role = N_WEIGHTS},
};

#define QKV    "self_attn.qkv_proj.weight", "attn_qkv.weight", QUERIES_KEYS_VALUES, HIDDEN
#define GATEUP "mlp.gate_up_proj.weight", "ffn_up.weight", GATE_UP, HIDDEN
static const weight_rule fused_rules[] = {
    {WEIGHT_Q, QKV, NONE, QUERIES, ALWAYS},
    {WEIGHT_K, QKV, QUERIES, KEYS, ALWAYS},
    {WEIGHT_V, QKV, QUERIES_KEYS, KEYS, ALWAYS},
    {WEIGHT_GATE, GATEUP, NONE, INTERMEDIATE, ALWAYS},
    {WEIGHT_UP, GATEUP, INTERMEDIATE, INTERMEDIATE, ALWAYS},
    {.role = N_WEIGHTS},
};

enum { N_TABLES = 3 };

static const weight_rule *const tables[N_MODEL_TYPES][N_TABLES] = {
    [MODEL_LLAMA] = {global_rules, common_rules, separate_rules},
    [MODEL_MISTRAL] = {global_rules, common_rules, separate_rules},
    [MODEL_QWEN2] = {global_rules, common_rules, separate_rules},
    [MODEL_QWEN3] = {global_rules, common_rules, separate_rules},
    [MODEL_PHI3] = {global_rules, common_rules, fused_rules},
};

static int64_t measure(const model_config *config, extent which) {
    int64_t queries = config->num_attention_heads * config->head_dim;
    int64_t keys = config->num_key_value_heads * config->head_dim;
    const int64_t sizes[N_EXTENTS] = {
        [HIDDEN] = config->hidden_size,
        [INTERMEDIATE] = config->intermediate_size,
        [VOCAB] = config->vocab_size,
        [HEAD] = config->head_dim,
        [QUERIES] = queries,
        [KEYS] = keys,
        [QUERIES_KEYS] = queries + keys,
        [QUERIES_KEYS_VALUES] = queries + 2 * keys,
        [GATE_UP] = 2 * config->intermediate_size,
    };
    return sizes[which];
}

static const weight_rule *find_rule(const model_config *config, weight_role role) {
    for (int i = 0; i < N_TABLES; i++) {
        for (const weight_rule *rule = tables[config->model_type][i]; rule->role != N_WEIGHTS; rule++) {
            if (rule->role == role) return rule;
        }
    }
    return NULL;
}

static bool is_given(const model_config *config, const weight_rule *rule) {
    if (rule->role == WEIGHT_HEAD) return !config->tie_word_embeddings;
    return rule->given == 0 || *(const bool *)((const char *)config + rule->given);
}

static void fill_place(const model_config *config, bool is_gguf, const weight_rule *rule, int64_t layer,
                       weight_place *out) {
    memset(out, 0, sizeof *out);
    const char *name = is_gguf ? rule->gguf : rule->hf;
    if (rule->role < N_LAYER_WEIGHTS) {
        snprintf(out->name, sizeof out->name, "%s%" PRId64 ".%s", is_gguf ? "blk." : "model.layers.", layer,
                 name);
    } else {
        snprintf(out->name, sizeof out->name, "%s", name);
    }
    out->n_dims = rule->columns == NONE ? 1 : 2;
    out->shape[0] = measure(config, rule->rows);
    out->shape[1] = measure(config, rule->columns);
    out->first_row = measure(config, rule->first_row);
    out->n_rows = measure(config, rule->n_rows == NONE ? rule->rows : rule->n_rows);
    out->permute_head_dim = is_gguf && rule->rotated && config->permuted_rows ? (int)config->head_dim : 0;
}

bool weight_find_place(const model_config *config, bool is_gguf, weight_role role, int64_t layer,
                       weight_place *out) {
    const weight_rule *rule = find_rule(config, role);
    if (!rule || !is_given(config, rule)) return false;
    fill_place(config, is_gguf, rule, layer, out);
    return true;
}

int64_t weight_source_row(const weight_source *source, int64_t row) {
    int64_t head_dim = source->permute_head_dim;
    if (head_dim != 0) {
        int64_t within = row % head_dim, half = head_dim / 2;
        row += 2 * (within % half) + within / half - within;
    }
    return source->first_row + row;
}

/* ---- binding ---- */

typedef struct shape_text {
    char text[TENSOR_DIMS * 22 + 3];
} shape_text;

static shape_text show_shape(const int64_t *shape, int n_dims) {
    shape_text shown = {"["};
    size_t n = 1;
    for (int i = 0; i < n_dims; i++) {
        n += (size_t)snprintf(shown.text + n, sizeof shown.text - n, "%s%" PRId64, i ? "," : "", shape[i]);
    }
    snprintf(shown.text + n, sizeof shown.text - n, "]");
    return shown;
}

static mn_status check_tensor(const tensor *t, const weight_place *place) {
    shape_text expected = show_shape(place->shape, place->n_dims);
    if (!t) MN_FAIL(MN_E_FORMAT, "%s is missing: expected %s", place->name, expected.text);
    bool same = t->n_dims == place->n_dims;
    for (int i = 0; same && i < t->n_dims; i++) same = t->shape[i] == place->shape[i];
    if (!same)
        MN_FAIL(MN_E_FORMAT, "%s is %s: expected %s", place->name, show_shape(t->shape, t->n_dims).text,
                expected.text);
    if (!dtype_table[t->type].to_f32) {
        MN_FAIL(MN_E_UNSUPPORTED, "%s is stored as %s, allowed: a floating-point or quantised type",
                place->name, dtype_table[t->type].name);
    }
    return MN_OK;
}

static mn_status bind_one(weight_source *out, const model_config *config, const tensor_set *tensors,
                          bool is_gguf, weight_role role, int64_t layer) {
    *out = (weight_source){0};
    const weight_rule *rule = find_rule(config, role);
    if (!rule) return MN_OK;
    weight_place place;
    fill_place(config, is_gguf, rule, layer, &place);
    const tensor *t = tensor_set_find(tensors, place.name);
    if (!is_given(config, rule)) {
        /* A spare copy of tied embeddings is common and harmless; a bias that would be left out is neither.
         */
        if (!t || role == WEIGHT_HEAD) return MN_OK;
        MN_FAIL(MN_E_FORMAT, "%s is there although the configuration has no such weight", place.name);
    }
    MN_TRY(check_tensor(t, &place));
    *out = (weight_source){t, place.first_row, place.n_rows, place.permute_head_dim};
    return MN_OK;
}

static mn_status bind_all(model_weights *out, const model_config *config, const tensor_set *tensors,
                          bool is_gguf) {
    MN_TRY(bind_one(&out->embed, config, tensors, is_gguf, WEIGHT_EMBED, 0));
    MN_TRY(bind_one(&out->final_norm, config, tensors, is_gguf, WEIGHT_FINAL_NORM, 0));
    MN_TRY(bind_one(&out->head, config, tensors, is_gguf, WEIGHT_HEAD, 0));
    if (config->tie_word_embeddings) out->head = out->embed;
    out->layers = mem_alloc((size_t)config->num_hidden_layers, sizeof *out->layers);
    if (!out->layers) return mem_no_memory();
    for (int64_t layer = 0; layer < config->num_hidden_layers; layer++) {
        for (int role = 0; role < N_LAYER_WEIGHTS; role++) {
            MN_TRY(bind_one(&out->layers[layer][role], config, tensors, is_gguf, (weight_role)role, layer));
        }
    }
    return MN_OK;
}

mn_status model_bind(model_weights *out, const model_config *config, const tensor_set *tensors,
                     bool is_gguf) {
    memset(out, 0, sizeof *out);
    mn_status status = bind_all(out, config, tensors, is_gguf);
    if (status != MN_OK) model_weights_clear(out);
    return status;
}

void model_weights_clear(model_weights *weights) {
    mem_free(weights->layers);
    memset(weights, 0, sizeof *weights);
}
