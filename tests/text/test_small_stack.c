/* Deep nesting in every parsed format, in a thread with a stack of 64 KiB: a million levels are refused with a message,
 * and the deepest allowed nesting is read, used and freed.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/budget.h"
#include "support/gguf_writer.h"
#include "support/support.h"

#include "constraint/constraint.h"
#include "constraint/net.h"
#include "model/config.h"
#include "tensor/safetensors.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/tokenizer.h"

enum { LEVELS = 1000000 };

static void repeat(bytes *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) bytes_append_text(out, text);
}

/* `open` n times, `middle`, `close` n times. */
static bytes nest(const char *open, const char *middle, const char *close, size_t n) {
    bytes text = {0};
    repeat(&text, open, n);
    bytes_append_text(&text, middle);
    repeat(&text, close, n);
    assert_ok(bytes_status(&text));
    return text;
}

/* ---- JSON and what is read from it ---- */

static void json_values(void *unused) {
    (void)unused;
    static const char *const nests[][3] = {{"[", "1", "]"}, {"{\"a\":", "{}", "}"}, {"[{\"a\":[", "", "]}]"}};
    json_doc *doc;
    for (size_t i = 0; i < 3; i++) {
        for (int mode = 0; mode < 2; mode++) {
            bytes text = nest(nests[i][0], nests[i][1], nests[i][2], LEVELS), back = {0};
            assert_fails(MN_E_FORMAT, "nesting deeper than 256 levels",
                         json_parse(&doc, text.data, text.n, (json_mode)mode, "test"));
            assert_fails(MN_E_FORMAT, NULL, json_parse(&doc, text.data, LEVELS, (json_mode)mode, "test"));
            bytes_clear(&text);
            text = nest(nests[i][0], nests[i][1], nests[i][2], i == 0 ? 256 : i == 1 ? 255 : 85);
            assert_ok(json_parse(&doc, text.data, text.n, (json_mode)mode, "test"));
            json_put(&back, json_root(doc));
            assert_int_equal(back.n, text.n);
            assert_memory_equal(back.data, text.data, back.n);
            assert_fails(MN_E_FORMAT, "allowed: less", json_wrong_value("test", "key", json_root(doc), "less"));
            json_close(&doc);
            bytes_clear(&text);
            bytes_clear(&back);
        }
    }
}

static void tokenizers(void *unused) {
    (void)unused;
    static const char model[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}";
    static const char *const keys[][2] = {{"normalizer", "normalizers"},
                                          {"pre_tokenizer", "pretokenizers"},
                                          {"post_processor", "processors"},
                                          {"decoder", "decoders"}};
    for (size_t i = 0; i < 4; i++) {
        for (size_t levels = 120; levels <= LEVELS; levels += LEVELS - 120) {
            bytes text = {0}, open = {0};
            tokenizer *t;
            bytes_printf(&open, "{\"type\":\"Sequence\",\"%s\":[", keys[i][1]);
            bytes_printf(&text, "%s,\"%s\":", model, keys[i][0]);
            repeat(&text, bytes_text(&open), levels);
            repeat(&text, "]}", levels);
            bytes_append_text(&text, "}");
            mn_status status = tokenizer_from_memory(&t, text.data, text.n, NULL, 0);
            if (levels == LEVELS) {
                assert_fails(MN_E_FORMAT, "nesting deeper than 256 levels", status);
            } else {
                token_list ids = {0};
                assert_ok(status);
                assert_ok(tokenizer_encode(t, "ab", 2, 0, &ids));
                assert_int_equal(ids.n, 1);
                token_list_clear(&ids);
                tokenizer_close(&t);
            }
            bytes_clear(&text);
            bytes_clear(&open);
        }
    }
}

