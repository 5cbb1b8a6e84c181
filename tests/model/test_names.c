/* Tensor names and shapes against lists of real checkpoints, binding of complete and damaged ones, order of rows.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/families.h"
#include "support/support.h"

#include <unistd.h>

#include "model/names.h"
#include "support/scratch.h"
#include "tensor/safetensors.h"

static model_config config_of(const char *text) {
    json_doc *doc = NULL;
    model_config config;
    assert_ok(json_parse(&doc, text, strlen(text), JSON_PYTHON, "config.json"));
    assert_ok(config_from_json(&config, json_root(doc), "config.json"));
    json_close(&doc);
    return config;
}

/* ---- lists of real checkpoints ---- */

enum { MOST_LISTED = 512 };

typedef struct listed {
    char name[96];
    int n_dims;
    long shape[2];
    bool used;
} listed;

static size_t read_list(const char *path, listed *out) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t n = 0;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        const char *name = strstr(line, ": "), *shape = strstr(line, " shape: [");
        if (!name || !shape) continue;
        assert_true(n < MOST_LISTED);
        listed *row = &out[n++];
        memset(row, 0, sizeof *row);
        snprintf(row->name, sizeof row->name, "%.*s", (int)(shape - name - 2), name + 2);
        row->n_dims = sscanf(shape, " shape: [%ld, %ld", &row->shape[0], &row->shape[1]);
    }
    fclose(file);
    return n;
}

static void names_equal_those_of_real_checkpoints(void **state) {
    (void)state;
    static const struct {
        const char *list, *config;
        size_t n;
    } cases[] = {
        {"llama-3.1-8b",
         "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
         "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":128256}",
         291},
        {"llama-3.2-1b",
         "{\"model_type\":\"llama\",\"hidden_size\":2048,\"intermediate_size\":8192,\"num_hidden_layers\":16,\"head_dim\":64,"
         "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":128256,\"tie_word_embeddings\":true}",
         146},
        {"llama-3.2-3b",
         "{\"model_type\":\"llama\",\"hidden_size\":3072,\"intermediate_size\":8192,\"num_hidden_layers\":28,"
         "\"num_attention_heads\":24,\"num_key_value_heads\":8,\"vocab_size\":128256,\"tie_word_embeddings\":true}",
         254},
        {"mistral-7b-v0.3",
         "{\"model_type\":\"mistral\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
         "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":32768}",
         291},
        {"phi-2",
         "{\"model_type\":\"phi\",\"hidden_size\":2560,\"intermediate_size\":10240,\"num_hidden_layers\":32,"
         "\"num_attention_heads\":32,\"vocab_size\":51200,\"partial_rotary_factor\":0.4}",
         453},
        {"phi-3-mini",
         "{\"model_type\":\"phi3\",\"hidden_size\":3072,\"intermediate_size\":8192,\"num_hidden_layers\":32,"
         "\"num_attention_heads\":32,\"num_key_value_heads\":32,\"vocab_size\":32064}",
         195},
    };
    static listed rows[MOST_LISTED];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char file[128];
        snprintf(file, sizeof file, "tensor-shapes/%s.txt", cases[i].list);
        size_t n = read_list(data_path(file), rows);
        assert_int_equal(n, cases[i].n);
        model_config config = config_of(cases[i].config);
        for (int role = 0; role < N_WEIGHTS; role++) {
            for (int64_t layer = 0; layer < (role < N_LAYER_WEIGHTS ? config.num_hidden_layers : 1); layer++) {
                weight_place place;
                if (!weight_find_place(&config, false, (weight_role)role, layer, 0, &place)) continue;
                listed *row = NULL;
                for (size_t j = 0; j < n && !row; j++) row = strcmp(rows[j].name, place.name) == 0 ? &rows[j] : NULL;
                if (!row) fail_msg("%s: no %s", cases[i].list, place.name);
                assert_int_equal(place.n_dims, row->n_dims);
                for (int d = 0; d < row->n_dims; d++) assert_int_equal(place.shape[d], row->shape[d]);
                row->used = true;
            }
        }
        for (size_t j = 0; j < n; j++) {
            if (!rows[j].used) fail_msg("%s: %s has no role", cases[i].list, rows[j].name);
        }
        model_config_clear(&config);
    }
}

