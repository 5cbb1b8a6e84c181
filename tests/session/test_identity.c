/* The fingerprint of a model: it depends on everything that keys, values and states depend on, and on nothing else.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "session/session.h"
#include "support/engine.h"

typedef enum kind { WHOLE, REAL, SWITCH, WORD } kind;

typedef struct field {
    const char *name;
    size_t offset;
    kind kind;
    bool counts;
} field;

#define FIELD(name, kind)                                                                                              \
    { #name, offsetof(model_config, name), kind, true }
#define NO_FIELD(name, kind)                                                                                           \
    { #name, offsetof(model_config, name), kind, false }

/* Those that act on the last hidden state alone do not count. */
static const field fields[] = {
    FIELD(model_type, WORD),
    FIELD(hidden_size, WHOLE),
    FIELD(intermediate_size, WHOLE),
    FIELD(num_attention_heads, WHOLE),
    FIELD(num_key_value_heads, WHOLE),
    FIELD(head_dim, WHOLE),
    FIELD(vocab_size, WHOLE),
    FIELD(max_position_embeddings, WHOLE),
    FIELD(norm_eps, REAL),
    FIELD(hidden_act, WORD),
    FIELD(attention_bias.q, SWITCH),
    FIELD(attention_bias.k, SWITCH),
    FIELD(attention_bias.v, SWITCH),
    FIELD(attention_bias.o, SWITCH),
    FIELD(mlp_bias, SWITCH),
    FIELD(qk_norm, SWITCH),
    FIELD(layer_norm, SWITCH),
    FIELD(norm_adds_one, SWITCH),
    FIELD(post_norms, SWITCH),
    FIELD(parallel_residual, SWITCH),
    FIELD(gated_mlp, SWITCH),
    FIELD(sliding_window, WHOLE),
    FIELD(num_local_experts, WHOLE),
    FIELD(num_experts_per_tok, WHOLE),
    FIELD(expert_layer_period, WHOLE),
    FIELD(expert_layer_offset, WHOLE),
    FIELD(norm_topk_prob, SWITCH),
    FIELD(conv_kernel, WHOLE),
    FIELD(state_size, WHOLE),
    FIELD(time_step_rank, WHOLE),
    FIELD(mamba_size, WHOLE),
    FIELD(use_conv_bias, SWITCH),
    FIELD(use_bias, SWITCH),
    FIELD(attention_multiplier, REAL),
    FIELD(attn_logit_softcapping, REAL),
    FIELD(residual_multiplier, REAL),
    FIELD(embedding_multiplier, REAL),
    FIELD(positions, WORD),
    FIELD(rope_theta, REAL),
    FIELD(rope_local_base_freq, REAL),
    FIELD(rope_scaling.rope_type, WORD),
    FIELD(rope_scaling.factor, REAL),
    FIELD(rope_scaling.original_max_position_embeddings, WHOLE),
    FIELD(rope_scaling.low_freq_factor, REAL),
    FIELD(rope_scaling.high_freq_factor, REAL),
    FIELD(rope_scaling.beta_fast, REAL),
    FIELD(rope_scaling.beta_slow, REAL),
    FIELD(rope_scaling.mscale, REAL),
    FIELD(rope_scaling.mscale_all_dim, REAL),
    FIELD(rope_scaling.truncate, SWITCH),
    FIELD(rope_scaling.attention_factor, REAL),
    FIELD(permuted_rows, SWITCH),
    FIELD(qk_norm_wide, SWITCH),
    FIELD(cross_attention, SWITCH),
    FIELD(num_mel_bins, WHOLE),
    FIELD(shared_expert_intermediate_size, WHOLE),
    NO_FIELD(final_logit_softcapping, REAL),
    NO_FIELD(logits_scaling, REAL),
    NO_FIELD(tie_word_embeddings, SWITCH),
    NO_FIELD(head_bias, SWITCH),
    NO_FIELD(experts_apart, SWITCH), /* how weights are stored */
    NO_FIELD(bos_token_id, WHOLE),
    NO_FIELD(pad_token_id, WHOLE),
};

