/* "uniqueItems": all arrays of a few values are accepted exactly when an independent validator finds them valid.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/schema_check.h"
#include "support/schema_machine.h"
#include "support/support.h"

enum { LONGEST = 5 };

/* All arrays of up to so many of the values. */
static size_t check_arrays(machine *m, const char *schema, const char *const *values, size_t n_values, size_t longest) {
    size_t at[LONGEST] = {0}, taken = 0;
    for (size_t n = 0; n <= longest;) {
        bytes text = {0};
        bytes_append_text(&text, "[");
        for (size_t i = 0; i < n; i++) bytes_printf(&text, "%s%s", i ? "," : "", values[at[i]]);
        bytes_append_text(&text, "]");
        bool valid = schema_check_text(json_root(m->doc), text.data, text.n),
             takes = machine_takes(m, text.data, text.n);
        if (valid != takes) fail_msg("%s\n%s %.*s", schema, takes ? "accepts" : "refuses", (int)text.n, text.data);
        taken += takes;
        bytes_clear(&text);
        size_t i = 0;
        while (i < n && ++at[i] == n_values) at[i++] = 0;
        if (i == n) n++;
    }
    return taken;
}

static void arrays_of_different_items_are_accepted(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        const char *values[7];
        size_t taken; /* counted by hand */
    } rows[] = {
        {"{\"items\":{\"enum\":[\"a\",\"b\",1]},\"uniqueItems\":true}", {"\"a\"", "\"b\"", "1", "\"c\"", "[]"}, 16},
        {"{\"items\":{\"enum\":[\"a\",\"b\",1]},\"uniqueItems\":true,\"minItems\":1,\"maxItems\":2}",
         {"\"a\"", "\"b\"", "1"},
         9},
        {"{\"items\":{\"enum\":[0,false,1,true,\"1\"]},\"uniqueItems\":true}",
         {"0", "false", "1", "true", "\"1\""},
         326},
        {"{\"items\":{\"type\":[\"boolean\",\"null\"]},\"uniqueItems\":true,\"minItems\":3}",
         {"true", "false", "null", "0"},
         6},
        {"{\"items\":{\"anyOf\":[{\"$ref\":\"#/$defs/c\"},{\"type\":\"null\"}]},\"uniqueItems\":true,"
         "\"$defs\":{\"c\":{\"allOf\":[{\"enum\":[1,2,\"x\"]},{\"type\":\"integer\"}]}}}",
         {"1", "2", "\"x\"", "null"},
         16},
        {"{\"prefixItems\":[{\"enum\":[1,2]},{\"enum\":[2,3]}],\"items\":{\"enum\":[1,3,4]},\"uniqueItems\":true}",
         {"1", "2", "3", "4"},
         15},
        {"{\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"items\":false,\"uniqueItems\":true}",
         {"\"a\"", "1", "true"},
         3},
        {"{\"prefixItems\":[{\"type\":\"string\"},{\"enum\":[1,2]}],\"items\":{\"enum\":[1,2,3]},\"uniqueItems\":true}",
         {"\"a\"", "1", "2", "3"},
         12},
        {"{\"prefixItems\":[{\"const\":1},{\"type\":\"object\"}],\"items\":{\"type\":\"string\"},\"maxItems\":3,"
         "\"uniqueItems\":true}",
         {"1", "{}", "\"a\""},
         4},
        {"{\"items\":{\"type\":\"integer\"},\"uniqueItems\":true,\"maxItems\":1}", {"1", "2"}, 3},
        {"{\"items\":[{\"type\":\"boolean\"},{\"type\":\"boolean\"}],\"additionalItems\":false,\"uniqueItems\":true}",
         {"true", "false"},
         5},
        {"{\"items\":{\"enum\":[[1],[true],{\"a\":1,\"b\":2},{\"b\":2,\"a\":1.0}]},\"uniqueItems\":true}",
         {"[1]", "[true]", "{\"a\":1,\"b\":2}"},
         16},
        {"{\"allOf\":[{\"uniqueItems\":true},{\"items\":{\"const\":1}},{\"uniqueItems\":false}]}", {"1", "2"}, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        machine m;
        size_t n = 0;
        while (n < 7 && rows[i].values[n]) n++;
        assert_ok(machine_open(&m, rows[i].schema));
        size_t taken = check_arrays(&m, rows[i].schema, rows[i].values, n, LONGEST);
        if (taken != rows[i].taken) fail_msg("%s: %zu arrays, expected %zu", rows[i].schema, taken, rows[i].taken);
        machine_close(&m);
    }
}