/* The real ones, from opening to decoding. */
static void real_tokenizers(void *unused) {
    (void)unused;
    static const char *const names[] = {"tokenizers/smollm2", "tokenizers/gpt2",
                                        "tokenizers/mistral-v3/tokenizer.model"};
    for (size_t i = 0; i < 3; i++) {
        static const char text[] = "A small stack is enough, \xC3\xA9t\xC3\xA9 comme hiver. \xE4\xBD\xA0\xE5\xA5\xBD\n";
        tokenizer *t;
        token_list ids = {0};
        bytes back = {0};
        assert_ok(tokenizer_open(&t, data_path(names[i])));
        assert_ok(tokenizer_encode(t, text, sizeof text - 1, 0, &ids));
        assert_ok(tokenizer_decode(t, ids.ids, ids.n, 0, &back));
        assert_non_null(strstr(bytes_text(&back), "A small stack is enough"));
        token_list_clear(&ids);
        bytes_clear(&back);
        tokenizer_close(&t);
    }
}

static void configurations(void *unused) {
    (void)unused;
    json_doc *doc;
    model_config config;
    bytes text = nest("{\"rope_scaling\":", "{}", "}", LEVELS);
    assert_fails(MN_E_FORMAT, "nesting deeper than 256 levels",
                 json_parse(&doc, text.data, text.n, JSON_PYTHON, "config.json"));
    bytes_clear(&text);
    text = nest("{\"rope_scaling\":", "{}", "}", 255);
    assert_ok(json_parse(&doc, text.data, text.n, JSON_PYTHON, "config.json"));
    assert_int_not_equal(config_from_json(&config, json_root(doc), "config.json"), MN_OK);
    json_close(&doc);
    bytes_clear(&text);
}

/* ---- containers ---- */

static void safetensors_headers(void *unused) {
    (void)unused;
    for (size_t levels = 200; levels <= LEVELS; levels += LEVELS - 200) {
        bytes header = {0}, file = {0};
        tensor_set *set;
        bytes_append_text(&header, "{\"__metadata__\":");
        repeat(&header, "{\"a\":", levels);
        bytes_append_text(&header, "{}");
        repeat(&header, "}", levels);
        bytes_append_text(&header, "}");
        uint64_t n = header.n;
        bytes_append(&file, &n, sizeof n);
        bytes_append(&file, header.data, header.n);
        assert_fails(MN_E_FORMAT, levels == LEVELS ? "nesting deeper than 256 levels" : NULL,
                     safetensors_open_memory(&set, file.data, file.n, "test"));
        bytes_clear(&header);
        bytes_clear(&file);
    }
}

static void gguf_arrays(void *unused) {
    (void)unused;
    static const uint32_t array = 9;
    uint32_t version = 3;
    uint64_t counts[2] = {0, 1}, one = 1;
    bytes file = {0};
    gguf *g;
    bytes_append_text(&file, "GGUF");
    bytes_append(&file, &version, 4);
    bytes_append(&file, counts, sizeof counts);
    bytes_append(&file, &one, 8);
    bytes_append_text(&file, "k");
    bytes_append(&file, &array, 4);
    for (size_t i = 0; i < LEVELS; i++) { /* an array of one array of one array ... */
        bytes_append(&file, &array, 4);
        bytes_append(&file, &one, 8);
    }
    assert_fails(MN_E_FORMAT, "arrays of arrays", gguf_open_memory(&g, file.data, file.n, "test"));
    bytes_clear(&file);
}

/* ---- patterns ---- */

static void tokenizer_patterns(void *unused) {
    (void)unused;
    static const char *const opens[] = {"(", "(?:", "(?=", "(?<!", "(?>", "(a|", "((?i)", "[", "[^", "(?|"};
    for (size_t i = 0; i < sizeof opens / sizeof *opens; i++) {
        bytes text = nest(opens[i], "a", opens[i][0] == '[' ? "]" : ")", LEVELS);
        regex *r;
        assert_fails(MN_E_FORMAT, "at most", regex_open(&r, text.data, text.n, "test"));
        assert_fails(opens[i][0] == '[' ? MN_E_UNSUPPORTED : MN_E_FORMAT, NULL,
                     regex_open(&r, text.data, 4090, "test"));
        bytes_clear(&text);
    }
    static const char *const deep[] = {"(", "(?:", "(a|", "(?=", "(?>b|"};
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        bytes text = nest(deep[i], "a+", i % 2 ? ")" : ")+", 24);
        regex *r;
        regex_state *state;
        char subject[300];
        bool found;
        size_t start, end;
        memset(subject, 'a', sizeof subject);
        assert_ok(regex_open(&r, text.data, text.n, "test"));
        bytes_clear(&text);
        assert_ok(regex_state_open(&state, sizeof subject));
        mn_status status = regex_find(r, state, subject, sizeof subject, 0, &found, &start, &end);
        if (status != MN_OK) assert_fails(MN_E_FORMAT, "too costly", status);
        regex_state_close(&state);
        regex_close(&r);
    }
}

