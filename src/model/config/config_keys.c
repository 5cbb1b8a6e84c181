/* Keys of config.json that no reader asks for: those that change what a model computes are refused, those that do not
 * are passed over, all others are named once.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "model/config/config_rules.h"

/* clang-format off */
/* Read for some type. */
static const char *const read_keys[] = {
    "model_type", "text_config", "architectures", "dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings",
    "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "hidden_act", "hidden_activation", "activation_function", "attention_bias", "mlp_bias",
    "use_qkv_bias", "qkv_bias", "use_bias", "use_conv_bias", "use_parallel_residual", "n_embd", "n_inner", "n_layer", "n_head", "n_positions", "d_model",
    "decoder_layers", "decoder_ffn_dim", "decoder_attention_heads", "encoder_layers", "encoder_ffn_dim", "encoder_attention_heads",
    "max_source_positions", "max_target_positions", "scale_embedding", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "num_experts",
    "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "time_step_rank", "expand", "mamba_d_conv", "mamba_d_state",
    "mamba_dt_rank", "mamba_expand", "mamba_conv_bias", "mamba_proj_bias", "expert_layer_period", "expert_layer_offset", "attn_layer_period",
    "attn_layer_offset", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rotary_pct", "rotary_emb_base",
    "original_max_position_embeddings", "no_rope_layers", "no_rope_layer_interval", "sliding_window", "sliding_window_pattern",
    "_sliding_window_pattern", "use_sliding_window", "max_window_layers", "layer_types", "quantization_config",
};

/* Training, comments, generation, other programs; what holds for every model of a type. */
static const char *const idle_keys[] = {
    "transformers_version", "_name_or_path", "_attn_implementation_autoset", "_commit_hash", "auto_map", "use_cache", "initializer_range",
    "initializer_factor", "init_std", "pretraining_tp", "attention_dropout", "hidden_dropout", "activation_dropout", "dropout", "attn_pdrop",
    "embd_pdrop", "resid_pdrop", "decoder_layerdrop", "encoder_layerdrop", "classifier_dropout", "classifier_proj_size", "apply_spec_augment",
    "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob", "mask_time_length", "mask_time_min_masks", "mask_time_prob",
    "median_filter_width", "begin_suppress_tokens", "suppress_tokens", "forced_decoder_ids", "decoder_start_token_id", "is_encoder_decoder",
    "num_logits_to_keep", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "reorder_and_upcast_attn",
    "rescale_prenorm_residual", "residual_in_fp32", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "time_step_floor", "time_step_init_scheme", "time_step_max", "time_step_min", "time_step_scale", "use_mamba_kernels",
    "use_mambapy", "use_weighted_layer_sum", "cache_implementation", "n_ctx", "task_specific_params", "id2label", "label2id",
    "num_labels", "problem_type", "finetuning_task", "output_attentions", "output_hidden_states", "output_scores", "return_dict",
    "return_dict_in_generate", "torchscript", "use_bfloat16", "tf_legacy_loss", "pruned_heads", "chunk_size_feed_forward", "is_decoder",
    "add_cross_attention", "cross_attention_hidden_size", "tie_encoder_decoder", "tokenizer_class", "prefix", "sep_token_id", "max_length",
    "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
    "remove_invalid_values", "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "vision_config", "audio_config",
    "is_causal", "unsloth_fixed", "unsloth_version", "eoi_token_index", "boi_token_index", "image_token_index", "image_token_id", "video_token_id",
    "vision_start_token_id", "vision_end_token_id", "vision_token_id", "mm_tokens_per_image", "multimodal_projector_bias", "projector_hidden_act",
    "spatial_merge_size", "vision_feature_layer", "vision_feature_select_strategy", "boi_token_id", "eoi_token_id",
};
/* clang-format on */

