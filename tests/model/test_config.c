/* Configurations from config.json: the fields of tiny and real ones, refusals and their messages, and thousands of
 * damaged ones.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>

#include "model/config.h"
#include "model/names.h"
#include "model/rope.h"

static mn_status load_text(model_config *out, const char *text) {
    json_doc *doc = NULL;
    assert_ok(json_parse(&doc, text, strlen(text), JSON_PYTHON, "config.json"));
    mn_status status = config_from_json(out, json_root(doc), "config.json");
    json_close(&doc);
    return status;
}

static model_config load_file(const char *path) {
    model_config config;
    json_doc *doc = open_json(path);
    mn_status status = config_from_json(&config, json_root(doc), path);
    if (status != MN_OK) fail_msg("%s: %s", path, mn_last_error());
    json_close(&doc);
    return config;
}

/* Invariants that later code relies on without checks. */
static void assert_sound(const model_config *c) {
    assert_in_range(c->model_type, 0, N_MODEL_TYPES - 1);
    assert_in_range(c->hidden_size, 1, 1 << 20);
    assert_in_range(c->num_hidden_layers, 1, 4096);
    bool attends = false, recurs = false;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        assert_in_range(c->layer_types[i], 0, N_LAYER_TYPES - 1);
        *(c->layer_types[i] == LAYER_MAMBA ? &recurs : &attends) = true;
    }
    if (attends || c->num_attention_heads) {
        assert_in_range(c->intermediate_size, 1, 1 << 22);
        assert_in_range(c->num_attention_heads, 1, 4096);
        assert_in_range(c->num_key_value_heads, 1, c->num_attention_heads);
        assert_int_equal(c->num_attention_heads % c->num_key_value_heads, 0);
        assert_in_range(c->head_dim, 2, 1024);
        assert_int_equal(c->head_dim % 2, 0);
        assert_true(c->attention_multiplier > 0 && isfinite(c->attention_multiplier));
    }
    if (c->positions == POSITIONS_ROTARY) {
        assert_in_range(c->rotary_dim, 2, c->head_dim);
        assert_int_equal(c->rotary_dim % 2, 0);
    } else {
        assert_int_equal(c->rotary_dim, 0);
    }
    if (recurs) {
        assert_in_range(c->conv_kernel, 2, 64);
        assert_in_range(c->state_size, 1, 256);
        assert_in_range(c->mamba_size, 1, 1 << 26);
        assert_in_range(c->time_step_rank, 1, 1 << 20);
    }
    assert_in_range(c->num_local_experts, 0, 1024);
    assert_in_range(c->num_experts_per_tok, 0, c->num_local_experts);
    assert_in_range(c->expert_layer_period, 1, 4096);
    assert_in_range(c->expert_layer_offset, 0, c->expert_layer_period - 1);
    assert_true(c->attn_logit_softcapping >= 0 && c->final_logit_softcapping >= 0);
    assert_true(c->logits_scaling > 0 && c->embedding_multiplier > 0 && c->residual_multiplier > 0);
    assert_in_range(c->vocab_size, 1, 1 << 24);
    assert_in_range(c->max_position_embeddings, 1, INT32_MAX);
    assert_true(c->norm_eps > 0 && c->norm_eps <= 1);
    bool slides = false;
    for (int64_t i = 0; i < c->num_hidden_layers; i++) slides = slides || c->layer_types[i] == LAYER_SLIDING_ATTENTION;
    assert_int_equal(slides, c->sliding_window > 0);
    assert_true(c->bos_token_id >= -1 && c->pad_token_id >= -1);
    for (size_t i = 0; i < c->n_eos_token_id; i++) assert_true(c->eos_token_id[i] >= 0);

    double f[512], factor = 0;
    const int64_t lengths[] = {1, 100000};
    for (int k = 0; c->positions == POSITIONS_ROTARY && k < 2; k++) {
        rope_frequencies(c, lengths[k], f, &factor);
        assert_true(factor > 0 && isfinite(factor));
        for (int64_t j = 0; j < c->rotary_dim / 2; j++) assert_true(f[j] >= 0 && isfinite(f[j]));
    }
    for (int role = 0; role < N_WEIGHTS; role++) {
        weight_place place;
        if (!weight_find_place(c, false, (weight_role)role, c->num_hidden_layers - 1, 0, &place)) continue;
        const weight_source *source = &place.source;
        int64_t rows = place.shape[source->is_transposed ? 1 : 0], last = weight_source_row(source, source->n_rows - 1);
        assert_true(source->first_row >= 0 && source->n_rows > 0 && last >= 0 && last < rows);
    }
}

/* ---- fields ---- */

/* heads, key-value heads, head_dim; switches of attention_bias (q k v together, o), mlp_bias, tie, qk_norm; window and
 * how many layers slide; the rope type. */
static const struct {
    const char *name;
    model_type type;
    int heads, kv_heads, head_dim;
    bool qkv_bias, o_bias, mlp_bias, tie, qk_norm;
    int window, n_sliding;
    rope_type rope;
} read_cases[] = {
    {"llama", MODEL_LLAMA, 3, 1, 32, false, false, false, true, false, 0, 0, ROPE_DEFAULT},
    {"llama-rope-linear", MODEL_LLAMA, 3, 1, 32, false, false, false, false, false, 0, 0, ROPE_LINEAR},
    {"llama-rope-llama3", MODEL_LLAMA, 3, 1, 32, false, false, false, false, false, 0, 0, ROPE_LLAMA3},
    {"llama-rope-yarn", MODEL_LLAMA, 3, 1, 32, false, false, false, false, false, 0, 0, ROPE_YARN},
    {"llama-untied-bias", MODEL_LLAMA, 4, 2, 16, true, true, true, false, false, 0, 0, ROPE_DEFAULT},
    {"mistral-full", MODEL_MISTRAL, 3, 1, 32, false, false, false, false, false, 0, 0, ROPE_DEFAULT},
    {"mistral-window", MODEL_MISTRAL, 4, 2, 16, false, false, false, false, false, 8, 3, ROPE_DEFAULT},
    {"mistral-7b-v0.1", MODEL_MISTRAL, 32, 8, 128, false, false, false, false, false, 4096, 32, ROPE_DEFAULT},
    {"qwen2", MODEL_QWEN2, 4, 2, 24, true, false, false, true, false, 0, 0, ROPE_DEFAULT},
    {"qwen3", MODEL_QWEN3, 4, 2, 16, false, false, false, false, true, 0, 0, ROPE_DEFAULT},
    {"phi3", MODEL_PHI3, 3, 1, 32, false, false, false, false, false, 0, 0, ROPE_DEFAULT},
    {"phi3-window", MODEL_PHI3, 4, 2, 16, false, false, false, false, false, 11, 3, ROPE_DEFAULT},
    {"phi3-longrope", MODEL_PHI3, 3, 1, 32, false, false, false, false, false, 0, 0, ROPE_LONGROPE},
    {"tinyllama-1.1b-chat", MODEL_LLAMA, 32, 4, 64, false, false, false, false, false, 0, 0, ROPE_DEFAULT},
};
enum { N_READ_CASES = sizeof read_cases / sizeof *read_cases };

