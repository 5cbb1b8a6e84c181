/* Makes the bfloat16 models of the speed comparison.
 *
 *     make_bf16 gguf MODEL.gguf OUT.gguf     the same model, matrices rounded to bfloat16, vectors in float32
 *     make_bf16 folder MODEL.gguf FOLDER     config.json and model.safetensors in bfloat16 (type llama, default rope)
 *     make_bf16 random OUT.gguf [CONFIG.json]   random weights and an artificial vocabulary for a configuration of type
 *                                            llama or mixtral, no rope scaling; without one, TinyLlama-1.1B's shape
 *     make_bf16 shape CONFIG.json FOLDER     config.json and random weights for it, of any model type; no tokenizer
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/num.h"
#include "model/names.h"
#include "checkpoint/gguf_write.h"
#include "checkpoint/quantize.h"
#include "tensor/safetensors.h"

/* A tensor to be written: rows of a stored one, or random. */
typedef struct entry {
    char name[128];
    dtype type;
    int n_dims;
    int64_t shape[3];     /* outermost first; a vector is one row */
    weight_source source; /* tensor NULL: random, vectors are 1 */
    uint64_t stream;      /* of random numbers */
} entry;

typedef struct entry_list {
    entry *items;
    size_t n, capacity;
} entry_list;

static mn_status add_entry(entry_list *list, const entry *e) {
    MN_TRY(mem_grow(&list->items, &list->capacity, list->n + 1, sizeof *list->items));
    list->items[list->n] = *e;
    list->items[list->n].stream = list->n;
    list->n++;
    return MN_OK;
}

static int64_t row_count(const entry *e) {
    int64_t n = 1;
    for (int i = 0; i + 1 < e->n_dims; i++) n *= e->shape[i];
    return n;
}
static int64_t row_width(const entry *e) {
    return e->shape[e->n_dims - 1];
}
static mn_status row_bytes(const entry *e, size_t *out) {
    return dtype_bytes(e->type, row_width(e), out);
}

static void fill_row(const entry *e, int64_t row, float *out) {
    size_t n = (size_t)row_width(e);
    const tensor *t = e->source.tensor;
    if (t) {
        int64_t stored = e->n_dims == 1 ? 0 : weight_source_row(&e->source, row);
        dtype_table[t->type].to_f32(out, t->data + (size_t)stored * (t->bytes / (size_t)row_count(e)), n);
        return;
    }
    /* Uniform with a standard deviation of 0.02, so that activations stay finite and no value is subnormal. */
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = random_bits(1, e->stream, (uint64_t)row * n + i);
        out[i] = e->n_dims == 1 ? 1.0f : ((float)(bits >> 40) * 0x1p-23f - 1.0f) * 0.0346f;
    }
}

/* ---- GGUF, written row by row ---- */

static mn_status put_data(FILE *file, const char *path, const void *data, size_t n) {
    if (fwrite(data, 1, n, file) == n) return MN_OK;
    MN_FAIL(MN_E_IO, "%s: %s", path, strerror(errno));
}

static mn_status put_entry(FILE *file, const char *path, const entry *e, uint32_t alignment) {
    size_t n, width = (size_t)row_width(e);
    MN_TRY(row_bytes(e, &n));
    float *values = mem_alloc_raw(width, sizeof *values);
    char *stored = mem_alloc_raw(n + alignment, 1);
    mn_status status = values && stored ? MN_OK : MN_E_NOMEM;
    for (int64_t r = 0; r < row_count(e) && status == MN_OK; r++) {
        fill_row(e, r, values);
        status = quantize_from_f32(e->type, stored, values, (int64_t)width);
        if (status == MN_OK) status = put_data(file, path, stored, n);
    }
    if (status == MN_OK) {
        size_t over = (size_t)row_count(e) * n % alignment, padding = over ? alignment - over : 0;
        memset(stored, 0, padding);
        status = put_data(file, path, stored, padding);
    }
    mem_free(values);
    mem_free(stored);
    return status;
}

