/* The JSON Schema Test Suite: no invalid value is accepted, and docs/constraints.md tells how many schemas are refused
 * and how many of the valid values can be generated.
 * SPDX-License-Identifier: Apache-2.0 */
#include "constraint/run.h"
#include "support/support.h"

typedef struct count {
    const char *keyword;
    size_t schemas, refused, valid, taken;
} count;

static size_t invalid_values; /* tried */

static bool takes(run *r, const json *value) {
    bytes text = {0};
    uint32_t state = r->start;
    json_put(&text, value);
    r->steps = 0;
    for (size_t i = 0; i < text.n && state != RUN_DEAD; i++)
        assert_ok(run_step(r, state, (uint8_t)text.data[i], &state));
    bytes_clear(&text);
    return r->states[state].accepts;
}

static void check_values(const json *group, run *r, count *of) {
    const json *valid = json_get(group, "valid"), *invalid = json_get(group, "invalid");
    for (size_t i = 0; i < invalid->n; i++) {
        bytes text = {0};
        if (!takes(r, &invalid->items[i])) continue;
        json_put(&text, group);
        fail_msg("invalid value %zu is accepted: %s", i, bytes_text(&text));
    }
    invalid_values += invalid->n;
    of->valid += valid->n;
    for (size_t i = 0; i < valid->n; i++) of->taken += takes(r, &valid->items[i]);
}

/* Refused are what is not supported, and schemas that allow no value that can be generated. */
static void check_group(const json *group, count *of) {
    net g;
    run r = {0};
    of->schemas++;
    assert_ok(net_open(&g));
    uint32_t root = net_schema(&g, json_get(group, "schema"));
    mn_status status = net_finish(&g, root);
    if (status == MN_OK && g.nodes[root].need <= NET_DEPTH) {
        assert_ok(run_open(&r, &g));
        check_values(group, &r, of);
    } else {
        bool named = status == MN_OK || strstr(mn_last_error(), "schema, $");
        if (!named || (status != MN_OK && status != MN_E_UNSUPPORTED && status != MN_E_ARG))
            fail_msg("%s: %s", of->keyword, mn_last_error());
        of->refused++;
    }
    run_clear(&r);
    net_clear(&g);
}

static void put_row(bytes *table, const count *of) {
    if (of->schemas == 0) return;
    bytes_printf(table, "| `%s` | %zu | %zu | %zu of %zu |\n", of->keyword, of->schemas, of->refused, of->taken,
                 of->valid);
}

static void no_invalid_value_of_the_suite_is_accepted(void **state) {
    (void)state;
    bytes page = {0}, table = {0};
    count of = {0};
    char path[1024];
    json_doc *doc = open_json(data_path("schema/suite.json"));
    const json *groups = json_root(doc);
    assert_true(groups->n > 200);
    for (size_t i = 0; i < groups->n; i++) {
        const char *keyword = json_get(&groups->items[i], "keyword")->string;
        if (of.schemas && strcmp(of.keyword, keyword) != 0) {
            put_row(&table, &of);
            of = (count){0};
        }
        of.keyword = keyword;
        check_group(&groups->items[i], &of);
    }
    put_row(&table, &of);
    snprintf(path, sizeof path, "%s/../docs/constraints.md", TESTS_DIR);
    assert_ok(file_read(&page, path, 1 << 20));
    if (!strstr(bytes_text(&page), bytes_text(&table))) {
        fputs(bytes_text(&table), stderr);
        fail_msg("docs/constraints.md has not the table above");
    }
    assert_true(invalid_values > 200);
    bytes_clear(&page);
    bytes_clear(&table);
    json_close(&doc);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_invalid_value_of_the_suite_is_accepted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
