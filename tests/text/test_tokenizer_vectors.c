/* Tokenizers against ids and texts of other implementations.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "text/tokenizer/tokenizer.h"

enum { BOTH = TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL };

static tokenizer *open_at(const char *path) {
    tokenizer *t = NULL;
    if (tokenizer_open(&t, path) != MN_OK) fail_msg("%s: %s", path, mn_last_error());
    return t;
}

/* `skip_front` and `skip_back`: expected ids of special tokens that this tokenizer does not add. */
static void check_ids(const tokenizer *t, const char *text, size_t n, unsigned flags, const json *ids,
                      size_t skip_front, size_t skip_back) {
    token_list out = {0};
    assert_ok(tokenizer_encode(t, text, n, flags, &out));
    bool same = out.n == ids->n - skip_front - skip_back;
    for (size_t i = 0; same && i < out.n; i++) same = out.ids[i] == ids->items[skip_front + i].integer;
    if (!same) {
        bytes seen = {0};
        for (size_t i = 0; i < out.n; i++) bytes_printf(&seen, " %d", (int)out.ids[i]);
        print_error("'%.200s' gave%s\n", text, bytes_text(&seen));
        bytes_clear(&seen);
    }
    token_list_clear(&out);
    assert_true(same);
}

static void check_text(const tokenizer *t, const json *ids, unsigned flags, const json *text) {
    int32_t *row = mem_alloc(ids->n, sizeof *row);
    for (size_t i = 0; i < ids->n; i++) row[i] = (int32_t)ids->items[i].integer;
    bytes out = {0};
    assert_ok(tokenizer_decode(t, row, ids->n, flags, &out));
    bool same = out.n == text->n && (out.n == 0 || memcmp(out.data, text->string, out.n) == 0);
    if (!same) print_error("decoded '%s', expected '%s'\n", bytes_text(&out), text->string);
    bytes_clear(&out);
    mem_free(row);
    assert_true(same);
}

/* ---- the formats of the vector files ---- */

/* {name: {text, ids, decoded}} of one model. Returns their number; without PARSE_SPECIAL, texts that contain special
 * tokens are skipped. */
static size_t transformersjs(const tokenizer *t, const char *path, const char *model, unsigned flags, size_t skip_front,
                             size_t skip_back, bool decode) {
    json_doc *doc = open_json(path);
    const json *cases = json_get(json_root(doc), model);
    assert_non_null(cases);
    size_t n = 0;
    for (size_t i = 0; i < cases->n; i++) {
        const json *c = &cases->members[i].value, *text = json_get(c, "text"), *ids = json_get(c, "ids");
        if (!(flags & TOKENIZER_PARSE_SPECIAL) && strstr(text->string, "<|")) continue;
        check_ids(t, text->string, text->n, flags, ids, skip_front, skip_back);
        if (decode) check_text(t, ids, 0, json_get(c, "decoded"));
        n++;
    }
    json_close(&doc);
    return n;
}

/* [{input, encoded: {input_ids}, decoded_with_special, decoded_without_special}] of one model. */
static size_t swift_tests(const tokenizer *t, const char *path, const char *model, unsigned flags, size_t skip_front,
                          size_t skip_back, bool decode) {
    json_doc *doc = open_json(path);
    const json *cases = json_get(json_root(doc), model);
    assert_non_null(cases);
    size_t n = cases->n;
    for (size_t i = 0; i < n; i++) {
        const json *c = &cases->items[i], *text = json_get(c, "input"),
                   *ids = json_get(json_get(c, "encoded"), "input_ids");
        check_ids(t, text->string, text->n, flags, ids, skip_front, skip_back);
        if (!decode) continue;
        check_text(t, ids, 0, json_get(c, "decoded_with_special"));
        check_text(t, ids, TOKENIZER_SKIP_SPECIAL, json_get(c, "decoded_without_special"));
    }
    json_close(&doc);
    return n;
}

