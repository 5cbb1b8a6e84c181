/* Unicode for tokenizers: character classes in a two-level table, normalisation forms, lower case.
 *
 * The classes come from utf8proc when a table is built (a few milliseconds); no table is stored in the source.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_UNICODE_H
#define MN_TEXT_UNICODE_H

#include "base/mem.h"
#include "base/utf8.h"

enum {
    UNICODE_LETTER = 1, /* \p{L} */
    UNICODE_NUMBER = 2, /* \p{N} */
    UNICODE_SPACE = 4,  /* \s: the White_Space property */
    UNICODE_WORD = 8,   /* \w: letters, marks, decimal and letter numbers, connectors, joiners */
    UNICODE_MARK = 16,  /* \p{M} */
    UNICODE_PAGES = 0x1100,
};

typedef struct unicode_table {
    uint16_t page[UNICODE_PAGES]; /* code >> 8 to a row of `rows` */
    uint8_t (*rows)[256];
    size_t n_rows, capacity;
} unicode_table;

mn_status unicode_table_open(unicode_table **out);
void unicode_table_close(unicode_table **table);

/* Classes of a code point below 0x110000. */
static inline unsigned unicode_class(const unicode_table *table, uint32_t code) {
    return table->rows[table->page[code >> 8]][code & 0xFF];
}

/* Classes of the character at `text` (valid UTF-8) and its length in bytes. */
static inline unsigned unicode_class_at(const unicode_table *table, const char *text, size_t *length) {
    unsigned char lead = (unsigned char)text[0];
    if (lead < 0x80) {
        *length = 1;
        return table->rows[0][lead];
    }
    *length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return unicode_class(table, utf8_decode(text, *length));
}

typedef enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD } unicode_form;

/* Appends the normalised text (valid UTF-8 in, valid UTF-8 out). MN_E_NOMEM. */
mn_status unicode_normalize(unicode_form form, const char *text, size_t n, bytes *out);

/* Appends the text in lower case, character by character without regard to context. */
void unicode_lower(const char *text, size_t n, bytes *out);

#endif
