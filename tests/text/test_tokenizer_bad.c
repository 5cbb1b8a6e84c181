/* Damaged and hostile tokenizer files: each is refused with a message, none crashes; GGUF metadata made by the test.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/tokens.h"
#include "support/support.h"

#include "base/utf8.h"
#include "text/tokenizer/build.h"

/* ---- tokenizer.json ---- */

#define MODEL_OF(vocabulary, merges) "{\"model\":{\"type\":\"BPE\",\"vocab\":" vocabulary ",\"merges\":" merges "}"
#define GOOD_MODEL                   MODEL_OF("{\"a\":0,\"b\":1,\"ab\":2}", "[\"a b\"]")

static const struct {
    const char *json, *message;
} bad_json[] = {
    {"[]", "tokenizer.json: not an object"},
    {"{}", "'model' is missing"},
    {"{\"model\":{\"type\":\"Unigram\"}}", "the model type 'Unigram' is not read here, allowed: BPE"},
    {"{\"model\":{\"type\":\"BPE\",\"merges\":[]}}", "no object 'vocab'"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", "no list 'merges'"},
    {MODEL_OF("{\"a\":-1}", "[]") "}", "token 'a' has the id -1, allowed: 0 to 2097151"},
    {MODEL_OF("{\"a\":99999999999}", "[]") "}", "has the id 99999999999"},
    {MODEL_OF("{\"a\":0.5}", "[]") "}", "the id of token 'a' is no whole number"},
    {MODEL_OF("{\"a\":0,\"b\":0}", "[]") "}", "the id 0 is given to 'a' and to 'b'"},
    {MODEL_OF("{\"a\":0,\"a\":1}", "[]") "}", "the token 'a' has two ids, 0 and 1"},
    {MODEL_OF("[]", "[]") "}", "no object 'vocab'"},
    {MODEL_OF("{\"a\":0}", "[\"a c\"]") "}", "merge 0 ('a' with 'c'): the right part is no token"},
    {MODEL_OF("{\"a\":0,\"b\":1}", "[\"a b\"]") "}", "the union is no token"},
    {MODEL_OF("{\"a\":0}", "[\"a  a\"]") "}", "merge 0 must be two tokens"},
    {MODEL_OF("{\"a\":0}", "[[\"a\"]]") "}", "merge 0 must be two tokens"},
    {MODEL_OF("{\"a\":0}", "[7]") "}", "merge 0 must be two tokens"},
    {MODEL_OF("{\"a\":0}", "{\"a\":1}") "}", "no list 'merges'"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"x\"}}",
     "unk_token is 'x', which is no token"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "dropout 0.1"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}",
     "end_of_word_suffix is '</w>'"},
    {GOOD_MODEL ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}", "the id 1 is given to 'b' and to 'x'"},
    {GOOD_MODEL ",\"added_tokens\":[{\"id\":7,\"content\":\"a\"}]}", "the token 'a' has two ids, 0 and 7"},
    {GOOD_MODEL ",\"added_tokens\":[{\"id\":7}]}", "'content' is missing"},
    {GOOD_MODEL ",\"added_tokens\":[{\"id\":-7,\"content\":\"x\"}]}", "id is -7"},
    {GOOD_MODEL ",\"added_tokens\":[{\"id\":7,\"content\":3}]}", "content is 3, allowed: a string"},
    {GOOD_MODEL ",\"added_tokens\":{}}", "'added_tokens' is no list"},
    {GOOD_MODEL ",\"normalizer\":{\"type\":\"Foo\"}}",
     "normalizer type 'Foo' is not read here, allowed: Sequence, NFC"},
    {GOOD_MODEL ",\"normalizer\":{}}", "a normalizer without a type"},
    {GOOD_MODEL ",\"normalizer\":{\"type\":\"Sequence\"}}", "without its list 'normalizers'"},
    {GOOD_MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":5,\"content\":\"\"}}", "a pattern must be"},
    {GOOD_MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}}}", "bad regular expression '('"},
    {GOOD_MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Odd\"}}",
     "behavior is 'Odd'"},
    {GOOD_MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}}",
     "replacement is 'ab', allowed: one character"},
    {GOOD_MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"odd\"}}", "prepend_scheme is 'odd'"},
    {GOOD_MODEL
     ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]}}",
     "after ByteLevel"},
    {GOOD_MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}}",
     "special token 'x', but its ids"},
    {GOOD_MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}}", "the text 0 times"},
    {GOOD_MODEL ",\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",9],\"sep\":[\"a\",0]}}",
     "the id 9, which no token has"},
    {GOOD_MODEL ",\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",0]}}", "'sep' must be [text, id]"},
    {GOOD_MODEL ",\"decoder\":{\"type\":\"CTC\"}}", "decoder type 'CTC' is not read here"},
    {GOOD_MODEL ",\"decoder\":{\"type\":\"Strip\",\"content\":\"\"}}", "must be one character"},
    {GOOD_MODEL ",\"decoder\":{\"type\":\"Strip\",\"content\":\"a\",\"start\":-1}}", "start is -1"},
    {GOOD_MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteLevel\"}]}}",
     "after tokens have been joined"},
    {"{\"model\"", "':' was expected"},
};

