/* Conditions in JSON schemas: not, if, dependentSchemas and oneOf, beside all other keywords, against an independent
 * validator.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/schema_check.h"
#include "support/schema_machine.h"
#include "support/support.h"

/* ---- random schemas ---- */

typedef struct writer {
    bytes out;
    uint64_t *seed;
    bool has_target; /* of $ref */
} writer;

static size_t below(writer *w, size_t n) {
    return (size_t)(test_random(w->seed) % n);
}

static const char *const constants[] = {"null",  "true",  "0",   "1",  "1.0", "2",         "\"\"", "[]",
                                        "\"a\"", "\"b\"", "1.5", "{}", "-1",  "{\"a\":1}", "[1]"};

enum { N_CONSTANTS = sizeof constants / sizeof *constants };

static void put_schema(writer *w, int depth);

static void put_schemas(writer *w, const char *key, size_t n, int depth) {
    bytes_printf(&w->out, "\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        if (i) bytes_append_text(&w->out, ",");
        put_schema(w, depth);
    }
    bytes_append_text(&w->out, "]");
}

static void put_named(writer *w, const char *key, const char *begin, const char *end, int depth) {
    bytes_printf(&w->out, "\"%s\":%s", key, begin);
    put_schema(w, depth);
    bytes_append_text(&w->out, end);
}

static void put_keyword(writer *w, int depth) {
    static const char *const types[] = {"null", "boolean", "integer", "number", "string", "array", "object", "object"};
    static const char *const limits[] = {"minimum",       "maximum",      "exclusiveMinimum", "exclusiveMaximum",
                                         "minLength",     "maxLength",    "minItems",         "maxItems",
                                         "minProperties", "maxProperties"};
    switch (depth ? below(w, 17) : below(w, 8)) {
    case 0:
    case 1: bytes_printf(&w->out, "\"type\":\"%s\"", types[below(w, 8)]); return;
    case 2: bytes_printf(&w->out, "\"type\":[\"%s\",\"%s\"]", types[below(w, 7)], types[below(w, 7)]); return;
    case 3: bytes_printf(&w->out, "\"const\":%s", constants[below(w, N_CONSTANTS)]); return;
    case 4:
        bytes_printf(&w->out, "\"enum\":[%s,%s]", constants[below(w, N_CONSTANTS)], constants[below(w, N_CONSTANTS)]);
        return;
    case 5: bytes_printf(&w->out, "\"%s\":%zu", limits[below(w, 10)], below(w, 3)); return;
    case 6: bytes_printf(&w->out, "\"required\":[\"%c\"]", "ab"[below(w, 2)]); return;
    case 7:
        bytes_append_text(&w->out, w->has_target ? "\"$ref\":\"#/$defs/d\"" : "\"dependentRequired\":{\"a\":[\"b\"]}");
        return;
    case 8:
    case 9: put_named(w, "properties", below(w, 2) ? "{\"a\":" : "{\"b\":true,\"a\":", "}", depth - 1); return;
    case 10: put_schemas(w, "allOf", 2, depth - 1); return;
    case 11: put_schemas(w, "anyOf", 2, depth - 1); return;
    case 12: put_schemas(w, "oneOf", 2, depth - 1); return;
    case 13: put_named(w, "not", "", "", depth - 1); return;
    case 14: put_named(w, "dependentSchemas", "{\"a\":", "}", depth - 1); return;
    case 15:
        put_named(w, "if", "", ",", depth - 1);
        if (below(w, 4)) put_named(w, "then", "", ",", depth - 1);
        put_named(w, "else", "", "", depth - 1);
        return;
    default:
        if (below(w, 2)) {
            put_named(w, below(w, 2) ? "items" : "additionalProperties", "", "", depth - 1);
        } else if (below(w, 2)) {
            put_named(w, "patternProperties", below(w, 2) ? "{\"^a\":" : "{\"[bc]\":", "}", depth - 1);
        } else if (below(w, 2)) {
            put_named(w, "propertyNames", "", "", depth - 1);
        } else {
            put_schemas(w, "prefixItems", 2, depth - 1);
        }
    }
}