static const char *config_path(const char *name) {
    char file[128];
    snprintf(file, sizeof file, "configs/%s.json", name);
    return data_path(file);
}

/* Fields that are copied from config.json unchanged. */
static void assert_as_written(const model_config *c, const json *root, const char *what) {
    const struct {
        const char *key;
        double got;
    } fields[] = {
        {"hidden_size", (double)c->hidden_size},
        {"intermediate_size", (double)c->intermediate_size},
        {"num_hidden_layers", (double)c->num_hidden_layers},
        {"num_attention_heads", (double)c->num_attention_heads},
        {"num_key_value_heads", (double)c->num_key_value_heads},
        {"vocab_size", (double)c->vocab_size},
        {"max_position_embeddings", (double)c->max_position_embeddings},
        {"rms_norm_eps", c->norm_eps},
        {"rope_theta", c->rope_theta},
        {"bos_token_id", (double)c->bos_token_id},
        {"eos_token_id", c->n_eos_token_id == 1 ? (double)c->eos_token_id[0] : -1},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json *value = json_get(root, fields[i].key);
        if (!value) fail_msg("%s: no %s", what, fields[i].key);
        double expected = value->kind == JSON_INT ? (double)value->integer : value->real;
        if (fields[i].got != expected)
            fail_msg("%s: %s is %g, expected %g", what, fields[i].key, fields[i].got, expected);
    }
}

static void every_field_is_read(void **state) {
    (void)state;
    for (size_t i = 0; i < N_READ_CASES; i++) {
        const char *path = config_path(read_cases[i].name);
        model_config c = load_file(path);
        json_doc *doc = open_json(path);
        assert_sound(&c);
        assert_as_written(&c, json_root(doc), path);
        assert_string_equal(model_type_name(c.model_type), json_get(json_root(doc), "model_type")->string);
        json_close(&doc);
        assert_int_equal(c.model_type, read_cases[i].type);
        assert_int_equal(c.num_attention_heads, read_cases[i].heads);
        assert_int_equal(c.num_key_value_heads, read_cases[i].kv_heads);
        assert_int_equal(c.head_dim, read_cases[i].head_dim);
        assert_int_equal(c.rotary_dim, read_cases[i].head_dim);
        assert_int_equal(c.attention_bias.q, read_cases[i].qkv_bias);
        assert_int_equal(c.attention_bias.k, read_cases[i].qkv_bias);
        assert_int_equal(c.attention_bias.v, read_cases[i].qkv_bias);
        assert_int_equal(c.attention_bias.o, read_cases[i].o_bias);
        assert_int_equal(c.mlp_bias, read_cases[i].mlp_bias);
        assert_int_equal(c.tie_word_embeddings, read_cases[i].tie);
        assert_int_equal(c.qk_norm, read_cases[i].qk_norm);
        assert_int_equal(c.sliding_window, read_cases[i].window);
        int n_sliding = 0;
        for (int64_t layer = 0; layer < c.num_hidden_layers; layer++)
            n_sliding += c.layer_types[layer] == LAYER_SLIDING_ATTENTION;
        assert_int_equal(n_sliding, read_cases[i].n_sliding);
        assert_int_equal(c.rope_scaling.rope_type, read_cases[i].rope);
        assert_int_equal(c.hidden_act, ACTIVATION_SILU);
        assert_true(fabs(c.attention_multiplier * c.attention_multiplier * (double)c.head_dim - 1) < 1e-15);
        assert_true(c.residual_multiplier == 1 && c.embedding_multiplier == 1 && c.logits_scaling == 1);
        assert_false(c.permuted_rows);
        model_config_clear(&c);
        assert_null(c.layer_types);
    }
}

static void rope_scaling_is_read(void **state) {
    (void)state;
    model_config c = load_file(config_path("llama-rope-llama3"));
    assert_true(c.rope_scaling.factor == 8 && c.rope_scaling.low_freq_factor == 1 &&
                c.rope_scaling.high_freq_factor == 4);
    assert_int_equal(c.rope_scaling.original_max_position_embeddings, 64);
    model_config_clear(&c);
    c = load_file(config_path("llama-rope-yarn"));
    assert_true(c.rope_scaling.factor == 4 && c.rope_scaling.beta_fast == 32 && c.rope_scaling.beta_slow == 1);
    assert_true(c.rope_scaling.truncate && c.rope_scaling.attention_factor == 0);
    assert_int_equal(c.rope_scaling.original_max_position_embeddings, 64);
    model_config_clear(&c);
    c = load_file(config_path("phi3-longrope"));
    assert_true(c.rope_scaling.factor == 4 && c.rope_scaling.short_factor[15] == 1.3 &&
                c.rope_scaling.long_factor[15] == 6);
    assert_int_equal(c.rope_scaling.original_max_position_embeddings, 32);
    model_config_clear(&c);
}

#define MINIMAL                                                                                                        \
    "\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":4,\"num_attention_heads\":4,"                   \
    "\"vocab_size\":64"

static void absent_fields_take_the_defaults_of_their_type(void **state) {
    (void)state;
    model_config c;
    assert_ok(load_text(&c, "{\"model_type\":\"llama\"," MINIMAL "}"));
    assert_sound(&c);
    assert_int_equal(c.num_key_value_heads, 4);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.max_position_embeddings, 2048);
    assert_true(c.norm_eps == 1e-6 && c.rope_theta == 10000);
    assert_int_equal(c.bos_token_id, -1);
    assert_int_equal(c.n_eos_token_id, 0);
    model_config_clear(&c);
    /* Mistral's default is a window of 4096; null means none. */
    assert_ok(load_text(&c, "{\"model_type\":\"mistral\"," MINIMAL "}"));
    assert_int_equal(c.sliding_window, 4096);
    model_config_clear(&c);
    assert_ok(load_text(&c, "{\"model_type\":\"mistral\",\"sliding_window\":null," MINIMAL "}"));
    assert_int_equal(c.sliding_window, 0);
    model_config_clear(&c);
    assert_ok(load_text(&c, "{\"model_type\":\"qwen3\"," MINIMAL "}"));
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.sliding_window, 0);
    model_config_clear(&c);
    assert_ok(load_text(&c, "{\"model_type\":\"qwen3\",\"head_dim\":null,\"attention_bias\":true," MINIMAL "}"));
    assert_int_equal(c.head_dim, 8);
    assert_true(c.attention_bias.q && c.attention_bias.o);
    model_config_clear(&c);
    assert_ok(load_text(&c, "{\"model_type\":\"phi3\"," MINIMAL "}"));
    assert_true(c.norm_eps == 1e-5);
    model_config_clear(&c);
    static const struct {
        const char *more;
        bool has_bias;
    } experts[] = {{"", true}, {",\"qkv_bias\":true", true}, {",\"qkv_bias\":false", false}};
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{\"model_type\":\"qwen2_moe\",\"moe_intermediate_size\":8,"
                 "\"shared_expert_intermediate_size\":8%s," MINIMAL "}",
                 experts[i].more);
        assert_ok(load_text(&c, text));
        assert_int_equal(c.attention_bias.q && c.attention_bias.k && c.attention_bias.v, experts[i].has_bias);
        assert_false(c.attention_bias.o);
        model_config_clear(&c);
    }
    /* Keys of other families are ignored. */
    assert_ok(load_text(&c, "{\"model_type\":\"qwen2\",\"attention_bias\":true,\"mlp_bias\":true," MINIMAL "}"));
    assert_true(c.attention_bias.q && !c.attention_bias.o && !c.mlp_bias);
    model_config_clear(&c);
}

