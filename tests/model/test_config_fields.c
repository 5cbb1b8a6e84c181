/* R5: every field of config.json of every family here, with values of each wrong type, out of range, missing, and
 * contradicting others: more than 300 bad configurations, each refused with a message that names the field. The fields
 * and their types come from the checkpoints' files.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/families.h"
#include "support/support.h"

#include "model/arch.h"
#include "model/config.h"
#include "model/names.h"

static const char *const families[] = {
    "cohere",          "gemma",          "gemma2",
    "gemma3",          "gpt-neox",       "gpt2",
    "granite",         "jamba",          "llama-rope-llama3",
    "llama-rope-yarn", "mamba",          "mistral-window",
    "mixtral",         "olmo2",          "phi",
    "phi3-longrope",   "qwen2",          "qwen2-moe",
    "qwen3",           "qwen3-moe",      "smollm3",
    "stablelm",        "whisper/tiny80",
};

/* Replacements of a field by the type of its value; 1e400 is infinity in Python's JSON. */
static const struct {
    json_kind kind;
    const char *values[7];
} wrong[] = {
    {JSON_INT, {"\"text\"", "[1]", "{}", "true", "-7", "1e400", "0.3"}},
    {JSON_REAL, {"\"text\"", "[1]", "{}", "true", "-7", "1e400"}},
    {JSON_BOOL, {"7", "\"yes\"", "[true]", "{}"}},
    {JSON_STRING, {"7", "\"nonsense\"", "[\"silu\"]", "true", "{}"}},
    {JSON_ARRAY, {"7", "\"text\"", "{}", "[7.5]"}},
    {JSON_OBJECT, {"7", "\"text\"", "[1]"}},
};

/* Fields that do not affect inference: training, comments, switches of other programs. */
static const char *const unread[] = {
    "architectures",
    "attention_dropout",
    "attn_pdrop",
    "classifier_dropout",
    "embd_pdrop",
    "hidden_dropout",
    "initializer_range",
    "num_logits_to_keep",
    "output_router_logits",
    "pretraining_tp",
    "reorder_and_upcast_attn",
    "rescale_prenorm_residual",
    "resid_pdrop",
    "residual_in_fp32",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "time_step_floor",
    "time_step_init_scheme",
    "time_step_max",
    "time_step_min",
    "time_step_scale",
    "activation_dropout",
    "apply_spec_augment",
    "classifier_proj_size",
    "decoder_layerdrop",
    "decoder_start_token_id",
    "dropout",
    "encoder_layerdrop",
    "init_std",
    "is_encoder_decoder",
    "mask_feature_length",
    "mask_feature_min_masks",
    "mask_feature_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_time_prob",
    "median_filter_width",
    "use_weighted_layer_sum",
    "transformers_version",
    "use_cache",
    "use_mamba_kernels",
    "use_mambapy",
};

static bool is_unread(const char *key) {
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++) {
        if (strcmp(unread[i], key) == 0) return true;
    }
    return false;
}

/* The file's text with one member of `inner` (NULL: the root) replaced, or removed for value NULL. */
static void put_changed(bytes *out, const json *root, const char *inner, const char *key, const char *value) {
    bytes_append_text(out, "{");
    for (size_t i = 0; i < root->n; i++) {
        const json_member *m = &root->members[i];
        bool is_it = !inner && strcmp(m->key, key) == 0, is_around = inner && strcmp(m->key, inner) == 0;
        if (is_it && !value) continue;
        bytes_append_text(out, out->data[out->n - 1] == '{' ? "" : ",");
        json_put_string(out, m->key, m->key_n);
        bytes_append_text(out, ":");
        if (is_it) {
            bytes_append_text(out, value);
        } else if (is_around) {
            put_changed(out, &m->value, NULL, key, value);
        } else {
            json_put_as(out, &m->value, JSON_PYTHON);
        }
    }
    bytes_append_text(out, "}");
}

static mn_status load_text(const char *text) {
    json_doc *doc = NULL;
    model_config config;
    assert_ok(json_parse(&doc, text, strlen(text), JSON_PYTHON, "config.json"));
    mn_status status = config_from_json(&config, json_root(doc), "config.json");
    json_close(&doc);
    if (status == MN_OK) model_config_clear(&config);
    return status;
}

