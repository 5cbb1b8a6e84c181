/* The filters wordwrap, as Python's textwrap does it, and striptags, as markupsafe does.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/utf8.h"
#include "text/jinja/internal.h"

enum { NO_CODE = 0x7FFFFFFF }; /* behind the last character */

static mn_status plain_text(jrun *r, jvalue v, jvalue *out) {
    MN_TRY(jinja_str(r, v, out));
    out->markup = false;
    return MN_OK;
}

static uint32_t code_at(const jstring *s, size_t at) {
    uint32_t code = NO_CODE;
    if (at < s->n) jchar_at(s->data, s->n, at, &code);
    return code;
}

static bool is_blank(uint32_t code) {
    return code == ' ' || (code >= '\t' && code <= '\r');
}

static bool is_word(uint32_t code) {
    return code != NO_CODE && (code == '_' || jchar_alpha(code) || jchar_numeric(code));
}

static bool is_letter(uint32_t code) {
    return is_word(code) && !jchar_decimal(code);
}

/* ---- wordwrap ---- */

/* A text that is divided into chunks: runs of blanks, words, parts of words behind hyphens, dashes between words. */
typedef struct chunker {
    const jstring *s;
    jvalue text;
    size_t at;
    uint32_t before[3]; /* the characters before `at`, the last one first */
    bool hyphens;       /* words end at hyphens and dashes, too */
} chunker;

static void step(chunker *c) {
    uint32_t code;
    const size_t n = jchar_at(c->s->data, c->s->n, c->at, &code);
    c->before[2] = c->before[1];
    c->before[1] = c->before[0];
    c->before[0] = code;
    c->at += n;
}

/* Whether two hyphens or more lead from a word or its punctuation to another word. */
static bool is_dash(const chunker *c) {
    const uint32_t before = c->before[0];
    size_t n = c->at;
    if (!is_word(before) && !(before && before < 0x80 && strchr("!\"'&.,?", (int)before))) return false;
    while (n < c->s->n && c->s->data[n] == '-') /* bounded: charged with the text, as a run is behind one word only */
        n++;
    return n - c->at >= 2 && is_word(code_at(c->s, n));
}

/* Whether the word may be divided behind the hyphen that is next: between letters, two before it and two behind it,
 * of which each pair may have a hyphen inside. */
static bool is_hyphen(const chunker *c) {
    const uint32_t *before = c->before;
    if (code_at(c->s, c->at) != '-' || !is_letter(before[0])) return false;
    if (!is_letter(before[1]) && !(before[1] == '-' && is_letter(before[2]))) return false;
    uint32_t first, second;
    size_t at = c->at + 1;
    if (!is_letter(first = code_at(c->s, at))) return false;
    at += jchar_at(c->s->data, c->s->n, at, &first);
    second = code_at(c->s, at);
    if (second == '-') second = code_at(c->s, at + 1);
    return is_letter(second);
}

static mn_status next_chunk(jrun *r, chunker *c, jvalue *out) {
    const size_t start = c->at;
    const char *data = c->s->data;
    if (is_blank(code_at(c->s, start))) {
        while (is_blank(code_at(c->s, c->at))) /* charged: by the caller */
            step(c);
        return jinja_text_part(r, c->text, data + start, c->at - start, out);
    }
    if (c->hyphens && is_dash(c)) {
        while (code_at(c->s, c->at) == '-') /* charged: by the caller */
            step(c);
        return jinja_text_part(r, c->text, data + start, c->at - start, out);
    }
    do step(c); /* charged: by the caller */
    while (c->at < c->s->n && !is_blank(code_at(c->s, c->at)) && !(c->hyphens && (is_hyphen(c) || is_dash(c))));
    if (c->hyphens && is_hyphen(c)) step(c);
    return jinja_text_part(r, c->text, data + start, c->at - start, out);
}

static mn_status read_chunks(jrun *r, jvalue text, bool hyphens, jlist **out) {
    chunker c = {.s = text.string, .text = text, .hyphens = hyphens, .before = {NO_CODE, NO_CODE, NO_CODE}};
    MN_TRY(jinja_list_new(r, 0, out));
    MN_TRY(jinja_charge(r, 2 * text.string->n + 1));
    while (c.at < c.s->n) {
        jvalue chunk;
        MN_TRY(next_chunk(r, &c, &chunk));
        MN_TRY(jinja_list_push(r, *out, chunk));
    }
    return MN_OK;
}

