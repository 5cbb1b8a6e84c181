/* A support table as a test computes it and docs/support.md shows it: check marks, and letters for refusals, which are
 * the library's messages.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TABLE_H
#define TESTS_TABLE_H

#include "support/support.h"

enum { TABLE_ROWS = 24, TABLE_COLUMNS = 24, TABLE_REASONS = 26, TABLE_REASON = 400 };

/* A page contains it between "<!-- NAME: tools/matrix writes this table -->" and "<!-- end of NAME -->". */
typedef struct table {
    const char *name;
    const char *rows[TABLE_ROWS], *columns[TABLE_COLUMNS];
    int n_rows, n_columns;
    bool shows_exceptions; /* rows that work in every column are listed, the others have one line for each refusal */
    char reasons[TABLE_REASONS][TABLE_REASON];
    int n_reasons;
    int cells[TABLE_ROWS][TABLE_COLUMNS]; /* 0: not tried; 1: it works; else 2 + the reason's number */
} table;

/* Records that the cell works or, with a reason, that it is refused. */
void table_note(table *t, int row, int column, const char *reason);

/* Fails unless docs/support.md has this table and every cell was tried; with MNEME_MATRIX=FOLDER writes
 * FOLDER/NAME instead (tools/matrix). */
void table_check(const table *t);

#endif
