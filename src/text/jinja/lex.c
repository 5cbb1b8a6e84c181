/* Template text into tokens: the delimiters with their white-space control, then names, numbers, strings, operators.
 * SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja/internal.h"

enum { MAX_BRACKETS = 256 };

typedef struct lexer {
    jinja_arena *arena;
    const char *text; /* line ends are all '\n' */
    size_t n, at;
    int line;
    bool line_start; /* the last delimiter ended with a line end */
    jtokens *out;
    char brackets[MAX_BRACKETS];
    size_t n_brackets;
} lexer;

static bool looking_at(const lexer *x, size_t at, const char *word) {
    size_t n = strlen(word);
    return x->n - at >= n && memcmp(x->text + at, word, n) == 0;
}

static size_t skip_space(const lexer *x, size_t at) {
    while (at < x->n) { /* charged: white space is walked over a few times at most, as all of the source */
        uint32_t c;
        size_t length = jchar_at(x->text, x->n, at, &c);
        if (!jchar_space(c)) break;
        at += length;
    }
    return at;
}

static mn_status push(lexer *x, jtoken token) {
    token.line = x->line;
    x->arena->line = x->line;
    MN_TRY(jinja_grow(x->arena, &x->out->items, &x->out->capacity, x->out->n + 1, sizeof *x->out->items));
    x->out->items[x->out->n++] = token;
    return MN_OK;
}

static void count_lines(lexer *x, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) /* charged: as all of the source */
        x->line += x->text[i] == '\n';
}

static mn_status push_text(lexer *x, size_t from, size_t to) {
    if (to > from) {
        jtoken token = {.kind = T_TEXT};
        MN_TRY(jinja_string_wrap(x->arena, x->text + from, to - from, &token.text));
        MN_TRY(push(x, token));
    }
    return MN_OK;
}

/* Where text before a delimiter ends: '-' strips white space; without a sign, blanks that start the line go too
 * (lstrip_blocks), but not before a variable. */
static mn_status text_end(const lexer *x, size_t from, size_t to, char sign, bool variable, size_t *end) {
    const jstring part = {x->text + from, to - from, 0};
    if (sign == '-') {
        size_t first, last;
        MN_TRY(jinja_strip(x->arena, &part, NULL, false, true, &first, &last));
        *end = from + last;
        return MN_OK;
    }
    *end = to;
    if (sign == '+' || variable) return MN_OK;
    size_t line = to;
    while (line > from && x->text[line - 1] != '\n') /* charged: as all of the source */
        line--;
    if (line > from || x->line_start) *end = skip_space(x, line) >= to ? line : to;
    return MN_OK;
}

/* The closing delimiter at `at`, e.g. "-%}": its end with the white space that goes with it, or 0. */
static size_t closing(const lexer *x, size_t at, const char *mark, bool plus, bool trim) {
    if (looking_at(x, at, "-") && looking_at(x, at + 1, mark)) return skip_space(x, at + 1 + strlen(mark));
    if (plus && looking_at(x, at, "+") && looking_at(x, at + 1, mark)) return at + 1 + strlen(mark);
    if (!looking_at(x, at, mark)) return 0;
    at += strlen(mark);
    return trim && at < x->n && x->text[at] == '\n' ? at + 1 : at;
}

/* "raw" or "endraw" between "{%" (at) and its end, or 0. */
static size_t raw_tag(const lexer *x, size_t at, const char *word, char *sign) {
    if (!looking_at(x, at, "{%")) return 0;
    at += 2;
    *sign = 0;
    if (at < x->n && (x->text[at] == '-' || x->text[at] == '+')) *sign = x->text[at++];
    at = skip_space(x, at);
    if (!looking_at(x, at, word)) return 0;
    at = skip_space(x, at + strlen(word));
    bool opening = word[0] == 'r';
    return closing(x, at, "%}", !opening, !opening);
}

/* ---- inside delimiters ---- */

static bool is_digit(const lexer *x, size_t at) {
    return at < x->n && x->text[at] >= '0' && x->text[at] <= '9';
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'z') return c - 'a' + 10;
    if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
    return 99;
}

