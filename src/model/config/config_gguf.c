/* A configuration from the metadata of a GGUF file, and from its tensors what only they show: biases, an untied head,
 * divisors of the rotary frequencies.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "model/config/config_rules.h"

typedef struct source {
    const gguf *file;
    const char *what; /* the path */
    shown_text architecture;
    bool is_hybrid; /* layers are of several kinds: those without a size have 0 */
} source;

typedef struct key_text {
    char text[160];
} key_text;

static key_text key_of(const source *from, const char *name) {
    key_text key;
    snprintf(key.text, sizeof key.text, "%s.%s", from->architecture.text, name);
    return key;
}

static bool has_tensor(const source *from, const char *name) {
    return tensor_set_find(gguf_tensors(from->file), name) != NULL;
}

static bool has_layer_tensor(const source *from, int64_t layer, const char *name) {
    char full[96];
    snprintf(full, sizeof full, "blk.%" PRId64 ".%s", layer, name);
    return has_tensor(from, full);
}

/* Layers of other kinds do not have it. */
static bool some_layer_has(const model_config *config, const source *from, const char *name) {
    bool has = false;
    for (int64_t i = 0; i < config->num_hidden_layers && !has; i++) has = has_layer_tensor(from, i, name);
    return has;
}

/* A whole number, or a list with one for each layer in which all numbers above 0 are equal. */
static mn_status read_size(const source *from, const char *name, int64_t lo, int64_t hi, int64_t *out) {
    key_text key = key_of(from, name);
    const gguf_array *list = gguf_array_find(from->file, key.text);
    if (!list) return gguf_int(from->file, key.text, lo, hi, out);
    bool is_text = gguf_array_is_text(list);
    size_t n = gguf_array_n(list), i = 0;
    while (from->is_hybrid && i + 1 < n && gguf_array_number_at(list, i) == 0) i++;
    double first = i < n && !is_text ? gguf_array_number_at(list, i) : 0;
    if (!(first >= (double)lo && first <= (double)hi) || first != floor(first)) {
        MN_FAIL(MN_E_FORMAT, "%s: %s begins with %g, allowed: a whole number from %" PRId64 " to %" PRId64, from->what,
                key.text, first, lo, hi);
    }
    for (i++; i < n; i++) {
        double value = gguf_array_number_at(list, i);
        if (value != first && !(from->is_hybrid && value == 0)) {
            MN_FAIL(MN_E_UNSUPPORTED, "%s: %s differs between layers (%g and %g), allowed: one value for all",
                    from->what, key.text, first, value);
        }
    }
    *out = (int64_t)first;
    return MN_OK;
}

static mn_status read_real(const source *from, const char *name, double lo, double hi, double *out) {
    return gguf_real(from->file, key_of(from, name).text, lo, hi, out);
}

/* Gemma's largest models scale scores by hidden_size / num_attention_heads in place of head_dim. */
static void choose_scale(model_config *config) {
    const model_type_info *info = &model_types[config->model_type];
    if (info->query_pre_attn_scalar == 0) return;
    bool unusual = config->num_hidden_layers == info->unusual_scale_layers;
    config->attention_multiplier = 1 / sqrt(unusual ? (double)config->hidden_size / (double)config->num_attention_heads
                                                    : (double)config->head_dim);
}

static mn_status read_heads(model_config *config, const source *from) {
    MN_TRY(read_size(from, "rope.dimension_count", 2, 1024, &config->rotary_dim));
    MN_TRY(config_check_sizes(config, from->what, 1));
    choose_scale(config);
    int64_t value_length = config->head_dim;
    MN_TRY(read_size(from, "attention.value_length", 1, 1024, &value_length));
    if (value_length != config->head_dim) {
        MN_FAIL(MN_E_UNSUPPORTED, "%s: %s is %" PRId64 ", allowed: that of the keys, %" PRId64, from->what,
                key_of(from, "attention.value_length").text, value_length, config->head_dim);
    }
    if (config->permuted_rows && config->rotary_dim != config->head_dim) {
        MN_FAIL(MN_E_UNSUPPORTED, "%s: %s is %" PRId64 ", allowed: the size of a head, %" PRId64, from->what,
                key_of(from, "rope.dimension_count").text, config->rotary_dim, config->head_dim);
    }
    return MN_OK;
}

