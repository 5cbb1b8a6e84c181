/* JSON schemas as constraints, without tokens: random walks give JSON that an independent validator accepts, texts that
 * an independent generator makes from a schema are accepted, and unsupported or unsatisfiable schemas are refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "support/schema_check.h"
#include "support/schema_machine.h"
#include "support/support.h"

#define PERSON                                                                                                                        \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":12},\"age\":"                   \
    "{\"type\":\"integer\",\"minimum\":0,\"maximum\":130},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\\n\",7,null]}," \
    "\"maxItems\":3}},\"required\":[\"name\",\"age\"],\"additionalProperties\":false}"

static const char *const schemas[] = {
    "true",
    "{}",
    "{\"type\":\"object\"}",
    "{\"type\":\"array\"}",
    "{\"type\":\"string\"}",
    "{\"type\":\"number\"}",
    "{\"type\":\"integer\"}",
    "{\"type\":[\"boolean\",\"null\"]}",
    "{\"type\":[\"integer\",\"string\"],\"minimum\":-3,\"maxLength\":2}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"nullable\":true},\"nullable\":false}",
    "{\"enum\":[\"red\",\"green\",\"greenish\",1,1.5,true,null,{\"a\":[1,\"\\\"\"]},\"\\u00e9\"]}",
    "{\"const\":{\"x\":[]}}",
    "{\"type\":\"string\",\"enum\":[\"a\",1,\"b\"]}",
    "{\"type\":\"string\",\"minLength\":3,\"maxLength\":5}",
    "{\"type\":\"string\",\"minLength\":2}",
    "{\"type\":\"string\",\"pattern\":\"^[a-f]+-\\\\d{2}$\"}",
    "{\"type\":\"string\",\"pattern\":\"b[\\\"\\\\\\\\]c\"}",
    "{\"type\":\"string\",\"pattern\":\"^[^a-z]{2,4}$\"}",
    "{\"type\":\"string\",\"pattern\":\"^\\\\S+$\",\"maxLength\":6,\"minLength\":2}",
    "{\"type\":\"string\",\"format\":\"date\"}",
    "{\"type\":\"string\",\"format\":\"time\"}",
    "{\"type\":\"string\",\"format\":\"date-time\"}",
    "{\"type\":\"string\",\"format\":\"uuid\"}",
    "{\"type\":\"string\",\"format\":\"email\"}",
    "{\"type\":\"string\",\"format\":\"ipv4\"}",
    "{\"type\":\"string\",\"format\":\"color\"}",
    "{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":105}",
    "{\"type\":\"integer\",\"minimum\":1.5,\"maximum\":2.5}",
    "{\"type\":\"integer\",\"exclusiveMinimum\":3}",
    "{\"type\":\"integer\",\"minimum\":3,\"exclusiveMinimum\":3,\"maximum\":5,\"exclusiveMaximum\":5}",
    "{\"type\":\"integer\",\"exclusiveMinimum\":1.5,\"exclusiveMaximum\":2.5}",
    "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
    "{\"type\":\"number\",\"exclusiveMinimum\":-3,\"exclusiveMaximum\":12}",
    "{\"type\":\"number\",\"maximum\":-5}",
    "{\"type\":\"number\",\"minimum\":-0.25,\"maximum\":10.125}",
    "{\"type\":\"number\",\"maximum\":100,\"multipleOf\":0.25}",
    "{\"type\":\"integer\",\"multipleOf\":7,\"maximum\":100000}",
    "{\"allOf\":[{\"type\":\"integer\",\"multipleOf\":6},{\"multipleOf\":4}],\"maximum\":100000}",
    PERSON,
    "{\"type\":\"array\",\"items\":" PERSON ",\"minItems\":1,\"maxItems\":3}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":3}],\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":4}",
    "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"items\":false}",
    "{\"type\":\"array\",\"items\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"additionalItems\":{\"const\":0},\"minItems\":2}",
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2}",
    "{\"type\":\"array\",\"maxItems\":0}",
    "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}}}}",
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{\"type\":\"string\"},\"\\u00e9\\\"\":{\"type\":\"null\"}},"
    "\"additionalProperties\":{\"type\":\"boolean\"}}",
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":true,\"required\":[\"zz\",\"a\"]}",
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
    "{\"type\":\"object\",\"required\":[\"x\",\"y\"]}",
    "{\"type\":\"object\",\"minProperties\":1}",
    "{\"properties\":{\"a\":{},\"b\":{\"type\":\"null\"},\"c\":{}},\"dependentRequired\":{\"a\":[\"b\"],\"c\":[\"a\",\"b\"]},\"additionalProperties\":{\"const\":0}}",
    "{\"dependentRequired\":{\"a\":[\"b\"]},\"maxProperties\":3}",
    "{\"type\":\"object\",\"maxProperties\":2}",
    "{\"properties\":{\"a\":{},\"b\":{\"type\":\"null\"},\"c\":{\"maxProperties\":0},\"d\":{}},\"minProperties\":2,\"maxProperties\":3,\"required\":[\"c\"]}",
    "{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"}},\"minProperties\":2,\"maxProperties\":3,\"additionalProperties\":{\"const\":0}}",
    "{\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"}},\"minProperties\":3,\"additionalProperties\":{\"const\":0}}",
    "{\"properties\":{\"xa\":{\"type\":\"null\"},\"b\":{}},\"patternProperties\":{\"^x\":{},\"[0-9]$\":{\"type\":\"integer\"}},\"additionalProperties\":false}",
    "{\"patternProperties\":{\"^a\":{\"type\":\"boolean\"},\"\\n.?$\":{\"type\":[\"boolean\",\"null\"]}},\"additionalProperties\":{\"maxLength\":2},\"minProperties\":1,"
    "\"propertyNames\":{\"minLength\":1,\"maxLength\":4}}",
    "{\"propertyNames\":{\"anyOf\":[{\"format\":\"date\"},{\"$ref\":\"#/$defs/n\"}]},\"patternProperties\":{\"-\":{\"$ref\":\"#\"}},\"additionalProperties\":{\"const\":1},"
    "\"$defs\":{\"n\":{\"enum\":[\"a\\\\b\",\"é-\",\"q\"]}}}",
    "{\"patternProperties\":{\"^k[0-9]+$\":{\"type\":\"null\"}},\"dependentRequired\":{\"k1\":[\"z\"]},\"maxProperties\":3}",
    "{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":true,\"c\":{\"type\":\"null\"}}}",
    "{\"properties\":{\"a\":{\"type\":\"integer\"}}}",
    "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1},{\"type\":\"null\"}]}",
    "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},\"required\":[\"kind\",\"x\"]},"
    "{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"b\",\"c\"]},\"y\":{\"type\":\"string\",\"maxLength\":2}},\"required\":[\"kind\"]}]}",
    "{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3}},\"required\":[\"a\"]},"
    "{\"properties\":{\"a\":{\"maximum\":9},\"b\":{\"type\":\"boolean\"}},\"required\":[\"b\"]}]}",
    "{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"string\",\"maxLength\":2}},\"anyOf\":[{\"required\":[\"v\"]},{\"properties\":{\"w\":{\"const\":1}},\"required\":[\"w\"]}]}",
    "{\"$ref\":\"#/$defs/node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"children\":"
    "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/node\"}}},\"required\":[\"v\"],\"additionalProperties\":false}}}",
    "{\"definitions\":{\"list\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"object\",\"properties\":{\"head\":{\"type\":\"boolean\"},\"tail\":"
    "{\"$ref\":\"#/definitions/list\"}},\"required\":[\"head\",\"tail\"]}]}},\"$ref\":\"#/definitions/list\"}",
    "{\"type\":\"object\",\"properties\":{\"left\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]},\"right\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},\"required\":[\"left\",\"right\"]}",
    "{\"$defs\":{\"a~b/c%-1%\":{\"type\":\"integer\",\"maximum\":5}},\"$ref\":\"#/$defs/a~0b~1c%-1%25\",\"minimum\":4}",
    "{\"$defs\":{\"base\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\",\"minimum\":0}},\"required\":[\"id\"]}},\"allOf\":[{\"$ref\":\"#/$defs/base\"},"
    "{\"properties\":{\"next\":{\"$ref\":\"#\"},\"id\":{\"maximum\":9}}}]}",
    "{\"$ref\":\"#list\",\"$defs\":{\"l\":{\"$anchor\":\"list\",\"type\":\"array\",\"items\":{\"$ref\":\"#b\"},\"maxItems\":2},\"b\":{\"$anchor\":\"b\",\"type\":\"boolean\"}}}",
    "{\"anyOf\":[{\"$ref\":\"#/anyOf/1\"},{\"type\":\"boolean\"}]}",
    "{\"title\":\"T\",\"description\":\"d\",\"default\":1,\"examples\":[2],\"x-order\":3,\"uniqueItems\":false,\"type\":\"null\"}",
};

enum { N_SCHEMAS = sizeof schemas / sizeof *schemas };

static void walks_are_valid(void **state) {
    (void)state;
    char text[MACHINE_TEXT];
    uint64_t seed = 3;
    for (size_t i = 0; i < N_SCHEMAS; i++) {
        machine m;
        assert_ok(machine_open(&m, schemas[i]));
        for (int k = 0; k < (test_is_long() ? 3000 : 300); k++) {
            size_t n = machine_walk(&m, &seed, text);
            if (!schema_check_text(json_root(m.doc), text, n)) fail_msg("%s\ngave %.*s", schemas[i], (int)n, text);
        }
        machine_close(&m);
    }
}

/* ---- texts generated from a schema ---- */