/* Digits below `base`, single underscores between them; the end, or `at` when there are none. */
static size_t digits(const lexer *x, size_t at, int base, bool underscore_first) {
    size_t end = at;
    for (;;) { /* charged: as all of the source */
        size_t next = end;
        if (next < x->n && x->text[next] == '_' && (end > at || underscore_first)) next++;
        if (next >= x->n || digit_value(x->text[next]) >= base) return end;
        end = next + 1;
    }
}

/* End of the exponent at `at`, or 0. */
static size_t exponent(const lexer *x, size_t at) {
    if (at >= x->n || (x->text[at] != 'e' && x->text[at] != 'E')) return 0;
    at++;
    if (at < x->n && (x->text[at] == '+' || x->text[at] == '-')) at++;
    return is_digit(x, at) ? digits(x, at, 10, false) : 0;
}

/* The end of a float at `at`, or 0. Directly behind a point there are only integers: a.0.1 */
static size_t float_end(const lexer *x, size_t at) {
    if (at > 0 && x->text[at - 1] == '.') return 0;
    size_t whole = digits(x, at, 10, false);
    if (whole < x->n && x->text[whole] == '.' && is_digit(x, whole + 1)) {
        size_t fraction = digits(x, whole + 1, 10, false), end = exponent(x, fraction);
        return end ? end : fraction;
    }
    return exponent(x, whole);
}

static mn_status lex_float(lexer *x, size_t end) {
    char *copy;
    size_t n = 0;
    MN_TRY(jinja_alloc(x->arena, end - x->at + 1, &copy));
    for (size_t i = x->at; i < end; i++) { /* charged: as all of the source */
        if (x->text[i] != '_') copy[n++] = x->text[i];
    }
    const jstring text = {copy, n, n};
    jtoken token = {.kind = T_FLOAT};
    if (!jinja_read_float(&text, &token.real)) return jinja_syntax_error(x->line, "bad number");
    x->at = end;
    return push(x, token);
}

static mn_status lex_number(lexer *x) {
    size_t end = float_end(x, x->at);
    if (end) return lex_float(x, end);
    int base = 10;
    size_t first = x->at;
    if (x->text[x->at] == '0' && x->at + 1 < x->n) {
        char letter = (char)(x->text[x->at + 1] | 0x20);
        int prefix_base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
        if (prefix_base && digits(x, x->at + 2, prefix_base, true) > x->at + 2) base = prefix_base, first += 2;
    }
    if (base == 10 && x->text[x->at] == '0') {
        end = digits(x, x->at, 1, false); /* only zeros may follow a zero */
    } else {
        end = digits(x, first, base, base != 10);
    }
    jtoken token = {.kind = T_INTEGER};
    for (size_t i = first; i < end; i++) { /* charged: as all of the source */
        if (x->text[i] == '_') continue;
        if (__builtin_mul_overflow(token.integer, (int64_t)base, &token.integer) ||
            __builtin_add_overflow(token.integer, (int64_t)digit_value(x->text[i]), &token.integer)) {
            return jinja_syntax_error(x->line, "an integer beyond 64 bits");
        }
    }
    x->at = end;
    return push(x, token);
}

static mn_status lex_name(lexer *x) {
    size_t start = x->at, length;
    uint32_t c;
    for (; x->at < x->n; x->at += length) { /* charged: as all of the source */
        length = jchar_at(x->text, x->n, x->at, &c);
        if (!jchar_identifier(c, x->at == start)) break;
    }
    jtoken token = {.kind = T_NAME};
    MN_TRY(jinja_string_wrap(x->arena, x->text + start, x->at - start, &token.text));
    return push(x, token);
}