static void damaged_tokenizer_json_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_json / sizeof *bad_json; i++) {
        tokenizer *t = NULL;
        mn_status status = tokenizer_from_memory(&t, bad_json[i].json, strlen(bad_json[i].json), NULL, 0);
        if (status == MN_OK) fail_msg("accepted: %s", bad_json[i].json);
        assert_true(status == MN_E_FORMAT || status == MN_E_UNSUPPORTED);
        if (!strstr(mn_last_error(), bad_json[i].message))
            fail_msg("'%s' lacks '%s'", mn_last_error(), bad_json[i].message);
        assert_null(t);
    }
    static const char *const configs[][2] = {
        {"{\"added_tokens_decoder\":{\"x\":{}}}", "'x' of added_tokens_decoder is no token id"},
        {"{\"added_tokens_decoder\":{\"3\":{}}}", "the added token 3 has no content"},
        {"{\"chat_template\":5}", "chat_template must be"},
        {"{\"chat_template\":[{\"name\":\"x\"}]}", "chat_template 0 must be"},
        {"{\"clean_up_tokenization_spaces\":\"yes\"}", "allowed: true or false"},
        {"[]", "tokenizer_config.json: not an object"},
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        tokenizer *t = NULL;
        assert_fails(
            MN_E_FORMAT, configs[i][1],
            tokenizer_from_memory(&t, GOOD_MODEL "}", sizeof GOOD_MODEL, configs[i][0], strlen(configs[i][0])));
    }
}

/* Nested sequences, long lists, and texts of exponential cost. */
static void excessive_files_and_texts_are_refused(void **state) {
    (void)state;
    tokenizer *t = NULL;
    bytes text = {0};
    bytes_append_text(&text, GOOD_MODEL ",\"normalizer\":");
    for (int i = 0; i < 5000; i++) bytes_append_text(&text, "{\"type\":\"Sequence\",\"normalizers\":[");
    assert_fails(MN_E_FORMAT, "256 levels", tokenizer_from_memory(&t, text.data, text.n, NULL, 0));
    text.n = 0;
    bytes_append_text(&text, GOOD_MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}");
    for (int i = 0; i < 5000; i++) bytes_append_text(&text, ",{\"type\":\"NFC\"}");
    bytes_append_text(&text, "]}}");
    assert_fails(MN_E_FORMAT, "more than 32 normalizers", tokenizer_from_memory(&t, text.data, text.n, NULL, 0));
    bytes_clear(&text);
    static const char slow[] = GOOD_MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+$\"}}}";
    token_list ids = {0};
    char word[64];
    memset(word, 'a', sizeof word);
    word[63] = 'b';
    assert_ok(tokenizer_from_memory(&t, slow, sizeof slow - 1, NULL, 0));
    assert_fails(MN_E_FORMAT, "too costly for this text", tokenizer_encode(t, word, sizeof word, 0, &ids));
    assert_int_equal(ids.n, 0);
    token_list_clear(&ids);
    tokenizer_close(&t);
}

/* ---- random damage ---- */

/* Opens the bytes as a tokenizer and, if that succeeds, uses it. Any status is accepted; sanitizers report errors. */
static bool try_bytes(unicode_table *classes, const void *data, size_t n) {
    tokenizer *t = NULL;
    assert_ok(tokenizer_new(&t, classes));
    mn_status status = tokenizer_read_bytes(t, data, n, "damaged");
    if (status == MN_OK) status = tokenizer_finish(t, "damaged");
    if (status == MN_OK) {
        static const char text[] = "ab <s> b\xC3\xA9\xE6\x97\xA5 \n\t12 [X] \xE2\x96\x81";
        token_list ids = {0};
        bytes out = {0};
        if (tokenizer_encode(t, text, sizeof text - 1, 3, &ids) == MN_OK)
            assert_ok(tokenizer_decode(t, ids.ids, ids.n, 0, &out));
        assert_int_equal(utf8_valid_prefix(out.data, out.n), out.n);
        token_list_clear(&ids);
        bytes_clear(&out);
    } else {
        assert_true(strlen(mn_last_error()) > 10);
    }
    t->classes = NULL; /* the caller's */
    tokenizer_close(&t);
    return status == MN_OK;
}