typedef struct writer {
    bytes out;
    const json *root;
    uint64_t *seed;
    int style, depth; /* 0: compact; 1: spaces; 2: lines indented by two */
} writer;

static size_t below(writer *w, size_t n) {
    return (size_t)(test_random(w->seed) % n);
}

static void line(writer *w) {
    if (w->style == 2) bytes_printf(&w->out, "\n%*s", 2 * w->depth, "");
}

static void comma(writer *w, bool first) {
    if (!first) bytes_append_text(&w->out, w->style == 1 ? ", " : ",");
    line(w);
}

static void put_text(writer *w, size_t min, size_t max) {
    static const char *const parts[] = {"a",    "Z",    " ", "\"", "\\", "/", "\n", "\t",
                                        "\x01", "\x7f", "é", "€",  "😀",  "{", ":",  "0"};
    bytes text = {0};
    size_t n = min + below(w, max - min + 1);
    for (size_t i = 0; i < n; i++) bytes_append_text(&text, parts[below(w, sizeof parts / sizeof *parts)]);
    json_put_string(&w->out, bytes_text(&text), text.n);
    bytes_clear(&text);
}

static void put_value(writer *w, const json *schema);

static void put_any(writer *w) {
    static const char *const values[] = {
        "{}", "[]", "null", "true", "-0.5e+10", "1E2", "\"\\u00e9\\ud83d\\ude00\\/\"", "12", "[[1,[2]],{\"\":{}}]"};
    bytes_append_text(&w->out, values[below(w, sizeof values / sizeof *values)]);
}

