/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/sort.h"
#include "base/utf8.h"

enum {
    MAX_DEPTH = 256,
    MAX_VALUES = 1 << 23, /* bounds the memory of a hostile text with two bytes for each value */
    FIRST_BLOCK_BYTES = 512,
    BLOCK_BYTES = 1 << 16,
    FEW_MEMBERS = 16, /* so many keys are compared pair by pair */
    WORD = 8          /* strings are scanned in words of eight bytes; the text is followed by as many zeros */
};

typedef struct block {
    struct block *next;
    size_t used, size;
} block;

struct json_doc {
    json root;
    char *what;
    char *text;    /* the document's own copy; strings are decoded and zero-terminated where they stand */
    block *blocks; /* items and members */
};

typedef struct parser {
    json_doc *doc;
    char *at;
    const char *end;  /* a zero byte, which ends every scan */
    const char *line; /* start of the current line */
    size_t line_number, n_values;
    json_mode mode;
    int depth;
    /* Children of the open containers; copied into the document when a container closes. */
    json *items;
    json_member *members;
    size_t n_items, items_capacity, n_members, members_capacity;
    locale_t c_locale;
} parser;

/* ---- storage ---- */

/* Small at first: most documents are, and many are kept. At least n. */
static size_t next_block_bytes(const block *last, size_t n) {
    if (n > BLOCK_BYTES / 4) return n;
    size_t size = last ? 2 * last->size : FIRST_BLOCK_BYTES;
    if (size < 4 * n) size = 4 * n;
    return size < BLOCK_BYTES ? size : BLOCK_BYTES;
}

static void *take(json_doc *doc, size_t n) {
    block *b = doc->blocks;
    if (!b || b->size - b->used < n) {
        size_t size = next_block_bytes(b, n);
        block *fresh = mem_alloc_raw(1, sizeof *fresh + size);
        if (!fresh) return NULL;
        *fresh = (block){NULL, 0, size};
        if (b && size == n) { /* a block of its own; go on filling the current one */
            fresh->next = b->next;
            b->next = fresh;
        } else {
            fresh->next = b;
            doc->blocks = fresh;
        }
        b = fresh;
    }
    void *place = (char *)(b + 1) + b->used;
    b->used += n;
    return place;
}

