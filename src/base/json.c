/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"

enum { MAX_DEPTH = 256, BLOCK_BYTES = 1 << 16 };

typedef struct block {
    struct block *next;
    size_t used, size;
} block;

struct json_doc {
    block *blocks; /* every value and string of the document */
    json root;
    char *what;
};

typedef struct parser {
    json_doc *doc;
    const char *text, *at, *end;
    json_mode mode;
    int depth;
    /* Children of the open containers; copied into the document when a container closes. */
    json_member *stack;
    size_t n_stack, stack_capacity;
    locale_t c_locale;
} parser;

/* ---- storage ---- */

static void *take(json_doc *doc, size_t n) {
    n = (n + 7) & ~(size_t)7;
    block *b = doc->blocks;
    if (!b || b->size - b->used < n) {
        size_t size = n > BLOCK_BYTES / 4 ? n : BLOCK_BYTES;
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
    mem_free((*doc)->what);
    mem_free(*doc);
    *doc = NULL;
}

/* ---- parsing ---- */

static mn_status fail_at(const parser *p, const char *place, const char *problem) {
    size_t line = 1, column = 1;
    for (const char *c = p->text; c < place; c++) {
        column++;
        if (*c == '\n') line++, column = 1;
    }
    MN_FAIL(MN_E_FORMAT, "%s: %s at line %zu, column %zu", p->doc->what, problem, line, column);
}

static void skip_space(parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r')) p->at++;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Four hexadecimal digits at `at`, or -1. */
static int32_t read_hex4(const char *at, const char *end) {
    if (end - at < 4) return -1;
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
    int32_t code = read_hex4(p->at, p->end);
    if (code < 0) return fail_at(p, p->at, "bad \\u escape");
    p->at += 4;
    if (code >= 0xD800 && code <= 0xDBFF && p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u') {
        int32_t low = read_hex4(p->at + 2, p->end);
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

static mn_status parse_escape(parser *p, char **out) {
    char c = p->at < p->end ? *p->at++ : 0;
    switch (c) {
    case '"': case '\\': case '/': *(*out)++ = c; return MN_OK;
    case 'b': *(*out)++ = '\b'; return MN_OK;
    case 'f': *(*out)++ = '\f'; return MN_OK;
    case 'n': *(*out)++ = '\n'; return MN_OK;
    case 'r': *(*out)++ = '\r'; return MN_OK;
    case 't': *(*out)++ = '\t'; return MN_OK;
    case 'u': return parse_unicode_escape(p, out);
    default: return fail_at(p, p->at - 1, "unknown escape in a string");
    }
}

/* A string at the opening quote. An escape is never shorter than the UTF-8 it stands for, so the distance to the closing
 * quote bounds the result. */
static mn_status parse_string(parser *p, const char **out, size_t *n) {
    const char *start = ++p->at, *close = start;
    while (close < p->end && *close != '"') close += *close == '\\' && close + 1 < p->end ? 2 : 1;
    if (close >= p->end) return fail_at(p, start - 1, "unterminated string");
    char *text = take(p->doc, (size_t)(close - start) + 1), *to = text;
    if (!text) return MN_E_NOMEM;
    while (p->at < close) {
        const char *run = p->at;
        while (p->at < close && *p->at != '\\') {
            if ((unsigned char)*p->at < 0x20) return fail_at(p, p->at, "control character in a string");
            p->at++;
        }
        memcpy(to, run, (size_t)(p->at - run));
        to += p->at - run;
        if (p->at < close) {
            p->at++;
            MN_TRY(parse_escape(p, &to));
        }
    }
    p->at = close + 1;
    *to = 0;
    *out = text;
    *n = (size_t)(to - text);
    return MN_OK;
}

static bool accept_word(parser *p, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0) return false;
    p->at += n;
    return true;
}

static size_t count_digits(const parser *p, const char *at) {
    const char *c = at;
    while (c < p->end && *c >= '0' && *c <= '9') c++;
    return (size_t)(c - at);
}

static mn_status parse_number(parser *p, json *out) {
    const char *start = p->at;
    bool negative = accept_word(p, "-"), is_integer = true;
    if (p->mode == JSON_PYTHON && accept_word(p, "Infinity")) {
        *out = (json){.kind = JSON_REAL, .real = negative ? -HUGE_VAL : HUGE_VAL};
        return MN_OK;
    }
    size_t digits = count_digits(p, p->at);
    if (digits == 0 || (digits > 1 && *p->at == '0')) return fail_at(p, start, "bad value");
    p->at += digits;
    if (p->at < p->end && *p->at == '.') {
        size_t fraction = count_digits(p, p->at + 1);
        if (fraction == 0) return fail_at(p, start, "bad number");
        p->at += 1 + fraction;
        is_integer = false;
    }
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        p->at++;
        if (p->at < p->end && (*p->at == '+' || *p->at == '-')) p->at++;
        size_t exponent = count_digits(p, p->at);
        if (exponent == 0) return fail_at(p, start, "bad number");
        p->at += exponent;
        is_integer = false;
    }
    if (is_integer && digits < 19) { /* fits for sure; longer ones are checked below */
        int64_t value = 0;
        for (const char *c = p->at - digits; c < p->at; c++) value = value * 10 + (*c - '0');
        *out = (json){.kind = JSON_INT, .integer = negative ? -value : value};
        return MN_OK;
    }
    size_t n = (size_t)(p->at - start);
    char small[64], *copy = n < sizeof small ? small : mem_alloc_raw(n + 1, 1);
    if (!copy) return MN_E_NOMEM;
    memcpy(copy, start, n);
    copy[n] = 0;
    *out = (json){.kind = JSON_REAL, .real = strtod_l(copy, NULL, p->c_locale)};
    if (is_integer && fabs(out->real) < 0x1p63) *out = (json){.kind = JSON_INT, .integer = strtoll(copy, NULL, 10)};
    if (copy != small) mem_free(copy);
    return MN_OK;
}

static mn_status parse_value(parser *p, json *out);

static mn_status push_child(parser *p, const json_member *child) {
    MN_TRY(mem_grow(&p->stack, &p->stack_capacity, p->n_stack + 1, sizeof *p->stack));
    p->stack[p->n_stack++] = *child;
    return MN_OK;
}

/* FNV-1a over a key. */
static uint64_t hash_key(const char *key, size_t n) {
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)key[i]) * 0x100000001B3u;
    return h;
}

