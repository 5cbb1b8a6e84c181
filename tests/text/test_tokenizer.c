/* Tokenizers: files and their companions, special tokens, templates, added tokens, streaming decoding, threads, memory.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/tokens.h"
#include "support/support.h"

#include "base/thread.h"
#include "base/utf8.h"
#include "support/scratch.h"
#include "text/tokenizer/tokenizer.h"

/* A byte-fallback model of a few tokens that uses every feature that allocates. */
#define SMALL_JSON(replace, split)                                                                                                               \
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},{\"id\":1,\"content\":\"<s>\",\"special\":true},"                      \
    "{\"id\":20,\"content\":\"[X]\",\"lstrip\":true,\"rstrip\":true},{\"id\":21,\"content\":\"Yes\",\"single_word\":true,\"normalized\":true}]," \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}," replace "]},"                                                   \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[" split ""                                                                      \
    "{\"type\":\"Metaspace\",\"prepend_scheme\":\"first\",\"split\":false}]},"                                                                   \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}}],"        \
    "\"special_tokens\":{\"<s>\":{\"ids\":[1]}}},"                                                                                               \
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},"       \
    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"                           \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"                                              \
    "\"vocab\":{\"<unk>\":0,\"<s>\":1,\"a\":2,\"b\":3,\"\xE2\x96\x81\":4,\"ab\":5,\"\xE2\x96\x81"                                                \
    "ab\":6,\"aa\":7,\"<0xC3>\":8,\"<0xA9>\":9,\"\xC3\xA9\":10,\";\":11},"                                                                       \
    "\"merges\":[\"a b\",[\"\xE2\x96\x81\",\"ab\"],\"a a\"]}}"

static const char small_json[] =
    SMALL_JSON("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"q+\"},\"content\":\"a\"}",
               "{\"type\":\"Split\",\"pattern\":{\"Regex\":\";\"},\"behavior\":\"Isolated\"},");
static const char json_without_patterns[] =
    SMALL_JSON("{\"type\":\"Replace\",\"pattern\":{\"String\":\"q\"},\"content\":\"a\"}", "");

static const char small_config[] =
    "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"<t>\",\"unk_token\":\"<unk>\",\"pad_token\":null,\"tokenizer_class\":\"LlamaTokenizer\","
    "\"add_eos_token\":true,\"clean_up_tokenization_spaces\":true,\"added_tokens_decoder\":{\"22\":{\"content\":\"<t>\",\"special\":true}},"
    "\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},{\"name\":\"tool_use\",\"template\":\"T\"}]}";

static tokenizer *open_small(const char *config) {
    tokenizer *t = NULL;
    assert_ok(tokenizer_from_memory(&t, small_json, sizeof small_json - 1, config, config ? strlen(config) : 0));
    return t;
}

static void assert_text(const tokenizer *t, const int32_t *ids, size_t n, unsigned flags, const char *expected) {
    bytes seen = {0};
    assert_ok(tokenizer_decode(t, ids, n, flags, &seen));
    assert_string_equal(bytes_text(&seen), expected);
    bytes_clear(&seen);
}

