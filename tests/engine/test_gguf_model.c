/* Models in GGUF files: the same weights as in a safetensors folder give the same bits; every stored type, mixed in one
 * file, gives the oracle's result for the dequantized weights.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include <math.h>

#include "support/blocks.h"
#include "support/gguf_writer.h"
#include "support/oracle.h"
#include "support/scratch.h"
#include "checkpoint/quantize.h"

enum { N_IDS = 60 };

static const char *const matrix_names[ORACLE_MATRICES] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                                          "ffn_gate", "ffn_up", "ffn_down"};

/* ---- writing an oracle's weights ---- */

/* The file's row for row `row` of a matrix with rotary embedding: files of type llama store the pairs (i, i + d/2) as
 * neighbours. */
static int interleaved(int row, int head_dim) {
    int head = row / head_dim, i = row % head_dim, half = head_dim / 2;
    return head * head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);
}

static bool is_rotated(oracle_matrix matrix) {
    return matrix == ORACLE_Q || matrix == ORACLE_K;
}

/* Copies `bytes_per_row` bytes of each row to their places in the file. */
static void *file_order(const void *rows, int n_rows, size_t bytes_per_row, int head_dim) {
    char *out = malloc((size_t)n_rows * bytes_per_row);
    assert_non_null(out);
    for (int r = 0; r < n_rows; r++) {
        int to = head_dim ? interleaved(r, head_dim) : r;
        memcpy(out + (size_t)to * bytes_per_row, (const char *)rows + (size_t)r * bytes_per_row, bytes_per_row);
    }
    return out;
}

static void put_vector(gguf_writer *w, const char *name, const float *values, int n) {
    if (values) gguf_writer_tensor(w, name, DTYPE_F32, 1, (int64_t[]){n}, values);
}

