/* Shared by both loaders of a configuration: the table of model types, the fields with one name in each format, and
 * the checks across fields. Only config*.c include it.
 *
 * The defaults are those that Transformers' configuration classes have for a key that config.json leaves out.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_CONFIG_RULES_H
#define MN_MODEL_CONFIG_RULES_H

#include "model/config.h"

enum {
    CONFIG_MAX_LAYERS = 4096,
    CONFIG_MAX_VOCAB = 1 << 24,
    CONFIG_MAX_EOS = 64,
    CONFIG_MAX_EXPERTS = 1024,
    CONFIG_MAX_POSITIONS = CONFIG_UNBOUNDED,
};

/* Which layers have a sliding window when layer_types is not given. */
typedef enum window_rule {
    WINDOW_NEVER,
    WINDOW_EVERY_LAYER,  /* all, when sliding_window is set */
    WINDOW_UPPER_LAYERS, /* from max_window_layers on, when use_sliding_window is set */
    WINDOW_EVEN_LAYERS,  /* layers 0, 2, ... */
    WINDOW_PATTERN,      /* all but every sliding_window_pattern-th, 6 when it is not given */
} window_rule;

/* Groups of fields that only some types have. */
typedef enum config_fields {
    FIELDS_ATTENTION = 1,
    FIELDS_MLP = 2,
    FIELDS_EXPERTS = 4,
    FIELDS_MAMBA = 8,
    FIELDS_MULTIPLIERS = 16,
    FIELDS_CAPS = 32,
    FIELDS_LOCAL_ROPE = 64,
    FIELDS_SOUND = 128,
    FIELDS_SHARED_EXPERT = 256,
} config_fields;

/* A field with another name in a type's config.json. */
typedef struct config_key {
    const char *field, *key;
} config_key;

typedef struct model_type_info {
    const char *name;          /* model_type of config.json */
    const char *gguf_name;     /* general.architecture; NULL when its files carry another type's name */
    unsigned fields;           /* a set of config_fields */
    const config_key *keys;    /* ends with field NULL; NULL: none */
    bool gguf_permuted;        /* GGUF: rows of q and k are stored for interleaved rotation */
    bool permuted;             /* Hugging Face's files: likewise */
    bool qkv_bias;             /* q, k and v have a bias, always or by default */
    bool all_biases;           /* every matrix of attention and MLP has one */
    bool reads_attention_bias; /* attention_bias switches the bias of all four */
    bool reads_mlp_bias;
    bool no_key_bias;    /* except the keys' matrix */
    bool reads_qkv_bias; /* use_qkv_bias switches that of q, k and v */
    bool qk_norm, qk_norm_wide, head_bias, layer_norm, post_norms, parallel_residual, plain_mlp, cross_attention;
    bool norm_adds_one;    /* config.json; GGUF files hold 1 + weight */
    bool ties;             /* tie_word_embeddings when it is not given */
    bool scales_embedding; /* by the root of hidden_size */
    bool norm_topk_prob;
    activation hidden_act; /* default */
    position_kind positions;
    window_rule window;
    int64_t sliding_window;                   /* default */
    int64_t max_position_embeddings;          /* default */
    int64_t head_dim;                         /* default; 0 = hidden_size / num_attention_heads */
    int64_t original_max_position_embeddings; /* default for longrope; 0 = none */
    int64_t num_local_experts;                /* default */
    int64_t num_experts_per_tok;              /* default; 0 = 2 */
    int64_t unrotated_interval;               /* default: every n-th layer has no rotary embedding; 0: all have */
    int64_t unusual_scale_layers; /* GGUF: models with this number of layers scale scores by the root of hidden_size /
                                     heads */
    double norm_eps;              /* default */
    double attention_multiplier;  /* default; 0: from query_pre_attn_scalar or head_dim */
    double query_pre_attn_scalar; /* default; 0: head_dim */
    double attn_logit_softcapping, final_logit_softcapping, partial_rotary_factor, rope_theta,
        rope_local_base_freq; /* defaults; 0: none, none, 1, 10000, none */
} model_type_info;

extern const model_type_info model_types[N_MODEL_TYPES];

/* A whole-number or real field with the same meaning in both formats. */
typedef struct config_size {
    unsigned fields;                 /* types without these do not have it; 0: all do */
    const char *json_key, *gguf_key; /* the GGUF key follows the architecture's name and a dot */
    size_t offset;                   /* of an int64_t in model_config */
    int64_t lo, hi;
    bool required;
} config_size;

typedef struct config_real {
    unsigned fields;
    const char *json_key, *gguf_key;
    size_t offset; /* of a double in model_config */
    double lo, hi;
} config_real;

enum { N_CONFIG_SIZES = 15, N_CONFIG_REALS = 8 };
extern const config_size config_sizes[N_CONFIG_SIZES];
extern const config_real config_reals[N_CONFIG_REALS];

static inline bool config_has(const model_config *config, unsigned fields) {
    return (model_types[config->model_type].fields & fields) == fields;
}

/* A name in a file and its enum value; tables end with a NULL name. */
typedef struct config_word {
    const char *name;
    int value;
} config_word;

extern const config_word rope_type_words[];

/* MN_E_UNSUPPORTED, listing the table, when `text` is not in it. */
mn_status config_pick(const char *what, const char *key, const config_word *words, const char *text, size_t n,
                      int *out);

/* `text` for a message: at most 60 bytes, no control characters, whole UTF-8 sequences. */
typedef struct shown_text {
    char text[72];
} shown_text;
shown_text config_show(const char *text, size_t n);

/* The row of a model type by either of its names, else MN_E_UNSUPPORTED naming the nearest known ones. */
mn_status config_find_type(const char *what, const char *key, const char *text, size_t n, bool gguf_name,
                           model_type *out);

/* Zeroes *config and sets the defaults of its type. */
void config_start(model_config *config, model_type type);

/* After the sizes, before rope_scaling: fills in head counts, head_dim, rotary_dim, attention_multiplier, the sizes of
 * states and checks conditions across fields. `partial` is partial_rotary_factor; values already set are kept. */
mn_status config_check_sizes(model_config *config, const char *what, double partial);

/* Every interval-th layer has no rotary embedding; 0: all have. MN_E_NOMEM. */
mn_status config_set_unrotated(model_config *config, int64_t interval);

/* Whether layer i has the sliding window, if one is set; `first`: max_window_layers, `pattern`: sliding_window_pattern.
 */
bool config_slides(window_rule rule, int64_t i, int64_t first, int64_t pattern);

/* After rope_scaling was read: its checks across fields. */
mn_status config_check_rope(model_config *config, const char *what);

/* Refuses keys of config.json that would change results and that the type does not have here; notes those that nobody
 * knows. */
mn_status config_check_keys(model_config *config, const json *root, const char *what);

/* Last: takes layer_types ([num_hidden_layers], owned by the configuration from now on). A window of at least
 * max_position_embeddings counts as none. */
void config_set_layers(model_config *config, layer_type *layer_types);

#endif
