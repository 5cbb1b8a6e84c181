/* Character properties and case, as Python's str has them, on top of utf8proc.
 *
 * utf8proc maps one character to one; the characters whose upper or title case is longer (Unicode, SpecialCasing.txt)
 * are in the table here.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/jinja/internal.h"

typedef struct special_case {
    uint32_t code;
    const char *upper, *title;
} special_case;

/* In order of `code`. */
static const special_case specials[] = {
    {0x00DF, "SS", "Ss"},
    {0x0149, "\u02BCN", "\u02BCN"},
    {0x01F0, "J\u030C", "J\u030C"},
    {0x0390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x03B0, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
    {0x0587, "\u0535\u0552", "\u0535\u0582"},
    {0x1E96, "H\u0331", "H\u0331"},
    {0x1E97, "T\u0308", "T\u0308"},
    {0x1E98, "W\u030A", "W\u030A"},
    {0x1E99, "Y\u030A", "Y\u030A"},
    {0x1E9A, "A\u02BE", "A\u02BE"},
    {0x1F50, "\u03A5\u0313", "\u03A5\u0313"},
    {0x1F52, "\u03A5\u0313\u0300", "\u03A5\u0313\u0300"},
    {0x1F54, "\u03A5\u0313\u0301", "\u03A5\u0313\u0301"},
    {0x1F56, "\u03A5\u0313\u0342", "\u03A5\u0313\u0342"},
    {0x1F80, "\u1F08\u0399", "\u1F88"},
    {0x1F81, "\u1F09\u0399", "\u1F89"},
    {0x1F82, "\u1F0A\u0399", "\u1F8A"},
    {0x1F83, "\u1F0B\u0399", "\u1F8B"},
    {0x1F84, "\u1F0C\u0399", "\u1F8C"},
    {0x1F85, "\u1F0D\u0399", "\u1F8D"},
    {0x1F86, "\u1F0E\u0399", "\u1F8E"},
    {0x1F87, "\u1F0F\u0399", "\u1F8F"},
    {0x1F88, "\u1F08\u0399", "\u1F88"},
    {0x1F89, "\u1F09\u0399", "\u1F89"},
    {0x1F8A, "\u1F0A\u0399", "\u1F8A"},
    {0x1F8B, "\u1F0B\u0399", "\u1F8B"},
    {0x1F8C, "\u1F0C\u0399", "\u1F8C"},
    {0x1F8D, "\u1F0D\u0399", "\u1F8D"},
    {0x1F8E, "\u1F0E\u0399", "\u1F8E"},
    {0x1F8F, "\u1F0F\u0399", "\u1F8F"},
    {0x1F90, "\u1F28\u0399", "\u1F98"},
    {0x1F91, "\u1F29\u0399", "\u1F99"},
    {0x1F92, "\u1F2A\u0399", "\u1F9A"},
    {0x1F93, "\u1F2B\u0399", "\u1F9B"},
    {0x1F94, "\u1F2C\u0399", "\u1F9C"},
    {0x1F95, "\u1F2D\u0399", "\u1F9D"},
    {0x1F96, "\u1F2E\u0399", "\u1F9E"},
    {0x1F97, "\u1F2F\u0399", "\u1F9F"},
    {0x1F98, "\u1F28\u0399", "\u1F98"},
    {0x1F99, "\u1F29\u0399", "\u1F99"},
    {0x1F9A, "\u1F2A\u0399", "\u1F9A"},
    {0x1F9B, "\u1F2B\u0399", "\u1F9B"},
    {0x1F9C, "\u1F2C\u0399", "\u1F9C"},
    {0x1F9D, "\u1F2D\u0399", "\u1F9D"},
    {0x1F9E, "\u1F2E\u0399", "\u1F9E"},
    {0x1F9F, "\u1F2F\u0399", "\u1F9F"},
    {0x1FA0, "\u1F68\u0399", "\u1FA8"},
    {0x1FA1, "\u1F69\u0399", "\u1FA9"},
    {0x1FA2, "\u1F6A\u0399", "\u1FAA"},
    {0x1FA3, "\u1F6B\u0399", "\u1FAB"},
    {0x1FA4, "\u1F6C\u0399", "\u1FAC"},
    {0x1FA5, "\u1F6D\u0399", "\u1FAD"},
    {0x1FA6, "\u1F6E\u0399", "\u1FAE"},
    {0x1FA7, "\u1F6F\u0399", "\u1FAF"},
    {0x1FA8, "\u1F68\u0399", "\u1FA8"},
    {0x1FA9, "\u1F69\u0399", "\u1FA9"},
    {0x1FAA, "\u1F6A\u0399", "\u1FAA"},
    {0x1FAB, "\u1F6B\u0399", "\u1FAB"},
    {0x1FAC, "\u1F6C\u0399", "\u1FAC"},
    {0x1FAD, "\u1F6D\u0399", "\u1FAD"},
    {0x1FAE, "\u1F6E\u0399", "\u1FAE"},
    {0x1FAF, "\u1F6F\u0399", "\u1FAF"},
    {0x1FB2, "\u1FBA\u0399", "\u1FBA\u0345"},
    {0x1FB3, "\u0391\u0399", "\u1FBC"},
    {0x1FB4, "\u0386\u0399", "\u0386\u0345"},
    {0x1FB6, "\u0391\u0342", "\u0391\u0342"},
    {0x1FB7, "\u0391\u0342\u0399", "\u0391\u0342\u0345"},
    {0x1FBC, "\u0391\u0399", "\u1FBC"},
    {0x1FC2, "\u1FCA\u0399", "\u1FCA\u0345"},
    {0x1FC3, "\u0397\u0399", "\u1FCC"},
    {0x1FC4, "\u0389\u0399", "\u0389\u0345"},
    {0x1FC6, "\u0397\u0342", "\u0397\u0342"},
    {0x1FC7, "\u0397\u0342\u0399", "\u0397\u0342\u0345"},
    {0x1FCC, "\u0397\u0399", "\u1FCC"},
    {0x1FD2, "\u0399\u0308\u0300", "\u0399\u0308\u0300"},
    {0x1FD3, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x1FD6, "\u0399\u0342", "\u0399\u0342"},
    {0x1FD7, "\u0399\u0308\u0342", "\u0399\u0308\u0342"},
    {0x1FE2, "\u03A5\u0308\u0300", "\u03A5\u0308\u0300"},
    {0x1FE3, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
    {0x1FE4, "\u03A1\u0313", "\u03A1\u0313"},
    {0x1FE6, "\u03A5\u0342", "\u03A5\u0342"},
    {0x1FE7, "\u03A5\u0308\u0342", "\u03A5\u0308\u0342"},
    {0x1FF2, "\u1FFA\u0399", "\u1FFA\u0345"},
    {0x1FF3, "\u03A9\u0399", "\u1FFC"},
    {0x1FF4, "\u038F\u0399", "\u038F\u0345"},
    {0x1FF6, "\u03A9\u0342", "\u03A9\u0342"},
    {0x1FF7, "\u03A9\u0342\u0399", "\u03A9\u0342\u0345"},
    {0x1FFC, "\u03A9\u0399", "\u1FFC"},
    {0xFB00, "FF", "Ff"},
    {0xFB01, "FI", "Fi"},
    {0xFB02, "FL", "Fl"},
    {0xFB03, "FFI", "Ffi"},
    {0xFB04, "FFL", "Ffl"},
    {0xFB05, "ST", "St"},
    {0xFB06, "ST", "St"},
    {0xFB13, "\u0544\u0546", "\u0544\u0576"},
    {0xFB14, "\u0544\u0535", "\u0544\u0565"},
    {0xFB15, "\u0544\u053B", "\u0544\u056B"},
    {0xFB16, "\u054E\u0546", "\u054E\u0576"},
    {0xFB17, "\u0544\u053D", "\u0544\u056D"},
};

static utf8proc_category_t category(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c);
}

size_t jchar_at(const char *data, size_t n, size_t at, uint32_t *code) {
    size_t length = utf8_sequence(data + at, n - at);
    if (length == 0) { /* only in a template that is refused later */
        *code = 0xFFFD;
        return 1;
    }
    *code = utf8_decode(data + at, length);
    return length;
}

bool jchar_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

bool jchar_printable(uint32_t c) {
    if (c < 0x7F) return c >= 0x20;
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

bool jchar_alpha(uint32_t c) {
    if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool jchar_decimal(uint32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9';
    return category(c) == UTF8PROC_CATEGORY_ND;
}

/* Decimal digits, and those in super- or subscript or in circles, parentheses or with a full stop. */
bool jchar_digit(uint32_t c) {
    return jchar_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0x1369 && c <= 0x1371) || c == 0x19DA ||
           c == 0x2070 || (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
           (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247C) || (c >= 0x2488 && c <= 0x2490) ||
           c == 0x24EA || (c >= 0x24F5 && c <= 0x24FD) || c == 0x24FF || (c >= 0x2776 && c <= 0x277E) ||
           (c >= 0x2780 && c <= 0x2788) || (c >= 0x278A && c <= 0x2792) || (c >= 0x10A40 && c <= 0x10A43) ||
           (c >= 0x10E60 && c <= 0x10E68) || (c >= 0x11052 && c <= 0x1105A) || (c >= 0x1F100 && c <= 0x1F10A);
}

bool jchar_numeric(uint32_t c) {
    if (c < 0x80) return c >= '0' && c <= '9';
    utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool jchar_upper(uint32_t c) {
    if (c < 0x80) return c >= 'A' && c <= 'Z';
    return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216F) || (c >= 0x24B6 && c <= 0x24CF) ||
           (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

bool jchar_lower(uint32_t c) {
    if (c < 0x80) return c >= 'a' && c <= 'z';
    return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA || (c >= 0x2B0 && c <= 0x2B8) || c == 0x2C0 ||
           c == 0x2C1 || (c >= 0x2E0 && c <= 0x2E4) || c == 0x345 || c == 0x37A || (c >= 0x1D2C && c <= 0x1D6A) ||
           c == 0x1D78 || (c >= 0x1D9B && c <= 0x1DBF) || c == 0x2071 || c == 0x207F || (c >= 0x2090 && c <= 0x209C) ||
           (c >= 0x2170 && c <= 0x217F) || (c >= 0x24D0 && c <= 0x24E9) || c == 0x2C7C || c == 0x2C7D || c == 0xA69C ||
           c == 0xA69D || c == 0xA770 || c == 0xA7F8 || c == 0xA7F9 || (c >= 0xAB5C && c <= 0xAB5F) ||
           (c >= 0x10780 && c <= 0x107BA && category(c) == UTF8PROC_CATEGORY_LM && c != 0x10781 && c != 0x10782);
}

bool jchar_title(uint32_t c) {
    return c >= 0x80 && category(c) == UTF8PROC_CATEGORY_LT;
}

bool jchar_identifier(uint32_t c, bool first) {
    if (c < 0x80) return c == '_' || jchar_alpha(c) || (!first && c >= '0' && c <= '9');
    utf8proc_category_t k = category(c);
    if (jchar_alpha(c) || k == UTF8PROC_CATEGORY_NL) return true;
    return !first && (k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ND ||
                      k == UTF8PROC_CATEGORY_PC);
}

/* ---- case ---- */

static const special_case *find_special(uint32_t c) {
    size_t lo = 0, hi = sizeof specials / sizeof *specials;
    while (lo < hi) { /* bounded: by the logarithm of the table's length */
        size_t middle = (lo + hi) / 2;
        if (specials[middle].code < c) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    return lo < sizeof specials / sizeof *specials && specials[lo].code == c ? &specials[lo] : NULL;
}

static bool case_ignorable(uint32_t c) {
    if (c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xB7 || c == 0x2019) return true;
    utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

static bool cased(uint32_t c) {
    return jchar_upper(c) || jchar_lower(c) || jchar_title(c);
}

/* The capital sigma at `at` ends a word: a cased letter before it, none behind it. */
static mn_status is_final_sigma(jrun *r, const jstring *s, size_t at, bool *out) {
    uint32_t c = 0;
    size_t i = at;
    bool before = false;
    *out = false;
    while (i > 0 && !before) {
        MN_TRY(jinja_charge(r, 1));
        do i--;
        while (i > 0 && ((unsigned char)s->data[i] & 0xC0) == 0x80); /* bounded: a character has four bytes */
        jchar_at(s->data, s->n, i, &c);
        before = !case_ignorable(c);
    }
    if (!before || !cased(c)) return MN_OK;
    *out = true;
    for (i = at + 2; i < s->n;) {
        MN_TRY(jinja_charge(r, 1));
        i += jchar_at(s->data, s->n, i, &c);
        if (case_ignorable(c)) continue;
        *out = !cased(c);
        return MN_OK;
    }
    return MN_OK;
}

static mn_status put_code(jrun *r, uint32_t code) {
    char text[4];
    return jinja_put(r, text, utf8_encode(text, code));
}

mn_status jchar_put(jrun *r, const jstring *s, size_t at, jcase mapping) {
    uint32_t c;
    MN_TRY(jinja_charge(r, 1));
    jchar_at(s->data, s->n, at, &c);
    const special_case *special = mapping == JCASE_UPPER || mapping == JCASE_TITLE ? find_special(c) : NULL;
    if (special) return jinja_put_z(r, mapping == JCASE_UPPER ? special->upper : special->title);
    if (mapping == JCASE_LOWER && c == 0x130) return jinja_put_z(r, "i\u0307");
    if (mapping == JCASE_LOWER && c == 0x3A3) {
        bool final;
        MN_TRY(is_final_sigma(r, s, at, &final));
        return jinja_put_z(r, final ? "\u03C2" : "\u03C3");
    }
    utf8proc_int32_t code = (utf8proc_int32_t)c, folded[8];
    if (mapping == JCASE_FOLD) {
        int boundary = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char(code, folded, 8, UTF8PROC_CASEFOLD, &boundary);
        mem_written(folded, sizeof folded);
        for (utf8proc_ssize_t i = 0; i < n && i < 8; i++) MN_TRY(put_code(r, (uint32_t)folded[i]));
        return MN_OK;
    }
    return put_code(r, (uint32_t)(mapping == JCASE_UPPER   ? utf8proc_toupper(code)
                                  : mapping == JCASE_LOWER ? utf8proc_tolower(code)
                                                           : utf8proc_totitle(code)));
}

static mn_status map_ascii(jrun *r, jvalue text, bool upper, jvalue *out) {
    const jstring *s = text.string;
    char *data;
    MN_TRY(jinja_charge_bytes(r, s->n));
    MN_TRY(jinja_alloc(&r->arena, s->n, &data));
    for (size_t i = 0; i < s->n; i++) { /* charged: above */
        char x = s->data[i];
        bool change = upper ? x >= 'a' && x <= 'z' : x >= 'A' && x <= 'Z';
        data[i] = change ? (char)(x ^ 0x20) : x;
    }
    return jinja_text_part(r, text, data, s->n, out);
}

mn_status jinja_map_case(jrun *r, jvalue text, jcase mapping, jvalue *out) {
    const jstring *s = text.string;
    bool markup = text.markup, inside = false; /* title case: behind a cased letter */
    uint32_t c;
    if (s->points == s->n && mapping != JCASE_TITLE) return map_ascii(r, text, mapping == JCASE_UPPER, out);
    size_t mark = jinja_mark(r);
    for (size_t at = 0; at < s->n; at += jchar_at(s->data, s->n, at, &c)) {
        MN_TRY(jchar_put(r, s, at, mapping == JCASE_TITLE && inside ? JCASE_LOWER : mapping));
        jchar_at(s->data, s->n, at, &c);
        inside = cased(c);
    }
    MN_TRY(jinja_cut(r, mark, out));
    out->markup = markup;
    return MN_OK;
}

static mn_status in_set(jinja_arena *arena, uint32_t c, const jstring *set, bool *out) {
    uint32_t other;
    *out = !set && jchar_space(c);
    for (size_t i = 0; set && i < set->n && !*out;) {
        MN_TRY(jinja_charge_steps(arena, 1));
        i += jchar_at(set->data, set->n, i, &other);
        *out = c == other;
    }
    return MN_OK;
}

mn_status jinja_strip(jinja_arena *arena, const jstring *s, const jstring *set, bool left, bool right, size_t *from,
                      size_t *to) {
    uint32_t c;
    bool inside = true;
    *from = 0;
    *to = s->n;
    while (left && *from < *to) {
        size_t length = jchar_at(s->data, s->n, *from, &c);
        MN_TRY(jinja_charge_steps(arena, 1));
        MN_TRY(in_set(arena, c, set, &inside));
        if (!inside) break;
        *from += length;
    }
    while (right && *from < *to) {
        size_t last = *to - 1;
        MN_TRY(jinja_charge_steps(arena, 1));
        while (last > *from && ((unsigned char)s->data[last] & 0xC0) == 0x80) /* bounded: a character has four bytes */
            last--;
        jchar_at(s->data, s->n, last, &c);
        MN_TRY(in_set(arena, c, set, &inside));
        if (!inside) break;
        *to = last;
    }
    return MN_OK;
}
