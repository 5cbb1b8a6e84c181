/* A model's fingerprint: of samples of its weights and of every number of its configuration that keys and values depend
 * on.
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"
#include "tensor/fingerprint.h"

static void add_list(fingerprint *f, const double *list, int64_t n) {
    fingerprint_add_sized(f, list ? list : &(double){0}, list ? (size_t)n * sizeof *list : 0);
}

/* Of the encoder or the decoder, which differ in model_type. */
static void add_half(fingerprint *f, const model_config *c) {
    const rope_scaling *rope = &c->rope_scaling;
    const int64_t integers[] = {
        c->model_type,
        c->hidden_size,
        c->intermediate_size,
        c->num_hidden_layers,
        c->num_attention_heads,
        c->num_key_value_heads,
        c->head_dim,
        c->vocab_size,
        c->hidden_act,
        c->qk_norm,
        c->sliding_window,
        c->rotary_dim,
        rope->rope_type,
        rope->truncate,
        c->permuted_rows,
        rope->original_max_position_embeddings,
        c->max_position_embeddings,
        c->layer_norm,
        c->norm_adds_one,
        c->post_norms,
        c->parallel_residual,
        c->gated_mlp,
        c->num_local_experts,
        c->num_experts_per_tok,
        c->expert_layer_period,
        c->expert_layer_offset,
        c->norm_topk_prob,
        c->conv_kernel,
        c->state_size,
        c->time_step_rank,
        c->mamba_size,
        c->use_conv_bias,
        c->use_bias,
        c->positions,
        c->attention_bias.q,
        c->attention_bias.k,
        c->attention_bias.v,
        c->attention_bias.o,
        c->mlp_bias,
        c->qk_norm_wide,
        c->cross_attention,
        c->num_mel_bins,
        c->shared_expert_intermediate_size,
    };
    const double numbers[] = {
        c->norm_eps,
        c->attention_multiplier,
        c->attn_logit_softcapping,
        c->residual_multiplier,
        c->embedding_multiplier,
        c->rope_theta,
        c->rope_local_base_freq,
        rope->factor,
        rope->low_freq_factor,
        rope->high_freq_factor,
        rope->beta_fast,
        rope->beta_slow,
        rope->mscale,
        rope->mscale_all_dim,
        rope->attention_factor,
    };
    int64_t half = c->rotary_dim / 2;
    fingerprint_add_sized(f, integers, sizeof integers);
    fingerprint_add_sized(f, numbers, sizeof numbers);
    add_list(f, rope->short_factor, half);
    add_list(f, rope->long_factor, half);
    add_list(f, rope->divisors, half);
    for (int64_t i = 0; i < c->num_hidden_layers; i++) {
        const int64_t layer[] = {c->layer_types[i], c->unrotated && c->unrotated[i]};
        fingerprint_add_sized(f, layer, sizeof layer);
    }
}

/* Keys and values of cross attention depend on the encoder, too. */
static void add_config(fingerprint *f, const model_config *c) {
    add_half(f, c);
    if (c->encoder) add_half(f, c->encoder);
}

mn_status model_fingerprint(char out[FINGERPRINT_HEX], const model_core *model) {
    char weights[FINGERPRINT_HEX];
    fingerprint *f = NULL;
    MN_TRY(tensor_set_fingerprint_sampled(weights, model_tensors(model)));
    MN_TRY(fingerprint_open(&f));
    fingerprint_add_sized(f, weights, sizeof weights);
    add_config(f, &model->net.config);
    fingerprint_put(out, f);
    fingerprint_close(&f);
    /* Packed weights are not read from the file again. */
    if (model_packed_bytes(model)) tensor_set_release_pages(model_tensors(model));
    return MN_OK;
}