static void damage(bytes *copy, const char *data, size_t n, uint64_t *seed) {
    static const char *const words[] = {"-1",   "99999999",         "null",  "{}",     "[]", "\"\"",
                                        "true", "\"\xE2\x96\x81\"", "1e999", "\\u0000"};
    copy->n = 0;
    bytes_append(copy, data, n);
    for (uint64_t k = test_random(seed) % 4 + 1; k > 0 && copy->n > 8; k--) {
        size_t at = test_random(seed) % (copy->n - 4), length = test_random(seed) % 12;
        if (at + length > copy->n) length = copy->n - at;
        switch (test_random(seed) % 5) {
        case 0: copy->data[at] = (char)test_random(seed); break;
        case 1:
            memmove(copy->data + at, copy->data + at + length, copy->n - at - length);
            copy->n -= length;
            break;
        case 2: copy->n = at; break;
        case 3: memmove(copy->data + at, copy->data + test_random(seed) % (copy->n - length + 1), length); break;
        default: {
            const char *word = words[test_random(seed) % 10];
            size_t n_word = strlen(word);
            if (at + n_word <= copy->n) memcpy(copy->data + at, word, n_word);
        }
        }
    }
}

static void mutate(const char *data, size_t n, int rounds) {
    uint64_t seed = n;
    int opened = 0;
    bytes copy = {0};
    unicode_table *classes;
    assert_ok(unicode_table_open(&classes));
    assert_true(try_bytes(classes, data, n));
    for (int i = 0; i < rounds; i++) {
        damage(&copy, data, n, &seed);
        opened += try_bytes(classes, copy.data, copy.n);
    }
    assert_true(opened < rounds);
    for (size_t cut = 0; cut < n; cut += n / 20 + 1) try_bytes(classes, data, cut);
    bytes_clear(&copy);
    unicode_table_close(&classes);
}

static void mutated_tokenizer_json_does_not_crash(void **state) {
    (void)state;
    static const char *const files[] = {"fuzz/corpus/tokenizer/metaspace.json",
                                        "fuzz/corpus/tokenizer/byte-level.json"};
    for (int i = 0; i < 2; i++) {
        char path[4096];
        bytes text = {0};
        snprintf(path, sizeof path, "%s/%s", TESTS_DIR, files[i]);
        assert_ok(file_read(&text, path, 1 << 20));
        mutate(text.data, text.n, 150);
        bytes_clear(&text);
    }
}

/* ---- SentencePiece ---- */

static void put_piece(bytes *out, const char *text, float score, char type) {
    size_t n = strlen(text);
    char head[] = {0x0A, (char)(n + 9), 0x0A, (char)n}, tail[] = {0x15, 0, 0, 0, 0, 0x18, type};
    memcpy(tail + 1, &score, 4);
    bytes_append(out, head, 4);
    bytes_append(out, text, n);
    bytes_append(out, tail, 7);
}

static void put_sentencepiece(bytes *out, bool plain) {
    put_piece(out, "<unk>", 0, 2);
    put_piece(out, "<s>", 0, 3);
    put_piece(out, "<0xC3>", 0, 6);
    put_piece(out, "\xE2\x96\x81", -9, 1);
    put_piece(out, "a", -8, 1);
    put_piece(out, "b", -7, 1);
    put_piece(out, "ab", -1, 1);
    put_piece(out,
              "\xE2\x96\x81"
              "ab",
              -2, 1);
    put_piece(out, "ba", -3, 1);
    put_piece(out, "[X]", 0, 4);
    put_piece(out, "xy", -4, 1); /* its letters are not pieces */
    put_piece(out, "\xE2\x96\x81\xE2\x96\x81", 0, 4);
    put_piece(out, "b a", 0, 4);                         /* is not met: spaces are marks */
    bytes_append(out, "\x12\x02\x18\x02", 4);            /* trainer: BPE */
    if (plain) bytes_append(out, "\x1A\x02\x20\x00", 4); /* normalizer: extra spaces stay */
}