static void put_object(writer *w, const json *schema) {
    const json *properties = json_get(schema, "properties"), *required = json_get(schema, "required");
    const json *others = json_get(schema, "additionalProperties");
    bool first = true;
    bytes_append_text(&w->out, "{");
    w->depth++;
    for (size_t i = 0; properties && i < properties->n; i++) {
        const json_member *member = &properties->members[i];
        bool needed = false;
        for (size_t k = 0; required && k < required->n; k++) needed |= json_is_string(&required->items[k], member->key);
        if ((member->value.kind == JSON_BOOL && !member->value.boolean) || (!needed && (below(w, 2) || w->depth > 6)))
            continue;
        comma(w, first);
        first = false;
        json_put_string(&w->out, member->key, member->key_n);
        bytes_append_text(&w->out, w->style ? ": " : ":");
        put_value(w, &member->value);
    }
    for (size_t i = 0; others && others->kind == JSON_OBJECT && i < below(w, 3); i++) {
        static const char *const names[] = {"\"\":", "\"b\":", "\"abc\":", "\"x\\u0041\":", "\"é\":", "\"\\\"\":"};
        comma(w, first);
        first = false;
        bytes_append_text(&w->out, names[i + below(w, 3)]);
        put_value(w, others);
    }
    w->depth--;
    if (!first) line(w);
    bytes_append_text(&w->out, "}");
}

static void put_array(writer *w, const json *schema) {
    const json *least = json_get(schema, "minItems"), *most = json_get(schema, "maxItems");
    const json *items = json_get(schema, "items"), *prefix = json_get(schema, "prefixItems");
    size_t min = least ? (size_t)least->integer : 0, max = most ? (size_t)most->integer : min + 3;
    if (items && items->kind == JSON_ARRAY) {
        prefix = items;
        items = json_get(schema, "additionalItems");
    }
    if (items && items->kind == JSON_BOOL && !items->boolean) max = prefix->n;
    size_t n = w->depth > 6 ? min : min + below(w, max - min + 1);
    bytes_append_text(&w->out, "[");
    w->depth++;
    for (size_t i = 0; i < n; i++) {
        comma(w, i == 0);
        const json *own = prefix && i < prefix->n ? &prefix->items[i] : items;
        if (own) {
            put_value(w, own);
        } else {
            put_any(w);
        }
    }
    w->depth--;
    if (n) line(w);
    bytes_append_text(&w->out, "]");
}

static void put_number(writer *w, const json *schema) {
    const json *lo = json_get(schema, "minimum"), *hi = json_get(schema, "maximum");
    int64_t min = lo ? lo->integer : hi ? hi->integer - 1000 : -100, max = hi ? hi->integer : min + 100000;
    bytes_printf(&w->out, "%lld", (long long)(min + (int64_t)below(w, (size_t)(max - min + 1))));
}

/* Schemas of one type, enum, const, anyOf or oneOf without neighbours, and $ref. */
static void put_value(writer *w, const json *schema) {
    const json *ref = json_get(schema, "$ref"), *any = json_get(schema, "anyOf"), *one = json_get(schema, "oneOf");
    const json *values = json_get(schema, "enum"), *constant = json_get(schema, "const"),
               *type = json_get(schema, "type");
    if (!any) any = one;
    if (schema->kind == JSON_BOOL || schema->n == 0) {
        put_any(w);
    } else if (ref) {
        put_value(w, schema_check_target(w->root, ref->string));
    } else if (any) {
        put_value(w, &any->items[w->depth > 6 && any->items[0].kind == JSON_OBJECT && json_get(&any->items[0], "$ref")
                                     ? any->n - 1
                                 : w->depth > 6 ? 0
                                                : below(w, any->n)]);
    } else if (constant || values) {
        json_put(&w->out, constant ? constant : &values->items[below(w, values->n)]);
    } else if (json_is_string(type, "object")) {
        put_object(w, schema);
    } else if (json_is_string(type, "array")) {
        put_array(w, schema);
    } else if (json_is_string(type, "string")) {
        const json *least = json_get(schema, "minLength"), *most = json_get(schema, "maxLength");
        size_t min = least ? (size_t)least->integer : 0;
        put_text(w, min, most ? (size_t)most->integer : min + 9);
    } else if (json_is_string(type, "null")) {
        bytes_append_text(&w->out, "null");
    } else if (json_is_string(type, "boolean")) {
        bytes_append_text(&w->out, below(w, 2) ? "true" : "false");
    } else {
        put_number(w, schema);
    }
}

