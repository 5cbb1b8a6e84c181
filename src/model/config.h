/* The configuration of a model: every size and switch its architecture needs, from config.json or from GGUF metadata.
 *
 * Names are those of config.json. A loaded configuration has passed every check, so its users (rope.h, names.h, the
 * forward pass) do not check again.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_CONFIG_H
#define MN_MODEL_CONFIG_H

#include "base/json.h"
#include "tensor/gguf.h"

typedef enum model_type {
    MODEL_LLAMA,
    MODEL_MISTRAL,
    MODEL_MIXTRAL,
    MODEL_QWEN2,
    MODEL_QWEN3,
    MODEL_QWEN2_MOE,
    MODEL_QWEN3_MOE,
    MODEL_SMOLLM3,
    MODEL_OLMO2,
    MODEL_STABLELM,
    MODEL_COHERE,
    MODEL_PHI,
    MODEL_PHI3,
    MODEL_GRANITE,
    MODEL_GEMMA,
    MODEL_GEMMA2,
    MODEL_GEMMA3,
    MODEL_GPT2,
    MODEL_GPT_NEOX,
    MODEL_MAMBA,
    MODEL_JAMBA,
    MODEL_WHISPER,         /* its decoder */
    MODEL_WHISPER_ENCODER, /* not a model_type of files: the encoder of such a configuration */
    N_MODEL_TYPES
} model_type;

typedef enum activation { ACTIVATION_SILU, ACTIVATION_GELU, ACTIVATION_GELU_TANH, ACTIVATION_RELU } activation;

typedef enum layer_type { LAYER_FULL_ATTENTION, LAYER_SLIDING_ATTENTION, LAYER_MAMBA, N_LAYER_TYPES } layer_type;

typedef enum position_kind {
    POSITIONS_ROTARY,
    POSITIONS_LEARNED, /* a table with max_position_embeddings rows is added to the embeddings */
    POSITIONS_NONE
} position_kind;

typedef enum rope_type {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONGROPE,
    N_ROPE_TYPES
} rope_type;

typedef struct rope_scaling {
    rope_type rope_type;
    double factor; /* of the context; longrope: max_position_embeddings / original_max_position_embeddings
                      where known */
    int64_t original_max_position_embeddings; /* llama3, yarn, longrope; at least 2 */
    double low_freq_factor, high_freq_factor; /* llama3; low < high */
    double beta_fast, beta_slow;              /* yarn; slow <= fast */
    double mscale, mscale_all_dim;            /* yarn; 0 = not given */
    bool truncate;                            /* yarn: round the ends of the ramp to whole dimensions */
    double attention_factor;                  /* yarn, longrope: multiplies cos and sin; 0 = computed by the rule */
    double *short_factor, *long_factor;       /* longrope: [rotary_dim / 2], owned */
    double *divisors; /* [rotary_dim / 2], owned, or NULL: explicit divisors of the frequencies, applied after
                         the rule */
} rope_scaling;

/* max_position_embeddings of models without a context limit. */
enum { CONFIG_UNBOUNDED = INT32_MAX };