/* Keywords may come twice: the last one counts. */
static void put_schema(writer *w, int depth) {
    size_t n = below(w, 12) ? 1 + below(w, 3) : 0;
    if (n == 0) {
        bytes_append_text(&w->out, below(w, 2) ? "true" : "false");
        return;
    }
    bytes_append_text(&w->out, "{");
    for (size_t i = 0; i < n; i++) {
        if (i) bytes_append_text(&w->out, ",");
        put_keyword(w, depth);
    }
    bytes_append_text(&w->out, "}");
}

static const char *const values[] = {"null",
                                     "true",
                                     "false",
                                     "0",
                                     "1",
                                     "1.0",
                                     "2",
                                     "3",
                                     "-1",
                                     "1.5",
                                     "0.5",
                                     "2.5",
                                     "\"\"",
                                     "\"a\"",
                                     "\"b\"",
                                     "\"ab\"",
                                     "\"abc\"",
                                     "[]",
                                     "[1]",
                                     "[null]",
                                     "[\"a\",1]",
                                     "[1,2,3]",
                                     "[{}]",
                                     "[[],\"b\"]",
                                     "{}",
                                     "{\"a\":1}",
                                     "{\"a\":0}",
                                     "{\"a\":null}",
                                     "{\"a\":\"a\"}",
                                     "{\"a\":{}}",
                                     "{\"a\":[]}",
                                     "{\"a\":1.5}",
                                     "{\"b\":1}",
                                     "{\"a\":1,\"b\":1}",
                                     "{\"b\":1,\"a\":1}",
                                     "{\"a\":true,\"b\":null}",
                                     "{\"b\":\"\",\"a\":\"b\"}",
                                     "{\"a\":{\"a\":1}}",
                                     "{\"c\":1}",
                                     "{\"a\":1,\"b\":2,\"c\":3}",
                                     "{\"a\":{\"a\":{\"b\":1}}}"};

enum { N_VALUES = sizeof values / sizeof *values };

/* Whether a refusal is one that random schemas may meet. */
static bool is_unsupported(const char *message) {
    return strstr(message, "not supported") || strstr(message, "is only supported") ||
           strstr(message, "supported with") || strstr(message, "cannot be met") ||
           strstr(message, "leads back to itself");
}

static void nothing_invalid_is_accepted(void **state) {
    (void)state;
    uint64_t seed = 11;
    size_t opened = 0, taken = 0, valid_values = 0;
    int n = test_is_long() ? 100000 : 5000 / test_stride(4);
    for (int i = 0; i < n; i++) {
        writer w = {.seed = &seed};
        machine m;
        bytes_append_text(&w.out, "{\"$defs\":{\"d\":");
        put_schema(&w, 1);
        bytes_append_text(&w.out, "},\"allOf\":[");
        w.has_target = true;
        put_schema(&w, 3);
        bytes_append_text(&w.out, "]}");
        mn_status status = machine_open(&m, bytes_text(&w.out));
        if (status != MN_OK && !is_unsupported(mn_last_error()))
            fail_msg("%s: %s", bytes_text(&w.out), mn_last_error());
        for (size_t k = 0; status == MN_OK && k < N_VALUES; k++) {
            bool takes = machine_takes(&m, values[k], strlen(values[k]));
            bool valid = schema_check_text(json_root(m.doc), values[k], strlen(values[k]));
            if (takes && !valid) fail_msg("%s\naccepts %s", bytes_text(&w.out), values[k]);
            taken += takes;
            valid_values += valid;
        }
        opened += status == MN_OK;
        machine_close(&m);
        bytes_clear(&w.out);
    }
    assert_true(opened > (size_t)n / 2 && taken * 2 > valid_values);
}

/* ---- schemas as people write them ---- */

#define ADDRESS                                                                                                        \
    "\"type\":\"object\",\"properties\":{\"country\":{\"enum\":[\"US\",\"CA\",\"NL\"]},\"code\":{\"type\":\"string\"}}"
