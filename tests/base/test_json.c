/* The JSON reader against JSONTestSuite (where it is available) and cases written here.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <dirent.h>
#include <math.h>

static mn_status parse(const char *text, json_mode mode, json_doc **doc) {
    return json_parse(doc, text, strlen(text), mode, "text");
}

static void values_round_trip(void **state) {
    (void)state;
    const char *text =
        "{\"a\":[1,-2,3.5,true,false,null,\"x\\n\\u00e9\\ud83d\\ude00\"],\"b\":9007199254740993,\"c\":{}}";
    json_doc *doc = NULL;
    assert_ok(parse(text, JSON_STRICT, &doc));
    const json *root = json_root(doc);
    assert_int_equal(json_get(root, "b")->integer, 9007199254740993);
    assert_string_equal(json_get(root, "a")->items[6].string, "x\n\xC3\xA9\xF0\x9F\x98\x80");
    bytes out = {0};
    json_put(&out, root);
    assert_string_equal(
        bytes_text(&out),
        "{\"a\":[1,-2,3.5,true,false,null,\"x\\n\xC3\xA9\xF0\x9F\x98\x80\"],\"b\":9007199254740993,\"c\":{}}");
    bytes_clear(&out);
    json_close(&doc);
}

static void strict_and_lenient_modes_differ_as_specified(void **state) {
    (void)state;
    json_doc *doc = NULL;
    assert_fails(MN_E_FORMAT, "'a' appears twice", parse("{\"a\":1,\"a\":2}", JSON_STRICT, &doc));
    assert_null(doc);
    assert_ok(parse("{\"a\":1,\"a\":2}", JSON_PYTHON, &doc));
    assert_int_equal(json_get(json_root(doc), "a")->integer, 2);
    json_close(&doc);
    assert_fails(MN_E_FORMAT, "surrogate", parse("\"\\ud800\"", JSON_STRICT, &doc));
    assert_ok(parse("\"\\ud800\"", JSON_PYTHON, &doc));
    assert_string_equal(json_root(doc)->string, "\xEF\xBF\xBD");
    json_close(&doc);
    assert_fails(MN_E_FORMAT, "bad value", parse("[NaN]", JSON_STRICT, &doc));
    assert_ok(parse("[NaN,-Infinity,1000000000000000019884624838656]", JSON_PYTHON, &doc));
    assert_true(isnan(json_root(doc)->items[0].real));
    assert_true(isinf(json_root(doc)->items[1].real));
    assert_true(json_root(doc)->items[2].real == 1e30 ||
                json_root(doc)->items[2].real == 1000000000000000019884624838656.0);
    json_close(&doc);
}

static void integers_are_exact_to_64_bits(void **state) {
    (void)state;
    json_doc *doc = NULL;
    assert_ok(parse("[9223372036854775807,-9223372036854775808,9223372036854775808,-9223372036854775809,-0]",
                    JSON_STRICT, &doc));
    const json *items = json_root(doc)->items;
    assert_true(items[0].kind == JSON_INT && items[0].integer == INT64_MAX);
    assert_true(items[1].kind == JSON_INT && items[1].integer == INT64_MIN);
    assert_true(items[2].kind == JSON_REAL && items[2].real == 0x1p63);
    assert_true(items[3].kind == JSON_REAL && items[3].real == -0x1p63);
    assert_true(items[4].kind == JSON_INT && items[4].integer == 0);
    json_close(&doc);
}

/* Runs of plain characters of every length up to a few machine words, ended by each byte that needs special handling,
 * at every offset. */