static void put_sizes(gguf_writer *w, const oracle *o, const char *architecture) {
    const struct {
        const char *name;
        int value;
    } sizes[] = {{"block_count", o->n_layers},          {"context_length", 512},
                 {"embedding_length", o->hidden},       {"feed_forward_length", o->inner},
                 {"attention.head_count", o->n_heads},  {"attention.head_count_kv", o->n_kv_heads},
                 {"attention.key_length", o->head_dim}, {"attention.value_length", o->head_dim},
                 {"rope.dimension_count", o->head_dim}, {"vocab_size", o->vocab}};
    char key[64];
    gguf_writer_text(w, "general.architecture", architecture);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", architecture, sizes[i].name);
        gguf_writer_int(w, key, GGUF_U32, sizes[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", architecture);
    gguf_writer_real(w, key, GGUF_F32, o->eps);
    snprintf(key, sizeof key, "%s.rope.freq_base", architecture);
    gguf_writer_real(w, key, GGUF_F32, o->theta);
}

/* Stored bytes of a matrix, rows in the oracle's order: the weights quantized to the type, or random bytes of a type
 * that has no quantizer. The oracle's weights become the dequantized bytes. */
typedef enum fill { FILL_ROUND, FILL_RANDOM } fill;

static void *stored_matrix(float *weights, int rows, int columns, dtype type, fill how, uint64_t *seed) {
    size_t n = (size_t)rows * (size_t)columns, size;
    assert_ok(dtype_bytes(type, (int64_t)n, &size));
    void *stored = malloc(size);
    if (how == FILL_ROUND) {
        assert_ok(quantize_from_f32(type, stored, weights, (int64_t)n));
        dtype_table[type].to_f32(weights, stored, n);
        return stored;
    }
    /* Scaled so that products with such a matrix keep their magnitude. */
    double scale = 1.0 / 1024;
    for (int pass = 0; pass < 2; pass++) {
        double squares = 0;
        random_blocks(seed, type, stored, n, scale);
        dtype_table[type].to_f32(weights, stored, n);
        for (size_t i = 0; i < n; i++) squares += (double)weights[i] * (double)weights[i];
        scale *= 1 / sqrt(squares / (double)rows);
    }
    return stored;
}

static void put_matrix(gguf_writer *w, const char *name, float *weights, int rows, int columns, dtype type, fill how,
                       int head_dim, uint64_t *seed) {
    void *stored = stored_matrix(weights, rows, columns, type, how, seed);
    size_t row_bytes;
    assert_ok(dtype_bytes(type, columns, &row_bytes));
    void *ordered = file_order(stored, rows, row_bytes, head_dim);
    gguf_writer_tensor(w, name, type, 2, (int64_t[]){rows, columns}, ordered);
    free(ordered);
    free(stored);
}

/* The type of the i-th matrix of a file; F32 where rows do not fill its blocks. */
typedef struct type_list {
    const dtype *types;
    int n, first;
} type_list;

static dtype type_of(const type_list *list, int i, int columns) {
    dtype type = list->types[(list->first + i) % list->n];
    return columns % dtype_table[type].block == 0 ? type : DTYPE_F32;
}

static void save_model(oracle *o, const char *architecture, const type_list *list, fill how, const char *path) {
    gguf_writer w = {0};
    uint64_t seed = 1;
    int n = 0, paired = strcmp(architecture, "llama") == 0 ? o->head_dim : 0;
    char name[64];
    put_sizes(&w, o, architecture);
    put_matrix(&w, "token_embd.weight", o->embed, o->vocab, o->hidden, type_of(list, n++, o->hidden), how, 0, &seed);
    put_vector(&w, "output_norm.weight", o->final_norm, o->hidden);
    if (o->head)
        put_matrix(&w, "output.weight", o->head, o->vocab, o->hidden, type_of(list, n++, o->hidden), how, 0, &seed);
    for (int i = 0; i < o->n_layers; i++) {
        oracle_layer *layer = &o->layers[i];
        for (oracle_matrix m = 0; m < ORACLE_MATRICES; m = (oracle_matrix)(m + 1)) {
            int columns = oracle_columns(o, m);
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, matrix_names[m]);
            put_matrix(&w, name, layer->matrix[m], oracle_rows(o, m), columns, type_of(list, n++, columns), how,
                       is_rotated(m) ? paired : 0, &seed);
            snprintf(name, sizeof name, "blk.%d.%s.bias", i, matrix_names[m]);
            assert_true(!layer->bias[m] || !paired);
            put_vector(&w, name, layer->bias[m], oracle_rows(o, m));
        }
        const struct {
            const char *name;
            const float *values;
            int n;
        } norms[] = {{"attn_norm", layer->attention_norm, o->hidden},
                     {"ffn_norm", layer->mlp_norm, o->hidden},
                     {"attn_q_norm", layer->q_norm, o->head_dim},
                     {"attn_k_norm", layer->k_norm, o->head_dim}};
        for (size_t j = 0; j < sizeof norms / sizeof norms[0]; j++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, norms[j].name);
            put_vector(&w, name, norms[j].values, norms[j].n);
        }
    }
    gguf_writer_save(&w, path);
    gguf_writer_clear(&w);
}

static float *logits_of(const char *path, const char *form, const int32_t *ids) {
    mn_model *model = engine_model(path, form, "auto", engine_threads());
    float *logits = engine_logits(model, (engine_cache){.dtype = "f32"}, ids, N_IDS, 0, NULL);
    mn_model_close(&model);
    return logits;
}

/* ---- tests ---- */

static void the_same_weights_give_the_same_bits(void **state) {
    (void)state;
    static const char *const families[][2] = {{"golden/llama", "llama"},
                                              {"golden/mistral-full", "llama"},
                                              {"golden/qwen2", "qwen2"},
                                              {"golden/qwen3", "qwen3"}};
    static const char *const forms[] = {"f32", "bf16", "int8", "int8_a8"};
    const dtype plain[] = {DTYPE_F32};
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        oracle o = oracle_open(data_path(families[f][0]));
        int32_t ids[N_IDS];
        uint64_t seed = 6;
        engine_ids(&seed, ids, N_IDS, o.vocab);
        char path[1024];
        snprintf(path, sizeof path, "%s", scratch_path("same.gguf"));
        save_model(&o, families[f][1], &(type_list){plain, 1, 0}, FILL_ROUND, path);
        for (size_t c = 0; c < sizeof forms / sizeof forms[0]; c++) {
            float *wanted = logits_of(families[f][0], forms[c], ids), *got = logits_of(path, forms[c], ids);
            engine_same_bits(got, wanted, N_IDS, (size_t)o.vocab, "%s in %s", families[f][0], forms[c]);
            free(wanted);
            free(got);
        }
        oracle_close(&o);
    }
}