#define IS(country)   "\"if\":{\"properties\":{\"country\":{\"const\":\"" country "\"}},\"required\":[\"country\"]}"
#define CODE(pattern) "{\"properties\":{\"code\":{\"pattern\":\"" pattern "\"}}}"
#define US            "^[0-9]{5}$"
#define CA            "^[A-Z][0-9]$"
#define NL            "^[0-9]{4} [A-Z]{2}$"
#define PAYMENT                                                                                                        \
    "{\"type\":\"object\",\"properties\":{\"by\":{\"enum\":[\"card\",\"cash\"]},\"card\":{\"type\":\"string\"},"       \
    "\"change\":{\"type\":\"number\"}},\"required\":[\"by\"],\"if\":{\"properties\":{\"by\":{\"const\":\"card\"}}},"   \
    "\"then\":{\"required\":[\"card\"]},\"else\":{\"properties\":{\"card\":false}}}"
#define CHAIN                                                                                                           \
    "{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"integer\"},\"v\":true},\"required\":[\"k\",\"v\"],"         \
    "\"if\":{\"properties\":{\"k\":{\"maximum\":0}}},\"then\":{\"properties\":{\"v\":{\"type\":\"null\"}}},"            \
    "\"else\":{\"if\":{\"properties\":{\"k\":{\"const\":1}}},\"then\":{\"properties\":{\"v\":{\"type\":\"boolean\"}}}," \
    "\"else\":{\"properties\":{\"v\":{\"type\":\"string\"}}}}}"

typedef struct row {
    const char *schema, *text;
    bool expected;
} row;

static void check_rows(const row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        machine m;
        assert_ok(machine_open(&m, rows[i].schema));
        bool valid = schema_check_text(json_root(m.doc), rows[i].text, strlen(rows[i].text));
        if (rows[i].expected && !valid) fail_msg("the test is wrong: %s on %s", rows[i].schema, rows[i].text);
        if (machine_takes(&m, rows[i].text, strlen(rows[i].text)) != rows[i].expected)
            fail_msg("%s on %s", rows[i].schema, rows[i].text);
        machine_close(&m);
    }
}