/* Fields of families other than Llama, from their files or by default. */
static void fields_of_all_families_are_read(void **state) {
    (void)state;
    model_config c;
    assert_ok(load_text(&c, "{\"model_type\":\"mixtral\"," MINIMAL "}"));
    assert_sound(&c);
    assert_true(c.num_local_experts == 8 && c.num_experts_per_tok == 2 && c.norm_topk_prob && c.rope_theta == 1e6);
    model_config_clear(&c);
    assert_ok(
        load_text(&c, "{\"model_type\":\"granite\",\"residual_multiplier\":0.22,\"logits_scaling\":8," MINIMAL "}"));
    assert_true(c.residual_multiplier == 0.22 && c.logits_scaling == 8 && c.attention_multiplier == 1);
    model_config_clear(&c);
    assert_ok(load_text(&c, "{\"model_type\":\"gemma2\",\"head_dim\":8,\"sliding_window\":16," MINIMAL "}"));
    assert_sound(&c);
    assert_true(c.attn_logit_softcapping == 50 && c.final_logit_softcapping == 30 && c.norm_adds_one && c.post_norms);
    assert_true(c.attention_multiplier == 1 / 16.0 && c.tie_word_embeddings && c.hidden_act == ACTIVATION_GELU_TANH);
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.layer_types[i], i % 2 ? LAYER_FULL_ATTENTION : LAYER_SLIDING_ATTENTION);
    model_config_clear(&c);
    assert_ok(load_text(
        &c,
        "{\"model_type\":\"gemma2\",\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null," MINIMAL "}"));
    assert_true(c.attn_logit_softcapping == 0 && c.final_logit_softcapping == 0);
    model_config_clear(&c);
    assert_ok(load_text(
        &c, "{\"model_type\":\"gemma3_text\",\"sliding_window\":16,\"sliding_window_pattern\":2," MINIMAL "}"));
    assert_true(c.rope_local_base_freq == 10000 && c.rope_theta == 1e6 && c.qk_norm && c.attn_logit_softcapping == 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.layer_types[i], i % 2 ? LAYER_FULL_ATTENTION : LAYER_SLIDING_ATTENTION);
    model_config_clear(&c);
    assert_ok(load_text(
        &c, "{\"model_type\":\"gpt2\",\"n_embd\":32,\"n_layer\":2,\"n_head\":4,\"n_inner\":null,\"vocab_size\":64}"));
    assert_sound(&c);
    assert_true(c.intermediate_size == 128 && c.max_position_embeddings == 1024 && c.positions == POSITIONS_LEARNED);
    assert_true(c.layer_norm && !c.gated_mlp && c.mlp_bias && c.attention_bias.o);
    model_config_clear(&c);
    assert_ok(load_text(&c, "{\"model_type\":\"gpt_neox\",\"rotary_pct\":0.5,\"rotary_emb_base\":5000," MINIMAL "}"));
    assert_true(c.rotary_dim == 4 && c.rope_theta == 5000 && c.parallel_residual && c.hidden_act == ACTIVATION_GELU);
    model_config_clear(&c);
    static const char *const ranks[] = {"\"auto\"", "null", "3"};
    for (int i = 0; i < 3; i++) {
        char text[512];
        snprintf(
            text, sizeof text,
            "{\"model_type\":\"mamba\",\"expand\":3,\"time_step_rank\":%s,\"hidden_size\":40,\"num_hidden_layers\":2,\"vocab_size\":64}",
            ranks[i]);
        assert_ok(load_text(&c, text));
        assert_sound(&c);
        assert_true(c.mamba_size == 120 && c.conv_kernel == 4 && c.state_size == 16 && c.time_step_rank == 3);
        assert_true(c.max_position_embeddings == CONFIG_UNBOUNDED && c.num_attention_heads == 0);
        model_config_clear(&c);
    }
    assert_ok(load_text(&c, "{\"model_type\":\"jamba\",\"attn_layer_period\":2,\"attn_layer_offset\":1," MINIMAL "}"));
    assert_sound(&c);
    assert_true(c.num_local_experts == 16 && c.positions == POSITIONS_NONE && c.mamba_size == 64);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(c.layer_types[i], i % 2 ? LAYER_FULL_ATTENTION : LAYER_MAMBA);
        assert_int_equal(config_has_experts(&c, i), i % 2);
    }
    model_config_clear(&c);
}

static void windows_are_set_per_layer(void **state) {
    (void)state;
    model_config c;
    assert_ok(load_text(
        &c,
        "{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":16,\"max_window_layers\":3," MINIMAL
        "}"));
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.layer_types[i], i >= 3 ? LAYER_SLIDING_ATTENTION : LAYER_FULL_ATTENTION);
    assert_int_equal(c.sliding_window, 16);
    model_config_clear(&c);
    assert_ok(load_text(
        &c, "{\"model_type\":\"qwen3\",\"use_sliding_window\":true,\"sliding_window\":16,\"layer_types\":"
            "[\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"]," MINIMAL "}"));
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.layer_types[i], i % 2 ? LAYER_FULL_ATTENTION : LAYER_SLIDING_ATTENTION);
    model_config_clear(&c);
    /* Out of reach, zero: no window. */
    assert_ok(load_text(
        &c, "{\"model_type\":\"phi3\",\"sliding_window\":262144,\"max_position_embeddings\":131072," MINIMAL "}"));
    assert_int_equal(c.sliding_window, 0);
    assert_int_equal(c.layer_types[0], LAYER_FULL_ATTENTION);
    model_config_clear(&c);
    assert_ok(load_text(&c, "{\"model_type\":\"mistral\",\"sliding_window\":0," MINIMAL "}"));
    assert_int_equal(c.layer_types[3], LAYER_FULL_ATTENTION);
    model_config_clear(&c);
}

static void rope_parameters_are_read(void **state) {
    (void)state;
    model_config c;
    assert_ok(load_text(
        &c,
        "{\"model_type\":\"llama\",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":500000.0,\"factor\":2.0,"
        "\"partial_rotary_factor\":0.5,\"truncate\":false},\"dtype\":\"bfloat16\",\"eos_token_id\":[7,9]," MINIMAL
        "}"));
    assert_sound(&c);
    assert_true(c.rope_theta == 500000 && !c.rope_scaling.truncate);
    assert_int_equal(c.rope_scaling.rope_type, ROPE_YARN);
    assert_int_equal(c.rotary_dim, 4);
    assert_int_equal(c.torch_dtype, DTYPE_BF16);
    assert_int_equal(c.n_eos_token_id, 2);
    assert_int_equal(c.eos_token_id[1], 9);
    model_config_clear(&c);
}

