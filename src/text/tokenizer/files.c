/* Opening a tokenizer: which file it is, what lies beside it; tiktoken files; vocab.json with merges.txt.
 * SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/build.h"

#include <inttypes.h>
#include <string.h>

#include "base/file.h"

/* ---- tiktoken: lines of "base64 rank" ---- */

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Appends the bytes of n letters; false when they are no base64. */
static bool base64_decode(const char *text, size_t n, bytes *out) {
    if (n == 1 && text[0] == '=') return true; /* how a published file spells the empty token */
    if (n == 0 || n % 4) return false;
    size_t padding = text[n - 1] != '=' ? 0 : text[n - 2] != '=' ? 1 : 2;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t group = 0;
        for (size_t k = 0; k < 4; k++) {
            int value = i + k >= n - padding ? 0 : base64_value(text[i + k]);
            if (value < 0) return false;
            group = group << 6 | (uint32_t)value;
        }
        const char three[] = {(char)(group >> 16), (char)(group >> 8), (char)group};
        bytes_append(out, three, i + 4 == n ? 3 - padding : 3);
    }
    return true;
}

static mn_status read_tiktoken_line(tokenizer *t, const char *line, size_t n, size_t number, bytes *raw, bytes *letters,
                                    const char *what) {
    const char *space = memchr(line, ' ', n);
    int64_t id = 0;
    size_t n_digits = space ? n - (size_t)(space - line) - 1 : 0;
    bool good = n_digits > 0 && n_digits <= 9;
    for (size_t i = 0; good && i < n_digits; i++) {
        good = space[1 + i] >= '0' && space[1 + i] <= '9';
        id = id * 10 + (space[1 + i] - '0');
    }
    raw->n = letters->n = 0;
    if (!good || !base64_decode(line, (size_t)(space - line), raw)) {
        MN_FAIL(MN_E_FORMAT, "%s: line %zu is not base64, one space and a rank", what, number);
    }
    MN_TRY(bytes_status(raw));
    bytes_to_letters(letters, raw->data, raw->n);
    MN_TRY(bytes_status(letters));
    return vocab_put(&t->pieces, id, letters->data, letters->n, 0, what);
}

static mn_status read_tiktoken_lines(tokenizer *t, const char *data, size_t n, bytes *raw, bytes *letters,
                                     const char *what) {
    size_t number = 1;
    for (const char *line = data, *end = data + n; line < end; number++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        size_t length = (size_t)(stop - line);
        if (length && line[length - 1] == '\r') length--;
        if (length) MN_TRY(read_tiktoken_line(t, line, length, number, raw, letters, what));
        line = stop + 1;
    }
    if (t->pieces.n == 0) MN_FAIL(MN_E_FORMAT, "%s: no tokens", what);
    return MN_OK;
}

static mn_status put_special(tokenizer *t, int32_t id, const char *text, const char *what) {
    return tokenizer_put_added(t, id, text, strlen(text), ADDED_SPECIAL, what);
}

/* The 256 special tokens behind the 128,000 ranks of Llama 3 (names of Llama 3.1). */
static mn_status put_llama3_specials(tokenizer *t, const char *what) {
    static const char *const names[] = {"<|begin_of_text|>",
                                        "<|end_of_text|>",
                                        "<|reserved_special_token_0|>",
                                        "<|reserved_special_token_1|>",
                                        "<|finetune_right_pad_id|>",
                                        "<|reserved_special_token_2|>",
                                        "<|start_header_id|>",
                                        "<|end_header_id|>",
                                        "<|eom_id|>",
                                        "<|eot_id|>",
                                        "<|python_tag|>"};
    enum { N_NAMES = sizeof names / sizeof *names, N_SPECIALS = 256 };
    int32_t base = (int32_t)t->pieces.n;
    for (int32_t i = 0; i < N_SPECIALS; i++) {
        bytes name = {0};
        bytes_printf(&name, "<|reserved_special_token_%d|>", i - N_NAMES + 3);
        const char *text = i < N_NAMES ? names[i] : bytes_text(&name);
        mn_status status = bytes_status(&name);
        if (status == MN_OK) status = put_special(t, base + i, text, what);
        bytes_clear(&name);
        MN_TRY(status);
    }
    t->roles[TOKEN_BOS] = base;
    t->roles[TOKEN_EOS] = base + 1;
    t->roles[TOKEN_PAD] = base + 4;
    MN_TRY(id_row_put(&t->before, base, what));
    MN_TRY(id_row_put(&t->ends, base + 1, what));
    MN_TRY(id_row_put(&t->ends, base + 8, what));
    return id_row_put(&t->ends, base + 9, what);
}