static void conditions_choose_what_else_holds(void **state) {
    (void)state;
    static const char two[] =
        "{" ADDRESS ",\"required\":[\"country\",\"code\"]," IS("US") ",\"then\":" CODE(US) ",\"else\":" CODE(CA) "}";
    static const char all[] = "{" ADDRESS ",\"required\":[\"country\",\"code\"],\"allOf\":[{" IS(
        "US") ",\"then\":" CODE(US) "},{" IS("CA") ",\"then\":" CODE(CA) "},{" IS("NL") ",\"then\":" CODE(NL) "}]}";
    const row rows[] = {
        {two, "{\"country\":\"US\",\"code\":\"12345\"}", true},
        {two, "{\"country\":\"US\",\"code\":\"K1\"}", false},
        {two, "{\"country\":\"CA\",\"code\":\"K1\"}", true},
        {two, "{\"country\":\"NL\",\"code\":\"K1\"}", true},
        {two, "{\"country\":\"CA\",\"code\":\"12345\"}", false},
        {two, "{\"country\":\"DE\",\"code\":\"K1\"}", false},
        {two, "{\"code\":\"K1\"}", false},
        {all, "{\"country\":\"US\",\"code\":\"12345\"}", true},
        {all, "{\"country\":\"CA\",\"code\":\"K1\"}", true},
        {all, "{\"country\":\"NL\",\"code\":\"1234 AB\"}", true},
        {all, "{\"country\":\"NL\",\"code\":\"12345\"}", false},
        {all, "{\"country\":\"US\",\"code\":\"1234 AB\"}", false},
        {"{" ADDRESS "," IS("US") ",\"then\":{\"required\":[\"code\"]}}", "{}", true},
        {"{" ADDRESS "," IS("US") ",\"then\":{\"required\":[\"code\"]}}", "{\"country\":\"CA\"}", true},
        {"{" ADDRESS "," IS("US") ",\"then\":{\"required\":[\"code\"]}}", "{\"country\":\"US\"}", false},
        {"{" ADDRESS "," IS("US") ",\"then\":{\"required\":[\"code\"]}}", "{\"country\":\"US\",\"code\":\"\"}", true},
        {PAYMENT, "{\"by\":\"card\",\"card\":\"1\"}", true},
        {PAYMENT, "{\"by\":\"card\"}", false},
        {PAYMENT, "{\"by\":\"card\",\"change\":1}", false},
        {PAYMENT, "{\"by\":\"cash\",\"card\":\"1\"}", false},
        {PAYMENT, "{\"by\":\"cash\",\"change\":1.5}", true},
        {CHAIN, "{\"k\":0,\"v\":null}", true},
        {CHAIN, "{\"k\":0,\"v\":true}", false},
        {CHAIN, "{\"k\":1,\"v\":true}", true},
        {CHAIN, "{\"k\":1,\"v\":\"\"}", false},
        {CHAIN, "{\"k\":2,\"v\":\"\"}", true},
        {CHAIN, "{\"k\":-3,\"v\":\"\"}", false},
        {"{\"type\":[\"object\",\"string\"],\"if\":{\"required\":[\"a\"]},\"then\":{\"maxProperties\":1},\"else\":false}",
         "{\"a\":1}", true},
        {"{\"type\":[\"object\",\"string\"],\"if\":{\"required\":[\"a\"]},\"then\":{\"maxProperties\":1},\"else\":false}",
         "\"x\"", true},
        {"{\"type\":[\"object\",\"string\"],\"if\":{\"required\":[\"a\"]},\"then\":{\"maxProperties\":1},\"else\":false}",
         "{}", false},
        {"{\"if\":{\"type\":\"string\"},\"type\":[\"string\",\"null\"]}", "null", true},
        {"{\"then\":false,\"else\":{\"contains\":1},\"type\":\"null\"}", "null", true},
        {"{\"properties\":{\"a\":true,\"b\":true},\"dependentSchemas\":{\"a\":{\"required\":[\"b\"]}}}", "{\"a\":1}",
         false},
        {"{\"properties\":{\"a\":true,\"b\":true},\"dependentSchemas\":{\"a\":{\"required\":[\"b\"]}}}", "{\"b\":1}",
         true},
        {"{\"properties\":{\"a\":true,\"b\":true},\"dependentSchemas\":{\"a\":{\"required\":[\"b\"]}}}",
         "{\"a\":1,\"b\":1}", true},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
}

static void negations_exclude_what_they_name(void **state) {
    (void)state;
    static const char texts[] = "{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"abc\",\"\",\"\\n\"]},\"maxLength\":3}";
    static const char numbers[] = "{\"type\":\"integer\",\"minimum\":0,\"maximum\":5,\"not\":{\"enum\":[2,4.0,\"x\"]}}";
    static const char pair[] =
        "{\"type\":\"object\",\"properties\":{\"a\":true,\"b\":true},\"not\":{\"required\":[\"a\",\"b\"]}}";
    static const char either[] =
        "{\"type\":\"object\",\"properties\":{\"a\":true,\"b\":true},\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}";
    static const char closed[] =
        "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":true},\"required\":[\"a\"],\"additionalProperties\":false},{\"type\":\"object\",\"properties\":{\"b\":true},\"required\":[\"b\"],\"additionalProperties\":false}]}";
    static const char list[] = "{\"type\":\"array\",\"not\":{\"prefixItems\":[{\"const\":1}],\"minItems\":1}}";
    static const char typed[] = "{\"type\":\"object\",\"not\":{\"properties\":{\"foo\":{\"type\":\"string\"}}}}";
    const row rows[] = {
        {texts, "\"a\"", false},
        {texts, "\"\\u0061\"", false},
        {texts, "\"\"", false},
        {texts, "\"abc\"", false},
        {texts, "\"\\n\"", false},
        {texts, "\"\\u000a\"", false},
        {texts, "\"ab\"", true},
        {texts, "\"b\"", true},
        {texts, "\"\\n\\u000a\"", true},
        {texts, "\"abd\"", true},
        {texts, "\"abcd\"", false},
        {texts, "\"bbbb\"", false},
        {numbers, "0", true},
        {numbers, "1", true},
        {numbers, "2", false},
        {numbers, "3", true},
        {numbers, "4", false},
        {numbers, "5", true},
        {numbers, "6", false},
        {"{\"type\":\"number\",\"not\":{\"const\":0}}", "0.5", true},
        {"{\"type\":\"number\",\"not\":{\"const\":0}}", "-0", false},
        {"{\"type\":\"number\",\"not\":{\"const\":0}}", "0.0", false},
        {"{\"type\":\"number\",\"not\":{\"const\":0}}", "0e5", false},
        {"{\"type\":\"number\",\"not\":{\"type\":\"integer\"}}", "1.5", true},
        {"{\"type\":\"number\",\"not\":{\"type\":\"integer\"}}", "1", false},
        {"{\"type\":\"number\",\"not\":{\"type\":\"integer\"}}", "1.0", false},
        {"{\"type\":\"number\",\"not\":{\"type\":\"integer\"}}", "1.5e1", false},
        {"{\"type\":[\"boolean\",\"null\",\"string\"],\"not\":{\"enum\":[true,null]}}", "false", true},
        {"{\"type\":[\"boolean\",\"null\",\"string\"],\"not\":{\"enum\":[true,null]}}", "true", false},
        {"{\"type\":[\"boolean\",\"null\",\"string\"],\"not\":{\"enum\":[true,null]}}", "null", false},
        {"{\"type\":[\"boolean\",\"null\",\"string\"],\"not\":{\"enum\":[true,null]}}", "\"null\"", true},
        {"{\"type\":[\"array\",\"object\"],\"not\":{\"enum\":[[],{}]}}", "[]", false},
        {"{\"type\":[\"array\",\"object\"],\"not\":{\"enum\":[[],{}]}}", "{ }", false},
        {"{\"type\":[\"array\",\"object\"],\"not\":{\"enum\":[[],{}]}}", "[1]", true},
        {"{\"type\":[\"array\",\"object\"],\"not\":{\"enum\":[[],{}]}}", "{\"a\":1}", true},
        {pair, "{\"a\":1}", true},
        {pair, "{\"b\":1}", true},
        {pair, "{}", true},
        {pair, "{\"a\":1,\"b\":1}", false},
        {either, "{\"a\":1}", true},
        {either, "{\"b\":1}", true},
        {either, "{}", false},
        {either, "{\"a\":1,\"b\":1}", false},
        {closed, "{\"a\":1}", true},
        {closed, "{\"b\":1}", true},
        {closed, "{\"a\":1,\"b\":1}", false},
        {closed, "{}", false},
        {list, "[]", true},
        {list, "[1]", false},
        {list, "[2]", true},
        {list, "[1,2]", false},
        {typed, "{}", false},
        {typed, "{\"foo\":1}", true},
        {typed, "{\"foo\":\"\"}", false},
        {"{\"type\":\"object\",\"not\":{\"required\":[\"a\"]}}", "{\"b\":1}", true},
        {"{\"type\":\"object\",\"not\":{\"required\":[\"a\"]}}", "{\"a\":1}", false},
        {"{\"type\":\"object\",\"not\":{\"required\":[\"a\"]}}", "{\"\\u0061\":1}", false},
        {"{\"not\":{\"type\":[\"string\",\"object\",\"array\"]},\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}",
         "7", true},
        {"{\"type\":\"number\",\"not\":{\"minimum\":3,\"exclusiveMinimum\":true}}", "3", true},
        {"{\"type\":\"number\",\"not\":{\"minimum\":3,\"exclusiveMinimum\":true}}", "3.5", false},
        {"{\"type\":\"number\",\"not\":{\"minimum\":3,\"maximum\":5}}", "2.5", true},
        {"{\"type\":\"number\",\"not\":{\"minimum\":3,\"maximum\":5}}", "4", false},
        {"{\"type\":\"number\",\"not\":{\"minimum\":3,\"maximum\":5}}", "5.5", true},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "1", false},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "1.5", true},
        {"{\"items\":{\"enum\":[1,2,3],\"not\":{\"const\":2}},\"uniqueItems\":true}", "[3,1]", true},
        {"{\"items\":{\"enum\":[1,2,3],\"not\":{\"const\":2}},\"uniqueItems\":true}", "[3,2]", false},
        {"{\"items\":{\"type\":\"boolean\",\"if\":{\"const\":true},\"then\":false},\"uniqueItems\":true}", "[false]",
         true},
        {"{\"items\":{\"type\":\"boolean\",\"if\":{\"const\":true},\"then\":false},\"uniqueItems\":true}", "[true]",
         false},
        {"{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/$defs/t\"},\"x\":{\"const\":1}}}},"
         "\"type\":\"object\",\"not\":{\"$ref\":\"#/$defs/t\"}}",
         "{\"n\":{\"n\":{\"x\":2}}}", true},
        {"{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/$defs/t\"},\"x\":{\"const\":1}}}},"
         "\"type\":\"object\",\"not\":{\"$ref\":\"#/$defs/t\"}}",
         "{\"n\":{\"n\":{\"x\":1}}}", false},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
}

