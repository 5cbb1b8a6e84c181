/* docs/generation.md lists every option with the program's default and allowed values.
 * SPDX-License-Identifier: Apache-2.0 */
#include "mneme.h"
#include "support/support.h"

static void append_escaped(bytes *b, const char *text) {
    for (; *text; text++) {
        if (*text == '|') bytes_append_text(b, "\\");
        bytes_append(b, text, 1);
    }
}

static void docs_generation_lists_every_option(void **state) {
    (void)state;
    char path[1024];
    bytes page = {0};
    snprintf(path, sizeof path, "%s/../docs/generation.md", TESTS_DIR);
    assert_ok(file_read(&page, path, 1 << 20));
    const char *text = bytes_text(&page);
    for (int i = 0; mn_generation_field_at(i); i++) {
        const mn_generation_field *field = mn_generation_field_at(i);
        bytes row = {0};
        bytes_printf(&row, "| `%s`", field->name);
        if (field->alias) bytes_printf(&row, ", `%s`", field->alias);
        bytes_printf(&row, " | `%s` | ", field->standard);
        append_escaped(&row, field->allowed);
        bytes_append_text(&row, " | ");
        append_escaped(&row, field->help);
        bytes_append_text(&row, " | ");
        const char *found = strstr(text, bytes_text(&row));
        if (!found) fail_msg("docs/generation.md lacks the row: %s", bytes_text(&row));
        if (found[row.n] == '|') fail_msg("%s has no source", field->name);
        bytes_clear(&row);
    }
    bytes_clear(&page);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(docs_generation_lists_every_option)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