static mn_status put_end_of_text(tokenizer *t, const char *what) {
    int32_t id = (int32_t)t->pieces.n;
    MN_TRY(put_special(t, id, "<|endoftext|>", what));
    t->roles[TOKEN_BOS] = t->roles[TOKEN_EOS] = id;
    return id_row_put(&t->ends, id, what);
}

/* The file holds neither the pattern nor the special tokens: they follow from the number of ranks. */
static mn_status put_tiktoken_kind(tokenizer *t, const char *what) {
    switch (t->pieces.n) {
    case 50256:
    case 50257: /* GPT-2; Whisper's multilingual variant */
        MN_TRY(put_end_of_text(t, what));
        return pretokenizer_add_scan(&t->pre, SCAN_GPT2, what);
    case 151643: /* Qwen */ MN_TRY(put_end_of_text(t, what)); return pretokenizer_add_scan(&t->pre, SCAN_QWEN2, what);
    case 128000: MN_TRY(put_llama3_specials(t, what)); break;
    default: break;
    }
    return pretokenizer_add_scan(&t->pre, SCAN_LLAMA3, what);
}

mn_status tokenizer_read_tiktoken(tokenizer *t, const char *data, size_t n, const char *what) {
    bytes raw = {0}, letters = {0};
    mn_status status = read_tiktoken_lines(t, data, n, &raw, &letters, what);
    bytes_clear(&raw);
    bytes_clear(&letters);
    MN_TRY(status);
    MN_TRY(put_tiktoken_kind(t, what));
    t->whole_words = true;
    uint32_t *rank = mem_alloc(t->pieces.n, sizeof *rank);
    if (!rank) return MN_E_NOMEM;
    for (uint32_t i = 0; i < t->pieces.n; i++) rank[i] = i;
    status = merge_table_from_ranks(&t->merges, &t->virtual_symbols, &t->pieces, rank, what);
    mem_free(rank);
    return status == MN_OK ? tokenizer_put_byte_level(t, what) : status;
}

/* ---- vocab.json and merges.txt ---- */

static mn_status read_merge_lines(tokenizer *t, const char *merges, size_t n, const char *what) {
    size_t n_lines = 1;
    for (size_t i = 0; i < n; i++) n_lines += merges[i] == '\n';
    MN_TRY(merge_table_reserve(&t->merges, n_lines));
    uint32_t rank = 0;
    bool first = true;
    for (const char *line = merges, *end = merges + n; line < end; first = false) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        size_t length = (size_t)(stop - line);
        if (length && line[length - 1] == '\r') length--;
        bool comment = first && length >= 8 && memcmp(line, "#version", 8) == 0;
        const char *space = memchr(line, ' ', length);
        size_t n_left = space ? (size_t)(space - line) : 0;
        if (length && !comment) {
            if (!space)
                MN_FAIL(MN_E_FORMAT, "%s: merge %" PRIu32 " must be two tokens with one space between", what, rank);
            MN_TRY(tokenizer_put_merge(t, line, n_left, space + 1, length - n_left - 1, rank++, what));
        }
        line = stop + 1;
    }
    return MN_OK;
}

mn_status tokenizer_read_vocab_merges(tokenizer *t, const json *vocabulary, const char *merges, size_t n,
                                      const char *what) {
    if (vocabulary->kind != JSON_OBJECT) MN_FAIL(MN_E_FORMAT, "%s: vocab.json is not an object", what);
    for (size_t i = 0; i < vocabulary->n; i++) {
        const json_member *m = &vocabulary->members[i];
        if (m->value.kind != JSON_INT)
            MN_FAIL(MN_E_FORMAT, "%s: the id of token '%.60s' is no whole number", what, m->key);
        MN_TRY(vocab_put(&t->pieces, m->value.integer, m->key, m->key_n, 0, what));
    }
    MN_TRY(read_merge_lines(t, merges, n, what));
    MN_TRY(pretokenizer_add_scan(&t->pre, SCAN_GPT2, what));
    int32_t end = vocab_find(&t->pieces, "<|endoftext|>", 13);
    if (end != VOCAB_NONE) {
        MN_TRY(put_special(t, end, "<|endoftext|>", what));
        t->roles[TOKEN_BOS] = t->roles[TOKEN_EOS] = t->roles[TOKEN_UNK] = end;
        MN_TRY(id_row_put(&t->ends, end, what));
    }
    return tokenizer_put_byte_level(t, what);
}