static void negations_that_are_not_supported_are_named(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        mn_status code;
        const char *part;
    } rows[] = {
        {"{\"not\":{}}", MN_E_ARG, "$: no value is allowed"},
        {"{\"not\":true}", MN_E_ARG, "$: no value is allowed"},
        {"{\"not\":3}", MN_E_ARG, "'not' must be a schema"},
        {"{\"not\":{\"pattern\":\"a\"}}", MN_E_UNSUPPORTED, "schema, $: 'not' of 'pattern' is not supported"},
        {"{\"properties\":{\"a\":{\"if\":{\"format\":\"date\"},\"then\":false}}}", MN_E_UNSUPPORTED,
         "schema, $.a: 'not' of 'format' is not supported"},
        {"{\"not\":{\"items\":{\"type\":\"null\"}}}", MN_E_UNSUPPORTED, "'not' of 'items' is not supported"},
        {"{\"not\":{\"multipleOf\":2}}", MN_E_UNSUPPORTED, "'not' of 'multipleOf' is not supported"},
        {"{\"not\":{\"contains\":true}}", MN_E_UNSUPPORTED, "'not' of 'contains' is not supported"},
        {"{\"not\":{\"uniqueItems\":true}}", MN_E_UNSUPPORTED, "'not' of 'uniqueItems' is not supported"},
        {"{\"not\":{\"additionalProperties\":false}}", MN_E_UNSUPPORTED, "'not' of 'additionalProperties' is not"},
        {"{\"oneOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", MN_E_UNSUPPORTED, "(use anyOf)"},
        {"{\"type\":\"array\",\"not\":{\"const\":[1]}}", MN_E_UNSUPPORTED,
         "'not' of a constant that is an array or object"},
        {"{\"type\":\"string\",\"format\":\"date\",\"not\":{\"const\":\"2024-01-01\"}}", MN_E_UNSUPPORTED,
         "'not' of constants is not supported beside a 'pattern' or 'format'"},
        {"{\"type\":\"number\",\"minimum\":1,\"not\":{\"type\":\"integer\"}}", MN_E_UNSUPPORTED,
         "schema, $: 'not' of integers is not supported"},
        {"{\"type\":\"integer\",\"not\":{\"type\":\"integer\"}}", MN_E_ARG, "cannot be met"},
        {"{\"dependentSchemas\":[]}", MN_E_ARG, "'dependentSchemas' must be an object"},
        {"{\"not\":{\"allOf\":[]}}", MN_E_ARG, "'allOf' must be an array"},
        {"{\"not\":{\"required\":[1]}}", MN_E_ARG, "'required' must have arrays of names"},
        {"{\"not\":{\"$ref\":\"#/x\"}}", MN_E_ARG, "the $ref '#/x' leads nowhere"},
        {"{\"not\":{\"$ref\":\"#\"}}", MN_E_ARG, "the negation of a schema leads back to itself"},
        {"{\"anyOf\":[{\"if\":{\"allOf\":[{\"$ref\":\"#\"}]},\"then\":false},{\"type\":\"null\"}]}", MN_E_ARG,
         "back to itself"},
        {"{\"$defs\":{\"a\":{\"not\":{\"$ref\":\"#/$defs/b\"}},\"b\":{\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"type\":\"null\"}]}},\"$ref\":\"#/$defs/b\"}",
         MN_E_ARG, "back to itself"},
        {"{\"type\":\"object\",\"required\":[\"a\"],\"properties\":{\"a\":{\"const\":1}},\"if\":{\"properties\":{\"a\":{\"const\":1}}},"
         "\"then\":false}",
         MN_E_ARG, "cannot be met"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        machine m;
        mn_status status = machine_open(&m, rows[i].schema);
        if (status != rows[i].code || !strstr(mn_last_error(), rows[i].part))
            fail_msg("%s: status %d, %s", rows[i].schema, status, mn_last_error());
        machine_close(&m);
    }
}

