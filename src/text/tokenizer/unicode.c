/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/unicode.h"

#include <string.h>

#include <utf8proc.h>

/* Pages of 256 code points that lie inside one block of ideographs, syllables, surrogates or private use, or in planes
 * without characters: all of a page is of one class, so one look-up does. First and last page of each range. */
static const uint16_t uniform_pages[][2] = {
    {0x34, 0x4C},   {0x4E, 0x9E},   {0xAC, 0xD6},   {0xD8, 0xDF},   {0xE0, 0xF8},   {0x200, 0x2A5}, {0x2A7, 0x2B6},
    {0x2B9, 0x2CD}, {0x2CF, 0x2EA}, {0x300, 0x312}, {0x314, 0x322}, {0x400, 0xDFF}, {0xE02, 0x10FF}};

static bool is_uniform(uint32_t page) {
    for (size_t i = 0; i < sizeof uniform_pages / sizeof *uniform_pages; i++) {
        if (page >= uniform_pages[i][0] && page <= uniform_pages[i][1]) return true;
    }
    return false;
}

/* Circled and squared letters: alphabetic symbols, hence \w, although their category is So. */
static bool is_lettered_symbol(uint32_t code) {
    return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
           (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

static uint8_t classify(uint32_t code) {
    unsigned c = 0;
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: c = UNICODE_LETTER | UNICODE_WORD; break;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL: c = UNICODE_NUMBER | UNICODE_WORD; break;
    case UTF8PROC_CATEGORY_NO: c = UNICODE_NUMBER; break;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME: c = UNICODE_MARK | UNICODE_WORD; break;
    case UTF8PROC_CATEGORY_PC: c = UNICODE_WORD; break;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: c = UNICODE_SPACE; break;
    default: break;
    }
    if ((code >= 9 && code <= 13) || code == 0x85) c |= UNICODE_SPACE;
    if (code == 0x200C || code == 0x200D || is_lettered_symbol(code)) c |= UNICODE_WORD;
    return (uint8_t)c;
}

static mn_status add_row(unicode_table *table, const uint8_t row[256], uint16_t *out) {
    MN_TRY(mem_grow(&table->rows, &table->capacity, table->n_rows + 1, sizeof *table->rows));
    memcpy(table->rows[table->n_rows], row, 256);
    *out = (uint16_t)table->n_rows++;
    return MN_OK;
}

/* Pages of one class, nearly all, share a row for each class. */
static mn_status fill(unicode_table *table) {
    uint8_t row[256];
    uint16_t shared[2 * UNICODE_MARK]; /* by class; 0 is the row of ASCII, which is of several */
    memset(shared, 0, sizeof shared);
    for (uint32_t page = 0; page < UNICODE_PAGES; page++) {
        const uint8_t first = classify(page << 8);
        if (is_uniform(page)) {
            memset(row, first, sizeof row);
        } else {
            for (uint32_t i = 0; i < 256; i++) row[i] = classify(page << 8 | i);
        }
        const bool shares = memcmp(row, row + 1, sizeof row - 1) == 0;
        if (!shares || !shared[first]) MN_TRY(add_row(table, row, &table->page[page]));
        if (!shares) continue;
        if (!shared[first]) shared[first] = table->page[page];
        table->page[page] = shared[first];
    }
    return MN_OK;
}

mn_status unicode_table_open(unicode_table **out) {
    *out = NULL;
    unicode_table *table = mem_alloc(1, sizeof *table);
    if (!table) return MN_E_NOMEM;
    mn_status status = fill(table);
    if (status != MN_OK) {
        unicode_table_close(&table);
    } else {
        *out = table;
    }
    return status;
}

void unicode_table_close(unicode_table **table) {
    if (!*table) return;
    mem_free((*table)->rows);
    mem_free(*table);
    *table = NULL;
}

/* ---- normalisation ---- */

enum {
    MOST_CODES = 32, /* one character decomposes into 18 at most */
    SHORT_RUN = 16,  /* so many marks are ordered by insertion */
    N_CLASSES = 256, /* combining classes */
};

typedef struct code_list {
    utf8proc_int32_t *codes; /* owned */
    size_t n, capacity;
} code_list;

static unsigned combining_class(utf8proc_int32_t code) {
    return code < 0x300 ? 0 : (unsigned)utf8proc_get_property(code)->combining_class;
}

/* Puts marks in the order of their combining classes; equals keep theirs. In linear time, because a text may be one run
 * of marks: utf8proc's own ordering moves each mark step by step. */
static mn_status order_run(utf8proc_int32_t *run, size_t n, code_list *scratch) {
    size_t starts[N_CLASSES] = {0};
    if (n <= SHORT_RUN) {
        for (size_t i = 1; i < n; i++) {
            utf8proc_int32_t code = run[i];
            size_t k = i;
            for (; k > 0 && combining_class(run[k - 1]) > combining_class(code); k--) run[k] = run[k - 1];
            run[k] = code;
        }
        return MN_OK;
    }
    MN_TRY(mem_grow(&scratch->codes, &scratch->capacity, n, sizeof *run));
    memcpy(scratch->codes, run, n * sizeof *run);
    for (size_t i = 0; i < n; i++) starts[combining_class(run[i])]++;
    for (size_t c = 0, start = 0, count; c < N_CLASSES; c++, start += count) {
        count = starts[c];
        starts[c] = start;
    }
    for (size_t i = 0; i < n; i++) run[starts[combining_class(scratch->codes[i])]++] = scratch->codes[i];
    return MN_OK;
}

/* Canonical ordering: each run of characters whose class is not 0. */
static mn_status order_marks(code_list *list, code_list *scratch) {
    for (size_t i = 0, end; i < list->n; i = end) {
        end = i + 1;
        if (combining_class(list->codes[i]) == 0) continue;
        while (end < list->n && combining_class(list->codes[end]) != 0) end++;
        MN_TRY(order_run(list->codes + i, end - i, scratch));
    }
    return MN_OK;
}

static mn_status decompose(utf8proc_option_t options, const char *text, size_t n, code_list *list) {
    int no_boundary = 0; /* no grapheme boundaries */
    for (size_t i = 0, length; i < n; i += length) {
        length = utf8_length((unsigned char)text[i]);
        MN_TRY(mem_grow(&list->codes, &list->capacity, list->n + MOST_CODES, sizeof *list->codes));
        utf8proc_ssize_t count = utf8proc_decompose_char((utf8proc_int32_t)utf8_decode(text + i, length),
                                                         list->codes + list->n, MOST_CODES, options, &no_boundary);
        mem_written(list->codes + list->n, MOST_CODES * sizeof *list->codes);
        list->n += count > 0 ? (size_t)count : 0;
    }
    return MN_OK;
}

/* Composes where the form requires it, and appends. utf8proc takes the vowel U+11A7 for a final consonant of Hangul and
 * drops it; as it composes with nothing, the text between such vowels is composed separately. */
static void append_composed(utf8proc_option_t options, code_list *list, bytes *out) {
    enum { VOWEL = 0x11A7 };
    for (size_t start = 0, end; start < list->n; start = end) {
        end = start + 1;
        while (end < list->n && list->codes[start] != VOWEL && list->codes[end] != VOWEL) end++;
        utf8proc_int32_t *codes = list->codes + start;
        utf8proc_ssize_t count = utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)(end - start), options);
        for (utf8proc_ssize_t i = 0; i < count; i++) {
            char sequence[4];
            bytes_append(out, sequence, utf8_encode(sequence, (uint32_t)codes[i]));
        }
    }
}