/* ---- order of rows ---- */

/* The converter interleaves the halves of a head; rows stored in that order are found by their labels. */
static void permuted_rows_are_found(void **state) {
    (void)state;
    enum { HEADS = 3, D = 8, FIRST = 5 };
    int stored[FIRST + HEADS * D] = {0};
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < D / 2; i++) {
            for (int half = 0; half < 2; half++) stored[FIRST + h * D + 2 * i + half] = h * D + half * (D / 2) + i;
        }
    }
    weight_source permuted = {.first_row = FIRST, .n_rows = HEADS * D, .permute_head_dim = D};
    weight_source plain = {.first_row = FIRST, .n_rows = HEADS * D};
    for (int row = 0; row < HEADS * D; row++) {
        assert_int_equal(stored[weight_source_row(&permuted, row)], row);
        assert_int_equal(weight_source_row(&plain, row), FIRST + row);
    }
    assert_int_equal(weight_source_row(&permuted, 1), FIRST + 2);
    assert_int_equal(weight_source_row(&permuted, 12), FIRST + 9);
}

/* ---- binding ---- */

#define SIZES                                                                                                          \
    "\"hidden_size\":32,\"intermediate_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                   \
    "\"num_key_value_heads\":2,\"vocab_size\":64"

enum { MOST_TENSORS = 64 };

/* All tensors of a model, zero; the caller may change them before they are written to a file. */
typedef struct checkpoint {
    tensor tensors[MOST_TENSORS];
    char names[MOST_TENSORS][96];
    size_t n;
} checkpoint;

static const uint8_t zeros[64 * 1024];

static void add_tensor(checkpoint *out, const char *name, int n_dims, const int64_t *shape, dtype type) {
    size_t i = out->n++;
    assert_true(out->n <= MOST_TENSORS);
    snprintf(out->names[i], sizeof out->names[i], "%s", name);
    int64_t values = shape[0] * (n_dims > 1 ? shape[1] : 1);
    tensor *t = &out->tensors[i];
    *t = (tensor){.name = out->names[i],
                  .type = type,
                  .n_dims = n_dims,
                  .shape = {shape[0], n_dims > 1 ? shape[1] : 0},
                  .data = zeros};
    assert_ok(dtype_bytes(type, values, &t->bytes));
    assert_true(t->bytes <= sizeof zeros);
}

static size_t index_of(const checkpoint *c, const char *name) {
    for (size_t i = 0; i < c->n; i++) {
        if (strcmp(c->names[i], name) == 0) return i;
    }
    return c->n;
}

static void fill_checkpoint(checkpoint *out, const model_config *config, bool is_gguf) {
    memset(out, 0, sizeof *out);
    for (int role = 0; role < N_WEIGHTS; role++) {
        for (int64_t layer = 0; layer < (role < N_LAYER_WEIGHTS ? config->num_hidden_layers : 1); layer++) {
            weight_place place;
            if (!weight_find_place(config, is_gguf, (weight_role)role, layer, 0, &place)) continue;
            if (index_of(out, place.name) == out->n) add_tensor(out, place.name, place.n_dims, place.shape, DTYPE_F16);
        }
    }
}

static tensor_set *open_checkpoint(const checkpoint *c) {
    const char *path = scratch_path("names.safetensors");
    tensor_set *set = NULL;
    mn_status written = safetensors_write(path, c->tensors, c->n, NULL);
    mn_status opened = written == MN_OK ? safetensors_open(&set, path) : written;
    unlink(path);
    assert_ok(opened);
    return set;
}

static void assert_same(const weight_source *source, const tensor_set *set, const char *name, int64_t first, int64_t n,
                        int permuted) {
    assert_ptr_equal(source->tensor, tensor_set_find(set, name));
    assert_non_null(source->tensor);
    assert_int_equal(source->first_row, first);
    assert_int_equal(source->n_rows, n);
    assert_int_equal(source->permute_head_dim, permuted);
}