static mn_status read_sizes(model_config *config, const source *from) {
    config->head_dim = 0; /* the format's own defaults, not the type's */
    config->rope_theta = 10000;
    for (size_t i = 0; i < N_CONFIG_SIZES; i++) {
        const config_size *field = &config_sizes[i];
        if (!config_has(config, field->fields)) continue;
        int64_t *place = (int64_t *)((char *)config + field->offset);
        MN_TRY(read_size(from, field->gguf_key, field->lo, field->hi, place));
        if (place == &config->vocab_size && *place == 0) {
            const gguf_array *tokens = gguf_array_find(from->file, "tokenizer.ggml.tokens");
            size_t n = tokens ? gguf_array_n(tokens) : 0;
            *place = n <= CONFIG_MAX_VOCAB ? (int64_t)n : 0;
        }
        if (field->required && *place == 0) {
            MN_FAIL(MN_E_FORMAT, "%s: '%s' is missing", from->what, key_of(from, field->gguf_key).text);
        }
    }
    for (size_t i = 0; i < N_CONFIG_REALS; i++) {
        const config_real *field = &config_reals[i];
        if (!config_has(config, field->fields)) continue;
        MN_TRY(read_real(from, field->gguf_key, field->lo, field->hi, (double *)((char *)config + field->offset)));
    }
    MN_TRY(read_real(from, config->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
                     1e-30, 1, &config->norm_eps));
    if (config_has(config, FIELDS_EXPERTS))
        MN_TRY(read_size(from, "expert_feed_forward_length", 1, 1 << 22, &config->intermediate_size));
    if (config_has(config, FIELDS_MAMBA))
        MN_TRY(read_size(from, "ssm.time_step_rank", 1, 1 << 20, &config->time_step_rank));
    return config_has(config, FIELDS_ATTENTION) ? read_heads(config, from) : config_check_sizes(config, from->what, 0);
}

static mn_status read_switches(model_config *config, const source *from) {
    const model_type_info *info = &model_types[config->model_type];
    bool fused = some_layer_has(config, from, "attn_qkv.bias");
    config->attention_bias.q = info->qkv_bias || fused || some_layer_has(config, from, "attn_q.bias");
    config->attention_bias.k = info->qkv_bias || fused || some_layer_has(config, from, "attn_k.bias");
    config->attention_bias.v = info->qkv_bias || fused || some_layer_has(config, from, "attn_v.bias");
    config->attention_bias.o = some_layer_has(config, from, "attn_output.bias");
    config->mlp_bias = some_layer_has(config, from, "ffn_down.bias");
    config->tie_word_embeddings = !has_tensor(from, "output.weight");
    config->torch_dtype = DTYPE_F32;
    config->use_conv_bias = some_layer_has(config, from, "ssm_conv1d.bias");
    config->use_bias = some_layer_has(config, from, "ssm_in.bias");
    config->experts_apart = some_layer_has(config, from, "ffn_gate.0.weight");
    if (info->scales_embedding) config->embedding_multiplier = (double)(float)sqrt((double)config->hidden_size);
    if (config->model_type == MODEL_GPT_NEOX)
        MN_TRY(gguf_bool(from->file, key_of(from, "use_parallel_residual").text, &config->parallel_residual));
    if (config->model_type == MODEL_QWEN3_MOE) config->norm_topk_prob = true;
    if (config->model_type == MODEL_COHERE) { /* a multiplier there, a divisor elsewhere */
        double scale = 1;
        MN_TRY(read_real(from, "logit_scale", 1e-9, 1e9, &scale));
        config->logits_scaling = 1 / scale;
    }
    return config_set_unrotated(config, info->unrotated_interval);
}

/* ---- token ids ---- */

static bool ends_a_text(gguf_text token) {
    static const char *const ends[] = {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (token.n == strlen(ends[i]) && memcmp(token.text, ends[i], token.n) == 0) return true;
    }
    return false;
}