/* Replacements that are valid after all, and fields that another field of the same file overrides. value NULL: any. */
static const struct {
    const char *family, *key, *value; /* family NULL: all */
} good[] = {
    {NULL, "eos_token_id", "[1]"},
    {"gemma2", "query_pre_attn_scalar", "0.3"},
    {"gemma3", "query_pre_attn_scalar", "0.3"},
    {"gemma", "hidden_act", NULL},         /* hidden_activation */
    {"gemma3", "num_attention_heads", ""}, /* left out, the size is that of the type */
    {"gemma3", "vocab_size", ""},
    {"gpt-neox", "rotary_emb_base", NULL},    /* rope_theta */
    {"qwen2-moe", "intermediate_size", NULL}, /* of layers without experts, of which there are none */
    {"qwen3-moe", "intermediate_size", NULL},
    {"whisper/tiny80", "num_hidden_layers", NULL}, /* encoder_layers, decoder_layers */
};

static bool is_good(const char *family, const char *key, const char *value) {
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if ((!good[i].family || strcmp(good[i].family, family) == 0) && strcmp(good[i].key, key) == 0 &&
            (!good[i].value || strcmp(good[i].value, value) == 0))
            return true;
    }
    return is_unread(key);
}

/* Whether the changed file is refused; the message must name the file and the field. */
static bool is_refused(const char *family, const json *root, const char *inner, const char *key, const char *value) {
    bytes text = {0};
    put_changed(&text, root, inner, key, value);
    int64_t live = mem_count().live;
    mn_status status = load_text(bytes_text(&text));
    if (mem_count().live != live) fail_msg("%s, %s %s: blocks are left", family, key, value ? value : "left out");
    bytes_clear(&text);
    if (status == MN_OK) return false;
    const char *message = mn_last_error();
    if (status != MN_E_FORMAT && status != MN_E_UNSUPPORTED) fail_msg("%s, %s: status %d", family, key, (int)status);
    if (!strstr(message, key) || strncmp(message, "config.json: ", 13) != 0)
        fail_msg("%s, %s is %s: '%s' does not name it", family, key, value ? value : "left out", message);
    return true;
}

static json_doc *open_family(const char *family) {
    char path[128];
    snprintf(path, sizeof path, "golden/%s/config.json", family);
    return open_json(data_path(path));
}

/* Counts the refusals of one member; each wrong value of a field that is read must be one. */
static int try_values(const char *family, const json *root, const char *inner, const json_member *m) {
    int n_refused = 0;
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        for (int i = 0; wrong[w].kind == m->value.kind && i < 7 && wrong[w].values[i]; i++) {
            bool refused = is_refused(family, root, inner, m->key, wrong[w].values[i]);
            if (refused == is_good(family, m->key, wrong[w].values[i]))
                fail_msg("%s: %s is %s: %s", family, m->key, wrong[w].values[i],
                         refused ? mn_last_error() : "was accepted");
            n_refused += refused;
        }
    }
    return n_refused;
}

static int n_all;

static void values_of_each_wrong_type_are_refused(void **state) {
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        json_doc *doc = open_family(families[f]);
        const json *root = json_root(doc);
        for (size_t i = 0; i < root->n; i++) {
            const json_member *m = &root->members[i];
            n_all += try_values(families[f], root, NULL, m);
            for (size_t k = 0; m->value.kind == JSON_OBJECT && k < m->value.n; k++)
                n_all += try_values(families[f], root, m->key, &m->value.members[k]);
        }
        json_close(&doc);
    }
}

static void missing_fields_are_refused(void **state) {
    (void)state;
    static const char *const needed[] = {"model_type",
                                         "hidden_size",
                                         "num_hidden_layers",
                                         "num_attention_heads",
                                         "vocab_size",
                                         "d_model",
                                         "n_embd",
                                         "n_layer",
                                         "n_head",
                                         "moe_intermediate_size",
                                         "shared_expert_intermediate_size",
                                         "num_mel_bins",
                                         "decoder_ffn_dim",
                                         "encoder_layers"};
    int n = 0;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        json_doc *doc = open_family(families[f]);
        for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
            if (!json_get(json_root(doc), needed[i]) || is_good(families[f], needed[i], "")) continue;
            if (!is_refused(families[f], json_root(doc), NULL, needed[i], NULL))
                fail_msg("%s: accepted without %s", families[f], needed[i]);
            n++;
        }
        json_close(&doc);
    }
    n_all += n;
    assert_true(n > 90);
}