/* {text, token_ids, decoded_text}. */
static void swift_encoded(const tokenizer *t, const char *path, unsigned flags, size_t skip_front, size_t skip_back,
                          bool decode) {
    json_doc *doc = open_json(path);
    const json *root = json_root(doc), *text = json_get(root, "text"), *ids = json_get(root, "token_ids");
    check_ids(t, text->string, text->n, flags, ids, skip_front, skip_back);
    if (decode) check_text(t, ids, 0, json_get(root, "decoded_text"));
    json_close(&doc);
}

/* A list of numbers with anything between them, as a JSON list. */
static json_doc *number_list(const char *line, size_t n) {
    bytes text = {0};
    bytes_append_text(&text, "[");
    for (size_t i = 0; i < n;) {
        size_t digits = 0;
        while (i + digits < n && line[i + digits] >= '0' && line[i + digits] <= '9') digits++;
        if (digits) bytes_printf(&text, "%s%.*s", text.n > 1 ? "," : "", (int)digits, line + i);
        i += digits ? digits : 1;
    }
    bytes_append_text(&text, "]");
    json_doc *doc = NULL;
    assert_ok(json_parse(&doc, text.data, text.n, JSON_STRICT, "ids"));
    bytes_clear(&text);
    return doc;
}

/* Inputs between separator lines, ids line by line, without added tokens, special ones parsed. */
static size_t llamacpp(const tokenizer *t, const char *input_path, const char *output_path) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    bytes input = {0}, output = {0};
    assert_ok(file_read(&input, input_path, 1 << 20));
    assert_ok(file_read(&output, output_path, 1 << 20));
    const char *text = bytes_text(&input), *line = bytes_text(&output);
    size_t count = 0;
    while (text) {
        const char *end = strstr(text, separator), *stop = line + strcspn(line, "\n");
        json_doc *ids = number_list(line, (size_t)(stop - line));
        check_ids(t, text, end ? (size_t)(end - text) : strlen(text), TOKENIZER_PARSE_SPECIAL, json_root(ids), 0, 0);
        json_close(&ids);
        text = end ? end + sizeof separator - 1 : NULL;
        line = stop + (*stop != 0);
        count++;
    }
    bytes_clear(&input);
    bytes_clear(&output);
    return count;
}

/* One or more lines of text, then a line of ids, and so on, for the first `limit` texts; special tokens are spelled
 * out. */
static size_t dotnet(const tokenizer *t, const char *path, size_t limit) {
    bytes file = {0};
    assert_ok(file_read(&file, path, 1 << 20));
    const char *line = bytes_text(&file);
    if (strncmp(line, "\xEF\xBB\xBF", 3) == 0) line += 3;
    const char *text = line;
    size_t count = 0;
    while (*line && count < limit) {
        size_t n = strcspn(line, "\n"), digits = strspn(line, "0123456789, ");
        const char *next = line + n + (line[n] == '\n');
        if (n && digits == n && line > text) {
            json_doc *ids = number_list(line, n);
            check_ids(t, text, (size_t)(line - 1 - text), TOKENIZER_PARSE_SPECIAL, json_root(ids), 0, 0);
            json_close(&ids);
            text = next;
            count++;
        }
        line = next;
    }
    bytes_clear(&file);
    return count;
}

/* ---- vectors in the repository ---- */

static void gpt2_equals_the_vectors(void **state) {
    (void)state;
    tokenizer *t = open_at(data_path("tokenizers/gpt2"));
    assert_int_equal(llamacpp(t, data_path("tokenizers/vectors/llamacpp-gpt2.inp"),
                              data_path("tokenizers/vectors/llamacpp-gpt2.out")),
                     47);
    const char *path = data_path("tokenizers/vectors/transformersjs-gpt2.json");
    assert_int_equal(transformersjs(t, path, "Xenova/gpt2", BOTH, 0, 0, true), 26);
    assert_int_equal(transformersjs(t, path, "openai-community/gpt2", BOTH, 0, 0, true), 26);
    swift_encoded(t, data_path("tokenizers/vectors/swift-gpt2.json"), BOTH, 0, 0, true);
    assert_int_equal(swift_tests(t, data_path("tokenizers/vectors/swift-tests.json"), "distilgpt2", BOTH, 0, 0, true),
                     18);
    /* the same vocabulary; this model has other special tokens */
    assert_int_equal(
        swift_tests(t, data_path("tokenizers/vectors/swift-tests.json"), "openai/whisper-tiny.en", 0, 2, 1, false), 18);
    tokenizer_close(&t);
}

