/* SPDX-License-Identifier: Apache-2.0 */
#include "model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/distance.h"
#include "base/num.h"
#include "base/utf8.h"
#include "model/config_rules.h"

const model_type_info model_types[N_MODEL_TYPES] = {
    [MODEL_LLAMA] = {.name = "llama",
                     .gguf_name = "llama",
                     .gguf_permuted = true,
                     .reads_attention_bias = true,
                     .reads_mlp_bias = true,
                     .max_position_embeddings = 2048,
                     .rms_norm_eps = 1e-6},
    [MODEL_MISTRAL] = {.name = "mistral",
                       .window = WINDOW_EVERY_LAYER,
                       .sliding_window = 4096,
                       .max_position_embeddings = 131072,
                       .rms_norm_eps = 1e-6},
    [MODEL_QWEN2] = {.name = "qwen2",
                     .gguf_name = "qwen2",
                     .qkv_bias = true,
                     .window = WINDOW_UPPER_LAYERS,
                     .sliding_window = 4096,
                     .max_position_embeddings = 32768,
                     .rms_norm_eps = 1e-6},
    [MODEL_QWEN3] = {.name = "qwen3",
                     .gguf_name = "qwen3",
                     .reads_attention_bias = true,
                     .qk_norm = true,
                     .window = WINDOW_UPPER_LAYERS,
                     .sliding_window = 4096,
                     .max_position_embeddings = 32768,
                     .head_dim = 128,
                     .rms_norm_eps = 1e-6},
    [MODEL_PHI3] = {.name = "phi3",
                    .gguf_name = "phi3",
                    .window = WINDOW_EVERY_LAYER,
                    .max_position_embeddings = 4096,
                    .original_max_position_embeddings = 4096,
                    .rms_norm_eps = 1e-5},
};

#define SIZE(field, gguf_key, lo, hi, required)                                                              \
    { #field, gguf_key, offsetof(model_config, field), lo, hi, required }
const config_size config_sizes[N_CONFIG_SIZES] = {
    SIZE(hidden_size, "embedding_length", 1, 1 << 20, true),
    SIZE(intermediate_size, "feed_forward_length", 1, 1 << 22, true),
    SIZE(num_hidden_layers, "block_count", 1, CONFIG_MAX_LAYERS, true),
    SIZE(num_attention_heads, "attention.head_count", 1, 4096, true),
    SIZE(num_key_value_heads, "attention.head_count_kv", 1, 4096, false),
    SIZE(head_dim, "attention.key_length", 2, 1024, false),
    SIZE(vocab_size, "vocab_size", 1, CONFIG_MAX_VOCAB, true),
    SIZE(max_position_embeddings, "context_length", 1, CONFIG_MAX_POSITIONS, false),
};
#undef SIZE

const config_real config_reals[N_CONFIG_REALS] = {
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon", offsetof(model_config, rms_norm_eps), 1e-30, 1},
    {"rope_theta", "rope.freq_base", offsetof(model_config, rope_theta), 2, 1e15},
};

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

void model_config_clear(model_config *config) {
    mem_free(config->layer_types);
    mem_free(config->eos_token_id);
    mem_free(config->rope_scaling.short_factor);
    mem_free(config->rope_scaling.long_factor);
    mem_free(config->rope_scaling.divisors);
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
    MN_FAIL(MN_E_UNSUPPORTED, "%s: %s is \"%s\", the nearest known ones: %s", what, key,
            config_show(text, n).text, known);
}

/* ---- defaults and checks across fields ---- */

void config_start(model_config *config, model_type type) {
    const model_type_info *info = &model_types[type];
    *config = (model_config){
        .model_type = type,
        .head_dim = info->head_dim,
        .max_position_embeddings = info->max_position_embeddings,
        .rms_norm_eps = info->rms_norm_eps,
        .qk_norm = info->qk_norm,
        .attention_bias = {.q = info->qkv_bias, .k = info->qkv_bias, .v = info->qkv_bias},
        .residual_multiplier = 1,
        .embedding_multiplier = 1,
        .logits_scaling = 1,
        .rope_theta = 10000,
        .bos_token_id = -1,
        .pad_token_id = -1,
    };
}

mn_status config_check_sizes(model_config *config, const char *what, double partial) {
    if (config->num_key_value_heads == 0) config->num_key_value_heads = config->num_attention_heads;
    if (config->num_attention_heads % config->num_key_value_heads != 0) {
        MN_FAIL(MN_E_FORMAT,
                "%s: num_attention_heads is %" PRId64
                ", allowed: a multiple of num_key_value_heads, %" PRId64,
                what, config->num_attention_heads, config->num_key_value_heads);
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
    if (config->rotary_dim == 0) config->rotary_dim = (int64_t)((double)config->head_dim * partial);
    if (config->rotary_dim < 2 || config->rotary_dim > config->head_dim || config->rotary_dim % 2 != 0) {
        MN_FAIL(MN_E_FORMAT,
                "%s: the rotary dimension (head_dim x partial_rotary_factor) is %" PRId64
                ", allowed: an even number from 2 to head_dim, %" PRId64,
                what, config->rotary_dim, config->head_dim);
    }
    config->attention_multiplier = 1 / sqrt((double)config->head_dim);
    return MN_OK;
}

mn_status config_check_rope(model_config *config, const char *what) {
    const rope_scaling *scaling = &config->rope_scaling;
    if (scaling->rope_type == ROPE_DYNAMIC && config->rotary_dim == 2) {
        MN_FAIL(MN_E_FORMAT, "%s: the rotary dimension is 2, allowed with rope_type \"dynamic\": 4 or more",
                what);
    }
    if (scaling->rope_type == ROPE_LLAMA3 && !(scaling->low_freq_factor < scaling->high_freq_factor)) {
        MN_FAIL(MN_E_FORMAT,
                "%s: rope_scaling: low_freq_factor is %g, allowed: less than high_freq_factor, %g", what,
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
        if (!reachable) layer_types[i] = LAYER_FULL_ATTENTION;
        any = any || layer_types[i] == LAYER_SLIDING_ATTENTION;
    }
    if (!any) config->sliding_window = 0;
}