static mn_status refuse_duplicates(const parser *p, const json_member *members, size_t n) {
    size_t size = 16;
    while (size < n * 2) size *= 2;
    size_t *slots = mem_alloc(size, sizeof *slots); /* index + 1 */
    if (!slots) return MN_E_NOMEM;
    mn_status status = MN_OK;
    for (size_t i = 0; i < n && status == MN_OK; i++) {
        size_t slot = (size_t)hash_key(members[i].key, members[i].key_n) & (size - 1);
        for (; slots[slot]; slot = (slot + 1) & (size - 1)) {
            const json_member *other = &members[slots[slot] - 1];
            if (other->key_n == members[i].key_n && memcmp(other->key, members[i].key, other->key_n) == 0) {
                status = status_fail(MN_E_FORMAT, "%s: the key '%.100s' appears twice", p->doc->what, members[i].key);
                break;
            }
        }
        slots[slot] = i + 1;
    }
    mem_free(slots);
    return status;
}

/* Moves the children above `base` into the document. */
static mn_status close_container(parser *p, size_t base, json *out) {
    size_t n = p->n_stack - base;
    out->n = n;
    if (out->kind == JSON_OBJECT) {
        json_member *members = take(p->doc, n * sizeof *members);
        if (!members) return MN_E_NOMEM;
        if (n) memcpy(members, p->stack + base, n * sizeof *members);
        if (p->mode == JSON_STRICT && n > 1) MN_TRY(refuse_duplicates(p, members, n));
        out->members = members;
    } else {
        json *items = take(p->doc, n * sizeof *items);
        if (!items) return MN_E_NOMEM;
        for (size_t i = 0; i < n; i++) items[i] = p->stack[base + i].value;
        out->items = items;
    }
    p->n_stack = base;
    return MN_OK;
}

static mn_status parse_container(parser *p, json *out) {
    bool is_object = *p->at == '{';
    char closing = is_object ? '}' : ']';
    size_t base = p->n_stack;
    *out = (json){.kind = is_object ? JSON_OBJECT : JSON_ARRAY};
    if (++p->depth > MAX_DEPTH) return fail_at(p, p->at, "nesting deeper than 256 levels");
    p->at++;
    skip_space(p);
    bool more = p->at >= p->end || *p->at != closing;
    while (more) {
        json_member child = {0};
        skip_space(p);
        if (is_object) {
            if (p->at >= p->end || *p->at != '"') return fail_at(p, p->at, "a key in double quotes was expected");
            MN_TRY(parse_string(p, &child.key, &child.key_n));
            skip_space(p);
            if (!accept_word(p, ":")) return fail_at(p, p->at, "':' was expected");
        }
        MN_TRY(parse_value(p, &child.value));
        MN_TRY(push_child(p, &child));
        skip_space(p);
        more = accept_word(p, ",");
    }
    if (p->at >= p->end || *p->at != closing) return fail_at(p, p->at, is_object ? "'}' was expected" : "']' was expected");
    p->at++;
    p->depth--;
    return close_container(p, base, out);
}