/* The text half of a model for pictures: what text_config leaves out is beside it. */
static void text_halves_are_read(void **state) {
    (void)state;
    model_config c;
    assert_ok(load_text(
        &c,
        "{\"model_type\":\"gemma3\",\"torch_dtype\":\"bfloat16\",\"eos_token_id\":[1,106],\"vision_config\":{},"
        "\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"intermediate_size\":10240,"
        "\"num_hidden_layers\":6,\"sliding_window\":1024,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"}}}"));
    assert_int_equal(c.model_type, MODEL_GEMMA3);
    assert_true(c.is_text_half && c.tie_word_embeddings);
    assert_int_equal(c.num_attention_heads, 8);
    assert_int_equal(c.num_key_value_heads, 4);
    assert_int_equal(c.head_dim, 256);
    assert_int_equal(c.vocab_size, 262208);
    assert_int_equal(c.n_eos_token_id, 2);
    assert_int_equal(c.torch_dtype, DTYPE_BF16);
    assert_null(c.unknown_keys);
    model_config_clear(&c);
    assert_ok(load_text(
        &c, "{\"model_type\":\"mistral3\",\"tie_word_embeddings\":true,\"text_config\":{\"hidden_act\":\"silu\","
            "\"tie_word_embeddings\":false," MINIMAL "},\"spatial_merge_size\":2}"));
    assert_int_equal(c.model_type, MODEL_MISTRAL);
    assert_true(c.is_text_half && !c.tie_word_embeddings);
    model_config_clear(&c);
    static const char *const qwen[] = {
        "{\"model_type\":\"qwen2_5_vl\",\"tie_word_embeddings\":true," MINIMAL
        ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[1,1,2]},\"vision_config\":{}}",
        "{\"model_type\":\"qwen2_5_vl\",\"tie_word_embeddings\":true,\"text_config\":{\"model_type\":\"qwen2_5_vl_text\"," MINIMAL
        ",\"rope_parameters\":{\"type\":\"default\",\"rope_type\":\"default\",\"mrope_section\":[1,1,2]}}}",
    };
    for (int i = 0; i < 2; i++) {
        assert_ok(load_text(&c, qwen[i]));
        assert_int_equal(c.model_type, MODEL_QWEN2);
        assert_true(c.is_text_half && c.tie_word_embeddings && c.attention_bias.q);
        assert_int_equal(c.rope_scaling.rope_type, ROPE_DEFAULT);
        assert_null(c.unknown_keys);
        model_config_clear(&c);
    }
}

/* Keys that nobody knows are named; those that change nothing pass. */
static void other_keys_are_noted(void **state) {
    (void)state;
    model_config c;
    assert_ok(load_text(&c,
                        "{\"model_type\":\"llama\"," MINIMAL ",\"attn_logit_softcapping\":null,\"logits_scaling\":1.0,"
                        "\"use_qk_norm\":false,\"transformers_version\":\"5.0.0\",\"attention_dropout\":0.0}"));
    assert_null(c.unknown_keys);
    model_config_clear(&c);
    assert_ok(load_text(&c, "{\"model_type\":\"llama\"," MINIMAL ",\"brand_new\":1,\"other\":null,\"an\\nother\":[]}"));
    assert_string_equal(c.unknown_keys, "brand_new, an?other");
    model_config_clear(&c);
}

/* Configurations that mean the same, in the forms that programs write, have the same fields. */
static void forms_of_rotation_mean_the_same(void **state) {
    (void)state;
#define LINEAR "\"rope_type\":\"linear\",\"factor\":8.0"
#define LLAMA3                                                                                                         \
    "\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"                        \
    "\"original_max_position_embeddings\":64"
    static const struct {
        const char *type, *a, *b;
    } pairs[] = {
        {"llama", "\"rope_theta\":5e5", "\"rope_scaling\":{\"rope_type\":\"default\",\"rope_theta\":5e5}"},
        {"llama", "\"rope_theta\":5e5", "\"rope_parameters\":{\"rope_theta\":5e5}"},
        {"llama", "\"rope_theta\":5e5", "\"rope_theta\":5e5,\"rope_scaling\":{}"},
        {"llama", "\"rope_theta\":5e5", "\"rope_theta\":5e5,\"rope_scaling\":{\"factor\":8.0}"},
        {"llama", "\"rope_theta\":5e5", "\"rope_theta\":5e5,\"rope_scaling\":null,\"rope_parameters\":{}"},
        {"llama", "\"rope_theta\":5e5", "\"rope_theta\":7,\"rope_parameters\":{\"rope_theta\":5e5}"}, /* inside first */
        {"llama", "\"rope_theta\":5e5",
         "\"rope_scaling\":{\"rope_theta\":5e5},\"rope_parameters\":{\"rope_theta\":7,\"rope_type\":\"linear\"}"},
        {"llama", "\"rope_theta\":5e5", "\"rope_scaling\":{},\"rope_parameters\":{\"rope_theta\":5e5}"},
        {"llama", "\"rope_theta\":5e5",
         "\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[1,1,2],\"rope_theta\":5e5}"},
        {"llama", "\"rope_theta\":5e5,\"rope_scaling\":{" LLAMA3 "}",
         "\"rope_scaling\":{" LLAMA3 ",\"rope_theta\":5e5}"},
        {"llama", "\"rope_theta\":5e5,\"rope_scaling\":{" LLAMA3 "}",
         "\"rope_parameters\":{" LLAMA3 ",\"rope_theta\":5e5}"},
        {"llama", "\"rope_scaling\":{" LINEAR "}", "\"rope_scaling\":{" LINEAR ",\"type\":\"dynamic\"}"},
        {"llama", "\"rope_theta\":5e5",
         "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5},\"sliding_attention\":{\"rope_theta\":5e5}}"},
        {"llama", "\"rope_theta\":5e5", "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5}}"},
        {"phi", "\"rope_theta\":5e5,\"partial_rotary_factor\":0.5",
         "\"partial_rotary_factor\":0.25,\"rope_parameters\":{\"rope_theta\":5e5,\"partial_rotary_factor\":0.5}"},
        {"gpt_neox", "\"rotary_emb_base\":5e5,\"rotary_pct\":0.5",
         "\"rope_parameters\":{\"rope_theta\":5e5,\"partial_rotary_factor\":0.5}"},
        {"gemma3_text", "\"rope_theta\":5e5,\"rope_local_base_freq\":3e4",
         "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":3e4}}"},
        {"gemma3_text", "\"rope_scaling\":{" LINEAR "}",
         "\"rope_parameters\":{\"full_attention\":{" LINEAR "},\"sliding_attention\":{}}"},
        {"gemma3_text", "\"rope_local_base_freq\":3e4",
         "\"rope_local_base_freq\":7e4,\"rope_parameters\":{\"sliding_attention\":{\"rope_theta\":3e4}}"},
        {"gemma3_text", "\"rope_theta\":5e5", "\"rope_parameters\":{\"rope_theta\":5e5}"},
        {"gemma3_text", "\"rope_theta\":5e5,\"rope_local_base_freq\":3e4,\"rope_scaling\":{" LINEAR "}",
         "\"rope_theta\":5e5,\"rope_scaling\":{" LINEAR
         "},\"rope_parameters\":{\"sliding_attention\":{\"rope_theta\":3e4}}"},
    };