/* added_tokens.json: text to id. */
static mn_status read_added_file(tokenizer *t, const json *root, const char *what) {
    for (size_t i = 0; root->kind == JSON_OBJECT && i < root->n; i++) {
        const json_member *m = &root->members[i];
        if (m->value.kind != JSON_INT)
            MN_FAIL(MN_E_FORMAT, "%s: the id of token '%.60s' is no whole number", what, m->key);
        MN_TRY(tokenizer_put_added(t, m->value.integer, m->key, m->key_n, 0, what));
    }
    return MN_OK;
}

/* ---- files ---- */

typedef mn_status (*json_reader)(tokenizer *t, const json *root, const char *what);

static mn_status read_json_file(tokenizer *t, const char *path, json_reader read) {
    json_doc *doc;
    MN_TRY(json_open(&doc, path, JSON_PYTHON, TOKENIZER_FILE));
    mn_status status = read(t, json_root(doc), path);
    json_close(&doc);
    return status;
}

/* folder/name when there is such a file, else an empty path. */
static mn_status find_beside(const char *folder, const char *name, bytes *path) {
    MN_TRY(path_join(path, folder, name));
    if (!file_is_there(path->data)) bytes_clear(path);
    return MN_OK;
}

/* Reads folder/name if it exists; *found: whether it does. */
static mn_status read_json_beside(tokenizer *t, const char *folder, const char *name, json_reader read, bool *found) {
    bytes path = {0};
    mn_status status = find_beside(folder, name, &path);
    *found = status == MN_OK && path.n;
    if (*found) status = read_json_file(t, path.data, read);
    bytes_clear(&path);
    return status;
}

static mn_status read_side_files(tokenizer *t, const char *folder) {
    bool found;
    MN_TRY(read_json_beside(t, folder, "tokenizer_config.json", tokenizer_read_config, &found));
    if (!found) MN_TRY(read_json_beside(t, folder, "special_tokens_map.json", tokenizer_read_config, &found));
    bytes path = {0}, text = {0};
    mn_status status = find_beside(folder, "chat_template.jinja", &path);
    if (status == MN_OK && path.n) {
        status = file_read(&text, path.data, TOKENIZER_FILE);
        if (status == MN_OK && utf8_valid_prefix(text.data, text.n) < text.n) {
            status = status_fail(MN_E_FORMAT, "%s: the chat template is not UTF-8", path.data);
        }
        if (status == MN_OK) status = tokenizer_put_template(t, "default", 7, text.data, text.n);
    }
    bytes_clear(&path);
    bytes_clear(&text);
    return status;
}

static mn_status read_pair(tokenizer *t, const char *folder, const char *vocabulary_path, const char *merges_path) {
    json_doc *doc;
    bytes merges = {0};
    bool found;
    MN_TRY(json_open(&doc, vocabulary_path, JSON_PYTHON, TOKENIZER_FILE));
    mn_status status = file_read(&merges, merges_path, TOKENIZER_FILE);
    if (status == MN_OK && utf8_valid_prefix(merges.data, merges.n) < merges.n)
        status = status_fail(MN_E_FORMAT, "%s: not UTF-8", merges_path);
    if (status == MN_OK) status = tokenizer_read_vocab_merges(t, json_root(doc), merges.data, merges.n, merges_path);
    if (status == MN_OK) status = read_json_beside(t, folder, "added_tokens.json", read_added_file, &found);
    bytes_clear(&merges);
    json_close(&doc);
    return status;
}

static mn_status read_text(tokenizer *t, const char *text, size_t n, const char *what, json_reader read) {
    json_doc *doc;
    MN_TRY(json_parse(&doc, text, n, JSON_PYTHON, what));
    mn_status status = read(t, json_root(doc), what);
    json_close(&doc);
    return status;
}

static mn_status take_gguf(tokenizer *t, gguf *file) {
    mn_status status = tokenizer_read_gguf(t, file);
    gguf_close(&file);
    return status;
}

