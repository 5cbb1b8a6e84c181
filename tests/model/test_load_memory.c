/* What lies in memory while a model is loaded: its packed weights, and of the files never more than a small part, since
 * the pages that were read are given back on the way.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"

#include "support/gguf_writer.h"
#include "support/scratch.h"
#include "support/zero_checkpoint.h"

enum { MEASURES = 96 }; /* of a model while it is loaded */

static const char llama[] = "{\"model_type\": \"llama\", \"hidden_size\": 512, \"intermediate_size\": 2048, "
                            "\"num_hidden_layers\": 7, \"num_attention_heads\": 8, \"num_key_value_heads\": 8, "
                            "\"vocab_size\": 4096, \"max_position_embeddings\": 256, \"rms_norm_eps\": 1e-5, "
                            "\"tie_word_embeddings\": %s}";
static const char gpt2[] = "{\"model_type\": \"gpt2\", \"n_embd\": 512, \"n_head\": 8, \"n_layer\": 10, "
                           "\"n_positions\": 64, \"vocab_size\": 1024, \"layer_norm_epsilon\": 1e-5, "
                           "\"activation_function\": \"gelu_new\"}";

/* ---- checkpoints ---- */

/* Appends the description of a tensor [rows][columns], or [rows] with 0 columns. */
static void put_info(gguf_writer *w, const char *name, dtype type, int64_t rows, int64_t columns, uint64_t *offset) {
    const uint64_t ne[] = {(uint64_t)(columns ? columns : rows), (uint64_t)rows};
    size_t n = 0;
    gguf_writer_info(w, name, columns ? 2 : 1, ne, (uint32_t)dtype_table[type].gguf_id, *offset);
    assert_ok(dtype_bytes(type, columns ? rows * columns : rows, &n));
    *offset += (n + 31) / 32 * 32;
}

static const char *make_gguf(void) {
    static char path[512];
    enum { D = 512, INNER = 1024, VOCAB = 65536, N_LAYERS = 2 };
    static const struct {
        const char *name;
        int64_t rows, columns;
    } layer[] = {{"attn_norm", D, 0},    {"attn_q", D, D},      {"attn_k", D, D},
                 {"attn_v", D, D},       {"attn_output", D, D}, {"ffn_norm", D, 0},
                 {"ffn_gate", INNER, D}, {"ffn_up", INNER, D},  {"ffn_down", D, INNER}};
    static const struct {
        const char *key;
        int value;
    } sizes[] = {{"block_count", N_LAYERS},      {"context_length", 256},     {"embedding_length", D},
                 {"feed_forward_length", INNER}, {"attention.head_count", 8}, {"attention.head_count_kv", 8},
                 {"rope.dimension_count", 64},   {"vocab_size", VOCAB}};
    gguf_writer w = {0};
    bytes header = {0};
    uint64_t n = 0;
    char key[96];
    gguf_writer_text(&w, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "llama.%s", sizes[i].key);
        gguf_writer_int(&w, key, GGUF_U32, sizes[i].value);
    }
    gguf_writer_real(&w, "llama.attention.layer_norm_rms_epsilon", GGUF_F32, 1e-5);
    for (int l = 0; l < N_LAYERS; l++) {
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
            snprintf(key, sizeof key, "blk.%d.%s.weight", l, layer[i].name);
            put_info(&w, key, layer[i].columns ? DTYPE_Q8_0 : DTYPE_F32, layer[i].rows, layer[i].columns, &n);
        }
    }
    put_info(&w, "output_norm.weight", DTYPE_F32, D, 0, &n);
    put_info(&w, "token_embd.weight", DTYPE_Q8_0, VOCAB, D, &n);
    assert_ok(gguf_writer_header(&w, &header));
    gguf_put_padding(&header, gguf_writer_alignment(&w));
    snprintf(path, sizeof path, "%s", scratch_path("model.gguf"));
    write_with_hole(path, header.data, header.n, n);
    bytes_clear(&header);
    gguf_writer_clear(&w);
    return path;
}

/* ---- measuring ---- */

typedef struct resident {
    size_t all, of_file; /* bytes */
} resident;

/* Counted by the system page by page, unlike the counters of /proc/self/status. */
static resident measure(const char *file) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[4096];
    resident r = {0};
    bool is_file = false;
    size_t kib;
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        char first[64] = "";
        sscanf(line, "%63s", first);
        if (strchr(first, '-')) is_file = strstr(line, file) != NULL;
        if (sscanf(line, "Rss: %zu kB", &kib) != 1) continue;
        r.all += kib << 10;
        if (is_file) r.of_file += kib << 10;
    }
    fclose(maps);
    return r;
}

typedef struct load {
    const char *file;
    size_t base; /* resident before */
    uint64_t next;
    size_t n_measured, packed, most, most_of_file;
} load;

static void on_progress(void *user, uint64_t done, uint64_t total) {
    load *l = user;
    if (done < l->next && done < total) return;
    const resident now = measure(l->file);
    l->next = done + total / MEASURES;
    l->packed = (size_t)total;
    l->n_measured++;
    if (now.all > l->most) l->most = now.all;
    if (now.of_file > l->most_of_file) l->most_of_file = now.of_file;
}

static void check_load(const char *path, const char *compute_type) {
    load l = {.file = strrchr(path, '.') ? path : "model.safetensors"};
    mn_model *model = NULL;
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    options.threads = 1; /* which reports */
    options.compute_type = compute_type;
    options.progress = on_progress;
    options.progress_user = &l;
    l.base = measure(l.file).all;
    assert_ok(mn_model_open(&model, path, &options));
    mn_model_close(&model);
    const size_t whole = l.most - l.base;
    print_message("%s: %zu KiB packed, %zu KiB of the file, %zu KiB in all, %zu times\n", compute_type, l.packed >> 10,
                  l.most_of_file >> 10, whole >> 10, l.n_measured);
    assert_true(l.n_measured > MEASURES / 4 && l.packed > (15 << 20));
    assert_true(l.most_of_file * 100 <= l.packed * 15);
    if (!TEST_IS_SANITIZED) assert_true(whole * 100 <= l.packed * 115); /* sanitizers have memory of their own */
}

static void safetensors(void **state) {
    (void)state;
    char config[512];
    snprintf(config, sizeof config, llama, "false");
    check_load(zero_checkpoint(config, DTYPE_BF16), "auto");
}

/* Files whose values take four times the bytes of the packed ones. */
static void rounded_weights(void **state) {
    (void)state;
    char config[512];
    snprintf(config, sizeof config, llama, "true");
    check_load(zero_checkpoint(config, DTYPE_F32), "int8");
}

/* GPT-2 stores its matrices with rows and columns exchanged. */
static void transposed_weights(void **state) {
    (void)state;
    check_load(zero_checkpoint(gpt2, DTYPE_BF16), "auto");
}

/* One tensor, which the embedding and the head share, is most of the file. */
static void gguf_of_one_large_tensor(void **state) {
    (void)state;
    check_load(make_gguf(), "auto");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(safetensors),
        cmocka_unit_test(rounded_weights),
        cmocka_unit_test(transposed_weights),
        cmocka_unit_test(gguf_of_one_large_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