/* ---- large and hostile schemas ---- */

static void put_nested(bytes *out, const char *begin, const char *inner, const char *end, size_t n) {
    for (size_t i = 0; i < n; i++) bytes_append_text(out, begin);
    bytes_append_text(out, inner);
    for (size_t i = 0; i < n; i++) bytes_append_text(out, end);
}

static void deep_conditions_are_followed(void **state) {
    (void)state;
    for (size_t n = 120; n < 122; n++) {
        machine m;
        bytes text = {0};
        put_nested(&text, "{\"not\":", "{\"type\":[\"string\",\"null\"]}", "}", n);
        assert_ok(machine_open(&m, bytes_text(&text)));
        assert_int_equal(machine_takes(&m, "null", 4), n % 2 == 0);
        assert_int_equal(machine_takes(&m, "true", 4), n % 2 == 1);
        machine_close(&m);
        bytes_clear(&text);
    }
    machine m;
    bytes text = {0};
    put_nested(&text, "{\"if\":{\"type\":\"null\"},\"then\":true,\"else\":", "{\"const\":7}", "}", 120);
    assert_ok(machine_open(&m, bytes_text(&text)));
    assert_true(machine_takes(&m, "null", 4) && machine_takes(&m, "7", 1) && !machine_takes(&m, "8", 1));
    machine_close(&m);
    bytes_clear(&text);
}