static mn_status describe_entries(gguf_writer *w, const entry_list *list) {
    uint64_t offset = 0, alignment = gguf_writer_alignment(w);
    for (size_t i = 0; i < list->n; i++) {
        const entry *e = &list->items[i];
        size_t n;
        uint64_t ne[3]; /* innermost first */
        for (int d = 0; d < e->n_dims; d++) ne[d] = (uint64_t)e->shape[e->n_dims - 1 - d];
        MN_TRY(row_bytes(e, &n));
        gguf_writer_info(w, e->name, (uint32_t)e->n_dims, ne, (uint32_t)dtype_table[e->type].gguf_id, offset);
        offset += ((uint64_t)row_count(e) * n + alignment - 1) / alignment * alignment;
    }
    return MN_OK;
}

static mn_status write_gguf(gguf_writer *w, const entry_list *list, const char *path) {
    bytes header = {0}, part = {0};
    mn_status status = describe_entries(w, list);
    if (status == MN_OK) status = gguf_writer_header(w, &header);
    gguf_put_padding(&header, gguf_writer_alignment(w));
    bytes_printf(&part, "%s.part", path);
    if (status == MN_OK) status = bytes_status(&header);
    if (status == MN_OK) status = bytes_status(&part);
    FILE *file = status == MN_OK ? fopen(bytes_text(&part), "wbe") : NULL;
    if (status == MN_OK && !file) status = status_fail(MN_E_IO, "%s: %s", part.data, strerror(errno));
    if (status == MN_OK) status = put_data(file, part.data, header.data, header.n);
    for (size_t i = 0; i < list->n && status == MN_OK; i++)
        status = put_entry(file, part.data, &list->items[i], gguf_writer_alignment(w));
    if (file && fclose(file) != 0 && status == MN_OK)
        status = status_fail(MN_E_IO, "%s: %s", part.data, strerror(errno));
    if (status == MN_OK && rename(part.data, path) != 0) status = status_fail(MN_E_IO, "%s: %s", path, strerror(errno));
    if (file && status != MN_OK) remove(part.data);
    bytes_clear(&header);
    bytes_clear(&part);
    return status;
}

/* ---- a GGUF file as bfloat16 ---- */

enum { FILE_TYPE_BF16 = 32 }; /* general.file_type: mostly bfloat16 */

static mn_status rounded_gguf(const gguf *file, const char *path) {
    gguf_writer w = {0};
    entry_list list = {0};
    mn_status status = MN_OK;
    for (size_t i = 0; i < gguf_key_count(file); i++) {
        const char *key = gguf_key(file, i);
        if (strcmp(key, "general.alignment") == 0) continue;
        if (strcmp(key, "general.file_type") == 0) {
            gguf_writer_int(&w, key, GGUF_U32, FILE_TYPE_BF16);
        } else {
            gguf_writer_copy(&w, file, i);
        }
    }
    const tensor_set *set = gguf_tensors(file);
    for (size_t i = 0; i < tensor_set_count(set) && status == MN_OK; i++) {
        const tensor *t = tensor_set_at(set, i);
        entry e = {.type = t->n_dims == 1 ? DTYPE_F32 : DTYPE_BF16, .n_dims = t->n_dims};
        e.source = (weight_source){.tensor = t, .n_rows = t->shape[0]};
        if (t->n_dims < 1 || t->n_dims > 2 || strlen(t->name) >= sizeof e.name || !dtype_table[t->type].to_f32) {
            status = status_fail(MN_E_UNSUPPORTED, "tensor '%s' is not a matrix or vector of numbers", t->name);
            break;
        }
        strcpy(e.name, t->name);
        memcpy(e.shape, t->shape, (size_t)t->n_dims * sizeof *e.shape);
        status = add_entry(&list, &e);
    }
    if (status == MN_OK) status = write_gguf(&w, &list, path);
    mem_free(list.items);
    gguf_writer_clear(&w);
    return status;
}

/* ---- a Hugging Face folder ---- */