static void a_small_model_encodes_and_decodes(void **state) {
    (void)state;
    tokenizer *t = open_small(NULL);
    assert_token_ids(t, "ab aaa", TOKENIZER_ADD_SPECIAL, "1 6 4 7 2");
    assert_token_ids(t, "aab;ab", 0, "4 2 5 11 5"); /* merges by rank; the space mark at the start only */
    assert_token_ids(t, "qqqb", 0, "6");            /* q+ becomes a */
    assert_token_ids(t,
                     "e\xCC\x81"
                     "aa",
                     0, "4 10 7");                    /* form C first */
    assert_token_ids(t, "?!a", 0, "4 0 2");           /* unknown characters without byte tokens are fused */
    assert_token_ids(t, "a  [X]  b", 0, "4 2 20 3");  /* strips the spaces around it */
    assert_token_ids(t, "Yesb Yes", 0, "4 0 3 4 21"); /* a whole word only */
    assert_token_ids(t, "<s>", 0, "4 0");             /* plain text without PARSE_SPECIAL */
    assert_token_ids(t, "<s>ab", TOKENIZER_PARSE_SPECIAL, "1 5");
    assert_token_ids(t, "", TOKENIZER_ADD_SPECIAL, "1");
    assert_text(t, (int32_t[]){1, 6, 20, 8, 9, 7}, 6, 0,
                "<s> ab[X]\xC3\xA9"
                "aa");
    assert_text(t, (int32_t[]){1, 6, 8, 7, 8, 9, 8}, 7, TOKENIZER_SKIP_SPECIAL,
                "ab\xEF\xBF\xBD"
                "aa\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    assert_text(t, (int32_t[]){15, 6}, 2, 0, "ab"); /* no token has the id 15 */
    assert_null(tokenizer_piece(t, 15, NULL));
    assert_int_equal(tokenizer_size(t), 22);
    assert_int_equal(tokenizer_find(t, "\xE2\x96\x81"
                                       "ab"),
                     6);
    assert_int_equal(tokenizer_find(t, "nothing"), -1);
    assert_null(tokenizer_chat_template(t, NULL));
    bytes out = {0};
    assert_fails(MN_E_ARG, "id 22 is out of range, allowed: 0 to 21", tokenizer_decode(t, (int32_t[]){22}, 1, 0, &out));
    assert_fails(MN_E_ARG, "id -1 ", tokenizer_decode(t, (int32_t[]){2, -1}, 2, 0, &out));
    assert_int_equal(out.n, 0);
    token_list ids = {0};
    assert_fails(MN_E_ARG, "not UTF-8: byte 0xC3 at offset 2", tokenizer_encode(t, "ab\xC3 x", 5, 0, &ids));
    token_list_clear(&ids);
    tokenizer_close(&t);
}

static void tokenizer_config_is_applied(void **state) {
    (void)state;
    tokenizer *t = open_small(small_config);
    assert_string_equal(tokenizer_role_text(t, TOKEN_BOS), "<s>");
    assert_int_equal(tokenizer_role(t, TOKEN_EOS), 22);
    assert_int_equal(tokenizer_role(t, TOKEN_PAD), -1);
    assert_null(tokenizer_role_text(t, TOKEN_PAD));
    assert_true(tokenizer_is_special(t, 22));
    assert_false(tokenizer_is_special(t, 20));
    assert_token_ids(t, "ab<t>", TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL, "1 6 22 22");
    assert_string_equal(tokenizer_chat_template(t, NULL), "D");
    assert_string_equal(tokenizer_chat_template(t, "tool_use"), "T");
    assert_null(tokenizer_chat_template(t, "other"));
    size_t n;
    assert_int_equal(tokenizer_end_ids(t, &n)[0], 22);
    assert_int_equal(n, 1);
    tokenizer_close(&t);
    t = NULL;
    assert_ok(tokenizer_open(&t, data_path("tokenizers/mistral")));
    assert_int_equal(tokenizer_role(t, TOKEN_BOS), 1);
    assert_int_equal(tokenizer_role(t, TOKEN_EOS), 2);
    assert_token_ids(t, "Hello", TOKENIZER_ADD_SPECIAL, "1 22557");
    tokenizer_close(&t);
    assert_ok(tokenizer_open(&t, data_path("tokenizers/added-tokens/tokenizer.json")));
    assert_int_equal(tokenizer_size(t), 32011);
    assert_token_ids(t, "\n<|user|><|end|>", TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_SPECIAL, "1 0 13 32010 32007");
    tokenizer_close(&t);
    assert_fails(MN_E_NOT_FOUND, "neither tokenizer.json nor", tokenizer_open(&t, data_path("tokenizers")));
    assert_fails(MN_E_NOT_FOUND, "nothing-here", tokenizer_open(&t, "/nothing-here"));
    assert_null(t);
}

/* ---- files made here ---- */

static void write_file(const char *folder, const char *name, const char *text, size_t n) {
    bytes path = {0};
    assert_ok(path_join(&path, folder, name));
    assert_ok(file_write_atomic(path.data, text, n));
    bytes_clear(&path);
}

static void the_only_template_is_the_default(void **state) {
    (void)state;
    tokenizer *t = open_small("{\"chat_template\":[{\"name\":\"chat\",\"template\":\"C\"}]}");
    assert_string_equal(tokenizer_chat_template(t, NULL), "C");
    assert_null(tokenizer_chat_template(t, "tool_use"));
    tokenizer_close(&t);
    t = open_small("{\"chat_template\":[{\"name\":\"a\",\"template\":\"A\"},{\"name\":\"b\",\"template\":\"B\"}]}");
    assert_null(tokenizer_chat_template(t, NULL));
    tokenizer_close(&t);
}

/* Special tokens without a role, in the forms of Transformers 4 and 5. */
static void more_special_tokens_are_read(void **state) {
    (void)state;
    static const char *const configs[] = {
        "{\"additional_special_tokens\":[\"ab\",{\"content\":\"aa\"}]}",
        "{\"extra_special_tokens\":[\"ab\",\"aa\",\"no token\"]}",
        "{\"extra_special_tokens\":{\"image_token\":\"ab\",\"audio_token\":\"aa\"}}",
        "{\"extra_special_tokens\":[\"ab\"],\"model_specific_special_tokens\":{\"image_token\":\"aa\"}}",
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        tokenizer *t = open_small(configs[i]);
        assert_true(tokenizer_is_special(t, 5) && tokenizer_is_special(t, 7));
        assert_false(tokenizer_is_special(t, 2));
        assert_text(t, (int32_t[]){2, 5, 7, 3}, 4, TOKENIZER_SKIP_SPECIAL, "ab");
        tokenizer_close(&t);
    }
}

static void companion_files_are_read(void **state) {
    (void)state;
    const char *folder = scratch_empty("companions");
    static const char tiktoken[] = "YQ== 0\nYg== 1\nYWI= 2\r\n4A== 3\n= 4\nIA== 5\n";
    static const char *const names[] = {"tokenizer.model", "chat_template.jinja", "tokenizer_config.json"};
    write_file(folder, names[0], tiktoken, sizeof tiktoken - 1);
    write_file(folder, names[1], "hello {{ x }}", 13);
    write_file(folder, names[2], "{\"chat_template\":\"old\",\"eos_token\":\"b\"}", 39);
    tokenizer *t = NULL;
    assert_ok(tokenizer_open(&t, folder));
    assert_string_equal(tokenizer_chat_template(t, NULL), "hello {{ x }}");
    assert_token_ids(t, "aab ab", 0, "0 2 5 2");
    assert_text(t, (int32_t[]){3, 2, 4, 3}, 4, 0,
                "\xEF\xBF\xBD"
                "ab\xEF\xBF\xBD");
    assert_int_equal(tokenizer_role(t, TOKEN_EOS), 1);
    tokenizer_close(&t);
    write_file(folder, names[0], "YQ== 0\nY!== 1\n", 14);
    assert_fails(MN_E_FORMAT, "line 2 is not base64", tokenizer_open(&t, folder));
    write_file(folder, names[0], "YQ== 0\nYg== x\n", 14);
    assert_fails(MN_E_FORMAT, "line 2 is not base64, one space and a rank", tokenizer_open(&t, folder));
    write_file(folder, names[0], "YQ== 0\nYg== 0\n", 14);
    assert_fails(MN_E_FORMAT, "the id 0 is given to 'a' and to 'b'", tokenizer_open(&t, folder));
    write_file(folder, names[0], "YQ== 0\nYg== 999999999\n", 22);
    assert_fails(MN_E_FORMAT, "has the id 999999999", tokenizer_open(&t, folder));
    write_file(folder, names[0], "", 0);
    assert_fails(MN_E_FORMAT, "is empty", tokenizer_open(&t, folder));
    write_file(folder, names[1], "\xFF", 1);
    write_file(folder, names[0], tiktoken, sizeof tiktoken - 1);
    assert_fails(MN_E_FORMAT, "chat template is not UTF-8", tokenizer_open(&t, folder));
}

/* ---- streams ---- */

static bool is_utf8(const bytes *b) {
    return utf8_valid_prefix(b->data, b->n) == b->n;
}

/* Random ids with many byte tokens: each output of push and finish is valid UTF-8, and their concatenation equals
 * decode. */
static void stream_equals_decode(const tokenizer *t, uint64_t *seed, unsigned flags) {
    int32_t ids[48];
    size_t n = test_random(seed) % 48, size = tokenizer_size(t);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(test_random(seed) % (test_random(seed) % 2 || size < 300 ? size : 300));
    bytes whole = {0}, joined = {0};
    tokenizer_stream *stream;
    assert_ok(tokenizer_decode(t, ids, n, flags, &whole));
    assert_ok(tokenizer_stream_open(&stream, t, flags));
    for (int round = 0; round < 2; round++) { /* a finished stream can be used again */
        joined.n = 0;
        for (size_t i = 0; i < n; i++) {
            size_t before = joined.n;
            assert_ok(tokenizer_stream_push(stream, ids[i], &joined));
            bytes added = {.data = joined.data ? joined.data + before : NULL, .n = joined.n - before};
            assert_true(is_utf8(&added));
        }
        assert_ok(tokenizer_stream_finish(stream, &joined));
        assert_true(is_utf8(&whole));
        assert_int_equal(joined.n, whole.n);
        if (whole.n) assert_memory_equal(joined.data, whole.data, whole.n);
    }
    tokenizer_stream_close(&stream);
    bytes_clear(&whole);
    bytes_clear(&joined);
}

static void streaming_equals_decoding(void **state) {
    (void)state;
    static const char *const own[] = {"tokenizers/smollm2",    "tokenizers/gpt2",
                                      "tokenizers/mistral",    "tokenizers/mistral/tokenizer.model",
                                      "tokenizers/mistral-v3", "tokenizers/added-tokens"};
    static const char *const more[] = {"gpt-neox-20b",
                                       "llama-2-7b-chat-hf",
                                       "llama-3",
                                       "phi-2",
                                       "phi-3",
                                       "tinyllama-1.1b-chat",
                                       "whisper-tiny",
                                       "whisper-large-v3",
                                       "whisper-openai/multilingual.tiktoken"};
    uint64_t seed = 7;
    for (size_t i = 0; i < 6 + 9; i++) {
        char name[128];
        snprintf(name, sizeof name, "data/tokenizers/%s", i < 6 ? "" : more[i - 6]);
        const char *path = i < 6 ? data_path(own[i]) : shared_path(name);
        if (!path) continue;
        tokenizer *t = NULL;
        assert_ok(tokenizer_open(&t, path));
        for (int k = 0; k < 500; k++) stream_equals_decode(t, &seed, k % 2 ? TOKENIZER_SKIP_SPECIAL : 0);
        tokenizer_close(&t);
    }
    tokenizer *t = open_small(small_config);
    for (int k = 0; k < 2000; k++) stream_equals_decode(t, &seed, k % 2 ? TOKENIZER_SKIP_SPECIAL : 0);
    tokenizer_close(&t);
}

/* The bytes of single tokens, concatenated, are the text. */
static void assert_bytes(const tokenizer *t, const int32_t *ids, size_t n, const char *expected) {
    bytes seen = {0}, scratch = {0};
    for (size_t i = 0; i < n; i++) assert_ok(tokenizer_token_bytes(t, ids[i], i == 0, &scratch, &seen));
    assert_string_equal(bytes_text(&seen), expected);
    bytes_clear(&seen);
    bytes_clear(&scratch);
}

static void token_bytes_concatenate_to_the_text(void **state) {
    (void)state;
    static const char *const names[] = {"smollm2", "gpt2", "mistral", "mistral-v3/tokenizer.model"};
    static const char *const texts[] = {"Hello world",
                                        " two  spaces",
                                        "naïve café 😀😁 日本語 \x01\x7f",
                                        "{\"a\": [1, 2.5e3],\n  \"b\": null}\n\n",
                                        "x",
                                        "\n",
                                        "     five",
                                        "▁mark <0x41> and <s>?",
                                        "𝔘𝔫𝔦"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        char path[64];
        tokenizer *t = NULL;
        snprintf(path, sizeof path, "tokenizers/%s", names[k]);
        assert_ok(tokenizer_open(&t, data_path(path)));
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            token_list ids = {0};
            bytes expected = {0};
            assert_ok(tokenizer_encode(t, texts[i], strlen(texts[i]), 0, &ids));
            assert_ok(tokenizer_decode(t, ids.ids, ids.n, 0, &expected));
            assert_bytes(t, ids.ids, ids.n, bytes_text(&expected));
            token_list_clear(&ids);
            bytes_clear(&expected);
        }
        tokenizer_close(&t);
    }

    tokenizer *t = open_small(NULL); /* space marks, bytes, the leading space removed */
    bytes out = {0}, scratch = {0};
    assert_bytes(t, (int32_t[]){6, 6, 2}, 3, "ab aba");
    assert_bytes(t, (int32_t[]){4, 6}, 2, " ab");
    assert_bytes(t, (int32_t[]){8}, 1, "\xC3"); /* part of a character */
    assert_bytes(t, (int32_t[]){20, 21, 10}, 3, "[X]Yesé");
    assert_bytes(t, (int32_t[]){0, 1, 12}, 3, ""); /* special tokens, and no tokens */
    assert_fails(MN_E_ARG, "out of range", tokenizer_token_bytes(t, 99, false, &scratch, &out));
    assert_fails(MN_E_ARG, "out of range", tokenizer_token_bytes(t, -1, false, &scratch, &out));
    tokenizer_close(&t);

    static const char *const decoders[][3] = {
        {"null", "a a", "ab b▁"}, /* spaces between */
        {"{\"type\":\"Metaspace\",\"replacement\":\"▁\",\"prepend_scheme\":\"always\"}", "aa",
         "abb "}, /* no mark at first */
        {"{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Strip\",\"content\":\"b\",\"start\":0,\"stop\":1},"
         "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"xyz\"}]}",
         "xyzxyz", "xyzb▁"},
    };
    for (size_t i = 0; i < sizeof decoders / sizeof *decoders; i++) {
        char text[600];
        snprintf(text, sizeof text,
                 "{\"decoder\":%s,\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b▁\":1,\"ab\":2},\"merges\":[]}}",
                 decoders[i][0]);
        assert_ok(tokenizer_from_memory(&t, text, strlen(text), NULL, 0));
        assert_bytes(t, (int32_t[]){0, 0}, 2, decoders[i][1]);
        assert_bytes(t, (int32_t[]){2, 1}, 2, decoders[i][2]);
        tokenizer_close(&t);
    }
    bytes_clear(&out);
    bytes_clear(&scratch);
}

