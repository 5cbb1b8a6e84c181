/* Configurations from GGUF metadata, over files built in memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>

#include "model/config.h"
#include "model/names.h"
#include "model/rope.h"

/* ---- a small writer ---- */

typedef struct file_parts {
    bytes pairs, infos, data, file;
    uint64_t n_pairs, n_tensors;
} file_parts;

static void put_u32(bytes *out, uint32_t value) {
    bytes_append(out, &value, sizeof value);
}
static void put_u64(bytes *out, uint64_t value) {
    bytes_append(out, &value, sizeof value);
}

static void put_text(bytes *out, const char *text) {
    put_u64(out, strlen(text));
    bytes_append_text(out, text);
}

static void put_key(file_parts *f, const char *key, gguf_type type) {
    put_text(&f->pairs, key);
    put_u32(&f->pairs, type);
    f->n_pairs++;
}

static void add_u32(file_parts *f, const char *key, uint32_t value) {
    put_key(f, key, GGUF_U32);
    put_u32(&f->pairs, value);
}

static void add_f32(file_parts *f, const char *key, float value) {
    put_key(f, key, GGUF_F32);
    bytes_append(&f->pairs, &value, sizeof value);
}

static void add_text(file_parts *f, const char *key, const char *text) {
    put_key(f, key, GGUF_STRING);
    put_text(&f->pairs, text);
}

static void add_u32_list(file_parts *f, const char *key, const uint32_t *values, size_t n) {
    put_key(f, key, GGUF_ARRAY);
    put_u32(&f->pairs, GGUF_U32);
    put_u64(&f->pairs, n);
    bytes_append(&f->pairs, values, n * sizeof *values);
}

static void add_text_list(file_parts *f, const char *key, const char *const *values, size_t n) {
    put_key(f, key, GGUF_ARRAY);
    put_u32(&f->pairs, GGUF_STRING);
    put_u64(&f->pairs, n);
    for (size_t i = 0; i < n; i++) put_text(&f->pairs, values[i]);
}

static void add_bool(file_parts *f, const char *key, bool value) {
    put_key(f, key, GGUF_BOOL);
    bytes_append(&f->pairs, value ? "\1" : "", 1);
}

/* A vector of n float32, all `value`. */
static void add_tensor(file_parts *f, const char *name, uint64_t n, float value) {
    put_text(&f->infos, name);
    put_u32(&f->infos, 1);
    put_u64(&f->infos, n);
    put_u32(&f->infos, 0);
    put_u64(&f->infos, f->data.n);
    for (uint64_t i = 0; i < n; i++) bytes_append(&f->data, &value, sizeof value);
    while (f->data.n % 32) bytes_append(&f->data, "", 1);
    f->n_tensors++;
}

static void finish(file_parts *f) {
    bytes *out = &f->file;
    bytes_append_text(out, "GGUF");
    put_u32(out, 3);
    put_u64(out, f->n_tensors);
    put_u64(out, f->n_pairs);
    bytes_append(out, f->pairs.data, f->pairs.n);
    bytes_append(out, f->infos.data, f->infos.n);
    while (out->n % 32) bytes_append(out, "", 1);
    bytes_append(out, f->data.data, f->data.n);
    assert_ok(bytes_status(out));
}

static void clear_parts(file_parts *f) {
    bytes_clear(&f->pairs);
    bytes_clear(&f->infos);
    bytes_clear(&f->data);
    bytes_clear(&f->file);
}

static const char *key_in(const char *architecture, const char *name) {
    static char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    return key;
}