static mn_status write_config(const model_config *c, const char *folder) {
    bytes text = {0}, path = {0};
    bool is_plain = c->model_type == MODEL_LLAMA && c->rope_scaling.rope_type == ROPE_DEFAULT &&
                    !c->rope_scaling.divisors && !c->attention_bias.q && !c->mlp_bias;
    if (!is_plain)
        MN_FAIL(MN_E_UNSUPPORTED,
                "only models of type llama without biases and rope scaling can be converted to folders");
    bytes_append_text(&text, "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n"
                             "  \"torch_dtype\": \"bfloat16\",\n  \"hidden_act\": \"silu\",\n");
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {
        {"hidden_size", c->hidden_size},
        {"intermediate_size", c->intermediate_size},
        {"num_hidden_layers", c->num_hidden_layers},
        {"num_attention_heads", c->num_attention_heads},
        {"num_key_value_heads", c->num_key_value_heads},
        {"head_dim", c->head_dim},
        {"vocab_size", c->vocab_size},
        {"max_position_embeddings", c->max_position_embeddings},
        {"bos_token_id", c->bos_token_id},
        {"eos_token_id", c->n_eos_token_id ? c->eos_token_id[0] : -1},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value >= 0) bytes_printf(&text, "  \"%s\": %lld,\n", sizes[i].key, (long long)sizes[i].value);
    }
    bytes_printf(&text, "  \"rms_norm_eps\": %.9g,\n  \"rope_theta\": %.9g,\n  \"tie_word_embeddings\": %s\n}\n",
                 c->norm_eps, c->rope_theta, c->tie_word_embeddings ? "true" : "false");
    mn_status status = bytes_status(&text);
    if (status == MN_OK) status = path_join(&path, folder, "config.json");
    if (status == MN_OK) status = file_write_atomic(bytes_text(&path), text.data, text.n);
    bytes_clear(&text);
    bytes_clear(&path);
    return status;
}

/* One weight under its name; fused and stacked tensors belong to several weights and are listed once. */
static mn_status list_weight(entry_list *list, const weight_place *place, bool is_gguf, const weight_source *source) {
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->items[i].name, place->name) == 0) return MN_OK;
    }
    entry e = {.n_dims = place->n_dims, .type = is_gguf && place->n_dims == 1 ? DTYPE_F32 : DTYPE_BF16};
    memcpy(e.shape, place->shape, sizeof e.shape);
    strcpy(e.name, place->name);
    if (source) e.source = *source;
    return add_entry(list, &e);
}

/* Every weight of a model; sources NULL: random. */
static mn_status list_weights(entry_list *list, const model_config *config, bool is_gguf,
                              const model_weights *sources) {
    for (int64_t layer = -1; layer < config->num_hidden_layers; layer++) {
        int begin = layer < 0 ? N_LAYER_WEIGHTS : 0, end = layer < 0 ? N_WEIGHTS : N_LAYER_WEIGHTS;
        bool mixed = layer >= 0 && config_has_experts(config, layer);
        for (int role = begin; role < end; role++) {
            bool of_expert = mixed && role >= WEIGHT_GATE && role <= WEIGHT_DOWN;
            const weight_source *source = NULL;
            if (sources)
                source = layer < 0 ? model_weights_global(sources, (weight_role)role) : &sources->layers[layer][role];
            for (int64_t i = 0; i < (of_expert ? config->num_local_experts : 1); i++) {
                weight_place place;
                if (weight_find_place(config, is_gguf, (weight_role)role, layer, i, &place))
                    MN_TRY(list_weight(list, &place, is_gguf, source));
            }
        }
    }
    return MN_OK;
}

static mn_status make_tensor(const entry *e, tensor *out) {
    size_t n;
    MN_TRY(row_bytes(e, &n));
    *out = (tensor){.name = e->name, .type = e->type, .n_dims = e->n_dims};
    memcpy(out->shape, e->shape, sizeof e->shape);
    out->bytes = n * (size_t)row_count(e);
    uint8_t *data = mem_alloc_raw(out->bytes, 1);
    float *values = mem_alloc_raw((size_t)row_width(e), sizeof *values);
    mn_status status = data && values ? MN_OK : MN_E_NOMEM;
    out->data = data;
    for (int64_t r = 0; r < row_count(e) && status == MN_OK; r++) {
        fill_row(e, r, values);
        status = quantize_from_f32(e->type, data + (size_t)r * n, values, row_width(e));
    }
    mem_free(values);
    return status;
}

static mn_status write_safetensors(const entry_list *list, const char *folder) {
    bytes path = {0};
    tensor *tensors = mem_alloc(list->n, sizeof *tensors);
    mn_status status = tensors ? path_join(&path, folder, "model.safetensors") : MN_E_NOMEM;
    for (size_t i = 0; i < list->n && status == MN_OK; i++) status = make_tensor(&list->items[i], &tensors[i]);
    if (status == MN_OK)
        status = safetensors_write(bytes_text(&path), tensors, list->n, (const char *const[]){"format", "pt", NULL});
    for (size_t i = 0; tensors && i < list->n; i++) mem_free((void *)(uintptr_t)tensors[i].data);
    mem_free(tensors);
    bytes_clear(&path);
    return status;
}