/* ---- added words ---- */

/* A word that was added is text, although ü is the letter of a byte. What stands before and behind it is decoded alone:
 * a part of a character becomes U+FFFD. */
static void check_added_words(const tokenizer *t) {
    static const int32_t words[] = {35, 81, 220, 256, 11, 220, 257}, parts[] = {127, 256, 120, 256, 127, 120, 257, 127};
    assert_token_ids(t, "Dr Müller, Łódź", 0, "35 81 220 256 11 220 257");
    assert_token_ids(t, "ü", 0, "127 120"); /* the letter alone is two bytes */
    for (unsigned flags = 0; flags <= TOKENIZER_SKIP_SPECIAL; flags++) {
        assert_text(t, words, 7, flags, "Dr Müller, Łódź");
        assert_text(t, parts, 8, flags, "�Müller�MüllerüŁódź�");
    }
    assert_bytes(t, words, 7, "Dr Müller, Łódź");
    uint64_t seed = 3;
    for (int k = 0; k < 200; k++) stream_equals_decode(t, &seed, 0);
}

static void added_words_are_text(void **state) {
    (void)state;
    tokenizer *t = NULL;
    assert_ok(tokenizer_open(&t, data_path("tokenizers/latin-letters/tokenizer.json")));
    check_added_words(t);
    tokenizer_close(&t);

    /* the same vocabulary as vocab.json with merges.txt, its words in added_tokens.json */
    json_doc *doc = open_json(data_path("tokenizers/latin-letters/tokenizer.json"));
    const json *letters = json_get(json_get(json_root(doc), "model"), "vocab");
    const char *folder = scratch_empty("added-words");
    bytes vocabulary = {0};
    json_put(&vocabulary, letters);
    write_file(folder, "vocab.json", vocabulary.data, vocabulary.n);
    write_file(folder, "merges.txt", "#version: 0.2\n", 14);
    write_file(folder, "added_tokens.json", "{\"Müller\":256,\"Łódź\":257}", 29);
    bytes_clear(&vocabulary);
    json_close(&doc);
    assert_ok(tokenizer_open(&t, folder));
    check_added_words(t);
    tokenizer_close(&t);
}