/* 64 wide, 2 layers, 4 heads of 16 over 2, context 512, eps 1e-5; 3 tokens. The key `without` is left out. */
static void add_basics(file_parts *f, const char *architecture, const char *without) {
    static const struct {
        const char *name;
        uint32_t value;
    } sizes[] = {{"embedding_length", 64},       {"block_count", 2},
                 {"feed_forward_length", 96},    {"attention.head_count", 4},
                 {"attention.head_count_kv", 2}, {"context_length", 512}};
    static const char *const tokens[] = {"a", "b", "<|im_end|>"};
    add_text(f, "general.architecture", architecture);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (strcmp(sizes[i].name, without) != 0) add_u32(f, key_in(architecture, sizes[i].name), sizes[i].value);
    }
    add_f32(f, key_in(architecture, "attention.layer_norm_rms_epsilon"), 1e-5f);
    if (strcmp(without, "tokens") != 0) add_text_list(f, "tokenizer.ggml.tokens", tokens, 3);
}

static mn_status load(file_parts *f, model_config *out) {
    gguf *file = NULL;
    finish(f);
    assert_ok(gguf_open_memory(&file, f->file.data, f->file.n, "m.gguf"));
    mn_status status = config_from_gguf(out, file);
    gguf_close(&file);
    clear_parts(f);
    return status;
}

/* ---- fields ---- */

static void llama_is_read(void **state) {
    (void)state;
    file_parts f = {0};
    model_config c;
    const uint32_t kinds[] = {1, 3, 3};
    add_basics(&f, "llama", "");
    add_f32(&f, "llama.rope.freq_base", 100000);
    add_u32(&f, "llama.rope.dimension_count", 16);
    add_u32(&f, "tokenizer.ggml.bos_token_id", 1);
    add_u32(&f, "tokenizer.ggml.eos_token_id", 0);
    add_u32_list(&f, "tokenizer.ggml.token_type", kinds, 3);
    assert_ok(load(&f, &c));
    assert_int_equal(c.model_type, MODEL_LLAMA);
    assert_int_equal(c.hidden_size, 64);
    assert_int_equal(c.intermediate_size, 96);
    assert_int_equal(c.num_hidden_layers, 2);
    assert_int_equal(c.num_attention_heads, 4);
    assert_int_equal(c.num_key_value_heads, 2);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.rotary_dim, 16);
    assert_int_equal(c.vocab_size, 3);
    assert_int_equal(c.max_position_embeddings, 512);
    assert_true(c.norm_eps == 9.999999747378752e-06);
    assert_true(c.rope_theta == 100000);
    assert_int_equal(c.bos_token_id, 1);
    assert_int_equal(c.pad_token_id, -1);
    assert_int_equal(c.n_eos_token_id, 2); /* the one in the metadata, and the control token that ends a turn */
    assert_int_equal(c.eos_token_id[0], 0);
    assert_int_equal(c.eos_token_id[1], 2);
    assert_true(c.permuted_rows && c.tie_word_embeddings);
    assert_false(c.attention_bias.q || c.attention_bias.o || c.mlp_bias || c.qk_norm);
    assert_int_equal(c.sliding_window, 0);
    assert_int_equal(c.layer_types[1], LAYER_FULL_ATTENTION);
    assert_int_equal(c.rope_scaling.rope_type, ROPE_DEFAULT);
    model_config_clear(&c);
}