static const weight_source *global(const model_weights *weights, weight_role role) {
    return model_weights_global(weights, role);
}

static void weights_bind_by_role(void **state) {
    (void)state;
    checkpoint file;
    model_weights weights;
    model_config config = config_of("{\"model_type\":\"qwen2\",\"tie_word_embeddings\":true," SIZES "}");
    fill_checkpoint(&file, &config, false);
    tensor_set *set = open_checkpoint(&file);
    assert_ok(model_bind(&weights, &config, set, false));
    assert_same(global(&weights, WEIGHT_HEAD), set, "model.embed_tokens.weight", 0, 64, 0);
    assert_same(&weights.layers[1][WEIGHT_K], set, "model.layers.1.self_attn.k_proj.weight", 0, 16, 0);
    assert_same(&weights.layers[1][WEIGHT_Q_BIAS], set, "model.layers.1.self_attn.q_proj.bias", 0, 32, 0);
    assert_same(&weights.layers[0][WEIGHT_MLP_NORM], set, "model.layers.0.post_attention_layernorm.weight", 0, 32, 0);
    assert_null(weights.layers[0][WEIGHT_O_BIAS].tensor);
    assert_null(weights.layers[0][WEIGHT_Q_NORM].tensor);
    model_weights_clear(&weights);
    tensor_set_close(&set);
    model_config_clear(&config);

    config = config_of("{\"model_type\":\"phi3\"," SIZES "}");
    fill_checkpoint(&file, &config, false);
    assert_int_equal(file.n, 3 + 2 * 6);
    set = open_checkpoint(&file);
    assert_ok(model_bind(&weights, &config, set, false));
    assert_same(&weights.layers[1][WEIGHT_Q], set, "model.layers.1.self_attn.qkv_proj.weight", 0, 32, 0);
    assert_same(&weights.layers[1][WEIGHT_K], set, "model.layers.1.self_attn.qkv_proj.weight", 32, 16, 0);
    assert_same(&weights.layers[1][WEIGHT_V], set, "model.layers.1.self_attn.qkv_proj.weight", 48, 16, 0);
    assert_same(&weights.layers[1][WEIGHT_GATE], set, "model.layers.1.mlp.gate_up_proj.weight", 0, 48, 0);
    assert_same(&weights.layers[1][WEIGHT_UP], set, "model.layers.1.mlp.gate_up_proj.weight", 48, 48, 0);
    model_weights_clear(&weights);
    tensor_set_close(&set);
    model_config_clear(&config);
}

static void gguf_names_and_row_order_are_bound(void **state) {
    (void)state;
    checkpoint file;
    model_weights weights;
    model_config config = config_of("{\"model_type\":\"llama\",\"attention_bias\":true," SIZES "}");
    config.permuted_rows = true;
    fill_checkpoint(&file, &config, true);
    tensor_set *set = open_checkpoint(&file);
    assert_ok(model_bind(&weights, &config, set, true));
    assert_same(global(&weights, WEIGHT_EMBED), set, "token_embd.weight", 0, 64, 0);
    assert_same(global(&weights, WEIGHT_FINAL_NORM), set, "output_norm.weight", 0, 32, 0);
    assert_same(global(&weights, WEIGHT_HEAD), set, "output.weight", 0, 64, 0);
    assert_same(&weights.layers[1][WEIGHT_Q], set, "blk.1.attn_q.weight", 0, 32, 8);
    assert_same(&weights.layers[0][WEIGHT_K], set, "blk.0.attn_k.weight", 0, 16, 8);
    assert_same(&weights.layers[1][WEIGHT_Q_BIAS], set, "blk.1.attn_q.bias", 0, 32, 8);
    assert_same(&weights.layers[1][WEIGHT_K_BIAS], set, "blk.1.attn_k.bias", 0, 16, 8);
    assert_same(&weights.layers[1][WEIGHT_V], set, "blk.1.attn_v.weight", 0, 16, 0);
    assert_same(&weights.layers[1][WEIGHT_O], set, "blk.1.attn_output.weight", 0, 32, 0);
    assert_same(&weights.layers[1][WEIGHT_MLP_NORM], set, "blk.1.ffn_norm.weight", 0, 32, 0);
    model_weights_clear(&weights);
    tensor_set_close(&set);
    model_config_clear(&config);
}