/* Numbers and switches that change the result of a pass; allowed where they do not: null, false, 0 and `neutral`. */
static const struct {
    const char *key;
    double neutral;
    unsigned readers; /* types with these fields read it; 0: see is_read_by_type */
} strong_keys[] = {
    {"attn_logit_softcapping", 0, FIELDS_CAPS},
    {"final_logit_softcapping", 0, FIELDS_CAPS},
    {"attention_multiplier", 0, FIELDS_MULTIPLIERS},
    {"residual_multiplier", 1, FIELDS_MULTIPLIERS},
    {"embedding_multiplier", 1, FIELDS_MULTIPLIERS},
    {"logits_scaling", 1, FIELDS_MULTIPLIERS},
    {"rope_local_base_freq", 0, FIELDS_LOCAL_ROPE},
    {"logit_scale", 1, 0},
    {"query_pre_attn_scalar", 0, 0},
    {"qk_layernorm", 0, 0},
    {"use_qk_norm", 0, 0},
    {"clip_qkv", 0, 0},
    {"attention_chunk_size", 0, 0},
    {"attn_temperature_tuning", 0, 0},
    {"use_bidirectional_attention", 0, 0},
    {"rope_interleaved", 0, 0},
    {"rope_interleave", 0, 0},
    {"alibi", 0, 0},
    {"use_alibi", 0, 0},
};

static bool is_among(const char *const *list, size_t n, const char *key) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i], key) == 0) return true;
    }
    return false;
}

/* Keys that the type's own reader takes, or refuses with a sentence of its own. */
static bool is_read_by_type(const model_config *config, const char *key) {
    model_type type = config->model_type;
    if (strcmp(key, "logit_scale") == 0) return type == MODEL_COHERE;
    if (strcmp(key, "query_pre_attn_scalar") == 0) return model_types[type].query_pre_attn_scalar > 0;
    if (strcmp(key, "qk_layernorm") == 0) return type == MODEL_STABLELM || type == MODEL_PHI;
    return strcmp(key, "use_qk_norm") == 0 && type == MODEL_COHERE;
}

static bool is_neutral(const json *value, double neutral) {
    switch (value->kind) {
    case JSON_NULL: return true;
    case JSON_BOOL: return !value->boolean;
    case JSON_INT: return value->integer == 0 || (double)value->integer == neutral;
    case JSON_REAL: return value->real == 0 || value->real == neutral;
    case JSON_STRING:
    case JSON_ARRAY:
    case JSON_OBJECT: break;
    }
    return false;
}

/* *known: the key changes results; it is one that the type reads, or has a value that changes nothing. */
static mn_status check_strong(const model_config *config, const json_member *m, const char *what, bool *known) {
    for (size_t i = 0; i < sizeof strong_keys / sizeof *strong_keys; i++) {
        if (strcmp(strong_keys[i].key, m->key) != 0) continue;
        *known = true;
        unsigned readers = strong_keys[i].readers;
        if (readers ? config_has(config, readers) : is_read_by_type(config, m->key)) return MN_OK;
        if (is_neutral(&m->value, strong_keys[i].neutral)) return MN_OK;
        bytes shown = {0};
        json_put(&shown, &m->value);
        mn_status status = status_fail(MN_E_UNSUPPORTED, "%s: %s is %.40s, which %s does not have here; allowed: null",
                                       what, m->key, bytes_text(&shown), model_type_name(config->model_type));
        bytes_clear(&shown);
        return status;
    }
    return MN_OK;
}

static bool is_a_number(const char *key) {
    for (size_t i = 0; i < N_CONFIG_SIZES; i++) {
        if (strcmp(config_sizes[i].json_key, key) == 0) return true;
    }
    for (size_t i = 0; i < N_CONFIG_REALS; i++) {
        if (strcmp(config_reals[i].json_key, key) == 0) return true;
    }
    return false;
}

mn_status config_check_keys(model_config *config, const json *root, const char *what) {
    bytes unknown = {0};
    mn_status status = MN_OK;
    for (size_t i = 0; i < root->n && status == MN_OK; i++) {
        const json_member *m = &root->members[i];
        bool known = is_a_number(m->key) || is_among(read_keys, sizeof read_keys / sizeof *read_keys, m->key) ||
                     is_among(idle_keys, sizeof idle_keys / sizeof *idle_keys, m->key);
        status = check_strong(config, m, what, &known);
        if (known || m->value.kind == JSON_NULL || unknown.n > 200) continue;
        bytes_printf(&unknown, "%s%s", unknown.n ? ", " : "", config_show(m->key, m->key_n).text);
    }
    if (status == MN_OK) status = bytes_status(&unknown);
    if (status == MN_OK && unknown.n) {
        config->unknown_keys = mem_copy_text(unknown.data, unknown.n);
        if (!config->unknown_keys) status = mem_no_memory();
    }
    bytes_clear(&unknown);
    return status;
}