static void switches_follow_the_tensors(void **state) {
    (void)state;
    file_parts f = {0};
    model_config c;
    add_basics(&f, "qwen2", "tokens");
    add_u32(&f, "qwen2.vocab_size", 1000);
    add_tensor(&f, "output.weight", 8, 0);
    assert_ok(load(&f, &c));
    assert_int_equal(c.vocab_size, 1000);
    assert_true(c.attention_bias.q && c.attention_bias.k && c.attention_bias.v && !c.attention_bias.o);
    assert_false(c.tie_word_embeddings || c.permuted_rows || c.qk_norm);
    model_config_clear(&c);

    f = (file_parts){0};
    add_basics(&f, "llama", "");
    add_tensor(&f, "blk.0.attn_q.bias", 64, 0);
    add_tensor(&f, "blk.0.attn_output.bias", 64, 0);
    add_tensor(&f, "blk.0.ffn_down.bias", 64, 0);
    add_u32(&f, "llama.attention.sliding_window", 128);
    assert_ok(load(&f, &c));
    assert_true(c.attention_bias.q && !c.attention_bias.k && c.attention_bias.o && c.mlp_bias);
    assert_int_equal(c.sliding_window, 128);
    assert_int_equal(c.layer_types[0], LAYER_SLIDING_ATTENTION);
    model_config_clear(&c);

    f = (file_parts){0};
    const uint32_t same[] = {2, 2};
    add_basics(&f, "qwen3", "attention.head_count_kv");
    add_u32_list(&f, "qwen3.attention.head_count_kv", same, 2);
    add_u32(&f, "qwen3.attention.key_length", 128);
    add_u32(&f, "qwen3.attention.value_length", 128);
    assert_ok(load(&f, &c));
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.num_key_value_heads, 2);
    assert_true(c.qk_norm);
    model_config_clear(&c);
}

static void rope_parameters_are_read(void **state) {
    (void)state;
    model_config c;
    double frequencies[8], factor = 0;
    file_parts f = {0};
    add_basics(&f, "llama", "");
    add_tensor(&f, "rope_freqs.weight", 8, 4);
    assert_ok(load(&f, &c));
    rope_frequencies(&c, 1, frequencies, &factor);
    assert_true(frequencies[0] == 0.25 && factor == 1);
    model_config_clear(&c);

    f = (file_parts){0};
    add_basics(&f, "phi3", "");
    add_u32(&f, "phi3.rope.scaling.original_context_length", 128);
    add_tensor(&f, "rope_factors_short.weight", 8, 2);
    add_tensor(&f, "rope_factors_long.weight", 8, 5);
    assert_ok(load(&f, &c));
    assert_int_equal(c.rope_scaling.rope_type, ROPE_LONGROPE);
    assert_int_equal(rope_regime(&c, 128), 0);
    rope_frequencies(&c, 128, frequencies, &factor);
    assert_true(frequencies[0] == 0.5);
    rope_frequencies(&c, 129, frequencies, &factor);
    assert_true(frequencies[0] == 0.2);
    assert_true(fabs(factor - sqrt(1 + log(4) / log(128))) < 1e-15);
    model_config_clear(&c);

    f = (file_parts){0};
    add_basics(&f, "phi3", "");
    add_u32(&f, "phi3.rope.scaling.original_context_length", 128);
    add_f32(&f, "phi3.rope.scaling.attn_factor", 1.25f);
    add_u32(&f, "phi3.rope.dimension_count", 12);
    add_tensor(&f, "rope_factors_short.weight", 6, 2);
    add_tensor(&f, "rope_factors_long.weight", 6, 5);
    assert_ok(load(&f, &c));
    assert_int_equal(c.rotary_dim, 12);
    rope_frequencies(&c, 1, frequencies, &factor);
    assert_true(factor == 1.25);
    model_config_clear(&c);

    f = (file_parts){0};
    add_basics(&f, "qwen2", "");
    add_text(&f, "qwen2.rope.scaling.type", "yarn");
    add_f32(&f, "qwen2.rope.scaling.factor", 4);
    add_u32(&f, "qwen2.rope.scaling.original_context_length", 256);
    assert_ok(load(&f, &c));
    assert_int_equal(c.rope_scaling.rope_type, ROPE_YARN);
    assert_int_equal(c.rope_scaling.original_max_position_embeddings, 256);
    rope_frequencies(&c, 1, frequencies, &factor);
    assert_true(fabs(factor - (0.1 * log(4) + 1)) < 1e-15);
    model_config_clear(&c);

    /* Here the file's attention factor multiplies that of the rope type. */
    f = (file_parts){0};
    add_basics(&f, "qwen2", "");
    add_text(&f, "qwen2.rope.scaling.type", "yarn");
    add_f32(&f, "qwen2.rope.scaling.factor", 4);
    add_f32(&f, "qwen2.rope.scaling.attn_factor", 1.5f);
    assert_ok(load(&f, &c));
    rope_frequencies(&c, 1, frequencies, &factor);
    assert_true(fabs(factor - 1.5 * (0.1 * log(4) + 1)) < 1e-15);
    model_config_clear(&c);

    f = (file_parts){0};
    add_basics(&f, "llama", "");
    add_text(&f, "llama.rope.scaling.type", "linear");
    add_f32(&f, "llama.rope.scaling.factor", 2);
    assert_ok(load(&f, &c));
    rope_frequencies(&c, 1, frequencies, &factor);
    assert_true(frequencies[0] == 0.5);
    model_config_clear(&c);
}