static void strings_end_at_the_right_byte(void **state) {
    (void)state;
    static const struct {
        const char *text, *value; /* NULL: refused */
    } ends[] = {{"", ""},       {"\\n", "\n"},  {"\\u00e9", "\xC3\xA9"}, {"\xC3\xA9", "\xC3\xA9"}, {"\x7F", "\x7F"},
                {"\x1F", NULL}, {"\x80", NULL}, {"\xFF", NULL},          {"\xC3", NULL},           {"\\x", NULL}};
    for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
        for (size_t before = 0; before < 20; before++) {
            for (size_t after = 0; after < 10; after++) {
                char text[128], value[128];
                json_doc *doc = NULL;
                snprintf(text, sizeof text, "\"%.*s%s%.*s\"", (int)before, "abcdefghijklmnopqrstuvwxyz", ends[e].text,
                         (int)after, "!#[]~ {}:,;");
                snprintf(value, sizeof value, "%.*s%s%.*s", (int)before, "abcdefghijklmnopqrstuvwxyz",
                         ends[e].value ? ends[e].value : "", (int)after, "!#[]~ {}:,;");
                mn_status status = parse(text, JSON_STRICT, &doc);
                assert_int_equal(status, ends[e].value ? MN_OK : MN_E_FORMAT);
                if (doc) assert_string_equal(json_root(doc)->string, value);
                json_close(&doc);
            }
        }
    }
}

static void errors_name_line_and_column(void **state) {
    (void)state;
    json_doc *doc = NULL;
    assert_fails(MN_E_FORMAT, "text: ':' was expected at line 3, column 6",
                 parse("{\n\"a\\n\\n\":1,\n\"b\"  2}", JSON_STRICT, &doc));
    assert_fails(MN_E_FORMAT, "text: invalid UTF-8 at line 2, column 4",
                 parse("[1,\n \"x\xC0\xAF\"]", JSON_STRICT, &doc));
    assert_fails(MN_E_FORMAT, "text: unterminated string at line 1, column 2", parse("[\"abc", JSON_STRICT, &doc));
    assert_fails(MN_E_FORMAT, "the text ends where a value was expected at line 1, column 1",
                 parse("", JSON_STRICT, &doc));
}

/* Objects with few keys and with many are checked in different ways. */
static void duplicate_keys_are_found_in_objects_of_any_size(void **state) {
    (void)state;
    for (int n = 2; n < 40; n++) {
        for (int twin = 1; twin < n; twin++) {
            bytes text = {0};
            json_doc *doc = NULL;
            for (int i = 0; i < n; i++) bytes_printf(&text, "%s\"key %d\":0", i ? "," : "{", i == twin ? twin / 2 : i);
            bytes_append_text(&text, "}");
            assert_fails(MN_E_FORMAT, "appears twice", parse(bytes_text(&text), JSON_STRICT, &doc));
            bytes_clear(&text);
        }
    }
}

static void getters_report_value_and_range(void **state) {
    (void)state;
    json_doc *doc = NULL;
    assert_ok(parse("{\"n\":0,\"t\":true,\"s\":\"x\",\"f\":4.0}", JSON_PYTHON, &doc));
    const json *root = json_root(doc);
    int64_t n = 7;
    assert_ok(json_int("c", root, "absent", 1, 9, &n));
    assert_int_equal(n, 7);
    assert_ok(json_int("c", root, "f", 1, 9, &n));
    assert_int_equal(n, 4);
    assert_fails(MN_E_FORMAT, "c: n is 0, allowed: a whole number from 1 to 9", json_int("c", root, "n", 1, 9, &n));
    bool flag = false;
    assert_fails(MN_E_FORMAT, "s is \"x\"", json_bool("c", root, "s", &flag));
    assert_fails(MN_E_FORMAT, "'q' is missing", json_require("c", root, "q"));
    json_close(&doc);
}

static void depth_is_limited(void **state) {
    (void)state;
    char text[100001];
    memset(text, '[', 100000);
    text[100000] = 0;
    json_doc *doc = NULL;
    assert_fails(MN_E_FORMAT, "256 levels", parse(text, JSON_PYTHON, &doc));
}

