/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "mneme.h"
#include "support/gguf_writer.h"
#include "support/hostile/hostile.h"

const char *const checkpoint_files[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        NULL};

enum { PATH_BYTES = 4096, N_IDS = 5, MEMORY_LIMIT = 512 << 20 };

/* A folder of this process in memory, removed when the process ends. */
static char folder[PATH_BYTES / 2];

static const char *in_folder(const char *name) {
    static char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void empty_folder(void) {
    for (int i = 0; checkpoint_files[i]; i++) unlink(in_folder(checkpoint_files[i]));
    unlink(in_folder("model.gguf"));
}

static void remove_folder(void) {
    empty_folder();
    rmdir(folder);
}

static void make_folder(void) {
    if (folder[0]) return;
    const char *parent = file_is_directory("/dev/shm") ? "/dev/shm" : file_scratch_folder();
    snprintf(folder, sizeof folder, "%s/mneme-hostile-XXXXXX", parent);
    MUST_HOLD(mkdtemp(folder));
    atexit(remove_folder);
}

static void write_file(const char *name, const uint8_t *data, size_t n) {
    FILE *file = fopen(in_folder(name), "wb");
    MUST_HOLD(file);
    MUST_HOLD(n == 0 || fwrite(data, 1, n, file) == n);
    MUST_HOLD(fclose(file) == 0);
}

/* The other files are links to the files of the base. */
static void write_checkpoint(const char *base, const char *name, const uint8_t *data, size_t n) {
    char target[PATH_BYTES];
    make_folder();
    empty_folder();
    write_file(base ? name : "model.gguf", data, n);
    for (int i = 0; base && checkpoint_files[i]; i++) {
        snprintf(target, sizeof target, "%s/%s", base, checkpoint_files[i]);
        if (strcmp(checkpoint_files[i], name) == 0 || access(target, R_OK) != 0) continue;
        MUST_HOLD(symlink(target, in_folder(checkpoint_files[i])) == 0);
    }
}

static void use_text(const mn_model *model) {
    static const char text[] = "Once upon a time, 17 Fl\xc3\xbcsse.",
                      messages[] = "[{\"role\": \"user\", \"content\": \"Hi\"}]";
    const mn_tokenizer *tokenizer = mn_model_tokenizer(model);
    int32_t *ids = NULL;
    char *out = NULL;
    size_t n = 0;
    if (!tokenizer) return;
    if (mn_tokenize(tokenizer, text, sizeof text - 1, MN_ADD_SPECIAL, &ids, &n) == MN_OK &&
        mn_detokenize(tokenizer, ids, n, 0, &out, NULL) == MN_OK)
        mn_free(out);
    mn_free(ids);
    out = NULL;
    if (mn_has_chat_template(tokenizer) &&
        mn_chat_render(tokenizer, messages, sizeof messages - 1, true, &out, NULL) == MN_OK)
        mn_free(out);
}

static void use_model(mn_model *model) {
    mn_model_info info = {.size = sizeof info};
    mn_session *session = NULL;
    int32_t ids[N_IDS];
    MUST_HOLD(mn_model_get_info(model, &info) == MN_OK);
    MUST_HOLD(info.vocab_size > 0);
    for (int i = 0; i < N_IDS; i++) ids[i] = (int32_t)(7919LL * i % info.vocab_size);
    if (mn_session_open(&session, model, NULL) != MN_OK) return;
    bool ready = true;
    if (info.max_source_positions > 0) {
        size_t mels = (size_t)info.num_mel_bins, frames = 2 * (size_t)info.max_source_positions;
        float *features = calloc(mels * frames, sizeof *features);
        MUST_HOLD(features);
        ready = mn_session_encode(session, features, mels, frames) == MN_OK;
        free(features);
    }
    if (ready && mn_session_step(session, ids, N_IDS - 1, NULL) == MN_OK &&
        mn_session_step(session, ids + N_IDS - 1, 1, NULL) == MN_OK) {
        MUST_HOLD(mn_session_length(session) == N_IDS);
        MUST_HOLD(mn_session_logits(session));
    }
    mn_session_close(&session);
}

mn_status hostile_checkpoint(const char *base, const char *file, const uint8_t *data, size_t n) {
    int64_t live = mem_count().live;
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    mn_model *model = NULL;
    options.threads = 1;
    options.memory_limit = MEMORY_LIMIT;
    write_checkpoint(base, file, data, n);
    mn_status status = mn_model_open(&model, base ? folder : in_folder("model.gguf"), &options);
    MUST_HOLD(status == MN_OK || status == MN_E_FORMAT || status == MN_E_UNSUPPORTED || status == MN_E_NOMEM ||
              status == MN_E_NOT_FOUND || status == MN_E_IO);
    MUST_HOLD((status == MN_OK) == (model != NULL));
    if (status != MN_OK) MUST_HOLD(strlen(mn_last_error()) > 10);
    if (model) {
        use_text(model);
        use_model(model);
    }
    mn_model_close(&model);
    MUST_HOLD(mem_count().live == live);
    return status;
}

/* ---- a GGUF file ---- */

enum { HIDDEN = 32, INNER = 64, HEADS = 2, LAYERS = 2, VOCAB = 32, CONTEXT = 64 };

static void put_matrix(gguf_writer *w, const char *name, dtype type, int rows, int columns) {
    static float values[INNER * INNER];
    for (int i = 0; i < rows * columns; i++) values[i] = sinf((float)(i * 7 + rows)) / 4;
    gguf_writer_tensor_f32(w, name, type, 2, (int64_t[]){rows, columns}, values);
}

static void put_vector(gguf_writer *w, const char *name) {
    float ones[HIDDEN];
    for (int i = 0; i < HIDDEN; i++) ones[i] = 1;
    gguf_writer_tensor(w, name, DTYPE_F32, 1, (int64_t[]){HIDDEN}, ones);
}

static void put_sizes(gguf_writer *w) {
    static const struct {
        const char *key;
        int value;
    } sizes[] = {{"llama.block_count", LAYERS},        {"llama.embedding_length", HIDDEN},
                 {"llama.feed_forward_length", INNER}, {"llama.attention.head_count", HEADS},
                 {"llama.context_length", CONTEXT},    {"llama.attention.head_count_kv", HEADS / 2},
                 {"llama.vocab_size", VOCAB},          {"llama.rope.dimension_count", HIDDEN / HEADS}};
    gguf_writer_text(w, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        gguf_writer_int(w, sizes[i].key, GGUF_U32, sizes[i].value);
    gguf_writer_real(w, "llama.attention.layer_norm_rms_epsilon", GGUF_F32, 1e-5);
}

/* A vocabulary of single letters and two pairs of them; the last token ends a text. */
static void put_vocabulary(gguf_writer *w) {
    static char names[VOCAB][8];
    const char *tokens[VOCAB], *merges[] = {"a b", "ab c"};
    int32_t types[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        snprintf(names[i], sizeof names[i], "%c", 'a' + i % 26);
        if (i >= 26)
            snprintf(names[i], sizeof names[i], i == 26 ? "ab" : i == 27 ? "abc" : i == VOCAB - 1 ? "<end>" : "%d", i);
        tokens[i] = names[i];
        types[i] = i == VOCAB - 1 ? 3 : 1;
    }
    gguf_writer_text(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_text(w, "tokenizer.ggml.pre", "gpt-2");
    gguf_writer_texts(w, "tokenizer.ggml.tokens", tokens, VOCAB);
    gguf_writer_array(w, "tokenizer.ggml.token_type", GGUF_I32, sizeof *types, types, VOCAB);
    gguf_writer_texts(w, "tokenizer.ggml.merges", merges, 2);
    gguf_writer_int(w, "tokenizer.ggml.eos_token_id", GGUF_U32, VOCAB - 1);
    gguf_writer_text(w, "tokenizer.chat_template", "{% for m in messages %}{{ m.content }}{% endfor %}");
}

uint8_t *checkpoint_gguf(size_t *n) {
    static const struct {
        const char *name;
        int rows, columns;
        dtype type;
    } matrices[] = {{"attn_q", HIDDEN, HIDDEN, DTYPE_Q8_0},     {"attn_k", HIDDEN / 2, HIDDEN, DTYPE_F16},
                    {"attn_v", HIDDEN / 2, HIDDEN, DTYPE_Q4_1}, {"attn_output", HIDDEN, HIDDEN, DTYPE_Q4_0},
                    {"ffn_gate", INNER, HIDDEN, DTYPE_BF16},    {"ffn_up", INNER, HIDDEN, DTYPE_Q8_0},
                    {"ffn_down", HIDDEN, INNER, DTYPE_F32}};
    gguf_writer w = {0};
    bytes file = {0};
    put_sizes(&w);
    put_vocabulary(&w);
    put_matrix(&w, "token_embd.weight", DTYPE_Q8_0, VOCAB, HIDDEN);
    put_vector(&w, "output_norm.weight");
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[64];
        for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", layer, matrices[i].name);
            put_matrix(&w, name, matrices[i].type, matrices[i].rows, matrices[i].columns);
        }
        snprintf(name, sizeof name, "blk.%d.attn_norm.weight", layer);
        put_vector(&w, name);
        snprintf(name, sizeof name, "blk.%d.ffn_norm.weight", layer);
        put_vector(&w, name);
    }
    gguf_writer_finish(&w, &file);
    gguf_writer_clear(&w);
    *n = file.n;
    return (uint8_t *)file.data;
}