/* An escape behind its backslash, as in Python's string literals. */
static mn_status lex_escape(lexer *x, size_t end, char **to) {
    static const char letters[] = "abfnrtv\\'\"", meant[] = "\a\b\f\n\r\t\v\\'\"";
    char c = x->text[x->at++];
    const char *simple = c ? strchr(letters, c) : NULL;
    if (simple) {
        *(*to)++ = meant[simple - letters];
        return MN_OK;
    }
    if (c == '\n') return MN_OK;
    size_t n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    int base = 16;
    if (c >= '0' && c <= '7') {
        base = 8;
        x->at--;
        while (n < 3 && x->at + n < end && digit_value(x->text[x->at + n]) < 8) /* bounded: three digits */
            n++;
    } else if (c == 'N') {
        return jinja_syntax_error(x->line, "\\N{...} escapes are not supported");
    } else if (n == 0) { /* not an escape: the backslash stays */
        *(*to)++ = '\\';
        x->at--;
        return MN_OK;
    }
    uint32_t code = 0;
    for (size_t i = 0; i < n; i++, x->at++) { /* bounded: eight digits */
        if (x->at >= end || digit_value(x->text[x->at]) >= base)
            return jinja_syntax_error(x->line, "truncated escape in a string");
        code = code * (uint32_t)base + (uint32_t)digit_value(x->text[x->at]);
    }
    if (code > 0x10FFFF) return jinja_syntax_error(x->line, "illegal Unicode character in a string");
    *to += utf8_encode(*to, code >= 0xD800 && code <= 0xDFFF ? 0xFFFD : code);
    return MN_OK;
}

static mn_status lex_string(lexer *x) {
    char quote = x->text[x->at];
    size_t start = x->at, end = start + 1;
    while (end < x->n && x->text[end] != quote) /* charged: as all of the source */
        end += x->text[end] == '\\' ? 2 : 1;
    if (end >= x->n) return jinja_syntax_error(x->line, "unexpected char '%c': the string does not end", quote);
    char *data, *to;
    /* \0 to \377 give up to 2 bytes for at least 2, other escapes never more than they take */
    MN_TRY(jinja_alloc(x->arena, 2 * (end - start), &data));
    to = data;
    for (x->at++; x->at < end;) { /* charged: as all of the source */
        if (x->text[x->at] == '\\') {
            x->at++;
            MN_TRY(lex_escape(x, end, &to));
        } else {
            *to++ = x->text[x->at++];
        }
    }
    x->at = end + 1;
    jtoken token = {.kind = T_STRING};
    MN_TRY(jinja_string_wrap(x->arena, data, (size_t)(to - data), &token.text));
    MN_TRY(push(x, token));
    count_lines(x, start, end);
    return MN_OK;
}

static mn_status lex_operator(lexer *x) {
    static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = x->text[x->at];
    jtoken token = {.kind = T_OPERATOR};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && !token.op; i++) {
        if (looking_at(x, x->at, pairs[i])) token.op = JOP2(pairs[i][0], pairs[i][1]);
    }
    if (token.op) {
        x->at += 2;
        return push(x, token);
    }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c)) return jinja_syntax_error(x->line, "unexpected char '%c'", c);
    if (strchr("([{", c)) {
        if (x->n_brackets == MAX_BRACKETS)
            return jinja_syntax_error(x->line, "more than %d open brackets", MAX_BRACKETS);
        x->brackets[x->n_brackets++] = c;
    } else if (strchr(")]}", c)) {
        char opening = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (x->n_brackets == 0 || x->brackets[--x->n_brackets] != opening)
            return jinja_syntax_error(x->line, "unexpected '%c'", c);
    }
    token.op = c;
    x->at++;
    return push(x, token);
}

/* The tokens up to and with the closing delimiter. */
static mn_status lex_code(lexer *x, bool block) {
    x->n_brackets = 0;
    while (x->at < x->n) { /* charged: as all of the source */
        size_t end = x->n_brackets ? 0 : closing(x, x->at, block ? "%}" : "}}", block, block);
        if (end) {
            MN_TRY(push(x, (jtoken){.kind = block ? T_BLOCK_END : T_VARIABLE_END}));
            count_lines(x, x->at, end);
            x->line_start = x->text[end - 1] == '\n';
            x->at = end;
            return MN_OK;
        }
        size_t space = skip_space(x, x->at);
        uint32_t c;
        if (space > x->at) {
            count_lines(x, x->at, space);
            x->at = space;
            continue;
        }
        jchar_at(x->text, x->n, x->at, &c);
        if (is_digit(x, x->at)) {
            MN_TRY(lex_number(x));
        } else if (c == '\'' || c == '"') {
            MN_TRY(lex_string(x));
        } else if (jchar_identifier(c, true)) {
            MN_TRY(lex_name(x));
        } else {
            MN_TRY(lex_operator(x));
        }
    }
    return MN_OK;
}

