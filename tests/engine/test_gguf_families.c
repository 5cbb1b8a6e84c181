/* GGUF files of every family that the format supports, made from the golden checkpoints by the rules of the format's
 * converters (names, order of rows, folded values), give the logits of the checkpoints. Files with block types give the
 * logits of the same file with the dequantized weights.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>

#include "support/gguf_writer.h"
#include "support/scratch.h"
#include "checkpoint/quantize.h"
#include "tensor/safetensors.h"

/* ---- families ---- */

/* How the converter changes a checkpoint's tensor [rows][columns]. */
typedef enum change {
    KEEP,
    ADD_ONE,   /* norms that multiply by 1 + their weight */
    PAIR,      /* rows i and i + d/2 of each head of d become rows 2i and 2i + 1 */
    HALVE,     /* queries: the format scales scores by 1 / sqrt(head), the checkpoint by half of that */
    TRANSPOSE, /* stored [in][out] */
    SPLIT,     /* interleaved q, k, v of each head become all q, all k, all v */
    SQUEEZE,   /* [rows][1][columns] */
    NEGATIVE,  /* -exp(x) */
    STACK      /* an expert's matrix, to be stacked with the others */
} change;

typedef struct rename_rule {
    const char *hf, *gguf; /* '*' matches the number of an expert */
    change change;
} rename_rule;

enum { MOST_RULES = 40 };

typedef struct family {
    const char *name, *architecture;
    const char *layers; /* the prefix of a layer's number */
    const char *eps, *eps_key;
    rename_rule rules[MOST_RULES];
} family;

#define LLAMA_GLOBALS                                                                                                  \
    {"model.embed_tokens.weight", "token_embd.weight", KEEP}, {"model.norm.weight", "output_norm.weight", KEEP}, {     \
        "lm_head.weight", "output.weight", KEEP                                                                        \
    }
#define ATTENTION(q_change, k_change)                                                                                  \
    {"self_attn.q_proj.weight", "attn_q.weight", q_change}, {"self_attn.k_proj.weight", "attn_k.weight", k_change},    \
        {"self_attn.v_proj.weight", "attn_v.weight", KEEP}, {                                                          \
        "self_attn.o_proj.weight", "attn_output.weight", KEEP                                                          \
    }
#define MLP(folder)                                                                                                    \
    {folder "gate_proj.weight", "ffn_gate.weight", KEEP}, {folder "up_proj.weight", "ffn_up.weight", KEEP}, {          \
        folder "down_proj.weight", "ffn_down.weight", KEEP                                                             \
    }
