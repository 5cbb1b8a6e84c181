/* SPDX-License-Identifier: Apache-2.0 */
#include "support/table.h"

void table_note(table *t, int row, int column, const char *reason) {
    int number = 0;
    t->cells[row][column] = 1;
    if (!reason) return;
    while (number < t->n_reasons && strcmp(t->reasons[number], reason) != 0) number++;
    assert_true(number < TABLE_REASONS);
    assert_true(strlen(reason) < TABLE_REASON);
    if (number == t->n_reasons) memcpy(t->reasons[t->n_reasons++], reason, strlen(reason) + 1);
    t->cells[row][column] = 2 + number;
}

static void put_table(bytes *b, const table *t) {
    bytes_append_text(b, "| |");
    for (int i = 0; i < t->n_columns; i++) bytes_printf(b, " %s |", t->columns[i]);
    bytes_append_text(b, "\n|---|");
    for (int i = 0; i < t->n_columns; i++) bytes_append_text(b, ":-:|");
    for (int row = 0; row < t->n_rows; row++) {
        bytes_printf(b, "\n| %s |", t->rows[row]);
        for (int i = 0; i < t->n_columns; i++) {
            int cell = t->cells[row][i];
            if (cell == 0) fail_msg("%s, %s was not tried", t->rows[row], t->columns[i]);
            if (cell == 1) {
                bytes_append_text(b, " \xE2\x9C\x93 |");
            } else {
                bytes_printf(b, " %c |", 'a' + cell - 2);
            }
        }
    }
    bytes_append_text(b, "\n\n");
    for (int i = 0; i < t->n_reasons; i++) bytes_printf(b, "- %c: %s\n", 'a' + i, t->reasons[i]);
    bytes_text(b);
    assert_ok(bytes_status(b));
}

static void write_table(const table *t, const bytes *text, const char *folder) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, t->name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text->data, 1, text->n, file), text->n);
    assert_int_equal(fclose(file), 0);
}

void table_check(const table *t) {
    bytes text = {0}, readme = {0};
    char begin[128], end[64];
    snprintf(begin, sizeof begin, "<!-- %s: tools/matrix writes this table -->\n", t->name);
    snprintf(end, sizeof end, "<!-- end of %s -->\n", t->name);
    put_table(&text, t);
    const char *folder = getenv("MNEME_MATRIX");
    if (folder && *folder) {
        write_table(t, &text, folder);
    } else {
        assert_ok(file_read(&readme, TESTS_DIR "/../README.md", 1 << 20));
        const char *from = strstr(bytes_text(&readme), begin);
        if (!from) fail_msg("README.md has no line %s", begin);
        from += strlen(begin);
        const char *to = strstr(from, end);
        if (!to || (size_t)(to - from) != text.n || memcmp(from, text.data, text.n) != 0)
            fail_msg("README.md has another table; tools/matrix brings it up to date:\n%s",
                     bytes_text(&text));
    }
    bytes_clear(&text);
    bytes_clear(&readme);
}