/* ---- text and delimiters ---- */

static mn_status lex_comment(lexer *x) {
    if (x->at >= x->n) return MN_OK;           /* as Jinja2: an opening delimiter that ends the template */
    for (size_t at = x->at; at < x->n; at++) { /* charged: as all of the source */
        size_t end = closing(x, at, "#}", true, true);
        if (!end) continue;
        count_lines(x, x->at, end);
        x->line_start = x->text[end - 1] == '\n';
        x->at = end;
        return MN_OK;
    }
    return jinja_syntax_error(x->line, "missing end of comment tag");
}

static mn_status lex_raw(lexer *x) {
    if (x->at >= x->n) return MN_OK;
    for (size_t at = x->at; at < x->n; at++) { /* charged: as all of the source */
        char sign;
        size_t text, end = raw_tag(x, at, "endraw", &sign);
        if (!end) continue;
        MN_TRY(text_end(x, x->at, at, sign, false, &text));
        MN_TRY(push_text(x, x->at, text));
        count_lines(x, x->at, end);
        x->line_start = x->text[end - 1] == '\n';
        x->at = end;
        return MN_OK;
    }
    return jinja_syntax_error(x->line, "missing end of raw directive");
}

/* The text up to the next delimiter and what that opens. */
static mn_status lex_part(lexer *x) {
    size_t start = x->at, open = start;
    while (open < x->n && /* charged: as all of the source */
           !(x->text[open] == '{' && open + 1 < x->n && strchr("{%#", x->text[open + 1]) && x->text[open + 1]))
        open++;
    if (open >= x->n) {
        MN_TRY(push_text(x, start, x->n));
        x->at = x->n;
        return MN_OK;
    }
    char type = x->text[open + 1], sign = 0;
    size_t raw = type == '%' ? raw_tag(x, open, "raw", &sign) : 0;
    size_t inside = open + 2;
    if (!raw) {
        sign = inside < x->n && (x->text[inside] == '-' || x->text[inside] == '+') ? x->text[inside] : 0;
        if (sign) inside++;
    }
    size_t end;
    MN_TRY(text_end(x, start, open, sign, type == '{', &end));
    MN_TRY(push_text(x, start, end));
    count_lines(x, start, open);
    x->at = raw ? raw : inside;
    x->line_start = raw && x->text[raw - 1] == '\n';
    if (raw) {
        count_lines(x, open, raw);
        return lex_raw(x);
    }
    if (type == '#') return lex_comment(x);
    MN_TRY(push(x, (jtoken){.kind = type == '%' ? T_BLOCK_BEGIN : T_VARIABLE_BEGIN}));
    return lex_code(x, type == '%');
}

mn_status jinja_lex(jinja_arena *arena, const char *text, size_t n, jtokens *out) {
    char *copy;
    size_t m = 0;
    MN_TRY(jinja_alloc(arena, n + 1, &copy));
    MN_TRY(jinja_charge_steps(arena, n)); /* each byte is read a few times, which is less than a step */
    for (size_t i = 0; i < n; i++) {      /* charged: as all of the source. Every kind of line end becomes '\n' */
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n') continue;
        copy[m++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (m > 0 && copy[m - 1] == '\n') m--;
    copy[m] = 0;
    lexer x = {.arena = arena, .text = copy, .n = m, .line = 1, .line_start = true, .out = out};
    if (utf8_valid_prefix(copy, m) < m) return jinja_syntax_error(1, "the template is not valid UTF-8");
    while (x.at < x.n) /* charged: as all of the source */
        MN_TRY(lex_part(&x));
    return push(&x, (jtoken){.kind = T_EOF});
}