/* Tokens that the model makes itself keep their meaning when a file lists them as added ones too. */
static void tokens_of_the_model_stay_bytes(void **state) {
    (void)state;
    static const char letters[] =
        "{\"added_tokens\":[{\"id\":0,\"content\":\"Ã\"},{\"id\":2,\"content\":\"Ã¼\"},{\"id\":3,\"content\":\"üx\"},"
        "{\"id\":4,\"content\":\"Ġy\"}],\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"Ã\":0,\"¼\":1,\"Ã¼\":2,\"üx\":3},\"merges\":[\"Ã ¼\"]}}";
    static const char bytes_too[] =
        "{\"added_tokens\":[{\"id\":0,\"content\":\"<0x41>\"},{\"id\":1,\"content\":\"<0x42>\"}],\"decoder\":{\"type\":\"ByteFallback\"},"
        "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{\"<0x41>\":0},\"merges\":[]}}";
    tokenizer *t = NULL;
    assert_ok(tokenizer_from_memory(&t, letters, sizeof letters - 1, NULL, 0));
    assert_text(t, (int32_t[]){2, 3, 4, 0, 1}, 5, 0, "üüxĠyü");
    assert_bytes(t, (int32_t[]){2, 3, 4, 0, 1}, 5, "üüxĠyü");
    tokenizer_close(&t);
    assert_ok(tokenizer_from_memory(&t, bytes_too, sizeof bytes_too - 1, NULL, 0));
    assert_text(t, (int32_t[]){0, 1}, 2, 0, "A<0x42>");
    assert_bytes(t, (int32_t[]){0, 1}, 2, "A<0x42>");
    tokenizer_close(&t);
}

