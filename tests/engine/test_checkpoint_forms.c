/* One model in several forms of a checkpoint: as the text half of a model for pictures under each prefix, and with the
 * types that its tensors are stored with. Each form has the bits of the same weights as plain float32.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>

#include "base/num.h"
#include "support/blocks.h"
#include "support/scratch.h"
#include "tensor/safetensors.h"

enum { N_IDS = 24, MOST_TENSORS = 128 };

/* ---- checkpoints ---- */

/* Tensors to be written; their data and names are owned. */
typedef struct checkpoint {
    tensor tensors[MOST_TENSORS];
    size_t n;
} checkpoint;

/* Zeroed data of a new tensor. */
static void *add_tensor(checkpoint *c, const char *name, dtype type, int n_dims, const int64_t *shape) {
    assert_true(c->n < MOST_TENSORS);
    tensor *t = &c->tensors[c->n++];
    int64_t values = 1;
    *t = (tensor){.name = mem_copy_text(name, strlen(name)), .type = type, .n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) values *= t->shape[i] = shape[i];
    assert_ok(dtype_bytes(type, values, &t->bytes));
    uint8_t *data = mem_alloc(t->bytes, 1);
    assert_true(t->name && data);
    t->data = data;
    return data;
}

static void checkpoint_clear(checkpoint *c) {
    for (size_t i = 0; i < c->n; i++) {
        mem_free((char *)(uintptr_t)c->tensors[i].name);
        mem_free((uint8_t *)(uintptr_t)c->tensors[i].data);
    }
    c->n = 0;
}