typedef struct model_config {
    model_type model_type;
    int64_t hidden_size, intermediate_size, num_hidden_layers; /* intermediate_size: 0 without an MLP (mamba) */
    int64_t num_attention_heads, num_key_value_heads; /* the first is a multiple of the second; 0: no attention */
    int64_t head_dim;                                 /* even; 0 without attention */
    int64_t vocab_size, max_position_embeddings;
    double norm_eps; /* from GGUF: the value of a float32 */
    activation hidden_act;
    struct {
        bool q, k, v, o;
    } attention_bias;
    bool mlp_bias, head_bias, tie_word_embeddings;
    bool qk_norm;           /* queries and keys are normed, head by head */
    bool qk_norm_wide;      /* or all heads of a token at once */
    bool layer_norm;        /* LayerNorm; else RMSNorm */
    bool norm_adds_one;     /* norms multiply by 1 + their weight */
    bool post_norms;        /* the output of a sub-layer is normed before it is added */
    bool parallel_residual; /* attention and MLP see the same input */
    bool gated_mlp;
    bool cross_attention; /* layers also attend to an encoder's output */
    int64_t num_mel_bins; /* of an encoder's input; 0: no audio encoder */

    int64_t sliding_window;  /* W: a query sees W keys including its own; above 0 exactly when some layer has a sliding
                                window */
    layer_type *layer_types; /* [num_hidden_layers], owned */

    int64_t num_local_experts, num_experts_per_tok;   /* 0 without experts */
    int64_t shared_expert_intermediate_size;          /* of a shared expert; 0: none */
    int64_t expert_layer_period, expert_layer_offset; /* layers i with i % period == offset have experts */
    bool norm_topk_prob;                              /* the chosen experts' weights sum to 1 */
    int64_t conv_kernel, state_size, time_step_rank;  /* of Mamba layers; 0 without */
    int64_t mamba_size;                               /* channels of their states */
    bool use_conv_bias, use_bias;                     /* of the convolution; of their projections in and out */

    double attention_multiplier; /* of the scores: 1 / sqrt(head_dim) unless the model has its own */
    double attn_logit_softcapping, final_logit_softcapping; /* 0: none */
    double residual_multiplier, embedding_multiplier;
    double logits_scaling; /* logits are divided by it */

    position_kind positions;
    double rope_theta;
    double rope_local_base_freq; /* of layers with a sliding window, without rope_scaling; 0: as the others */
    int64_t rotary_dim; /* the first rotary_dim values of a head are rotated; even, 2..head_dim; 0 without rotation */
    rope_scaling rope_scaling;
    bool rotates_neighbours; /* as published, values 2i and 2i + 1 are rotated as a pair; here, as in all models, i and
                                i + rotary_dim / 2 */
    bool *unrotated;         /* [num_hidden_layers], owned: layers without rotation; NULL: none is */

    int64_t bos_token_id, pad_token_id; /* -1 = none; may lie outside the vocabulary */
    int64_t *eos_token_id;              /* [n_eos_token_id], owned: each ends a text */
    size_t n_eos_token_id;
    dtype torch_dtype; /* the float type the weights were saved in; DTYPE_F32 when not given */

    struct model_config *encoder; /* owned; NULL: decoder only */

    struct {
        bool is_on;            /* matrices of 8-bit floats have scales */
        bool is_wider;         /* activations, or the cache, are to be rounded to 8 bits, which are not here */
        int64_t rows, columns; /* of the blocks that have a scale each; 0: rows or whole matrices have one */
    } float8;                  /* quantization_config */

    bool permuted_rows; /* rows of q and k are stored for interleaved rotation */
    bool experts_apart; /* each expert has tensors of its own (older GGUF files) */

    bool is_text_half;  /* of a model for pictures or sound as well */
    char *unknown_keys; /* of config.json, "a, b", owned; NULL: none */
} model_config;

/* Both fill *out, which need not be initialised; on failure it is empty and one sentence names the file, the field, its
 * value and what is allowed. MN_E_FORMAT: missing, damaged or contradictory; MN_E_UNSUPPORTED: well formed, of an
 * unknown kind; MN_E_NOMEM. `what` names the JSON text in messages, e.g. its path. */
mn_status config_from_json(model_config *out, const json *root, const char *what);
mn_status config_from_gguf(model_config *out, const gguf *file);

/* Whether a layer's MLP is a mixture of experts. */
static inline bool config_has_experts(const model_config *config, int64_t layer) {
    return config->num_local_experts > 0 && layer % config->expert_layer_period == config->expert_layer_offset;
}

/* Frees what a configuration owns and zeroes it. */
void model_config_clear(model_config *config);

const char *model_type_name(model_type type); /* as in config.json */
const char *rope_type_name(rope_type type);
const char *layer_type_name(layer_type type);
const char *position_kind_name(position_kind kind);

#endif