static void streaming_emits_complete_characters_immediately(void **state) {
    (void)state;
    tokenizer *t = NULL;
    tokenizer_stream *stream;
    assert_ok(tokenizer_open(&t, data_path("tokenizers/smollm2")));
    assert_ok(tokenizer_stream_open(&stream, t, 0));
    token_list ids = {0};
    bytes out = {0};
    assert_ok(tokenizer_encode(t, "Hi \xF0\x9F\x8F\xB3!", 8, 0, &ids)); /* a character of several tokens */
    size_t silent = 0;
    for (size_t i = 0; i < ids.n; i++) {
        size_t before = out.n;
        assert_ok(tokenizer_stream_push(stream, ids.ids[i], &out));
        silent += out.n == before;
        if (i == 0) assert_int_equal(out.n, 2);
    }
    assert_true(silent >= 1);
    assert_string_equal(bytes_text(&out), "Hi \xF0\x9F\x8F\xB3!"); /* finish has nothing to emit */
    token_list_clear(&ids);
    bytes_clear(&out);
    tokenizer_stream_close(&stream);
    tokenizer_close(&t);
}

/* ---- long texts ---- */

/* The texts of the vectors joined by a special token give the ids of the single texts: the word cache of long texts
 * changes no id. */
static void long_texts_encode_as_their_parts(void **state) {
    (void)state;
    tokenizer *t = NULL;
    assert_ok(tokenizer_open(&t, data_path("tokenizers/smollm2")));
    json_doc *doc = open_json(data_path("tokenizers/vectors/huggingface-smollm2.json"));
    const json *cases = json_get(json_root(doc), "encode");
    bytes text = {0};
    token_list one_by_one = {0}, at_once = {0};
    for (size_t i = 0; i < cases->n * 2; i++) {
        const json *part = json_get(&cases->items[i % cases->n], "text");
        if (memchr(part->string, '<', part->n)) continue;
        bytes_append(&text, part->string, part->n);
        bytes_append_text(&text, "<|endoftext|>");
        assert_ok(tokenizer_encode(t, part->string, part->n, 0, &one_by_one));
        assert_ok(tokenizer_encode(t, "<|endoftext|>", 13, TOKENIZER_PARSE_SPECIAL, &one_by_one));
    }
    assert_true(text.n > 20000);
    assert_ok(tokenizer_encode(t, text.data, text.n, TOKENIZER_PARSE_SPECIAL, &at_once));
    assert_int_equal(at_once.n, one_by_one.n);
    assert_memory_equal(at_once.ids, one_by_one.ids, at_once.n * sizeof *at_once.ids);
    token_list_clear(&one_by_one);
    token_list_clear(&at_once);
    bytes_clear(&text);
    json_close(&doc);
    tokenizer_close(&t);
}

