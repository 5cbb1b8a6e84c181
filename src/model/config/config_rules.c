/* SPDX-License-Identifier: Apache-2.0 */
#include "model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/distance.h"
#include "base/num.h"
#include "base/utf8.h"
#include "model/config/config_rules.h"

const config_word rope_type_words[] = {
    {"default", ROPE_DEFAULT},
    {"linear", ROPE_LINEAR},
    {"dynamic", ROPE_DYNAMIC},
    {"llama3", ROPE_LLAMA3},
    {"yarn", ROPE_YARN},
    {"longrope", ROPE_LONGROPE},
    {"su", ROPE_LONGROPE}, /* the name under which Phi-3 was first published */
    {NULL, 0},
};

const char *model_type_name(model_type type) {
    return model_types[type].name;
}

const char *rope_type_name(rope_type type) {
    const config_word *word = rope_type_words;
    while (word->value != (int)type) word++;
    return word->name;
}

const char *layer_type_name(layer_type type) {
    static const char *const names[N_LAYER_TYPES] = {"full_attention", "sliding_attention", "mamba"};
    return names[type];
}

const char *position_kind_name(position_kind kind) {
    static const char *const names[] = {
        [POSITIONS_ROTARY] = "rotary", [POSITIONS_LEARNED] = "learned", [POSITIONS_NONE] = "none"};
    return names[kind];
}

void model_config_clear(model_config *config) {
    mem_free(config->layer_types);
    mem_free(config->eos_token_id);
    mem_free(config->unrotated);
    mem_free(config->unknown_keys);
    mem_free(config->rope_scaling.short_factor);
    mem_free(config->rope_scaling.long_factor);
    mem_free(config->rope_scaling.divisors);
    if (config->encoder) model_config_clear(config->encoder);
    mem_free(config->encoder);
    memset(config, 0, sizeof *config);
}

/* ---- words ---- */

shown_text config_show(const char *text, size_t n) {
    shown_text shown = {{0}};
    size_t used = 0;
    for (size_t i = 0; i < n && used < 60;) {
        size_t length = utf8_sequence(text + i, n - i);
        if (length == 0 || (unsigned char)text[i] < ' ' || text[i] == 0x7F) {
            shown.text[used++] = '?';
            i++;
            continue;
        }
        memcpy(shown.text + used, text + i, length);
        used += length;
        i += length;
    }
    return shown;
}

static bool same_text(const char *name, const char *text, size_t n) {
    return strlen(name) == n && memcmp(name, text, n) == 0;
}

static void append_word(char *list, size_t size, const char *word) {
    size_t n = strlen(list);
    snprintf(list + n, size - n, "%s%s", n ? ", " : "", word);
}

mn_status config_pick(const char *what, const char *key, const config_word *words, const char *text, size_t n,
                      int *out) {
    char known[256] = "";
    for (const config_word *word = words; word->name; word++) {
        if (same_text(word->name, text, n)) {
            *out = word->value;
            return MN_OK;
        }
        append_word(known, sizeof known, word->name);
    }
    MN_FAIL(MN_E_UNSUPPORTED, "%s: %s is \"%s\", known: %s", what, key, config_show(text, n).text, known);
}

mn_status config_find_type(const char *what, const char *key, const char *text, size_t n, bool gguf_name,
                           model_type *out) {
    enum { NEAREST = 3 };
    const char *nearest[NEAREST + 1] = {NULL};
    size_t distances[NEAREST + 1];
    int n_nearest = 0;
    for (int type = 0; type < N_MODEL_TYPES; type++) {
        const char *name = gguf_name ? model_types[type].gguf_name : model_types[type].name;
        if (!name) continue;
        if (same_text(name, text, n)) {
            *out = (model_type)type;
            return MN_OK;
        }
        size_t distance = text_distance(name, strlen(name), text, n);
        int at = n_nearest;
        for (; at > 0 && distances[at - 1] > distance; at--) {
            distances[at] = distances[at - 1];
            nearest[at] = nearest[at - 1];
        }
        distances[at] = distance;
        nearest[at] = name;
        if (n_nearest < NEAREST) n_nearest++;
    }
    char known[128] = "";
    for (int i = 0; i < n_nearest; i++) append_word(known, sizeof known, nearest[i]);
    MN_FAIL(MN_E_UNSUPPORTED, "%s: %s is \"%s\", the nearest known ones: %s", what, key, config_show(text, n).text,
            known);
}

