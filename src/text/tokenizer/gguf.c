/* GGUF metadata: the kinds gpt2 (byte-level BPE with a named pre-tokenizer) and llama (SentencePiece BPE by scores).
 * SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/build.h"

#include <inttypes.h>
#include <string.h>

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

#define KEY(name) "tokenizer.ggml." name

typedef struct source {
    tokenizer *t;
    const gguf *file;
    const char *what;
} source;

static bool is_text(gguf_text text, const char *expected) {
    return text.n == strlen(expected) && memcmp(text.text, expected, text.n) == 0;
}

/* ---- tokens ---- */

/* A number array as long as the tokens, or NULL when the key is absent. */
static mn_status find_numbers(const source *s, const char *key, size_t n, const gguf_array **out) {
    *out = NULL;
    if (!gguf_has(s->file, key)) return MN_OK;
    const gguf_array *array = gguf_array_find(s->file, key);
    if (!array || gguf_array_is_text(array) || gguf_array_n(array) != n) {
        MN_FAIL(MN_E_FORMAT, "%s: %s must be a list of %zu numbers, one for each token", s->what, key, n);
    }
    *out = array;
    return MN_OK;
}

static mn_status put_token(const source *s, size_t id, gguf_text text, double type) {
    tokenizer *t = s->t;
    if (!(type >= TYPE_NORMAL && type <= TYPE_BYTE))
        MN_FAIL(MN_E_FORMAT, "%s: token %zu has the type %g, allowed: 1 to 6", s->what, id, type);
    if (utf8_valid_prefix(text.text, text.n) != text.n) MN_FAIL(MN_E_FORMAT, "%s: token %zu is not UTF-8", s->what, id);
    int kind = (int)type;
    bool plain = kind == TYPE_NORMAL || kind == TYPE_UNUSED, special = kind == TYPE_CONTROL || kind == TYPE_UNKNOWN;
    MN_TRY(vocab_put(&t->pieces, (int64_t)id, text.text, text.n, plain ? 0 : PIECE_OUTSIDE, s->what));
    if (kind == TYPE_BYTE) t->byte_fallback = true;
    if (!(special || kind == TYPE_USER_DEFINED) || text.n == 0) return MN_OK;
    return tokenizer_put_added(t, (int64_t)id, text.text, text.n, special ? ADDED_SPECIAL : 0, s->what);
}

static mn_status read_tokens(const source *s) {
    const gguf_array *tokens = gguf_array_find(s->file, KEY("tokens")), *types;
    if (!tokens || !gguf_array_is_text(tokens) || gguf_array_n(tokens) == 0) {
        MN_FAIL(MN_E_FORMAT, "%s: " KEY("tokens") " must be a list of texts", s->what);
    }
    size_t n = gguf_array_n(tokens);
    MN_TRY(find_numbers(s, KEY("token_type"), n, &types));
    for (size_t i = 0; i < n; i++) {
        MN_TRY(put_token(s, i, gguf_array_text_at(tokens, i), types ? gguf_array_number_at(types, i) : TYPE_NORMAL));
    }
    return MN_OK;
}

static mn_status read_roles(const source *s) {
    static const struct {
        const char *key;
        token_role role;
    } keys[] = {{KEY("bos_token_id"), TOKEN_BOS},       {KEY("eos_token_id"), TOKEN_EOS},
                {KEY("unknown_token_id"), TOKEN_UNK},   {KEY("padding_token_id"), TOKEN_PAD},
                {KEY("seperator_token_id"), TOKEN_SEP}, {KEY("cls_token_id"), TOKEN_CLS},
                {KEY("mask_token_id"), TOKEN_MASK}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t id = VOCAB_NONE;
        MN_TRY(gguf_int(s->file, keys[i].key, 0, (int64_t)s->t->pieces.n - 1, &id));
        s->t->roles[keys[i].role] = (int32_t)id;
    }
    return MN_OK;
}

static bool in_row(const id_row *row, int32_t id) {
    for (size_t i = 0; i < row->n; i++) {
        if (row->ids[i] == id) return true;
    }
    return false;
}