static void add_eos(model_config *config, int64_t id) {
    if (id < 0 || config->n_eos_token_id == CONFIG_MAX_EOS) return;
    for (size_t i = 0; i < config->n_eos_token_id; i++) {
        if (config->eos_token_id[i] == id) return;
    }
    config->eos_token_id[config->n_eos_token_id++] = id;
}

/* A file names one end token, often not that of a chat turn: known control tokens that end turns are added. */
static mn_status read_tokens(model_config *config, const source *from) {
    enum { CONTROL = 3 };
    const int64_t hi = CONFIG_MAX_VOCAB - 1;
    int64_t eos = -1, eot = -1;
    MN_TRY(gguf_int(from->file, "tokenizer.ggml.bos_token_id", 0, hi, &config->bos_token_id));
    MN_TRY(gguf_int(from->file, "tokenizer.ggml.padding_token_id", 0, hi, &config->pad_token_id));
    MN_TRY(gguf_int(from->file, "tokenizer.ggml.eos_token_id", 0, hi, &eos));
    MN_TRY(gguf_int(from->file, "tokenizer.ggml.eot_token_id", 0, hi, &eot));
    config->eos_token_id = mem_alloc(CONFIG_MAX_EOS, sizeof *config->eos_token_id);
    if (!config->eos_token_id) return mem_no_memory();
    add_eos(config, eos);
    add_eos(config, eot);
    const gguf_array *tokens = gguf_array_find(from->file, "tokenizer.ggml.tokens");
    const gguf_array *kinds = gguf_array_find(from->file, "tokenizer.ggml.token_type");
    if (!tokens || !kinds || !gguf_array_is_text(tokens) || gguf_array_is_text(kinds)) return MN_OK;
    size_t n = gguf_array_n(tokens) < gguf_array_n(kinds) ? gguf_array_n(tokens) : gguf_array_n(kinds);
    for (size_t i = 0; i < n; i++) {
        if (gguf_array_number_at(kinds, i) == CONTROL && ends_a_text(gguf_array_text_at(tokens, i)))
            add_eos(config, (int64_t)i);
    }
    return MN_OK;
}

/* ---- rotation ---- */

/* A tensor of rotary_dim / 2 positive float32 into *out (owned), untouched when there is none. */
static mn_status read_divisors(const model_config *config, const source *from, const char *name, double **out) {
    const tensor *t = tensor_set_find(gguf_tensors(from->file), name);
    int64_t n = config->rotary_dim / 2;
    if (!t) return MN_OK;
    if (t->type != DTYPE_F32 || t->n_dims != 1 || t->shape[0] != n) {
        MN_FAIL(MN_E_FORMAT,
                "%s: %s is %s with %" PRId64 " values, allowed: F32 with %" PRId64 ", half the rotary dimension",
                from->what, name, dtype_table[t->type].name, t->n_dims > 0 ? t->shape[0] : 0, n);
    }
    *out = mem_alloc((size_t)n, sizeof **out);
    if (!*out) return mem_no_memory();
    for (int64_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, t->data + (size_t)i * sizeof value, sizeof value);
        if (!(value >= 1e-6f && value <= 1e9f)) {
            MN_FAIL(MN_E_FORMAT, "%s: value %" PRId64 " of %s is %g, allowed: a number from 1e-06 to 1e+09", from->what,
                    i, name, (double)value);
        }
        (*out)[i] = (double)value;
    }
    return MN_OK;
}

static mn_status read_rope_type(const source *from, rope_type *out) {
    static const config_word words[] = {
        {"none", ROPE_DEFAULT}, {"linear", ROPE_LINEAR}, {"yarn", ROPE_YARN}, {"longrope", ROPE_LONGROPE}, {NULL, 0}};
    key_text key = key_of(from, "rope.scaling.type");
    gguf_text name = {0};
    MN_TRY(gguf_string(from->file, key.text, &name));
    int type = ROPE_DEFAULT;
    if (name.text) MN_TRY(config_pick(from->what, key.text, words, name.text, name.n, &type));
    *out = (rope_type)type;
    return MN_OK;
}