/* ---- defaults and checks across fields ---- */

void config_start(model_config *config, model_type type) {
    const model_type_info *info = &model_types[type];
    bool every = info->all_biases, experts = info->fields & FIELDS_EXPERTS;
    *config = (model_config){
        .model_type = type,
        .head_dim = info->head_dim,
        .max_position_embeddings = info->max_position_embeddings,
        .norm_eps = info->norm_eps,
        .hidden_act = info->hidden_act,
        .qk_norm = info->qk_norm,
        .qk_norm_wide = info->qk_norm_wide,
        .head_bias = info->head_bias,
        .attention_bias = {info->qkv_bias || every, info->qkv_bias || (every && !info->no_key_bias),
                           info->qkv_bias || every, every},
        .mlp_bias = every,
        .tie_word_embeddings = info->ties,
        .layer_norm = info->layer_norm,
        .post_norms = info->post_norms,
        .parallel_residual = info->parallel_residual,
        .gated_mlp = !info->plain_mlp,
        .cross_attention = info->cross_attention,
        .num_local_experts = info->num_local_experts,
        .num_experts_per_tok = !experts                    ? 0
                               : info->num_experts_per_tok ? info->num_experts_per_tok
                                                           : 2,
        .expert_layer_period = 1,
        .norm_topk_prob = info->norm_topk_prob,
        .use_conv_bias = info->fields & FIELDS_MAMBA,
        .attention_multiplier = info->attention_multiplier,
        .attn_logit_softcapping = info->attn_logit_softcapping,
        .final_logit_softcapping = info->final_logit_softcapping,
        .residual_multiplier = 1,
        .embedding_multiplier = 1,
        .logits_scaling = 1,
        .positions = info->positions,
        .rotates_neighbours = info->permuted,
        .rope_theta = info->rope_theta > 0 ? info->rope_theta : 10000,
        .rope_local_base_freq = info->rope_local_base_freq,
        .bos_token_id = -1,
        .pad_token_id = -1,
    };
}

static mn_status check_heads(model_config *config, const char *what) {
    if (config->num_key_value_heads == 0) config->num_key_value_heads = config->num_attention_heads;
    if (config->num_attention_heads % config->num_key_value_heads != 0) {
        MN_FAIL(MN_E_FORMAT,
                "%s: num_attention_heads is %" PRId64 ", allowed: a multiple of num_key_value_heads, %" PRId64, what,
                config->num_attention_heads, config->num_key_value_heads);
    }
    if (config->head_dim == 0) {
        if (config->hidden_size % config->num_attention_heads != 0) {
            MN_FAIL(MN_E_FORMAT,
                    "%s: hidden_size is %" PRId64 ", allowed: a multiple of num_attention_heads, %" PRId64
                    ", where head_dim is not given",
                    what, config->hidden_size, config->num_attention_heads);
        }
        config->head_dim = config->hidden_size / config->num_attention_heads;
    }
    if (config->head_dim % 2 != 0 || config->head_dim > 1024) {
        MN_FAIL(MN_E_FORMAT, "%s: head_dim is %" PRId64 ", allowed: an even number from 2 to 1024", what,
                config->head_dim);
    }
    return MN_OK;
}

static mn_status check_rotary(model_config *config, const char *what, double partial) {
    if (config->positions != POSITIONS_ROTARY) {
        config->rotary_dim = 0;
        return MN_OK;
    }
    if (config->rotary_dim == 0) config->rotary_dim = (int64_t)((double)config->head_dim * partial);
    if (config->rotary_dim < 2 || config->rotary_dim > config->head_dim || config->rotary_dim % 2 != 0) {
        MN_FAIL(MN_E_FORMAT,
                "%s: the rotary dimension (head_dim x partial_rotary_factor) is %" PRId64
                ", allowed: an even number from 2 to head_dim, %" PRId64,
                what, config->rotary_dim, config->head_dim);
    }
    return MN_OK;
}