static void sentencepiece_models_are_read_or_refused(void **state) {
    (void)state;
    bytes model = {0};
    tokenizer *t = NULL;
    put_sentencepiece(&model, true);
    assert_ok(tokenizer_new(&t, NULL));
    assert_ok(tokenizer_read_bytes(t, model.data, model.n, "model"));
    assert_ok(tokenizer_finish(t, "model"));
    static const struct {
        const char *text;
        int32_t ids[8];
        size_t n;
    } encoded[] = {
        {"abab[X]xyx", {7, 6, 9, 10, 0}, 5}, /* no bytes for x: unknown */
        {"[X]ab", {3, 9, 6}, 3},             /* user-defined pieces stand behind the mark of the text */
        {"a   b a", {3, 4, 11, 3, 5, 3, 4}, 7},
    };
    for (size_t i = 0; i < sizeof encoded / sizeof *encoded; i++) {
        token_list ids = {0};
        assert_ok(tokenizer_encode(t, encoded[i].text, strlen(encoded[i].text), 0, &ids));
        assert_int_equal(ids.n, encoded[i].n);
        assert_memory_equal(ids.ids, encoded[i].ids, ids.n * sizeof *ids.ids);
        token_list_clear(&ids);
    }
    bytes decoded = {0};
    assert_ok(tokenizer_decode(t, (const int32_t[]){3, 4, 11, 9}, 4, 0, &decoded));
    assert_string_equal(bytes_text(&decoded), "a  [X]");
    bytes_clear(&decoded);
    tokenizer_close(&t);
    mutate(model.data, model.n, 100);
    model.n = 0;
    put_sentencepiece(&model, false);
    assert_ok(tokenizer_new(&t, NULL));
    assert_fails(MN_E_UNSUPPORTED, "removes extra spaces: yes", tokenizer_read_bytes(t, model.data, model.n, "model"));
    tokenizer_close(&t);
    bytes_append(&model, "\x12\x03\xC0\x01\x01", 5); /* trainer: treat_whitespace_as_suffix */
    assert_ok(tokenizer_new(&t, NULL));
    assert_fails(MN_E_UNSUPPORTED, "spaces belong to the ends", tokenizer_read_bytes(t, model.data, model.n, "model"));
    tokenizer_close(&t);
    assert_ok(tokenizer_new(&t, NULL));
    assert_fails(MN_E_FORMAT, "cut off or damaged", tokenizer_read_bytes(t, model.data, 31, "model"));
    tokenizer_close(&t);
    bytes_clear(&model);
}

/* ---- GGUF ---- */

static void put_u32(bytes *out, uint32_t v) {
    bytes_append(out, &v, 4);
}
static void put_u64(bytes *out, uint64_t v) {
    bytes_append(out, &v, 8);
}

static void put_string(bytes *out, const char *text) {
    put_u64(out, strlen(text));
    bytes_append_text(out, text);
}

static void put_texts(bytes *out, const char *key, const char *const *texts, size_t n) {
    put_string(out, key);
    put_u32(out, 9); /* array of strings */
    put_u32(out, 8);
    put_u64(out, n);
    for (size_t i = 0; i < n; i++) put_string(out, texts[i]);
}

static void put_key_text(bytes *out, const char *key, const char *text) {
    put_string(out, key);
    put_u32(out, 8);
    put_string(out, text);
}

static void put_key_int(bytes *out, const char *key, uint32_t type, uint32_t value) {
    put_string(out, key);
    put_u32(out, type);
    bytes_append(out, &value, type == 7 ? 1 : 4);
}

static void put_types(bytes *out, const uint32_t *types, size_t n) {
    put_string(out, "tokenizer.ggml.token_type");
    put_u32(out, 9);
    put_u32(out, 5);
    put_u64(out, n);
    bytes_append(out, types, n * 4);
}

static void gguf_head(bytes *out, uint64_t n_keys) {
    out->n = 0;
    bytes_append(out, "GGUF", 4);
    put_u32(out, 3);
    put_u64(out, 0);
    put_u64(out, n_keys);
}

static tokenizer *open_gguf(const bytes *file) {
    gguf *g = NULL;
    tokenizer *t = NULL;
    assert_ok(gguf_open_memory(&g, file->data, file->n, "made.gguf"));
    mn_status status = tokenizer_from_gguf(&t, g);
    gguf_close(&g); /* the tokenizer keeps no pointer into it */
    if (status != MN_OK) assert_null(t);
    return t;
}