static mn_status parse_value(parser *p, json *out) {
    skip_space(p);
    if (p->at >= p->end) return fail_at(p, p->at, "the text ends where a value was expected");
    *out = (json){.kind = JSON_NULL};
    switch (*p->at) {
    case '{': case '[': return parse_container(p, out);
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

mn_status json_parse(json_doc **out, const char *text, size_t n, json_mode mode, const char *what) {
    *out = NULL;
    json_doc *doc = mem_alloc(1, sizeof *doc);
    if (!doc) return MN_E_NOMEM;
    parser p = {.doc = doc, .text = text, .at = text, .end = text + n, .mode = mode};
    mn_status status = MN_OK;
    doc->what = mem_copy_text(what, strlen(what));
    p.c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!doc->what || !p.c_locale) MN_GOTO(done, status, mem_no_memory());
    if (mode == JSON_PYTHON && n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) p.at += 3;
    size_t valid = utf8_valid_prefix(text, n);
    if (valid < n) MN_GOTO(done, status, fail_at(&p, text + valid, "invalid UTF-8"));
    MN_GOTO(done, status, parse_value(&p, &doc->root));
    skip_space(&p);
    if (p.at < p.end) status = fail_at(&p, p.at, "text after the end of the document");
done:
    mem_free(p.stack);
    if (p.c_locale) freelocale(p.c_locale);
    if (status != MN_OK) {
        json_close(&doc);
    } else {
        *out = doc;
    }
    return status;
}

mn_status json_open(json_doc **out, const char *path, json_mode mode, size_t limit) {
    bytes text = {0};
    *out = NULL;
    mn_status status = file_read(&text, path, limit);
    if (status == MN_OK) status = json_parse(out, text.data ? text.data : "", text.n, mode, path);
    bytes_clear(&text);
    return status;
}

const json *json_root(const json_doc *doc) { return &doc->root; }
const char *json_what(const json_doc *doc) { return doc->what; }

/* ---- reading ---- */

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
    return value && value->kind == JSON_STRING && value->n == strlen(text) && memcmp(value->string, text, value->n) == 0;
}

/* Present and not null. */
static const json *get_set(const json *object, const char *key) {
    const json *value = json_get(object, key);
    return value && value->kind != JSON_NULL ? value : NULL;
}

static mn_status wrong_value(const char *what, const char *key, const json *value, const char *allowed) {
    bytes seen = {0};
    json_put(&seen, value);
    status_fail(MN_E_FORMAT, "%s: %s is %.60s, allowed: %s", what, key, bytes_text(&seen), allowed);
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
    return wrong_value(what, key, value, allowed);
}

mn_status json_real(const char *what, const json *object, const char *key, double lo, double hi, double *out) {
    const json *value = get_set(object, key);
    if (!value) return MN_OK;
    double number = value->kind == JSON_INT ? (double)value->integer : value->kind == JSON_REAL ? value->real : (double)NAN;
    if (number >= lo && number <= hi) {
        *out = number;
        return MN_OK;
    }
    char allowed[96];
    snprintf(allowed, sizeof allowed, "a number from %g to %g", lo, hi);
    return wrong_value(what, key, value, allowed);
}

mn_status json_bool(const char *what, const json *object, const char *key, bool *out) {
    const json *value = get_set(object, key);
    if (!value) return MN_OK;
    if (value->kind != JSON_BOOL) return wrong_value(what, key, value, "true or false");
    *out = value->boolean;
    return MN_OK;
}

mn_status json_string(const char *what, const json *object, const char *key, const char **out) {
    const json *value = get_set(object, key);
    if (!value) return MN_OK;
    if (value->kind != JSON_STRING) return wrong_value(what, key, value, "a string");
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

void json_put_real(bytes *out, double value) {
    if (!isfinite(value)) {
        bytes_append_text(out, "null");
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

void json_put(bytes *out, const json *value) {
    switch (value->kind) {
    case JSON_NULL: bytes_append_text(out, "null"); return;
    case JSON_BOOL: bytes_append_text(out, value->boolean ? "true" : "false"); return;
    case JSON_INT: bytes_printf(out, "%" PRId64, value->integer); return;
    case JSON_REAL: json_put_real(out, value->real); return;
    case JSON_STRING: json_put_string(out, value->string, value->n); return;
    case JSON_ARRAY:
        bytes_append_text(out, "[");
        for (size_t i = 0; i < value->n; i++) {
            if (i) bytes_append_text(out, ",");
            json_put(out, &value->items[i]);
        }
        bytes_append_text(out, "]");
        return;
    case JSON_OBJECT:
        bytes_append_text(out, "{");
        for (size_t i = 0; i < value->n; i++) {
            if (i) bytes_append_text(out, ",");
            json_put_string(out, value->members[i].key, value->members[i].key_n);
            bytes_append_text(out, ":");
            json_put(out, &value->members[i].value);
        }
        bytes_append_text(out, "}");
        return;
    }
}