static bool is_all_blank(jvalue chunk) {
    uint32_t code;
    for (size_t at = 0; at < chunk.string->n;) { /* charged: with the text, as a chunk is asked about twice at most */
        at += jchar_at(chunk.string->data, chunk.string->n, at, &code);
        if (!jchar_space(code)) return false;
    }
    return true;
}

typedef struct wrapping {
    int64_t width;
    bool breaks, hyphens;
    jlist *chunks; /* of a paragraph */
    size_t next;
    jlist *lines;
    /* The line under construction. */
    int64_t length;
    jvalue last; /* its last chunk, which is left out when it is blank */
    bool is_empty;
} wrapping;

static mn_status add_chunk(jrun *r, wrapping *w, jvalue chunk) {
    if (j_given(w->last)) {
        MN_TRY(jinja_put_str(r, w->last));
        w->is_empty = false;
    }
    w->last = chunk;
    w->length += (int64_t)chunk.string->points;
    return MN_OK;
}

/* How many characters of a word that is longer than a line stay on this one: the room, or what ends behind a hyphen. */
static size_t head_length(const wrapping *w, const jstring *word, size_t room) {
    const char *end = word->data + jinja_offset(word, room);
    const char *hyphen = w->hyphens ? memrchr(word->data, '-', (size_t)(end - word->data)) : NULL;
    const char *start = word->data;
    while (hyphen && start < hyphen && *start == '-') /* charged: by the caller */
        start++;
    if (!hyphen || start == hyphen) return room;
    return jinja_count_points(word->data, (size_t)(hyphen - word->data)) + 1;
}

static mn_status break_word(jrun *r, wrapping *w) {
    jvalue *word = &w->chunks->items[w->next], head;
    const jstring *s = word->string;
    if (!w->breaks) {
        if (j_given(w->last)) return MN_OK;
        MN_TRY(add_chunk(r, w, *word));
        w->next++;
        return MN_OK;
    }
    const size_t room = (size_t)(w->width - w->length);
    MN_TRY(jinja_charge_text(r, 4 * room));
    const size_t n = jinja_offset(s, head_length(w, s, room));
    MN_TRY(jinja_text_part(r, *word, s->data, n, &head));
    MN_TRY(jinja_text_part(r, *word, s->data + n, s->n - n, word));
    return add_chunk(r, w, head);
}

static mn_status put_line(jrun *r, wrapping *w, bool is_first) {
    const jlist *chunks = w->chunks;
    const size_t mark = jinja_mark(r);
    w->length = 0;
    w->last = (jvalue){.kind = J_MISSING};
    w->is_empty = true;
    if (!is_first && is_all_blank(chunks->items[w->next])) w->next++;
    for (; w->next < chunks->n; w->next++) {
        const jvalue chunk = chunks->items[w->next];
        MN_TRY(jinja_charge(r, 1));
        if (w->length + (int64_t)chunk.string->points > w->width) break;
        MN_TRY(add_chunk(r, w, chunk));
    }
    if (w->next < chunks->n && (int64_t)chunks->items[w->next].string->points > w->width) MN_TRY(break_word(r, w));
    if (j_given(w->last) && !is_all_blank(w->last)) {
        MN_TRY(jinja_put_str(r, w->last));
        w->is_empty = false;
    }
    jvalue line;
    MN_TRY(jinja_cut(r, mark, &line));
    return w->is_empty ? MN_OK : jinja_list_push(r, w->lines, line);
}

/* A paragraph without a word is an empty line. */
static mn_status wrap_paragraph(jrun *r, wrapping *w, jvalue text) {
    const size_t before = w->lines->n;
    MN_TRY(read_chunks(r, text, w->hyphens, &w->chunks));
    if (w->width <= 0) return jinja_fail(r, "invalid width %lld (must be > 0)", (long long)w->width);
    for (w->next = 0; w->next < w->chunks->n;) MN_TRY(put_line(r, w, w->lines->n == before));
    if (w->lines->n > before) return MN_OK;
    jvalue empty;
    MN_TRY(jinja_text_z(r, "", &empty));
    return jinja_list_push(r, w->lines, empty);
}

