/* Names of members in JSON schemas: patternProperties and propertyNames. Which members random schemas allow is compared
 * with a validator for every short name; patterns that take too many states are refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include "constraint/run.h"
#include "support/schema_check.h"
#include "support/support.h"

typedef struct machine {
    json_doc *doc;
    net g;
    run r;
} machine;

static mn_status open_schema(machine *m, const char *text) {
    *m = (machine){0};
    assert_ok(json_parse(&m->doc, text, strlen(text), JSON_STRICT, "schema of a test"));
    MN_TRY(net_open(&m->g));
    uint32_t root = net_schema(&m->g, json_root(m->doc));
    MN_TRY(net_finish(&m->g, root));
    if (m->g.nodes[root].need > NET_DEPTH) MN_FAIL(MN_E_ARG, "cannot be met: %s", m->g.reason);
    return run_open(&m->r, &m->g);
}

static void machine_close(machine *m) {
    run_clear(&m->r);
    net_clear(&m->g);
    json_close(&m->doc);
}

static bool takes(machine *m, const char *text) {
    uint32_t state = m->r.start;
    m->r.steps = 0;
    for (; *text && state != RUN_DEAD; text++) assert_ok(run_step(&m->r, state, (uint8_t)*text, &state));
    return m->r.states[state].accepts;
}

static void members_are_accepted_or_refused(void **state) {
    (void)state;
#define FOO  "{\"patternProperties\":{\"f.*o\":{\"type\":\"integer\"}}}"
#define BOTH "{\"patternProperties\":{\"a*\":{\"type\":\"integer\"},\"aaa*\":{\"maximum\":20}}}"
#define OPEN "{\"patternProperties\":{\"^x\":{\"type\":\"null\"}},\"additionalProperties\":{\"const\":0}}"
#define CLOSED                                                                                                         \
    "{\"properties\":{\"xa\":{\"type\":\"null\"},\"b\":{}},\"patternProperties\":{\"^x\":{}},\"additionalProperties\":false}"
#define SHORT "{\"propertyNames\":{\"minLength\":2,\"maxLength\":3}}"
#define REF                                                                                                            \
    "{\"propertyNames\":{\"allOf\":[{\"$ref\":\"#/$defs/n\"},{\"anyOf\":[{\"maxLength\":3},{\"const\":\"abcd\"}]}]},"  \
    "\"$defs\":{\"n\":{\"pattern\":\"^[a-d]\"}}}"
#define LIMITS                                                                                                                   \
    "{\"propertyNames\":{\"minLength\":3,\"maxLength\":4,\"pattern\":\"^x\",\"title\":\"t\",\"allOf\":[{\"pattern\":\"[yz]$\"}," \
    "{\"enum\":[\"xz\",\"xyz\",\"xbb\",\"xay\",\"ayz\",\"xyyyz\"],\"type\":\"string\"}]}}"
#define COUNT                                                                                                          \
    "{\"properties\":{\"a\":{}},\"patternProperties\":{\"^x\":{}},\"minProperties\":2,\"maxProperties\":3,"            \
    "\"additionalProperties\":false}"
#define NEEDS "{\"patternProperties\":{\"^x\":{}},\"dependentRequired\":{\"x1\":[\"y\"]}}"
    static const struct {
        const char *schema, *text;
        bool expected;
    } rows[] = {
        {FOO, "{}", true},
        {FOO, "{\"foo\":1}", true},
        {FOO, "{\"foo\": 1, \"a fooo!\": 2 }", true},
        {FOO, "{\"foo\":\"bar\"}", false},
        {FOO, "{\"foo\":1,\"fo\":\"bar\"}", false},
        {FOO, "{\"bar\":1}", false},
        {FOO, "{\"\\u0066oo\":1}", false},
        {FOO, "{\"f\\n\\\"\\\\\\u0001\\u001Fo\":1}", false}, /* . is not the end of a line */
        {FOO, "{\"f\\\"\\\\\\u0001\\u001F\\u001f\\to\":1}", true},
        {FOO, "{\"f\\/o\":1}", false},
        {FOO, "{\"féo\":1}", true},
        {BOTH, "{\"a\":30}", true},
        {BOTH, "{\"aaaa\":18,\"b\":21}", true},
        {BOTH, "{\"aaa\":31}", false},
        {BOTH, "{\"baaab\":31}", false},
        {OPEN, "{\"x\":null,\"y\":0,\"xx\":null}", true},
        {OPEN, "{\"x\":0}", false},
        {OPEN, "{\"y\":null}", false},
        {OPEN, "{\"\":0}", true},
        {CLOSED, "{\"xa\":null,\"b\":1,\"xb\":2}", true},
        {CLOSED, "{\"xa\":1}", false},
        {CLOSED, "{\"b\":1,\"xb\":2,\"xa\":1}", false},
        {CLOSED, "{\"b\":1,\"c\":2}", false},
        {SHORT, "{\"ab\":[1],\"é€😀\":{\"a\":1}}", true},
        {SHORT, "{\"a\":1}", false},
        {SHORT, "{\"abcd\":1}", false},
        {SHORT, "{\"\\n\\\\\":1}", true},
        {REF, "{\"abc\":1,\"abcd\":2,\"d\":3}", true},
        {REF, "{\"abce\":1}", false},
        {REF, "{\"e\":1}", false},
        {LIMITS, "{\"xyz\":1,\"xay\":2}", true},
        {LIMITS, "{\"xz\":1}", false},
        {LIMITS, "{\"xyyyz\":1}", false},
        {LIMITS, "{\"xbz\":1}", false},
        {LIMITS, "{\"ayz\":1}", false},
        {"{\"propertyNames\":false}", "{}", true},
        {"{\"propertyNames\":false}", "{\"a\":1}", false},
        {"{\"propertyNames\":{\"type\":\"integer\"}}", "{\"1\":1}", false},
        {"{\"propertyNames\":{\"enum\":[\"foo\",\"bar\",3]}}", "{\"bar\":1,\"foo\":1}", true},
        {"{\"propertyNames\":{\"enum\":[\"foo\",\"bar\",3]}}", "{\"ba\":1}", false},
        {"{\"propertyNames\":{\"format\":\"date\"},\"maxProperties\":1}", "{\"2024-02-29\":1}", true},
        {"{\"propertyNames\":{\"format\":\"date\"},\"maxProperties\":1}", "{\"2023-02-29\":1}", false},
        {"{\"properties\":{\"a\":{},\"bc\":{}},\"propertyNames\":{\"maxLength\":1}}", "{\"a\":1}", true},
        {"{\"properties\":{\"a\":{},\"bc\":{}},\"propertyNames\":{\"maxLength\":1}}", "{\"bc\":1}", false},
        {"{\"properties\":{\"a\":{},\"bc\":{}},\"propertyNames\":{\"maxLength\":1}}", "{\"b\":1}", false},
        {"{\"patternProperties\":{\"^a\":true,\"b$\":false}}", "{\"a\":1}", true},
        {"{\"patternProperties\":{\"^a\":true,\"b$\":false}}", "{\"ab\":1}", false},
        {"{\"patternProperties\":{\"a\":true},\"propertyNames\":{\"pattern\":\"^.b\"}}", "{\"aba\":1,\"ab\":[]}", true},
        {"{\"patternProperties\":{\"a\":true},\"propertyNames\":{\"pattern\":\"^.b\"}}", "{\"a\":1}", false},
        {"{\"patternProperties\":{}}", "{}", true},
        {COUNT, "{}", false},
        {COUNT, "{\"a\":1}", false},
        {COUNT, "{\"a\":1,\"x\":1}", true},
        {COUNT, "{\"a\":1,\"x\":1,\"xx\":1}", true},
        {COUNT, "{\"a\":1,\"x\":1,\"xx\":1,\"xy\":1}", false},
        {COUNT, "{\"x\":1,\"x\":1}", false}, /* one name */
        {NEEDS, "{\"x\":1}", true},
        {NEEDS, "{\"x1\":1}", false},
        {NEEDS, "{\"x1\":1,\"y\":2,\"x\":3}", true},
        {NEEDS, "{\"x\":3,\"x1\":1}", false},
        {"{\"type\":\"array\",\"items\":" FOO "}", "[{\"foo\":1},{},{\"fooo\":2}]", true},
        {"{\"patternProperties\":{\"^c\":{\"$ref\":\"#\"}},\"additionalProperties\":false}",
         "{\"c1\":{\"c\":{}},\"c2\":{}}", true},
        {"{\"patternProperties\":{\"^c\":{\"$ref\":\"#\"}},\"additionalProperties\":false}", "{\"c1\":{\"d\":{}}}",
         false},
        {"{\"$ref\":\"#a\",\"$defs\":{\"x\":{\"patternProperties\":{\"$id\":{\"$anchor\":\"a\",\"const\":1}}}}}", "1",
         true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        machine m;
        assert_ok(open_schema(&m, rows[i].schema));
        if (takes(&m, rows[i].text) != rows[i].expected) fail_msg("%s on %s", rows[i].schema, rows[i].text);
        bool valid = schema_check_text(json_root(m.doc), rows[i].text, strlen(rows[i].text));
        if (rows[i].expected && !valid) fail_msg("the test is wrong: %s on %s", rows[i].schema, rows[i].text);
        machine_close(&m);
    }
}