static void assert_refused(const checkpoint *file, const model_config *config, mn_status code, const char *message) {
    model_weights weights, empty = {0};
    int64_t live = mem_count().live;
    tensor_set *set = open_checkpoint(file);
    mn_status status = model_bind(&weights, config, set, false);
    assert_string_equal(mn_last_error(), message);
    assert_int_equal(status, code);
    assert_memory_equal(&weights, &empty, sizeof weights);
    tensor_set_close(&set);
    assert_int_equal(mem_count().live, live);
}

static void errors_name_the_damaged_tensor(void **state) {
    (void)state;
    model_config config = config_of("{\"model_type\":\"llama\"," SIZES "}");
    checkpoint whole, file;
    fill_checkpoint(&whole, &config, false);
    size_t q = index_of(&whole, "model.layers.1.self_attn.q_proj.weight");
    size_t norm = index_of(&whole, "model.norm.weight");
    assert_true(q < whole.n && norm < whole.n);

    file = whole;
    snprintf(file.names[q], sizeof file.names[q], "other");
    for (size_t i = 0; i < file.n; i++) file.tensors[i].name = file.names[i];
    assert_refused(&file, &config, MN_E_FORMAT, "model.layers.1.self_attn.q_proj.weight is missing: expected [32,32]");

    file = whole;
    file.tensors[q].shape[0] = 16;
    file.tensors[q].shape[1] = 64;
    assert_refused(&file, &config, MN_E_FORMAT, "model.layers.1.self_attn.q_proj.weight is [16,64]: expected [32,32]");

    file = whole;
    file.tensors[norm].n_dims = 2;
    file.tensors[norm].shape[1] = 1;
    assert_refused(&file, &config, MN_E_FORMAT, "model.norm.weight is [32,1]: expected [32]");

    file = whole;
    file.tensors[q].type = DTYPE_I16;
    assert_refused(
        &file, &config, MN_E_UNSUPPORTED,
        "model.layers.1.self_attn.q_proj.weight is stored as I16, allowed: a floating-point or quantised type");

    file = whole;
    for (size_t i = 0; i < file.n; i++) file.tensors[i].name = file.names[i];
    add_tensor(&file, "model.layers.0.self_attn.v_proj.bias", 1, (int64_t[]){16}, DTYPE_F32);
    assert_refused(&file, &config, MN_E_FORMAT,
                   "model.layers.0.self_attn.v_proj.bias exists although the configuration has no such weight");

    /* More layers than the file has; an output head that is neither tied nor present. */
    model_config_clear(&config);
    config = config_of("{\"model_type\":\"llama\"," SIZES ",\"num_hidden_layers\":3}");
    assert_refused(&whole, &config, MN_E_FORMAT, "model.layers.2.self_attn.q_proj.weight is missing: expected [32,32]");
    model_config_clear(&config);
    config = config_of("{\"model_type\":\"llama\",\"tie_word_embeddings\":true," SIZES "}");
    fill_checkpoint(&file, &config, false);
    config.tie_word_embeddings = false;
    assert_refused(&file, &config, MN_E_FORMAT, "lm_head.weight is missing: expected [64,32]");
    model_config_clear(&config);
}