static void the_conformance_suite_passes(void **state) {
    (void)state;
    const char *folder = shared_path("data/json-testsuite/test_parsing");
    if (!folder) skip();
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        char kind = entry->d_name[0];
        if (entry->d_name[1] != '_') continue;
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        json_doc *doc = NULL;
        mn_status status = json_open(&doc, path, JSON_STRICT, 1 << 20);
        json_close(&doc);
        bool duplicates = strstr(entry->d_name, "duplicated_key") != NULL; /* legal JSON that the strict mode refuses */
        if (kind == 'y' && !duplicates && status != MN_OK) fail_msg("%s: %s", entry->d_name, mn_last_error());
        if ((kind == 'n' || duplicates) && status == MN_OK) fail_msg("%s was accepted", entry->d_name);
        n++;
    }
    closedir(dir);
    assert_true(n > 300);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    const char *text = "{\"a\":[1,2,{\"b\":\"c\"}],\"d\":\"eeee\"}";
    int64_t live = mem_count().live;
    int64_t k = 1;
    for (;; k++) {
        json_doc *doc = NULL;
        mem_fail_after(k);
        mn_status status = parse(text, JSON_STRICT, &doc);
        mem_fail_after(0);
        json_close(&doc);
        assert_int_equal(mem_count().live, live);
        if (status == MN_OK) break;
        assert_int_equal(status, MN_E_NOMEM);
    }
    assert_true(k > 3);
}

/* NaN and Infinity, which Python's json module writes in addition to JSON. */
static void python_numbers_are_read_and_written(void **state) {
    (void)state;
    static const char text[] = "[Infinity,-Infinity,NaN,-0.0,0.1,1e300,123456789012,true]";
    json_doc *doc = NULL;
    bytes out = {0};
    assert_ok(parse(text, JSON_PYTHON, &doc));
    const json *items = json_root(doc)->items;
    assert_true(items[0].real == HUGE_VAL && items[1].real == -HUGE_VAL && isnan(items[2].real));
    assert_true(items[3].real == 0 && signbit(items[3].real));
    json_put_as(&out, json_root(doc), JSON_PYTHON);
    assert_string_equal(bytes_text(&out), "[Infinity,-Infinity,NaN,-0.0,0.1,1e+300,123456789012,true]");
    out.n = 0;
    json_put(&out, json_root(doc));
    assert_string_equal(bytes_text(&out), "[null,null,null,-0.0,0.1,1e+300,123456789012,true]");
    json_close(&doc);
    static const char *const wrong[] = {"[Infinity]", "[-Infinity]", "[NaN]", "[Infinite]", "[Nan]",
                                        "[-]",        "[-Infinit]",  "[nul]", "[tru]",      "[fals]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (i > 2) assert_int_equal(parse(wrong[i], JSON_PYTHON, &doc), MN_E_FORMAT);
        assert_int_equal(parse(wrong[i], JSON_STRICT, &doc), MN_E_FORMAT);
        assert_null(doc);
    }
    bytes_clear(&out);
}

/* A number of the range and the 15 digits that every double holds is written as that double; any other as it was read,
 * in both modes, unless the value is shown cut. */
static void numbers_that_a_double_does_not_hold_are_written_as_read(void **state) {
    (void)state;
    static const struct {
        const char *read, *written;
    } rows[] = {
        {"12345678901234567890123", "12345678901234567890123"},
        {"-12345678901234567890123", "-12345678901234567890123"},
        {"9223372036854775808", "9223372036854775808"},
        {"1e400", "1e400"},
        {"-1E+400", "-1E+400"},
        {"1e-400", "1e-400"},
        {"4.9e-324", "4.9e-324"},
        {"0.10000000000000000555", "0.10000000000000000555"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"1000000000000000000000.00", "1e+21"},
        {"0e400", "0"},
        {"-0.000e-400", "-0.0"},
        {"0.000123456789012345000", "0.000123456789012345"},
        {"1.50", "1.5"},
        {"1E2", "100"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int mode = 0; mode < 2; mode++) {
            char text[100], wanted[100];
            json_doc *doc = NULL;
            bytes out = {0};
            snprintf(text, sizeof text, "{\"a\":[%s ,\"e5\"]}", rows[i].read);
            snprintf(wanted, sizeof wanted, "{\"a\":[%s,\"e5\"]}", rows[i].written);
            assert_ok(parse(text, (json_mode)mode, &doc));
            json_put_as(&out, json_root(doc), (json_mode)mode);
            assert_string_equal(bytes_text(&out), wanted);
            json_close(&doc);
            bytes_clear(&out);
        }
    }
    json_doc *doc = NULL;
    assert_ok(parse("12345678901234567890123456789012345678901234567890123456789012345678901", JSON_STRICT, &doc));
    assert_fails(MN_E_FORMAT, "c: n is 1.23", json_wrong_value("c", "n", json_root(doc), "less"));
    json_close(&doc);
}