/* ---- random schemas, all short names ---- */

static const char *any_of(uint64_t *seed, const char *const *texts, size_t n) {
    return texts[test_random(seed) % n];
}

static void put_patterns(bytes *out, uint64_t *seed) {
    static const char *const patterns[] = {"^a", "b$",    "^a.x$", "^[ab]{2}$", "x",    "é",        "\\\"", "^.$",
                                           "^$", "\\\\d", "a*",    "^(ab|x)*$", "[^a]", "\\\\\\\\", "^\\t", "ab|1"};
    static const char *const schemas[] = {"true",
                                          "false",
                                          "{\"type\":\"integer\"}",
                                          "{\"type\":[\"integer\",\"string\"]}",
                                          "{\"type\":\"null\"}",
                                          "{\"enum\":[1,\"s\"]}"};
    size_t first = (size_t)(test_random(seed) % 16), n = (size_t)(test_random(seed) % 4);
    bytes_append_text(out, ",\"patternProperties\":{");
    for (size_t i = 0; i < n; i++)
        bytes_printf(out, "%s\"%s\":%s", i ? "," : "", patterns[(first + 5 * i) % 16], any_of(seed, schemas, 6));
    bytes_append_text(out, "}");
}

/* An object's keywords, each of them in one of a few ways or absent. */
static void put_schema(bytes *out, uint64_t *seed) {
    static const char *const properties[] = {"", "", ",\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{}}",
                                             ",\"properties\":{\"\\t\":{},\"x\":{\"type\":\"null\"}}"};
    static const char *const others[] = {"", "", ",\"additionalProperties\":true", ",\"additionalProperties\":false",
                                         ",\"additionalProperties\":{\"type\":\"null\"}"};
    static const char *const names[] = {"",
                                        "",
                                        "",
                                        ",\"propertyNames\":{\"maxLength\":1}",
                                        ",\"propertyNames\":{\"pattern\":\"[ax]$\"}",
                                        ",\"propertyNames\":{\"enum\":[\"a\",\"é\",\"\\\\\",7]}",
                                        ",\"propertyNames\":{\"not-used\":0}",
                                        ",\"propertyNames\":{\"anyOf\":[{\"const\":\"\\t\"},{\"minLength\":2}]}"};
    static const char *const rest[] = {"",
                                       "",
                                       "",
                                       ",\"required\":[\"a\"]",
                                       ",\"required\":[\"1\"]",
                                       ",\"minProperties\":1",
                                       ",\"maxProperties\":1",
                                       ",\"dependentRequired\":{\"a\":[\"x\"]}"};
    bytes_append_text(out, "{\"type\":\"object\"");
    bytes_append_text(out, any_of(seed, properties, 4));
    if (test_random(seed) % 4) put_patterns(out, seed);
    bytes_append_text(out, any_of(seed, others, 5));
    const char *of_names = any_of(seed, names, 8);
    bytes_append_text(out, strstr(of_names, "not-used") ? ",\"propertyNames\":true" : of_names);
    bytes_append_text(out, any_of(seed, rest, 8));
    bytes_append_text(out, "}");
}