/* Other spellings of a value are the same value. */
static void equal_values_are_not_repeated(void **state) {
    (void)state;
    static const char schema[] = "{\"items\":{\"enum\":[1,1.0,1e0,\"\\u0061\",\"a\",{\"x\":[2,{}]},{\"x\":[2.0,{}]}]},"
                                 "\"uniqueItems\":true}";
    char text[MACHINE_TEXT];
    machine m;
    uint64_t seed = 5;
    assert_ok(machine_open(&m, schema));
    for (int i = 0; i < 500; i++) {
        size_t n = machine_walk(&m, &seed, text);
        if (!schema_check_text(json_root(m.doc), text, n)) fail_msg("%.*s", (int)n, text);
    }
    static const char taken[] = "[\n  1,\n  \"a\", {\"x\":[2,{}]}\n]";
    assert_true(machine_takes(&m, taken, strlen(taken)));
    assert_false(machine_takes(&m, "[1,1.0]", 7));
    machine_close(&m);
}

/* A list of texts of n letters and digits. */
static void put_tags(bytes *out, size_t n, size_t most) {
    bytes_append_text(out, "{\"properties\":{\"tags\":{\"items\":{\"enum\":[");
    for (size_t i = 0; i < n; i++) bytes_printf(out, "%s\"tag number %zu\"", i ? "," : "", i);
    bytes_append_text(out, "]},\"uniqueItems\":true");
    if (most) bytes_printf(out, ",\"maxItems\":%zu", most);
    bytes_append_text(out, "}},\"required\":[\"tags\"]}");
}

static void many_constants_are_refused_by_their_number(void **state) {
    (void)state;
    static const struct { size_t n, most; } rows[] = {{11, 0}, {17, 4}, {29, 3}, {64, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t more = 0; more < 2; more++) {
            machine m;
            bytes schema = {0};
            put_tags(&schema, rows[i].n + more, rows[i].most);
            mn_status status = machine_open(&m, bytes_text(&schema));
            if (more) {
                assert_int_equal(status, MN_E_UNSUPPORTED);
                assert_non_null(strstr(mn_last_error(), "schema, $.tags: 'uniqueItems'"));
                assert_non_null(strstr(mn_last_error(), "constants"));
            } else {
                assert_ok(status);
                assert_true(m.g.n < NET_NODES / 8);
            }
            machine_close(&m);
            bytes_clear(&schema);
        }
    }
}

static void other_items_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *schema;
        mn_status code;
        const char *part;
    } rows[] = {
        {"{\"uniqueItems\":true}", MN_E_UNSUPPORTED, "$: 'uniqueItems' is supported for constants, booleans and null"},
        {"{\"items\":{\"type\":\"string\"},\"uniqueItems\":true}", MN_E_UNSUPPORTED, "use enum, or maxItems 1"},
        {"{\"prefixItems\":[{\"type\":\"string\"},{\"minLength\":1}],\"items\":false,\"uniqueItems\":true}",
         MN_E_UNSUPPORTED, "other items cannot be remembered"},
        {"{\"prefixItems\":[{\"type\":\"string\"}],\"items\":{\"type\":\"null\"},\"uniqueItems\":true,\"minItems\":3}",
         MN_E_ARG, "at least 3 different items, but only 2 are possible"},
        {"{\"properties\":{\"tags\":{\"items\":{\"enum\":[\"a\",\"b\"]},\"uniqueItems\":true,\"minItems\":3}},\"required\":[\"tags\"]}",
         MN_E_ARG, "$.tags: at least 3 different items, but only 2 are possible"},
        {"{\"items\":{\"enum\":[1,1.0,2]},\"uniqueItems\":true,\"minItems\":3}", MN_E_ARG, "only 2 are possible"},
        {"{\"type\":\"array\",\"uniqueItems\":1}", MN_E_ARG, "'uniqueItems' must be true or false"},
        {"{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"items\":{\"$ref\":\"#/$defs/n\"},\"uniqueItems\":true}}}",
         MN_E_UNSUPPORTED, "'uniqueItems' is supported for constants"},
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
        cmocka_unit_test(arrays_of_different_items_are_accepted),
        cmocka_unit_test(equal_values_are_not_repeated),
        cmocka_unit_test(many_constants_are_refused_by_their_number),
        cmocka_unit_test(other_items_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