static mn_status check_experts(const model_config *config, const char *what) {
    if (config->num_experts_per_tok > config->num_local_experts) {
        MN_FAIL(MN_E_FORMAT, "%s: num_experts_per_tok is %" PRId64 ", allowed: at most the number of experts, %" PRId64,
                what, config->num_experts_per_tok, config->num_local_experts);
    }
    if (config->expert_layer_offset >= config->expert_layer_period) {
        MN_FAIL(MN_E_FORMAT, "%s: expert_layer_offset is %" PRId64 ", allowed: less than expert_layer_period, %" PRId64,
                what, config->expert_layer_offset, config->expert_layer_period);
    }
    return MN_OK;
}

mn_status config_check_sizes(model_config *config, const char *what, double partial) {
    if (config_has(config, FIELDS_ATTENTION)) {
        MN_TRY(check_heads(config, what));
        MN_TRY(check_rotary(config, what, partial));
        double scalar = model_types[config->model_type].query_pre_attn_scalar;
        if (scalar == 0) scalar = (double)config->head_dim;
        if (config->attention_multiplier == 0) config->attention_multiplier = 1 / sqrt(scalar);
    }
    if (config_has(config, FIELDS_EXPERTS)) MN_TRY(check_experts(config, what));
    if (config_has(config, FIELDS_MAMBA)) {
        if (config->conv_kernel == 0) config->conv_kernel = 4;
        if (config->state_size == 0) config->state_size = 16;
        if (config->mamba_size == 0) config->mamba_size = 2 * config->hidden_size;
        if (config->time_step_rank == 0) config->time_step_rank = ceil_div(config->hidden_size, 16);
    }
    return MN_OK;
}

mn_status config_set_unrotated(model_config *config, int64_t interval) {
    if (interval == 0) return MN_OK;
    config->unrotated = mem_alloc((size_t)config->num_hidden_layers, sizeof *config->unrotated);
    if (!config->unrotated) return mem_no_memory();
    for (int64_t i = 0; i < config->num_hidden_layers; i++) config->unrotated[i] = (i + 1) % interval == 0;
    return MN_OK;
}

bool config_slides(window_rule rule, int64_t i, int64_t first, int64_t pattern) {
    switch (rule) {
    case WINDOW_NEVER: return false;
    case WINDOW_EVERY_LAYER: return true;
    case WINDOW_UPPER_LAYERS: return i >= first;
    case WINDOW_EVEN_LAYERS: return i % 2 == 0;
    case WINDOW_PATTERN: return (i + 1) % pattern != 0;
    }
    return false;
}

mn_status config_check_rope(model_config *config, const char *what) {
    const rope_scaling *scaling = &config->rope_scaling;
    if (scaling->rope_type == ROPE_DYNAMIC && config->rotary_dim == 2) {
        MN_FAIL(MN_E_FORMAT, "%s: the rotary dimension is 2, allowed with rope_type \"dynamic\": 4 or more", what);
    }
    if (scaling->rope_type == ROPE_LLAMA3 && !(scaling->low_freq_factor < scaling->high_freq_factor)) {
        MN_FAIL(MN_E_FORMAT, "%s: rope_scaling: low_freq_factor is %g, allowed: less than high_freq_factor, %g", what,
                scaling->low_freq_factor, scaling->high_freq_factor);
    }
    if (scaling->rope_type == ROPE_YARN && !(scaling->beta_slow <= scaling->beta_fast)) {
        MN_FAIL(MN_E_FORMAT, "%s: rope_scaling: beta_slow is %g, allowed: at most beta_fast, %g", what,
                scaling->beta_slow, scaling->beta_fast);
    }
    return MN_OK;
}

void config_set_layers(model_config *config, layer_type *layer_types) {
    config->layer_types = layer_types;
    bool reachable = config->sliding_window > 0 && config->sliding_window < config->max_position_embeddings;
    bool any = false;
    for (int64_t i = 0; i < config->num_hidden_layers; i++) {
        if (!reachable && layer_types[i] == LAYER_SLIDING_ATTENTION) layer_types[i] = LAYER_FULL_ATTENTION;
        any = any || layer_types[i] == LAYER_SLIDING_ATTENTION;
    }
    if (!any) config->sliding_window = 0;
}