/* One boolean for each of the two layers. */
static void add_pattern(file_parts *f, const char *key, bool first, bool second) {
    put_key(f, key, GGUF_ARRAY);
    put_u32(&f->pairs, GGUF_BOOL);
    put_u64(&f->pairs, 2);
    bytes_append(&f->pairs, first ? "\1" : "", 1);
    bytes_append(&f->pairs, second ? "\1" : "", 1);
}

static void windows_are_read(void **state) {
    (void)state;
    model_config c;
    file_parts f = {0};
    add_basics(&f, "gemma2", "context_length"); /* 8192 positions, and a default window */
    assert_ok(load(&f, &c));
    assert_int_equal(c.sliding_window, 4096);
    assert_int_equal(c.layer_types[0], LAYER_SLIDING_ATTENTION);
    assert_int_equal(c.layer_types[1], LAYER_FULL_ATTENTION);
    assert_true(c.attn_logit_softcapping == 50 && c.final_logit_softcapping == 30);
    assert_true(c.embedding_multiplier == 8 && c.post_norms && !c.norm_adds_one);
    model_config_clear(&c);

    f = (file_parts){0};
    add_basics(&f, "gemma3", "");
    assert_ok(load(&f, &c));
    assert_int_equal(c.sliding_window, 0);
    model_config_clear(&c);

    f = (file_parts){0};
    add_basics(&f, "gemma3", "");
    add_u32(&f, "gemma3.attention.sliding_window", 64);
    add_u32(&f, "gemma3.attention.sliding_window_pattern", 2);
    assert_ok(load(&f, &c));
    assert_int_equal(c.sliding_window, 64);
    assert_int_equal(c.layer_types[0], LAYER_SLIDING_ATTENTION);
    assert_int_equal(c.layer_types[1], LAYER_FULL_ATTENTION);
    model_config_clear(&c);

    f = (file_parts){0};
    add_basics(&f, "gemma3", "");
    add_u32(&f, "gemma3.attention.sliding_window", 64);
    add_pattern(&f, "gemma3.attention.sliding_window_pattern", false, true);
    assert_ok(load(&f, &c));
    assert_int_equal(c.layer_types[0], LAYER_FULL_ATTENTION);
    assert_int_equal(c.layer_types[1], LAYER_SLIDING_ATTENTION);
    model_config_clear(&c);
}

static void add_jamba(file_parts *f, const uint32_t *heads, size_t n) {
    add_basics(f, "jamba", "attention.head_count_kv");
    add_u32_list(f, "jamba.attention.head_count_kv", heads, n);
    add_u32(f, "jamba.expert_count", 4);
    add_u32(f, "jamba.expert_used_count", 2);
    add_tensor(f, "blk.1.attn_q.weight", 8, 0);
    add_tensor(f, "blk.0.ssm_conv1d.bias", 8, 0);
}