static mn_status read_rotation(model_config *config, const source *from) {
    rope_scaling *out = &config->rope_scaling;
    if (config->positions != POSITIONS_ROTARY) return MN_OK;
    *out = (rope_scaling){.factor = 1,
                          .beta_fast = 32,
                          .beta_slow = 1,
                          .truncate = true,
                          .original_max_position_embeddings = max_i64(config->max_position_embeddings, 2)};
    MN_TRY(read_rope_type(from, &out->rope_type));
    MN_TRY(read_real(from, "rope.scaling.factor", 1e-6, 1e6, &out->factor));
    MN_TRY(read_real(from, "rope.scaling.attn_factor", 1e-6, 1e6, &out->attention_factor));
    MN_TRY(read_real(from, "rope.scaling.yarn_beta_fast", 1e-6, 1e9, &out->beta_fast));
    MN_TRY(read_real(from, "rope.scaling.yarn_beta_slow", 1e-6, 1e9, &out->beta_slow));
    MN_TRY(read_size(from, "rope.scaling.original_context_length", 2, CONFIG_MAX_POSITIONS,
                     &out->original_max_position_embeddings));
    /* In GGUF files the factor of yarn multiplies the rule's own. */
    if (out->rope_type == ROPE_YARN && out->attention_factor > 0) {
        out->attention_factor *= out->factor > 1 ? 0.1 * log(out->factor) + 1 : 1;
    }
    MN_TRY(read_divisors(config, from, "rope_freqs.weight", &out->divisors));
    MN_TRY(read_divisors(config, from, "rope_factors_short.weight", &out->short_factor));
    MN_TRY(read_divisors(config, from, "rope_factors_long.weight", &out->long_factor));
    if (out->short_factor || out->long_factor) out->rope_type = ROPE_LONGROPE;
    if (out->rope_type == ROPE_LONGROPE) {
        if (!out->short_factor || !out->long_factor) {
            MN_FAIL(MN_E_FORMAT, "%s: rope_factors_%s.weight is missing: expected [%" PRId64 "]", from->what,
                    out->short_factor ? "long" : "short", config->rotary_dim / 2);
        }
        out->factor = (double)config->max_position_embeddings / (double)out->original_max_position_embeddings;
    }
    return config_check_rope(config, from->what);
}

/* ---- layers ---- */

/* Which layers have a sliding window: by the file's period or list of switches, else by the type's rule. */
typedef struct window_layers {
    window_rule rule;
    int64_t pattern;
    const gguf_array *list; /* NULL: none */
} window_layers;

static mn_status read_window(model_config *config, const source *from, window_layers *out) {
    const model_type_info *info = &model_types[config->model_type];
    key_text key = key_of(from, "attention.sliding_window_pattern");
    *out = (window_layers){WINDOW_EVERY_LAYER, 0, NULL};
    bool alternates = info->window == WINDOW_EVEN_LAYERS, mixes = alternates || info->window == WINDOW_PATTERN;
    if (alternates) config->sliding_window = info->sliding_window; /* its first files did not have the key */
    MN_TRY(read_size(from, "attention.sliding_window", 0, CONFIG_MAX_POSITIONS, &config->sliding_window));
    if (!mixes) return MN_OK;
    *out = (window_layers){WINDOW_PATTERN, alternates ? 2 : 6, gguf_array_find(from->file, key.text)};
    if (!out->list) return gguf_int(from->file, key.text, 1, CONFIG_MAX_LAYERS, &out->pattern);
    if (gguf_array_n(out->list) != (size_t)config->num_hidden_layers || gguf_array_is_text(out->list)) {
        MN_FAIL(MN_E_FORMAT, "%s: %s has %zu items, allowed: %" PRId64 " switches, one for each layer", from->what,
                key.text, gguf_array_n(out->list), config->num_hidden_layers);
    }
    return MN_OK;
}

static bool slides(const window_layers *window, int64_t layer) {
    if (window->list) return gguf_array_number_at(window->list, (size_t)layer) != 0;
    return config_slides(window->rule, layer, 0, window->pattern);
}

static mn_status read_layers(model_config *config, const source *from) {
    window_layers window;
    MN_TRY(read_window(config, from, &window));
    int64_t n = config->num_hidden_layers;
    layer_type *types = mem_alloc((size_t)n, sizeof *types);
    if (!types) return mem_no_memory();
    for (int64_t i = 0; i < n; i++) {
        bool attends = config_has(config, FIELDS_ATTENTION);
        if (from->is_hybrid) attends = has_layer_tensor(from, i, "attn_q.weight");
        types[i] = !attends ? LAYER_MAMBA : slides(&window, i) ? LAYER_SLIDING_ATTENTION : LAYER_FULL_ATTENTION;
    }
    config_set_layers(config, types);
    return MN_OK;
}