/* float32 computation with stored types is within rounding of the oracle; integer computation is close to it. */
static void check_types(oracle *o, const char *path, const char *what) {
    size_t n = (size_t)N_IDS * (size_t)o->vocab;
    int32_t ids[N_IDS];
    uint64_t seed = 8;
    double *wanted = malloc(n * sizeof *wanted), largest = 1, squares = 0, errors = 0;
    engine_ids(&seed, ids, N_IDS, o->vocab);
    oracle_logits(o, ids, N_IDS, wanted);
    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs(wanted[i]));
        squares += wanted[i] * wanted[i];
    }
    float *got = logits_of(path, "f32", ids);
    double distance = oracle_distance(got, wanted, n) / largest;
    if (!(distance > 0 && distance < 2e-4)) fail_msg("%s: %g away from the oracle", what, distance);
    free(got);
    got = logits_of(path, "auto", ids);
    for (size_t i = 0; i < n; i++) errors += ((double)got[i] - wanted[i]) * ((double)got[i] - wanted[i]);
    double share = sqrt(errors / squares);
    if (!(share > 1e-6 && share < 0.08)) fail_msg("%s: integer computation is %g of the logits away", what, share);
    free(got);
    free(wanted);
}

static void rounded_weights_equal_the_oracle(void **state) {
    (void)state;
    static const dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        oracle o = oracle_open(data_path("golden/llama"));
        char path[1024];
        snprintf(path, sizeof path, "%s", scratch_path("rounded.gguf"));
        save_model(&o, "llama", &(type_list){&types[t], 1, 0}, FILL_ROUND, path);
        check_types(&o, path, dtype_table[types[t]].name);
        oracle_close(&o);
    }
}

static float *ones(int n) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++) x[i] = 1 + (float)(i % 7) / 16;
    return x;
}

/* Sizes that fill blocks of 256; save_model makes the weights. */
static oracle make_oracle(void) {
    oracle o = {.hidden = 256,
                .inner = 512,
                .n_layers = 3,
                .n_heads = 4,
                .n_kv_heads = 2,
                .head_dim = 64,
                .vocab = 301,
                .rotary = 64,
                .eps = 1e-5,
                .theta = 10000,
                .score_scale = 1 / sqrt(64),
                .embed_scale = 1,
                .residual_scale = 1,
                .logit_divisor = 1};
    size_t table = (size_t)o.vocab * (size_t)o.hidden;
    o.eps = (double)(float)o.eps;
    o.embed = calloc(table, sizeof *o.embed);
    o.head = calloc(table, sizeof *o.head);
    o.final_norm = ones(o.hidden);
    o.layers = calloc((size_t)o.n_layers, sizeof *o.layers);
    for (int i = 0; i < o.n_layers; i++) {
        oracle_layer *layer = &o.layers[i];
        for (oracle_matrix m = 0; m < ORACLE_MATRICES; m = (oracle_matrix)(m + 1)) {
            size_t n = (size_t)oracle_rows(&o, m) * (size_t)oracle_columns(&o, m);
            layer->matrix[m] = calloc(n, sizeof *layer->matrix[m]);
        }
        layer->theta = o.theta;
        layer->attention_norm = ones(o.hidden);
        layer->mlp_norm = ones(o.hidden);
    }
    return o;
}

static void every_stored_type_in_one_file_equals_the_oracle(void **state) {
    (void)state;
    dtype types[N_COMPUTED_DTYPES];
    int n = 0;
    FOR_COMPUTED_TYPES(type) {
        if (dtype_table[type].gguf_id >= 0) types[n++] = type;
    }
    for (int first = 0; first < n; first += 4) {
        oracle o = make_oracle();
        char path[1024], what[64];
        snprintf(path, sizeof path, "%s", scratch_path("mixed.gguf"));
        snprintf(what, sizeof what, "all types, beginning with %s", dtype_table[types[first]].name);
        save_model(&o, "llama", &(type_list){types, n, first}, FILL_RANDOM, path);
        check_types(&o, path, what);
        oracle_close(&o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_weights_give_the_same_bits),
        cmocka_unit_test(rounded_weights_equal_the_oracle),
        cmocka_unit_test(every_stored_type_in_one_file_equals_the_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
