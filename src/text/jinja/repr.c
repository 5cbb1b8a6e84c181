/* Values as text: str(), repr(), JSON as json.dumps writes it, HTML escaping.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/internal.h"

/* The fewest digits that read back equal, as repr() lays them out. */
mn_status jinja_put_float(jrun *r, double x) {
    if (!isfinite(x)) return jinja_put_z(r, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
    char text[40], digits[24];
    int n = 0;
    MN_TRY(jinja_charge(r, 100));                          /* printing and reading back takes microseconds */
    for (int precision = 0; precision < 17; precision++) { /* bounded: 17 digits */
        snprintf(text, sizeof text, "%.*e", precision, x);
        char *comma = strchr(text, ',');
        if (strtod(text, NULL) == x || precision == 16) {
            if (comma) *comma = '.';
            break;
        }
    }
    const char *mark = strchr(text, 'e');
    int exponent = atoi(mark + 1);
    for (const char *c = text; c < mark; c++) { /* bounded: 17 digits */
        if (*c >= '0' && *c <= '9') digits[n++] = *c;
    }
    while (n > 1 && digits[n - 1] == '0') /* bounded: 17 digits */
        n--;
    if (signbit(x)) MN_TRY(jinja_put_z(r, "-"));
    if (exponent < -4 || exponent >= 16) {
        MN_TRY(jinja_put(r, digits, 1));
        if (n > 1) MN_TRY(jinja_put_z(r, "."));
        MN_TRY(jinja_put(r, digits + 1, (size_t)n - 1));
        return jinja_printf(r, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    if (exponent < 0) {
        MN_TRY(jinja_put(r, "0.000", (size_t)(1 - exponent)));
        return jinja_put(r, digits, (size_t)n);
    }
    for (int i = 0; i <= exponent || i < n; i++) {
        if (i == exponent + 1) MN_TRY(jinja_put_z(r, "."));
        MN_TRY(jinja_put(r, i < n ? &digits[i] : "0", 1));
    }
    return n <= exponent + 1 ? jinja_put_z(r, ".0") : MN_OK;
}

/* ---- repr ---- */

static mn_status put_code(jrun *r, uint32_t c) {
    return jinja_printf(r, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
}

static mn_status put_repr_point(jrun *r, uint32_t c, const char *data, size_t n, char quote) {
    switch (c) {
    case '\\': return jinja_put_z(r, "\\\\");
    case '\n': return jinja_put_z(r, "\\n");
    case '\r': return jinja_put_z(r, "\\r");
    case '\t': return jinja_put_z(r, "\\t");
    default: break;
    }
    if (c == (unsigned char)quote) MN_TRY(jinja_put_z(r, "\\"));
    return jchar_printable(c) ? jinja_put(r, data, n) : put_code(r, c);
}

mn_status jinja_put_ascii(jrun *r, jvalue v) {
    jvalue text;
    uint32_t c;
    size_t mark = jinja_mark(r);
    MN_TRY(jinja_put_repr(r, v));
    MN_TRY(jinja_cut(r, mark, &text));
    for (size_t i = 0; i < text.string->n;) {
        const char *at = text.string->data + i;
        i += jchar_at(text.string->data, text.string->n, i, &c);
        MN_TRY(c < 0x80 ? jinja_put(r, at, 1) : put_code(r, c));
    }
    return MN_OK;
}

static mn_status put_repr_string(jrun *r, const jstring *s) {
    MN_TRY(jinja_charge_bytes(r, s->n));
    bool single = s->n && memchr(s->data, '\'', s->n), twofold = s->n && memchr(s->data, '"', s->n);
    char quote = single && !twofold ? '"' : '\'';
    uint32_t c;
    MN_TRY(jinja_put(r, &quote, 1));
    for (size_t i = 0; i < s->n;) {
        size_t length = jchar_at(s->data, s->n, i, &c);
        MN_TRY(put_repr_point(r, c, s->data + i, length, quote));
        i += length;
    }
    return jinja_put(r, &quote, 1);
}

static mn_status put_repr_list(jrun *r, const jlist *list, const char *brackets) {
    MN_TRY(jinja_enter(r));
    MN_TRY(jinja_put(r, &brackets[0], 1));
    for (size_t i = 0; i < list->n; i++) {
        if (i) MN_TRY(jinja_put_z(r, ", "));
        MN_TRY(jinja_put_repr(r, list->items[i]));
    }
    if (brackets[0] == '(' && list->n == 1) MN_TRY(jinja_put_z(r, ","));
    jinja_leave(r);
    return jinja_put(r, &brackets[1], 1);
}

static mn_status put_repr_dict(jrun *r, const jdict *dict) {
    MN_TRY(jinja_enter(r));
    MN_TRY(jinja_put_z(r, "{"));
    for (size_t i = 0; i < dict->n; i++) {
        if (i) MN_TRY(jinja_put_z(r, ", "));
        MN_TRY(jinja_put_repr(r, dict->items[i].key));
        MN_TRY(jinja_put_z(r, ": "));
        MN_TRY(jinja_put_repr(r, dict->items[i].value));
    }
    jinja_leave(r);
    return jinja_put_z(r, "}");
}

static mn_status put_repr_other(jrun *r, jvalue v) {
    jlist *list;
    switch (v.kind) {
    case J_RANGE:
        MN_TRY(jinja_printf(r, "range(%" PRId64 ", %" PRId64, v.range->start, v.range->stop));
        if (v.range->step != 1) MN_TRY(jinja_printf(r, ", %" PRId64, v.range->step));
        return jinja_put_z(r, ")");
    case J_VIEW:
        MN_TRY(jinja_put_z(r, jinja_type(v)));
        MN_TRY(jinja_put_z(r, "("));
        MN_TRY(jinja_collect(r, v, &list));
        MN_TRY(put_repr_list(r, list, "[]"));
        return jinja_put_z(r, ")");
    case J_NAMESPACE:
        MN_TRY(jinja_put_z(r, "<Namespace "));
        MN_TRY(put_repr_dict(r, v.dict));
        return jinja_put_z(r, ">");
    case J_MACRO:
        MN_TRY(jinja_put_z(r, "<Macro "));
        if (v.macro->node->text) {
            MN_TRY(put_repr_string(r, v.macro->node->text));
        } else {
            MN_TRY(jinja_put_z(r, "anonymous"));
        }
        return jinja_put_z(r, ">");
    case J_LOOP: {
        int64_t length;
        MN_TRY(jinja_loop_length(r, v.loop, &length));
        return jinja_printf(r, "<LoopContext %" PRId64 "/%" PRId64 ">", v.loop->index0 + 1, length);
    }
    case J_FUNCTION: return jinja_printf(r, "<function %s>", v.function->name);
    case J_METHOD:
        return jinja_printf(r, "<built-in method %s of %s object>", v.method->builtin->name,
                            jinja_type(v.method->self));
    default: return jinja_printf(r, "<%s object>", jinja_type(v));
    }
}

mn_status jinja_put_repr(jrun *r, jvalue v) {
    MN_TRY(jinja_charge(r, 1));
    switch (v.kind) {
    case J_UNDEFINED: return jinja_put_z(r, "Undefined");
    case J_STRING:
        if (!v.markup) return put_repr_string(r, v.string);
        MN_TRY(jinja_put_z(r, "Markup("));
        MN_TRY(put_repr_string(r, v.string));
        return jinja_put_z(r, ")");
    case J_NONE: return jinja_put_z(r, "None");
    case J_BOOL: return jinja_put_z(r, v.boolean ? "True" : "False");
    case J_INT: return jinja_printf(r, "%" PRId64, v.integer);
    case J_FLOAT: return jinja_put_float(r, v.real);
    case J_LIST: return put_repr_list(r, v.list, "[]");
    case J_TUPLE: return put_repr_list(r, v.list, "()");
    case J_DICT: return put_repr_dict(r, v.dict);
    default: return put_repr_other(r, v);
    }
}

mn_status jinja_put_str(jrun *r, jvalue v) {
    if (v.kind == J_STRING) return jinja_put(r, v.string->data, v.string->n);
    if (v.kind == J_UNDEFINED) return jinja_charge(r, 1);
    return jinja_put_repr(r, v);
}

mn_status jinja_str(jrun *r, jvalue v, jvalue *out) {
    *out = v;
    if (v.kind == J_STRING) return MN_OK;
    size_t mark = jinja_mark(r);
    MN_TRY(jinja_put_str(r, v));
    return jinja_cut(r, mark, out);
}

/* ---- JSON ---- */

static mn_status put_json_escape(jrun *r, uint32_t c) {
    static const char letters[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    const char *letter = c && c < 0x80 ? strchr(letters, (int)c) : NULL;
    const char pair[2] = {'\\', letter ? names[letter - letters] : 0};
    if (letter) return jinja_put(r, pair, 2);
    if (c < 0x10000) return jinja_printf(r, "\\u%04x", c);
    return jinja_printf(r, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
}

static mn_status put_json_string(jrun *r, const jstring *s, const jjson_style *style) {
    size_t done = 0; /* the bytes before it are written */
    uint32_t c;
    MN_TRY(jinja_charge_text(r, s->n));
    MN_TRY(jinja_put_z(r, "\""));
    for (size_t i = 0, next; i < s->n; i = next) { /* charged: above, and each escape */
        next = i + jchar_at(s->data, s->n, i, &c);
        if (c >= 0x20 && c != '"' && c != '\\' && !(style->ascii && c >= 0x7F)) continue;
        MN_TRY(jinja_put(r, s->data + done, i - done));
        MN_TRY(put_json_escape(r, c));
        done = next;
    }
    MN_TRY(jinja_put(r, s->data + done, s->n - done));
    return jinja_put_z(r, "\"");
}

static mn_status put_json_number(jrun *r, jvalue v) {
    if (v.kind == J_FLOAT && !isfinite(v.real))
        return jinja_put_z(r, isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity");
    return jinja_put_repr(r, v);
}

static mn_status put_json_key(jrun *r, jvalue key, const jjson_style *style) {
    if (key.kind == J_STRING) return put_json_string(r, key.string, style);
    if (key.kind != J_NONE && !j_is_number(key)) {
        return jinja_fail(r, "keys must be str, int, float, bool or None, not %s", jinja_type(key));
    }
    MN_TRY(jinja_put_z(r, "\""));
    MN_TRY(jinja_put_json(r, key, style, 0));
    return jinja_put_z(r, "\"");
}

static mn_status put_json_line(jrun *r, const jjson_style *style, int level) {
    if (!style->indent) return MN_OK;
    MN_TRY(jinja_put_z(r, "\n"));
    return jinja_put_many(r, style->indent, style->indent_n, level);
}

static mn_status put_json_members(jrun *r, const jdict *dict, const jjson_style *style, int level) {
    jlist *keys;
    MN_TRY(jinja_collect(r, (jvalue){.kind = J_DICT, .dict = (jdict *)dict}, &keys));
    if (style->sort) MN_TRY(jinja_sort(r, keys->items, keys->items, keys->n, false));
    for (size_t i = 0; i < keys->n; i++) {
        jvalue value;
        if (i) MN_TRY(jinja_put(r, style->item_separator, style->item_separator_n));
        MN_TRY(put_json_line(r, style, level));
        MN_TRY(put_json_key(r, keys->items[i], style));
        MN_TRY(jinja_put(r, style->key_separator, style->key_separator_n));
        MN_TRY(jinja_dict_get(r, dict, keys->items[i], &value));
        MN_TRY(jinja_put_json(r, value, style, level));
    }
    return MN_OK;
}

static mn_status put_json_container(jrun *r, jvalue v, const jjson_style *style, int level) {
    bool is_dict = v.kind == J_DICT;
    if ((is_dict ? v.dict->n : v.list->n) == 0) return jinja_put_z(r, is_dict ? "{}" : "[]");
    MN_TRY(jinja_enter(r));
    MN_TRY(jinja_put_z(r, is_dict ? "{" : "["));
    if (is_dict) MN_TRY(put_json_members(r, v.dict, style, level + 1));
    for (size_t i = 0; !is_dict && i < v.list->n; i++) {
        if (i) MN_TRY(jinja_put(r, style->item_separator, style->item_separator_n));
        MN_TRY(put_json_line(r, style, level + 1));
        MN_TRY(jinja_put_json(r, v.list->items[i], style, level + 1));
    }
    MN_TRY(put_json_line(r, style, level));
    jinja_leave(r);
    return jinja_put_z(r, is_dict ? "}" : "]");
}

mn_status jinja_put_json(jrun *r, jvalue v, const jjson_style *style, int level) {
    MN_TRY(jinja_charge(r, 1));
    switch (v.kind) {
    case J_NONE: return jinja_put_z(r, "null");
    case J_BOOL: return jinja_put_z(r, v.boolean ? "true" : "false");
    case J_INT:
    case J_FLOAT: return put_json_number(r, v);
    case J_STRING: return put_json_string(r, v.string, style);
    case J_LIST:
    case J_TUPLE:
    case J_DICT: return put_json_container(r, v, style, level);
    default: return jinja_fail(r, "Object of type %s is not JSON serializable", jinja_type(v));
    }
}

/* ---- HTML ---- */

mn_status jinja_put_escaped(jrun *r, const jstring *s) {
    size_t done = 0;
    MN_TRY(jinja_charge_text(r, s->n));
    for (size_t i = 0; i < s->n; i++) { /* charged: above, and each escape */
        const char *name;
        switch (s->data[i]) {
        case '&': name = "&amp;"; break;
        case '<': name = "&lt;"; break;
        case '>': name = "&gt;"; break;
        case '\'': name = "&#39;"; break;
        case '"': name = "&#34;"; break;
        default: continue;
        }
        MN_TRY(jinja_put(r, s->data + done, i - done));
        MN_TRY(jinja_put_z(r, name));
        done = i + 1;
    }
    return jinja_put(r, s->data + done, s->n - done);
}

mn_status jinja_escape(jrun *r, jvalue v, jvalue *out) {
    MN_TRY(jinja_str(r, v, &v));
    if (!v.markup) {
        size_t mark = jinja_mark(r);
        MN_TRY(jinja_put_escaped(r, v.string));
        MN_TRY(jinja_cut(r, mark, &v));
    }
    v.markup = true;
    *out = v;
    return MN_OK;
}
