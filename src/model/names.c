/* SPDX-License-Identifier: Apache-2.0 */
#include "model/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"

/* ---- tables ---- */

/* A size of the configuration. */
typedef enum extent {
    NONE, /* 0: first row of a whole tensor; columns of a vector */
    ONE,
    HIDDEN,
    INTERMEDIATE,
    VOCAB,
    POSITIONS,
    HEAD,
    QUERIES, /* heads x head_dim */
    KEYS,    /* key-value heads x head_dim; as many values */
    QUERIES_KEYS,
    QUERIES_KEYS_VALUES,
    GATE_UP,
    EXPERTS,
    SHARED,
    CHANNELS,
    CHANNELS_2,
    STATE,
    RANK,
    RANK_STATES,
    CONV,
    MELS,
    THREE,
    N_EXTENTS
} extent;

/* The layers that have a weight. */
typedef enum layer_kind { ANY_LAYER, ATTENTION_LAYERS, MAMBA_LAYERS, DENSE_LAYERS, EXPERT_LAYERS } layer_kind;

typedef struct weight_rule {
    weight_role role;
    const char *hf, *gguf;    /* in a layer: the part after its prefix; %d is the expert; NULL: the format has none */
    extent rows, columns;     /* of the tensor */
    extent first_row, n_rows; /* of the weight in it; n_rows NONE: all */
    size_t given;             /* offset in model_config of the switch that enables it; 0: always present */
    layer_kind in;
    extent deep;        /* a third dimension, between rows and columns in Hugging Face's files */
    bool rotated;       /* rows of q and k: stored in another order where config.permuted_rows is set */
    bool by_head;       /* Hugging Face: queries, keys and values of a head are adjacent */
    bool is_transposed; /* Hugging Face: stored [in][out] */
} weight_rule;

#define ALWAYS       .given = 0
#define GIVEN(field) .given = offsetof(model_config, field)