static int64_t values_of(const tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

static tensor_set *open_golden(const char *family) {
    tensor_set *set = NULL;
    char name[64];
    snprintf(name, sizeof name, "golden/%s", family);
    assert_ok(safetensors_open_folder(&set, data_path(name)));
    return set;
}

static json_doc *golden_config(const char *family) {
    char name[64];
    snprintf(name, sizeof name, "golden/%s/config.json", family);
    return open_json(data_path(name));
}

/* A folder with these files; valid until the fourth call after it. */
static const char *write_folder(const char *name, const checkpoint *c, const bytes *config) {
    char file[64];
    const char *folder = scratch_empty(name);
    snprintf(file, sizeof file, "%s/config.json", name);
    scratch_file(file, config->data, config->n);
    snprintf(file, sizeof file, "%s/model.safetensors", name);
    assert_ok(safetensors_write(scratch_path(file), c->tensors, c->n, NULL));
    return folder;
}

/* Logits [N_IDS][vocab] of a folder. */
static float *logits_of(const char *folder, const char *compute, size_t *n_vocab) {
    mn_model *model = engine_model(folder, compute, "auto", 1);
    int32_t ids[N_IDS];
    uint64_t seed = 5;
    *n_vocab = (size_t)engine_vocab(model);
    engine_ids(&seed, ids, N_IDS, engine_vocab(model));
    float *logits = engine_logits(model, (engine_cache){0}, ids, N_IDS, 0, &seed);
    mn_model_close(&model);
    return logits;
}

static void check_same(const char *folder, const char *plain, const char *compute, const char *what) {
    size_t n_vocab;
    float *got = logits_of(folder, compute, &n_vocab), *wanted = logits_of(plain, compute, &n_vocab);
    engine_same_bits(got, wanted, N_IDS, n_vocab, "%s, %s", what, compute);
    for (size_t i = 0; i < N_IDS * n_vocab; i++) assert_true(isfinite(got[i]));
    free(got);
    free(wanted);
}

/* The compute type that "auto" chooses, and what a warning holds; NULL: there is none. */
static void check_info(const char *folder, const char *compute, const char *warning, const char *what) {
    mn_model *model = engine_model(folder, "auto", "auto", 1);
    mn_model_info info = {.size = sizeof info};
    assert_ok(mn_model_get_info(model, &info));
    const bool fits = warning ? info.warning && strstr(info.warning, warning) : !info.warning;
    if (strcmp(info.compute_type, compute) != 0 || !fits)
        fail_msg("%s: compute type %s, warning '%s'", what, info.compute_type, info.warning ? info.warning : "none");
    mn_model_close(&model);
}

/* ---- stored types ---- */

static void doubles_are_read(void **state) {
    (void)state;
    tensor_set *set = open_golden("llama");
    json_doc *doc = golden_config("llama");
    checkpoint c = {.n = 0};
    bytes config = {0};
    for (size_t i = 0; i < tensor_set_count(set); i++) {
        const tensor *t = tensor_set_at(set, i);
        double *data = add_tensor(&c, t->name, DTYPE_F64, t->n_dims, t->shape);
        for (int64_t k = 0; k < values_of(t); k++) {
            float value;
            memcpy(&value, t->data + (size_t)k * sizeof value, sizeof value);
            data[k] = (double)value;
        }
    }
    json_put(&config, json_root(doc));
    const char *folder = write_folder("doubles", &c, &config);
    check_same(folder, data_path("golden/llama"), "f32", "F64");
    check_info(folder, "f32", NULL, "F64");
    bytes_clear(&config);
    checkpoint_clear(&c);
    json_close(&doc);
    tensor_set_close(&set);
}

/* ---- 8-bit floats ---- */

typedef enum scale_shape { SCALE_NONE, SCALE_SCALAR, SCALE_ONE, SCALE_ROWS, SCALE_BLOCKS } scale_shape;

typedef struct float8_form {
    const char *label;
    dtype type;
    scale_shape shape;
    int64_t rows, columns; /* of a block */
    dtype scale_type;
    const char *end, *quantization, *warning;
} float8_form;

#define ROUNDED                                                                                                        \
    "weights in 8-bit floats are multiplied by their scales; activations and the cache are not rounded to 8 bits as "  \
    "quantization_config asks"
#define GROUP(strategy, more, activations)                                                                             \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"ignore\":[\"lm_head\"],"                \
    "\"kv_cache_scheme\":null,\"quantization_status\":\"compressed\",\"config_groups\":{\"group_0\":{\"weights\":"     \
    "{\"num_bits\":8,\"type\":\"float\",\"symmetric\":true,\"group_size\":null,\"strategy\":\"" strategy "\"" more     \
    "},\"input_activations\":" activations ",\"output_activations\":null,\"targets\":[\"Linear\"]}}}"

static const float8_form float8_forms[] = {
    {"no scales", DTYPE_F8_E5M2, SCALE_NONE, 0, 0, DTYPE_F32, "", NULL, NULL},
    {"DeepSeek, blocks of 128", DTYPE_F8_E4M3, SCALE_BLOCKS, 128, 128, DTYPE_F32, "_scale_inv",
     "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128]}",
     ROUNDED},
    {"Qwen, blocks that divide nothing", DTYPE_F8_E4M3, SCALE_BLOCKS, 40, 56, DTYPE_BF16, "_scale_inv",
     "{\"quant_method\":\"fp8\",\"weight_block_size\":[40,56]}", ROUNDED},
    {"one scale", DTYPE_F8_E4M3, SCALE_SCALAR, 0, 0, DTYPE_F32, "_scale",
     "{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\",\"weight_block_size\":null}", ROUNDED},
    {"FBGEMM", DTYPE_F8_E4M3, SCALE_ROWS, 0, 0, DTYPE_F32, "_scale",
     "{\"quant_method\":\"fbgemm_fp8\",\"activation_scale_ub\":1200.0}", ROUNDED},
    {"compressed-tensors, tensor", DTYPE_F8_E4M3, SCALE_ONE, 0, 0, DTYPE_BF16, "_scale", GROUP("tensor", "", "{}"),
     ROUNDED},
    {"compressed-tensors, channel", DTYPE_F8_E4M3, SCALE_ROWS, 0, 0, DTYPE_BF16, "_scale", GROUP("channel", "", "null"),
     NULL},
    {"compressed-tensors, block", DTYPE_F8_E5M2, SCALE_BLOCKS, 48, 32, DTYPE_F16, "_scale",
     GROUP("block", ",\"block_structure\":\"48x32\"", "null"), NULL},
};

static bool is_matrix(const tensor *t) {
    return t->n_dims == 2 && strstr(t->name, "_proj.");
}

static double stored_scale(dtype type, void *place, double value) {
    const float f = (float)value;
    const bf16 b = bf16_from_f32(f);
    const f16 h = f16_from_f32(f);
    if (type == DTYPE_F32) memcpy(place, &f, sizeof f);
    if (type == DTYPE_BF16) memcpy(place, &b, sizeof b);
    if (type == DTYPE_F16) memcpy(place, &h, sizeof h);
    return type == DTYPE_F32 ? (double)f : (double)(type == DTYPE_BF16 ? f32_from_bf16(b) : f32_from_f16(h));
}

/* Adds a matrix of random codes with scales, and to `plain` their products. */
static void add_float8(checkpoint *c, checkpoint *plain, const tensor *t, const float8_form *form, uint64_t *seed) {
    const int64_t rows = t->shape[0], columns = t->shape[1];
    const int64_t block_rows = form->shape == SCALE_BLOCKS ? form->rows : form->shape == SCALE_ROWS ? 1 : rows;
    const int64_t block_columns = form->shape == SCALE_BLOCKS ? form->columns : columns;
    const int64_t down = ceil_div(rows, block_rows), across = ceil_div(columns, block_columns);
    const size_t size = (size_t)dtype_table[form->scale_type].bytes;
    uint8_t *codes = add_tensor(c, t->name, form->type, 2, t->shape), *scales = NULL;
    float *products = add_tensor(plain, t->name, DTYPE_F32, 2, t->shape);
    char name[128];
    snprintf(name, sizeof name, "%s%s", t->name, form->end);
    const int n_dims = form->shape == SCALE_SCALAR ? 0 : form->shape == SCALE_ONE ? 1 : 2;
    if (form->shape != SCALE_NONE) scales = add_tensor(c, name, form->scale_type, n_dims, (int64_t[]){down, across});
    double used[512];
    assert_true(down * across <= 512);
    for (int64_t i = 0; i < down * across; i++) {
        used[i] = 1;
        if (scales)
            used[i] = stored_scale(form->scale_type, scales + (size_t)i * size, test_uniform(seed, 0.001, 0.004));
    }
    random_blocks(seed, form->type, codes, (size_t)(rows * columns), 16);
    for (int64_t i = 0; i < rows * columns; i++) {
        const double scale = used[i / columns / block_rows * across + i % columns / block_columns];
        products[i] = (float)(float8_value(form->type, codes[i]) * scale);
    }
}

static void put_config(bytes *config, const json *root, const char *quantization) {
    json_put(config, root);
    if (!quantization) return;
    config->n--; /* the brace */
    bytes_printf(config, ",\"quantization_config\":%s}", quantization);
}

/* A form and the same weights in float32. */
static void make_form(checkpoint *c, checkpoint *plain, const float8_form *form) {
    tensor_set *set = open_golden("llama");
    uint64_t seed = 3;
    for (size_t i = 0; i < tensor_set_count(set); i++) {
        const tensor *t = tensor_set_at(set, i);
        if (is_matrix(t)) {
            add_float8(c, plain, t, form, &seed);
            continue;
        }
        memcpy(add_tensor(c, t->name, t->type, t->n_dims, t->shape), t->data, t->bytes);
        memcpy(add_tensor(plain, t->name, t->type, t->n_dims, t->shape), t->data, t->bytes);
    }
    tensor_set_close(&set);
}

static void eight_bit_floats_equal_their_products(void **state) {
    (void)state;
    json_doc *doc = golden_config("llama");
    for (size_t i = 0; i < sizeof float8_forms / sizeof *float8_forms; i++) {
        const float8_form *form = &float8_forms[i];
        checkpoint c = {.n = 0}, plain = {.n = 0};
        bytes config = {0}, plain_config = {0};
        char folder[1024], plain_folder[1024];
        make_form(&c, &plain, form);
        put_config(&config, json_root(doc), form->quantization);
        put_config(&plain_config, json_root(doc), NULL);
        snprintf(folder, sizeof folder, "%s", write_folder("float8", &c, &config));
        snprintf(plain_folder, sizeof plain_folder, "%s", write_folder("plain", &plain, &plain_config));
        check_same(folder, plain_folder, "f32", form->label);
        check_same(folder, plain_folder, i % 2 ? "bf16" : "int8", form->label);
        check_info(folder, "bf16", form->warning, form->label);
        bytes_clear(&plain_config);
        bytes_clear(&config);
        checkpoint_clear(&plain);
        checkpoint_clear(&c);
    }
    json_close(&doc);
}

static tensor *find(checkpoint *c, const char *name) {
    for (size_t i = 0; i < c->n; i++) {
        if (strcmp(c->tensors[i].name, name) == 0) return &c->tensors[i];
    }
    fail_msg("no %s", name);
    return NULL;
}

static void rename_tensor(checkpoint *c, const char *name, const char *to) {
    tensor *t = find(c, name);
    mem_free((char *)(uintptr_t)t->name);
    t->name = mem_copy_text(to, strlen(to));
}

static void check_refused(const checkpoint *c, const bytes *config, mn_status code, const char *message) {
    mn_model *model = NULL;
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    assert_fails(code, message, mn_model_open(&model, write_folder("refused", c, config), &options));
}

/* Scales that are missing, do not fit, or belong to what cannot have them are refused, never left out. */
static void scales_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const char matrix[] = "model.layers.1.mlp.up_proj.weight",
                      scales[] = "model.layers.1.mlp.up_proj.weight_scale_inv";
    json_doc *doc = golden_config("llama");
    bytes config = {0};
    const float8_form *form = &float8_forms[2];
    put_config(&config, json_root(doc), form->quantization);
    for (int i = 0; i < 5; i++) {
        checkpoint c = {.n = 0}, plain = {.n = 0};
        make_form(&c, &plain, form);
        tensor *t = find(&c, scales);
        switch (i) {
        case 0:
            rename_tensor(&c, scales, "other");
            check_refused(
                &c, &config, MN_E_FORMAT,
                "model.layers.1.mlp.up_proj.weight_scale is missing, which quantization_config requires for F8_E4M3");
            break;
        case 1:
            t->shape[0] = 2; /* 6 rows of 2 blocks */
            t->shape[1] = 6;
            check_refused(&c, &config, MN_E_FORMAT,
                          "model.layers.1.mlp.up_proj.weight_scale_inv is [2,6]: expected [1], [208,1] or [6,2]");
            break;
        case 2:
            t->type = DTYPE_I16;
            check_refused(&c, &config, MN_E_UNSUPPORTED,
                          "up_proj.weight_scale_inv is stored as I16, allowed: a floating-point type");
            break;
        case 3:
            rename_tensor(&c, matrix, "other");
            memcpy(add_tensor(&c, matrix, DTYPE_F32, 2, find(&plain, matrix)->shape), find(&plain, matrix)->data,
                   find(&plain, matrix)->bytes);
            check_refused(&c, &config, MN_E_UNSUPPORTED,
                          "model.layers.1.mlp.up_proj.weight is stored as F32, allowed: F8_E4M3, F8_E5M2");
            break;
        default:
            rename_tensor(&c, "model.embed_tokens.weight", "other");
            add_tensor(&c, "model.embed_tokens.weight", DTYPE_F8_E4M3, 2, (int64_t[]){320, 96});
            add_tensor(&c, "model.embed_tokens.weight_scale", DTYPE_F32, 1, (int64_t[]){1});
            check_refused(&c, &config, MN_E_UNSUPPORTED,
                          "model.embed_tokens.weight_scale is there, allowed: scales of matrices");
        }
        checkpoint_clear(&plain);
        checkpoint_clear(&c);
    }
    bytes_clear(&config);
    json_close(&doc);
}