/* Whether the writer above knows everything in the schema. */
static bool is_writable(const char *schema) {
    static const char *const hard[] = {"allOf",
                                       "pattern",
                                       "format\":\"",
                                       "exclusive",
                                       "1.5",
                                       "0.25",
                                       "multipleOf",
                                       "dependentRequired",
                                       "patternProperties",
                                       "Properties\":1}",
                                       "Properties\":2,",
                                       "Properties\":3,",
                                       "Properties\":2}",
                                       "[\"integer\"",
                                       "[\"boolean\"",
                                       "zz",
                                       "\"x\",\"y\"",
                                       "~",
                                       "\"properties\":{\"v\":{\"type\":\"string\"",
                                       "{\"properties\":{\"a\":{\"type\":\"integer\"}}}",
                                       "#/anyOf/1",
                                       "\"a\",1,\"b\""};
    for (size_t i = 0; i < sizeof hard / sizeof *hard; i++) {
        if (strstr(schema, hard[i])) return false;
    }
    return true;
}

static void valid_texts_are_accepted(void **state) {
    (void)state;
    uint64_t seed = 9;
    size_t n_schemas = 0;
    for (size_t i = 0; i < N_SCHEMAS; i++) {
        machine m;
        if (!is_writable(schemas[i])) continue;
        n_schemas++;
        assert_ok(machine_open(&m, schemas[i]));
        for (int k = 0; k < 300; k++) {
            writer w = {.root = json_root(m.doc), .seed = &seed, .style = k % 3};
            put_value(&w, w.root);
            if (!schema_check_text(w.root, w.out.data, w.out.n))
                fail_msg("the test is wrong: %s\n%.*s", schemas[i], (int)w.out.n, w.out.data);
            if (!machine_takes(&m, w.out.data, w.out.n))
                fail_msg("%s\nrefuses %.*s", schemas[i], (int)w.out.n, w.out.data);
            bytes_clear(&w.out);
        }
        machine_close(&m);
    }
    assert_true(n_schemas > 25);
}

/* Invalid texts are not accepted: valid ones with one byte changed that the validator refuses. */
static void invalid_texts_are_refused(void **state) {
    (void)state;
    static const char bytes_of_json[] = "{}[]\",:01a9-.nul \\e";
    char text[MACHINE_TEXT];
    uint64_t seed = 4;
    size_t refused = 0;
    for (size_t i = 0; i < N_SCHEMAS; i++) {
        machine m;
        assert_ok(machine_open(&m, schemas[i]));
        for (int k = 0; k < 200; k++) {
            size_t n = machine_walk(&m, &seed, text);
            text[test_random(&seed) % n] = bytes_of_json[test_random(&seed) % (sizeof bytes_of_json - 1)];
            if (schema_check_text(json_root(m.doc), text, n)) continue;
            if (machine_takes(&m, text, n)) fail_msg("%s\naccepts %.*s", schemas[i], (int)n, text);
            refused++;
        }
        machine_close(&m);
    }
    assert_true(refused > 3000);
}