#undef LINEAR
#undef LLAMA3
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        model_config c[2];
        for (int k = 0; k < 2; k++) {
            bytes text = {0};
            bytes_printf(&text, "{\"model_type\":\"%s\"," MINIMAL ",%s}", pairs[i].type, k ? pairs[i].b : pairs[i].a);
            assert_ok(load_text(&c[k], bytes_text(&text)));
            bytes_clear(&text);
        }
        const rope_scaling *x = &c[0].rope_scaling, *y = &c[1].rope_scaling;
        bool same = c[0].rope_theta == c[1].rope_theta && c[0].rope_local_base_freq == c[1].rope_local_base_freq &&
                    c[0].rotary_dim == c[1].rotary_dim && x->rope_type == y->rope_type &&
                    (x->rope_type == ROPE_DEFAULT || memcmp(x, y, sizeof *x) == 0);
        if (!same) fail_msg("%s: %s differs from %s", pairs[i].type, pairs[i].b, pairs[i].a);
        for (int k = 0; k < 2; k++) model_config_clear(&c[k]);
    }
}

/* ---- refusals ---- */

#define COMPRESSED(more)                                                                                               \
    ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\"" more "}"

static const struct {
    const char *type, *fields; /* these fields come after MINIMAL and replace its values */
    mn_status status;
    const char *part; /* part of the message */
} refused[] = {
    {"mistral4", "", MN_E_UNSUPPORTED, "the nearest known ones: mistral, "},
    {"mistral3", "", MN_E_FORMAT, "config.json: 'text_config' is missing"},
    {"gemma3", ",\"text_config\":[]", MN_E_FORMAT, "text_config is [], allowed: an object"},
    {"gemma3", ",\"text_config\":{\"hidden_size\":32,\"num_hidden_layers\":4}", MN_E_FORMAT,
     "config.json: text_config: 'intermediate_size' is missing"},
    {"llama4", ",\"text_config\":{\"model_type\":\"llama4_text\"}", MN_E_UNSUPPORTED,
     "config.json: text_config: model_type is \"llama4_text\", the nearest known ones: gemma3_text, llama, "},
    {"llama", ",\"final_logit_softcapping\":30.0", MN_E_UNSUPPORTED,
     "config.json: final_logit_softcapping is 30, which llama does not have here; allowed: null"},
    {"llama", ",\"logits_scaling\":8", MN_E_UNSUPPORTED, "logits_scaling is 8, which llama does not have here"},
    {"qwen2", ",\"logit_scale\":0.25", MN_E_UNSUPPORTED, "logit_scale is 0.25, which qwen2 does not have here"},
    {"gemma3_text", ",\"use_bidirectional_attention\":true", MN_E_UNSUPPORTED, "use_bidirectional_attention is true"},
    {"llama", ",\"attention_chunk_size\":8192", MN_E_UNSUPPORTED, "attention_chunk_size is 8192"},
    {"mistral", ",\"clip_qkv\":[1]", MN_E_UNSUPPORTED, "clip_qkv is [1]"},
    {"mamba2", "", MN_E_UNSUPPORTED, "the nearest known ones: mamba, "},
    {"jamba2", "", MN_E_UNSUPPORTED, "the nearest known ones: jamba, mamba, "},
    {"gpt_neo", "", MN_E_UNSUPPORTED, "the nearest known ones: gpt_neox, "},
    {"mixtral", ",\"num_experts_per_tok\":9", MN_E_FORMAT,
     "num_experts_per_tok is 9, allowed: at most the number of experts, 8"},
    {"mixtral", ",\"num_local_experts\":1", MN_E_FORMAT,
     "num_experts_per_tok is 2, allowed: at most the number of experts, 1"},
    {"mixtral", ",\"num_local_experts\":0", MN_E_FORMAT,
     "num_local_experts is 0, allowed: a whole number from 1 to 1024"},
    {"mixtral", ",\"num_experts_per_tok\":0", MN_E_FORMAT, "num_experts_per_tok is 0"},
    {"mixtral", ",\"num_experts_per_tok\":\"two\"", MN_E_FORMAT, "num_experts_per_tok is \"two\""},
    {"granite", ",\"residual_multiplier\":0", MN_E_FORMAT, "residual_multiplier is 0"},
    {"granite", ",\"logits_scaling\":-8", MN_E_FORMAT, "logits_scaling is -8"},
    {"granite", ",\"attention_multiplier\":NaN", MN_E_FORMAT, "attention_multiplier is"},
    {"granite", ",\"embedding_multiplier\":\"12\"", MN_E_FORMAT, "embedding_multiplier is \"12\""},
    {"gemma2", ",\"attn_logit_softcapping\":-50.0", MN_E_FORMAT, "attn_logit_softcapping is -50"},
    {"gemma2", ",\"final_logit_softcapping\":\"x\"", MN_E_FORMAT, "final_logit_softcapping is \"x\""},
    {"gemma2", ",\"query_pre_attn_scalar\":0", MN_E_FORMAT, "query_pre_attn_scalar is 0"},
    {"gemma2", ",\"layer_types\":[\"full_attention\",\"full_attention\"]", MN_E_FORMAT,
     "layer_types has 2 items, allowed: 4, one for each layer"},
    {"gemma3_text", ",\"sliding_window_pattern\":0", MN_E_FORMAT, "sliding_window_pattern is 0"},
    {"gemma3_text", ",\"rope_local_base_freq\":0", MN_E_FORMAT, "rope_local_base_freq is 0"},
    {"gpt2", ",\"n_embd\":32,\"n_layer\":2,\"n_head\":5", MN_E_FORMAT,
     "hidden_size is 32, allowed: a multiple of num_attention_heads, 5"},
    {"gpt2", ",\"n_embd\":32,\"n_head\":4", MN_E_FORMAT, "'n_layer' is missing"},
    {"gpt2", ",\"n_embd\":32,\"n_layer\":2,\"n_head\":4,\"n_positions\":0", MN_E_FORMAT, "n_positions is 0"},
    {"gpt2", ",\"n_embd\":32,\"n_layer\":2,\"n_head\":4,\"scale_attn_by_inverse_layer_idx\":true", MN_E_UNSUPPORTED,
     "scale_attn_by_inverse_layer_idx is true, allowed: false"},
    {"gpt2", ",\"n_embd\":32,\"n_layer\":2,\"n_head\":4,\"activation_function\":\"quick_gelu\"", MN_E_UNSUPPORTED,
     "activation_function is \"quick_gelu\", known: "},
    {"gpt_neox", ",\"rotary_pct\":0.01", MN_E_FORMAT, "the rotary dimension (head_dim x partial_rotary_factor) is 0"},
    {"gpt_neox", ",\"use_parallel_residual\":3", MN_E_FORMAT, "use_parallel_residual is 3"},
    {"mamba", ",\"conv_kernel\":0", MN_E_FORMAT, "conv_kernel is 0, allowed: a whole number from 2 to 64"},
    {"mamba", ",\"state_size\":0", MN_E_FORMAT, "state_size is 0, allowed: a whole number from 1 to 256"},
    {"mamba", ",\"state_size\":1000", MN_E_FORMAT, "state_size is 1000, allowed: a whole number from 1 to 256"},
    {"mamba", ",\"hidden_act\":\"gelu\"", MN_E_UNSUPPORTED, "hidden_act is \"gelu\", allowed: silu"},
    {"jamba", ",\"hidden_act\":\"relu\"", MN_E_UNSUPPORTED, "hidden_act is \"relu\", allowed: silu"},
    {"mamba", ",\"time_step_rank\":\"x\"", MN_E_FORMAT, "time_step_rank is \"x\""},
    {"mamba", ",\"time_step_rank\":0", MN_E_FORMAT, "time_step_rank is 0"},
    {"mamba", ",\"expand\":0", MN_E_FORMAT, "expand is 0"},
    {"mamba", ",\"use_conv_bias\":\"no\"", MN_E_FORMAT, "use_conv_bias is \"no\""},
    {"jamba", ",\"attn_layer_offset\":8", MN_E_FORMAT,
     "attn_layer_offset is 8, allowed: less than attn_layer_period, 8"},
    {"jamba", ",\"attn_layer_period\":0", MN_E_FORMAT, "attn_layer_period is 0"},
    {"jamba", ",\"expert_layer_offset\":2", MN_E_FORMAT,
     "expert_layer_offset is 2, allowed: less than expert_layer_period, 2"},
    {"jamba", ",\"num_experts\":4,\"num_experts_per_tok\":5", MN_E_FORMAT, "num_experts_per_tok is 5"},
    {"jamba", ",\"mamba_d_conv\":1", MN_E_FORMAT, "mamba_d_conv is 1"},
    {"jamba", ",\"mamba_dt_rank\":\"automatic\"", MN_E_FORMAT, "mamba_dt_rank is \"automatic\""},
    {"gemme", "", MN_E_UNSUPPORTED, "config.json: model_type is \"gemme\", the nearest known ones: gemma, gemma2"},
    {"stablelm", ",\"use_parallel_residual\":true", MN_E_UNSUPPORTED, "use_parallel_residual is true, allowed: false"},
    {"cohere", ",\"use_qk_norm\":true", MN_E_UNSUPPORTED, "use_qk_norm is true, allowed: false"},
    {"qwen3_moe", ",\"moe_intermediate_size\":8,\"mlp_only_layers\":[1]", MN_E_UNSUPPORTED,
     "decoder_sparse_step is 1 and mlp_only_layers has 1 items, allowed: 1 and none"},
    {"qwen2_moe", ",\"moe_intermediate_size\":8,\"num_experts\":4", MN_E_FORMAT,
     "'shared_expert_intermediate_size' is missing"},
    {"qwen3_moe", ",\"moe_intermediate_size\":8,\"decoder_sparse_step\":2", MN_E_UNSUPPORTED,
     "decoder_sparse_step is 2"},
    {"smollm3", ",\"no_rope_layers\":[1]", MN_E_FORMAT, "no_rope_layers has 1 items, allowed: 4, one for each layer"},
    {"smollm3", ",\"no_rope_layers\":[1,2,1,0]", MN_E_FORMAT, "no_rope_layers[1] is neither 0 nor 1"},
    {"mixtrel", "", MN_E_UNSUPPORTED, "the nearest known ones: mixtral, mistral"},
    {"llama\\u0000x", "", MN_E_UNSUPPORTED, "model_type is \"llama?x\""},
    {"llama", ",\"hidden_size\":null", MN_E_FORMAT, "'hidden_size' is missing"},
    {"llama", ",\"hidden_size\":0", MN_E_FORMAT,
     "config.json: hidden_size is 0, allowed: a whole number from 1 to 1048576"},
    {"llama", ",\"hidden_size\":33", MN_E_FORMAT, "hidden_size is 33, allowed: a multiple of num_attention_heads, 4"},
    {"llama", ",\"hidden_size\":NaN", MN_E_FORMAT, "hidden_size is"},
    {"llama", ",\"hidden_size\":\"32\"", MN_E_FORMAT, "hidden_size is \"32\""},
    {"llama", ",\"num_hidden_layers\":2147483648", MN_E_FORMAT,
     "num_hidden_layers is 2147483648, allowed: a whole number from 1 to 4096"},
    {"llama", ",\"num_hidden_layers\":-1", MN_E_FORMAT, "num_hidden_layers is -1"},
    {"llama", ",\"num_attention_heads\":0", MN_E_FORMAT, "num_attention_heads is 0"},
    {"llama", ",\"num_key_value_heads\":3", MN_E_FORMAT,
     "num_attention_heads is 4, allowed: a multiple of num_key_value_heads, 3"},
    {"llama", ",\"num_key_value_heads\":8", MN_E_FORMAT, "a multiple of num_key_value_heads, 8"},
    {"llama", ",\"head_dim\":7", MN_E_FORMAT, "head_dim is 7, allowed: an even number from 2 to 1024"},
    {"llama", ",\"head_dim\":2048", MN_E_FORMAT, "head_dim is 2048"},
    {"llama", ",\"hidden_size\":8192", MN_E_FORMAT, "head_dim is 2048"},
    {"llama", ",\"vocab_size\":16777217", MN_E_FORMAT, "vocab_size is 16777217"},
    {"llama", ",\"intermediate_size\":1e300", MN_E_FORMAT, "intermediate_size is"},
    {"llama", ",\"max_position_embeddings\":2.5", MN_E_FORMAT, "max_position_embeddings is 2.5"},
    {"llama", ",\"rms_norm_eps\":0", MN_E_FORMAT, "rms_norm_eps is 0"},
    {"llama", ",\"rms_norm_eps\":NaN", MN_E_FORMAT, "rms_norm_eps is"},
    {"llama", ",\"rope_theta\":-1", MN_E_FORMAT, "rope_theta is -1"},
    {"llama", ",\"partial_rotary_factor\":0.1", MN_E_FORMAT,
     "the rotary dimension (head_dim x partial_rotary_factor) is 0"},
    {"llama", ",\"hidden_act\":\"swiglu\"", MN_E_UNSUPPORTED, "hidden_act is \"swiglu\", known: silu, swish, gelu, "},
    {"llama", ",\"hidden_act\":3", MN_E_FORMAT, "hidden_act is 3"},
    {"llama", ",\"torch_dtype\":\"float8_e4m3fn\"", MN_E_UNSUPPORTED,
     "torch_dtype is \"float8_e4m3fn\", known: float32, "},
    {"llama", ",\"tie_word_embeddings\":1", MN_E_FORMAT, "tie_word_embeddings is 1"},
    {"llama", ",\"attention_bias\":\"yes\"", MN_E_FORMAT, "attention_bias is \"yes\""},
    {"llama", ",\"bos_token_id\":-2", MN_E_FORMAT, "bos_token_id is -2"},
    {"llama", ",\"eos_token_id\":[1,-2]", MN_E_FORMAT, "eos_token_id[1] is no whole number from -1 (none)"},
    {"llama", ",\"eos_token_id\":\"</s>\"", MN_E_FORMAT, "eos_token_id is \"</s>\""},
    {"llama", ",\"quantization_config\":{\"quant_method\":\"gptq\"}", MN_E_UNSUPPORTED,
     "config.json: quantization_config has quant_method \"gptq\", allowed: fp8, fbgemm_fp8, compressed-tensors"},
    {"llama", ",\"quantization_config\":{}", MN_E_UNSUPPORTED, "quant_method \"?\""},
    {"llama", ",\"quantization_config\":\"fp8\"", MN_E_FORMAT, "quantization_config is \"fp8\", allowed: an object"},
    {"llama", ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[0,4]}", MN_E_FORMAT,
     "quantization_config: weight_block_size is [0,4], allowed: [rows, columns] of a block"},
    {"llama", ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":\"128x\"}", MN_E_FORMAT,
     "weight_block_size is \"128x\""},
    {"llama", ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"}",
     MN_E_UNSUPPORTED, "format is \"pack-quantized\", allowed: \"float-quantized\", \"naive-quantized\""},
    {"llama", ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}", MN_E_UNSUPPORTED, "format is null"},
    {"llama", COMPRESSED(",\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}"), MN_E_UNSUPPORTED,
     "sparsity_config is not empty, allowed: null"},
    {"llama", COMPRESSED(",\"config_groups\":[]"), MN_E_FORMAT, "config_groups is [], allowed: an object"},
    {"llama", COMPRESSED(",\"config_groups\":{\"g\":{}}"), MN_E_FORMAT, "quantization_config: g: 'weights' is missing"},
    {"llama", COMPRESSED(",\"config_groups\":{\"g\":{\"weights\":{\"type\":\"int\"}}}"), MN_E_UNSUPPORTED,
     "g: weights: type is \"int\", allowed: \"float\""},
    {"llama", COMPRESSED(",\"config_groups\":{\"g\":{\"weights\":{\"type\":\"float\",\"strategy\":\"group\"}}}"),
     MN_E_UNSUPPORTED, "strategy is \"group\", allowed: \"tensor\", \"channel\", \"block\""},
    {"llama",
     COMPRESSED(",\"config_groups\":{\"g\":{\"weights\":{\"type\":\"float\",\"strategy\":\"tensor\",\"num_bits\":4}}}"),
     MN_E_FORMAT, "num_bits is 4"},
    {"llama",
     COMPRESSED(
         ",\"config_groups\":{\"g\":{\"weights\":{\"type\":\"float\",\"strategy\":\"tensor\",\"symmetric\":false}}}"),
     MN_E_UNSUPPORTED, "symmetric is false, allowed: true"},
    {"mistral", ",\"sliding_window\":-1", MN_E_FORMAT, "sliding_window is -1"},
    {"qwen2", ",\"layer_types\":[\"full_attention\"]", MN_E_FORMAT, "layer_types has 1 items, allowed: 4"},
    {"qwen2", ",\"layer_types\":[1,2,3,4]", MN_E_FORMAT, "layer_types[0] is no string"},
    {"qwen2", ",\"layer_types\":[\"chunked_attention\",1,1,1]", MN_E_UNSUPPORTED,
     "layer_types is \"chunked_attention\", known: full_attention"},
    {"qwen2", ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]",
     MN_E_FORMAT, "layer_types[1] is \"sliding_attention\", allowed without a sliding_window"},
    {"llama", ",\"rope_scaling\":7", MN_E_FORMAT, "config.json: rope_scaling is no object"},
    {"llama", ",\"rope_scaling\":{\"type\":\"proportional\"}", MN_E_UNSUPPORTED,
     "rope_scaling: type is \"proportional\", known: default, linear, "},
    {"llama", ",\"rope_scaling\":{\"rope_type\":[\"default\"]}", MN_E_FORMAT, "rope_scaling: rope_type is "},
    {"llama", ",\"rope_parameters\":\"default\"", MN_E_FORMAT, "config.json: rope_parameters is no object"},
    {"llama", ",\"rope_scaling\":{\"rope_theta\":1}", MN_E_FORMAT, "rope_scaling: rope_theta is 1"},
    {"llama", ",\"rope_parameters\":{\"rope_theta\":-1}", MN_E_FORMAT, "rope_parameters: rope_theta is -1"},
    {"llama", ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5},\"sliding_attention\":{\"rope_theta\":6}}",
     MN_E_UNSUPPORTED, "rope_parameters differ in full_attention and sliding_attention, allowed for llama: the same"},
    {"gemma3_text", ",\"rope_parameters\":{\"full_attention\":3}", MN_E_FORMAT,
     "rope_parameters: full_attention is 3, allowed: an object"},
    {"gemma3_text", ",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":8}}",
     MN_E_UNSUPPORTED, "rope_parameters: sliding_attention has another rope_type than \"default\""},
    {"llama", ",\"rope_scaling\":{\"type\":\"linear\"}", MN_E_FORMAT, "rope_scaling: 'factor' is missing"},
    {"llama", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}", MN_E_FORMAT, "rope_scaling: factor is 0"},
    {"llama", ",\"head_dim\":2,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}", MN_E_FORMAT,
     "the rotary dimension is 2"},
    {"llama", ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4}",
     MN_E_FORMAT, "'original_max_position_embeddings' is missing"},
    {"llama",
     ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,"
     "\"original_max_position_embeddings\":64}",
     MN_E_FORMAT, "low_freq_factor is 4, allowed: less than high_freq_factor, 4"},
    {"llama", ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"beta_fast\":1,\"beta_slow\":2}", MN_E_FORMAT,
     "beta_slow is 2, allowed: at most beta_fast, 1"},
    {"llama", ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"attention_factor\":-1}", MN_E_FORMAT,
     "attention_factor is -1"},
    {"phi3", ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1]}", MN_E_FORMAT,
     "'long_factor' is missing"},
    {"phi3", ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1]}", MN_E_FORMAT,
     "short_factor has 3 numbers, allowed: 4, half the rotary dimension"},
    {"phi3", ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1,1]}", MN_E_FORMAT,
     "short_factor has 5 numbers, allowed: 4"},
    {"phi3", ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,0,1]}", MN_E_FORMAT,
     "short_factor[2] is no number from"},
    {"phi3", ",\"rope_scaling\":{\"type\":\"su\",\"short_factor\":\"1111\"}", MN_E_FORMAT, "short_factor is no list"},
    {"llama", ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[2,2,2,2]}",
     MN_E_FORMAT, "'factor' is missing"},
};