static void mixed_layers_are_read(void **state) {
    (void)state;
    model_config c;
    const uint32_t second[] = {0, 2};
    file_parts f = {0};
    add_jamba(&f, second, 2);
    add_tensor(&f, "blk.1.ffn_gate_inp.weight", 8, 0);
    assert_ok(load(&f, &c));
    assert_int_equal(c.num_key_value_heads, 2);
    assert_int_equal(c.layer_types[0], LAYER_MAMBA);
    assert_int_equal(c.layer_types[1], LAYER_FULL_ATTENTION);
    assert_false(config_has_experts(&c, 0));
    assert_true(config_has_experts(&c, 1) && c.use_conv_bias && !c.use_bias);
    assert_int_equal(c.num_local_experts, 4);
    model_config_clear(&c);

    f = (file_parts){0};
    add_jamba(&f, second, 2); /* a single expert is an MLP as in other layers */
    assert_ok(load(&f, &c));
    assert_int_equal(c.num_local_experts, 0);
    assert_false(config_has_experts(&c, 1));
    model_config_clear(&c);

    f = (file_parts){0};
    add_basics(&f, "llama", "");
    add_tensor(&f, "blk.0.ffn_gate_inp.weight", 8, 0);
    add_tensor(&f, "blk.0.ffn_gate.0.weight", 8, 0);
    add_u32(&f, "llama.expert_count", 8);
    assert_ok(load(&f, &c));
    assert_int_equal(c.model_type, MODEL_MIXTRAL);
    assert_true(c.experts_apart && c.permuted_rows && c.norm_topk_prob && c.rope_theta == 10000);
    model_config_clear(&c);

    for (int parallel = 0; parallel < 2; parallel++) {
        f = (file_parts){0};
        add_basics(&f, "gptneox", "attention.head_count_kv");
        add_bool(&f, "gptneox.use_parallel_residual", parallel);
        if (parallel) add_tensor(&f, "blk.0.attn_qkv.bias", 128, 0);
        assert_ok(load(&f, &c));
        assert_int_equal(c.parallel_residual, parallel);
        assert_int_equal(c.attention_bias.q && c.attention_bias.k && c.attention_bias.v, parallel);
        assert_int_equal(c.num_key_value_heads, 4);
        model_config_clear(&c);
    }
}

/* ---- refusals ---- */

static void assert_refused(file_parts *f, mn_status code, const char *message) {
    model_config c, empty = {0};
    int64_t live = mem_count().live - (f->pairs.data != NULL) - (f->infos.data != NULL) - (f->data.data != NULL);
    mn_status status = load(f, &c);
    assert_string_equal(mn_last_error(), message);
    assert_int_equal(status, code);
    assert_memory_equal(&c, &empty, sizeof c);
    assert_int_equal(mem_count().live, live);
    *f = (file_parts){0};
}