enum { N_FIELDS = sizeof fields / sizeof *fields };

static void change(const field *f, model_config *config) {
    char *place = (char *)config + f->offset;
    switch (f->kind) {
    case WHOLE: *(int64_t *)(void *)place += 1; break;
    case REAL: *(double *)(void *)place += 0.5; break;
    case SWITCH: *(bool *)(void *)place ^= true; break;
    case WORD: *(int *)(void *)place += 1; break; /* an enum of plain numbers */
    }
}

/* Changes every field of a model's configuration, which is `config`, in turn. */
static void check_fields(const mn_model *model, model_config *config, const char *path) {
    char seen[N_FIELDS + 1][FINGERPRINT_HEX];
    const model_config before = *config;
    assert_ok(model_fingerprint(seen[0], model->core));
    for (int i = 0; i < N_FIELDS; i++) {
        char *now = seen[i + 1];
        change(&fields[i], config);
        assert_ok(model_fingerprint(now, model->core));
        *config = before;
        if ((strcmp(now, seen[0]) != 0) != fields[i].counts)
            fail_msg("%s: %s %s", path, fields[i].name, fields[i].counts ? "does not count" : "counts");
        for (int j = 1; fields[i].counts && j <= i; j++) {
            if (strcmp(now, seen[j]) == 0) fail_msg("%s is taken for %s", fields[i].name, fields[j - 1].name);
        }
    }
    layer_type first = config->layer_types[0];
    config->layer_types[0] = first == LAYER_FULL_ATTENTION ? LAYER_SLIDING_ATTENTION : LAYER_FULL_ATTENTION;
    assert_ok(model_fingerprint(seen[1], model->core));
    assert_string_not_equal(seen[1], seen[0]);
    config->layer_types[0] = first;
    assert_ok(model_fingerprint(seen[1], model->core));
    assert_string_equal(seen[1], seen[0]);
}

static void every_number_counts_that_the_cache_depends_on(void **state) {
    (void)state;
    static const char *const paths[] = {"golden/llama", "golden/jamba", "golden/gemma3", "golden/whisper/tiny80"};
    for (size_t m = 0; m < sizeof paths / sizeof *paths; m++) {
        mn_model *model = engine_model(paths[m], "f32", "auto", 1);
        model_config *config = &model->core->net.config;
        check_fields(model, config, paths[m]);
        if (config->encoder) check_fields(model, config->encoder, "its encoder");
        mn_model_close(&model);
    }
}

/* Each by itself: as they are, none, and one of them changed. */
static void layers_without_rotation_count(void **state) {
    (void)state;
    enum { MOST = 4 };
    mn_model *model = engine_model("golden/smollm3", "f32", "auto", 1);
    model_config *config = &model->core->net.config;
    bool *own = config->unrotated, changed[MOST];
    int64_t n = config->num_hidden_layers;
    char seen[MOST + 2][FINGERPRINT_HEX];
    assert_non_null(own);
    assert_true(n <= MOST);
    assert_ok(model_fingerprint(seen[0], model->core));
    config->unrotated = NULL;
    assert_ok(model_fingerprint(seen[1], model->core));
    config->unrotated = changed;
    for (int64_t i = 0; i < n; i++) {
        memcpy(changed, own, (size_t)n * sizeof *own);
        changed[i] = !own[i];
        assert_ok(model_fingerprint(seen[2 + i], model->core));
    }
    config->unrotated = own;
    for (int64_t i = 0; i < n + 2; i++) {
        for (int64_t j = 0; j < i; j++) /* without the last layer's, there is none */
            assert_int_equal(strcmp(seen[i], seen[j]) == 0, i == n + 1 && j == 1);
    }
    mn_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_counts_that_the_cache_depends_on),
        cmocka_unit_test(layers_without_rotation_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