static void tied_heads_are_ignored_and_failed_allocations_clean(void **state) {
    (void)state;
    model_config config = config_of("{\"model_type\":\"llama\"," SIZES "}");
    checkpoint file;
    fill_checkpoint(&file, &config, false);
    config.tie_word_embeddings = true; /* the file has an output head, which is ignored */
    tensor_set *set = open_checkpoint(&file);
    model_weights weights;
    assert_ok(model_bind(&weights, &config, set, false));
    assert_ptr_equal(global(&weights, WEIGHT_HEAD)->tensor, global(&weights, WEIGHT_EMBED)->tensor);
    model_weights_clear(&weights);
    int64_t live = mem_count().live;
    mem_fail_after(1);
    mn_status status = model_bind(&weights, &config, set, false);
    mem_fail_after(0);
    assert_int_equal(status, MN_E_NOMEM);
    assert_null(weights.layers);
    assert_int_equal(mem_count().live, live);
    tensor_set_close(&set);
    model_config_clear(&config);
}

/* Renames a checkpoint's tensors: those of "model." begin with `prefix`, the head is called `head`; NULL: has none. */
static void rename_all(checkpoint *out, const checkpoint *from, const char *prefix, const char *head) {
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < from->n; i++) {
        const tensor *t = &from->tensors[i];
        char name[96];
        bool is_head = strcmp(t->name, "lm_head.weight") == 0;
        if (is_head && !head) continue;
        if (is_head)
            snprintf(name, sizeof name, "%s", head);
        else
            snprintf(name, sizeof name, "%s%s", prefix, t->name + strlen("model."));
        add_tensor(out, name, t->n_dims, t->shape, t->type);
    }
}

