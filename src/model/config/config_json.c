/* A configuration from config.json.
 *
 * Transformers 5 keeps everything about rotation in rope_parameters, which types with two kinds of rotation divide by
 * layer type; before, it was rope_theta, rope_scaling and partial_rotary_factor. Both forms are read, and what is
 * inside of an object counts before what is beside it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "model/config/config_rules.h"

static const config_word activation_words[] = {
    {"silu", ACTIVATION_SILU},          {"swish", ACTIVATION_SILU},
    {"gelu", ACTIVATION_GELU},          {"gelu_pytorch_tanh", ACTIVATION_GELU_TANH},
    {"gelu_new", ACTIVATION_GELU_TANH}, {"gelu_fast", ACTIVATION_GELU_TANH},
    {"relu", ACTIVATION_RELU},          {NULL, 0},
};

static const config_word layer_type_words[] = {
    {"full_attention", LAYER_FULL_ATTENTION},
    {"sliding_attention", LAYER_SLIDING_ATTENTION},
    {NULL, 0},
};

static const config_word dtype_words[] = {
    {"float32", DTYPE_F32}, {"float16", DTYPE_F16}, {"bfloat16", DTYPE_BF16}, {"float64", DTYPE_F64}, {NULL, 0},
};

/* The member unless it is absent or null. */
static const json *member(const json *object, const char *key) {
    const json *value = json_get(object, key);
    return value && value->kind != JSON_NULL ? value : NULL;
}

/* A name of a table; if absent, *out is unchanged. */
static mn_status read_word(const char *what, const json *object, const char *key, const config_word *words, int *out) {
    const char *text = NULL;
    MN_TRY(json_string(what, object, key, &text));
    return text ? config_pick(what, key, words, text, member(object, key)->n, out) : MN_OK;
}

static mn_status require_real(const char *what, const json *object, const char *key, double lo, double hi,
                              double *out) {
    MN_TRY(json_require(what, object, key));
    return json_real(what, object, key, lo, hi, out);
}

/* The name of a field in a type's config.json. */
static const char *key_of(const model_config *config, const char *field) {
    const config_key *keys = model_types[config->model_type].keys;
    for (; keys && keys->field; keys++) {
        if (strcmp(keys->field, field) == 0) return keys->key;
    }
    return field;
}

/* Sizes that checkpoints leave out when they are those of the type. */
static const struct {
    model_type type;
    const char *field;
    int64_t size;
} usual_sizes[] = {
    {MODEL_GEMMA3, "num_attention_heads", 8},
    {MODEL_GEMMA3, "num_key_value_heads", 4},
    {MODEL_GEMMA3, "vocab_size", 262208},
};

static int64_t usual_size(model_type type, const char *field) {
    for (size_t i = 0; i < sizeof usual_sizes / sizeof *usual_sizes; i++) {
        if (usual_sizes[i].type == type && strcmp(usual_sizes[i].field, field) == 0) return usual_sizes[i].size;
    }
    return 0;
}

static mn_status read_numbers(model_config *config, const json *root, const char *what) {
    for (size_t i = 0; i < N_CONFIG_SIZES; i++) {
        const config_size *field = &config_sizes[i];
        if (!config_has(config, field->fields)) continue;
        const char *key = key_of(config, field->json_key);
        int64_t *place = (int64_t *)((char *)config + field->offset);
        const json *value = json_get(root, key);
        bool derived = config->model_type == MODEL_GPT2 && place == &config->intermediate_size;
        int64_t usual = usual_size(config->model_type, field->json_key);
        if (usual) *place = usual;
        if (field->required && !derived && !usual) MN_TRY(json_require(what, root, key));
        if (value && value->kind == JSON_NULL && place == &config->head_dim) *place = 0; /* not the type's default */
        MN_TRY(json_int(what, root, key, field->lo, field->hi, place));
        if (derived && *place == 0) *place = 4 * config->hidden_size;
    }
    for (size_t i = 0; i < N_CONFIG_REALS; i++) {
        const config_real *field = &config_reals[i];
        if (!config_has(config, field->fields)) continue;
        double *place = (double *)((char *)config + field->offset);
        const json *value = json_get(root, field->json_key);
        if (value && value->kind == JSON_NULL && (field->fields & FIELDS_CAPS))
            *place = 0; /* no cap, also where the type has one by default */
        MN_TRY(json_real(what, root, field->json_key, field->lo, field->hi, place));
    }
    const char *eps = key_of(config, "norm_eps");
    return json_real(what, root, strcmp(eps, "norm_eps") == 0 ? "rms_norm_eps" : eps, 1e-30, 1, &config->norm_eps);
}