static mn_status rounded_folder(const gguf *file, const char *folder) {
    model_config config;
    MN_TRY(config_from_gguf(&config, file));
    model_weights weights = {0};
    entry_list list = {0};
    mn_status status = model_bind(&weights, &config, gguf_tensors(file), true);
    if (status == MN_OK && mkdir(folder, 0777) != 0 && errno != EEXIST)
        status = status_fail(MN_E_IO, "%s: %s", folder, strerror(errno));
    if (status == MN_OK) status = list_weights(&list, &config, false, &weights);
    if (status == MN_OK) status = write_config(&config, folder);
    if (status == MN_OK) status = write_safetensors(&list, folder);
    mem_free(list.items);
    model_weights_clear(&weights);
    model_config_clear(&config);
    return status;
}

/* ---- random weights ---- */

static layer_type all_full[22];

static const model_config tinyllama = {
    .layer_types = all_full,
    .model_type = MODEL_LLAMA,
    .hidden_size = 2048,
    .intermediate_size = 5632,
    .num_hidden_layers = 22,
    .num_attention_heads = 32,
    .num_key_value_heads = 4,
    .head_dim = 64,
    .vocab_size = 32000,
    .max_position_embeddings = 8192, /* TinyLlama has 2048; deeper tests need more, and the weights are random */
    .norm_eps = 1e-5,
    .rope_theta = 10000,
    .rotary_dim = 64,
};

enum { CONFIG_LIMIT = 1 << 20 };

enum { WORD_NORMAL = 1, WORD_UNKNOWN = 2, WORD_CONTROL = 3, WORD_BYTE = 6 }; /* token types of GGUF files */

/* A vocabulary of the SentencePiece kind: three special words, the bytes, and numbered words. */
static mn_status put_vocabulary(gguf_writer *w, size_t n) {
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    enum { N_SPECIAL = 3, N_BYTES = 256, WORD = 16 };
    char *text = mem_alloc(n, WORD);
    const char **words = mem_alloc(n, sizeof *words);
    float *scores = mem_alloc(n, sizeof *scores);
    int32_t *types = mem_alloc(n, sizeof *types);
    mn_status status = text && words && scores && types ? MN_OK : MN_E_NOMEM;
    for (size_t i = 0; i < n && status == MN_OK; i++) {
        words[i] = text + i * WORD;
        scores[i] = -(float)i;
        types[i] = i == 0                    ? WORD_UNKNOWN
                   : i < N_SPECIAL           ? WORD_CONTROL
                   : i < N_SPECIAL + N_BYTES ? WORD_BYTE
                                             : WORD_NORMAL;
        if (i < N_SPECIAL) {
            snprintf(text + i * WORD, WORD, "%s", special[i]);
        } else {
            bool is_byte = i < N_SPECIAL + N_BYTES;
            snprintf(text + i * WORD, WORD, is_byte ? "<0x%02X>" : "w%u", (unsigned)(is_byte ? i - N_SPECIAL : i));
        }
    }
    if (status == MN_OK) {
        gguf_writer_text(w, "tokenizer.ggml.model", "llama");
        gguf_writer_texts(w, "tokenizer.ggml.tokens", words, n);
        gguf_writer_array(w, "tokenizer.ggml.scores", GGUF_F32, sizeof *scores, scores, n);
        gguf_writer_array(w, "tokenizer.ggml.token_type", GGUF_I32, sizeof *types, types, n);
        gguf_writer_int(w, "tokenizer.ggml.unknown_token_id", GGUF_U32, 0);
        gguf_writer_int(w, "tokenizer.ggml.bos_token_id", GGUF_U32, 1);
        gguf_writer_int(w, "tokenizer.ggml.eos_token_id", GGUF_U32, 2);
    }
    mem_free(text);
    mem_free(words);
    mem_free(scores);
    mem_free(types);
    return status;
}

static mn_status read_config(model_config *config, const char *path) {
    json_doc *doc = NULL;
    mn_status status = json_open(&doc, path, JSON_PYTHON, CONFIG_LIMIT);
    if (status == MN_OK) status = config_from_json(config, json_root(doc), path);
    json_close(&doc);
    return status;
}