#define GEMMA                                                                                                          \
    {"model.embed_tokens.weight", "token_embd.weight", KEEP}, {"model.norm.weight", "output_norm.weight", ADD_ONE},    \
        {"input_layernorm.weight", "attn_norm.weight", ADD_ONE},                                                       \
        {"post_attention_layernorm.weight", "post_attention_norm.weight", ADD_ONE},                                    \
        {"pre_feedforward_layernorm.weight", "ffn_norm.weight", ADD_ONE},                                              \
        {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", ADD_ONE}, MLP("mlp.")
#define MIXER(folder)                                                                                                  \
    {folder "in_proj.weight", "ssm_in.weight", KEEP}, {folder "conv1d.weight", "ssm_conv1d.weight", SQUEEZE},          \
        {folder "conv1d.bias", "ssm_conv1d.bias", KEEP}, {folder "x_proj.weight", "ssm_x.weight", KEEP},               \
        {folder "dt_proj.weight", "ssm_dt.weight", KEEP}, {folder "dt_proj.bias", "ssm_dt.bias", KEEP},                \
        {folder "A_log", "ssm_a", NEGATIVE}, {folder "D", "ssm_d", KEEP}, {                                            \
        folder "out_proj.weight", "ssm_out.weight", KEEP                                                               \
    }
#define RMS        "rms_norm_eps", "attention.layer_norm_rms_epsilon"
#define LAYER_NORM "layer_norm_eps", "attention.layer_norm_epsilon"
#define QKV_BIAS                                                                                                       \
    {"self_attn.q_proj.bias", "attn_q.bias", KEEP}, {"self_attn.k_proj.bias", "attn_k.bias", KEEP}, {                  \
        "self_attn.v_proj.bias", "attn_v.bias", KEEP                                                                   \
    }

static const family families[] = {
    {"mixtral",
     "llama",
     "model.layers.",
     RMS,
     {LLAMA_GLOBALS,
      {"input_layernorm.weight", "attn_norm.weight", KEEP},
      {"post_attention_layernorm.weight", "ffn_norm.weight", KEEP},
      ATTENTION(PAIR, PAIR),
      {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight", KEEP},
      {"block_sparse_moe.experts.*.w1.weight", "ffn_gate_exps.weight", STACK},
      {"block_sparse_moe.experts.*.w3.weight", "ffn_up_exps.weight", STACK},
      {"block_sparse_moe.experts.*.w2.weight", "ffn_down_exps.weight", STACK}}},
    {"granite",
     "granite",
     "model.layers.",
     RMS,
     {LLAMA_GLOBALS,
      {"input_layernorm.weight", "attn_norm.weight", KEEP},
      {"post_attention_layernorm.weight", "ffn_norm.weight", KEEP},
      ATTENTION(PAIR, PAIR),
      MLP("mlp.")}},
    {"gemma2", "gemma2", "model.layers.", RMS, {GEMMA, ATTENTION(HALVE, KEEP)}},
    {"gemma3",
     "gemma3",
     "model.layers.",
     RMS,
     {GEMMA,
      ATTENTION(KEEP, KEEP),
      {"self_attn.q_norm.weight", "attn_q_norm.weight", ADD_ONE},
      {"self_attn.k_norm.weight", "attn_k_norm.weight", ADD_ONE}}},
    {"gpt2",
     "gpt2",
     "transformer.h.",
     "layer_norm_epsilon",
     "attention.layer_norm_epsilon",
     {{"transformer.wte.weight", "token_embd.weight", KEEP},
      {"transformer.wpe.weight", "position_embd.weight", KEEP},
      {"transformer.ln_f.weight", "output_norm.weight", KEEP},
      {"transformer.ln_f.bias", "output_norm.bias", KEEP},
      {"ln_1.weight", "attn_norm.weight", KEEP},
      {"ln_1.bias", "attn_norm.bias", KEEP},
      {"attn.c_attn.weight", "attn_qkv.weight", TRANSPOSE},
      {"attn.c_attn.bias", "attn_qkv.bias", KEEP},
      {"attn.c_proj.weight", "attn_output.weight", TRANSPOSE},
      {"attn.c_proj.bias", "attn_output.bias", KEEP},
      {"ln_2.weight", "ffn_norm.weight", KEEP},
      {"ln_2.bias", "ffn_norm.bias", KEEP},
      {"mlp.c_fc.weight", "ffn_up.weight", TRANSPOSE},
      {"mlp.c_fc.bias", "ffn_up.bias", KEEP},
      {"mlp.c_proj.weight", "ffn_down.weight", TRANSPOSE},
      {"mlp.c_proj.bias", "ffn_down.bias", KEEP}}},
    {"gpt-neox",
     "gptneox",
     "gpt_neox.layers.",
     "layer_norm_eps",
     "attention.layer_norm_epsilon",
     {{"gpt_neox.embed_in.weight", "token_embd.weight", KEEP},
      {"gpt_neox.final_layer_norm.weight", "output_norm.weight", KEEP},
      {"gpt_neox.final_layer_norm.bias", "output_norm.bias", KEEP},
      {"embed_out.weight", "output.weight", KEEP},
      {"input_layernorm.weight", "attn_norm.weight", KEEP},
      {"input_layernorm.bias", "attn_norm.bias", KEEP},
      {"attention.query_key_value.weight", "attn_qkv.weight", SPLIT},
      {"attention.query_key_value.bias", "attn_qkv.bias", SPLIT},
      {"attention.dense.weight", "attn_output.weight", KEEP},
      {"attention.dense.bias", "attn_output.bias", KEEP},
      {"post_attention_layernorm.weight", "ffn_norm.weight", KEEP},
      {"post_attention_layernorm.bias", "ffn_norm.bias", KEEP},
      {"mlp.dense_h_to_4h.weight", "ffn_up.weight", KEEP},
      {"mlp.dense_h_to_4h.bias", "ffn_up.bias", KEEP},
      {"mlp.dense_4h_to_h.weight", "ffn_down.weight", KEEP},
      {"mlp.dense_4h_to_h.bias", "ffn_down.bias", KEEP}}},
    {"mamba",
     "mamba",
     "backbone.layers.",
     "layer_norm_epsilon",
     "attention.layer_norm_rms_epsilon",
     {{"backbone.embeddings.weight", "token_embd.weight", KEEP},
      {"backbone.norm_f.weight", "output_norm.weight", KEEP},
      {"norm.weight", "attn_norm.weight", KEEP},
      MIXER("mixer.")}},
    {"jamba",
     "jamba",
     "model.layers.",
     RMS,
     {{"model.embed_tokens.weight", "token_embd.weight", KEEP},
      {"model.final_layernorm.weight", "output_norm.weight", KEEP},
      {"lm_head.weight", "output.weight", KEEP},
      {"input_layernorm.weight", "attn_norm.weight", KEEP},
      {"pre_ff_layernorm.weight", "ffn_norm.weight", KEEP},
      ATTENTION(KEEP, KEEP),
      MIXER("mamba."),
      {"mamba.dt_layernorm.weight", "ssm_dt_norm.weight", KEEP},
      {"mamba.b_layernorm.weight", "ssm_b_norm.weight", KEEP},
      {"mamba.c_layernorm.weight", "ssm_c_norm.weight", KEEP},
      MLP("feed_forward."),
      {"feed_forward.router.weight", "ffn_gate_inp.weight", KEEP},
      {"feed_forward.experts.*.gate_proj.weight", "ffn_gate_exps.weight", STACK},
      {"feed_forward.experts.*.up_proj.weight", "ffn_up_exps.weight", STACK},
      {"feed_forward.experts.*.down_proj.weight", "ffn_down_exps.weight", STACK}}},
    {"qwen3-moe",
     "qwen3moe",
     "model.layers.",
     RMS,
     {LLAMA_GLOBALS,
      {"input_layernorm.weight", "attn_norm.weight", KEEP},
      {"post_attention_layernorm.weight", "ffn_norm.weight", KEEP},
      ATTENTION(KEEP, KEEP),
      {"self_attn.q_norm.weight", "attn_q_norm.weight", KEEP},
      {"self_attn.k_norm.weight", "attn_k_norm.weight", KEEP},
      {"mlp.gate.weight", "ffn_gate_inp.weight", KEEP},
      {"mlp.experts.*.gate_proj.weight", "ffn_gate_exps.weight", STACK},
      {"mlp.experts.*.up_proj.weight", "ffn_up_exps.weight", STACK},
      {"mlp.experts.*.down_proj.weight", "ffn_down_exps.weight", STACK}}},
    {"qwen2-moe",
     "qwen2moe",
     "model.layers.",
     RMS,
     {LLAMA_GLOBALS,
      {"input_layernorm.weight", "attn_norm.weight", KEEP},
      {"post_attention_layernorm.weight", "ffn_norm.weight", KEEP},
      ATTENTION(KEEP, KEEP),
      QKV_BIAS,
      {"mlp.gate.weight", "ffn_gate_inp.weight", KEEP},
      {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", KEEP},
      {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", KEEP},
      {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", KEEP},
      {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", KEEP},
      {"mlp.experts.*.gate_proj.weight", "ffn_gate_exps.weight", STACK},
      {"mlp.experts.*.up_proj.weight", "ffn_up_exps.weight", STACK},
      {"mlp.experts.*.down_proj.weight", "ffn_down_exps.weight", STACK}}},
    {"smollm3",
     "smollm3",
     "model.layers.",
     RMS,
     {LLAMA_GLOBALS,
      {"input_layernorm.weight", "attn_norm.weight", KEEP},
      {"post_attention_layernorm.weight", "ffn_norm.weight", KEEP},
      ATTENTION(PAIR, PAIR),
      MLP("mlp.")}},
    {"olmo2",
     "olmo2",
     "model.layers.",
     RMS,
     {LLAMA_GLOBALS,
      {"post_attention_layernorm.weight", "post_attention_norm.weight", KEEP},
      {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", KEEP},
      ATTENTION(KEEP, KEEP),
      {"self_attn.q_norm.weight", "attn_q_norm.weight", KEEP},
      {"self_attn.k_norm.weight", "attn_k_norm.weight", KEEP},
      MLP("mlp.")}},
    {"stablelm",
     "stablelm",
     "model.layers.",
     LAYER_NORM,
     {LLAMA_GLOBALS,
      {"model.norm.bias", "output_norm.bias", KEEP},
      {"input_layernorm.weight", "attn_norm.weight", KEEP},
      {"input_layernorm.bias", "attn_norm.bias", KEEP},
      {"post_attention_layernorm.weight", "ffn_norm.weight", KEEP},
      {"post_attention_layernorm.bias", "ffn_norm.bias", KEEP},
      ATTENTION(KEEP, KEEP),
      QKV_BIAS,
      MLP("mlp.")}},
    {"cohere",
     "command-r",
     "model.layers.",
     LAYER_NORM,
     {LLAMA_GLOBALS, {"input_layernorm.weight", "attn_norm.weight", KEEP}, ATTENTION(KEEP, KEEP), MLP("mlp.")}},
    {"phi",
     "phi2",
     "model.layers.",
     LAYER_NORM,
     {{"model.embed_tokens.weight", "token_embd.weight", KEEP},
      {"model.final_layernorm.weight", "output_norm.weight", KEEP},
      {"model.final_layernorm.bias", "output_norm.bias", KEEP},
      {"lm_head.weight", "output.weight", KEEP},
      {"lm_head.bias", "output.bias", KEEP},
      {"input_layernorm.weight", "attn_norm.weight", KEEP},
      {"input_layernorm.bias", "attn_norm.bias", KEEP},
      ATTENTION(KEEP, KEEP),
      QKV_BIAS,
      {"self_attn.dense.weight", "attn_output.weight", KEEP},
      {"self_attn.dense.bias", "attn_output.bias", KEEP},
      {"mlp.fc1.weight", "ffn_up.weight", KEEP},
      {"mlp.fc1.bias", "ffn_up.bias", KEEP},
      {"mlp.fc2.weight", "ffn_down.weight", KEEP},
      {"mlp.fc2.bias", "ffn_down.bias", KEEP}}},
    {"gemma",
     "gemma",
     "model.layers.",
     RMS,
     {{"model.embed_tokens.weight", "token_embd.weight", KEEP},
      {"model.norm.weight", "output_norm.weight", ADD_ONE},
      {"input_layernorm.weight", "attn_norm.weight", ADD_ONE},
      {"post_attention_layernorm.weight", "ffn_norm.weight", ADD_ONE},
      ATTENTION(KEEP, KEEP),
      MLP("mlp.")}},
};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

/* ---- metadata ---- */

static const struct {
    const char *gguf, *hf[2];
} size_keys[] = {
    {"block_count", {"num_hidden_layers", "n_layer"}},
    {"embedding_length", {"hidden_size", "n_embd"}},
    {"vocab_size", {"vocab_size", NULL}},
    {"attention.head_count", {"num_attention_heads", "n_head"}},
    {"attention.key_length", {"head_dim", NULL}},
    {"attention.value_length", {"head_dim", NULL}},
    {"attention.sliding_window", {"sliding_window", NULL}},
    {"expert_count", {"num_local_experts", "num_experts"}},
    {"expert_used_count", {"num_experts_per_tok", NULL}},
    {"expert_feed_forward_length", {"moe_intermediate_size", NULL}},
    {"expert_shared_feed_forward_length", {"shared_expert_intermediate_size", NULL}},
    {"ssm.conv_kernel", {"conv_kernel", "mamba_d_conv"}},
    {"ssm.state_size", {"state_size", "mamba_d_state"}},
    {"ssm.time_step_rank", {"time_step_rank", "mamba_dt_rank"}},
};

static const struct {
    const char *gguf, *hf;
} real_keys[] = {
    {"attn_logit_softcapping", "attn_logit_softcapping"},
    {"final_logit_softcapping", "final_logit_softcapping"},
    {"attention.scale", "attention_multiplier"},
    {"residual_scale", "residual_multiplier"},
    {"embedding_scale", "embedding_multiplier"},
    {"logit_scale", "logits_scaling"},
    {"logit_scale", "logit_scale"},
};

typedef struct maker {
    const family *family;
    json_doc *doc;
    const json *config;
    tensor_set *tensors;
    gguf_writer writer;
    dtype type;         /* type of matrices whose rows fill its blocks; others are F32 */
    bool as_meant;      /* store the dequantized F32 values of such blocks instead */
    bool experts_apart; /* the older format: one tensor for each expert */
    bool listed_window; /* a list with one boolean for each layer instead of a period */
} maker;

static int64_t size_of(const maker *m, const char *name, const char *other) {
    const json *value = json_get(m->config, name);
    if (!value && other) value = json_get(m->config, other);
    return value && value->kind == JSON_INT ? value->integer : 0;
}

static const char *key_of(const maker *m, const char *name) {
    static char key[96];
    snprintf(key, sizeof key, "%s.%s", m->family->architecture, name);
    return key;
}

static void put_size(maker *m, const char *name, int64_t value) {
    gguf_writer_int(&m->writer, key_of(m, name), GGUF_U32, value);
}

static void put_real(maker *m, const char *name, const json *value) {
    if (value && (value->kind == JSON_REAL || value->kind == JSON_INT))
        gguf_writer_real(&m->writer, key_of(m, name), GGUF_F32,
                         value->kind == JSON_INT ? (double)value->integer : value->real);
}

static bool is(const maker *m, const char *family_name) {
    return strcmp(m->family->name, family_name) == 0;
}

/* Which layers have attention or slide, and how many heads. */
static void put_layers(maker *m) {
    const json *types = json_get(m->config, "layer_types");
    int64_t n = size_of(m, "num_hidden_layers", "n_layer"), heads = size_of(m, "num_key_value_heads", NULL);
    uint32_t by_layer[16] = {0};
    assert_true(n <= 16);
    if (is(m, "jamba")) {
        int64_t period = size_of(m, "attn_layer_period", NULL), offset = size_of(m, "attn_layer_offset", NULL);
        for (int64_t i = 0; i < n; i++) by_layer[i] = i % period == offset ? (uint32_t)heads : 0;
        gguf_writer_array(&m->writer, key_of(m, "attention.head_count_kv"), GGUF_U32, 4, by_layer, (size_t)n);
    } else if (heads) {
        put_size(m, "attention.head_count_kv", heads);
    }
    if (m->listed_window) {
        uint8_t sliding[16];
        for (int64_t i = 0; i < n; i++) sliding[i] = strcmp(types->items[i].string, "sliding_attention") == 0;
        gguf_writer_array(&m->writer, key_of(m, "attention.sliding_window_pattern"), GGUF_BOOL, 1, sliding, (size_t)n);
    } else if (is(m, "gemma3")) {
        put_size(m, "attention.sliding_window_pattern", size_of(m, "_sliding_window_pattern", NULL));
    }
}

static void put_metadata(maker *m) {
    gguf_writer_text(&m->writer, "general.architecture", m->family->architecture);
    for (size_t i = 0; i < sizeof size_keys / sizeof size_keys[0]; i++) {
        int64_t value = size_of(m, size_keys[i].hf[0], size_keys[i].hf[1]);
        if (value) put_size(m, size_keys[i].gguf, value);
    }
    for (size_t i = 0; i < sizeof real_keys / sizeof real_keys[0]; i++)
        put_real(m, real_keys[i].gguf, json_get(m->config, real_keys[i].hf));
    put_real(m, m->family->eps_key, json_get(m->config, m->family->eps));
    put_layers(m);
    int64_t hidden = size_of(m, "hidden_size", "n_embd"), inner = size_of(m, "intermediate_size", "n_inner");
    if (is(m, "mamba")) { /* keys without meaning for the family are written as well */
        put_size(m, "context_length", 1 << 20);
        put_size(m, "feed_forward_length", 0);
        put_size(m, "attention.head_count", 0);
        put_size(m, "ssm.inner_size", inner);
        gguf_writer_bool(&m->writer, key_of(m, "ssm.dt_b_c_rms"), false);
        return;
    }
    put_size(m, "context_length", size_of(m, "max_position_embeddings", "n_positions"));
    put_size(m, "feed_forward_length", inner);
    if (is(m, "jamba")) put_size(m, "ssm.inner_size", size_of(m, "mamba_expand", NULL) * hidden);
    const json *partial = json_get(m->config, "partial_rotary_factor"),
               *parallel = json_get(m->config, "use_parallel_residual");
    if (partial) {
        double head = (double)(hidden / size_of(m, "num_attention_heads", NULL));
        put_size(m, "rope.dimension_count", (int64_t)(partial->real * head));
    }
    if (parallel) gguf_writer_bool(&m->writer, key_of(m, "use_parallel_residual"), parallel->boolean);
    if (is(m, "granite") || is(m, "smollm3"))
        put_size(m, "rope.dimension_count", hidden / size_of(m, "num_attention_heads", NULL));
    if (is(m, "mixtral")) put_size(m, "rope.dimension_count", size_of(m, "head_dim", NULL));
    if (!is(m, "gemma2")) put_real(m, "rope.freq_base", json_get(m->config, "rope_theta"));
}

/* ---- tensors ---- */

/* Whether the name matches the rule; the number that '*' matches (-1: none). */
static bool fits(const char *rule, const char *name, int *number) {
    const char *star = strchr(rule, '*');
    *number = -1;
    if (!star) return strcmp(rule, name) == 0;
    size_t n = (size_t)(star - rule);
    if (strncmp(rule, name, n) != 0) return false;
    char *end;
    *number = (int)strtol(name + n, &end, 10);
    return end > name + n && strcmp(end, star + 1) == 0;
}

/* The rule of a checkpoint's tensor, its layer (-1: none) and expert. */
static const rename_rule *find_rule(const maker *m, const char *name, int *layer, int *expert) {
    size_t n = strlen(m->family->layers);
    *layer = -1;
    if (strncmp(name, m->family->layers, n) == 0) {
        char *end;
        *layer = (int)strtol(name + n, &end, 10);
        name = end + 1;
    }
    for (const rename_rule *rule = m->family->rules; rule->hf; rule++)
        if (fits(rule->hf, name, expert)) return rule;
    fail_msg("%s: no rule for %s", m->family->name, name);
    return NULL;
}

/* Row of the file for row `row` of the checkpoint. */
static int64_t row_place(const maker *m, change how, int64_t row, int64_t rows) {
    int64_t heads = size_of(m, "num_attention_heads", "n_head"), d = size_of(m, "head_dim", NULL);
    if (d == 0 && heads) d = size_of(m, "hidden_size", "n_embd") / heads;
    if (how == PAIR) return row / d * d + (row % d < d / 2 ? 2 * (row % d) : 2 * (row % d) - d + 1);
    if (how == SPLIT) return row / d % 3 * (rows / 3) + row / (3 * d) * d + row % d;
    return row;
}

static float changed_value(change how, float x) {
    return how == ADD_ONE ? x + 1 : how == HALVE ? x / 2 : how == NEGATIVE ? -expf(x) : x;
}

/* The tensor's values as stored in the file; shape [*rows][*columns]. */
static float *changed(const maker *m, change how, const tensor *t, int64_t *rows, int64_t *columns) {
    const float *from = (const float *)(const void *)t->data;
    *rows = t->shape[0];
    *columns = t->n_dims == 1 ? 1 : t->shape[t->n_dims - 1];
    float *out = malloc((size_t)(*rows * *columns) * sizeof *out);
    assert_true(t->type == DTYPE_F32 && t->n_dims <= (how == SQUEEZE ? 3 : 2));
    for (int64_t r = 0; r < *rows; r++) {
        for (int64_t c = 0; c < *columns; c++) {
            int64_t to = row_place(m, how, r, *rows) * *columns + c;
            if (how == TRANSPOSE) to = c * *rows + r;
            out[to] = changed_value(how, from[r * *columns + c]);
        }
    }
    if (how == TRANSPOSE) {
        int64_t swapped = *rows;
        *rows = *columns;
        *columns = swapped;
    }
    return out;
}

/* Tensors that the converters keep in F32: norms, routers, positions, states. */
static bool is_plain(const char *name, int n_dims) {
    static const char *const parts[] = {"_norm", "ffn_gate_inp", "position_embd", "ssm_conv1d"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strstr(name, parts[i])) return true;
    return n_dims == 1 || n < 7 || strcmp(name + n - 7, ".weight") != 0;
}

static void put_tensor(maker *m, const char *name, int n_dims, const int64_t *shape, float *values) {
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++) n *= shape[i];
    bool plain = is_plain(name, n_dims) || shape[n_dims - 1] % dtype_table[m->type].block != 0;
    if (!plain && m->as_meant) {
        void *stored = malloc((size_t)n * sizeof *values);
        assert_ok(quantize_from_f32(m->type, stored, values, n));
        dtype_table[m->type].to_f32(values, stored, (size_t)n);
        free(stored);
    }
    gguf_writer_tensor_f32(&m->writer, name, plain || m->as_meant ? DTYPE_F32 : m->type, n_dims, shape, values);
}

/* All experts of a layer: one tensor, or in the older format one for each. */
static void put_experts(maker *m, const rename_rule *rule, int layer, int64_t n_experts) {
    float *all = NULL;
    int64_t rows = 0, columns = 0;
    const char *star = strchr(rule->hf, '*'), *stack = strstr(rule->gguf, "_exps");
    char name[128];
    for (int64_t e = 0; e < n_experts; e++) {
        snprintf(name, sizeof name, "%s%d.%.*s%d%s", m->family->layers, layer, (int)(star - rule->hf), rule->hf, (int)e,
                 star + 1);
        const tensor *t = tensor_set_find(m->tensors, name);
        assert_non_null(t);
        float *one = changed(m, KEEP, t, &rows, &columns);
        snprintf(name, sizeof name, "blk.%d.%.*s.%d%s", layer, (int)(stack - rule->gguf), rule->gguf, (int)e,
                 stack + 5);
        if (m->experts_apart) put_tensor(m, name, 2, (int64_t[]){rows, columns}, one);
        if (!all) all = malloc((size_t)(n_experts * rows * columns) * sizeof *all);
        memcpy(all + e * rows * columns, one, (size_t)(rows * columns) * sizeof *all);
        free(one);
    }
    snprintf(name, sizeof name, "blk.%d.%s", layer, rule->gguf);
    if (!m->experts_apart) put_tensor(m, name, 3, (int64_t[]){n_experts, rows, columns}, all);
    free(all);
}

static void put_tensors(maker *m) {
    for (size_t i = 0; i < tensor_set_count(m->tensors); i++) {
        const tensor *t = tensor_set_at(m->tensors, i);
        int layer, expert = -1;
        const rename_rule *rule = find_rule(m, t->name, &layer, &expert);
        if (rule->change == STACK) {
            if (expert == 0) put_experts(m, rule, layer, size_of(m, "num_local_experts", "num_experts"));
            continue;
        }
        char name[128];
        int64_t shape[2];
        if (layer >= 0) snprintf(name, sizeof name, "blk.%d.%s", layer, rule->gguf);
        if (layer < 0) snprintf(name, sizeof name, "%s", rule->gguf);
        float *values = changed(m, rule->change, t, &shape[0], &shape[1]);
        /* Writers differ in whether a matrix of one row keeps that dimension. */
        bool flat = t->n_dims == 1 || (shape[0] == 1 && m->type != DTYPE_F32);
        if (flat && shape[0] == 1) shape[0] = shape[1];
        put_tensor(m, name, flat ? 1 : 2, shape, values);
        free(values);
    }
}

/* Makes the file according to the maker. */
static const char *make_file(maker m, const char *file) {
    char name[128];
    snprintf(name, sizeof name, "golden/%s/config.json", m.family->name);
    m.doc = open_json(data_path(name));
    m.config = json_root(m.doc);
    snprintf(name, sizeof name, "golden/%s/model.safetensors", m.family->name);
    assert_ok(safetensors_open(&m.tensors, data_path(name)));
    put_metadata(&m);
    put_tensors(&m);
    const char *path = scratch_path(file);
    gguf_writer_save(&m.writer, path);
    gguf_writer_clear(&m.writer);
    tensor_set_close(&m.tensors);
    json_close(&m.doc);
    return path;
}

/* ---- logits ---- */

enum { MOST_IDS = 64 };

typedef struct golden {
    size_t n, vocab;
    int32_t ids[MOST_IDS];
    float *logits; /* [n][vocab] */
} golden;

static golden read_golden(const family *f) {
    golden g = {0};
    char name[128];
    tensor_set *set = NULL;
    snprintf(name, sizeof name, "golden/%s/tensors.safetensors", f->name);
    assert_ok(safetensors_open(&set, data_path(name)));
    const tensor *logits = tensor_set_find(set, "score.logits"), *ids = tensor_set_find(set, "score.ids");
    g.n = (size_t)logits->shape[0];
    g.vocab = (size_t)logits->shape[1];
    assert_true(g.n <= MOST_IDS);
    memcpy(g.ids, ids->data, g.n * sizeof *g.ids);
    g.logits = malloc(g.n * g.vocab * sizeof *g.logits);
    memcpy(g.logits, logits->data, g.n * g.vocab * sizeof *g.logits);
    tensor_set_close(&set);
    return g;
}

static float *logits_of(const char *path, const char *form, const golden *g, int piece) {
    mn_model *model = engine_model(path, form, "auto", engine_threads());
    assert_int_equal(engine_vocab(model), (int32_t)g->vocab);
    float *logits = engine_logits(model, (engine_cache){.dtype = "f32", .page_tokens = 4}, g->ids, g->n, piece, NULL);
    mn_model_close(&model);
    return logits;
}

static void check_golden(maker m, const char *what) {
    golden g = read_golden(m.family);
    char path[1024];
    snprintf(path, sizeof path, "%s", make_file(m, "family.gguf"));
    for (int piece = 0; piece <= 7; piece += 7) {
        float *logits = logits_of(path, "f32", &g, piece);
        double distance = engine_distance(logits, g.logits, g.n * g.vocab);
        if (!(distance <= 2e-4)) fail_msg("%s, %s: %g from the golden logits", m.family->name, what, distance);
        free(logits);
    }
    free(g.logits);
}

static void files_in_F32_give_the_golden_logits(void **state) {
    (void)state;
    for (int f = 0; f < N_FAMILIES; f++) check_golden((maker){.family = &families[f], .type = DTYPE_F32}, "F32");
}

static const family *family_named(const char *name) {
    int i = 0;
    while (strcmp(families[i].name, name) != 0) i++;
    return &families[i];
}

static void older_formats_give_the_golden_logits(void **state) {
    (void)state;
    check_golden((maker){.family = family_named("mixtral"), .type = DTYPE_F32, .experts_apart = true}, "experts apart");
    check_golden((maker){.family = family_named("gemma3"), .type = DTYPE_F32, .listed_window = true}, "listed windows");
    check_golden((maker){.family = family_named("gemma2"), .type = DTYPE_F32, .listed_window = true}, "listed windows");
}

/* Computed in float32, blocks equal their dequantized weights; integer computation is close to that. */
static void check_blocks(const family *f, dtype type) {
    golden g = read_golden(f);
    size_t n = g.n * g.vocab;
    char stored[1024], meant[1024];
    snprintf(stored, sizeof stored, "%s", make_file((maker){.family = f, .type = type}, "stored.gguf"));
    snprintf(meant, sizeof meant, "%s", make_file((maker){.family = f, .type = type, .as_meant = true}, "meant.gguf"));
    float *wanted = logits_of(meant, "f32", &g, 0), *got = logits_of(stored, "f32", &g, 0),
          *fast = logits_of(stored, "auto", &g, 0);
    double exact = engine_distance(got, wanted, n), rounding = engine_distance(wanted, g.logits, n),
           share = engine_mean_square(fast, wanted, n) / engine_spread(wanted, n);
    if (!(exact <= 2e-4)) fail_msg("%s in %s: %g from the dequantized weights", f->name, dtype_table[type].name, exact);
    if (!(rounding > 1e-3)) fail_msg("%s in %s: nothing was rounded", f->name, dtype_table[type].name);
    if (!(share > 1e-6 && share < 0.08))
        fail_msg("%s in %s: integer computation is %g of the logits away", f->name, dtype_table[type].name, share);
    free(wanted);
    free(got);
    free(fast);
    free(g.logits);
}

static void blocks_equal_their_dequantized_weights(void **state) {
    (void)state;
    for (int f = 0; f < N_FAMILIES; f++) {
        check_blocks(&families[f], DTYPE_Q8_0);
        check_blocks(&families[f], DTYPE_Q4_1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_in_F32_give_the_golden_logits),
        cmocka_unit_test(older_formats_give_the_golden_logits),
        cmocka_unit_test(blocks_equal_their_dequantized_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