/* A long word encodes as a repetition of its parts where the split is known: 8 letters merge. */
static void long_words_encode_as_their_parts(void **state) {
    (void)state;
    static const char *const names[] = {"tokenizers/smollm2", "tokenizers/mistral", "tokenizers/gpt2"};
    char *text = mem_alloc(1 << 20, 1);
    memset(text, 'a', 1 << 20);
    for (int i = 0; i < 3; i++) {
        tokenizer *t = NULL;
        token_list ids = {0}, few = {0};
        bytes out = {0};
        assert_ok(tokenizer_open(&t, data_path(names[i])));
        assert_ok(tokenizer_encode(t, text, 1 << 20, 0, &ids)); /* quadratic time would be noticed */
        assert_ok(tokenizer_encode(t, text, 32, 0, &few));
        assert_int_equal(ids.ids[ids.n / 2], few.ids[few.n / 2]);
        assert_true(ids.n < (1 << 20) / 3);
        assert_ok(tokenizer_decode(t, ids.ids, ids.n, 0, &out));
        assert_int_equal(out.n, 1 << 20);
        assert_memory_equal(out.data, text, out.n);
        bytes_clear(&out);
        token_list_clear(&ids);
        token_list_clear(&few);
        tokenizer_close(&t);
    }
    mem_free(text);
}

/* ---- threads and memory ---- */

typedef struct shared_job {
    const tokenizer *t;
    const char *text;
    size_t n;
    token_list lists[16];
} shared_job;