static void prompts(const tokenizer *t) {
    json_doc *doc = open_json(data_path("tokenizers/vectors/smollm2-prompts.json"));
    const json *cases = json_root(doc);
    assert_int_equal(cases->n, 6);
    for (size_t i = 0; i < cases->n; i++) {
        const json *text = json_get(&cases->items[i], "text"), *ids = json_get(&cases->items[i], "ids");
        check_ids(t, text->string, text->n, BOTH, ids, 0, 0);
        check_text(t, ids, 0, text);
    }
    json_close(&doc);
}

/* {encode: [{text, plain, ids}], decode: [{ids, skip, text}]}, made with the package tokenizers. */
static void huggingface(const tokenizer *t, const char *path) {
    json_doc *doc = open_json(path);
    const json *encode = json_get(json_root(doc), "encode"), *decode = json_get(json_root(doc), "decode");
    assert_int_equal(encode->n, 300);
    assert_int_equal(decode->n, 300);
    for (size_t i = 0; i < encode->n; i++) {
        const json *c = &encode->items[i], *text = json_get(c, "text");
        check_ids(t, text->string, text->n, json_get(c, "plain")->boolean ? 0 : TOKENIZER_PARSE_SPECIAL,
                  json_get(c, "ids"), 0, 0);
    }
    for (size_t i = 0; i < decode->n; i++) {
        const json *c = &decode->items[i];
        check_text(t, json_get(c, "ids"), json_get(c, "skip")->boolean ? TOKENIZER_SKIP_SPECIAL : 0,
                   json_get(c, "text"));
    }
    json_close(&doc);
}

static void smollm2_equals_the_vectors(void **state) {
    (void)state;
    tokenizer *t = open_at(data_path("tokenizers/smollm2"));
    prompts(t);
    huggingface(t, data_path("tokenizers/vectors/huggingface-smollm2.json"));
    tokenizer_close(&t);
}

/* Replaces U+2581 by spaces. */
static void spaces_back(bytes *text) {
    size_t n = 0;
    for (size_t i = 0; i < text->n; n++) {
        bool mark = i + 3 <= text->n && memcmp(text->data + i, "\xE2\x96\x81", 3) == 0;
        text->data[n] = mark ? ' ' : text->data[i];
        i += mark ? 3 : 1;
    }
    text->n = n;
}

static void mistral_equals_the_vectors(void **state) {
    (void)state;
    static const char *const files[] = {"tokenizers/mistral/tokenizer.json", "tokenizers/mistral/tokenizer.model"};
    bytes text = {0};
    assert_ok(file_read(&text, data_path("tokenizers/vectors/mistral-v1.txt"), 1 << 20));
    spaces_back(&text);
    json_doc *doc = open_json(data_path("tokenizers/vectors/mistral-v1.json"));
    for (int i = 0; i < 2; i++) {
        tokenizer *t = open_at(data_path(files[i]));
        /* the text contains <s> and the space after it, which the library that made the ids added */
        check_ids(t, text.data + 4, text.n - 4, BOTH, json_get(json_root(doc), "tokens"), 0, 0);
        if (i == 0) huggingface(t, data_path("tokenizers/vectors/huggingface-mistral.json"));
        tokenizer_close(&t);
    }
    json_close(&doc);
    bytes_clear(&text);
}