static mn_status read_switches(model_config *config, const json *root, const char *what) {
    const model_type_info *info = &model_types[config->model_type];
    int act = (int)config->hidden_act, type = DTYPE_F32;
    MN_TRY(read_word(what, root, key_of(config, "hidden_act"), activation_words, &act));
    config->hidden_act = (activation)act;
    MN_TRY(read_word(what, root, member(root, "dtype") ? "dtype" : "torch_dtype", dtype_words, &type));
    config->torch_dtype = (dtype)type;
    config->norm_adds_one = info->norm_adds_one;
    MN_TRY(json_bool(what, root, "tie_word_embeddings", &config->tie_word_embeddings));
    if (info->reads_mlp_bias) MN_TRY(json_bool(what, root, "mlp_bias", &config->mlp_bias));
    if (info->reads_qkv_bias) {
        bool bias = config->attention_bias.q;
        MN_TRY(json_bool(what, root, key_of(config, "use_qkv_bias"), &bias));
        config->attention_bias.q = config->attention_bias.k = config->attention_bias.v = bias;
    }
    config->permuted_rows = info->permuted;
    if (config->model_type == MODEL_GPT_NEOX)
        MN_TRY(json_bool(what, root, "use_parallel_residual", &config->parallel_residual));
    if (info->reads_attention_bias) {
        bool bias = config->attention_bias.o;
        MN_TRY(json_bool(what, root, "attention_bias", &bias));
        config->attention_bias.q = config->attention_bias.k = config->attention_bias.v = config->attention_bias.o =
            bias;
    }
    return MN_OK;
}

/* Refuses a switch that the forward pass does not support. */
static mn_status require_switch(const char *what, const json *root, const char *key, bool expected) {
    bool value = expected;
    MN_TRY(json_bool(what, root, key, &value));
    if (value == expected) return MN_OK;
    MN_FAIL(MN_E_UNSUPPORTED, "%s: %s is %s, allowed: %s", what, key, value ? "true" : "false",
            expected ? "true" : "false");
}

/* Variants of some types that are not supported. */
static const struct {
    model_type type;
    const char *key;
    bool expected;
} fixed_switches[] = {
    {MODEL_GPT2, "scale_attn_weights", true},
    {MODEL_GPT2, "scale_attn_by_inverse_layer_idx", false},
    {MODEL_STABLELM, "use_parallel_residual", false},
    {MODEL_STABLELM, "qk_layernorm", false},
    {MODEL_PHI, "qk_layernorm", false},
    {MODEL_COHERE, "use_qk_norm", false},
    {MODEL_WHISPER, "scale_embedding", false},
};

/* Qwen's mixtures of experts. Layers with a plain MLP have another width. */
static mn_status read_mixture(model_config *config, const json *root, const char *what) {
    if (config->model_type != MODEL_QWEN2_MOE && config->model_type != MODEL_QWEN3_MOE) return MN_OK;
    MN_TRY(json_bool(what, root, "norm_topk_prob", &config->norm_topk_prob));
    int64_t step = 1;
    MN_TRY(json_int(what, root, "decoder_sparse_step", 0, CONFIG_MAX_LAYERS, &step));
    const json *dense = member(root, "mlp_only_layers");
    if (dense && dense->kind != JSON_ARRAY)
        return json_wrong_value(what, "mlp_only_layers", dense, "a list of layer numbers");
    if (step == 1 && (!dense || dense->n == 0)) return MN_OK;
    MN_FAIL(MN_E_UNSUPPORTED,
            "%s: decoder_sparse_step is %" PRId64
            " and mlp_only_layers has %zu items, allowed: 1 and none, experts in every layer",
            what, step, dense ? dense->n : 0);
}

static mn_status read_scores(model_config *config, const json *root, const char *what) {
    const model_type_info *info = &model_types[config->model_type];
    for (size_t i = 0; i < sizeof fixed_switches / sizeof fixed_switches[0]; i++) {
        if (fixed_switches[i].type == config->model_type)
            MN_TRY(require_switch(what, root, fixed_switches[i].key, fixed_switches[i].expected));
    }
    if (config->model_type == MODEL_COHERE) { /* a multiplier there, a divisor elsewhere */
        double scale = 0.0625;
        MN_TRY(json_real(what, root, "logit_scale", 1e-9, 1e9, &scale));
        config->logits_scaling = 1 / scale;
    }
    if (info->query_pre_attn_scalar > 0) {
        double scalar = info->query_pre_attn_scalar;
        MN_TRY(json_real(what, root, "query_pre_attn_scalar", 1e-6, 1e9, &scalar));
        config->attention_multiplier = 1 / sqrt(scalar);
    }
    return MN_OK;
}