/* What docs/constraints.md says of the members that are generated: declared ones, those that a pattern matches, and
 * others where additionalProperties specifies them or neither properties nor patternProperties name any. */
typedef struct rule {
    const json *parts[2]; /* that hold together */
    size_t n;
} rule;

/* The place of a declared name among the declared ones; -1: none. */
static int place_of(const rule *r, const char *name) {
    int place = 0;
    for (int k = 0; k < 3; k++) {
        for (size_t i = 0; i < r->n; i++) {
            const json *from = json_get(r->parts[i], k == 0 ? "properties" : k == 1 ? "required" : "dependentRequired");
            for (size_t j = 0; from && j < from->n; j++, place += 2) {
                if (strcmp(k == 1 ? from->items[j].string : from->members[j].key, name) == 0) return place;
                if (k == 2 && strcmp(from->members[j].value.items[0].string, name) == 0) return place + 1;
            }
        }
    }
    return -1;
}

static bool is_generated(const rule *r, const char *name) {
    bool named = false, specified = false;
    for (size_t i = 0; i < r->n; i++) {
        const json *patterns = json_get(r->parts[i], "patternProperties");
        named |= patterns || json_get(r->parts[i], "properties");
        specified |= json_get(r->parts[i], "additionalProperties") != NULL;
        for (size_t k = 0; patterns && k < patterns->n; k++) {
            const json_member pattern = {
                "pattern",
                7,
                {.kind = JSON_STRING, .n = patterns->members[k].key_n, .string = patterns->members[k].key}};
            const json alone = {.kind = JSON_OBJECT, .n = 1, .members = &pattern};
            const json text = {.kind = JSON_STRING, .n = strlen(name), .string = name};
            if (schema_check(&alone, &alone, &text)) return true;
        }
    }
    return place_of(r, name) >= 0 || specified || !named;
}