/* The library that made these ids passes every part between control tokens to SentencePiece separately. */
static void parts_between_control_tokens_equal_the_vectors(void **state) {
    (void)state;
    tokenizer *t = open_at(data_path("tokenizers/mistral-v3/tokenizer.model"));
    bytes text = {0};
    assert_ok(file_read(&text, data_path("tokenizers/vectors/mistral-v3.txt"), 1 << 20));
    spaces_back(&text);
    json_doc *doc = open_json(data_path("tokenizers/vectors/mistral-v3.json"));
    const json *tokens = json_get(json_root(doc), "tokens");
    size_t from = 0, i = 0;
    while (i < tokens->n) {
        int32_t id = (int32_t)tokens->items[i].integer;
        assert_true(tokenizer_is_special(t, id)); /* a control token, spelled in the text */
        size_t n;
        const char *piece = tokenizer_piece(t, id, &n);
        assert_memory_equal(text.data + from, piece, n);
        from += n;
        json part = {.kind = JSON_ARRAY, .items = tokens->items + ++i};
        while (i < tokens->n && !tokenizer_is_special(t, (int32_t)tokens->items[i].integer)) part.n++, i++;
        size_t end = from;
        const char *next = i < tokens->n ? tokenizer_piece(t, (int32_t)tokens->items[i].integer, NULL) : NULL;
        while (next ? strncmp(text.data + end, next, strlen(next)) != 0 : end < text.n) end++;
        size_t start = from + (end > from); /* the space that SentencePiece puts in front */
        check_ids(t, text.data + start, end - start, 0, &part, 0, 0);
        from = end;
    }
    assert_int_equal(from, text.n);
    json_close(&doc);
    bytes_clear(&text);
    tokenizer_close(&t);
}

/* ---- vectors outside the repository, where available ---- */

static tokenizer *open_shared(const char *name) {
    const char *path = shared_path(name);
    return path ? open_at(path) : NULL;
}

static void vocabularies_of_llamacpp_equal_its_vectors(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"data/llama.cpp-vocab/ggml-vocab-gpt-2.gguf", "gpt-2"},
        {"data/llama.cpp-vocab/ggml-vocab-mpt.gguf", "mpt"},
        {"data/llama.cpp-vocab/ggml-vocab-llama-spm.gguf", "llama-spm"},
        {"data/llama.cpp-vocab/ggml-vocab-phi-3.gguf", "phi-3"},
        {"data/tokenizers/gpt-neox-20b", "mpt"},
        {"data/tokenizers/llama-2-7b-chat-hf", "llama-spm"},
        {"data/tokenizers/tinyllama-1.1b-chat", "llama-spm"},
        {"data/tokenizers/phi-3", "phi-3"},
        {"data/tokenizers/phi-3-mini", "phi-3"},
        {"data/tokenizers/llama-3/tokenizer.model", "llama-bpe"},
    };
    int done = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tokenizer *t = open_shared(rows[i][0]);
        char name[128];
        snprintf(name, sizeof name, "data/llama.cpp-vocab/ggml-vocab-%s.gguf.inp", rows[i][1]);
        const char *input = shared_path(name);
        snprintf(name, sizeof name, "data/llama.cpp-vocab/ggml-vocab-%s.gguf.out", rows[i][1]);
        const char *output = shared_path(name);
        if (t && input && output) {
            assert_int_equal(llamacpp(t, input, output), 47);
            done++;
        }
        tokenizer_close(&t);
    }
    if (!done) skip();
}

static void llama_equals_the_vectors(void **state) {
    (void)state;
    tokenizer *t = open_shared("data/tokenizers/llama-2-7b-chat-hf");
    if (!t) skip();
    assert_int_equal(transformersjs(t, shared_path("data/golden-tokens/transformers.js/llama.json"),
                                    "Xenova/llama-tokenizer", BOTH, 0, 0, true),
                     37);
    assert_int_equal(swift_tests(t, data_path("tokenizers/vectors/swift-tests.json"),
                                 "coreml-projects/Llama-2-7b-chat-coreml", BOTH, 0, 0, true),
                     18);
    swift_encoded(t, shared_path("data/golden-tokens/swift-transformers/llama_encoded.json"), BOTH, 0, 0, true);
    tokenizer_close(&t);
    t = open_shared("data/tokenizers/llama-3/tokenizer.model");
    if (!t) skip();
    const char *path = shared_path("data/golden-tokens/transformers.js/llama.json");
    assert_int_equal(transformersjs(t, path, "Xenova/llama3-tokenizer", TOKENIZER_PARSE_SPECIAL, 0, 0, false), 37);
    assert_int_equal(transformersjs(t, path, "Xenova/llama3-tokenizer-new", BOTH, 0, 0, false), 37);
    assert_int_equal(swift_tests(t, data_path("tokenizers/vectors/swift-tests.json"),
                                 "pcuenq/Llama-3.2-1B-Instruct-tokenizer", BOTH, 0, 0, false),
                     18);
    swift_encoded(t, shared_path("data/golden-tokens/swift-transformers/llama_3.2_encoded.json"), BOTH, 0, 0, true);
    assert_int_equal(
        dotnet(t, shared_path("data/golden-tokens/dotnet-machinelearning/LLaMA3_1Tests.TokenizerTest.approved.txt"), 4),
        4);
    tokenizer_close(&t);
}

