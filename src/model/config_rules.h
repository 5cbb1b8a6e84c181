/* What both loaders of a configuration share: the table of model types, the fields with one name in each
 * format, and the checks across fields. Only config*.c include it.
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
    CONFIG_MAX_POSITIONS = INT32_MAX,
};

/* Which layers slide when layer_types does not say so. */
typedef enum window_rule {
    WINDOW_NEVER,
    WINDOW_EVERY_LAYER,  /* all, when sliding_window is set */
    WINDOW_UPPER_LAYERS, /* from max_window_layers on, when use_sliding_window is set */
} window_rule;

typedef struct model_type_info {
    const char *name;          /* model_type of config.json */
    const char *gguf_name;     /* general.architecture; NULL when its files carry another type's name */
    bool gguf_permuted;        /* GGUF: rows of q and k are stored for interleaved rotation */
    bool qkv_bias;             /* q, k and v always have a bias */
    bool reads_attention_bias; /* attention_bias gives all four a bias */
    bool reads_mlp_bias;
    bool qk_norm;
    window_rule window;
    int64_t sliding_window;                   /* default */
    int64_t max_position_embeddings;          /* default */
    int64_t head_dim;                         /* default; 0 = hidden_size / num_attention_heads */
    int64_t original_max_position_embeddings; /* default for longrope; 0 = none */
    double rms_norm_eps;                      /* default */
} model_type_info;

extern const model_type_info model_types[N_MODEL_TYPES];

/* A whole-number or real field with the same meaning in both formats. */
typedef struct config_size {
    const char *json_key, *gguf_key; /* the GGUF key follows the architecture's name and a dot */
    size_t offset;                   /* of an int64_t in model_config */
    int64_t lo, hi;
    bool required;
} config_size;

typedef struct config_real {
    const char *json_key, *gguf_key;
    size_t offset; /* of a double in model_config */
    double lo, hi;
} config_real;

enum { N_CONFIG_SIZES = 8, N_CONFIG_REALS = 2 };
extern const config_size config_sizes[N_CONFIG_SIZES];
extern const config_real config_reals[N_CONFIG_REALS];

/* A word of a file and the value of an enum that it stands for; tables end with a NULL name. */
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

/* After the sizes, before rope_scaling: fills in head counts, head_dim, rotary_dim and checks what one field
 * alone cannot tell. `partial` is partial_rotary_factor; a rotary_dim that is set already is kept. */
mn_status config_check_sizes(model_config *config, const char *what, double partial);

/* After rope_scaling was read: its checks across fields. */
mn_status config_check_rope(model_config *config, const char *what);

/* Last: takes layer_types ([num_hidden_layers], owned by the configuration from now on). A window that no
 * text within max_position_embeddings can outgrow counts as none. */
void config_set_layers(model_config *config, layer_type *layer_types);

#endif