static const char *const letters[] = {"a", "b", "x", "1", "é", "\"", "\\", "\t"};
static const char *const values[] = {"1", "\"s\"", "null"};

enum { LETTERS = sizeof letters / sizeof *letters, SHORT_NAMES = 1 + LETTERS + LETTERS * LETTERS };

/* Name i of up to two letters, then of more. */
static void make_name(char out[32], size_t i, uint64_t *seed) {
    size_t n = i == 0 ? 0 : i <= LETTERS ? 1 : i < SHORT_NAMES ? 2 : 3 + (size_t)(test_random(seed) % 3);
    *out = 0;
    if (n == 1) strcpy(out, letters[i - 1]);
    if (n == 2) snprintf(out, 32, "%s%s", letters[(i - 1 - LETTERS) / LETTERS], letters[(i - 1 - LETTERS) % LETTERS]);
    for (size_t k = 0; n > 2 && k < n; k++) strcat(out, any_of(seed, letters, LETTERS));
}

static void put_member(bytes *out, const char *name, uint64_t *seed) {
    if (out->n > 1) bytes_append_text(out, ",");
    json_put_string(out, name, strlen(name));
    bytes_printf(out, ":%s", any_of(seed, values, 3));
}

/* Whether {members} is accepted when it should be, and only then. */
static size_t compare(machine *m, bool opened, const rule *r, bytes *members, const char *const *names, size_t n) {
    bool expected = true;
    bytes_append_text(members, "}");
    for (size_t i = 0; i < n; i++) expected &= is_generated(r, names[i]);
    expected = expected && schema_check_text(json_root(m->doc), members->data, members->n);
    if (expected != (opened && takes(m, bytes_text(members)))) {
        bytes schema = {0};
        json_put(&schema, json_root(m->doc));
        fail_msg("%s should %sbe accepted by %s%s", bytes_text(members), expected ? "" : "not ", bytes_text(&schema),
                 opened ? "" : ", which is refused");
    }
    members->n = 0;
    return expected;
}

typedef struct counts {
    size_t accepted, never, unsupported; /* texts; schemas that no object meets; schemas with two "propertyNames" */
} counts;

static void check_schema(const char *text, uint64_t *seed, counts *of) {
    machine m;
    rule r = {.n = 1};
    bytes members = {0};
    mn_status status = open_schema(&m, text);
    bool opened = status == MN_OK;
    if (status == MN_E_UNSUPPORTED && strstr(mn_last_error(), "$.propertyNames: ")) {
        of->unsupported++;
        machine_close(&m);
        return;
    }
    if (!opened && !strstr(mn_last_error(), "cannot be met") && !strstr(mn_last_error(), "are declared"))
        fail_msg("%s: %s", text, mn_last_error());
    of->never += !opened;
    const json *root = json_root(m.doc), *all = json_get(root, "allOf");
    if (all) r.n = all->n;
    for (size_t i = 0; i < r.n; i++) r.parts[i] = all ? &all->items[i] : root;
    bytes_append_text(&members, "{");
    of->accepted += compare(&m, opened, &r, &members, NULL, 0);
    for (size_t i = 0; i < SHORT_NAMES + 30; i++) {
        char name[32], other[32];
        make_name(name, i, seed);
        bytes_append_text(&members, "{");
        put_member(&members, name, seed);
        of->accepted += compare(&m, opened, &r, &members, (const char *[]){name}, 1);
        make_name(other, (size_t)(test_random(seed) % (i < SHORT_NAMES ? LETTERS + 1 : SHORT_NAMES)), seed);
        int at = place_of(&r, name), behind = place_of(&r, other);
        if (strcmp(name, other) == 0 || (behind >= 0 && (at < 0 || at > behind))) continue;
        bytes_append_text(&members, "{");
        put_member(&members, name, seed);
        put_member(&members, other, seed);
        of->accepted += compare(&m, opened, &r, &members, (const char *[]){name, other}, 2);
    }
    bytes_clear(&members);
    machine_close(&m);
}