static void encode_task(void *arg, int task, int thread) {
    (void)thread;
    shared_job *job = arg;
    tokenizer_encode(job->t, job->text, job->n, 0, &job->lists[task]);
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    bytes text = {0};
    shared_job job = {.n = 0};
    tokenizer *t = NULL;
    thread_pool *pool;
    assert_ok(tokenizer_open(&t, data_path("tokenizers/smollm2")));
    assert_ok(file_read(&text, data_path("tokenizers/vectors/llamacpp-gpt2.inp"), 1 << 20));
    assert_ok(thread_pool_open(&pool, 4));
    job.t = t;
    job.text = text.data;
    job.n = text.n;
    thread_run(pool, 16, encode_task, &job);
    for (int i = 0; i < 16; i++) {
        assert_true(job.lists[i].n > 100);
        assert_int_equal(job.lists[i].n, job.lists[0].n);
        assert_memory_equal(job.lists[i].ids, job.lists[0].ids, job.lists[0].n * sizeof(int32_t));
    }
    for (int i = 0; i < 16; i++) token_list_clear(&job.lists[i]);
    thread_pool_close(&pool);
    bytes_clear(&text);
    tokenizer_close(&t);
}

/* Runs every operation once; returns MN_E_NOMEM at the first failing allocation. */
static mn_status open_use_close(const char *json_text) {
    tokenizer *t = NULL;
    token_list ids = {0};
    bytes out = {0};
    static const char text[] =
        "ab [X] qq;aabab aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa e\xCC\x81 Yes \xC3\xA9";
    mn_status status = tokenizer_from_memory(&t, json_text, strlen(json_text), small_config, sizeof small_config - 1);
    if (status == MN_OK) status = tokenizer_encode(t, text, sizeof text - 1, TOKENIZER_ADD_SPECIAL, &ids);
    if (status == MN_OK) status = tokenizer_decode(t, ids.ids, ids.n, 0, &out);
    if (status == MN_OK) assert_true(ids.n > 10);
    token_list_clear(&ids);
    bytes_clear(&out);
    tokenizer_close(&t);
    return status;
}

/* Returns the number of failures that the tokenizer tolerated. */
static int64_t fail_each_allocation(const char *json_text) {
    mem_counters before = mem_count();
    assert_int_equal(open_use_close(json_text), MN_OK);
    int64_t n = mem_count().allocations - before.allocations, harmless = 0;
    assert_true(n > 50);
    for (int64_t k = 1; k <= n; k++) {
        mem_fail_after(k);
        mn_status status = open_use_close(json_text);
        mem_fail_after(0);
        assert_int_equal(mem_count().live, before.live);
        if (status != MN_OK && status != MN_E_NOMEM)
            fail_msg("allocation %d: status %d: %s", (int)k, status, mn_last_error());
        harmless += status == MN_OK;
    }
    return harmless;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    fail_each_allocation(small_json); /* PCRE2 falls back to its interpreter when it cannot allocate machine code */
    assert_int_equal(fail_each_allocation(json_without_patterns), 0);
}