static void put_gpt2(bytes *out, const char *pre, const char *first_merge) {
    static const char *const tokens[] = {"<|end|>", "a",        "b",          "ab", "1",
                                         "11",      "\xC4\xA0", "<|im_end|>", "  ", "\xC4\xA0\x61"};
    static const uint32_t types[] = {3, 1, 1, 1, 1, 1, 1, 3, 4, 1};
    const char *const merges[] = {first_merge, "1 1"};
    gguf_head(out, 8);
    put_key_text(out, "tokenizer.ggml.model", "gpt2");
    put_key_text(out, "tokenizer.ggml.pre", pre);
    put_texts(out, "tokenizer.ggml.tokens", tokens, 10);
    put_types(out, types, 10);
    put_texts(out, "tokenizer.ggml.merges", merges, 2);
    put_key_int(out, "tokenizer.ggml.eos_token_id", 4, 7);
    put_key_text(out, "tokenizer.chat_template", "T");
    put_key_text(out, "tokenizer.chat_template.tool_use", "U");
}

static void byte_level_vocabularies_of_gguf_are_read(void **state) {
    (void)state;
    bytes file = {0};
    put_gpt2(&file, "gpt-2", "a b");
    tokenizer *t = open_gguf(&file);
    assert_non_null(t);
    assert_token_ids(t, "ab11  a<|end|>", 0,
                     "3 5 8 1"); /* two spaces are a token; '<' and others are not, and are dropped */
    assert_token_ids(t, "ab<|end|>", TOKENIZER_PARSE_SPECIAL, "3 0");
    assert_string_equal(tokenizer_chat_template(t, NULL), "T");
    assert_string_equal(tokenizer_chat_template(t, "tool_use"), "U");
    size_t n;
    const int32_t *ends = tokenizer_end_ids(t, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ends[0], 7);
    assert_int_equal(ends[1], 0);
    assert_null(tokenizer_warning(t));
    tokenizer_close(&t);
    put_gpt2(&file, "smollm", "a b");
    t = open_gguf(&file);
    assert_token_ids(t, "ab11", 0, "3 4 4"); /* every digit alone */
    tokenizer_close(&t);
    put_gpt2(&file, "default", "a b");
    t = open_gguf(&file);
    assert_non_null(strstr(tokenizer_warning(t), "does not name its pre-tokenizer"));
    assert_token_ids(t, "ab1111", 0, "3 5 4 4"); /* 111 and 1 */
    tokenizer_close(&t);
    put_gpt2(&file, "unheard-of", "a b");
    assert_null(open_gguf(&file));
    assert_non_null(strstr(mn_last_error(), "the pre-tokenizer 'unheard-of' is not read here"));
    put_gpt2(&file, "gpt-2", "a x");
    assert_null(open_gguf(&file));
    assert_non_null(strstr(mn_last_error(), "merge 0 ('a' with 'x'): the right part"));
    put_gpt2(&file, "gpt-2", "ab");
    assert_null(open_gguf(&file));
    assert_non_null(strstr(mn_last_error(), "merge 0 must be two tokens"));
    put_gpt2(&file, "gpt-2", "a b");
    mutate(file.data, file.n, 100);
    bytes_clear(&file);
}

/* A vocabulary of which two texts tell how a pre-tokenizer splits runs of digits and what it takes with letters,
 * whether words of the vocabulary are taken whole, and whether text is composed. */