/* ---- text halves ---- */

/* A golden model as the text half of one for pictures. */
typedef struct half {
    const char *golden, *type, *text_type;
    bool apart; /* in a text_config; else beside vision_config */
    const char *beside;
} half;

static const half halves[] = {
    {"gemma3", "gemma3", "gemma3_text", true,
     "\"mm_tokens_per_image\":256,\"boi_token_index\":255999,\"eoi_token_index\":256000,"
     "\"image_token_index\":262144,\"vision_config\":{\"model_type\":\"siglip_vision_model\",\"hidden_size\":32}"},
    {"mistral-full", "mistral3", "mistral", true,
     "\"image_token_index\":10,\"multimodal_projector_bias\":false,\"projector_hidden_act\":\"gelu\","
     "\"spatial_merge_size\":2,\"vision_feature_layer\":-1,\"vision_config\":{\"model_type\":\"pixtral\",\"hidden_size\":32}"},
    {"qwen2", "qwen2_5_vl", "qwen2_5_vl_text", true,
     "\"image_token_id\":151655,\"video_token_id\":151656,\"vision_start_token_id\":151652,"
     "\"vision_end_token_id\":151653,\"vision_config\":{\"model_type\":\"qwen2_5_vl\",\"hidden_size\":32}"},
    {"qwen2", "qwen2_5_vl", NULL, false,
     "\"vision_start_token_id\":151652,\"vision_token_id\":151654,"
     "\"vision_config\":{\"model_type\":\"qwen2_5_vl\",\"hidden_size\":32}"},
    {"llama", "mistral3", "llama", true, "\"vision_config\":{\"model_type\":\"pixtral\"}"},
};