static mn_status read_mamba(model_config *config, const json *root, const char *what) {
    const json *act = member(root, "hidden_act");
    if (config->hidden_act != ACTIVATION_SILU) /* mixers have no other function */
        MN_FAIL(MN_E_UNSUPPORTED, "%s: hidden_act is \"%s\", allowed: silu", what,
                config_show(act->string, act->n).text);
    const char *rank = key_of(config, "time_step_rank");
    const json *value = member(root, rank);
    int64_t expand = 2;
    if (value && (value->kind != JSON_STRING || strcmp(value->string, "auto") != 0))
        MN_TRY(json_int(what, root, rank, 1, 1 << 20, &config->time_step_rank));
    MN_TRY(json_int(what, root, key_of(config, "expand"), 1, 64, &expand));
    if (config->mamba_size == 0) config->mamba_size = expand * config->hidden_size;
    MN_TRY(json_bool(what, root, key_of(config, "use_conv_bias"), &config->use_conv_bias));
    return json_bool(what, root, key_of(config, "use_bias"), &config->use_bias);
}

static mn_status read_basics(model_config *config, const json *root, const char *what) {
    MN_TRY(read_numbers(config, root, what));
    MN_TRY(read_switches(config, root, what));
    MN_TRY(read_scores(config, root, what));
    if (model_types[config->model_type].scales_embedding) {
        /* In Transformers the factor has the type of the weights. */
        float factor = (float)sqrt((double)config->hidden_size);
        bf16 as_bf16 = bf16_from_f32(factor);
        f16 as_f16 = f16_from_f32(factor);
        if (config->torch_dtype == DTYPE_BF16) dtype_table[DTYPE_BF16].to_f32(&factor, &as_bf16, 1);
        if (config->torch_dtype == DTYPE_F16) dtype_table[DTYPE_F16].to_f32(&factor, &as_f16, 1);
        config->embedding_multiplier = (double)factor;
    }
    if (config->model_type == MODEL_JAMBA) {
        config->expert_layer_period = 2;
        config->expert_layer_offset = 1;
        MN_TRY(json_int(what, root, "expert_layer_period", 1, CONFIG_MAX_LAYERS, &config->expert_layer_period));
        MN_TRY(json_int(what, root, "expert_layer_offset", 0, CONFIG_MAX_LAYERS, &config->expert_layer_offset));
        if (config->num_local_experts == 1) config->num_local_experts = config->num_experts_per_tok = 0;
    }
    MN_TRY(read_mixture(config, root, what));
    return config_has(config, FIELDS_MAMBA) ? read_mamba(config, root, what) : MN_OK;
}

static mn_status read_tokens(model_config *config, const json *root, const char *what) {
    MN_TRY(json_int(what, root, "bos_token_id", -1, CONFIG_MAX_VOCAB - 1, &config->bos_token_id));
    MN_TRY(json_int(what, root, "pad_token_id", -1, CONFIG_MAX_VOCAB - 1, &config->pad_token_id));
    const json *eos = member(root, "eos_token_id");
    if (!eos) return MN_OK;
    bool list = eos->kind == JSON_ARRAY;
    size_t n = list ? eos->n : 1;
    if (n > CONFIG_MAX_EOS)
        MN_FAIL(MN_E_FORMAT, "%s: eos_token_id has %zu items, allowed: up to %d", what, n, CONFIG_MAX_EOS);
    config->eos_token_id = mem_alloc(n, sizeof *config->eos_token_id);
    if (!config->eos_token_id) return mem_no_memory();
    if (!list) {
        int64_t id = -1;
        MN_TRY(json_int(what, root, "eos_token_id", -1, CONFIG_MAX_VOCAB - 1, &id));
        if (id >= 0) config->eos_token_id[config->n_eos_token_id++] = id;
        return MN_OK;
    }
    for (size_t i = 0; i < n; i++) {
        const json *item = &eos->items[i];
        if (item->kind != JSON_INT || item->integer < -1 || item->integer >= CONFIG_MAX_VOCAB) {
            MN_FAIL(MN_E_FORMAT, "%s: eos_token_id[%zu] is no whole number from -1 (none) to %d", what, i,
                    CONFIG_MAX_VOCAB - 1);
        }
        if (item->integer >= 0) config->eos_token_id[config->n_eos_token_id++] = item->integer;
    }
    return MN_OK;
}

/* ---- rotation ---- */

/* A list of rotary_dim / 2 positive numbers into *out (owned). */
static mn_status read_factors(const char *what, const json *scaling, const char *key, int64_t n, double **out) {
    const double lo = 1e-6, hi = 1e9;
    MN_TRY(json_require(what, scaling, key));
    const json *list = json_get(scaling, key);
    if (list->kind != JSON_ARRAY)
        MN_FAIL(MN_E_FORMAT, "%s: %s is no list, allowed: a list of %" PRId64 " numbers", what, key, n);
    if (list->n != (size_t)n) {
        MN_FAIL(MN_E_FORMAT, "%s: %s has %zu numbers, allowed: %" PRId64 ", half the rotary dimension", what, key,
                list->n, n);
    }
    *out = mem_alloc(list->n, sizeof **out);
    if (!*out) return mem_no_memory();
    for (size_t i = 0; i < list->n; i++) {
        const json *item = &list->items[i];
        double value = item->kind == JSON_INT ? (double)item->integer : item->kind == JSON_REAL ? item->real : 0;
        if (!(value >= lo && value <= hi))
            MN_FAIL(MN_E_FORMAT, "%s: %s[%zu] is no number from %g to %g", what, key, i, lo, hi);
        (*out)[i] = value;
    }
    return MN_OK;
}