void json_close(json_doc **doc) {
    if (!*doc) return;
    for (block *b = (*doc)->blocks, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    mem_free((*doc)->text);
    mem_free((*doc)->what);
    mem_free(*doc);
    *doc = NULL;
}

/* ---- parsing ---- */

static mn_status fail_at(const parser *p, const char *place, const char *problem) {
    MN_FAIL(MN_E_FORMAT, "%s: %s at line %zu, column %zu", p->doc->what, problem, p->line_number,
            (size_t)(place - p->line) + 1);
}

static void skip_space(parser *p) {
    for (;; p->at++) {
        if ((unsigned char)*p->at > ' ') return;
        if (*p->at == '\n') {
            p->line_number++;
            p->line = p->at + 1;
        } else if (*p->at != ' ' && *p->at != '\t' && *p->at != '\r') {
            return;
        }
    }
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Four hexadecimal digits, or -1. */
static int32_t read_hex4(const char *at) {
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(at[i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* One \u escape (with its second half if it is a pair) at p->at, just behind "\u". */
static mn_status parse_unicode_escape(parser *p, char **out) {
    int32_t code = read_hex4(p->at);
    if (code < 0) return fail_at(p, p->at, "bad \\u escape");
    p->at += 4;
    if (code >= 0xD800 && code <= 0xDBFF && p->at[0] == '\\' && p->at[1] == 'u') {
        int32_t low = read_hex4(p->at + 2);
        if (low >= 0xDC00 && low <= 0xDFFF) {
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            p->at += 6;
        }
    }
    if (code >= 0xD800 && code <= 0xDFFF) {
        if (p->mode == JSON_STRICT) return fail_at(p, p->at, "lone surrogate in a string");
        code = 0xFFFD;
    }
    *out += utf8_encode(*out, (uint32_t)code);
    return MN_OK;
}

/* At the backslash. The decoded bytes are never more than those of the escape. */
static mn_status parse_escape(parser *p, char **out) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char c = p->at[1];
    const char *letter = c ? strchr(letters, c) : NULL;
    if (!letter && c != 'u') return fail_at(p, p->at, "unknown escape in a string");
    p->at += 2;
    if (!letter) return parse_unicode_escape(p, out);
    *(*out)++ = meanings[letter - letters];
    return MN_OK;
}

/* Distance to the first byte that is not plain ASCII inside a string: a quote, a backslash, a control character or a
 * byte from 0x80 on. In a word, subtracting from each byte sets the top bit where it borrows; a borrow can only disturb
 * bytes above the first hit. */
static size_t plain_run(const char *at) {
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    for (size_t n = 0;; n += WORD) {
        uint64_t x;
        memcpy(&x, at + n, sizeof x);
        uint64_t hits = (((x ^ ones * '"') - ones) | ((x ^ ones * '\\') - ones) | (x - ones * ' ') | x) & tops;
        if (hits) return n + (size_t)__builtin_ctzll(hits) / 8;
    }
}

/* A string at the opening quote, decoded in place. */
static mn_status parse_string(parser *p, const char **out, size_t *n) {
    const char *opening = p->at++;
    char *text = p->at, *to = text;
    for (;;) {
        size_t run = plain_run(p->at);
        if (to != p->at) memmove(to, p->at, run);
        to += run;
        p->at += run;
        unsigned char c = (unsigned char)*p->at;
        if (c == '"') break;
        if (p->at >= p->end) return fail_at(p, opening, "unterminated string");
        if (c == '\\') {
            MN_TRY(parse_escape(p, &to));
        } else if (c < 0x20) {
            return fail_at(p, p->at, "control character in a string");
        } else {
            size_t length = utf8_sequence(p->at, (size_t)(p->end - p->at));
            if (length == 0) return fail_at(p, p->at, "invalid UTF-8");
            for (size_t i = 0; i < length; i++) *to++ = *p->at++;
        }
    }
    p->at++;
    *to = 0; /* the closing quote's place or one before it */
    *out = text;
    *n = (size_t)(to - text);
    return MN_OK;
}

static bool accept_byte(parser *p, char c) {
    if (*p->at != c) return false;
    p->at++;
    return true;
}

static bool accept_word(parser *p, const char *word) {
    size_t n = strlen(word);
    if (strncmp(p->at, word, n) != 0) return false;
    p->at += n;
    return true;
}

static size_t count_digits(const char *at) {
    size_t n = 0;
    while (at[n] >= '0' && at[n] <= '9') n++;
    return n;
}

static mn_status parse_number(parser *p, json *out) {
    const char *start = p->at;
    bool negative = accept_byte(p, '-'), is_integer = true;
    if (p->mode == JSON_PYTHON && accept_word(p, "Infinity")) {
        *out = (json){.kind = JSON_REAL, .real = negative ? -HUGE_VAL : HUGE_VAL};
        return MN_OK;
    }
    size_t digits = count_digits(p->at);
    if (digits == 0 || (digits > 1 && *p->at == '0')) {
        bool foreign = (unsigned char)*p->at >= 0x80 && utf8_sequence(p->at, (size_t)(p->end - p->at)) == 0;
        return fail_at(p, start, foreign ? "invalid UTF-8" : "bad value");
    }
    p->at += digits;
    if (accept_byte(p, '.')) {
        size_t fraction = count_digits(p->at);
        if (fraction == 0) return fail_at(p, start, "bad number");
        p->at += fraction;
        is_integer = false;
    }
    if (accept_byte(p, 'e') || accept_byte(p, 'E')) {
        if (!accept_byte(p, '+')) accept_byte(p, '-');
        size_t exponent = count_digits(p->at);
        if (exponent == 0) return fail_at(p, start, "bad number");
        p->at += exponent;
        is_integer = false;
    }
    if (is_integer && digits < 19) { /* always fits; longer ones are checked below */
        int64_t value = 0;
        for (const char *c = p->at - digits; c < p->at; c++) value = value * 10 + (*c - '0');
        *out = (json){.kind = JSON_INT, .integer = negative ? -value : value};
        return MN_OK;
    }
    if (is_integer) {
        errno = 0;
        *out = (json){.kind = JSON_INT, .integer = strtoll(start, NULL, 10)};
        if (errno == 0) return MN_OK;
    }
    *out = (json){.kind = JSON_REAL, .written = start, .real = strtod_l(start, NULL, p->c_locale)};
    return MN_OK;
}

static int order_of_keys(const void *a, const void *b) {
    const json_member *x = a, *y = b;
    int order = memcmp(x->key, y->key, x->key_n < y->key_n ? x->key_n : y->key_n);
    return order ? order : (x->key_n > y->key_n) - (x->key_n < y->key_n);
}

static mn_status twice(const parser *p, const json_member *m) {
    MN_FAIL(MN_E_FORMAT, "%s: the key '%.100s' appears twice", p->doc->what, m->key);
}

static mn_status refuse_duplicates(const parser *p, const json_member *members, size_t n) {
    if (n <= FEW_MEMBERS) {
        for (size_t i = 1; i < n; i++) {
            for (size_t k = 0; k < i; k++) {
                if (order_of_keys(&members[k], &members[i]) == 0) return twice(p, &members[i]);
            }
        }
        return MN_OK;
    }
    const void **sorted = mem_alloc_raw(n, sizeof *sorted);
    if (!sorted) return MN_E_NOMEM;
    for (size_t i = 0; i < n; i++) sorted[i] = &members[i];
    mn_status status = sort_pointers(sorted, n, order_of_keys);
    for (size_t i = 1; i < n && status == MN_OK; i++) {
        if (order_of_keys(sorted[i - 1], sorted[i]) == 0) status = twice(p, sorted[i]);
    }
    mem_free(sorted);
    return status;
}

static mn_status parse_value(parser *p, json *out);

static mn_status enter(parser *p) {
    if (++p->depth > MAX_DEPTH) return fail_at(p, p->at, "nesting deeper than 256 levels");
    p->at++;
    skip_space(p);
    return MN_OK;
}

static mn_status parse_array(parser *p, json *out) {
    size_t base = p->n_items;
    MN_TRY(enter(p));
    bool more = *p->at != ']';
    while (more) {
        json item;
        MN_TRY(parse_value(p, &item));
        MN_TRY(mem_grow(&p->items, &p->items_capacity, p->n_items + 1, sizeof *p->items));
        p->items[p->n_items++] = item;
        skip_space(p);
        more = accept_byte(p, ',');
    }
    if (!accept_byte(p, ']')) return fail_at(p, p->at, "']' was expected");
    p->depth--;
    size_t n = p->n_items - base;
    json *items = take(p->doc, n * sizeof *items);
    if (!items) return MN_E_NOMEM;
    if (n) memcpy(items, p->items + base, n * sizeof *items);
    p->n_items = base;
    *out = (json){.kind = JSON_ARRAY, .n = n, .items = items};
    return MN_OK;
}

static mn_status parse_object(parser *p, json *out) {
    size_t base = p->n_members;
    MN_TRY(enter(p));
    bool more = *p->at != '}';
    while (more) {
        json_member member;
        skip_space(p);
        if (*p->at != '"') return fail_at(p, p->at, "a key in double quotes was expected");
        MN_TRY(parse_string(p, &member.key, &member.key_n));
        skip_space(p);
        if (!accept_byte(p, ':')) return fail_at(p, p->at, "':' was expected");
        MN_TRY(parse_value(p, &member.value));
        MN_TRY(mem_grow(&p->members, &p->members_capacity, p->n_members + 1, sizeof *p->members));
        p->members[p->n_members++] = member;
        skip_space(p);
        more = accept_byte(p, ',');
    }
    if (!accept_byte(p, '}')) return fail_at(p, p->at, "'}' was expected");
    p->depth--;
    size_t n = p->n_members - base;
    json_member *members = take(p->doc, n * sizeof *members);
    if (!members) return MN_E_NOMEM;
    if (n) memcpy(members, p->members + base, n * sizeof *members);
    p->n_members = base;
    *out = (json){.kind = JSON_OBJECT, .n = n, .members = members};
    return p->mode == JSON_STRICT ? refuse_duplicates(p, members, n) : MN_OK;
}

static mn_status parse_value(parser *p, json *out) {
    skip_space(p);
    if (p->at >= p->end) return fail_at(p, p->at, "the text ends where a value was expected");
    if (++p->n_values > MAX_VALUES) return fail_at(p, p->at, "more than 8388608 values");
    *out = (json){.kind = JSON_NULL};
    switch (*p->at) {
    case '{': return parse_object(p, out);
    case '[': return parse_array(p, out);
    case '"': out->kind = JSON_STRING; return parse_string(p, &out->string, &out->n);
    case 't':
        if (!accept_word(p, "true")) break;
        *out = (json){.kind = JSON_BOOL, .boolean = true};
        return MN_OK;
    case 'f':
        if (!accept_word(p, "false")) break;
        *out = (json){.kind = JSON_BOOL, .boolean = false};
        return MN_OK;
    case 'n':
        if (!accept_word(p, "null")) break;
        return MN_OK;
    case 'N':
        if (p->mode != JSON_PYTHON || !accept_word(p, "NaN")) break;
        *out = (json){.kind = JSON_REAL, .real = (double)NAN};
        return MN_OK;
    case 'I':
        if (p->mode != JSON_PYTHON || !accept_word(p, "Infinity")) break;
        *out = (json){.kind = JSON_REAL, .real = HUGE_VAL};
        return MN_OK;
    default: return parse_number(p, out);
    }
    return fail_at(p, p->at, "bad value");
}

/* Takes over `text` (n bytes and WORD zeros). */
static mn_status parse_owned(json_doc **out, char *text, size_t n, json_mode mode, const char *what) {
    json_doc *doc = mem_alloc(1, sizeof *doc);
    if (!doc) {
        mem_free(text);
        return MN_E_NOMEM;
    }
    doc->text = text;
    doc->what = mem_copy_text(what, strlen(what));
    parser p = {.doc = doc, .at = text, .end = text + n, .line = text, .line_number = 1, .mode = mode};
    p.c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    mn_status status = doc->what && p.c_locale ? MN_OK : mem_no_memory();
    if (status == MN_OK) {
        if (mode == JSON_PYTHON && strncmp(text, "\xEF\xBB\xBF", 3) == 0) p.at += 3;
        status = parse_value(&p, &doc->root);
    }
    if (status == MN_OK) {
        skip_space(&p);
        if (p.at < p.end) status = fail_at(&p, p.at, "text after the end of the document");
    }
    mem_free(p.items);
    mem_free(p.members);
    if (p.c_locale) freelocale(p.c_locale);
    if (status != MN_OK) {
        json_close(&doc);
    } else {
        *out = doc;
    }
    return status;
}

mn_status json_parse(json_doc **out, const char *text, size_t n, json_mode mode, const char *what) {
    *out = NULL;
    size_t size;
    char *copy = size_add(n, WORD, &size) ? mem_alloc_raw(size, 1) : NULL;
    if (!copy) return mem_no_memory();
    if (n) memcpy(copy, text, n);
    memset(copy + n, 0, WORD);
    return parse_owned(out, copy, n, mode, what);
}

mn_status json_open(json_doc **out, const char *path, json_mode mode, size_t limit) {
    static const char zeros[WORD];
    bytes text = {0};
    *out = NULL;
    mn_status status = file_read(&text, path, limit);
    size_t n = text.n;
    bytes_append(&text, zeros, sizeof zeros);
    if (status == MN_OK) status = bytes_status(&text);
    if (status == MN_OK) return parse_owned(out, text.data, n, mode, path);
    bytes_clear(&text);
    return status;
}

const json *json_root(const json_doc *doc) {
    return &doc->root;
}
const char *json_what(const json_doc *doc) {
    return doc->what;
}

/* ---- reading ---- */

static void put_value(bytes *out, const json *value, json_mode mode, size_t most);

const json *json_get(const json *object, const char *key) {
    if (!object || object->kind != JSON_OBJECT) return NULL;
    size_t n = strlen(key);
    for (size_t i = object->n; i-- > 0;) {
        const json_member *m = &object->members[i];
        if (m->key_n == n && memcmp(m->key, key, n) == 0) return &m->value;
    }
    return NULL;
}

bool json_is_string(const json *value, const char *text) {
    return value && value->kind == JSON_STRING && value->n == strlen(text) &&
           memcmp(value->string, text, value->n) == 0;
}

/* Present and not null. */
static const json *get_set(const json *object, const char *key) {
    const json *value = json_get(object, key);
    return value && value->kind != JSON_NULL ? value : NULL;
}

mn_status json_wrong_value(const char *what, const char *key, const json *value, const char *allowed) {
    enum { SHOWN = 60 };
    bytes seen = {0};
    put_value(&seen, value, JSON_STRICT, SHOWN);
    const char *text = bytes_text(&seen);
    size_t n = utf8_valid_prefix(text, strlen(text) < SHOWN ? strlen(text) : SHOWN);
    status_fail(MN_E_FORMAT, "%s: %s is %.*s, allowed: %s", what, key, (int)n, text, allowed);
    bytes_clear(&seen);
    return MN_E_FORMAT;
}

mn_status json_int(const char *what, const json *object, const char *key, int64_t lo, int64_t hi, int64_t *out) {
    const json *value = get_set(object, key);
    if (!value) return MN_OK;
    int64_t number = 0;
    bool whole = value->kind == JSON_INT;
    if (whole) {
        number = value->integer;
    } else if (value->kind == JSON_REAL && fabs(value->real) < 0x1p62 && value->real == floor(value->real)) {
        number = (int64_t)value->real;
        whole = true;
    }
    if (whole && number >= lo && number <= hi) {
        *out = number;
        return MN_OK;
    }
    char allowed[96];
    snprintf(allowed, sizeof allowed, "a whole number from %" PRId64 " to %" PRId64, lo, hi);
    return json_wrong_value(what, key, value, allowed);
}

mn_status json_real(const char *what, const json *object, const char *key, double lo, double hi, double *out) {
    const json *value = get_set(object, key);
    if (!value) return MN_OK;
    double number = value->kind == JSON_INT    ? (double)value->integer
                    : value->kind == JSON_REAL ? value->real
                                               : (double)NAN;
    if (number >= lo && number <= hi) {
        *out = number;
        return MN_OK;
    }
    char allowed[96];
    snprintf(allowed, sizeof allowed, "a number from %g to %g", lo, hi);
    return json_wrong_value(what, key, value, allowed);
}

mn_status json_bool(const char *what, const json *object, const char *key, bool *out) {
    const json *value = get_set(object, key);
    if (!value) return MN_OK;
    if (value->kind != JSON_BOOL) return json_wrong_value(what, key, value, "true or false");
    *out = value->boolean;
    return MN_OK;
}

mn_status json_string(const char *what, const json *object, const char *key, const char **out) {
    const json *value = get_set(object, key);
    if (!value) return MN_OK;
    if (value->kind != JSON_STRING) return json_wrong_value(what, key, value, "a string");
    *out = value->string;
    return MN_OK;
}

mn_status json_require(const char *what, const json *object, const char *key) {
    if (!get_set(object, key)) MN_FAIL(MN_E_FORMAT, "%s: '%s' is missing", what, key);
    return MN_OK;
}

/* ---- writing ---- */

void json_put_string(bytes *out, const char *text, size_t n) {
    bytes_append(out, "\"", 1);
    size_t i = 0;
    while (i < n) {
        size_t run = i;
        while (run < n && (unsigned char)text[run] >= 0x20 && text[run] != '"' && text[run] != '\\' &&
               (unsigned char)text[run] < 0x80) {
            run++;
        }
        bytes_append(out, text + i, run - i);
        i = run;
        if (i >= n) break;
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x80) {
            size_t length = utf8_sequence(text + i, n - i);
            bytes_append(out, length ? text + i : "\xEF\xBF\xBD", length ? length : 3);
            i += length ? length : 1;
            continue;
        }
        switch (c) {
        case '"': bytes_append_text(out, "\\\""); break;
        case '\\': bytes_append_text(out, "\\\\"); break;
        case '\b': bytes_append_text(out, "\\b"); break;
        case '\f': bytes_append_text(out, "\\f"); break;
        case '\n': bytes_append_text(out, "\\n"); break;
        case '\r': bytes_append_text(out, "\\r"); break;
        case '\t': bytes_append_text(out, "\\t"); break;
        default: bytes_printf(out, "\\u%04x", c);
        }
        i++;
    }
    bytes_append(out, "\"", 1);
}

void json_put_bytes(bytes *out, const bytes *text) {
    out->failed |= text->failed;
    json_put_string(out, text->data, text->n);
}

void json_put_real(bytes *out, double value) {
    if (!isfinite(value)) {
        bytes_append_text(out, "null");
        return;
    }
    if (value == 0 && signbit(value)) {
        bytes_append_text(out, "-0.0"); /* "-0" would be read as an integer */
        return;
    }
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    for (char *c = text; *c; c++) {
        if (*c == ',') *c = '.'; /* a host program may have set a locale with a decimal comma */
    }
    bytes_append_text(out, text);
}

void json_put_key(bytes *out, const char *key) {
    const char last = out->n > 0 ? out->data[out->n - 1] : '{';
    if (last != '{' && last != '[') bytes_append_text(out, ",");
    if (!key) return;
    json_put_string(out, key, strlen(key));
    bytes_append_text(out, ":");
}

void json_put_text_member(bytes *out, const char *key, const char *text) {
    json_put_key(out, key);
    json_put_string(out, text, strlen(text));
}

void json_put_int_member(bytes *out, const char *key, int64_t value) {
    json_put_key(out, key);
    bytes_printf(out, "%lld", (long long)value);
}

void json_put_real_member(bytes *out, const char *key, double value) {
    json_put_key(out, key);
    json_put_real(out, value);
}

void json_put_bool_member(bytes *out, const char *key, bool value) {
    json_put_key(out, key);
    bytes_append_text(out, value ? "true" : "false");
}

/* Whether a double holds the number as it was read: of up to DBL_DIG digits it does, within its range. */
static bool is_held(const json *number) {
    size_t n = 0, zeros = 0; /* digits from the first to the last that is not zero; zeros behind it */
    for (const char *c = number->written; (*c >= '0' && *c <= '9') || *c == '.' || *c == '-'; c++) {
        if (*c == '0') {
            zeros += n > 0;
        } else if (*c >= '1') {
            n += zeros + 1;
            zeros = 0;
        }
    }
    return n == 0 || (n <= DBL_DIG && isnormal(number->real));
}

/* JSON has no infinite numbers; Python's json module writes and reads them all the same. */
static void put_number(bytes *out, const json *number, json_mode mode, size_t most) {
    double value = number->real;
    if (number->written && most == SIZE_MAX && !is_held(number)) {
        bytes_append(out, number->written, strspn(number->written, "0123456789.eE+-"));
    } else if (mode == JSON_STRICT || isfinite(value)) {
        json_put_real(out, value);
    } else {
        bytes_append_text(out, isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
    }
}

/* Stops behind `most` bytes, about. */
static void put_value(bytes *out, const json *value, json_mode mode, size_t most) {
    switch (value->kind) {
    case JSON_NULL: bytes_append_text(out, "null"); return;
    case JSON_BOOL: bytes_append_text(out, value->boolean ? "true" : "false"); return;
    case JSON_INT: bytes_printf(out, "%" PRId64, value->integer); return;
    case JSON_REAL: put_number(out, value, mode, most); return;
    case JSON_STRING: json_put_string(out, value->string, value->n); return;
    case JSON_ARRAY:
        bytes_append_text(out, "[");
        for (size_t i = 0; i < value->n && out->n < most; i++) {
            if (i) bytes_append_text(out, ",");
            put_value(out, &value->items[i], mode, most);
        }
        bytes_append_text(out, "]");
        return;
    case JSON_OBJECT:
        bytes_append_text(out, "{");
        for (size_t i = 0; i < value->n && out->n < most; i++) {
            if (i) bytes_append_text(out, ",");
            json_put_string(out, value->members[i].key, value->members[i].key_n);
            bytes_append_text(out, ":");
            put_value(out, &value->members[i].value, mode, most);
        }
        bytes_append_text(out, "}");
        return;
    }
}

void json_put(bytes *out, const json *value) {
    put_value(out, value, JSON_STRICT, SIZE_MAX);
}

void json_put_as(bytes *out, const json *value, json_mode mode) {
    put_value(out, value, mode, SIZE_MAX);
}