mn_status jinja_wordwrap(jrun *r, const jcall *c, jvalue *out) {
    wrapping w = {.width = 79, .breaks = jinja_arg_flag(c, 1, true), .hyphens = jinja_arg_flag(c, 3, true)};
    jvalue text, paragraphs, newline = jinja_arg_or(c, 2, j_none()), all;
    if (c->self.kind == J_UNDEFINED) return jinja_fail_undefined(r, c->self);
    if (c->self.kind != J_STRING)
        return jinja_fail(r, "'%s' object has no attribute 'splitlines'", jinja_type_long(c->self));
    MN_TRY(jinja_arg_int(r, c, 0, &w.width));
    MN_TRY(plain_text(r, c->self, &text));
    MN_TRY(jinja_text_method(r, text, "splitlines", NULL, 0, &paragraphs));
    MN_TRY(jinja_list_new(r, 0, &w.lines));
    for (size_t i = 0; i < paragraphs.list->n; i++) MN_TRY(wrap_paragraph(r, &w, paragraphs.list->items[i]));
    if (newline.kind == J_NONE) MN_TRY(jinja_text_z(r, "\n", &newline));
    if (newline.kind != J_STRING) return jinja_fail(r, "'%s' object has no attribute 'join'", jinja_type_long(newline));
    all = j_list(w.lines);
    return jinja_text_method(r, newline, "join", &all, 1, out);
}

/* ---- striptags ---- */

static const struct {
    const char *name; /* with its semicolon; a few are read without one, too */
    uint32_t first, second;
} entities[] = {
#include "text/jinja/entities.inc"
};
enum { N_ENTITIES = sizeof entities / sizeof *entities, LOOKUP_STEPS = 4 };

/* N_ENTITIES: there is none. */
static mn_status find_entity(jrun *r, const char *name, size_t n, size_t *out) {
    size_t lo = 0, hi = N_ENTITIES;
    MN_TRY(jinja_charge(r, LOOKUP_STEPS));
    *out = N_ENTITIES;
    while (lo < hi) { /* bounded: by the table's length */
        const size_t middle = lo + (hi - lo) / 2;
        const size_t length = strlen(entities[middle].name);
        int order = memcmp(entities[middle].name, name, length < n ? length : n);
        if (order == 0) order = (length > n) - (length < n);
        if (order == 0) {
            *out = middle;
            break;
        }
        if (order < 0) lo = middle + 1;
        if (order > 0) hi = middle;
    }
    return MN_OK;
}

static mn_status put_point(jrun *r, uint32_t code) {
    char text[4];
    return jinja_put(r, text, utf8_encode(text, code));
}

/* What browsers make of numbers of Windows-1252, and of those that are no characters: NO_CODE is nothing. */
static uint32_t code_of_number(uint64_t number) {
    static const uint32_t windows[32] = {0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021,
                                         0x2C6,  0x2030, 0x160,  0x2039, 0x152,  0x8D,   0x17D,  0x8F,
                                         0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022, 0x2013, 0x2014,
                                         0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};
    if (number >= 0x80 && number <= 0x9F) return windows[number - 0x80];
    if (number == '\r') return '\r';
    if (number == 0 || number > 0x10FFFF || (number >= 0xD800 && number <= 0xDFFF)) return 0xFFFD;
    const bool is_control = number < 0x20 && number != '\t' && number != '\n' && number != '\f';
    const bool is_none = number == 0x7F || (number >= 0xFDD0 && number <= 0xFDEF) || (number & 0xFFFE) == 0xFFFE;
    return is_control || is_none ? NO_CODE : (uint32_t)number;
}