/* eos, eot, and control tokens with the usual texts of an end of turn. */
static mn_status read_ends(const source *s) {
    static const char *const end_texts[] = {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>"};
    tokenizer *t = s->t;
    int64_t eot = VOCAB_NONE;
    MN_TRY(gguf_int(s->file, KEY("eot_token_id"), 0, (int64_t)t->pieces.n - 1, &eot));
    int32_t ends[2 + sizeof end_texts / sizeof *end_texts] = {t->roles[TOKEN_EOS], (int32_t)eot};
    size_t n = 2;
    for (size_t i = 0; i < sizeof end_texts / sizeof *end_texts; i++) {
        int32_t id = tokenizer_find(t, end_texts[i]);
        if (tokenizer_is_special(t, id)) ends[n++] = id;
    }
    for (size_t i = 0; i < n; i++) {
        if (ends[i] != VOCAB_NONE && !in_row(&t->ends, ends[i])) MN_TRY(id_row_put(&t->ends, ends[i], s->what));
    }
    return MN_OK;
}

static mn_status read_around(const source *s, bool add_bos) {
    bool add_eos = false;
    tokenizer *t = s->t;
    MN_TRY(gguf_bool(s->file, KEY("add_bos_token"), &add_bos));
    MN_TRY(gguf_bool(s->file, KEY("add_eos_token"), &add_eos));
    if (add_bos && t->roles[TOKEN_BOS] != VOCAB_NONE) MN_TRY(id_row_put(&t->before, t->roles[TOKEN_BOS], s->what));
    if (add_eos && t->roles[TOKEN_EOS] != VOCAB_NONE) MN_TRY(id_row_put(&t->after, t->roles[TOKEN_EOS], s->what));
    return MN_OK;
}

static mn_status read_templates(const source *s) {
    static const char prefix[] = "tokenizer.chat_template";
    for (size_t i = 0; i < gguf_key_count(s->file); i++) {
        const char *key = gguf_key(s->file, i);
        if (strncmp(key, prefix, sizeof prefix - 1) != 0) continue;
        const char *name = key + sizeof prefix - 1;
        if (*name && (*name != '.' || !name[1])) continue;
        gguf_text text = {0};
        MN_TRY(gguf_string(s->file, key, &text));
        if (utf8_valid_prefix(text.text, text.n) != text.n) MN_FAIL(MN_E_FORMAT, "%s: %s is not UTF-8", s->what, key);
        name = *name ? name + 1 : "default";
        MN_TRY(tokenizer_put_template(s->t, name, strlen(name), text.text, text.n));
    }
    return MN_OK;
}

/* ---- gpt2 ---- */

typedef struct pre_name {
    const char *name;
    pre_scanner scanner;
    bool whole_words, add_bos, nfc;
} pre_name;

static const pre_name pre_names[] = {
    {"gpt-2", SCAN_GPT2, false, false, false},
    {"phi-2", SCAN_GPT2, false, false, false},
    {"mpt", SCAN_GPT2, false, false, false},
    {"olmo", SCAN_GPT2, false, false, false},
    {"jais", SCAN_GPT2, false, false, false},
    {"smollm", SCAN_DIGITS_GPT2, false, false, false},
    {"starcoder", SCAN_DIGITS_GPT2, false, false, false},
    {"refact", SCAN_DIGITS_GPT2, false, false, false},
    {"command-r", SCAN_DIGITS_GPT2, false, false, false},
    {"codeshell", SCAN_DIGITS_GPT2, false, false, false},
    {"exaone", SCAN_DIGITS_GPT2, false, false, false},
    {"llama-bpe", SCAN_LLAMA3, true, true, false},
    {"llama3", SCAN_LLAMA3, true, true, false},
    {"llama-v3", SCAN_LLAMA3, true, true, false},
    {"falcon3", SCAN_LLAMA3, true, true, false},
    {"pixtral", SCAN_LLAMA3, true, true, false},
    {"lfm2", SCAN_LLAMA3, true, true, false},
    {"dbrx", SCAN_LLAMA3, false, false, false},
    {"smaug-bpe", SCAN_LLAMA3, false, false, false},
    {"qwen2", SCAN_QWEN2, false, false, true},
    {"deepseek-r1-qwen", SCAN_QWEN2, false, false, true},
    {"stablelm2", SCAN_QWEN2, false, false, false},
};

/* The steps for files whose converter did not know the pre-tokenizer. */
static mn_status put_default_steps(const source *s) {
    static const char *const patterns[] = {"[\\p{P}\\$\\+<=>\\^~\\|]+", PATTERN_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"};
    s->t->warning =
        "the file does not name its pre-tokenizer: text is split by a default that is probably not the model's";
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        MN_TRY(pretokenizer_add_regex(&s->t->pre, patterns[i], SPLIT_ISOLATED, s->what));
    }
    return MN_OK;
}

static mn_status read_pre(const source *s, bool *add_bos) {
    gguf_text name = {0};
    MN_TRY(gguf_string(s->file, KEY("pre"), &name));
    if (!name.text || is_text(name, "default")) return put_default_steps(s);
    for (size_t i = 0; i < sizeof pre_names / sizeof *pre_names; i++) {
        const pre_name *row = &pre_names[i];
        if (!is_text(name, row->name)) continue;
        s->t->whole_words = row->whole_words;
        *add_bos = row->add_bos;
        if (row->nfc)
            MN_TRY(normalizer_add(&s->t->normalizer, &(norm_step){.kind = NORM_FORM, .form = UNICODE_NFC}, s->what));
        return pretokenizer_add_scan(&s->t->pre, row->scanner, s->what);
    }
    MN_FAIL(MN_E_UNSUPPORTED, "%s: the pre-tokenizer '%.*s' is not read here", s->what,
            (int)utf8_valid_prefix(name.text, name.n < 60 ? name.n : 60), name.text);
}

static mn_status read_merges(const source *s) {
    const gguf_array *merges = gguf_array_find(s->file, KEY("merges"));
    if (!merges || !gguf_array_is_text(merges))
        MN_FAIL(MN_E_FORMAT, "%s: " KEY("merges") " must be a list of texts", s->what);
    size_t n = gguf_array_n(merges);
    if (n >= UINT32_MAX / 2) MN_FAIL(MN_E_FORMAT, "%s: %zu merges are too many", s->what, n);
    MN_TRY(merge_table_reserve(&s->t->merges, n));
    for (size_t i = 0; i < n; i++) {
        gguf_text text = gguf_array_text_at(merges, i);
        const char *space = text.n ? memchr(text.text + 1, ' ', text.n - 1) : NULL;
        if (!space) MN_FAIL(MN_E_FORMAT, "%s: merge %zu must be two tokens with one space between", s->what, i);
        size_t n_left = (size_t)(space - text.text);
        MN_TRY(tokenizer_put_merge(s->t, text.text, n_left, space + 1, text.n - n_left - 1, (uint32_t)i, s->what));
    }
    return MN_OK;
}

static mn_status read_gpt2(const source *s) {
    bool add_bos = false;
    MN_TRY(read_pre(s, &add_bos));
    MN_TRY(read_merges(s));
    MN_TRY(read_around(s, add_bos));
    return tokenizer_put_byte_level(s->t, s->what);
}

/* ---- llama ---- */

static mn_status read_llama(const source *s) {
    tokenizer *t = s->t;
    const gguf_array *scores;
    bool prefix = true;
    MN_TRY(find_numbers(s, KEY("scores"), t->pieces.n, &scores));
    if (!scores) MN_FAIL(MN_E_FORMAT, "%s: " KEY("scores") " is missing", s->what);
    MN_TRY(gguf_bool(s->file, KEY("add_space_prefix"), &prefix));
    float *score = mem_alloc(t->pieces.n, sizeof *score);
    if (!score) return MN_E_NOMEM;
    for (size_t i = 0; i < t->pieces.n; i++) score[i] = (float)gguf_array_number_at(scores, i);
    mn_status status = merge_table_from_scores(&t->merges, &t->virtual_symbols, &t->pieces, score, s->what);
    mem_free(score);
    MN_TRY(status);
    t->unknown = t->roles[TOKEN_UNK];
    MN_TRY(read_around(s, true));
    return tokenizer_put_marks(t, prefix, false, s->what);
}

mn_status tokenizer_read_gguf(tokenizer *t, const gguf *file) {
    source s = {t, file, gguf_path(file)};
    gguf_text model = {0};
    MN_TRY(gguf_string(file, KEY("model"), &model));
    if (!model.text) MN_FAIL(MN_E_FORMAT, "%s: the file holds no tokenizer (" KEY("model") " is missing)", s.what);
    bool byte_level = is_text(model, "gpt2");
    if (!byte_level && !is_text(model, "llama")) {
        MN_FAIL(MN_E_UNSUPPORTED, "%s: the tokenizer model '%.*s' is not read here, allowed: gpt2, llama", s.what,
                (int)utf8_valid_prefix(model.text, model.n < 60 ? model.n : 60), model.text);
    }
    MN_TRY(read_tokens(&s));
    MN_TRY(read_roles(&s));
    MN_TRY(byte_level ? read_gpt2(&s) : read_llama(&s));
    MN_TRY(read_ends(&s));
    return read_templates(&s);
}