static mn_status read_factor(rope_scaling *out, const json *scaling, const char *what) {
    return require_real(what, scaling, "factor", 1e-6, 1e6, &out->factor);
}

static mn_status read_llama3(rope_scaling *out, const json *scaling, const char *what) {
    MN_TRY(read_factor(out, scaling, what));
    MN_TRY(require_real(what, scaling, "low_freq_factor", 1e-6, 1e6, &out->low_freq_factor));
    MN_TRY(require_real(what, scaling, "high_freq_factor", 1e-6, 1e6, &out->high_freq_factor));
    return json_require(what, scaling, "original_max_position_embeddings");
}

static mn_status read_yarn(rope_scaling *out, const json *scaling, const char *what) {
    MN_TRY(read_factor(out, scaling, what));
    MN_TRY(json_real(what, scaling, "attention_factor", 1e-6, 1e6, &out->attention_factor));
    MN_TRY(json_real(what, scaling, "mscale", 0, 1e6, &out->mscale));
    MN_TRY(json_real(what, scaling, "mscale_all_dim", 0, 1e6, &out->mscale_all_dim));
    MN_TRY(json_bool(what, scaling, "truncate", &out->truncate));
    MN_TRY(json_real(what, scaling, "beta_fast", 1e-6, 1e9, &out->beta_fast));
    return json_real(what, scaling, "beta_slow", 1e-6, 1e9, &out->beta_slow);
}

static mn_status read_rope_type(model_config *config, const json *scaling, const char *what) {
    const char *key = member(scaling, "rope_type") ? "rope_type" : "type";
    int type = ROPE_DEFAULT;
    /* "mrope" divides a position into time and place in a picture; a text has one number for all of them. */
    if (!json_is_string(member(scaling, key), "mrope")) MN_TRY(read_word(what, scaling, key, rope_type_words, &type));
    /* Early Phi-3 files call their rule "yarn"; Transformers reads it as longrope. */
    if (config->model_type == MODEL_PHI3 && type == ROPE_YARN) type = ROPE_LONGROPE;
    config->rope_scaling.rope_type = (rope_type)type;
    return MN_OK;
}

static mn_status read_rope_scaling(model_config *config, const json *root, const json *scaling, const char *what) {
    rope_scaling *out = &config->rope_scaling;
    MN_TRY(read_rope_type(config, scaling, what));
    if (out->rope_type == ROPE_DEFAULT) return MN_OK;
    out->beta_fast = 32;
    out->beta_slow = 1;
    out->truncate = true;
    int64_t original = 0;
    MN_TRY(json_int(what, scaling, "original_max_position_embeddings", 2, CONFIG_MAX_POSITIONS, &original));
    switch (out->rope_type) {
    case ROPE_LINEAR:
    case ROPE_DYNAMIC: MN_TRY(read_factor(out, scaling, what)); break;
    case ROPE_LLAMA3: MN_TRY(read_llama3(out, scaling, what)); break;
    case ROPE_YARN: MN_TRY(read_yarn(out, scaling, what)); break;
    case ROPE_LONGROPE:
        if (original == 0) original = model_types[config->model_type].original_max_position_embeddings;
        MN_TRY(json_int(what, root, "original_max_position_embeddings", 2, CONFIG_MAX_POSITIONS, &original));
        MN_TRY(json_real(what, scaling, "attention_factor", 1e-6, 1e6, &out->attention_factor));
        MN_TRY(read_factors(what, scaling, "short_factor", config->rotary_dim / 2, &out->short_factor));
        MN_TRY(read_factors(what, scaling, "long_factor", config->rotary_dim / 2, &out->long_factor));
        /* The lengths give the factor where both are known; `factor` only replaces a missing original length. */
        if (original == 0) MN_TRY(read_factor(out, scaling, what));
        if (original != 0) out->factor = (double)config->max_position_embeddings / (double)original;
        break;
    case ROPE_DEFAULT:
    case N_ROPE_TYPES: break;
    }
    out->original_max_position_embeddings = original ? original : max_i64(config->max_position_embeddings, 2);
    return MN_OK;
}

/* An object about rotation: NULL when it is absent, null or empty. */
static mn_status find_rope(const json *root, const char *key, const char *what, const json **out) {
    *out = member(root, key);
    if (!*out) return MN_OK;
    if ((*out)->kind != JSON_OBJECT) MN_FAIL(MN_E_FORMAT, "%s: %s is no object, allowed: null or an object", what, key);
    if ((*out)->n == 0) *out = NULL;
    return MN_OK;
}