/* So many conditions of the form "if k is i, then a member of its own is required". */
static void put_cases(bytes *out, size_t n, bool independent) {
    bytes_append_text(
        out, "{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"integer\"}},\"required\":[\"k\"],\"allOf\":[");
    for (size_t i = 0; i < n; i++)
        bytes_printf(
            out,
            "%s{\"if\":{\"properties\":{\"k%.*zu\":{\"const\":%zu}},\"required\":[\"k%.*zu\"]},\"then\":{\"properties\":{\"m%zu\":{\"type\":\"null\"}},\"required\":[\"m%zu\"]}}",
            i ? "," : "", independent ? 1 : 0, independent ? i + 1 : 0, i, independent ? 1 : 0, independent ? i + 1 : 0,
            i, i);
    bytes_append_text(out, "]}");
}

static void many_conditions_are_bounded(void **state) {
    (void)state;
    machine m;
    bytes text = {0};
    put_cases(&text, 20, false);
    assert_ok(machine_open(&m, bytes_text(&text)));
    assert_true(m.g.n < 2000);
    assert_true(machine_takes(&m, "{\"k\":7,\"m7\":null}", 17));
    assert_true(machine_takes(&m, "{\"k\":20}", 8));
    assert_false(machine_takes(&m, "{\"k\":7}", 7));
    machine_close(&m);
    bytes_clear(&text);
    put_cases(&text, 8, true);
    assert_ok(machine_open(&m, bytes_text(&text)));
    assert_true(machine_takes(&m, "{\"k\":7,\"k7\":6,\"m6\":null}", 24));
    assert_false(machine_takes(&m, "{\"k\":7,\"k7\":6}", 14));
    machine_close(&m);
    bytes_clear(&text);
    put_cases(&text, 40, true);
    assert_int_equal(machine_open(&m, bytes_text(&text)), MN_E_ARG);
    assert_non_null(strstr(mn_last_error(), "too "));
    machine_close(&m);
    bytes_clear(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_invalid_is_accepted),
        cmocka_unit_test(conditions_choose_what_else_holds),
        cmocka_unit_test(negations_exclude_what_they_name),
        cmocka_unit_test(negations_that_are_not_supported_are_named),
        cmocka_unit_test(deep_conditions_are_followed),
        cmocka_unit_test(many_conditions_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