/* The number behind "&#", of *n bytes with its semicolon; *n 0: there is none. */
static mn_status put_number(jrun *r, const char *text, size_t size, size_t *n) {
    const bool is_hex = size > 0 && (text[0] == 'x' || text[0] == 'X');
    size_t at = is_hex ? 1 : 0;
    const size_t start = at;
    uint64_t number = 0;
    for (; at < size; at++) { /* charged: with the text */
        const char c = text[at], low = (char)(c | 0x20);
        const bool is_digit = c >= '0' && c <= '9', is_letter_digit = is_hex && low >= 'a' && low <= 'f';
        if (!is_digit && !is_letter_digit) break;
        number = number * (is_hex ? 16 : 10) + (uint64_t)(is_digit ? c - '0' : low - 'a' + 10);
        if (number > 0x110000) number = 0x110000;
    }
    *n = 0;
    if (at == start) return MN_OK;
    *n = at + (at < size && text[at] == ';');
    const uint32_t code = code_of_number(number);
    return code == NO_CODE ? MN_OK : put_point(r, code);
}

/* The longest name behind "&", of *n bytes; *n 0: there is none. */
static mn_status put_named(jrun *r, const char *text, size_t size, size_t *n) {
    size_t end = 0, found = N_ENTITIES;
    uint32_t code;
    for (int points = 0; points < 32 && end < size; points++) { /* bounded: 32 characters */
        if (strchr("\t\n\f <&#;", text[end]) && text[end]) break;
        end += jchar_at(text, size, end, &code);
    }
    if (end > 0 && end < size && text[end] == ';') end++;
    *n = 0;
    for (; end > 1 && found == N_ENTITIES; end--) {
        MN_TRY(find_entity(r, text, end, &found));
        if (found != N_ENTITIES) *n = end;
    }
    if (found == N_ENTITIES) return MN_OK;
    MN_TRY(put_point(r, entities[found].first));
    return entities[found].second ? put_point(r, entities[found].second) : MN_OK;
}

/* As html.unescape. */
static mn_status unescape(jrun *r, const jstring *s, jvalue *out) {
    const size_t mark = jinja_mark(r);
    MN_TRY(jinja_charge_text(r, s->n));
    for (size_t at = 0; at < s->n;) {
        const char *ampersand = memchr(s->data + at, '&', s->n - at);
        const size_t n = ampersand ? (size_t)(ampersand - s->data) - at : s->n - at;
        MN_TRY(jinja_put(r, s->data + at, n));
        at += n;
        if (!ampersand) break;
        const bool is_number = at + 1 < s->n && s->data[at + 1] == '#';
        const size_t name = at + (is_number ? 2 : 1);
        size_t used = 0;
        MN_TRY((is_number ? put_number : put_named)(r, s->data + name, s->n - name, &used));
        if (used == 0) MN_TRY(jinja_put_z(r, "&"));
        at = used ? name + used : at + 1;
    }
    return jinja_cut(r, mark, out);
}

/* Where the comment or tag at `at` ends; NULL: nowhere. */
static const char *tag_end(const char *at, const char *end) {
    const bool is_comment = end - at >= 4 && memcmp(at, "<!--", 4) == 0;
    const char *found =
        is_comment ? memmem(at + 4, (size_t)(end - at) - 4, "-->", 3) : memchr(at, '>', (size_t)(end - at));
    return found ? found + (is_comment ? 3 : 1) : NULL;
}

/* Without comments and tags; what is not closed stays. */
static mn_status without_tags(jrun *r, const jstring *s, jvalue *out) {
    const size_t mark = jinja_mark(r);
    const char *at = s->data, *end = s->data + s->n;
    MN_TRY(jinja_charge_text(r, s->n));
    while (at < end) {
        const char *start = memchr(at, '<', (size_t)(end - at)), *behind = start ? tag_end(start, end) : NULL;
        const size_t n = (size_t)((behind ? start : end) - at);
        MN_TRY(jinja_put(r, at, n));
        at = behind ? behind : end;
    }
    return jinja_cut(r, mark, out);
}

mn_status jinja_striptags(jrun *r, const jcall *c, jvalue *out) {
    jvalue text, words, blank;
    MN_TRY(plain_text(r, c->self, &text));
    MN_TRY(without_tags(r, text.string, &text));
    MN_TRY(jinja_text_method(r, text, "split", NULL, 0, &words));
    MN_TRY(jinja_text_z(r, " ", &blank));
    MN_TRY(jinja_text_method(r, blank, "join", &words, 1, &text));
    return unescape(r, text.string, out);
}
