/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/regex_dialect.h"

#include <string.h>

#include "base/num.h"
#include "base/utf8.h"

enum { SHOWN = 80, SETS_DEEP = 8 };

/* Members of sets. Alphabetic characters, marks, digits and connectors: what is alphabetic and neither letter nor mark
 * nor Nl are letters in circles and squares. Outside of sets Oniguruma adds six of Latin-1. */
#define SPACES "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define WORDS                                                                                                          \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}"                   \
    "\\x{1F170}-\\x{1F189}"
#define MORE_WORDS WORDS "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"
#define HEX        "0-9A-Fa-f"

typedef struct reader {
    const char *pattern, *what;
    size_t n, at;
    bytes *out;
} reader;

static bool next_is(const reader *r, const char *text) {
    size_t n = strlen(text);
    return r->n - r->at >= n && memcmp(r->pattern + r->at, text, n) == 0;
}

/* \uHHHH at the place; appends it as PCRE2 has it. */
static bool take_code(reader *r, bytes *out) {
    const char *digits = r->pattern + r->at + 2;
    if (!next_is(r, "\\u") || r->n - r->at < 6) return false;
    for (int i = 0; i < 4; i++) {
        if (hex_value(digits[i]) < 0) return false;
    }
    bytes_printf(out, "\\x{%.4s}", digits);
    r->at += 6;
    return true;
}

/* ---- sets ---- */

static mn_status refuse(const reader *r, const char *problem) {
    MN_FAIL(MN_E_UNSUPPORTED, "%s: the regular expression '%.*s' has %s, which is not read here", r->what,
            (int)utf8_valid_prefix(r->pattern, r->n < SHOWN ? r->n : SHOWN), r->pattern, problem);
}

/* Members up to the bracket that ends the set; *not_word: \W is one of them. */
static mn_status take_members(reader *r, int depth, bytes *members, bool *not_word) {
    size_t begin = r->at;
    while (r->at < r->n && !(next_is(r, "]") && r->at > begin)) {
        size_t length = next_is(r, "\\") && r->n - r->at > 1 ? 2 : 1;
        if (next_is(r, "&&")) return refuse(r, "sets joined by &&");
        if (next_is(r, "[^")) return refuse(r, "a negated set inside another");
        if (next_is(r, "[:")) {
            const char *end = memmem(r->pattern + r->at, r->n - r->at, ":]", 2);
            length = end ? (size_t)(end - (r->pattern + r->at)) + 2 : 2;
        } else if (next_is(r, "[")) {
            if (depth == SETS_DEEP) return refuse(r, "sets that are too deep inside each other");
            r->at++;
            MN_TRY(take_members(r, depth + 1, members, not_word));
            r->at += r->at < r->n;
            continue;
        } else if (next_is(r, "\\W")) {
            *not_word = true;
            r->at += 2;
            continue;
        } else if (next_is(r, "\\s") || next_is(r, "\\w") || next_is(r, "\\h")) {
            char c = r->pattern[r->at + 1];
            bytes_append_text(members, c == 's' ? SPACES : c == 'w' ? WORDS : HEX);
            r->at += 2;
            continue;
        } else if (take_code(r, members)) {
            continue;
        }
        bytes_append(members, r->pattern + r->at, length);
        r->at += length;
    }
    return MN_OK;
}

/* Behind "[". Without an end PCRE2 says so. */
static mn_status take_set(reader *r) {
    bool negated = next_is(r, "^"), not_word = false;
    bytes members = {0};
    r->at += negated;
    mn_status status = take_members(r, 0, &members, &not_word);
    bool is_word = not_word && members.n == 0;
    if (r->at == r->n) {
        bytes_append_text(r->out, "[");
    } else if (is_word) {
        bytes_append_text(r->out, negated ? "[" WORDS "]" : "[^" WORDS "]");
    } else {
        bytes_append_text(r->out, !not_word ? (negated ? "[^" : "[") : negated ? "(?:(?![" : "(?:[");
        bytes_append(r->out, members.data, members.n);
        bytes_append_text(r->out, !not_word ? "]" : negated ? "])[" WORDS "])" : "]|[^" WORDS "])");
    }
    if (status == MN_OK) status = bytes_status(&members);
    bytes_clear(&members);
    r->at += r->at < r->n;
    return status;
}

/* ---- outside of sets ---- */

static void take_escape(reader *r) {
    static const struct {
        char letter;
        const char *meaning;
    } table[] = {{'s', "[" SPACES "]"},
                 {'S', "[^" SPACES "]"},
                 {'w', "[" MORE_WORDS "]"},
                 {'W', "[^" MORE_WORDS "]"},
                 {'h', "[" HEX "]"},
                 {'H', "[^" HEX "]"},
                 {'b', "(?:(?<=[" MORE_WORDS "])(?![" MORE_WORDS "])|(?<![" MORE_WORDS "])(?=[" MORE_WORDS "]))"},
                 {'B', "(?:(?<=[" MORE_WORDS "])(?=[" MORE_WORDS "])|(?<![" MORE_WORDS "])(?![" MORE_WORDS "]))"},
                 {'Q', "Q"},
                 {'E', "E"}};
    if (take_code(r, r->out)) return;
    char c = r->at + 1 < r->n ? r->pattern[r->at + 1] : 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].letter != c) continue;
        bytes_append_text(r->out, table[i].meaning);
        r->at += 2;
        return;
    }
    size_t length = r->n - r->at > 1 ? 2 : 1;
    bytes_append(r->out, r->pattern + r->at, length);
    r->at += length;
}

/* "(?" and the options behind it, or a whole comment. */
static void take_group(reader *r) {
    bytes_append_text(r->out, "(?");
    r->at += 2;
    if (next_is(r, "#")) {
        while (r->at < r->n && r->pattern[r->at] != ')') bytes_append(r->out, r->pattern + r->at++, 1);
        return;
    }
    for (; r->at < r->n && memchr("imx-", r->pattern[r->at], 4); r->at++)
        bytes_append(r->out, r->pattern[r->at] == 'm' ? "s" : r->pattern + r->at, 1);
}

/* Behind "{": ",n}", which PCRE2 takes for plain text. */
static bool lacks_begin(const reader *r) {
    size_t i = r->at + 1;
    if (!next_is(r, ",")) return false;
    while (i < r->n && r->pattern[i] >= '0' && r->pattern[i] <= '9') i++;
    return i > r->at + 1 && i < r->n && r->pattern[i] == '}';
}

mn_status regex_translate(bytes *out, const char *pattern, size_t n, const char *what) {
    reader r = {pattern, what, n, 0, out};
    while (r.at < n) {
        if (pattern[r.at] == '\\') {
            take_escape(&r);
        } else if (next_is(&r, "(?")) {
            take_group(&r);
        } else if (pattern[r.at] == '[') {
            r.at++;
            MN_TRY(take_set(&r));
        } else {
            char c = pattern[r.at++];
            bytes_append(out, &c, 1);
            if (c == '{' && lacks_begin(&r)) bytes_append_text(out, "0");
        }
    }
    return bytes_status(out);
}