/* The text half of a multimodal checkpoint, or a model that was saved without its head. */
static void names_may_begin_otherwise(void **state) {
    (void)state;
    static const struct {
        const char *prefix, *head, *embed;
        bool tied;
    } cases[] = {
        {"model.", "lm_head.weight", "model.embed_tokens.weight", false},
        {"language_model.model.", "language_model.lm_head.weight", "language_model.model.embed_tokens.weight", false},
        {"model.language_model.", "lm_head.weight", "model.language_model.embed_tokens.weight", false},
        {"language_model.", "lm_head.weight", "language_model.embed_tokens.weight", false},
        {"language_model.model.", NULL, "language_model.model.embed_tokens.weight", true},
        {"", NULL, "embed_tokens.weight", true},
        {"", "lm_head.weight", "embed_tokens.weight", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_config config = config_of("{\"model_type\":\"llama\"," SIZES "}");
        checkpoint own, file;
        model_weights weights;
        char q[96];
        fill_checkpoint(&own, &config, false);
        rename_all(&file, &own, cases[i].prefix, cases[i].head);
        add_tensor(&file, "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.bias", 1, (int64_t[]){16},
                   DTYPE_F32);
        config.tie_word_embeddings = cases[i].tied;
        tensor_set *set = open_checkpoint(&file);
        assert_ok(model_bind(&weights, &config, set, false));
        snprintf(q, sizeof q, "%slayers.1.self_attn.q_proj.weight", cases[i].prefix);
        assert_same(&weights.layers[1][WEIGHT_Q], set, q, 0, 32, 0);
        assert_same(global(&weights, WEIGHT_EMBED), set, cases[i].embed, 0, 64, 0);
        assert_same(global(&weights, WEIGHT_HEAD), set, cases[i].tied ? cases[i].embed : cases[i].head, 0, 64, 0);
        model_weights_clear(&weights);
        tensor_set_close(&set);

        char message[200]; /* errors name what the file should have */
        snprintf(message, sizeof message, "%s is missing: expected [32,32]", q);
        file.tensors[index_of(&file, q)].name = "other";
        assert_refused(&file, &config, MN_E_FORMAT, message);
        model_config_clear(&config);
    }
}

/* Tied embeddings of which the file has the head's name alone; where it has both, the embedding counts. */
static void the_tied_matrix_may_have_the_name_of_the_head(void **state) {
    (void)state;
    static const char *const prefixes[][2] = {{"model.", "lm_head.weight"},
                                              {"model.language_model.", "lm_head.weight"},
                                              {"language_model.model.", "language_model.lm_head.weight"}};
    for (size_t i = 0; i < 3; i++) {
        model_config config = config_of("{\"model_type\":\"llama\"," SIZES "}");
        checkpoint own, file;
        model_weights weights;
        char embed[96];
        fill_checkpoint(&own, &config, false);
        rename_all(&file, &own, prefixes[i][0], prefixes[i][1]);
        snprintf(embed, sizeof embed, "%sembed_tokens.weight", prefixes[i][0]);
        file.tensors[index_of(&file, embed)].name = "other";
        assert_refused(&file, &config, MN_E_FORMAT,
                       i == 0   ? "model.embed_tokens.weight is missing: expected [64,32]"
                       : i == 1 ? "model.language_model.embed_tokens.weight is missing: expected [64,32]"
                                : "language_model.model.embed_tokens.weight is missing: expected [64,32]");
        config.tie_word_embeddings = true;
        tensor_set *set = open_checkpoint(&file);
        assert_ok(model_bind(&weights, &config, set, false));
        assert_same(global(&weights, WEIGHT_EMBED), set, prefixes[i][1], 0, 64, 0);
        assert_same(global(&weights, WEIGHT_HEAD), set, prefixes[i][1], 0, 64, 0);
        model_weights_clear(&weights);
        tensor_set_close(&set);
        model_config_clear(&config);
    }
}

/* ---- the families' checkpoints ---- */

static model_config golden_config(const char *family) {
    char name[128];
    model_config config;
    snprintf(name, sizeof name, "golden/%s/config.json", family);
    json_doc *doc = open_json(data_path(name));
    assert_ok(config_from_json(&config, json_root(doc), name));
    json_close(&doc);
    return config;
}

static tensor_set *golden_tensors(const char *family) {
    char name[128];
    tensor_set *set = NULL;
    snprintf(name, sizeof name, "golden/%s", family);
    assert_ok(safetensors_open_folder(&set, data_path(name)));
    return set;
}

static void golden_checkpoints_bind(void **state) {
    (void)state;
    for (int i = 0; i < N_GOLDEN_FAMILIES; i++) {
        model_config config = golden_config(golden_families[i]);
        tensor_set *set = golden_tensors(golden_families[i]);
        model_weights weights;
        assert_ok(model_bind(&weights, &config, set, false));
        for (size_t k = 0; k < tensor_set_count(set); k++) { /* no tensor is unused */
            const tensor *t = tensor_set_at(set, k);
            bool used = false;
            for (int role = 0; role < N_GLOBAL_WEIGHTS; role++) used = used || weights.globals[role].tensor == t;
            for (int64_t at = 0; at < config.num_hidden_layers * N_LAYER_WEIGHTS; at++)
                used = used || weights.layers[at / N_LAYER_WEIGHTS][at % N_LAYER_WEIGHTS].tensor == t;
            int64_t n_experts = config.num_hidden_layers * config.num_local_experts * N_EXPERT_MATRICES;
            for (int64_t at = 0; at < n_experts; at++)
                used = used || weights.experts[at / N_EXPERT_MATRICES][at % N_EXPERT_MATRICES].tensor == t;
            if (!used) fail_msg("%s: %s has no role", golden_families[i], t->name);
        }
        model_weights_clear(&weights);
        tensor_set_close(&set);
        model_config_clear(&config);
    }
}

/* A family's checkpoint with `from` renamed to `to`, or removed (NULL), with the configuration of another family. */
static const struct {
    const char *checkpoint, *config, *from, *to;
    mn_status status;
    const char *message;
} mixtures[] = {
    {"mixtral", "mixtral", "model.layers.1.block_sparse_moe.experts.3.w2.weight", NULL, MN_E_FORMAT,
     "model.layers.1.block_sparse_moe.experts.3.w2.weight is missing: expected [96,48]"},
    {"mixtral", "mixtral", "model.layers.2.block_sparse_moe.gate.weight", NULL, MN_E_FORMAT,
     "model.layers.2.block_sparse_moe.gate.weight is missing: expected [4,96]"},
    {"jamba", "jamba", "model.layers.1.feed_forward.experts.0.up_proj.weight", NULL, MN_E_FORMAT,
     "model.layers.1.feed_forward.experts.0.up_proj.weight is missing: expected [48,96]"},
    {"jamba", "jamba", "model.layers.0.mamba.A_log", NULL, MN_E_FORMAT,
     "model.layers.0.mamba.A_log is missing: expected [192,8]"},
    {"gpt2", "gpt2", "transformer.wpe.weight", NULL, MN_E_FORMAT,
     "transformer.wpe.weight is missing: expected [128,96]"},
    {"llama", "llama", "model.layers.1.mlp.up_proj.weight", "model.layers.1.mamba.D", MN_E_FORMAT,
     "model.layers.1.mamba.D is a tensor of jamba, model_type is llama"},
    {"llama", "llama", "model.layers.0.mlp.up_proj.weight", "backbone.layers.0.mixer.in_proj.weight", MN_E_FORMAT,
     "backbone.layers.0.mixer.in_proj.weight is a tensor of mamba, model_type is llama"},
    {"gemma2", "gemma2", "model.layers.2.mlp.up_proj.weight", "model.layers.2.mlp.gate_up_proj.weight", MN_E_FORMAT,
     "model.layers.2.mlp.gate_up_proj.weight is a tensor of phi3, model_type is gemma2"},
    {"mixtral", "mistral-full", NULL, NULL, MN_E_FORMAT,
     "model.layers.0.block_sparse_moe.experts.0.w1.weight is a tensor of mixtral, model_type is mistral"},
    {"gpt-neox", "gpt2", NULL, NULL, MN_E_FORMAT,
     "gpt_neox.layers.0.attention.dense.bias is a tensor of gpt_neox, model_type is gpt2"},
    {"mamba", "jamba", NULL, NULL, MN_E_FORMAT,
     "backbone.layers.0.mixer.A_log is a tensor of mamba, model_type is jamba"},
    {"qwen3", "mistral-window", NULL, NULL, MN_E_FORMAT,
     "_norm.weight exists although the configuration has no such weight"},
};

static void errors_name_tensors_of_another_family(void **state) {
    (void)state;
    enum { MOST = 256 };
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++) {
        model_config config = golden_config(mixtures[i].config);
        tensor_set *whole = golden_tensors(mixtures[i].checkpoint), *set = NULL;
        tensor list[MOST];
        size_t n = 0;
        assert_true(tensor_set_count(whole) <= MOST);
        for (size_t k = 0; k < tensor_set_count(whole); k++) {
            list[n] = *tensor_set_at(whole, k);
            bool named = mixtures[i].from && strcmp(list[n].name, mixtures[i].from) == 0;
            if (named) list[n].name = mixtures[i].to;
            n += !named || mixtures[i].to;
        }
        const char *path = scratch_path("names.safetensors");
        assert_ok(safetensors_write(path, list, n, NULL));
        assert_ok(safetensors_open(&set, path));
        unlink(path);
        model_weights weights, empty = {0};
        int64_t live = mem_count().live;
        mn_status status = model_bind(&weights, &config, set, false);
        if (!strstr(mn_last_error(), mixtures[i].message))
            fail_msg("%s as %s: %s", mixtures[i].checkpoint, mixtures[i].config, mn_last_error());
        assert_int_equal(status, mixtures[i].status);
        assert_memory_equal(&weights, &empty, sizeof weights);
        assert_int_equal(mem_count().live, live);
        tensor_set_close(&set);
        tensor_set_close(&whole);
        model_config_clear(&config);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_equal_those_of_real_checkpoints),
        cmocka_unit_test(permuted_rows_are_found),
        cmocka_unit_test(weights_bind_by_role),
        cmocka_unit_test(gguf_names_and_row_order_are_bound),
        cmocka_unit_test(errors_name_the_damaged_tensor),
        cmocka_unit_test(tied_heads_are_ignored_and_failed_allocations_clean),
        cmocka_unit_test(names_may_begin_otherwise),
        cmocka_unit_test(the_tied_matrix_may_have_the_name_of_the_head),
        cmocka_unit_test(golden_checkpoints_bind),
        cmocka_unit_test(errors_name_tensors_of_another_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