/* Layers of several kinds: those with experts have routers, and must be periodic. */
static mn_status read_expert_layers(model_config *config, const source *from) {
    const char *router = "ffn_gate_inp.weight";
    int64_t first = -1, period = config->num_hidden_layers;
    if (!from->is_hybrid || !config_has(config, FIELDS_EXPERTS)) return MN_OK;
    for (int64_t i = 0; i < config->num_hidden_layers; i++) {
        if (!has_layer_tensor(from, i, router)) continue;
        if (first >= 0) {
            period = i - first;
            break;
        }
        first = i;
    }
    if (first < 0) {
        config->num_local_experts = config->num_experts_per_tok = 0;
        return MN_OK;
    }
    config->expert_layer_period = period;
    config->expert_layer_offset = first % period;
    for (int64_t i = 0; i < config->num_hidden_layers; i++) {
        if (has_layer_tensor(from, i, router) != config_has_experts(config, i)) {
            MN_FAIL(MN_E_UNSUPPORTED,
                    "%s: experts are in layers %" PRId64 " and %" PRId64 " but those of layer %" PRId64
                    " break the period, allowed: one period",
                    from->what, first, first + period, i);
        }
    }
    return MN_OK;
}

/* Variants of some types that are not supported. */
static mn_status refuse_others(const model_config *config, const source *from) {
    static const struct {
        model_type type;
        const char *key;
    } switches[] = {{MODEL_MAMBA, "ssm.dt_b_c_rms"}, {MODEL_STABLELM, "use_parallel_residual"}};
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        key_text key = key_of(from, switches[i].key);
        bool is_on = false;
        if (switches[i].type != config->model_type) continue;
        MN_TRY(gguf_bool(from->file, key.text, &is_on));
        if (is_on) MN_FAIL(MN_E_UNSUPPORTED, "%s: %s is true, allowed: false", from->what, key.text);
    }
    int64_t window = 0; /* of its successor, which has two kinds of rotary layers */
    if (config->model_type == MODEL_OLMO2)
        MN_TRY(read_size(from, "attention.sliding_window", 0, CONFIG_MAX_POSITIONS, &window));
    if (window == 0) return MN_OK;
    MN_FAIL(MN_E_UNSUPPORTED, "%s: %s is %" PRId64 ", allowed: none", from->what,
            key_of(from, "attention.sliding_window").text, window);
}

static mn_status read_all(model_config *config, const source *from) {
    MN_TRY(refuse_others(config, from));
    MN_TRY(read_sizes(config, from));
    MN_TRY(read_switches(config, from));
    MN_TRY(read_expert_layers(config, from));
    MN_TRY(read_tokens(config, from));
    MN_TRY(read_rotation(config, from));
    return read_layers(config, from);
}

mn_status config_from_gguf(model_config *out, const gguf *file) {
    memset(out, 0, sizeof *out);
    source from = {.file = file, .what = gguf_path(file)};
    gguf_text name = {0};
    model_type type = N_MODEL_TYPES;
    MN_TRY(gguf_string(file, "general.architecture", &name));
    if (!name.text) MN_FAIL(MN_E_FORMAT, "%s: 'general.architecture' is missing", from.what);
    MN_TRY(config_find_type(from.what, "general.architecture", name.text, name.n, true, &type));
    from.architecture = config_show(name.text, name.n);
    /* One architecture name has both kinds; experts distinguish them. */
    if (type == MODEL_LLAMA && has_tensor(&from, "blk.0.ffn_gate_inp.weight")) type = MODEL_MIXTRAL;
    config_start(out, type);
    from.is_hybrid = config_has(out, FIELDS_ATTENTION | FIELDS_MAMBA);
    out->permuted_rows = model_types[type].gguf_permuted;
    mn_status status = read_all(out, &from);
    if (status != MN_OK) model_config_clear(out);
    return status;
}