mn_status tokenizer_read_bytes(tokenizer *t, const void *data, size_t n, const char *what) {
    const char *text = data;
    if (n == 0) MN_FAIL(MN_E_FORMAT, "'%s' is empty", what);
    if (n > TOKENIZER_FILE)
        MN_FAIL(MN_E_FORMAT, "'%s' has %zu bytes, at most %d are read as a tokenizer", what, n, TOKENIZER_FILE);
    if (n >= 4 && memcmp(data, "GGUF", 4) == 0) {
        gguf *file;
        MN_TRY(gguf_open_memory(&file, data, n, what));
        return take_gguf(t, file);
    }
    if (memchr("{ \t\r\xEF", text[0], 5)) return read_text(t, text, n, what, tokenizer_read_json);
    if (text[0] == '\n') return tokenizer_read_sentencepiece(t, data, n, what); /* the tag of field 1 of a ModelProto */
    return tokenizer_read_tiktoken(t, text, n, what);
}

static mn_status read_file(tokenizer *t, const char *path) {
    file_map map;
    MN_TRY(file_map_open(&map, path));
    mn_status status;
    if (map.n >= 4 && memcmp(map.data, "GGUF", 4) == 0) { /* by its path: it may be the first of several parts */
        gguf *file;
        status = gguf_open(&file, path);
        if (status == MN_OK) status = take_gguf(t, file);
    } else {
        status = tokenizer_read_bytes(t, map.data, map.n, path);
    }
    file_map_close(&map);
    return status;
}

static mn_status read_folder(tokenizer *t, const char *folder) {
    static const char *const files[] = {"tokenizer.json", "tokenizer.model"};
    bytes path = {0}, other = {0};
    mn_status status = MN_OK;
    for (int i = 0; i < 2 && status == MN_OK && path.n == 0; i++) status = find_beside(folder, files[i], &path);
    if (status == MN_OK && path.n) {
        status = read_file(t, path.data);
    } else if (status == MN_OK) {
        status = find_beside(folder, "vocab.json", &path);
        if (status == MN_OK) status = find_beside(folder, "merges.txt", &other);
        if (status == MN_OK && path.n && other.n) {
            status = read_pair(t, folder, path.data, other.data);
        } else if (status == MN_OK) {
            status = status_fail(
                MN_E_NOT_FOUND,
                "'%s' holds no tokenizer: neither tokenizer.json nor tokenizer.model nor vocab.json with merges.txt",
                folder);
        }
    }
    bytes_clear(&path);
    bytes_clear(&other);
    return status == MN_OK ? read_side_files(t, folder) : status;
}

/* A tokenizer.json or tokenizer.model by its own path has the same files beside it as in its folder. */
static mn_status read_path(tokenizer *t, const char *path) {
    if (file_is_directory(path)) return read_folder(t, path);
    MN_TRY(read_file(t, path));
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (strcmp(name, "tokenizer.json") != 0 && strcmp(name, "tokenizer.model") != 0) return MN_OK;
    bytes folder = {0};
    bytes_append(&folder, slash ? path : ".", slash ? (size_t)(slash - path) + 1 : 1);
    const char *text = bytes_text(&folder);
    mn_status status = bytes_status(&folder);
    if (status == MN_OK) status = read_side_files(t, text);
    bytes_clear(&folder);
    return status;
}

static mn_status finish(tokenizer **out, tokenizer *t, mn_status status, const char *what) {
    if (status == MN_OK) status = tokenizer_finish(t, what);
    if (status != MN_OK) tokenizer_close(&t);
    *out = t;
    return status;
}

mn_status tokenizer_open(tokenizer **out, const char *path) {
    tokenizer *t;
    *out = NULL;
    MN_TRY(tokenizer_new(&t, NULL));
    return finish(out, t, read_path(t, path), path);
}

mn_status tokenizer_from_gguf(tokenizer **out, const gguf *file) {
    tokenizer *t;
    *out = NULL;
    MN_TRY(tokenizer_new(&t, NULL));
    return finish(out, t, tokenizer_read_gguf(t, file), gguf_path(file));
}

mn_status tokenizer_from_memory(tokenizer **out, const char *text, size_t n, const char *config, size_t n_config) {
    tokenizer *t;
    *out = NULL;
    MN_TRY(tokenizer_new(&t, NULL));
    mn_status status = read_text(t, text, n, "tokenizer.json", tokenizer_read_json);
    if (status == MN_OK && config)
        status = read_text(t, config, n_config, "tokenizer_config.json", tokenizer_read_config);
    return finish(out, t, status, "tokenizer.json");
}