static bool same_json(const json *a, const json *b) {
    bytes x = {0}, y = {0};
    json_put(&x, a);
    json_put(&y, b);
    bool same = x.n == y.n && strcmp(bytes_text(&x), bytes_text(&y)) == 0;
    bytes_clear(&x);
    bytes_clear(&y);
    return same;
}

/* Takes *parameters apart that have a member for each layer type: *parameters becomes that of full attention, and the
 * base of the windowed layers is set. */
static mn_status divide_rope(model_config *config, const char *what, const json **parameters) {
    const json *full = member(*parameters, "full_attention"), *local = member(*parameters, "sliding_attention");
    char inner[512];
    if (!full && !local) return MN_OK;
    snprintf(inner, sizeof inner, "%.460s: rope_parameters", what);
    for (int i = 0; i < 2; i++) {
        const json *one = i ? local : full;
        if (one && one->kind != JSON_OBJECT)
            return json_wrong_value(inner, i ? "sliding_attention" : "full_attention", one, "an object");
    }
    if (!config_has(config, FIELDS_LOCAL_ROPE)) {
        if (full && local && !same_json(full, local))
            MN_FAIL(MN_E_UNSUPPORTED, "%s differ in full_attention and sliding_attention, allowed for %s: the same",
                    inner, model_type_name(config->model_type));
        *parameters = full ? full : local;
        return MN_OK;
    }
    *parameters = full;
    if (!local) return MN_OK;
    const char *key = member(local, "rope_type") ? "rope_type" : "type";
    if (member(local, key) && !json_is_string(member(local, key), "default"))
        MN_FAIL(MN_E_UNSUPPORTED, "%s: sliding_attention has another %s than \"default\", which is the one allowed",
                inner, key);
    return json_real(inner, local, "rope_theta", 2, 1e15, &config->rope_local_base_freq);
}

static mn_status read_rotation(model_config *config, const json *root, const char *what) {
    const json *scaling, *parameters;
    double partial = model_types[config->model_type].partial_rotary_factor;
    if (config->positions != POSITIONS_ROTARY) return config_check_sizes(config, what, 0);
    if (partial == 0) partial = 1;
    if (config->model_type == MODEL_GPT_NEOX) { /* the names before partial_rotary_factor and rope_theta */
        MN_TRY(json_real(what, root, "rotary_pct", 0, 1, &partial));
        if (!member(root, "rope_theta")) MN_TRY(json_real(what, root, "rotary_emb_base", 2, 1e15, &config->rope_theta));
    }
    MN_TRY(json_real(what, root, "partial_rotary_factor", 0, 1, &partial));
    MN_TRY(find_rope(root, "rope_scaling", what, &scaling));
    MN_TRY(find_rope(root, "rope_parameters", what, &parameters));
    if (parameters) MN_TRY(divide_rope(config, what, &parameters));
    char inner[512];
    snprintf(inner, sizeof inner, "%.480s: %s", what, scaling ? "rope_scaling" : "rope_parameters");
    if (!scaling) scaling = parameters;
    if (scaling) {
        MN_TRY(json_real(inner, scaling, "rope_theta", 2, 1e15, &config->rope_theta));
        MN_TRY(json_real(inner, scaling, "partial_rotary_factor", 0, 1, &partial));
    }
    MN_TRY(config_check_sizes(config, what, partial));
    if (scaling) MN_TRY(read_rope_scaling(config, root, scaling, inner));
    return config_check_rope(config, what);
}

/* Which layers have rotary embeddings, if not all: a list of 1 and 0, or an interval. */
static mn_status read_unrotated(model_config *config, const json *root, const char *what) {
    int64_t interval = model_types[config->model_type].unrotated_interval, n = config->num_hidden_layers;
    const json *list = member(root, "no_rope_layers");
    if (interval == 0) return MN_OK;
    MN_TRY(json_int(what, root, "no_rope_layer_interval", 1, CONFIG_MAX_LAYERS, &interval));
    MN_TRY(config_set_unrotated(config, interval));
    if (!list) return MN_OK;
    if (list->kind != JSON_ARRAY || list->n != (size_t)n) {
        MN_FAIL(MN_E_FORMAT, "%s: no_rope_layers has %zu items, allowed: %" PRId64 ", one for each layer", what,
                list->kind == JSON_ARRAY ? list->n : 0, n);
    }
    for (int64_t i = 0; i < n; i++) {
        const json *item = &list->items[i];
        if (item->kind != JSON_INT || (item->integer != 0 && item->integer != 1))
            MN_FAIL(MN_E_FORMAT, "%s: no_rope_layers[%" PRId64 "] is neither 0 nor 1", what, i);
        config->unrotated[i] = item->integer == 0;
    }
    return MN_OK;
}

/* ---- layers ---- */