static void whisper_equals_the_vectors(void **state) {
    (void)state;
    tokenizer *t = open_shared("data/tokenizers/whisper-tiny");
    if (!t) skip();
    assert_int_equal(
        swift_tests(t, data_path("tokenizers/vectors/swift-tests.json"), "openai/whisper-large-v2", BOTH, 0, 0, true),
        18);
    swift_encoded(t, shared_path("data/golden-tokens/swift-transformers/whisper_large_v2_encoded.json"), BOTH, 0, 0,
                  true);
    const char *path = shared_path("data/golden-tokens/transformers.js/whisper.json");
    tokenizer_close(&t);
    t = open_shared("data/tokenizers/whisper-large-v3");
    if (!t) skip();
    assert_int_equal(transformersjs(t, path, "distil-whisper/distil-large-v3", BOTH, 0, 0, true), 9);
    tokenizer_close(&t);
    t = open_shared("data/tokenizers/whisper-openai/gpt2.tiktoken");
    if (!t) skip();
    assert_int_equal(transformersjs(t, path, "onnx-community/whisper-tiny.en", 0, 2, 1, false), 23);
    swift_encoded(t, shared_path("data/golden-tokens/swift-transformers/whisper_tiny_en_encoded.json"), 0, 2, 1, false);
    tokenizer_close(&t);
}

static void smollm2_gguf_equals_the_vectors(void **state) {
    (void)state;
    const char *path = smollm2_path(), *golden = shared_path("golden/smollm2-135m-instruct-q4_1.json");
    if (!path || !golden) skip();
    tokenizer *t = open_at(path);
    prompts(t);
    huggingface(t, data_path("tokenizers/vectors/huggingface-smollm2.json"));
    json_doc *doc = open_json(golden);
    const json *perplexity = json_get(json_root(doc), "perplexity");
    bytes text = {0};
    assert_ok(file_read(&text, shared_path("data/text/wikitext-2/test.txt"), 1 << 24));
    check_ids(t, text.data, (size_t)json_get(perplexity, "bytes")->items[1].integer, 0, json_get(perplexity, "ids"), 0,
              0);
    size_t n_ends;
    const int32_t *ends = tokenizer_end_ids(t, &n_ends);
    assert_int_equal(n_ends, 2);
    assert_int_equal(ends[0], 2);
    assert_int_equal(ends[1], 0); /* <|endoftext|> */
    assert_non_null(strstr(tokenizer_chat_template(t, NULL), "SmolLM, trained by"));
    bytes_clear(&text);
    json_close(&doc);
    tokenizer_close(&t);
}

static void phi_equals_the_vectors(void **state) {
    (void)state;
    tokenizer *t = open_shared("data/tokenizers/phi-3");
    if (!t) skip();
    /* the last text of the file treats line breaks after added tokens unlike the ones before it */
    assert_int_equal(
        dotnet(t, shared_path("data/golden-tokens/dotnet-machinelearning/Phi3Tests.TokenizerTest.approved.txt"), 7), 7);
    tokenizer_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_equals_the_vectors),
        cmocka_unit_test(smollm2_equals_the_vectors),
        cmocka_unit_test(mistral_equals_the_vectors),
        cmocka_unit_test(parts_between_control_tokens_equal_the_vectors),
        cmocka_unit_test(vocabularies_of_llamacpp_equal_its_vectors),
        cmocka_unit_test(llama_equals_the_vectors),
        cmocka_unit_test(whisper_equals_the_vectors),
        cmocka_unit_test(phi_equals_the_vectors),
        cmocka_unit_test(smollm2_gguf_equals_the_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