static mn_status random_gguf(const char *path, const model_config *c) {
    gguf_writer w = {0};
    entry_list list = {0};
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {
        {"general.file_type", FILE_TYPE_BF16},
        {"llama.vocab_size", c->vocab_size},
        {"llama.context_length", c->max_position_embeddings},
        {"llama.embedding_length", c->hidden_size},
        {"llama.block_count", c->num_hidden_layers},
        {"llama.feed_forward_length", c->intermediate_size},
        {"llama.rope.dimension_count", c->rotary_dim},
        {"llama.attention.head_count", c->num_attention_heads},
        {"llama.attention.head_count_kv", c->num_key_value_heads},
        {"llama.expert_count", c->num_local_experts},
        {"llama.expert_used_count", c->num_experts_per_tok},
    };
    gguf_writer_text(&w, "general.architecture", "llama");
    gguf_writer_text(&w, "general.name", "random weights");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value > 0) gguf_writer_int(&w, sizes[i].key, GGUF_U32, sizes[i].value);
    }
    gguf_writer_real(&w, "llama.attention.layer_norm_rms_epsilon", GGUF_F32, c->norm_eps);
    gguf_writer_real(&w, "llama.rope.freq_base", GGUF_F32, c->rope_theta);
    mn_status status = put_vocabulary(&w, (size_t)c->vocab_size);
    if (status == MN_OK) status = list_weights(&list, c, true, NULL);
    if (status == MN_OK) status = write_gguf(&w, &list, path);
    mem_free(list.items);
    gguf_writer_clear(&w);
    return status;
}

static mn_status copy_config(const char *path, const char *folder) {
    bytes text = {0}, to = {0};
    mn_status status = file_read(&text, path, CONFIG_LIMIT);
    if (status == MN_OK) status = path_join(&to, folder, "config.json");
    if (status == MN_OK) status = file_write_atomic(bytes_text(&to), text.data, text.n);
    bytes_clear(&text);
    bytes_clear(&to);
    return status;
}

static mn_status random_folder(const char *path, const char *folder) {
    model_config config = {0};
    entry_list list = {0};
    mn_status status = read_config(&config, path);
    if (status == MN_OK && mkdir(folder, 0777) != 0 && errno != EEXIST)
        status = status_fail(MN_E_IO, "%s: %s", folder, strerror(errno));
    if (status == MN_OK) status = list_weights(&list, &config, false, NULL);
    if (status == MN_OK) status = write_safetensors(&list, folder);
    if (status == MN_OK) status = copy_config(path, folder);
    mem_free(list.items);
    model_config_clear(&config);
    return status;
}

static mn_status random_of_config(const char *path, const char *config_path) {
    model_config config = {0};
    mn_status status = read_config(&config, config_path);
    if (status == MN_OK && config.model_type != MODEL_LLAMA && config.model_type != MODEL_MIXTRAL)
        status = status_fail(MN_E_ARG, "%s: model_type must be 'llama' or 'mixtral'", config_path);
    if (status == MN_OK) status = random_gguf(path, &config);
    model_config_clear(&config);
    return status;
}

static const char usage[] = "usage: make_bf16 gguf MODEL.gguf OUT.gguf\n"
                            "       make_bf16 folder MODEL.gguf FOLDER\n"
                            "       make_bf16 random OUT.gguf [CONFIG.json]\n"
                            "       make_bf16 shape CONFIG.json FOLDER\n";

int main(int n, char **words) {
    mn_status status;
    gguf *file = NULL;
    if (n == 3 && strcmp(words[1], "random") == 0) {
        status = random_gguf(words[2], &tinyllama);
    } else if (n == 4 && strcmp(words[1], "random") == 0) {
        status = random_of_config(words[2], words[3]);
    } else if (n == 4 && strcmp(words[1], "shape") == 0) {
        status = random_folder(words[2], words[3]);
    } else if (n == 4 && (strcmp(words[1], "gguf") == 0 || strcmp(words[1], "folder") == 0)) {
        status = gguf_open(&file, words[2]);
        if (status == MN_OK)
            status = words[1][0] == 'g' ? rounded_gguf(file, words[3]) : rounded_folder(file, words[3]);
        gguf_close(&file);
    } else {
        fputs(usage, stderr);
        return 2;
    }
    if (status != MN_OK) fprintf(stderr, "make_bf16: %s\n", mn_last_error());
    return status == MN_OK ? 0 : 1;
}