static mn_status read_layer_types(layer_type *out, int64_t n, const json *list, const char *what) {
    if (list->kind != JSON_ARRAY || list->n != (size_t)n) {
        MN_FAIL(MN_E_FORMAT, "%s: layer_types has %zu items, allowed: %" PRId64 ", one for each layer", what,
                list->kind == JSON_ARRAY ? list->n : 0, n);
    }
    for (size_t i = 0; i < list->n; i++) {
        const json *item = &list->items[i];
        if (item->kind != JSON_STRING) MN_FAIL(MN_E_FORMAT, "%s: layer_types[%zu] is no string", what, i);
        int type = 0;
        MN_TRY(config_pick(what, "layer_types", layer_type_words, item->string, item->n, &type));
        out[i] = (layer_type)type;
    }
    return MN_OK;
}

/* The window of some layers, and the rule that selects them where layer_types is not given. */
static mn_status read_window(model_config *config, const json *root, const char *what, int64_t *first,
                             int64_t *pattern) {
    const model_type_info *info = &model_types[config->model_type];
    int64_t window = 0;
    bool used = info->window != WINDOW_UPPER_LAYERS;
    if (info->window == WINDOW_NEVER) return MN_OK;
    if (!json_get(root, "sliding_window")) window = info->sliding_window;
    MN_TRY(json_int(what, root, "sliding_window", 0, CONFIG_MAX_POSITIONS, &window));
    if (info->window == WINDOW_UPPER_LAYERS) {
        MN_TRY(json_bool(what, root, "use_sliding_window", &used));
        MN_TRY(json_int(what, root, "max_window_layers", 0, CONFIG_MAX_POSITIONS, first));
    }
    if (info->window == WINDOW_PATTERN) {
        const char *key = member(root, "sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
        MN_TRY(json_int(what, root, key, 1, CONFIG_MAX_LAYERS, pattern));
    }
    config->sliding_window = used ? window : 0;
    return MN_OK;
}

/* Jamba: every attn_layer_period-th layer attends, the others are Mamba's. */
static mn_status read_kinds(model_config *config, const json *root, const char *what, layer_type *types) {
    int64_t period = 8, offset = 4;
    MN_TRY(json_int(what, root, "attn_layer_period", 1, CONFIG_MAX_LAYERS, &period));
    MN_TRY(json_int(what, root, "attn_layer_offset", 0, CONFIG_MAX_LAYERS, &offset));
    if (offset >= period) {
        MN_FAIL(MN_E_FORMAT, "%s: attn_layer_offset is %" PRId64 ", allowed: less than attn_layer_period, %" PRId64,
                what, offset, period);
    }
    for (int64_t i = 0; i < config->num_hidden_layers; i++)
        types[i] = i % period == offset ? LAYER_FULL_ATTENTION : LAYER_MAMBA;
    return MN_OK;
}

static mn_status read_types(model_config *config, const json *root, const char *what, layer_type *types) {
    const model_type_info *info = &model_types[config->model_type];
    int64_t first = 28, pattern = 6, n = config->num_hidden_layers;
    MN_TRY(read_window(config, root, what, &first, &pattern));
    const json *list = info->window == WINDOW_NEVER ? NULL : member(root, "layer_types");
    if (!config_has(config, FIELDS_ATTENTION)) {
        for (int64_t i = 0; i < n; i++) types[i] = LAYER_MAMBA;
        return MN_OK;
    }
    if (config_has(config, FIELDS_MAMBA)) return read_kinds(config, root, what, types);
    if (list) MN_TRY(read_layer_types(types, n, list, what));
    for (int64_t i = 0; i < n; i++) {
        bool slides = config->sliding_window > 0 && config_slides(info->window, i, first, pattern);
        if (!list) types[i] = slides ? LAYER_SLIDING_ATTENTION : LAYER_FULL_ATTENTION;
        if (types[i] == LAYER_SLIDING_ATTENTION && config->sliding_window == 0) {
            MN_FAIL(MN_E_FORMAT,
                    "%s: layer_types[%" PRId64 "] is \"sliding_attention\", allowed without a sliding_window: "
                    "\"full_attention\"",
                    what, i);
        }
    }
    return MN_OK;
}

static mn_status read_layers(model_config *config, const json *root, const char *what) {
    layer_type *types = mem_alloc((size_t)config->num_hidden_layers, sizeof *types);
    if (!types) return mem_no_memory();
    mn_status status = read_types(config, root, what, types);
    config_set_layers(config, types);
    return status;
}

/* ---- 8-bit floats ---- */

/* Two sizes, as a list or, in files of compressed-tensors, as "128x128". */
static mn_status read_block(model_config *config, const json *object, const char *key, const char *what) {
    const json *block = member(object, key);
    int64_t sizes[2] = {0};
    int end = 0;
    if (!block) return MN_OK;
    if (block->kind == JSON_ARRAY && block->n == 2) {
        for (int i = 0; i < 2; i++) sizes[i] = block->items[i].kind == JSON_INT ? block->items[i].integer : 0;
    } else if (block->kind == JSON_STRING) {
        char text[32];
        snprintf(text, sizeof text, "%s", block->string);
        if (sscanf(text, "%" SCNd64 "x%" SCNd64 "%n", &sizes[0], &sizes[1], &end) < 2 || text[end]) sizes[0] = 0;
    }
    if (sizes[0] < 1 || sizes[1] < 1 || sizes[0] > INT32_MAX || sizes[1] > INT32_MAX)
        return json_wrong_value(what, key, block, "[rows, columns] of a block, 1 to 2147483647");
    config->float8.rows = sizes[0];
    config->float8.columns = sizes[1];
    return MN_OK;
}

/* Activations are rounded for every matrix of fp8 and fbgemm_fp8. */
static mn_status read_fp8(model_config *config, const json *quantization, const char *what) {
    config->float8.is_wider = true;
    if (!json_get(quantization, "weight_block_size")) config->float8.rows = config->float8.columns = 128;
    return read_block(config, quantization, "weight_block_size", what);
}

static mn_status read_fbgemm(model_config *config, const json *quantization, const char *what) {
    (void)quantization;
    (void)what;
    config->float8.is_wider = true;
    return MN_OK;
}

static mn_status need_text(const json *object, const char *key, const char *const *allowed, const char *what) {
    const json *value = member(object, key);
    bytes list = {0};
    for (const char *const *word = allowed; *word; word++) {
        if (value && json_is_string(value, *word)) {
            bytes_clear(&list);
            return MN_OK;
        }
        bytes_printf(&list, "%s\"%s\"", word == allowed ? "" : ", ", *word);
    }
    const json none = {.kind = JSON_NULL};
    json_wrong_value(what, key, value ? value : &none, bytes_text(&list));
    bytes_clear(&list);
    return MN_E_UNSUPPORTED;
}

/* Weights of a group: 8-bit floats with scales of matrices, rows or blocks, without a zero point. */
static mn_status read_group(model_config *config, const json *group, const char *what) {
    static const char *const types[] = {"float", NULL}, *const strategies[] = {"tensor", "channel", "block", NULL};
    char inner[640];
    const json *weights = member(group, "weights");
    int64_t bits = 8;
    bool symmetric = true;
    snprintf(inner, sizeof inner, "%.600s: weights", what);
    MN_TRY(json_require(what, group, "weights"));
    if (weights->kind != JSON_OBJECT) return json_wrong_value(what, "weights", weights, "an object");
    MN_TRY(need_text(weights, "type", types, inner));
    MN_TRY(need_text(weights, "strategy", strategies, inner));
    MN_TRY(json_int(inner, weights, "num_bits", 8, 8, &bits));
    MN_TRY(json_bool(inner, weights, "symmetric", &symmetric));
    if (!symmetric) MN_FAIL(MN_E_UNSUPPORTED, "%s: symmetric is false, allowed: true", inner);
    if (member(group, "input_activations") || member(group, "output_activations")) config->float8.is_wider = true;
    return json_is_string(json_get(weights, "strategy"), "block")
               ? read_block(config, weights, "block_structure", inner)
               : MN_OK;
}

/* Whether an object asks for nothing: a sparsity of "dense", no transforms. */
static bool is_idle(const json *object) {
    return !object ||
           (object->kind == JSON_OBJECT &&
            (object->n == 0 || (json_get(object, "format") && json_is_string(json_get(object, "format"), "dense"))));
}

static mn_status read_compressed(model_config *config, const json *quantization, const char *what) {
    static const char *const formats[] = {"float-quantized", "naive-quantized", NULL};
    static const char *const more[] = {"sparsity_config", "transform_config"};
    const json *groups = member(quantization, "config_groups");
    MN_TRY(need_text(quantization, "format", formats, what));
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        if (is_idle(member(quantization, more[i]))) continue;
        MN_FAIL(MN_E_UNSUPPORTED, "%s: %s is not empty, allowed: null", what, more[i]);
    }
    if (member(quantization, "kv_cache_scheme")) config->float8.is_wider = true;
    if (groups && groups->kind != JSON_OBJECT) return json_wrong_value(what, "config_groups", groups, "an object");
    for (size_t i = 0; groups && i < groups->n; i++) {
        char inner[600];
        snprintf(inner, sizeof inner, "%.480s: %s", what,
                 config_show(groups->members[i].key, groups->members[i].key_n).text);
        if (groups->members[i].value.kind != JSON_OBJECT)
            return json_wrong_value(inner, "the group", &groups->members[i].value, "an object");
        MN_TRY(read_group(config, &groups->members[i].value, inner));
    }
    return MN_OK;
}