static void put_letters(bytes *out, const char *pre) {
    static const char *const tokens[] = {
        "<|begin|>", "a", "1", "11", "-", "-a", "\xC4\xA0", "\xC4\xA0\x61", "\xC3\x83", "\xC2\xA1", "\xC3\x83\xC2\xA1"};
    static const uint32_t types[] = {3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const char *const merges[] = {"1 1", "- a", "\xC3\x83 \xC2\xA1"};
    gguf_head(out, 6);
    put_key_text(out, "tokenizer.ggml.model", "gpt2");
    put_key_text(out, "tokenizer.ggml.pre", pre);
    put_texts(out, "tokenizer.ggml.tokens", tokens, sizeof tokens / sizeof *tokens);
    put_types(out, types, sizeof types / sizeof *types);
    put_texts(out, "tokenizer.ggml.merges", merges, sizeof merges / sizeof *merges);
    put_key_int(out, "tokenizer.ggml.bos_token_id", 4, 0);
}

/* Names of pre-tokenizers, as llama.cpp's converter writes them, and the ids of "1111-a a" and of "a" with a combining
 * accent. */
static void every_pre_tokenizer_of_gguf_splits_as_its_pattern(void **state) {
    (void)state;
    static const struct {
        const char *names[8], *ids, *accent;
    } groups[] = {
        {{"gpt-2", "phi-2", "mpt", "olmo", "jais"}, "3 3 4 1 6 1", "1"},
        {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"}, "2 2 2 2 4 1 6 1", "1"},
        {{"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"}, "0 3 2 2 5 7", "0 1"},
        {{"dbrx", "smaug-bpe"}, "3 2 2 5 6 1", "1"},
        {{"qwen2", "deepseek-r1-qwen"}, "2 2 2 2 5 6 1", "10"},
        {{"stablelm2"}, "2 2 2 2 5 6 1", "1"},
    };
    bytes file = {0};
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        for (int i = 0; i < 8 && groups[g].names[i]; i++) {
            put_letters(&file, groups[g].names[i]);
            tokenizer *t = open_gguf(&file);
            if (!t) fail_msg("%s: %s", groups[g].names[i], mn_last_error());
            assert_token_ids(t, "1111-a a", TOKENIZER_ADD_SPECIAL, groups[g].ids);
            assert_token_ids(t, "a\xCC\x81", TOKENIZER_ADD_SPECIAL, groups[g].accent);
            assert_null(tokenizer_warning(t));
            tokenizer_close(&t);
        }
    }
    bytes_clear(&file);
}

static void put_llama(bytes *out, uint32_t type, bool prefix) {
    static const char *const tokens[] = {"<unk>", "<s>", "<0xC3>", "<0xA9>",          "\xE2\x96\x81",
                                         "a",     "b",   "ab",     "\xE2\x96\x81\x61"};
    static const float scores[] = {0, 0, 0, 0, -5, -4, -3, -1, -2};
    uint32_t types[] = {2, 3, 6, 6, 1, 1, 1, type, 1};
    gguf_head(out, 6);
    put_key_text(out, "tokenizer.ggml.model", "llama");
    put_texts(out, "tokenizer.ggml.tokens", tokens, 9);
    put_string(out, "tokenizer.ggml.scores");
    put_u32(out, 9);
    put_u32(out, 6);
    put_u64(out, 9);
    bytes_append(out, scores, sizeof scores);
    put_types(out, types, 9);
    put_key_int(out, "tokenizer.ggml.bos_token_id", 4, 1);
    put_key_int(out, "tokenizer.ggml.add_space_prefix", 7, prefix);
}

static void vocabularies_with_scores_of_gguf_are_read(void **state) {
    (void)state;
    bytes file = {0};
    put_llama(&file, 1, true);
    tokenizer *t = open_gguf(&file);
    assert_non_null(t);
    assert_token_ids(t, "ab a\xC3\xA9", TOKENIZER_ADD_SPECIAL, "1 4 7 8 2 3"); /* ab joins before the mark and a */
    assert_token_ids(t, "a<s>a", TOKENIZER_PARSE_SPECIAL, "8 1 8"); /* a space mark after the special token too */
    bytes out = {0};
    assert_ok(tokenizer_decode(t, (int32_t[]){1, 8, 7, 2, 3, 2, 6}, 7, TOKENIZER_SKIP_SPECIAL, &out));
    assert_string_equal(bytes_text(&out), "aab\xC3\xA9\xEF\xBF\xBD"
                                          "b");
    bytes_clear(&out);
    tokenizer_close(&t);
    put_llama(&file, 1, false);
    t = open_gguf(&file);
    assert_token_ids(t, "a a", 0, "5 8");
    tokenizer_close(&t);
    put_llama(&file, 9, true);
    assert_null(open_gguf(&file));
    assert_non_null(strstr(mn_last_error(), "token 7 has the type 9, allowed: 1 to 6"));
    put_llama(&file, 1, true);
    mutate(file.data, file.n, 100);
    bytes_clear(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_tokenizer_json_is_refused),
        cmocka_unit_test(excessive_files_and_texts_are_refused),
        cmocka_unit_test(mutated_tokenizer_json_does_not_crash),
        cmocka_unit_test(sentencepiece_models_are_read_or_refused),
        cmocka_unit_test(byte_level_vocabularies_of_gguf_are_read),
        cmocka_unit_test(every_pre_tokenizer_of_gguf_splits_as_its_pattern),
        cmocka_unit_test(vocabularies_with_scores_of_gguf_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
