/* SPDX-License-Identifier: Apache-2.0 */
#include "description_text.h"

#include <stdio.h>
#include <string.h>

enum { KEY_COLUMN = 28, MOST_COLUMNS = 12, MOST_WIDTH = 48 };

static bool is_plain(const json *value) {
    return value->kind != JSON_ARRAY && value->kind != JSON_OBJECT;
}

static bool counts_bytes(const char *key) {
    size_t n = strlen(key);
    return strcmp(key, "bytes") == 0 || (n > 6 && strcmp(key + n - 6, "_bytes") == 0);
}

/* A text on one line. */
static void put_line(bytes *b, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n' || text[i] == '\t') {
            bytes_append_text(b, text[i] == '\n' ? "\\n" : "\\t");
        } else {
            bytes_append(b, text + i, 1);
        }
    }
}

static void put_plain(bytes *b, const char *key, const json *value) {
    if (value->kind == JSON_STRING) {
        put_line(b, value->string, value->n);
    } else if (value->kind == JSON_INT && counts_bytes(key) &&
               (value->integer >= 1 << 20 || value->integer <= -(1 << 20))) {
        double mib = (double)value->integer / (1 << 20);
        bytes_printf(b, mib >= 1024 ? "%.2f GiB" : "%.1f MiB", mib >= 1024 ? mib / 1024 : mib);
    } else if (value->kind == JSON_INT && counts_bytes(key)) {
        bytes_printf(b, "%lld B", (long long)value->integer);
    } else {
        json_put(b, value);
    }
}

/* A list of objects with the same plain members. */
static bool is_table(const json *list) {
    if (list->kind != JSON_ARRAY || list->n == 0) return false;
    for (size_t i = 0; i < list->n; i++) {
        const json *row = &list->items[i];
        if (row->kind != JSON_OBJECT || row->n == 0 || row->n > MOST_COLUMNS || row->n != list->items[0].n)
            return false;
        for (size_t k = 0; k < row->n; k++) {
            if (!is_plain(&row->members[k].value) || strcmp(row->members[k].key, list->items[0].members[k].key) != 0)
                return false;
        }
    }
    return true;
}

static void put_cell(bytes *b, const char *text, size_t n, size_t width, bool last) {
    bytes_append(b, text, n);
    if (!last) bytes_printf(b, "%*s", (int)(width > n ? width - n : 0) + 2, "");
}

static void put_table(bytes *b, const json *list, int indent) {
    size_t columns = list->items[0].n, widths[MOST_COLUMNS];
    bytes cell = {0};
    for (size_t k = 0; k < columns; k++) {
        widths[k] = list->items[0].members[k].key_n;
        for (size_t i = 0; i < list->n; i++) {
            cell.n = 0;
            put_plain(&cell, list->items[i].members[k].key, &list->items[i].members[k].value);
            if (cell.n > widths[k] && cell.n <= MOST_WIDTH) widths[k] = cell.n;
        }
    }
    bytes_printf(b, "%*s", indent, "");
    for (size_t k = 0; k < columns; k++) {
        put_cell(b, list->items[0].members[k].key, list->items[0].members[k].key_n, widths[k], k + 1 == columns);
    }
    bytes_append_text(b, "\n");
    for (size_t i = 0; i < list->n; i++) {
        bytes_printf(b, "%*s", indent, "");
        for (size_t k = 0; k < columns; k++) {
            cell.n = 0;
            put_plain(&cell, list->items[i].members[k].key, &list->items[i].members[k].value);
            put_cell(b, cell.data ? cell.data : "", cell.n, widths[k], k + 1 == columns);
        }
        bytes_append_text(b, "\n");
    }
    bytes_clear(&cell);
}

void description_text_put(bytes *b, const json *object, int indent) {
    for (size_t i = 0; object->kind == JSON_OBJECT && i < object->n; i++) {
        const json_member *member = &object->members[i];
        const json *value = &member->value;
        bytes_printf(b, "%*s", indent, "");
        put_line(b, member->key, member->key_n);
        if (value->kind == JSON_OBJECT && indent < 12) {
            bytes_append_text(b, "\n");
            description_text_put(b, value, indent + 2);
        } else if (is_table(value)) {
            bytes_append_text(b, "\n");
            put_table(b, value, indent + 2);
        } else {
            int used = indent + (int)member->key_n;
            bytes_printf(b, "%*s", used < KEY_COLUMN ? KEY_COLUMN - used : 1, "");
            put_plain(b, member->key, value);
            bytes_append_text(b, "\n");
        }
    }
}