static const struct {
    const char *name;
    mn_status (*read)(model_config *config, const json *quantization, const char *what);
} methods[] = {{"fp8", read_fp8}, {"fbgemm_fp8", read_fbgemm}, {"compressed-tensors", read_compressed}};

/* Other methods are refused by name. */
static mn_status read_quantization(model_config *config, const json *root, const char *what) {
    const json *quantization = member(root, "quantization_config");
    char inner[512];
    if (!quantization) return MN_OK;
    snprintf(inner, sizeof inner, "%.480s: quantization_config", what);
    if (quantization->kind != JSON_OBJECT)
        return json_wrong_value(what, "quantization_config", quantization, "an object");
    const json *method = member(quantization, "quant_method");
    config->float8.is_on = true;
    for (size_t i = 0; method && i < sizeof methods / sizeof *methods; i++) {
        if (json_is_string(method, methods[i].name)) return methods[i].read(config, quantization, inner);
    }
    const bool named = method && method->kind == JSON_STRING;
    MN_FAIL(
        MN_E_UNSUPPORTED,
        "%s has quant_method \"%s\", allowed: fp8, fbgemm_fp8, compressed-tensors (other quantised weights come as GGUF)",
        inner, named ? config_show(method->string, method->n).text : "?");
}

static mn_status read_all(model_config *config, const json *root, const char *what) {
    MN_TRY(read_quantization(config, root, what));
    MN_TRY(config_check_keys(config, root, what));
    MN_TRY(read_basics(config, root, what));
    MN_TRY(read_tokens(config, root, what));
    MN_TRY(read_rotation(config, root, what));
    MN_TRY(read_unrotated(config, root, what));
    return read_layers(config, root, what);
}