static void errors_name_the_bad_field(void **state) {
    (void)state;
    int64_t live = mem_count().live;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        bytes text = {0};
        bytes_printf(&text, "{\"model_type\":\"%s\"," MINIMAL "%s}", refused[i].type, refused[i].fields);
        model_config c, empty = {0};
        assert_fails(refused[i].status, refused[i].part, load_text(&c, bytes_text(&text)));
        assert_memory_equal(&c, &empty, sizeof c);
        bytes_clear(&text);
    }
    model_config c;
    assert_fails(MN_E_FORMAT, "config.json is no JSON object", load_text(&c, "[]"));
    assert_fails(MN_E_FORMAT, "'model_type' is missing", load_text(&c, "{}"));
    assert_int_equal(mem_count().live, live);
}

/* Writes `value` with its *left-th value replaced by `text` (NULL: removes the member or item). */
static void put_changed(bytes *out, const json *value, const char *text, int *left) {
    bool object = value->kind == JSON_OBJECT;
    if (!object && value->kind != JSON_ARRAY) {
        json_put(out, value);
        return;
    }
    bytes_append_text(out, object ? "{" : "[");
    bool first = true;
    for (size_t i = 0; i < value->n; i++) {
        bool here = --*left == 0;
        if (here && !text) continue;
        if (!first) bytes_append_text(out, ",");
        first = false;
        if (object) {
            json_put_string(out, value->members[i].key, value->members[i].key_n);
            bytes_append_text(out, ":");
        }
        if (here) {
            bytes_append_text(out, text);
        } else {
            put_changed(out, object ? &value->members[i].value : &value->items[i], text, left);
        }
    }
    bytes_append_text(out, object ? "}" : "]");
}