/* Appends one range in the form that the options select. */
static mn_status normalize_range(utf8proc_option_t options, const char *text, size_t n, bytes *out) {
    code_list list = {0}, scratch = {0};
    mn_status status = decompose(options, text, n, &list);
    if (status == MN_OK) status = order_marks(&list, &scratch);
    if (status == MN_OK) append_composed(options, &list, out);
    mem_free(list.codes);
    mem_free(scratch.codes);
    return status == MN_OK ? bytes_status(out) : status;
}

/* Below U+0300 a text is in form C, below U+0080 in every form; and no ASCII character combines with the one before it.
 * So only ranges need work that begin one character before a non-ASCII one and end at the next ASCII character. */
mn_status unicode_normalize(unicode_form form, const char *text, size_t n, bytes *out) {
    static const int options[] = {
        [UNICODE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [UNICODE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [UNICODE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [UNICODE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    const unsigned char *s = (const unsigned char *)text,
                        plain = form == UNICODE_NFC ? 0xCC : 0x80; /* CC 80 is U+0300 */
    size_t copied = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < plain) continue;
        size_t start = i, end = i;
        if (start > copied) start--;
        while (start > copied && (s[start] & 0xC0) == 0x80) start--;
        while (end < n && s[end] >= 0x80) end++;
        bytes_append(out, text + copied, start - copied);
        MN_TRY(normalize_range((utf8proc_option_t)options[form], text + start, end - start, out));
        copied = end;
        i = end - 1;
    }
    bytes_append(out, text + copied, n - copied);
    return bytes_status(out);
}

void unicode_lower(const char *text, size_t n, bytes *out) {
    for (size_t i = 0; i < n;) {
        size_t length = utf8_length((unsigned char)text[i]);
        uint32_t code = utf8_decode(text + i, length);
        char sequence[4];
        bytes_append(out, sequence, utf8_encode(sequence, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code)));
        if (code == 0x130) bytes_append(out, "\xCC\x87", 2); /* the only lower case of two characters */
        i += length;
    }
}