static void random_schemas_allow_what_a_validator_does(void **state) {
    (void)state;
    uint64_t seed = 21;
    counts of = {0};
    size_t n = test_is_long() ? 3000 : 300 / (size_t)test_stride(2);
    for (size_t i = 0; i < n; i++) {
        bytes schema = {0};
        if (i % 3 == 0) bytes_append_text(&schema, "{\"allOf\":[");
        put_schema(&schema, &seed);
        if (i % 3 == 0) {
            bytes_append_text(&schema, ",");
            put_schema(&schema, &seed);
            bytes_append_text(&schema, "]}");
        }
        check_schema(bytes_text(&schema), &seed, &of);
        bytes_clear(&schema);
    }
    assert_true(of.accepted > 5 * n && (of.never > 0 || n < 300) && of.never < n / 4 && of.unsupported < n / 10);
}

/* ---- what is refused ---- */

static void wrong_and_large_names_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        mn_status code;
        const char *part;
    } rows[] = {
        {"{\"patternProperties\":[]}", MN_E_ARG, "'patternProperties' must be an object of schemas"},
        {"{\"patternProperties\":{\"a\":1}}", MN_E_ARG, "'patternProperties' must be an object of schemas"},
        {"{\"patternProperties\":{\"(?=a)\":{}}}", MN_E_UNSUPPORTED,
         "schema, $: regular expression '(?=a)': looking ahead"},
        {"{\"properties\":{\"k\":{\"patternProperties\":{\"^\\\\p{L}\":{}}}}}", MN_E_UNSUPPORTED,
         "schema, $.k: regular expression '^\\p{L}': Unicode properties"},
        {"{\"patternProperties\":{\"^a\":{\"contains\":{}}}}", MN_E_UNSUPPORTED,
         "schema, $.^a: the keyword 'contains'"},
        {"{\"propertyNames\":3}", MN_E_ARG, "a schema must be an object, true or false"},
        {"{\"propertyNames\":{\"maxLenght\":3}}", MN_E_UNSUPPORTED, "$.propertyNames: the keyword 'maxLenght'"},
        {"{\"propertyNames\":{\"pattern\":\"\\\\bx\"}}", MN_E_UNSUPPORTED,
         "schema, $.propertyNames: regular expression '\\bx': word borders"},
        {"{\"propertyNames\":{\"maxLength\":1},\"required\":[\"ab\"]}", MN_E_ARG,
         "$: the required name 'ab' is not one of 'propertyNames'"},
        {"{\"propertyNames\":false,\"minProperties\":1}", MN_E_ARG, "at least 1 members, but only 0 are declared"},
        {"{\"propertyNames\":{\"maxLength\":2000}}", MN_E_UNSUPPORTED,
         "schema, $: the names take more than 4096 states, most for 'propertyNames'"},
        {"{\"patternProperties\":{\"^x\":{},\"a[ab]{12}$\":{},\"^y\":{}}}", MN_E_UNSUPPORTED,
         "schema, $: the names take more than 4096 states, most for the pattern 'a[ab]{12}$'"},
        {"{\"patternProperties\":{\"(.{0,1000}){0,1000}x\":{}}}", MN_E_UNSUPPORTED, "the constraint is too ambiguous"},
        {"{\"propertyNames\":{\"$ref\":\"#/propertyNames\"}}", MN_E_ARG, "leads back to itself"},
        {"{\"propertyNames\":{\"allOf\":[7]}}", MN_E_ARG, "a schema must be an object, true or false"},
        {"{\"propertyNames\":{\"anyOf\":[{\"pattern\":\"a\",\"format\":\"date\"}]}}", MN_E_UNSUPPORTED,
         "schema, $.propertyNames: only one 'pattern' or 'format'"},
        {"{\"patternProperties\":{\"a\":{}},\"const\":{}}", MN_E_UNSUPPORTED,
         "'patternProperties' beside constants is not supported"},
        {"{\"propertyNames\":true,\"enum\":[{}]}", MN_E_UNSUPPORTED,
         "'propertyNames' beside constants is not supported"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        machine m;
        mn_status status = open_schema(&m, rows[i].schema);
        if (status != rows[i].code || !strstr(mn_last_error(), rows[i].part))
            fail_msg("%s: status %d, %s", rows[i].schema, status, mn_last_error());
        machine_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_accepted_or_refused),
        cmocka_unit_test(random_schemas_allow_what_a_validator_does),
        cmocka_unit_test(wrong_and_large_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