static const weight_rule llama_globals[] = {
    {WEIGHT_EMBED, "model.embed_tokens.weight", "token_embd.weight", VOCAB, HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM, "model.norm.weight", "output_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_HEAD, "lm_head.weight", "output.weight", VOCAB, HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule attention_rules[] = {
    {WEIGHT_O, "self_attn.o_proj.weight", "attn_output.weight", HIDDEN, QUERIES, .in = ATTENTION_LAYERS},
    {WEIGHT_O_BIAS, "self_attn.o_proj.bias", "attn_output.bias", HIDDEN, GIVEN(attention_bias.o)},
    {WEIGHT_Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", HEAD, GIVEN(qk_norm)},
    {WEIGHT_K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", HEAD, GIVEN(qk_norm)},
    {.role = N_WEIGHTS},
};

static const weight_rule qkv_rules[] = {
    {WEIGHT_Q, "self_attn.q_proj.weight", "attn_q.weight", QUERIES, HIDDEN, .in = ATTENTION_LAYERS, .rotated = true},
    {WEIGHT_K, "self_attn.k_proj.weight", "attn_k.weight", KEYS, HIDDEN, .in = ATTENTION_LAYERS, .rotated = true},
    {WEIGHT_V, "self_attn.v_proj.weight", "attn_v.weight", KEYS, HIDDEN, .in = ATTENTION_LAYERS},
    {WEIGHT_Q_BIAS, "self_attn.q_proj.bias", "attn_q.bias", QUERIES, GIVEN(attention_bias.q), .rotated = true},
    {WEIGHT_K_BIAS, "self_attn.k_proj.bias", "attn_k.bias", KEYS, GIVEN(attention_bias.k), .rotated = true},
    {WEIGHT_V_BIAS, "self_attn.v_proj.bias", "attn_v.bias", KEYS, GIVEN(attention_bias.v)},
    {.role = N_WEIGHTS},
};

static const weight_rule pre_norm_rules[] = {
    {WEIGHT_ATTENTION_NORM, "input_layernorm.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule layer_norm_globals[] = {
    {WEIGHT_EMBED, "model.embed_tokens.weight", "token_embd.weight", VOCAB, HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM, "model.norm.weight", "output_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM_BIAS, "model.norm.bias", "output_norm.bias", HIDDEN, ALWAYS},
    {WEIGHT_HEAD, "lm_head.weight", "output.weight", VOCAB, HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule layer_norm_rules[] = {
    {WEIGHT_ATTENTION_NORM, "input_layernorm.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_ATTENTION_NORM_BIAS, "input_layernorm.bias", "attn_norm.bias", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM_BIAS, "post_attention_layernorm.bias", "ffn_norm.bias", HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

/* Attention and MLP with the same norm. */
static const weight_rule one_norm_rules[] = {
    {WEIGHT_ATTENTION_NORM, "input_layernorm.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM, "input_layernorm.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule olmo2_norm_rules[] = {
    {WEIGHT_ATTENTION_POST_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_MLP_POST_NORM, "post_feedforward_layernorm.weight", "post_ffw_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", QUERIES, ALWAYS},
    {WEIGHT_K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", KEYS, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule phi_globals[] = {
    {WEIGHT_EMBED, "model.embed_tokens.weight", "token_embd.weight", VOCAB, HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM, "model.final_layernorm.weight", "output_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM_BIAS, "model.final_layernorm.bias", "output_norm.bias", HIDDEN, ALWAYS},
    {WEIGHT_HEAD, "lm_head.weight", "output.weight", VOCAB, HIDDEN, ALWAYS},
    {WEIGHT_HEAD_BIAS, "lm_head.bias", "output.bias", VOCAB, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule phi_rules[] = {
    {WEIGHT_ATTENTION_NORM, "input_layernorm.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_ATTENTION_NORM_BIAS, "input_layernorm.bias", "attn_norm.bias", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM, "input_layernorm.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM_BIAS, "input_layernorm.bias", "attn_norm.bias", HIDDEN, ALWAYS},
    {WEIGHT_O, "self_attn.dense.weight", "attn_output.weight", HIDDEN, QUERIES, ALWAYS},
    {WEIGHT_O_BIAS, "self_attn.dense.bias", "attn_output.bias", HIDDEN, ALWAYS},
    {WEIGHT_UP, "mlp.fc1.weight", "ffn_up.weight", INTERMEDIATE, HIDDEN, ALWAYS},
    {WEIGHT_UP_BIAS, "mlp.fc1.bias", "ffn_up.bias", INTERMEDIATE, ALWAYS},
    {WEIGHT_DOWN, "mlp.fc2.weight", "ffn_down.weight", HIDDEN, INTERMEDIATE, ALWAYS},
    {WEIGHT_DOWN_BIAS, "mlp.fc2.bias", "ffn_down.bias", HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule gemma_norm_rules[] = {
    {WEIGHT_ATTENTION_NORM, "input_layernorm.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_ATTENTION_POST_NORM, "post_attention_layernorm.weight", "post_attention_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM, "pre_feedforward_layernorm.weight", "ffn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_MLP_POST_NORM, "post_feedforward_layernorm.weight", "post_ffw_norm.weight", HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule mlp_rules[] = {
    {WEIGHT_GATE, "mlp.gate_proj.weight", "ffn_gate.weight", INTERMEDIATE, HIDDEN, ALWAYS},
    {WEIGHT_UP, "mlp.up_proj.weight", "ffn_up.weight", INTERMEDIATE, HIDDEN, ALWAYS},
    {WEIGHT_DOWN, "mlp.down_proj.weight", "ffn_down.weight", HIDDEN, INTERMEDIATE, ALWAYS},
    {WEIGHT_GATE_BIAS, "mlp.gate_proj.bias", "ffn_gate.bias", INTERMEDIATE, GIVEN(mlp_bias)},
    {WEIGHT_UP_BIAS, "mlp.up_proj.bias", "ffn_up.bias", INTERMEDIATE, GIVEN(mlp_bias)},
    {WEIGHT_DOWN_BIAS, "mlp.down_proj.bias", "ffn_down.bias", HIDDEN, GIVEN(mlp_bias)},
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
    {WEIGHT_DOWN, "mlp.down_proj.weight", "ffn_down.weight", HIDDEN, INTERMEDIATE, ALWAYS},
    {.role = N_WEIGHTS},
};

/* In GGUF files the experts of a layer are one tensor [E][out][in]; in older ones "_exps" is a dot and the expert's
 * number. */
static const weight_rule mixtral_rules[] = {
    {WEIGHT_ROUTER, "block_sparse_moe.gate.weight", "ffn_gate_inp.weight", EXPERTS, HIDDEN, ALWAYS},
    {WEIGHT_GATE, "block_sparse_moe.experts.%d.w1.weight", "ffn_gate_exps.weight", INTERMEDIATE, HIDDEN,
     .in = EXPERT_LAYERS},
    {WEIGHT_UP, "block_sparse_moe.experts.%d.w3.weight", "ffn_up_exps.weight", INTERMEDIATE, HIDDEN,
     .in = EXPERT_LAYERS},
    {WEIGHT_DOWN, "block_sparse_moe.experts.%d.w2.weight", "ffn_down_exps.weight", HIDDEN, INTERMEDIATE,
     .in = EXPERT_LAYERS},
    {.role = N_WEIGHTS},
};

static const weight_rule qwen_moe_rules[] = {
    {WEIGHT_ROUTER, "mlp.gate.weight", "ffn_gate_inp.weight", EXPERTS, HIDDEN, ALWAYS},
    {WEIGHT_GATE, "mlp.experts.%d.gate_proj.weight", "ffn_gate_exps.weight", INTERMEDIATE, HIDDEN, .in = EXPERT_LAYERS},
    {WEIGHT_UP, "mlp.experts.%d.up_proj.weight", "ffn_up_exps.weight", INTERMEDIATE, HIDDEN, .in = EXPERT_LAYERS},
    {WEIGHT_DOWN, "mlp.experts.%d.down_proj.weight", "ffn_down_exps.weight", HIDDEN, INTERMEDIATE, .in = EXPERT_LAYERS},
    {.role = N_WEIGHTS},
};

static const weight_rule shared_expert_rules[] = {
    {WEIGHT_SHARED_ROUTER, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", ONE, HIDDEN, ALWAYS},
    {WEIGHT_SHARED_GATE, "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", SHARED, HIDDEN, ALWAYS},
    {WEIGHT_SHARED_UP, "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", SHARED, HIDDEN, ALWAYS},
    {WEIGHT_SHARED_DOWN, "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", HIDDEN, SHARED, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule gpt2_globals[] = {
    {WEIGHT_EMBED, "transformer.wte.weight", "token_embd.weight", VOCAB, HIDDEN, ALWAYS},
    {WEIGHT_POSITIONS, "transformer.wpe.weight", "position_embd.weight", POSITIONS, HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM, "transformer.ln_f.weight", "output_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM_BIAS, "transformer.ln_f.bias", "output_norm.bias", HIDDEN, ALWAYS},
    {WEIGHT_HEAD, "lm_head.weight", "output.weight", VOCAB, HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

#define C_ATTN      "attn.c_attn.weight", "attn_qkv.weight", QUERIES_KEYS_VALUES, HIDDEN
#define C_ATTN_BIAS "attn.c_attn.bias", "attn_qkv.bias", QUERIES_KEYS_VALUES, NONE
static const weight_rule gpt2_rules[] = {
    {WEIGHT_ATTENTION_NORM, "ln_1.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_ATTENTION_NORM_BIAS, "ln_1.bias", "attn_norm.bias", HIDDEN, ALWAYS},
    {WEIGHT_Q, C_ATTN, NONE, QUERIES, .is_transposed = true},
    {WEIGHT_K, C_ATTN, QUERIES, KEYS, .is_transposed = true},
    {WEIGHT_V, C_ATTN, QUERIES_KEYS, KEYS, .is_transposed = true},
    {WEIGHT_Q_BIAS, C_ATTN_BIAS, NONE, QUERIES, ALWAYS},
    {WEIGHT_K_BIAS, C_ATTN_BIAS, QUERIES, KEYS, ALWAYS},
    {WEIGHT_V_BIAS, C_ATTN_BIAS, QUERIES_KEYS, KEYS, ALWAYS},
    {WEIGHT_O, "attn.c_proj.weight", "attn_output.weight", HIDDEN, QUERIES, .is_transposed = true},
    {WEIGHT_O_BIAS, "attn.c_proj.bias", "attn_output.bias", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM, "ln_2.weight", "ffn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM_BIAS, "ln_2.bias", "ffn_norm.bias", HIDDEN, ALWAYS},
    {WEIGHT_UP, "mlp.c_fc.weight", "ffn_up.weight", INTERMEDIATE, HIDDEN, .is_transposed = true},
    {WEIGHT_UP_BIAS, "mlp.c_fc.bias", "ffn_up.bias", INTERMEDIATE, ALWAYS},
    {WEIGHT_DOWN, "mlp.c_proj.weight", "ffn_down.weight", HIDDEN, INTERMEDIATE, .is_transposed = true},
    {WEIGHT_DOWN_BIAS, "mlp.c_proj.bias", "ffn_down.bias", HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule gpt_neox_globals[] = {
    {WEIGHT_EMBED, "gpt_neox.embed_in.weight", "token_embd.weight", VOCAB, HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM, "gpt_neox.final_layer_norm.weight", "output_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM_BIAS, "gpt_neox.final_layer_norm.bias", "output_norm.bias", HIDDEN, ALWAYS},
    {WEIGHT_HEAD, "embed_out.weight", "output.weight", VOCAB, HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

#define QUERY_KEY_VALUE      "attention.query_key_value.weight", "attn_qkv.weight", QUERIES_KEYS_VALUES, HIDDEN
#define QUERY_KEY_VALUE_BIAS "attention.query_key_value.bias", "attn_qkv.bias", QUERIES_KEYS_VALUES, NONE
static const weight_rule gpt_neox_rules[] = {
    {WEIGHT_ATTENTION_NORM, "input_layernorm.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_ATTENTION_NORM_BIAS, "input_layernorm.bias", "attn_norm.bias", HIDDEN, ALWAYS},
    {WEIGHT_Q, QUERY_KEY_VALUE, NONE, QUERIES, .by_head = true},
    {WEIGHT_K, QUERY_KEY_VALUE, QUERIES, KEYS, .by_head = true},
    {WEIGHT_V, QUERY_KEY_VALUE, QUERIES_KEYS, KEYS, .by_head = true},
    {WEIGHT_Q_BIAS, QUERY_KEY_VALUE_BIAS, NONE, QUERIES, GIVEN(attention_bias.q), .by_head = true},
    {WEIGHT_K_BIAS, QUERY_KEY_VALUE_BIAS, QUERIES, KEYS, GIVEN(attention_bias.k), .by_head = true},
    {WEIGHT_V_BIAS, QUERY_KEY_VALUE_BIAS, QUERIES_KEYS, KEYS, GIVEN(attention_bias.v), .by_head = true},
    {WEIGHT_O, "attention.dense.weight", "attn_output.weight", HIDDEN, QUERIES, ALWAYS},
    {WEIGHT_O_BIAS, "attention.dense.bias", "attn_output.bias", HIDDEN, GIVEN(attention_bias.o)},
    {WEIGHT_MLP_NORM, "post_attention_layernorm.weight", "ffn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM_BIAS, "post_attention_layernorm.bias", "ffn_norm.bias", HIDDEN, ALWAYS},
    {WEIGHT_UP, "mlp.dense_h_to_4h.weight", "ffn_up.weight", INTERMEDIATE, HIDDEN, ALWAYS},
    {WEIGHT_UP_BIAS, "mlp.dense_h_to_4h.bias", "ffn_up.bias", INTERMEDIATE, ALWAYS},
    {WEIGHT_DOWN, "mlp.dense_4h_to_h.weight", "ffn_down.weight", HIDDEN, INTERMEDIATE, ALWAYS},
    {WEIGHT_DOWN_BIAS, "mlp.dense_4h_to_h.bias", "ffn_down.bias", HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule mamba_globals[] = {
    {WEIGHT_EMBED, "backbone.embeddings.weight", "token_embd.weight", VOCAB, HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM, "backbone.norm_f.weight", "output_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_HEAD, "lm_head.weight", "output.weight", VOCAB, HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

#define MIXER(role, hf, gguf, ...)                                                                                     \
    { role, hf, gguf, __VA_ARGS__, .in = MAMBA_LAYERS }
#define MIXER_RULES(prefix)                                                                                            \
    MIXER(WEIGHT_MAMBA_IN, prefix "in_proj.weight", "ssm_in.weight", CHANNELS_2, HIDDEN),                              \
        MIXER(WEIGHT_MAMBA_IN_BIAS, prefix "in_proj.bias", "ssm_in.bias", CHANNELS_2, GIVEN(use_bias)),                \
        MIXER(WEIGHT_CONV, prefix "conv1d.weight", "ssm_conv1d.weight", CHANNELS, CONV, .deep = ONE),                  \
        MIXER(WEIGHT_CONV_BIAS, prefix "conv1d.bias", "ssm_conv1d.bias", CHANNELS, GIVEN(use_conv_bias)),              \
        MIXER(WEIGHT_MAMBA_X, prefix "x_proj.weight", "ssm_x.weight", RANK_STATES, CHANNELS),                          \
        MIXER(WEIGHT_MAMBA_DT, prefix "dt_proj.weight", "ssm_dt.weight", CHANNELS, RANK),                              \
        MIXER(WEIGHT_MAMBA_DT_BIAS, prefix "dt_proj.bias", "ssm_dt.bias", CHANNELS),                                   \
        MIXER(WEIGHT_A, prefix "A_log", "ssm_a", CHANNELS, STATE), MIXER(WEIGHT_D, prefix "D", "ssm_d", CHANNELS),     \
        MIXER(WEIGHT_MAMBA_OUT, prefix "out_proj.weight", "ssm_out.weight", HIDDEN, CHANNELS),                         \
        MIXER(WEIGHT_MAMBA_OUT_BIAS, prefix "out_proj.bias", "ssm_out.bias", HIDDEN, GIVEN(use_bias))

static const weight_rule mamba_rules[] = {
    {WEIGHT_ATTENTION_NORM, "norm.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    MIXER_RULES("mixer."),
    {.role = N_WEIGHTS},
};

static const weight_rule jamba_globals[] = {
    {WEIGHT_EMBED, "model.embed_tokens.weight", "token_embd.weight", VOCAB, HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM, "model.final_layernorm.weight", "output_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_HEAD, "lm_head.weight", "output.weight", VOCAB, HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule jamba_rules[] = {
    {WEIGHT_ATTENTION_NORM, "input_layernorm.weight", "attn_norm.weight", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM, "pre_ff_layernorm.weight", "ffn_norm.weight", HIDDEN, ALWAYS},
    MIXER_RULES("mamba."),
    MIXER(WEIGHT_DT_NORM, "mamba.dt_layernorm.weight", "ssm_dt_norm.weight", RANK),
    MIXER(WEIGHT_B_NORM, "mamba.b_layernorm.weight", "ssm_b_norm.weight", STATE),
    MIXER(WEIGHT_C_NORM, "mamba.c_layernorm.weight", "ssm_c_norm.weight", STATE),
    {WEIGHT_GATE, "feed_forward.gate_proj.weight", "ffn_gate.weight", INTERMEDIATE, HIDDEN, .in = DENSE_LAYERS},
    {WEIGHT_UP, "feed_forward.up_proj.weight", "ffn_up.weight", INTERMEDIATE, HIDDEN, .in = DENSE_LAYERS},
    {WEIGHT_DOWN, "feed_forward.down_proj.weight", "ffn_down.weight", HIDDEN, INTERMEDIATE, .in = DENSE_LAYERS},
    {WEIGHT_ROUTER, "feed_forward.router.weight", "ffn_gate_inp.weight", EXPERTS, HIDDEN, .in = EXPERT_LAYERS},
    {WEIGHT_GATE, "feed_forward.experts.%d.gate_proj.weight", "ffn_gate_exps.weight", INTERMEDIATE, HIDDEN,
     .in = EXPERT_LAYERS},
    {WEIGHT_UP, "feed_forward.experts.%d.up_proj.weight", "ffn_up_exps.weight", INTERMEDIATE, HIDDEN,
     .in = EXPERT_LAYERS},
    {WEIGHT_DOWN, "feed_forward.experts.%d.down_proj.weight", "ffn_down_exps.weight", HIDDEN, INTERMEDIATE,
     .in = EXPERT_LAYERS},
    {.role = N_WEIGHTS},
};

static const weight_rule whisper_globals[] = {
    {WEIGHT_EMBED, "model.decoder.embed_tokens.weight", "", VOCAB, HIDDEN, ALWAYS},
    {WEIGHT_POSITIONS, "model.decoder.embed_positions.weight", "", POSITIONS, HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM, "model.decoder.layer_norm.weight", "", HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM_BIAS, "model.decoder.layer_norm.bias", "", HIDDEN, ALWAYS},
    {WEIGHT_HEAD, "proj_out.weight", "", VOCAB, HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule whisper_encoder_globals[] = {
    {WEIGHT_CONV1, "model.encoder.conv1.weight", "", HIDDEN, THREE, .deep = MELS},
    {WEIGHT_CONV1_BIAS, "model.encoder.conv1.bias", "", HIDDEN, ALWAYS},
    {WEIGHT_CONV2, "model.encoder.conv2.weight", "", HIDDEN, THREE, .deep = HIDDEN},
    {WEIGHT_CONV2_BIAS, "model.encoder.conv2.bias", "", HIDDEN, ALWAYS},
    {WEIGHT_POSITIONS, "model.encoder.embed_positions.weight", "", POSITIONS, HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM, "model.encoder.layer_norm.weight", "", HIDDEN, ALWAYS},
    {WEIGHT_FINAL_NORM_BIAS, "model.encoder.layer_norm.bias", "", HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule whisper_rules[] = {
    {WEIGHT_ATTENTION_NORM, "self_attn_layer_norm.weight", "", HIDDEN, ALWAYS},
    {WEIGHT_ATTENTION_NORM_BIAS, "self_attn_layer_norm.bias", "", HIDDEN, ALWAYS},
    {WEIGHT_Q, "self_attn.q_proj.weight", "", QUERIES, HIDDEN, ALWAYS},
    {WEIGHT_Q_BIAS, "self_attn.q_proj.bias", "", QUERIES, ALWAYS},
    {WEIGHT_K, "self_attn.k_proj.weight", "", KEYS, HIDDEN, ALWAYS},
    {WEIGHT_K_BIAS, "self_attn.k_proj.bias", "", KEYS, GIVEN(attention_bias.k)},
    {WEIGHT_V, "self_attn.v_proj.weight", "", KEYS, HIDDEN, ALWAYS},
    {WEIGHT_V_BIAS, "self_attn.v_proj.bias", "", KEYS, ALWAYS},
    {WEIGHT_O, "self_attn.out_proj.weight", "", HIDDEN, QUERIES, ALWAYS},
    {WEIGHT_O_BIAS, "self_attn.out_proj.bias", "", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM, "final_layer_norm.weight", "", HIDDEN, ALWAYS},
    {WEIGHT_MLP_NORM_BIAS, "final_layer_norm.bias", "", HIDDEN, ALWAYS},
    {WEIGHT_UP, "fc1.weight", "", INTERMEDIATE, HIDDEN, ALWAYS},
    {WEIGHT_UP_BIAS, "fc1.bias", "", INTERMEDIATE, ALWAYS},
    {WEIGHT_DOWN, "fc2.weight", "", HIDDEN, INTERMEDIATE, ALWAYS},
    {WEIGHT_DOWN_BIAS, "fc2.bias", "", HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

static const weight_rule whisper_cross_rules[] = {
    {WEIGHT_CROSS_NORM, "encoder_attn_layer_norm.weight", "", HIDDEN, ALWAYS},
    {WEIGHT_CROSS_NORM_BIAS, "encoder_attn_layer_norm.bias", "", HIDDEN, ALWAYS},
    {WEIGHT_CROSS_Q, "encoder_attn.q_proj.weight", "", QUERIES, HIDDEN, ALWAYS},
    {WEIGHT_CROSS_Q_BIAS, "encoder_attn.q_proj.bias", "", QUERIES, ALWAYS},
    {WEIGHT_CROSS_K, "encoder_attn.k_proj.weight", "", KEYS, HIDDEN, ALWAYS},
    {WEIGHT_CROSS_K_BIAS, "encoder_attn.k_proj.bias", "", KEYS, GIVEN(attention_bias.k)},
    {WEIGHT_CROSS_V, "encoder_attn.v_proj.weight", "", KEYS, HIDDEN, ALWAYS},
    {WEIGHT_CROSS_V_BIAS, "encoder_attn.v_proj.bias", "", KEYS, ALWAYS},
    {WEIGHT_CROSS_O, "encoder_attn.out_proj.weight", "", HIDDEN, QUERIES, ALWAYS},
    {WEIGHT_CROSS_O_BIAS, "encoder_attn.out_proj.bias", "", HIDDEN, ALWAYS},
    {.role = N_WEIGHTS},
};

enum { MOST_TABLES = 6 };

/* Tensor names of a type's checkpoints. */
typedef struct naming {
    const char *layers;                     /* Hugging Face: the prefix of a layer's number */
    model_type other_half;                  /* whose tensors are in the same checkpoint; 0: none */
    const weight_rule *tables[MOST_TABLES]; /* ends with NULL when there are fewer */
} naming;

#define LLAMA_LAYERS .layers = "model.layers."
static const naming namings[N_MODEL_TYPES] = {
    [MODEL_LLAMA] = {LLAMA_LAYERS, .tables = {llama_globals, pre_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_MISTRAL] = {LLAMA_LAYERS, .tables = {llama_globals, pre_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_MIXTRAL] = {LLAMA_LAYERS,
                       .tables = {llama_globals, pre_norm_rules, attention_rules, qkv_rules, mixtral_rules}},
    [MODEL_QWEN2] = {LLAMA_LAYERS, .tables = {llama_globals, pre_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_QWEN3] = {LLAMA_LAYERS, .tables = {llama_globals, pre_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_QWEN2_MOE] = {LLAMA_LAYERS, .tables = {llama_globals, pre_norm_rules, attention_rules, qkv_rules,
                                                  qwen_moe_rules, shared_expert_rules}},
    [MODEL_QWEN3_MOE] = {LLAMA_LAYERS,
                         .tables = {llama_globals, pre_norm_rules, attention_rules, qkv_rules, qwen_moe_rules}},
    [MODEL_SMOLLM3] = {LLAMA_LAYERS, .tables = {llama_globals, pre_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_OLMO2] = {LLAMA_LAYERS, .tables = {llama_globals, olmo2_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_STABLELM] = {LLAMA_LAYERS,
                        .tables = {layer_norm_globals, layer_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_COHERE] = {LLAMA_LAYERS, .tables = {llama_globals, one_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_PHI] = {LLAMA_LAYERS, .tables = {phi_globals, phi_rules, qkv_rules}},
    [MODEL_GEMMA] = {LLAMA_LAYERS, .tables = {llama_globals, pre_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_PHI3] = {LLAMA_LAYERS, .tables = {llama_globals, pre_norm_rules, attention_rules, fused_rules}},
    [MODEL_GRANITE] = {LLAMA_LAYERS, .tables = {llama_globals, pre_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_GEMMA2] = {LLAMA_LAYERS, .tables = {llama_globals, gemma_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_GEMMA3] = {LLAMA_LAYERS, .tables = {llama_globals, gemma_norm_rules, attention_rules, qkv_rules, mlp_rules}},
    [MODEL_GPT2] = {.layers = "transformer.h.", .tables = {gpt2_globals, gpt2_rules}},
    [MODEL_GPT_NEOX] = {.layers = "gpt_neox.layers.", .tables = {gpt_neox_globals, gpt_neox_rules}},
    [MODEL_MAMBA] = {.layers = "backbone.layers.", .tables = {mamba_globals, mamba_rules}},
    [MODEL_JAMBA] = {LLAMA_LAYERS, .tables = {jamba_globals, attention_rules, qkv_rules, jamba_rules}},
    [MODEL_WHISPER] = {.layers = "model.decoder.layers.",
                       .other_half = MODEL_WHISPER_ENCODER,
                       .tables = {whisper_globals, whisper_rules, whisper_cross_rules}},
    [MODEL_WHISPER_ENCODER] = {.layers = "model.encoder.layers.",
                               .other_half = MODEL_WHISPER,
                               .tables = {whisper_encoder_globals, whisper_rules}},
};
#undef LLAMA_LAYERS

static int64_t measure(const model_config *config, extent which) {
    int64_t queries = config->num_attention_heads * config->head_dim;
    int64_t keys = config->num_key_value_heads * config->head_dim;
    const int64_t sizes[N_EXTENTS] = {
        [ONE] = 1,
        [HIDDEN] = config->hidden_size,
        [INTERMEDIATE] = config->intermediate_size,
        [VOCAB] = config->vocab_size,
        [POSITIONS] = config->max_position_embeddings,
        [HEAD] = config->head_dim,
        [QUERIES] = queries,
        [KEYS] = keys,
        [QUERIES_KEYS] = queries + keys,
        [QUERIES_KEYS_VALUES] = queries + 2 * keys,
        [GATE_UP] = 2 * config->intermediate_size,
        [EXPERTS] = config->num_local_experts,
        [SHARED] = config->shared_expert_intermediate_size,
        [CHANNELS] = config->mamba_size,
        [CHANNELS_2] = 2 * config->mamba_size,
        [STATE] = config->state_size,
        [RANK] = config->time_step_rank,
        [RANK_STATES] = config->time_step_rank + 2 * config->state_size,
        [CONV] = config->conv_kernel,
        [MELS] = config->num_mel_bins,
        [THREE] = 3,
    };
    return sizes[which];
}

static bool layer_has(const model_config *config, layer_kind kind, int64_t layer) {
    switch (kind) {
    case ANY_LAYER: return true;
    case ATTENTION_LAYERS: return config->layer_types[layer] != LAYER_MAMBA;
    case MAMBA_LAYERS: return config->layer_types[layer] == LAYER_MAMBA;
    case DENSE_LAYERS: return !config_has_experts(config, layer);
    case EXPERT_LAYERS: return config_has_experts(config, layer);
    }
    return false;
}

/* The rule of a role in a layer; NULL: the layer has no such weight. */
static const weight_rule *find_rule(const model_config *config, weight_role role, int64_t layer) {
    const naming *names = &namings[config->model_type];
    for (int i = 0; i < MOST_TABLES && names->tables[i]; i++) {
        for (const weight_rule *rule = names->tables[i]; rule->role != N_WEIGHTS; rule++) {
            if (rule->role == role && (role >= N_LAYER_WEIGHTS || layer_has(config, rule->in, layer))) return rule;
        }
    }
    return NULL;
}

static bool is_given(const model_config *config, const weight_rule *rule) {
    if (rule->role == WEIGHT_HEAD) return !config->tie_word_embeddings;
    return rule->given == 0 || *(const bool *)((const char *)config + rule->given);
}

static void fill_name(const model_config *config, bool is_gguf, const weight_rule *rule, int64_t layer, int64_t expert,
                      weight_place *out) {
    const char *name = is_gguf ? rule->gguf : rule->hf, *number = strstr(name, "%d");
    size_t n = 0;
    if (rule->role < N_LAYER_WEIGHTS) {
        const char *prefix = is_gguf ? "blk." : namings[config->model_type].layers;
        n = (size_t)snprintf(out->name, sizeof out->name, "%s%" PRId64 ".", prefix, layer);
    }
    const char *stack = is_gguf && config->experts_apart ? strstr(name, "_exps") : NULL;
    if (stack) {
        snprintf(out->name + n, sizeof out->name - n, "%.*s.%" PRId64 "%s", (int)(stack - name), name, expert,
                 stack + strlen("_exps"));
    } else if (number) {
        snprintf(out->name + n, sizeof out->name - n, "%.*s%" PRId64 "%s", (int)(number - name), name, expert,
                 number + 2);
    } else {
        snprintf(out->name + n, sizeof out->name - n, "%s", name);
    }
}

static void fill_place(const model_config *config, bool is_gguf, const weight_rule *rule, int64_t layer, int64_t expert,
                       weight_place *out) {
    memset(out, 0, sizeof *out);
    fill_name(config, is_gguf, rule, layer, expert, out);
    int64_t rows = measure(config, rule->rows), columns = measure(config, rule->columns);
    weight_source *source = &out->source;
    source->first_row = measure(config, rule->first_row);
    source->n_rows = rule->n_rows == NONE ? rows : measure(config, rule->n_rows);
    source->columns = columns * (rule->deep == NONE ? 1 : measure(config, rule->deep));
    source->permute_head_dim = rule->rotated && config->permuted_rows ? (int)config->head_dim : 0;
    bool stacked = is_gguf && !config->experts_apart && rule->in == EXPERT_LAYERS && rule->role != WEIGHT_ROUTER;
    if (stacked) source->first_row += expert * rows;
    if (!is_gguf && rule->by_head) {
        source->block = config->head_dim;
        source->stride = 3 * config->head_dim;
        source->first_row = (rule->role - WEIGHT_Q) % N_LAYER_MATRICES * config->head_dim;
    }
    source->is_transposed = !is_gguf && rule->is_transposed;
    int64_t *shape = out->shape;
    if (stacked) shape[out->n_dims++] = config->num_local_experts;
    shape[out->n_dims++] = source->is_transposed ? columns : rows;
    if (!is_gguf && rule->deep != NONE) shape[out->n_dims++] = measure(config, rule->deep);
    if (rule->columns != NONE) shape[out->n_dims++] = source->is_transposed ? rows : columns;
}

bool weight_find_place(const model_config *config, bool is_gguf, weight_role role, int64_t layer, int64_t expert,
                       weight_place *out) {
    const weight_rule *rule = find_rule(config, role, layer);
    if (!rule || !is_given(config, rule)) return false;
    fill_place(config, is_gguf, rule, layer, expert, out);
    return true;
}

int64_t weight_source_row(const weight_source *source, int64_t row) {
    int64_t head_dim = source->permute_head_dim;
    if (head_dim != 0) {
        int64_t within = row % head_dim, half = head_dim / 2;
        row += 2 * (within % half) + within / half - within;
    }
    if (source->block != 0) row = row / source->block * source->stride + row % source->block;
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

/* Some writers of GGUF files leave out outer dimensions of 1. */
static bool has_shape(const tensor *t, const weight_place *place, bool is_gguf) {
    int left_out = is_gguf && t->n_dims < place->n_dims ? place->n_dims - t->n_dims : 0;
    bool same = t->n_dims + left_out == place->n_dims;
    for (int i = 0; i < left_out; i++) same = same && place->shape[i] == 1;
    for (int i = 0; same && i < t->n_dims; i++) same = t->shape[i] == place->shape[i + left_out];
    return same;
}

static mn_status check_tensor(const tensor *t, const weight_place *place, bool is_gguf) {
    shape_text expected = show_shape(place->shape, place->n_dims);
    if (!t) MN_FAIL(MN_E_FORMAT, "%s is missing: expected %s", place->name, expected.text);
    if (!has_shape(t, place, is_gguf))
        MN_FAIL(MN_E_FORMAT, "%s is %s: expected %s", place->name, show_shape(t->shape, t->n_dims).text, expected.text);
    if (!dtype_table[t->type].to_f32) {
        MN_FAIL(MN_E_UNSUPPORTED, "%s is stored as %s, allowed: a floating-point or quantised type", place->name,
                dtype_table[t->type].name);
    }
    return MN_OK;
}

typedef struct binder {
    const model_config *config;
    const tensor_set *tensors;
    bool is_gguf;
    char prefix[48]; /* what names begin with in the place of the type's own root, "model." */
} binder;

/* "model." of "model.layers.". */
static size_t root_length(model_type type) {
    return (size_t)(strchr(namings[type].layers, '.') - namings[type].layers) + 1;
}

/* The name that a tensor has in this checkpoint. A head is outside of the root. */
static void rename_stored(const binder *b, char *name, size_t size) {
    char stored[96];
    size_t n = root_length(b->config->model_type);
    if (b->is_gguf) return;
    if (strncmp(name, namings[b->config->model_type].layers, n) == 0) {
        snprintf(stored, sizeof stored, "%s%s", b->prefix, name + n);
    } else {
        snprintf(stored, sizeof stored, "language_model.%s", name);
        if (tensor_set_find(b->tensors, name) || !tensor_set_find(b->tensors, stored)) return;
    }
    snprintf(name, size, "%s", stored);
}

/* The names of models that are a part of another one, or were saved without a head, begin otherwise. Which way counts
 * for all of them: a checkpoint may hold more than one model. */
static void choose_prefix(binder *b) {
    static const struct {
        const char *before;
        bool has_root;
    } ways[] = {{"", true},
                {"language_model.", true},
                {"model.language_model.", false},
                {"language_model.", false},
                {"", false}};
    const char *layers = namings[b->config->model_type].layers;
    size_t n = root_length(b->config->model_type);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char first[96];
        int size =
            snprintf(b->prefix, sizeof b->prefix, "%s%.*s", ways[i].before, ways[i].has_root ? (int)n : 0, layers);
        snprintf(first, sizeof first, "%.*s%s0.", size, b->prefix, layers + n);
        for (size_t k = 0; k < tensor_set_count(b->tensors); k++) {
            if (strncmp(tensor_set_at(b->tensors, k)->name, first, strlen(first)) == 0) return;
        }
    }
    snprintf(b->prefix, sizeof b->prefix, "%.*s", (int)n, layers);
}

/* Matrices of 8-bit floats (FP8) have scales: weight_scale_inv for each block as DeepSeek and Qwen write them,
 * weight_scale for each row or matrix as FBGEMM and compressed-tensors do. A weight is its value times its scale,
 * whatever the name says. */

static const tensor *find_scales(const tensor_set *tensors, const char *name) {
    static const char *const ends[] = {"_scale_inv", "_scale"};
    const tensor *found = NULL;
    for (size_t i = 0; !found && i < sizeof ends / sizeof *ends; i++) {
        char longer[128];
        snprintf(longer, sizeof longer, "%s%s", name, ends[i]);
        found = tensor_set_find(tensors, longer);
    }
    return found;
}

static bool has_size(const tensor *t, int64_t rows, int64_t columns) {
    const bool is_flat = t->n_dims == 1 && columns == 1;
    return (is_flat || (t->n_dims == 2 && t->shape[1] == columns)) && t->shape[0] == rows;
}

/* One scale for the matrix, for each row, or for each block. */
static mn_status choose_blocks(weight_source *source, const model_config *config, const tensor *scales) {
    const int64_t rows = source->tensor->shape[0], columns = source->tensor->shape[1];
    const int64_t block_rows = config->float8.rows, block_columns = config->float8.columns;
    char blocks[80] = "";
    source->scales = scales;
    source->scale_rows = rows;
    source->scale_columns = columns;
    if (scales->n_dims == 0 || has_size(scales, 1, 1)) return MN_OK;
    source->scale_rows = 1;
    if (has_size(scales, rows, 1)) return MN_OK;
    if (block_rows > 0) {
        const int64_t down = ceil_div(rows, block_rows), across = ceil_div(columns, block_columns);
        source->scale_rows = block_rows;
        source->scale_columns = block_columns;
        if (has_size(scales, down, across)) return MN_OK;
        snprintf(blocks, sizeof blocks, " or [%" PRId64 ",%" PRId64 "]", down, across);
    }
    MN_FAIL(MN_E_FORMAT, "%s is %s: expected [1], [%" PRId64 ",1]%s", scales->name,
            show_shape(scales->shape, scales->n_dims).text, rows, blocks);
}

/* Scales that are missing, or belong to a tensor that cannot have them here, are errors. */
static mn_status bind_scales(weight_source *source, const binder *b, bool is_matrix) {
    const tensor *t = source->tensor, *scales = b->is_gguf ? NULL : find_scales(b->tensors, t->name);
    const bool is_float8 = t->type == DTYPE_F8_E4M3 || t->type == DTYPE_F8_E5M2;
    if (!scales) {
        if (is_float8 && is_matrix && b->config->float8.is_on)
            MN_FAIL(MN_E_FORMAT, "%s_scale is missing, which quantization_config requires for %s", t->name,
                    dtype_table[t->type].name);
        return MN_OK;
    }
    if (!is_float8)
        MN_FAIL(MN_E_UNSUPPORTED, "%s is there, and %s is stored as %s, allowed: F8_E4M3, F8_E5M2", scales->name,
                t->name, dtype_table[t->type].name);
    if (!is_matrix || t->n_dims != 2 || source->is_transposed)
        MN_FAIL(MN_E_UNSUPPORTED, "%s is there, allowed: scales of matrices that are stored as [out][in]",
                scales->name);
    if (!dtype_table[scales->type].to_f32)
        MN_FAIL(MN_E_UNSUPPORTED, "%s is stored as %s, allowed: a floating-point type", scales->name,
                dtype_table[scales->type].name);
    return choose_blocks(source, b->config, scales);
}

static mn_status bind_one(weight_source *out, const binder *b, weight_role role, int64_t layer, int64_t expert) {
    *out = (weight_source){0};
    const weight_rule *rule = find_rule(b->config, role, layer);
    if (!rule) return MN_OK;
    weight_place place;
    fill_place(b->config, b->is_gguf, rule, layer, expert, &place);
    rename_stored(b, place.name, sizeof place.name);
    const tensor *t = tensor_set_find(b->tensors, place.name);
    if (!t && role == WEIGHT_EMBED && b->config->tie_word_embeddings) { /* the one matrix, under its other name */
        weight_place head;
        fill_place(b->config, b->is_gguf, find_rule(b->config, WEIGHT_HEAD, 0), 0, 0, &head);
        rename_stored(b, head.name, sizeof head.name);
        t = tensor_set_find(b->tensors, head.name);
        if (t) place = head;
    }
    if (!is_given(b->config, rule)) {
        /* An extra copy of tied embeddings is common and harmless; an ignored bias would change results. */
        if (!t || role == WEIGHT_HEAD) return MN_OK;
        MN_FAIL(MN_E_FORMAT, "%s exists although the configuration has no such weight", place.name);
    }
    MN_TRY(check_tensor(t, &place, b->is_gguf));
    *out = place.source;
    out->tensor = t;
    const bool is_matrix = role < N_LAYER_MATRICES || role == WEIGHT_HEAD;
    return bind_scales(out, b, is_matrix);
}

static mn_status bind_experts(model_weights *out, const binder *b, int64_t layer) {
    static const weight_role roles[N_EXPERT_MATRICES] = {WEIGHT_GATE, WEIGHT_UP, WEIGHT_DOWN};
    for (int64_t e = 0; e < b->config->num_local_experts; e++) {
        weight_source *to = out->experts[layer * b->config->num_local_experts + e];
        for (int i = 0; i < N_EXPERT_MATRICES; i++) MN_TRY(bind_one(&to[i], b, roles[i], layer, e));
    }
    return MN_OK;
}

static mn_status bind_layer(model_weights *out, const binder *b, int64_t layer) {
    bool experts = config_has_experts(b->config, layer);
    for (int role = 0; role < N_LAYER_WEIGHTS; role++) {
        bool of_experts = experts && role >= WEIGHT_GATE && role <= WEIGHT_DOWN;
        if (!of_experts) MN_TRY(bind_one(&out->layers[layer][role], b, (weight_role)role, layer, 0));
    }
    return experts ? bind_experts(out, b, layer) : MN_OK;
}

/* The text after a number, or NULL when there is none. */
static const char *behind_number(const char *text) {
    size_t n = strspn(text, "0123456789");
    return n ? text + n : NULL;
}

/* Whether `text` matches a rule's name, with any number for %d. */
static bool matches(const char *rule, const char *text) {
    const char *number = strstr(rule, "%d");
    if (!number) return strcmp(rule, text) == 0;
    if (strncmp(rule, text, (size_t)(number - rule)) != 0) return false;
    text = behind_number(text + (number - rule));
    return text && strcmp(number + 2, text) == 0;
}

/* Whether a type's checkpoints have such a tensor in some layer. */
static bool has_name(model_type type, const char *name) {
    const naming *names = &namings[type];
    size_t n = strlen(names->layers);
    const char *rest = strncmp(name, names->layers, n) == 0 ? behind_number(name + n) : NULL;
    if (!rest || *rest++ != '.') return false;
    for (int i = 0; i < MOST_TABLES && names->tables[i]; i++) {
        for (const weight_rule *rule = names->tables[i]; rule->role != N_WEIGHTS; rule++) {
            if (rule->role < N_LAYER_WEIGHTS && matches(rule->hf, rest)) return true;
        }
    }
    return false;
}

/* Unused tensors are ignored, except weights of another model type, which show that the configuration does not belong
 * to the checkpoint. */
static mn_status check_foreign(const binder *b) {
    model_type own = b->config->model_type;
    for (size_t i = 0; !b->is_gguf && i < tensor_set_count(b->tensors); i++) {
        char name[256];
        const char *stored = tensor_set_at(b->tensors, i)->name;
        bool is_inside = strncmp(stored, b->prefix, strlen(b->prefix)) == 0;
        snprintf(name, sizeof name, "%.*s%s", is_inside ? (int)root_length(own) : 0, namings[own].layers,
                 stored + (is_inside ? strlen(b->prefix) : 0));
        if (has_name(own, name) || (namings[own].other_half && has_name(namings[own].other_half, name))) continue;
        for (int type = 0; type < N_MODEL_TYPES; type++) {
            if (!has_name((model_type)type, name)) continue;
            MN_FAIL(MN_E_FORMAT, "%s is a tensor of %s, model_type is %s", stored, model_type_name((model_type)type),
                    model_type_name(b->config->model_type));
        }
    }
    return MN_OK;
}

static mn_status bind_all(model_weights *out, const binder *b) {
    size_t n = (size_t)b->config->num_hidden_layers, experts = (size_t)b->config->num_local_experts;
    MN_TRY(check_foreign(b));
    for (int role = N_LAYER_WEIGHTS; role < N_WEIGHTS; role++) {
        MN_TRY(bind_one(&out->globals[role - N_LAYER_WEIGHTS], b, (weight_role)role, 0, 0));
    }
    weight_source *head = &out->globals[WEIGHT_HEAD - N_LAYER_WEIGHTS];
    if (b->config->tie_word_embeddings) *head = out->globals[WEIGHT_EMBED - N_LAYER_WEIGHTS];
    out->layers = mem_alloc(n, sizeof *out->layers);
    if (experts) out->experts = mem_alloc(n * experts, sizeof *out->experts);
    if (!out->layers || (experts && !out->experts)) return mem_no_memory();
    for (size_t layer = 0; layer < n; layer++) MN_TRY(bind_layer(out, b, (int64_t)layer));
    return MN_OK;
}

static bool begins_with(const char *text, const char *begin) {
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* Whether what stands behind the root of a name is a part of the text half: a layer, or a weight beside them. */
static bool is_of_text(model_type type, const char *rest) {
    const naming *names = &namings[type];
    const size_t n = root_length(type);
    bool is = begins_with(rest, names->layers + n);
    for (int i = 0; i < MOST_TABLES && names->tables[i]; i++) {
        for (const weight_rule *rule = names->tables[i]; rule->role != N_WEIGHTS && !is; rule++) {
            if (rule->role >= N_LAYER_WEIGHTS && strncmp(rule->hf, names->layers, n) == 0)
                is = strncmp(rest, rule->hf + n, (size_t)(strrchr(rule->hf, '.') - rule->hf) + 1 - n) == 0;
        }
    }
    return is;
}

static size_t count_left_out(const binder *b) {
    static const char *const heads[] = {"lm_head.", "language_model.lm_head."};
    size_t n = 0;
    for (size_t i = 0; b->config->is_text_half && i < tensor_set_count(b->tensors); i++) {
        const char *name = tensor_set_at(b->tensors, i)->name;
        bool is_text = begins_with(name, b->prefix) && is_of_text(b->config->model_type, name + strlen(b->prefix));
        for (int k = 0; k < 2; k++) is_text = is_text || begins_with(name, heads[k]);
        n += !is_text;
    }
    return n;
}

mn_status model_bind(model_weights *out, const model_config *config, const tensor_set *tensors, bool is_gguf) {
    memset(out, 0, sizeof *out);
    binder b = {config, tensors, is_gguf, ""};
    if (!is_gguf) choose_prefix(&b);
    mn_status status = bind_all(out, &b);
    out->n_left_out = count_left_out(&b);
    if (status != MN_OK) model_weights_clear(out);
    return status;
}

void model_weights_clear(model_weights *weights) {
    mem_free(weights->layers);
    mem_free(weights->experts);
    memset(weights, 0, sizeof *weights);
}