/* The encoder of an encoder-decoder's configuration, from the same file. */
static mn_status read_encoder(model_config *config, const json *root, const char *what) {
    config->encoder = mem_alloc(1, sizeof *config->encoder);
    if (!config->encoder) return mem_no_memory();
    config_start(config->encoder, MODEL_WHISPER_ENCODER);
    return read_all(config->encoder, root, what);
}

/* Models for pictures as well: the type of their text half where its configuration does not name it. */
static const struct {
    const char *name, *text;
    bool apart; /* always in a text_config; else its fields may be beside it */
} halves[] = {
    {"gemma3", "gemma3_text", true},   {"mistral3", "mistral", true},  {"qwen2_vl", "qwen2", false},
    {"qwen2_vl_text", "qwen2", false}, {"qwen2_5_vl", "qwen2", false}, {"qwen2_5_vl_text", "qwen2", false},
};

static mn_status find_type(model_config *out, const json *root, bool is_half, const char *what) {
    const char *name = NULL;
    model_type type = N_MODEL_TYPES;
    MN_TRY(json_require(what, root, "model_type"));
    MN_TRY(json_string(what, root, "model_type", &name));
    size_t n = json_get(root, "model_type")->n;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        if (strcmp(halves[i].name, name) != 0) continue;
        if (halves[i].apart && !is_half) return json_require(what, root, "text_config");
        name = halves[i].text;
        n = strlen(name);
        is_half = true;
        break;
    }
    MN_TRY(config_find_type(what, "model_type", name, n, false, &type));
    config_start(out, type);
    out->is_text_half = is_half;
    return MN_OK;
}

static mn_status read_root(model_config *out, const json *root, bool is_half, const char *what) {
    MN_TRY(find_type(out, root, is_half, what));
    mn_status status = read_all(out, root, what);
    if (status == MN_OK && out->cross_attention) status = read_encoder(out, root, what);
    if (status != MN_OK) model_config_clear(out);
    return status;
}

/* The text half of a configuration: what it leaves out is beside it. */
static mn_status read_half(model_config *out, const json *root, const json *half, const char *what) {
    static const char *const beside[] = {"model_type",   "tie_word_embeddings", "bos_token_id",
                                         "eos_token_id", "pad_token_id",        "dtype",
                                         "torch_dtype",  "quantization_config"};
    enum { N_BESIDE = sizeof beside / sizeof *beside };
    json_member *members = mem_alloc(half->n + N_BESIDE, sizeof *members);
    if (!members) return mem_no_memory();
    json both = {.kind = JSON_OBJECT, .n = half->n, .members = members};
    if (half->n) memcpy(members, half->members, half->n * sizeof *members);
    for (size_t i = 0; i < N_BESIDE; i++) {
        const json *value = member(root, beside[i]);
        if (value && !member(half, beside[i])) members[both.n++] = (json_member){beside[i], strlen(beside[i]), *value};
    }
    char inner[512];
    snprintf(inner, sizeof inner, "%.480s: text_config", what);
    mn_status status = read_root(out, &both, true, inner);
    mem_free(members);
    return status;
}

mn_status config_from_json(model_config *out, const json *root, const char *what) {
    memset(out, 0, sizeof *out);
    if (!root || root->kind != JSON_OBJECT) MN_FAIL(MN_E_FORMAT, "%s is no JSON object", what);
    const json *half = member(root, "text_config");
    if (half && half->kind != JSON_OBJECT) return json_wrong_value(what, "text_config", half, "an object");
    return half ? read_half(out, root, half, what) : read_root(out, root, false, what);
}