/* Loads the text; the result must be a valid configuration or an error with a message, without a leak. */
static bool survives(const char *text, size_t n) {
    json_doc *doc = NULL;
    bool loaded = false;
    int64_t live = mem_count().live;
    if (json_parse(&doc, text, n, JSON_PYTHON, "config.json") == MN_OK) {
        model_config c, empty = {0};
        mn_status status = config_from_json(&c, json_root(doc), "config.json");
        loaded = status == MN_OK;
        if (loaded) {
            assert_sound(&c);
            model_config_clear(&c);
        } else {
            assert_true(status == MN_E_FORMAT || status == MN_E_UNSUPPORTED);
            assert_true(strlen(mn_last_error()) > 10);
        }
        assert_memory_equal(&c, &empty, sizeof c);
    }
    json_close(&doc);
    assert_int_equal(mem_count().live, live);
    return loaded;
}

static void damaged_files_are_refused_or_valid(void **state) {
    (void)state;
    static const char *const values[] = {
        NULL,    "null", "true",       "\"x\"", "-1",           "0",           "1",         "2",
        "3",     "4097", "2147483648", "1e308", "NaN",          "-Infinity",   "5e-324",    "9223372036854775807",
        "1e400", "[]",   "[1,2]",      "{}",    "\"longrope\"", "\"\\u0000\"", "[[[[0]]]]", "0.5"};
    static const char *const names[] = {
        "configs/llama-rope-yarn.json", "configs/phi3-longrope.json",     "configs/qwen2.json",
        "configs/mistral-window.json",  "configs/llama-rope-llama3.json", "golden/mixtral/config.json",
        "golden/granite/config.json",   "golden/gemma2/config.json",      "golden/gemma3/config.json",
        "golden/gpt2/config.json",      "golden/gpt-neox/config.json",    "golden/mamba/config.json",
        "golden/jamba/config.json"};
    int n = 0, n_loaded = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_doc *doc = open_json(data_path(names[i]));
        for (int target = 1;; target++) {
            int left = target;
            for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
                bytes text = {0};
                left = target;
                put_changed(&text, json_root(doc), values[v], &left);
                if (left <= 0) n_loaded += survives(bytes_text(&text), text.n), n++;
                bytes_clear(&text);
            }
            if (left > 0) break;
        }
        json_close(&doc);
    }
    /* Single bytes of the text. */
    bytes file = {0};
    assert_ok(file_read(&file, config_path("phi3-longrope"), 1 << 20));
    uint64_t random = 1;
    for (int i = 0; i < 2000; i++, n++) {
        char *at = &file.data[test_random(&random) % file.n], old = *at;
        *at = "0123456789-.eE\"[]{},:ntx"[test_random(&random) % 24];
        n_loaded += survives(file.data, file.n);
        *at = old;
    }
    bytes_clear(&file);
    printf("%d damaged configurations, %d of them still loadable\n", n, n_loaded);
    assert_true(n > 4000 && n_loaded > 500 && n_loaded < n - 500);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static const char *const names[] = {"phi3-longrope", "qwen2"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_doc *doc = open_json(config_path(names[i]));
        int64_t live = mem_count().live, k = 1;
        for (;; k++) {
            model_config c, empty = {0};
            mem_fail_after(k);
            mn_status status = config_from_json(&c, json_root(doc), "config.json");
            mem_fail_after(0);
            if (status == MN_OK) model_config_clear(&c);
            assert_memory_equal(&c, &empty, sizeof c);
            assert_int_equal(mem_count().live, live);
            if (status == MN_OK) break;
            assert_int_equal(status, MN_E_NOMEM);
        }
        assert_true(k > 2);
        json_close(&doc);
    }
}