static void errors_name_the_bad_metadata(void **state) {
    (void)state;
    static const char *const required[] = {"embedding_length", "block_count", "feed_forward_length",
                                           "attention.head_count"};
    const uint32_t mixed[] = {2, 4}, none[] = {0, 0};
    char message[128];
    file_parts f = {0};
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        add_basics(&f, "llama", required[i]);
        snprintf(message, sizeof message, "m.gguf: 'llama.%s' is missing", required[i]);
        assert_refused(&f, MN_E_FORMAT, message);
    }
    add_basics(&f, "llama", "tokens");
    assert_refused(&f, MN_E_FORMAT, "m.gguf: 'llama.vocab_size' is missing");
    add_u32(&f, "llama.block_count", 2);
    assert_refused(&f, MN_E_FORMAT, "m.gguf: 'general.architecture' is missing");
    add_basics(&f, "qwen2vl", "");
    assert_refused(&f, MN_E_UNSUPPORTED,
                   "m.gguf: general.architecture is \"qwen2vl\", the nearest known ones: qwen2, qwen3, qwen2moe");
    add_basics(&f, "mistral", ""); /* such files have the architecture llama */
    assert_refused(&f, MN_E_UNSUPPORTED,
                   "m.gguf: general.architecture is \"mistral\", the nearest known ones: mamba, llama, gemma");
    add_basics(&f, "llama", "attention.head_count_kv");
    add_u32_list(&f, "llama.attention.head_count_kv", mixed, 2);
    assert_refused(
        &f, MN_E_UNSUPPORTED,
        "m.gguf: llama.attention.head_count_kv differs between layers (2 and 4), allowed: one value for all");
    add_basics(&f, "llama", "attention.head_count_kv");
    add_u32_list(&f, "llama.attention.head_count_kv", none, 2);
    assert_refused(&f, MN_E_FORMAT,
                   "m.gguf: llama.attention.head_count_kv begins with 0, allowed: a whole number from 1 to 4096");
    add_basics(&f, "llama", "");
    add_u32(&f, "llama.rope.dimension_count", 8);
    assert_refused(&f, MN_E_UNSUPPORTED, "m.gguf: llama.rope.dimension_count is 8, allowed: the size of a head, 16");
    add_basics(&f, "llama", "");
    add_u32(&f, "llama.attention.value_length", 8);
    assert_refused(&f, MN_E_UNSUPPORTED, "m.gguf: llama.attention.value_length is 8, allowed: that of the keys, 16");
    add_basics(&f, "llama", "");
    add_tensor(&f, "rope_freqs.weight", 7, 1);
    assert_refused(&f, MN_E_FORMAT,
                   "m.gguf: rope_freqs.weight is F32 with 7 values, allowed: F32 with 8, half the rotary dimension");
    add_basics(&f, "llama", "");
    add_tensor(&f, "rope_freqs.weight", 8, NAN);
    assert_refused(&f, MN_E_FORMAT,
                   "m.gguf: value 0 of rope_freqs.weight is nan, allowed: a number from 1e-06 to 1e+09");
    add_basics(&f, "phi3", "");
    add_tensor(&f, "rope_factors_long.weight", 8, 1);
    assert_refused(&f, MN_E_FORMAT, "m.gguf: rope_factors_short.weight is missing: expected [8]");
    add_basics(&f, "llama", "");
    add_text(&f, "llama.rope.scaling.type", "ntk");
    assert_refused(&f, MN_E_UNSUPPORTED,
                   "m.gguf: llama.rope.scaling.type is \"ntk\", known: none, linear, yarn, longrope");
}

static void errors_name_the_bad_layer(void **state) {
    (void)state;
    const uint32_t three[] = {0, 2, 4}, none[] = {0, 0};
    file_parts f = {0};
    add_jamba(&f, three, 3);
    assert_refused(&f, MN_E_UNSUPPORTED,
                   "m.gguf: jamba.attention.head_count_kv differs between layers (2 and 4), allowed: one "
                   "value for all");
    add_jamba(&f, none, 2);
    assert_refused(&f, MN_E_FORMAT,
                   "m.gguf: jamba.attention.head_count_kv begins with 0, allowed: a whole number from 1 to 4096");
    add_basics(&f, "jamba", "block_count");
    add_u32(&f, "jamba.block_count", 5);
    add_u32(&f, "jamba.expert_count", 4);
    add_tensor(&f, "blk.1.ffn_gate_inp.weight", 8, 0);
    add_tensor(&f, "blk.3.ffn_gate_inp.weight", 8, 0);
    add_tensor(&f, "blk.4.ffn_gate_inp.weight", 8, 0);
    assert_refused(&f, MN_E_UNSUPPORTED,
                   "m.gguf: experts are in layers 1 and 3 but those of layer 4 break the period, allowed: one "
                   "period");
    add_basics(&f, "mamba", "");
    add_bool(&f, "mamba.ssm.dt_b_c_rms", true);
    assert_refused(&f, MN_E_UNSUPPORTED, "m.gguf: mamba.ssm.dt_b_c_rms is true, allowed: false");
    add_basics(&f, "stablelm", "");
    add_bool(&f, "stablelm.use_parallel_residual", true);
    assert_refused(&f, MN_E_UNSUPPORTED, "m.gguf: stablelm.use_parallel_residual is true, allowed: false");
    add_basics(&f, "olmo2", "");
    add_u32(&f, "olmo2.attention.sliding_window", 64);
    assert_refused(&f, MN_E_UNSUPPORTED, "m.gguf: olmo2.attention.sliding_window is 64, allowed: none");
    add_basics(&f, "gemma3", "block_count");
    add_u32(&f, "gemma3.block_count", 3);
    add_pattern(&f, "gemma3.attention.sliding_window_pattern", true, true);
    assert_refused(&f, MN_E_FORMAT,
                   "m.gguf: gemma3.attention.sliding_window_pattern has 2 items, allowed: 3 switches, one for "
                   "each layer");
}