/* Single texts. */
static void single_texts_are_accepted_or_refused(void **state) {
    (void)state;
    static const struct {
        const char *schema, *text;
        bool expected;
    } rows[] = {
        {"true", "", false},
        {"true", " 1", false},
        {"true", "1 ", false},
        {"true", "{\"a\" :1}", false},
        {"true", "{\"a\":  1}", false},
        {"true", "[ 1, 2 ]", true},
        {"true", "[\n  1,\n  2\n]", true},
        {"true", "[\n\n1]", false},
        {"true", "[\t1]", false},
        {"true", "[1,]", false},
        {"true", "{}", true},
        {"true", "[ ]", true},
        {"true", "\"\\ud83d\\ude00\"", true},
        {"true", "\"\\ud83d\"", false},
        {"true", "\"\\ude00\"", false},
        {"true", "\"\xc3\"", false},
        {"true", "\"\xed\xa0\x80\"", false},
        {"true", "\"a\nb\"", false},
        {"true", "01", false},
        {"true", "-", false},
        {"true", "1e400", false},
        {"true", "1e40", true},
        {"true", "[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]", true},
        {"{\"type\":\"string\",\"maxLength\":1}", "\"\\ud83d\\ude00\"", true},
        {"{\"type\":\"string\",\"maxLength\":1}", "\"😀\"", true},
        {"{\"type\":\"string\",\"maxLength\":1}", "\"ab\"", false},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\n\\\"$\"}", "\"\\n\\\"\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\x01$\"}", "\"\\u0001\"", true},
        {"{\"type\":\"string\",\"pattern\":\"^\\\\x1f$\"}", "\"\\u001F\"", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2023-02-29\"", false},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"1900-02-29\"", false},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2000-02-29\"", true},
        {"{\"type\":\"string\",\"format\":\"date\"}", "\"2023-04-31\"", false},
        {"{\"type\":\"string\",\"format\":\"date-time\"}", "\"2023-04-30T23:59:59.5+02:00\"", true},
        {"{\"type\":\"string\",\"format\":\"email\"}", "\"john.doe+x@mail.example.org\"", true},
        {"{\"type\":\"string\",\"format\":\"uuid\"}", "\"123e4567-e89b-12d3-a456-426614174000\"", true},
        {"{\"properties\":{\"a\":{},\"b\":{}}}", "{\"a\":1,\"b\":2}", true},
        {"{\"properties\":{\"a\":{},\"b\":{}}}", "{\"b\":2}", true},
        {"{\"properties\":{\"a\":{},\"b\":{}}}", "{\"b\":2,\"a\":1}", false},
        {"{\"properties\":{\"a\":{},\"b\":{}}}", "{\"c\":2}", false},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":true}", "{\"a\":1,\"b\":2}", true},
        {"{\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":true}", "{\"b\":2,\"a\":1}", false},
        {"{\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":true}", "{\"\\u0061\":1}", false},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":true,\"required\":[\"z\"]}", "{\"a\":1,\"z\":2,\"y\":3}",
         true},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,\"maxProperties\":2}", "{}", false},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,\"maxProperties\":2}", "{\"a\":1}", false},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,\"maxProperties\":2}", "{\"a\":1,\"b\":1}",
         true},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,\"maxProperties\":2}", "{\"a\":1,\"c\":1}",
         true},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,\"maxProperties\":2}", "{\"b\":1,\"c\":1}",
         true},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,\"maxProperties\":2}",
         "{\"a\":1,\"b\":1,\"c\":1}", false},
        {"{\"maxProperties\":0}", "{}", true},
        {"{\"maxProperties\":0}", "{\"a\":1}", false},
        {"{\"minProperties\":1}", "{}", false},
        {"{\"minProperties\":1}", "{\"a\":1}", true},
        {"{\"minProperties\":1}", "{\"a\":1,\"b\":2}", true},
        {"{\"maxProperties\":2}", "{}", true},
        {"{\"maxProperties\":2}", "{\"a\":1,\"b\":2}", true},
        {"{\"maxProperties\":2}", "{\"a\":1,\"b\":2,\"c\":3}", false},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":true,\"minProperties\":2,\"maxProperties\":3}",
         "{\"a\":1}", false},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":true,\"minProperties\":2,\"maxProperties\":3}",
         "{\"a\":1,\"x\":1}", true},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":true,\"minProperties\":2,\"maxProperties\":3}",
         "{\"a\":1,\"x\":1,\"y\":1}", true},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":true,\"minProperties\":2,\"maxProperties\":3}",
         "{\"a\":1,\"x\":1,\"y\":1,\"z\":1}", false},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":true,\"minProperties\":2,\"maxProperties\":3}",
         "{\"x\":1,\"x\":1}", false},
        {"{\"type\":\"integer\",\"nullable\":true}", "null", true},
        {"{\"type\":\"integer\",\"nullable\":true}", "7", true},
        {"{\"type\":\"integer\",\"nullable\":true}", "\"a\"", false},
        {"{\"type\":\"integer\",\"nullable\":false}", "null", false},
        {"{\"type\":\"string\",\"enum\":[\"a\"],\"nullable\":true}", "null", false},
        {"{\"type\":\"string\",\"enum\":[\"a\",null],\"nullable\":true}", "null", true},
        {"{\"nullable\":true}", "[1]", true},
        {"{\"dependentRequired\":{\"a\":[\"b\"]}}", "{}", true},
        {"{\"dependentRequired\":{\"a\":[\"b\"]}}", "{\"b\":1}", true},
        {"{\"dependentRequired\":{\"a\":[\"b\"]}}", "{\"a\":1}", false},
        {"{\"dependentRequired\":{\"a\":[\"b\"]}}", "{\"a\":1,\"b\":2}", true},
        {"{\"dependentRequired\":{\"a\":[\"b\"]}}", "{\"x\":1}", true},
        {"{\"dependentRequired\":{\"a\":[\"b\"]}}", "{\"a\":1,\"x\":2}", false},
        {"{\"dependentRequired\":{\"a\":[\"b\"]}}", "{\"x\":1,\"a\":2}", false},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependentRequired\":{\"a\":[\"b\"],\"b\":[\"c\"],\"c\":[]}}",
         "{}", true},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependentRequired\":{\"a\":[\"b\"],\"b\":[\"c\"],\"c\":[]}}",
         "{\"c\":1}", true},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependentRequired\":{\"a\":[\"b\"],\"b\":[\"c\"],\"c\":[]}}",
         "{\"b\":1}", false},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependentRequired\":{\"a\":[\"b\"],\"b\":[\"c\"],\"c\":[]}}",
         "{\"b\":1,\"c\":2}", true},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependentRequired\":{\"a\":[\"b\"],\"b\":[\"c\"],\"c\":[]}}",
         "{\"a\":1,\"b\":1}", false},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependentRequired\":{\"a\":[\"b\"],\"b\":[\"c\"],\"c\":[]}}",
         "{\"a\":1,\"b\":1,\"c\":1}", true},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependentRequired\":{\"a\":[\"b\"],\"b\":[\"c\"],\"c\":[]}}",
         "{\"a\":1,\"c\":1}", false},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":false,\"dependentRequired\":{\"a\":[\"b\"]}}", "{}",
         true},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":false,\"dependentRequired\":{\"a\":[\"b\"]}}",
         "{\"a\":1}", false},
        {"{\"properties\":{\"a\":{}},\"additionalProperties\":false,\"dependentRequired\":{\"a\":[\"b\"]}}",
         "{\"a\":1,\"b\":1}", false},
        {"{\"minimum\":9007199254740993}", "9007199254740992", false},
        {"{\"minimum\":12345678901234567890123.5}", "12345678901234567890123.5", true},
        {"{\"minimum\":12345678901234567890123.5}", "12345678901234567890123.4", false},
        {"{\"minimum\":3,\"exclusiveMinimum\":true}", "3", false},
        {"{\"minimum\":3,\"exclusiveMinimum\":true}", "3.1", true},
        {"{\"minimum\":3,\"exclusiveMinimum\":false}", "3", true},
        {"{\"exclusiveMaximum\":true}", "3", true},
        {"{\"maximum\":3,\"exclusiveMaximum\":true}", "3.0", false},
        {"{\"maximum\":3,\"exclusiveMaximum\":true}", "2.9", true},
        {"{\"enum\":[1,2.5,\"x\",\"\\u00e9\\u00e9\",[1]],\"exclusiveMinimum\":1,\"minLength\":2,\"maxLength\":2}", "1",
         false},
        {"{\"enum\":[1,2.5,\"x\",\"\\u00e9\\u00e9\",[1]],\"exclusiveMinimum\":1,\"minLength\":2,\"maxLength\":2}",
         "2.5", true},
        {"{\"enum\":[1,2.5,\"x\",\"\\u00e9\\u00e9\",[1]],\"exclusiveMinimum\":1,\"minLength\":2,\"maxLength\":2}",
         "\"x\"", false},
        {"{\"enum\":[1,2.5,\"x\",\"\\u00e9\\u00e9\",[1]],\"exclusiveMinimum\":1,\"minLength\":2,\"maxLength\":2}",
         "\"éé\"", true},
        {"{\"enum\":[1,2.5,\"x\",\"\\u00e9\\u00e9\",[1]],\"exclusiveMinimum\":1,\"minLength\":2,\"maxLength\":2}",
         "[1]", true},
        {"{\"enum\":[[],{},[1,2]],\"minItems\":1,\"minProperties\":1}", "[]", false},
        {"{\"enum\":[[],{},[1,2]],\"minItems\":1,\"minProperties\":1}", "{}", false},
        {"{\"enum\":[[],{},[1,2]],\"minItems\":1,\"minProperties\":1}", "[1,2]", true},
        {"{\"const\":12345678901234567890123}", "12345678901234567890123", true},
        {"{\"const\":12345678901234567890123}", "12345678901234568000000", false},
        {"{\"type\":\"integer\",\"enum\":[1e400,1e-400,1.5]}", "1e400", true},
        {"{\"type\":\"integer\",\"enum\":[1e400,1e-400,1.5]}", "1e-400", false},
        {"{\"type\":\"number\",\"enum\":[[1e-400,1e2000],1e-400]}", "1e-400", true},
        {"{\"type\":\"number\",\"enum\":[[1e-400,1e2000],1e-400]}", "0", false},
        {"{\"type\":\"array\",\"enum\":[[1e-400,1e2000],1e-400]}", "[1e-400,1e2000]", true},
        {"{\"allOf\":[{\"const\":1e22},{\"enum\":[10000000000000000000001,10000000000000000000000]}]}", "1e+22", true},
        {"{\"multipleOf\":0.01}", "19.99", true},
        {"{\"multipleOf\":0.01}", "19.995", false},
        {"{\"required\":[\"a\",\"a\"]}", "{\"a\":1}", true},
        {"{\"required\":[\"a\",\"a\"]}", "{}", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        machine m;
        assert_ok(machine_open(&m, rows[i].schema));
        if (machine_takes(&m, rows[i].text, strlen(rows[i].text)) != rows[i].expected)
            fail_msg("%s on %s", rows[i].schema, rows[i].text);
        machine_close(&m);
    }
}