/* Every folder of reference checkpoints can be loaded. */
static void reference_checkpoints_are_loaded(void **state) {
    (void)state;
    static const char *const names[] = {"gemma2", "gemma3", "gpt-neox", "gpt2",          "granite",
                                        "jamba",  "mamba",  "mixtral",  "decoding/draft"};
    if (!shared_path("golden/llama/config.json")) skip();
    for (size_t i = 0; i < N_READ_CASES + sizeof names / sizeof *names; i++) {
        const char *name = i < N_READ_CASES ? read_cases[i].name : names[i - N_READ_CASES];
        char file[256];
        snprintf(file, sizeof file, "golden/%s/config.json", name);
        const char *path = shared_path(file);
        if (!path) continue;
        model_config c = load_file(path);
        assert_sound(&c);
        model_config_clear(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_is_read),
        cmocka_unit_test(rope_scaling_is_read),
        cmocka_unit_test(absent_fields_take_the_defaults_of_their_type),
        cmocka_unit_test(fields_of_all_families_are_read),
        cmocka_unit_test(windows_are_set_per_layer),
        cmocka_unit_test(rope_parameters_are_read),
        cmocka_unit_test(forms_of_rotation_mean_the_same),
        cmocka_unit_test(text_halves_are_read),
        cmocka_unit_test(other_keys_are_noted),
        cmocka_unit_test(errors_name_the_bad_field),
        cmocka_unit_test(damaged_files_are_refused_or_valid),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(reference_checkpoints_are_loaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