/* Strings of tokens lead back to them, and special ones are found by Transformers' names. */
static void tokens_are_found_by_name(void **state) {
    (void)state;
    static const struct {
        const char *folder, *bos, *eos, *pad;
    } cases[] = {{TESTS_DIR "/data/tokenizers/smollm2", "<|im_start|>", "<|im_end|>", "<|im_end|>"},
                 {TESTS_DIR "/data/tokenizers/mistral", "<s>", "</s>", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_tokenizer *t;
        assert_ok(mn_tokenizer_open(&t, cases[i].folder));
        for (int32_t id = 0; id < mn_vocab_size(t); id += 7) {
            const char *piece = mn_token_piece(t, id);
            if (piece) assert_int_equal(mn_token_id(t, piece), id);
        }
        assert_string_equal(mn_token_piece(t, mn_special_token_id(t, "bos_token")), cases[i].bos);
        assert_string_equal(mn_token_piece(t, mn_special_token_id(t, "eos_token")), cases[i].eos);
        if (cases[i].pad) assert_string_equal(mn_token_piece(t, mn_special_token_id(t, "pad_token")), cases[i].pad);
        if (!cases[i].pad) assert_int_equal(mn_special_token_id(t, "pad_token"), -1);
        assert_int_equal(mn_special_token_id(t, "mask_token"), -1);
        assert_int_equal(mn_special_token_id(t, "bos"), -1);
        assert_int_equal(mn_token_id(t, "no such token"), -1);
        mn_tokenizer_close(&t);
    }
}

/* Tokenizes behind held ids: the result decodes to the text and begins with those that are kept; how many are. */
static size_t after(const mn_tokenizer *t, const int32_t *held, size_t n_held, const char *text, size_t *n_ids) {
    int32_t *ids;
    size_t n, n_kept, n_decoded;
    char *decoded;
    assert_ok(mn_tokenize_after(t, held, n_held, text, strlen(text), 0, &ids, &n, &n_kept));
    assert_in_range(n_kept, 0, n < n_held ? n : n_held);
    assert_memory_equal(ids, held, n_kept * sizeof *ids);
    assert_ok(mn_detokenize(t, ids, n, 0, &decoded, &n_decoded));
    assert_string_equal(decoded, text);
    if (n_ids) *n_ids = n;
    mn_free(decoded);
    mn_free(ids);
    return n_kept;
}

/* Ids of a conversation's text that are held stay as they are, however it would be cut into tokens now. */
static void held_ids_are_kept(void **state) {
    (void)state;
    mn_tokenizer *t;
    assert_ok(mn_tokenizer_open(&t, TESTS_DIR "/data/tokenizers/smollm2"));
    const char *text = "Hello world, hello again";
    int32_t *whole;
    size_t n_whole, n;
    assert_ok(mn_tokenize(t, text, strlen(text), 0, &whole, &n_whole));
    assert_int_equal(after(t, NULL, 0, text, &n), 0);
    assert_int_equal(n, n_whole);
    assert_int_equal(after(t, whole, 3, text, &n), 3); /* a beginning of it */
    assert_int_equal(n, n_whole);
    assert_int_equal(after(t, whole, n_whole, "Hello world", NULL), 2); /* a longer text */
    const int32_t letters[] = {mn_token_id(t, "H"),
                               mn_token_id(t, "e"),
                               mn_token_id(t, "l"),
                               mn_token_id(t, "l"),
                               mn_token_id(t, "o"),
                               mn_token_id(t, "\xC4\xA0"
                                              "w"),
                               mn_token_id(t, "o"),
                               mn_token_id(t, "x")};
    for (size_t i = 0; i < 8; i++) assert_true(letters[i] >= 0);
    assert_int_equal(after(t, letters, 5, text, &n), 5); /* cut otherwise */
    assert_int_equal(n, n_whole + 4);
    assert_int_equal(after(t, letters, 8, text, NULL), 5); /* up to where tokens of both end and the texts are equal */
    assert_int_equal(after(t, letters + 1, 7, text, &n), 0); /* another text */
    assert_int_equal(n, n_whole);
    mn_free(whole);
    mn_tokenizer_close(&t);
}

/* Pieces of a text that are tokenized one by one, with a wrong end behind them. */
static void random_pieces_are_kept(void **state) {
    (void)state;
    static const char *const folders[] = {TESTS_DIR "/data/tokenizers/smollm2", TESTS_DIR "/data/tokenizers/gpt2"};
    static const char text[] =
        "It's 3:45 \xE2\x80\x94 na\xC3\xAFve caf\xC3\xA9s   (\xE4\xBD\xA0\xE5\xA5\xBD) don't\n\n\tsleep 12345";
    uint64_t seed = 11;
    for (size_t f = 0; f < 2; f++) {
        mn_tokenizer *t;
        size_t n_kept = 0;
        assert_ok(mn_tokenizer_open(&t, folders[f]));
        for (int round = 0; round < 200; round++) {
            int32_t held[256];
            size_t n_held = 0, at = 0, end = test_random(&seed) % sizeof text;
            while (at < end) {
                int32_t *ids;
                size_t n, length = 1 + test_random(&seed) % 6;
                while (at + length < sizeof text - 1 && ((unsigned char)text[at + length] & 0xC0) == 0x80) length++;
                if (at + length > sizeof text - 1) length = sizeof text - 1 - at;
                assert_ok(mn_tokenize(t, text + at, length, 0, &ids, &n));
                memcpy(held + n_held, ids, n * sizeof *ids);
                mn_free(ids);
                n_held += n;
                at += length;
            }
            if (round % 2) held[n_held++] = (int32_t)(test_random(&seed) % 1000);
            n_kept += after(t, held, n_held, text, NULL);
        }
        assert_true(n_kept > 1000);
        mn_tokenizer_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_model_encodes_and_decodes),
        cmocka_unit_test(tokenizer_config_is_applied),
        cmocka_unit_test(the_only_template_is_the_default),
        cmocka_unit_test(more_special_tokens_are_read),
        cmocka_unit_test(companion_files_are_read),
        cmocka_unit_test(streaming_equals_decoding),
        cmocka_unit_test(token_bytes_concatenate_to_the_text),
        cmocka_unit_test(added_words_are_text),
        cmocka_unit_test(tokens_of_the_model_stay_bytes),
        cmocka_unit_test(streaming_emits_complete_characters_immediately),
        cmocka_unit_test(long_texts_encode_as_their_parts),
        cmocka_unit_test(long_words_encode_as_their_parts),
        cmocka_unit_test(threads_share_a_tokenizer),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(tokens_are_found_by_name),
        cmocka_unit_test(held_ids_are_kept),
        cmocka_unit_test(random_pieces_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