static const struct {
    const char *prefix, *head; /* in the place of "model." and of "lm_head." */
    const char *pictures[4];   /* tensors of the other parts */
} layouts[] = {
    {"language_model.model.",
     "language_model.lm_head.",
     {"vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight",
      "vision_tower.vision_model.post_layernorm.bias", "multi_modal_projector.mm_input_projection_weight",
      "multi_modal_projector.norm.weight"}},
    {"language_model.model.",
     "lm_head.",
     {"vision_tower.transformer.layers.0.attention.q_proj.weight", "vision_tower.ln_pre.weight",
      "multi_modal_projector.linear_1.weight", "multi_modal_projector.patch_merger.merging_layer.weight"}},
    {"model.language_model.",
     "lm_head.",
     {"model.vision_tower.vision_model.encoder.layers.0.self_attn.k_proj.bias", "model.visual.blocks.0.attn.qkv.bias",
      "model.multi_modal_projector.linear_2.weight", "model.visual.merger.mlp.0.bias"}},
    {"model.",
     "lm_head.",
     {"visual.blocks.0.attn.qkv.weight", "visual.patch_embed.proj.weight", "visual.merger.ln_q.weight",
      "model.vision_tower.layers.0.self_attn.q_proj.weight"}},
    {"",
     "lm_head.",
     {"visual.blocks.0.norm1.weight", "vision_tower.layers.0.mlp.fc1.weight", "multi_modal_projector.linear_1.bias",
      "vision_model.embeddings.position_embedding.weight"}},
};