static tokenizer *letters(void) {
    static const char text[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"{\":1,\"\\\"\":2,\":\":3,\"}\":4,\"[\":5,\"]\":6,\"1\":7},"
        "\"merges\":[]},\"added_tokens\":[{\"id\":8,\"content\":\"</s>\",\"special\":true}],\"decoder\":{\"type\":\"Fuse\"}}";
    tokenizer *t;
    assert_ok(tokenizer_from_memory(&t, text, sizeof text - 1, NULL, 0));
    return t;
}

/* Opens a constraint, computes the first mask and accepts one token. */
static void use(mn_status opened, constraint *c, int32_t first) {
    const uint64_t *mask;
    assert_ok(opened);
    assert_ok(constraint_allow(c, NULL, 0, &mask));
    assert_true(mask[0] >> first & 1);
    assert_ok(constraint_allow(c, &first, 1, &mask));
    constraint_close(&c);
}

static void constraint_patterns(void *unused) {
    (void)unused;
    static const char *const opens[] = {"(", "(?:", "(a|", "(?<n>", "("}, *const closes[] = {")", ")*", ")", ")+",
                                                                                             "){2,3}"};
    const int32_t end = 8;
    tokenizer *t = letters();
    for (size_t i = 0; i < sizeof opens / sizeof *opens; i++) {
        constraint *c;
        bytes text = nest(opens[i], "a", closes[i], LEVELS);
        assert_fails(MN_E_ARG, "at most", constraint_open_regex(&c, text.data, text.n, t, &end, 1, 9));
        assert_fails(MN_E_ARG, "more than 100 groups", constraint_open_regex(&c, text.data, 60000, t, &end, 1, 9));
        bytes_clear(&text);
        text = nest(opens[i], "a", closes[i], 100);
        mn_status status = constraint_open_regex(&c, text.data, text.n, t, &end, 1, 9);
        use(status, c, 0);
        bytes_clear(&text);
    }
    tokenizer_close(&t);
}

/* Groups inside each other, and rules that begin with the next one. */
static void constraint_grammars(void *unused) {
    (void)unused;
    static const char *const closes[] = {")", ")*", " | \"b\")", "){2,3}"};
    const int32_t end = 8;
    tokenizer *t = letters();
    constraint *c;
    for (size_t i = 0; i < sizeof closes / sizeof *closes; i++) {
        for (size_t levels = 100; levels <= 8000; levels += 7900) {
            bytes groups = nest("(", "\"a\"", closes[i], levels), text = {0};
            bytes_printf(&text, "root ::= %s", bytes_text(&groups));
            mn_status status = constraint_open_grammar(&c, text.data, text.n, t, &end, 1, 9);
            if (levels == 100) {
                use(status, c, 0);
            } else {
                assert_fails(MN_E_ARG, "more than 100 groups", status);
            }
            bytes_clear(&groups);
            bytes_clear(&text);
        }
    }
    bytes text = {0};
    bytes_append_text(&text, "root ::= r0");
    for (int i = 0; i < 4000; i++) bytes_printf(&text, "\nr%d ::= r%d", i, i + 1);
    bytes_append_text(&text, "\nr4000 ::= \"a\"+");
    mn_status status = constraint_open_grammar(&c, text.data, text.n, t, &end, 1, 9);
    use(status, c, 0);
    bytes_clear(&text);
    tokenizer_close(&t);
}

static void constraint_schemas(void *unused) {
    (void)unused;
    static const struct {
        const char *open, *middle, *close;
        size_t levels;
        int32_t first;
    } rows[] = {
        {"{\"items\":", "{\"type\":\"integer\"}", ",\"type\":\"array\"}", 250, 5},
        {"{\"properties\":{\"a\":", "{\"const\":1}", "},\"required\":[\"a\"],\"additionalProperties\":false}", 120, 1},
        {"{\"anyOf\":[", "{\"const\":1}", "]}", 120, 7},
        {"{\"allOf\":[", "{\"const\":1}", "]}", 120, 7},
        {"{\"anyOf\":[{\"type\":\"null\"},{\"items\":", "{\"type\":\"integer\"}", ",\"type\":\"array\"}]}", 80, 5},
        {"{\"oneOf\":[{\"type\":\"null\"},{\"prefixItems\":[", "{\"type\":\"integer\"}", "],\"type\":\"array\"}]}", 60,
         5},
        {"{\"not\":", "{\"const\":1}", "}", 120, 7},
        {"{\"if\":{\"type\":\"null\"},\"then\":false,\"else\":", "{\"const\":1}", "}", 120, 7},
        {"{\"type\":\"array\",\"uniqueItems\":true,\"items\":false,\"prefixItems\":[", "{\"const\":1}", "]}", 120, 5},
        {"{\"patternProperties\":{\"a\":", "{\"const\":1}", "},\"propertyNames\":{\"anyOf\":[{\"maxLength\":2}]}}", 120,
         1},
        {"{\"const\":[", "1", "]}", 1, 5}};
    const int32_t end = 8;
    tokenizer *t = letters();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_doc *doc;
        constraint *c;
        bytes text = nest(rows[i].open, rows[i].middle, rows[i].close, LEVELS);
        if (rows[i].levels > 1)
            assert_fails(MN_E_FORMAT, "nesting deeper than 256 levels",
                         json_parse(&doc, text.data, text.n, JSON_STRICT, "schema"));
        bytes_clear(&text);
        text = nest(rows[i].open, rows[i].middle, rows[i].close, rows[i].levels);
        assert_ok(json_parse(&doc, text.data, text.n, JSON_STRICT, "schema"));
        mn_status status = constraint_open_schema(&c, json_root(doc), t, &end, 1, 9);
        use(status, c, rows[i].first);
        json_close(&doc);
        bytes_clear(&text);
    }
    tokenizer_close(&t);
}