static void contradictions_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *family, *inner, *key, *value;
    } cases[] = {
        {"cohere", NULL, "num_key_value_heads", "3"},
        {"gemma", NULL, "head_dim", "15"},
        {"gemma3", NULL, "layer_types", "[\"full_attention\"]"},
        {"gemma3", NULL, "layer_types", "[]"},
        {"gemma3", NULL, "head_dim", "1026"},
        {"gpt2", NULL, "n_head", "7"},
        {"granite", NULL, "num_attention_heads", "5"},
        {"jamba", NULL, "attn_layer_offset", "8"},
        {"jamba", NULL, "expert_layer_offset", "2"},
        {"jamba", NULL, "num_experts_per_tok", "1000"},
        {"llama-rope-llama3", "rope_scaling", "low_freq_factor", "4096"},
        {"llama-rope-llama3", "rope_scaling", "high_freq_factor", "0.000001"},
        {"whisper/tiny80", NULL, "scale_embedding", "true"},
        {"mixtral", NULL, "num_experts_per_tok", "9"},
        {"phi", NULL, "partial_rotary_factor", "0.0"},
        {"phi", NULL, "qk_layernorm", "true"},
        {"phi3-longrope", "rope_scaling", "short_factor", "[1.0]"},
        {"phi3-longrope", "rope_scaling", "long_factor", "[]"},
        {"qwen2-moe", NULL, "decoder_sparse_step", "2"},
        {"qwen2-moe", NULL, "mlp_only_layers", "[0]"},
        {"qwen3", NULL, "head_dim", "17"},
        {"qwen3-moe", NULL, "num_experts_per_tok", "1024"},
        {"smollm3", NULL, "no_rope_layers", "[1]"},
        {"smollm3", NULL, "no_rope_layers", "[2, 1, 1, 0]"},
        {"stablelm", NULL, "use_parallel_residual", "true"},
        {"stablelm", NULL, "partial_rotary_factor", "0.01"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_doc *doc = open_family(cases[i].family);
        const json *root = json_root(doc), *around = cases[i].inner ? json_get(root, cases[i].inner) : root;
        if (!json_get(around, cases[i].key)) fail_msg("%s has no %s", cases[i].family, cases[i].key);
        if (!is_refused(cases[i].family, root, cases[i].inner, cases[i].key, cases[i].value))
            fail_msg("%s: %s is %s was accepted", cases[i].family, cases[i].key, cases[i].value);
        json_close(&doc);
        n_all++;
    }
}

static mn_status load_config(model_config *config, const char *text) {
    json_doc *doc = NULL;
    assert_ok(json_parse(&doc, text, strlen(text), JSON_PYTHON, "config.json"));
    mn_status status = config_from_json(config, json_root(doc), "config.json");
    json_close(&doc);
    return status;
}

static void put_member(bytes *out, const char *key, const json *value) {
    if (!value) return;
    bytes_append_text(out, out->data[out->n - 1] == '{' ? "" : ",");
    json_put_string(out, key, strlen(key));
    bytes_append_text(out, ":");
    json_put_as(out, value, JSON_PYTHON);
}

/* The file as Transformers 5 saves it: everything about rotation in rope_parameters, `dtype`. */
static void put_newer(bytes *out, const json *root) {
    static const char *const moved[] = {"rope_theta", "rope_scaling",    "partial_rotary_factor",
                                        "rotary_pct", "rotary_emb_base", "rope_local_base_freq",
                                        "torch_dtype"};
    const json *scaling = json_get(root, "rope_scaling"), *local = json_get(root, "rope_local_base_freq"),
               *partial = json_get(root, "rotary_pct");
    bool has_scaling = scaling && scaling->kind == JSON_OBJECT;
    bytes_append_text(out, "{");
    for (size_t i = 0; i < root->n; i++) {
        bool is_moved = false;
        for (size_t k = 0; k < sizeof moved / sizeof *moved; k++)
            is_moved |= strcmp(root->members[i].key, moved[k]) == 0;
        if (!is_moved) put_member(out, root->members[i].key, &root->members[i].value);
    }
    put_member(out, "dtype", json_get(root, json_get(root, "torch_dtype") ? "torch_dtype" : "dtype"));
    bytes_append_text(out, local ? ",\"rope_parameters\":{\"full_attention\":{" : ",\"rope_parameters\":{");
    for (size_t i = 0; has_scaling && i < scaling->n; i++)
        put_member(out, scaling->members[i].key, &scaling->members[i].value);
    if (!has_scaling) bytes_append_text(out, "\"rope_type\":\"default\"");
    put_member(out, "rope_theta", json_get(root, "rope_theta"));
    put_member(out, "partial_rotary_factor", partial ? partial : json_get(root, "partial_rotary_factor"));
    if (local) {
        bytes_append_text(out, "},\"sliding_attention\":{\"rope_type\":\"default\"");
        put_member(out, "rope_theta", local);
        bytes_append_text(out, "}");
    }
    bytes_append_text(out, "}}");
}

