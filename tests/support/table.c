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

static int cell_of(const table *t, int row, int column) {
    if (t->cells[row][column] == 0) fail_msg("%s, %s was not tried", t->rows[row], t->columns[column]);
    return t->cells[row][column];
}

static bool has_refusal(const table *t, int row) {
    for (int i = 0; i < t->n_columns; i++)
        if (cell_of(t, row, i) != 1) return true;
    return false;
}

/* The columns that a row refuses for one reason, in one line. */
static void put_refusals(bytes *b, const table *t, int row, int reason) {
    const char *between = "";
    for (int i = 0; i < t->n_columns; i++) {
        if (cell_of(t, row, i) != 2 + reason) continue;
        if (!*between) bytes_printf(b, "| %s | ", t->rows[row]);
        bytes_printf(b, "%s`%s`", between, t->columns[i]);
        between = ", ";
    }
    if (*between) bytes_printf(b, " | %s |\n", t->reasons[reason]);
}

static void put_exceptions(bytes *b, const table *t) {
    const char *between = "\n\nWith every one of them: ";
    bytes_append_text(b, "The strategies: ");
    for (int i = 0; i < t->n_columns; i++) bytes_printf(b, "%s`%s`", i ? ", " : "", t->columns[i]);
    bytes_append_text(b, ".");
    for (int row = 0; row < t->n_rows; row++) {
        if (has_refusal(t, row)) continue;
        bytes_printf(b, "%s%s", between, t->rows[row]);
        between = "; ";
    }
    bytes_append_text(b, ".\n\n| family | refuses | because |\n|---|---|---|\n");
    for (int row = 0; row < t->n_rows; row++)
        for (int reason = 0; reason < t->n_reasons; reason++) put_refusals(b, t, row, reason);
}

static void put_table(bytes *b, const table *t) {
    bytes_append_text(b, "| |");
    for (int i = 0; i < t->n_columns; i++) bytes_printf(b, " %s |", t->columns[i]);
    bytes_append_text(b, "\n|---|");
    for (int i = 0; i < t->n_columns; i++) bytes_append_text(b, ":-:|");
    for (int row = 0; row < t->n_rows; row++) {
        bytes_printf(b, "\n| %s |", t->rows[row]);
        for (int i = 0; i < t->n_columns; i++) {
            int cell = cell_of(t, row, i);
            if (cell == 1) {
                bytes_append_text(b, " \xE2\x9C\x93 |");
            } else {
                bytes_printf(b, " %c |", 'a' + cell - 2);
            }
        }
    }
    bytes_append_text(b, "\n\n");
    for (int i = 0; i < t->n_reasons; i++) bytes_printf(b, "- %c: %s\n", 'a' + i, t->reasons[i]);
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
    bytes text = {0}, page = {0};
    char begin[128], end[64];
    snprintf(begin, sizeof begin, "<!-- %s: tools/matrix writes this table -->\n", t->name);
    snprintf(end, sizeof end, "<!-- end of %s -->\n", t->name);
    if (t->shows_exceptions) {
        put_exceptions(&text, t);
    } else {
        put_table(&text, t);
    }
    bytes_text(&text);
    assert_ok(bytes_status(&text));
    const char *folder = getenv("MNEME_MATRIX");
    if (folder && *folder) {
        write_table(t, &text, folder);
    } else {
        assert_ok(file_read(&page, TESTS_DIR "/../docs/support.md", 1 << 20));
        const char *from = strstr(bytes_text(&page), begin);
        if (!from) fail_msg("docs/support.md has no line %s", begin);
        from += strlen(begin);
        const char *to = strstr(from, end);
        if (!to || (size_t)(to - from) != text.n || memcmp(from, text.data, text.n) != 0)
            fail_msg("docs/support.md has another table; tools/matrix updates it:\n%s", bytes_text(&text));
    }
    bytes_clear(&text);
    bytes_clear(&page);
}
