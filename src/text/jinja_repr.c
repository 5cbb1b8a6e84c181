/* Values as text: str(), repr(), JSON as json.dumps writes it, HTML escaping.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_internal.h"

mn_status jinja_finish(jrun *r, mn_status status, bytes *buffer, jvalue *out) {
    if (status == MN_OK) status = bytes_status(buffer);
    if (status == MN_OK) status = jinja_text(r, buffer->data ? buffer->data : "", buffer->n, out);
    bytes_clear(buffer);
    return status;
}

/* Appends within the budget for output. */
static mn_status put(jrun *r, bytes *out, const char *data, size_t n) {
    MN_TRY(jinja_spend_bytes(r, n));
    if ((int64_t)(out->n + n) > r->output_limit)
        MN_FAIL(MN_E_FULL, "chat template: line %d: a text longer than %lld bytes", r->line,
                (long long)r->output_limit);
    bytes_append(out, data, n);
    return MN_OK;
}

static mn_status put_z(jrun *r, bytes *out, const char *text) {
    return put(r, out, text, strlen(text));
}

/* The fewest digits that read back equal, as repr() lays them out. */
void jinja_put_float(bytes *out, double x) {
    if (!isfinite(x)) {
        bytes_append_text(out, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    char text[40], digits[24];
    int n = 0;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, x);
        char *comma = strchr(text, ',');
        if (strtod(text, NULL) == x || precision == 16) {
            if (comma) *comma = '.';
            break;
        }
    }
    const char *mark = strchr(text, 'e');
    int exponent = atoi(mark + 1);
    for (const char *c = text; c < mark; c++) {
        if (*c >= '0' && *c <= '9') digits[n++] = *c;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    if (signbit(x)) bytes_append(out, "-", 1);
    if (exponent < -4 || exponent >= 16) {
        bytes_append(out, digits, 1);
        if (n > 1) bytes_append(out, ".", 1);
        bytes_append(out, digits + 1, (size_t)n - 1);
        bytes_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        bytes_append(out, "0.000", (size_t)(1 - exponent));
        bytes_append(out, digits, (size_t)n);
    } else {
        for (int i = 0; i <= exponent || i < n; i++) {
            if (i == exponent + 1) bytes_append(out, ".", 1);
            bytes_append(out, i < n ? &digits[i] : "0", 1);
        }
        if (n <= exponent + 1) bytes_append(out, ".0", 2);
    }
}

/* ---- repr ---- */

static void put_repr_point(bytes *out, uint32_t c, const char *data, size_t n, char quote) {
    switch (c) {
    case '\\': bytes_append_text(out, "\\\\"); return;
    case '\n': bytes_append_text(out, "\\n"); return;
    case '\r': bytes_append_text(out, "\\r"); return;
    case '\t': bytes_append_text(out, "\\t"); return;
    default: break;
    }
    if (c == (unsigned char)quote) {
        bytes_append(out, "\\", 1);
        bytes_append(out, data, n);
    } else if (jchar_printable(c)) {
        bytes_append(out, data, n);
    } else {
        bytes_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
}

mn_status jinja_put_ascii(jrun *r, bytes *out, jvalue v) {
    bytes text = {0};
    uint32_t c;
    mn_status status = jinja_put_repr(r, &text, v);
    for (size_t i = 0; i < text.n && status == MN_OK;) {
        size_t length = jchar_at(text.data, text.n, i, &c);
        if (c < 0x80) {
            bytes_append(out, text.data + i, 1);
        } else {
            bytes_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        }
        i += length;
    }
    if (status == MN_OK) status = bytes_status(&text);
    bytes_clear(&text);
    return status;
}

static mn_status put_repr_string(jrun *r, bytes *out, const jstring *s) {
    char quote = memchr(s->data, '\'', s->n) && !memchr(s->data, '"', s->n) ? '"' : '\'';
    uint32_t c;
    MN_TRY(jinja_spend_bytes(r, s->n));
    MN_TRY(put(r, out, &quote, 1));
    for (size_t i = 0; i < s->n;) {
        size_t length = jchar_at(s->data, s->n, i, &c);
        put_repr_point(out, c, s->data + i, length, quote);
        i += length;
    }
    return put(r, out, &quote, 1);
}

static mn_status put_repr_list(jrun *r, bytes *out, const jlist *list, const char *brackets) {
    MN_TRY(jinja_enter(r));
    MN_TRY(put(r, out, &brackets[0], 1));
    for (size_t i = 0; i < list->n; i++) {
        if (i) MN_TRY(put_z(r, out, ", "));
        MN_TRY(jinja_put_repr(r, out, list->items[i]));
    }
    if (brackets[0] == '(' && list->n == 1) MN_TRY(put_z(r, out, ","));
    jinja_leave(r);
    return put(r, out, &brackets[1], 1);
}

static mn_status put_repr_dict(jrun *r, bytes *out, const jdict *dict) {
    MN_TRY(jinja_enter(r));
    MN_TRY(put_z(r, out, "{"));
    for (size_t i = 0; i < dict->n; i++) {
        if (i) MN_TRY(put_z(r, out, ", "));
        MN_TRY(jinja_put_repr(r, out, dict->items[i].key));
        MN_TRY(put_z(r, out, ": "));
        MN_TRY(jinja_put_repr(r, out, dict->items[i].value));
    }
    jinja_leave(r);
    return put_z(r, out, "}");
}

static mn_status put_repr_other(jrun *r, bytes *out, jvalue v) {
    jlist *list;
    switch (v.kind) {
    case J_RANGE:
        bytes_printf(out, "range(%" PRId64 ", %" PRId64, v.range->start, v.range->stop);
        if (v.range->step != 1) bytes_printf(out, ", %" PRId64, v.range->step);
        return put_z(r, out, ")");
    case J_VIEW:
        MN_TRY(put_z(r, out, jinja_type(v)));
        MN_TRY(put_z(r, out, "("));
        MN_TRY(jinja_collect(r, v, &list));
        MN_TRY(put_repr_list(r, out, list, "[]"));
        return put_z(r, out, ")");
    case J_NAMESPACE:
        MN_TRY(put_z(r, out, "<Namespace "));
        MN_TRY(put_repr_dict(r, out, v.dict));
        return put_z(r, out, ">");
    case J_MACRO:
        MN_TRY(put_z(r, out, "<Macro "));
        if (v.macro->node->text) {
            MN_TRY(put_repr_string(r, out, v.macro->node->text));
        } else {
            MN_TRY(put_z(r, out, "anonymous"));
        }
        return put_z(r, out, ">");
    case J_LOOP: {
        int64_t length;
        MN_TRY(jinja_loop_length(r, v.loop, &length));
        bytes_printf(out, "<LoopContext %" PRId64 "/%" PRId64 ">", v.loop->index0 + 1, length);
        return MN_OK;
    }
    case J_FUNCTION: bytes_printf(out, "<function %s>", v.function->name); return MN_OK;
    case J_METHOD:
        bytes_printf(out, "<built-in method %s of %s object>", v.method->builtin->name,
                     jinja_type(v.method->self));
        return MN_OK;
    default: bytes_printf(out, "<%s object>", jinja_type(v)); return MN_OK;
    }
}

mn_status jinja_put_repr(jrun *r, bytes *out, jvalue v) {
    switch (v.kind) {
    case J_UNDEFINED: return put_z(r, out, "Undefined");
    case J_STRING:
        if (!v.markup) return put_repr_string(r, out, v.string);
        MN_TRY(put_z(r, out, "Markup("));
        MN_TRY(put_repr_string(r, out, v.string));
        return put_z(r, out, ")");
    case J_NONE: return put_z(r, out, "None");
    case J_BOOL: return put_z(r, out, v.boolean ? "True" : "False");
    case J_INT: bytes_printf(out, "%" PRId64, v.integer); return jinja_spend(r, 1);
    case J_FLOAT: jinja_put_float(out, v.real); return jinja_spend(r, 1);
    case J_LIST: return put_repr_list(r, out, v.list, "[]");
    case J_TUPLE: return put_repr_list(r, out, v.list, "()");
    case J_DICT: return put_repr_dict(r, out, v.dict);
    default: return put_repr_other(r, out, v);
    }
}

mn_status jinja_put_str(jrun *r, bytes *out, jvalue v) {
    if (v.kind == J_STRING) return put(r, out, v.string->data, v.string->n);
    if (v.kind == J_UNDEFINED) return MN_OK;
    return jinja_put_repr(r, out, v);
}

mn_status jinja_str(jrun *r, jvalue v, jvalue *out) {
    bytes text = {0};
    *out = v;
    if (v.kind == J_STRING) return MN_OK;
    mn_status status = jinja_put_str(r, &text, v);
    return jinja_finish(r, status, &text, out);
}

/* ---- JSON ---- */

static void put_json_ascii(bytes *out, const jstring *s) {
    uint32_t c;
    bytes_append(out, "\"", 1);
    for (size_t i = 0; i < s->n;) {
        size_t length = jchar_at(s->data, s->n, i, &c);
        if (c >= 0x10000) {
            bytes_printf(out, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10),
                         0xDC00 + ((c - 0x10000) & 0x3FF));
        } else if (c >= 0x7F) {
            bytes_printf(out, "\\u%04x", c);
        } else {
            bytes one = {0};
            json_put_string(&one, s->data + i, 1);
            if (one.failed)
                out->failed = true;
            else
                bytes_append(out, one.data + 1, one.n - 2);
            bytes_clear(&one);
        }
        i += length;
    }
    bytes_append(out, "\"", 1);
}

static mn_status put_json_string(jrun *r, bytes *out, const jstring *s, const jjson_style *style) {
    MN_TRY(put(r, out, "", 0));
    MN_TRY(jinja_spend_bytes(r, s->n));
    if (style->ascii) {
        put_json_ascii(out, s);
    } else {
        json_put_string(out, s->data, s->n);
    }
    return MN_OK;
}

static mn_status put_json_number(jrun *r, bytes *out, jvalue v) {
    if (v.kind == J_FLOAT && !isfinite(v.real))
        return put_z(r, out, isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity");
    return jinja_put_repr(r, out, v);
}

static mn_status put_json_key(jrun *r, bytes *out, jvalue key, const jjson_style *style) {
    if (key.kind == J_STRING) return put_json_string(r, out, key.string, style);
    if (key.kind != J_NONE && !j_is_number(key)) {
        return jinja_fail(r, "keys must be str, int, float, bool or None, not %s", jinja_type(key));
    }
    MN_TRY(put_z(r, out, "\""));
    MN_TRY(jinja_put_json(r, out, key, style, 0));
    return put_z(r, out, "\"");
}

static mn_status put_json_line(jrun *r, bytes *out, const jjson_style *style, int level) {
    if (!style->indent) return MN_OK;
    MN_TRY(put_z(r, out, "\n"));
    for (int i = 0; i < level; i++) MN_TRY(put(r, out, style->indent, style->indent_n));
    return MN_OK;
}

static mn_status put_json_members(jrun *r, bytes *out, const jdict *dict, const jjson_style *style,
                                  int level) {
    jlist *keys;
    MN_TRY(jinja_collect(r, (jvalue){.kind = J_DICT, .dict = (jdict *)dict}, &keys));
    if (style->sort) MN_TRY(jinja_sort(r, keys->items, keys->items, keys->n, false));
    for (size_t i = 0; i < keys->n; i++) {
        jvalue value;
        if (i) MN_TRY(put(r, out, style->item_separator, style->item_separator_n));
        MN_TRY(put_json_line(r, out, style, level));
        MN_TRY(put_json_key(r, out, keys->items[i], style));
        MN_TRY(put(r, out, style->key_separator, style->key_separator_n));
        MN_TRY(jinja_dict_get(r, dict, keys->items[i], &value));
        MN_TRY(jinja_put_json(r, out, value, style, level));
    }
    return MN_OK;
}

static mn_status put_json_container(jrun *r, bytes *out, jvalue v, const jjson_style *style, int level) {
    bool is_dict = v.kind == J_DICT;
    if ((is_dict ? v.dict->n : v.list->n) == 0) return put_z(r, out, is_dict ? "{}" : "[]");
    MN_TRY(jinja_enter(r));
    MN_TRY(put_z(r, out, is_dict ? "{" : "["));
    if (is_dict) MN_TRY(put_json_members(r, out, v.dict, style, level + 1));
    for (size_t i = 0; !is_dict && i < v.list->n; i++) {
        if (i) MN_TRY(put(r, out, style->item_separator, style->item_separator_n));
        MN_TRY(put_json_line(r, out, style, level + 1));
        MN_TRY(jinja_put_json(r, out, v.list->items[i], style, level + 1));
    }
    MN_TRY(put_json_line(r, out, style, level));
    jinja_leave(r);
    return put_z(r, out, is_dict ? "}" : "]");
}

mn_status jinja_put_json(jrun *r, bytes *out, jvalue v, const jjson_style *style, int level) {
    switch (v.kind) {
    case J_NONE: return put_z(r, out, "null");
    case J_BOOL: return put_z(r, out, v.boolean ? "true" : "false");
    case J_INT:
    case J_FLOAT: return put_json_number(r, out, v);
    case J_STRING: return put_json_string(r, out, v.string, style);
    case J_LIST:
    case J_TUPLE:
    case J_DICT: return put_json_container(r, out, v, style, level);
    default: return jinja_fail(r, "Object of type %s is not JSON serializable", jinja_type(v));
    }
}

/* ---- HTML ---- */

void jinja_put_escaped(bytes *out, const jstring *s) {
    for (size_t i = 0; i < s->n; i++) {
        switch (s->data[i]) {
        case '&': bytes_append_text(out, "&amp;"); break;
        case '<': bytes_append_text(out, "&lt;"); break;
        case '>': bytes_append_text(out, "&gt;"); break;
        case '\'': bytes_append_text(out, "&#39;"); break;
        case '"': bytes_append_text(out, "&#34;"); break;
        default: bytes_append(out, s->data + i, 1);
        }
    }
}

mn_status jinja_escape(jrun *r, jvalue v, jvalue *out) {
    bytes text = {0};
    MN_TRY(jinja_str(r, v, &v));
    if (!v.markup) {
        MN_TRY(jinja_spend_bytes(r, v.string->n));
        jinja_put_escaped(&text, v.string);
        MN_TRY(jinja_finish(r, MN_OK, &text, &v));
    }
    v.markup = true;
    *out = v;
    return MN_OK;
}