static void build_rich(file_parts *f) {
    const uint32_t kinds[] = {1, 3, 3};
    add_basics(f, "phi3", "");
    add_u32_list(f, "tokenizer.ggml.token_type", kinds, 3);
    add_u32(f, "phi3.rope.scaling.original_context_length", 128);
    add_tensor(f, "rope_factors_short.weight", 8, 2);
    add_tensor(f, "rope_factors_long.weight", 8, 5);
    add_tensor(f, "rope_freqs.weight", 8, 1);
    finish(f);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    file_parts f = {0};
    build_rich(&f);
    gguf *file = NULL;
    assert_ok(gguf_open_memory(&file, f.file.data, f.file.n, "m.gguf"));
    int64_t live = mem_count().live, k = 1;
    for (;; k++) {
        model_config c;
        mem_fail_after(k);
        mn_status status = config_from_gguf(&c, file);
        mem_fail_after(0);
        if (status == MN_OK) model_config_clear(&c);
        assert_int_equal(mem_count().live, live);
        if (status == MN_OK) break;
        assert_int_equal(status, MN_E_NOMEM);
    }
    assert_int_equal(k, 6); /* five lists */
    gguf_close(&file);
    clear_parts(&f);
}

static void damaged_files_are_refused_or_valid(void **state) {
    (void)state;
    file_parts f = {0};
    build_rich(&f);
    int64_t live = mem_count().live;
    int n_opened = 0, n_loaded = 0;
    uint64_t random = 1;
    for (int i = 0; i < 20000; i++) {
        size_t at = test_random(&random) % f.file.n;
        char old = f.file.data[at];
        f.file.data[at] = (char)(i % 2 ? old ^ (1 << test_random(&random) % 8) : (char)test_random(&random));
        gguf *file = NULL;
        if (gguf_open_memory(&file, f.file.data, f.file.n, "m.gguf") == MN_OK) {
            n_opened++;
            model_config c, empty = {0};
            mn_status status = config_from_gguf(&c, file);
            if (status == MN_OK) {
                n_loaded++;
                double frequencies[512], factor = 0;
                rope_frequencies(&c, 1000, frequencies, &factor);
                assert_true(c.rotary_dim >= 2 && c.rotary_dim <= 1024 && factor > 0 && isfinite(frequencies[0]));
                model_config_clear(&c);
            }
            assert_memory_equal(&c, &empty, sizeof c);
        }
        gguf_close(&file);
        f.file.data[at] = old;
    }
    assert_int_equal(mem_count().live, live);
    printf("20000 damaged files: %d could be opened, %d of them have a configuration\n", n_opened, n_loaded);
    assert_true(n_loaded > 1000 && n_opened - n_loaded > 1000);
    clear_parts(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_is_read),
        cmocka_unit_test(switches_follow_the_tensors),
        cmocka_unit_test(rope_parameters_are_read),
        cmocka_unit_test(windows_are_read),
        cmocka_unit_test(mixed_layers_are_read),
        cmocka_unit_test(errors_name_the_bad_metadata),
        cmocka_unit_test(errors_name_the_bad_layer),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(damaged_files_are_refused_or_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