/* Every byte is written escaped or unchanged, and read back. */
static void any_string_is_written_and_read_back(void **state) {
    (void)state;
    char text[0x80 + 8], wanted[64];
    size_t n = 0;
    for (int c = 0; c < 0x80; c++) text[n++] = (char)c;
    memcpy(text + n, "\xC3\xA9\xF0\x9F\x98\x80", 6);
    n += 6;
    bytes out = {0};
    json_doc *doc = NULL;
    json_put_string(&out, text, n);
    assert_ok(json_parse(&doc, out.data, out.n, JSON_STRICT, "text"));
    assert_int_equal(json_root(doc)->n, n);
    assert_memory_equal(json_root(doc)->string, text, n);
    assert_non_null(strstr(bytes_text(&out), "\\u0007\\b\\t\\n\\u000b\\f\\r\\u000e"));
    json_close(&doc);
    out.n = 0;
    json_put_string(&out,
                    "a\xFF"
                    "b\xC3",
                    4); /* invalid UTF-8 becomes the replacement character */
    snprintf(wanted, sizeof wanted,
             "\"a\xEF\xBF\xBD"
             "b\xEF\xBF\xBD\"");
    assert_string_equal(bytes_text(&out), wanted);
    bytes_clear(&out);
}

static void members_are_separated_by_commas(void **state) {
    (void)state;
    bytes out = {0};
    bytes_append_text(&out, "{");
    json_put_text_member(&out, "a\"", "b\n");
    json_put_int_member(&out, "c", INT64_MIN);
    json_put_key(&out, "d");
    bytes_append_text(&out, "[");
    json_put_real_member(&out, NULL, 0.5);
    json_put_bool_member(&out, NULL, false);
    bytes_append_text(&out, "]}");
    assert_string_equal(bytes_text(&out), "{\"a\\\"\":\"b\\n\",\"c\":-9223372036854775808,\"d\":[0.5,false]}");
    bytes_clear(&out);
}

static void the_number_of_values_is_limited(void **state) {
    (void)state;
    enum { MOST = 8388608 };
    char *text = test_malloc(2 * (size_t)MOST + 8);
    json_doc *doc = NULL;
    size_t n = 0;
    text[n++] = '[';
    for (int i = 0; i < MOST; i++, n += 2) memcpy(text + n, "1,", 2);
    text[n - 1] = ']';
    assert_fails(MN_E_FORMAT, "more than 8388608 values", json_parse(&doc, text, n, JSON_STRICT, "text"));
    text[n - 3] = ']'; /* one less: with the list itself there are as many as allowed */
    assert_ok(json_parse(&doc, text, n - 2, JSON_STRICT, "text"));
    assert_int_equal(json_root(doc)->n, MOST - 1);
    json_close(&doc);
    test_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_round_trip),
        cmocka_unit_test(strict_and_lenient_modes_differ_as_specified),
        cmocka_unit_test(getters_report_value_and_range),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(integers_are_exact_to_64_bits),
        cmocka_unit_test(strings_end_at_the_right_byte),
        cmocka_unit_test(errors_name_line_and_column),
        cmocka_unit_test(duplicate_keys_are_found_in_objects_of_any_size),
        cmocka_unit_test(python_numbers_are_read_and_written),
        cmocka_unit_test(numbers_that_a_double_does_not_hold_are_written_as_read),
        cmocka_unit_test(any_string_is_written_and_read_back),
        cmocka_unit_test(members_are_separated_by_commas),
        cmocka_unit_test(the_number_of_values_is_limited),
        cmocka_unit_test(the_conformance_suite_passes),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