static void constants_of_schemas(void *unused) {
    (void)unused;
    const int32_t end = 8;
    tokenizer *t = letters();
    json_doc *doc;
    constraint *c;
    bytes deep = nest("[", "1.5", "]", 250), text = {0};
    bytes_printf(&text, "{\"allOf\":[{\"const\":%s},{\"const\":%s}]}", bytes_text(&deep), bytes_text(&deep));
    assert_ok(json_parse(&doc, text.data, text.n, JSON_STRICT, "schema"));
    mn_status status = constraint_open_schema(&c, json_root(doc), t, &end, 1, 9);
    use(status, c, 5);
    json_close(&doc);
    bytes_clear(&deep);
    bytes_clear(&text);
    tokenizer_close(&t);
}

/* ---- each in a new thread ---- */

#define SMALL(name)                                                                                                    \
    static void name##_fit(void **state) {                                                                             \
        (void)state;                                                                                                   \
        on_small_stack(name, NULL);                                                                                    \
    }

SMALL(json_values)
SMALL(tokenizers)
SMALL(real_tokenizers)
SMALL(configurations)
SMALL(safetensors_headers)
SMALL(gguf_arrays)
SMALL(tokenizer_patterns)
SMALL(constraint_patterns)
SMALL(constraint_grammars)
SMALL(constraint_schemas)
SMALL(constants_of_schemas)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_values_fit),          cmocka_unit_test(tokenizers_fit),
        cmocka_unit_test(real_tokenizers_fit),      cmocka_unit_test(configurations_fit),
        cmocka_unit_test(safetensors_headers_fit),  cmocka_unit_test(gguf_arrays_fit),
        cmocka_unit_test(tokenizer_patterns_fit),   cmocka_unit_test(constraint_patterns_fit),
        cmocka_unit_test(constraint_grammars_fit),  cmocka_unit_test(constraint_schemas_fit),
        cmocka_unit_test(constants_of_schemas_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
