/* tokenizer_config.json and special_tokens_map.json: roles of tokens, added tokens, chat templates, clean-up.
 * SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/build.h"

#include <string.h>

/* A token as a string or as an object with "content"; NULL when it is neither. */
static const json *token_text(const json *value) {
    if (value && value->kind == JSON_OBJECT) value = json_get(value, "content");
    return value && value->kind == JSON_STRING ? value : NULL;
}

mn_status tokenizer_read_flags(const json *entry, const char *what, unsigned *out) {
    static const struct {
        const char *key;
        unsigned flag;
    } flags[] = {{"single_word", ADDED_SINGLE_WORD},
                 {"lstrip", ADDED_LSTRIP},
                 {"rstrip", ADDED_RSTRIP},
                 {"normalized", ADDED_NORMALIZED},
                 {"special", ADDED_SPECIAL}};
    *out = 0;
    for (size_t k = 0; k < sizeof flags / sizeof *flags; k++) {
        bool on = false;
        MN_TRY(json_bool(what, entry, flags[k].key, &on));
        if (on) *out |= flags[k].flag;
    }
    return MN_OK;
}

static mn_status read_added(tokenizer *t, const json *decoder, const char *what) {
    if (!decoder || decoder->kind == JSON_NULL) return MN_OK;
    if (decoder->kind != JSON_OBJECT) MN_FAIL(MN_E_FORMAT, "%s: 'added_tokens_decoder' is no object", what);
    for (size_t i = 0; i < decoder->n; i++) {
        const json_member *m = &decoder->members[i];
        int64_t id = 0;
        for (size_t k = 0; k < m->key_n; k++) {
            if (m->key[k] < '0' || m->key[k] > '9' || m->key_n > 7)
                MN_FAIL(MN_E_FORMAT, "%s: the key '%.40s' of added_tokens_decoder is no token id", what, m->key);
            id = id * 10 + (m->key[k] - '0');
        }
        const json *text = token_text(&m->value);
        if (!text) MN_FAIL(MN_E_FORMAT, "%s: the added token %s has no content", what, m->key);
        unsigned flags;
        MN_TRY(tokenizer_read_flags(&m->value, what, &flags));
        MN_TRY(tokenizer_put_added(t, id, text->string, text->n, flags, what));
    }
    return MN_OK;
}

/* A special token that is no added token yet becomes one, as Transformers does; one that is no token at all is left
 * out. */
static mn_status make_special(tokenizer *t, const json *text, const char *what, int32_t *id) {
    *id = vocab_find(&t->pieces, text->string, text->n);
    if (*id == VOCAB_NONE || (t->pieces.pieces[*id].flags & PIECE_ADDED)) return MN_OK;
    return tokenizer_put_added(t, *id, text->string, text->n, ADDED_SPECIAL, what);
}

/* Special tokens without a role: a list, or an object in which they have names. */
static mn_status read_more_special(tokenizer *t, const json *root, const char *what) {
    static const char *const keys[] = {"additional_special_tokens", "extra_special_tokens",
                                       "model_specific_special_tokens"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const json *more = json_get(root, keys[k]);
        bool is_list = more && more->kind == JSON_ARRAY;
        size_t n = is_list || (more && more->kind == JSON_OBJECT) ? more->n : 0;
        for (size_t i = 0; i < n; i++) {
            const json *text = token_text(is_list ? &more->items[i] : &more->members[i].value);
            int32_t id;
            if (text) MN_TRY(make_special(t, text, what, &id));
        }
    }
    return MN_OK;
}

static mn_status read_roles(tokenizer *t, const json *root, const char *what) {
    for (int i = 0; i < N_TOKEN_ROLES; i++) {
        const json *text = token_text(json_get(root, token_role_names[i]));
        if (text) MN_TRY(make_special(t, text, what, &t->roles[i]));
    }
    MN_TRY(read_more_special(t, root, what));
    t->ends.n = 0;
    return t->roles[TOKEN_EOS] == VOCAB_NONE ? MN_OK : id_row_put(&t->ends, t->roles[TOKEN_EOS], what);
}

static mn_status read_templates(tokenizer *t, const json *value, const char *what) {
    if (!value || value->kind == JSON_NULL) return MN_OK;
    if (value->kind == JSON_STRING) return tokenizer_put_template(t, "default", 7, value->string, value->n);
    if (value->kind != JSON_ARRAY)
        MN_FAIL(MN_E_FORMAT, "%s: chat_template must be a text or a list of {name, template}", what);
    for (size_t i = 0; i < value->n; i++) {
        const json *name = json_get(&value->items[i], "name"), *text = json_get(&value->items[i], "template");
        if (!name || name->kind != JSON_STRING || !text || text->kind != JSON_STRING) {
            MN_FAIL(MN_E_FORMAT, "%s: chat_template %zu must be an object with the texts 'name' and 'template'", what,
                    i);
        }
        MN_TRY(tokenizer_put_template(t, name->string, name->n, text->string, text->n));
    }
    return MN_OK;
}

/* These classes of Transformers replace the post-processor by one of their own when they are made. */
static bool rebuilds_template(const json *root) {
    static const char *const names[] = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"};
    const json *class_name = json_get(root, "tokenizer_class");
    for (size_t i = 0; class_name && class_name->kind == JSON_STRING && i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        if (strncmp(class_name->string, names[i], n) == 0 &&
            (!class_name->string[n] || strcmp(class_name->string + n, "Fast") == 0))
            return true;
    }
    return false;
}

static mn_status read_bos_eos(tokenizer *t, const json *root, const char *what) {
    bool bos = true, eos = false;
    MN_TRY(json_bool(what, root, "add_bos_token", &bos));
    MN_TRY(json_bool(what, root, "add_eos_token", &eos));
    if (!rebuilds_template(root)) return MN_OK;
    t->before.n = t->after.n = 0;
    if (bos && t->roles[TOKEN_BOS] != VOCAB_NONE) MN_TRY(id_row_put(&t->before, t->roles[TOKEN_BOS], what));
    if (eos && t->roles[TOKEN_EOS] != VOCAB_NONE) MN_TRY(id_row_put(&t->after, t->roles[TOKEN_EOS], what));
    return MN_OK;
}

mn_status tokenizer_read_config(tokenizer *t, const json *root, const char *what) {
    if (root->kind != JSON_OBJECT) MN_FAIL(MN_E_FORMAT, "%s: not an object", what);
    MN_TRY(read_added(t, json_get(root, "added_tokens_decoder"), what));
    MN_TRY(read_roles(t, root, what));
    MN_TRY(read_bos_eos(t, root, what));
    MN_TRY(read_templates(t, json_get(root, "chat_template"), what));
    bool clean_up = false;
    MN_TRY(json_bool(what, root, "clean_up_tokenization_spaces", &clean_up));
    return clean_up ? detokenizer_add_clean_up(&t->decoder, what) : MN_OK;
}