static void put_half(bytes *config, const json *text, const half *h) {
    bytes_printf(config, "{\"model_type\":\"%s\",%s,", h->type, h->beside);
    if (h->apart) bytes_printf(config, "\"text_config\":{\"model_type\":\"%s\",", h->text_type);
    bool is_first = true;
    for (size_t i = 0; i < text->n; i++) {
        if (strcmp(text->members[i].key, "model_type") == 0) continue;
        if (!is_first) bytes_append_text(config, ",");
        json_put_string(config, text->members[i].key, text->members[i].key_n);
        bytes_append_text(config, ":");
        json_put(config, &text->members[i].value);
        is_first = false;
    }
    bytes_append_text(config, h->apart ? "}}" : "}");
}

static void text_halves_equal_their_models(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        tensor_set *set = open_golden(halves[i].golden);
        json_doc *doc = golden_config(halves[i].golden);
        char plain[1024], what[128];
        snprintf(what, sizeof what, "golden/%s", halves[i].golden);
        snprintf(plain, sizeof plain, "%s", data_path(what));
        for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++) {
            checkpoint c = {.n = 0};
            bytes config = {0};
            for (size_t n = 0; n < tensor_set_count(set); n++) {
                const tensor *t = tensor_set_at(set, n);
                const bool is_head = strncmp(t->name, "lm_head.", 8) == 0;
                char name[160];
                snprintf(name, sizeof name, "%s%s", is_head ? layouts[k].head : layouts[k].prefix,
                         t->name + strlen(is_head ? "lm_head." : "model."));
                memcpy(add_tensor(&c, name, t->type, t->n_dims, t->shape), t->data, t->bytes);
            }
            for (int n = 0; n < 4; n++) add_tensor(&c, layouts[k].pictures[n], DTYPE_BF16, 2, (int64_t[]){7, 5});
            put_half(&config, json_root(doc), &halves[i]);
            const char *folder = write_folder("half", &c, &config);
            snprintf(what, sizeof what, "%s of %s, %s", halves[i].golden, halves[i].type, layouts[k].prefix);
            check_same(folder, plain, "f32", what);
            check_info(folder, "f32", "the text half is read alone; tensors of other parts that are left out: 4", what);
            bytes_clear(&config);
            checkpoint_clear(&c);
        }
        json_close(&doc);
        tensor_set_close(&set);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_halves_equal_their_models),
        cmocka_unit_test(doubles_are_read),
        cmocka_unit_test(eight_bit_floats_equal_their_products),
        cmocka_unit_test(scales_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
