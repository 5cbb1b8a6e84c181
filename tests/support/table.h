/* A table of what works, as a test finds it and README.md shows it: ticks, and letters for refusals in the library's own words.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TABLE_H
#define TESTS_TABLE_H

#include "support/support.h"

enum { TABLE_ROWS = 24, TABLE_COLUMNS = 24, TABLE_REASONS = 26, TABLE_REASON = 400 };

typedef struct table {
    const char *name; /* in README.md it stands between "<!-- NAME: tools/matrix writes this table -->" and "<!-- end of NAME -->" */
    const char *rows[TABLE_ROWS], *columns[TABLE_COLUMNS];
    int n_rows, n_columns;
    char reasons[TABLE_REASONS][TABLE_REASON];
    int n_reasons;
    int cells[TABLE_ROWS][TABLE_COLUMNS]; /* 0: not tried; 1: it works; else 2 + the reason's number */
} table;

/* Notes that it works, or, with a reason, that it is refused. */
void table_note(table *t, int row, int column, const char *reason);

/* Fails unless README.md has this table, every cell of which was tried; with MNEME_MATRIX=FOLDER writes FOLDER/NAME instead
 * (tools/matrix). */
void table_check(const table *t);

#endif