/* The deepest texts, byte by byte: every accepted prefix can be completed, although some values need more levels than
 * they show. */
static void the_deepest_texts_can_be_completed(void **state) {
    (void)state;
    static const struct {
        const char *schema, *unit;
    } rows[] = {
        {"true", "["},
        {"true", "{\"k\":"},
        {"{\"type\":\"array\",\"items\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]},\"minItems\":1}", "["},
        {"{\"$defs\":{\"n\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":"
         "{\"$ref\":\"#/$defs/n\"},\"minItems\":2}]}},\"$ref\":\"#/$defs/n\"}",
         "[null,"},
        {"{\"$defs\":{\"n\":{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"object\",\"properties\":{\"k\":"
         "{\"$ref\":\"#/$defs/n\"}},\"required\":[\"k\"]}]},\"minItems\":1}},\"$ref\":\"#/$defs/n\"}",
         "[{\"k\":"},
        {"{\"patternProperties\":{\"^k\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},\"minProperties\":1}",
         "{\"k\":"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        machine m;
        char text[MACHINE_TEXT], avoid[257] = {0};
        size_t n = 0, unit = strlen(rows[i].unit), n_avoid = 0;
        assert_ok(machine_open(&m, rows[i].schema));
        for (uint32_t s = m.r.start, next;; s = next, n++) {
            text[n] = rows[i].unit[n % unit];
            assert_ok(run_step(&m.r, s, (uint8_t)text[n], &next));
            if (next != RUN_DEAD) continue;
            assert_true(n / unit >= 20 && n / unit <= NET_DEPTH);
            for (unsigned c = 0; c < m.g.n_classes; c++) {
                char byte = (char)m.g.sample[c];
                if (!byte || !strchr("null]}\"k:,", byte)) avoid[n_avoid++] = byte ? byte : ' ';
            }
            n = machine_complete(&m, s, avoid, text, n);
            if (n == 0) fail_msg("%s: no end", rows[i].schema);
            break;
        }
        if (!schema_check_text(json_root(m.doc), text, n)) fail_msg("%s: %.*s", rows[i].schema, (int)n, text);
        machine_close(&m);
    }
}

static void unsupported_and_unsatisfiable_schemas_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        mn_status code;
        const char *part;
    } rows[] = {
        {"false", MN_E_ARG, "$: no value is allowed"},
        {"{\"enum\":[]}", MN_E_ARG, "none of its constants is allowed"},
        {"{\"type\":\"string\",\"enum\":[1,2]}", MN_E_ARG, "none of its constants"},
        {"{\"type\":[]}", MN_E_ARG, "no type is left"},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", MN_E_ARG, "$: at least 3 items, but at most 2"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", MN_E_ARG, "at least 3 characters, but at most 2"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", MN_E_ARG, "no number lies within its limits"},
        {"{\"type\":\"number\",\"exclusiveMinimum\":3,\"maximum\":3}", MN_E_ARG, "no number lies"},
        {"{\"type\":\"object\",\"required\":[\"a\"],\"properties\":{\"a\":false}}", MN_E_ARG,
         "$.a: no value is allowed"},
        {"{\"type\":\"object\",\"required\":[\"b\"],\"properties\":{\"a\":{}},\"additionalProperties\":false}",
         MN_E_ARG, "$.b: no value is allowed"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", MN_E_ARG,
         "cannot be met"},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", MN_E_ARG, "no type is left"},
        {"{\"allOf\":[{\"const\":1},{\"const\":2}]}", MN_E_ARG, "none of its constants"},
        {"{\"allOf\":[{\"const\":12345678901234567890123},{\"const\":12345678901234567890124}]}", MN_E_ARG,
         "none of its constants"},
        {"{\"allOf\":[{\"const\":[0]},{\"const\":[1e-400]}]}", MN_E_ARG, "none of its constants"},
        {"{\"allOf\":[{\"const\":1e400},{\"const\":2e400}]}", MN_E_ARG, "none of its constants"},
        {"{\"type\":\"integer\",\"const\":1e-400}", MN_E_ARG, "none of its constants"},
        {"{\"oneOf\":[{\"const\":1e400},{\"const\":10e399}]}", MN_E_ARG, "none of its constants"},
        {"{\"const\":1e2000}", MN_E_UNSUPPORTED, "a constant has more than 1000 digits before or after the point"},
        {"{\"allOf\":[{\"const\":[1e-2000]},{\"const\":[2e-2000]}]}", MN_E_UNSUPPORTED,
         "a constant has more than 1000 digits"},
        {"{\"anyOf\":[false,{\"type\":\"array\",\"items\":false,\"minItems\":1}]}", MN_E_ARG, "no value is allowed"},
        {"{\"type\":\"string\",\"pattern\":\"^[^\\\\s\\\\S]$\"}", MN_E_ARG, "no text matches"},
        {"{\"$ref\":\"#/$defs/x\"}", MN_E_ARG, "the $ref '#/$defs/x' leads nowhere"},
        {"{\"$ref\":\"other.json\"}", MN_E_UNSUPPORTED, "only this schema is read"},
        {"{\"$ref\":\"#\"}", MN_E_ARG, "leads back to itself"},
        {"{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}},\"$ref\":\"#/$defs/a\"}", MN_E_ARG,
         "leads back to itself"},
        {"{\"$ref\":\"#a\",\"properties\":{\"a\":{\"const\":{\"$anchor\":\"a\"}}}}", MN_E_ARG,
         "the $ref '#a' leads nowhere"},
        {"{\"$ref\":\"#a\",\"$defs\":{\"x\":{\"$anchor\":\"a\"},\"y\":{\"$anchor\":\"a\"}}}", MN_E_ARG,
         "two schemas have the $anchor 'a'"},
        {"{\"$ref\":\"x\",\"$defs\":{\"x\":{\"$id\":\"x\"},\"y\":{\"$id\":\"./a/../x#\"}}}", MN_E_ARG,
         "two schemas have the $id 'x'"},
        {"{\"$ref\":7}", MN_E_ARG, "'$ref' must be a text"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"contains\":{}}}}", MN_E_UNSUPPORTED,
         "schema, $.a: the keyword 'contains' is not supported"},
        {"{\"minProperties\":2}", MN_E_UNSUPPORTED, "'minProperties' is 2, supported with these 'properties' up to 1"},
        {"{\"properties\":{\"a\":{}},\"minProperties\":2}", MN_E_ARG, "at least 2 members, but only 1 are declared"},
        {"{\"required\":[\"a\",\"b\"],\"maxProperties\":1}", MN_E_ARG, "no object has at most 1 members"},
        {"{\"maxProperties\":-1}", MN_E_ARG, "'maxProperties' must be a whole number"},
        {"{\"type\":\"integer\",\"nullable\":1}", MN_E_ARG, "'nullable' must be true or false"},
        {"{\"dependentRequired\":{\"a\":1}}", MN_E_ARG, "'dependentRequired' must be an object of arrays of names"},
        {"{\"dependentRequired\":{\"a\":[\"z\"],\"b\":[\"z\"],\"c\":[\"z\"],\"d\":[\"z\"],\"e\":[\"z\"],\"f\":[\"z\"],\"g\":[\"z\"],\"h\":[\"z\"],\"i\":[\"z\"]}}",
         MN_E_UNSUPPORTED, "'dependentRequired' is supported for up to 8 members"},
        {"{\"multipleOf\":0}", MN_E_ARG, "'multipleOf' must be a number above 0"},
        {"{\"multipleOf\":-0.5}", MN_E_ARG, "'multipleOf' must be a number above 0"},
        {"{\"multipleOf\":1e-19}", MN_E_UNSUPPORTED, "'multipleOf' is only supported with up to 18 digits"},
        {"{\"multipleOf\":123456789123}", MN_E_UNSUPPORTED, "'multipleOf' is only supported"},
        {"{\"multipleOf\":999983}", MN_E_UNSUPPORTED, "schema, $: 'multipleOf' takes"},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1,\"maximum\":6}", MN_E_ARG, "no number lies"},
        {"{\"maximum\":1e2000}", MN_E_UNSUPPORTED, "'maximum' has more than 1000 digits"},
        {"{\"unevaluatedProperties\":false}", MN_E_UNSUPPORTED, "'unevaluatedProperties'"},
        {"{\"minLenght\":2}", MN_E_UNSUPPORTED, "did you mean minLength"},
        {"{\"type\":\"text\"}", MN_E_ARG, "'type' is 'text', allowed: null"},
        {"{\"type\":3}", MN_E_ARG, "'type' is 'no text'"},
        {"{\"properties\":3}", MN_E_ARG, "'properties' must be an object"},
        {"{\"required\":[1]}", MN_E_ARG, "'required' must be"},
        {"{\"minLength\":-1}", MN_E_ARG, "'minLength' must be a whole number"},
        {"{\"type\":\"string\",\"minLength\":1.5}", MN_E_ARG, "'minLength' must be a whole number"},
        {"{\"minItems\":\"2\"}", MN_E_ARG, "'minItems' must be"},
        {"{\"anyOf\":[]}", MN_E_ARG, "'anyOf' must be an array"},
        {"{\"allOf\":{}}", MN_E_ARG, "'allOf' must be an array"},
        {"{\"enum\":3}", MN_E_ARG, "'enum' must be an array"},
        {"{\"items\":3}", MN_E_ARG, "must be an object, true or false"},
        {"[1]", MN_E_ARG, "must be an object, true or false"},
        {"{\"type\":\"number\",\"exclusiveMinimum\":\"1\"}", MN_E_ARG, "'exclusiveMinimum' must be a number"},
        {"{\"minimum\":3,\"exclusiveMinimum\":true,\"maximum\":3}", MN_E_ARG, "no number lies"},
        {"{\"enum\":[4],\"multipleOf\":2}", MN_E_UNSUPPORTED, "'multipleOf' beside constants"},
        {"{\"enum\":[\"a\"],\"minLength\":3}", MN_E_ARG, "none of its constants"},
        {"{\"enum\":[\"a\"],\"pattern\":\"a\"}", MN_E_UNSUPPORTED, "'pattern' beside constants"},
        {"{\"const\":[1,1],\"uniqueItems\":true}", MN_E_UNSUPPORTED, "'uniqueItems' beside constants"},
        {"{\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/a\"},{\"type\":\"null\"}]}},\"$ref\":\"#/$defs/a\"}",
         MN_E_ARG, "'anyOf' leads back to itself"},
        {"{\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/b\"},{\"type\":\"null\"}]},\"b\":{\"oneOf\":[{\"type\":\"null\"},{\"allOf\":["
         "{\"$ref\":\"#/$defs/a\"}]}]}},\"$ref\":\"#/$defs/b\"}",
         MN_E_ARG, "'oneOf' leads back to itself"},
        {"{\"const\":{},\"minProperties\":1}", MN_E_ARG, "none of its constants"},
        {"{\"const\":{\"a\":1,\"b\":1},\"maxProperties\":1}", MN_E_ARG, "none of its constants"},
        {"{\"const\":{\"a\":1},\"dependentRequired\":{\"a\":[\"b\"]}}", MN_E_UNSUPPORTED,
         "'dependentRequired' beside constants"},
        {"{\"const\":{\"a\":1},\"patternProperties\":{\"a\":false}}", MN_E_UNSUPPORTED,
         "'patternProperties' beside constants"},
        {"{\"const\":{\"a\":1},\"propertyNames\":false}", MN_E_UNSUPPORTED, "'propertyNames' beside constants"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"format\":\"date\"}", MN_E_UNSUPPORTED,
         "only one 'pattern' or 'format'"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", MN_E_UNSUPPORTED,
         "schema, $: regular expression '(?=a)': looking ahead"},
        {"{\"type\":\"string\",\"pattern\":\"^(ab)*$\",\"maxLength\":3}", MN_E_UNSUPPORTED, "limits of the length"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        machine m;
        mn_status status = machine_open(&m, rows[i].schema);
        if (status != rows[i].code || !strstr(mn_last_error(), rows[i].part))
            fail_msg("%s: status %d, %s", rows[i].schema, status, mn_last_error());
        machine_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walks_are_valid),
        cmocka_unit_test(valid_texts_are_accepted),
        cmocka_unit_test(invalid_texts_are_refused),
        cmocka_unit_test(single_texts_are_accepted_or_refused),
        cmocka_unit_test(the_deepest_texts_can_be_completed),
        cmocka_unit_test(unsupported_and_unsatisfiable_schemas_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