/* Compares what is owned and sets it to NULL. */
static void same_rows(const char *family, double **a, double **b, int64_t n) {
    if ((*a == NULL) != (*b == NULL) || (*a && memcmp(*a, *b, (size_t)n * sizeof **a) != 0))
        fail_msg("%s: other factors", family);
    mem_free(*a);
    mem_free(*b);
    *a = *b = NULL;
}

/* Files that Transformers 5 saved mean what the older ones meant. */
static void newer_files_mean_the_same(void **state) {
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        json_doc *doc = open_family(families[f]);
        model_config a, b;
        bytes older = {0}, newer = {0};
        json_put_as(&older, json_root(doc), JSON_PYTHON);
        put_newer(&newer, json_root(doc));
        assert_ok(load_config(&a, bytes_text(&older)));
        assert_ok(load_config(&b, bytes_text(&newer)));
        same_rows(families[f], &a.rope_scaling.short_factor, &b.rope_scaling.short_factor, a.rotary_dim / 2);
        same_rows(families[f], &a.rope_scaling.long_factor, &b.rope_scaling.long_factor, a.rotary_dim / 2);
        if (memcmp(a.layer_types, b.layer_types, (size_t)a.num_hidden_layers * sizeof *a.layer_types) != 0)
            fail_msg("%s: other layers", families[f]);
        model_config x = a, y = b;
        x.layer_types = y.layer_types = NULL;
        x.eos_token_id = y.eos_token_id = NULL;
        x.unrotated = y.unrotated = NULL;
        x.encoder = y.encoder = NULL;
        if (memcmp(&x, &y, sizeof x) != 0) fail_msg("%s: %s means something else", families[f], bytes_text(&newer));
        model_config_clear(&a);
        model_config_clear(&b);
        bytes_clear(&older);
        bytes_clear(&newer);
        json_close(&doc);
    }
}

/* The number that docs/reliability.md states. */
static void more_than_300_configurations_are_refused(void **state) {
    (void)state;
    print_message("R5: %d bad configurations were refused, each by the name of its field\n", n_all);
    assert_true(n_all >= 300);
}

/* encoder.c computes encoders, which have a convolution in place of embeddings. */
static void every_model_type_has_names_and_a_forward_pass(void **state) {
    (void)state;
    families_need_every_type("families", &families[0], sizeof *families, sizeof families / sizeof *families);
    for (int type = 0; type < N_MODEL_TYPES; type++) {
        const bool is_encoder = type == MODEL_WHISPER_ENCODER;
        const char *name = model_type_name((model_type)type);
        const model_config config = {.model_type = (model_type)type};
        weight_place place;
        if (!name && !is_encoder) fail_msg("model type %d has no row in config_types.c", type);
        if (!weight_find_place(&config, false, is_encoder ? WEIGHT_CONV1 : WEIGHT_EMBED, 0, 0, &place))
            fail_msg("model type %d (%s) has no tensors in names.c", type, name ? name : "encoder");
        if (!is_encoder && !arch_forwards[type]) fail_msg("model type %d (%s) has no pass in arch.c", type, name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_each_wrong_type_are_refused),
        cmocka_unit_test(missing_fields_are_refused),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(more_than_300_configurations_are_refused),
        cmocka_unit_test(newer_files_mean_the_same),
        cmocka_unit_test(every_model_type_has_names_and_a_forward_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
