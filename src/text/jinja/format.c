/* Formatting: the % operator and str.format, which share one way to lay out a value.
 * SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja/internal.h"

enum { MAX_WIDTH = 1 << 20, MAX_PRECISION = 300 };

typedef struct format_spec {
    uint32_t fill;
    char align; /* < > ^ =, 0: the type's own */
    char sign;  /* + - or space */
    bool alternate;
    int64_t width, precision; /* precision -1: none */
    char grouping;            /* , or _ or 0 */
    char type;                /* 0: none */
} format_spec;

static mn_status pad(jrun *r, int64_t missing, uint32_t fill) {
    char unit[4];
    size_t length = utf8_encode(unit, fill);
    return jinja_put_many(r, unit, length, missing);
}

/* head (sign and prefix) and body in the spec's width. The body does not lie in r->out. */
static mn_status lay_out(jrun *r, const format_spec *spec, const char *head, const char *body, size_t n, char align) {
    MN_TRY(jinja_charge_bytes(r, n));
    int64_t missing = spec->width - (int64_t)(strlen(head) + jinja_count_points(body, n)), before = 0, inside = 0;
    if (missing < 0) missing = 0;
    if (spec->align) align = spec->align;
    if (align == '>') before = missing;
    if (align == '^') before = missing / 2;
    if (align == '=') inside = missing;
    MN_TRY(pad(r, before, spec->fill));
    MN_TRY(jinja_put_z(r, head));
    MN_TRY(pad(r, inside, spec->fill));
    MN_TRY(jinja_put(r, body, n));
    return pad(r, missing - before - inside, spec->fill);
}

/* Puts separators between groups of the leading digits; zero padding by '=' counts them in. */
static mn_status group_digits(jrun *r, const char *digits, const format_spec *spec, size_t head_n, jvalue *out) {
    size_t whole = strspn(digits, spec->type == 'x' || spec->type == 'X' ? "0123456789abcdefABCDEF" : "0123456789");
    size_t rest = strlen(digits) - whole,
           size = spec->grouping == '_' && spec->type && strchr("boxX", spec->type) ? 4 : 3;
    size_t zeros = 0, mark = jinja_mark(r);
    if (spec->fill == '0' && spec->align == '=') {
        for (; (int64_t)(head_n + rest + whole + zeros + (whole + zeros - 1) / size) < spec->width; zeros++)
            MN_TRY(jinja_charge(r, 1)); /* no separator may lead */
    }
    for (size_t left = whole + zeros, i = 0; left > 0; left--, i++) {
        MN_TRY(jinja_put(r, i < zeros ? "0" : &digits[i - zeros], 1));
        if (left > 1 && (left - 1) % size == 0) MN_TRY(jinja_put(r, &spec->grouping, 1));
    }
    MN_TRY(jinja_put(r, digits + whole, rest));
    return jinja_cut(r, mark, out);
}

static mn_status lay_out_number(jrun *r, const format_spec *spec, bool negative, const char *prefix,
                                const char *digits) {
    char head[8];
    jvalue grouped;
    snprintf(head, sizeof head, "%s%s",
             negative            ? "-"
             : spec->sign == '+' ? "+"
             : spec->sign == ' ' ? " "
                                 : "",
             prefix);
    if (!spec->grouping) return lay_out(r, spec, head, digits, strlen(digits), '>');
    MN_TRY(group_digits(r, digits, spec, strlen(head), &grouped));
    return lay_out(r, spec, head, grouped.string->data, grouped.string->n, '>');
}

static void append_text(char *text, size_t capacity, const char *more) {
    size_t n = strlen(text);
    snprintf(text + n, capacity - n, "%s", more);
}

static mn_status put_float_spec(jrun *r, const format_spec *spec, double x) {
    char text[MAX_PRECISION + 340], layout[] = {'%', spec->alternate ? '#' : '.', '.', '*', 'f', 0};
    bool negative = signbit(x) && !isnan(x);
    double magnitude = fabs(x);
    int precision = spec->precision < 0 ? 6 : (int)spec->precision;
    char type = spec->type;
    MN_TRY(jinja_charge(r, 200)); /* printing hundreds of digits takes microseconds */
    if (!spec->alternate) memcpy(layout, "%.*f", 5);
    if (!isfinite(x)) {
        snprintf(text, sizeof text, isnan(x) ? "nan" : "inf");
        if (type && strchr("EFG", type)) snprintf(text, sizeof text, isnan(x) ? "NAN" : "INF");
    } else if (!type && spec->precision < 0) {
        jvalue shortest;
        size_t mark = jinja_mark(r);
        MN_TRY(jinja_put_float(r, magnitude));
        MN_TRY(jinja_cut(r, mark, &shortest));
        snprintf(text, sizeof text, "%.*s", (int)shortest.string->n, shortest.string->data);
    } else {
        if (type == '%') magnitude *= 100;
        layout[strlen(layout) - 1] = type == '%' || !type ? (type ? 'f' : 'g') : type == 'n' ? 'g' : type;
        if (precision == 0 && (!type || type == 'g' || type == 'G' || type == 'n')) precision = 1;
        const char *const format = layout;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof text - 2, format, precision, magnitude);
#pragma GCC diagnostic pop
        for (char *c = text; *c; c++) { /* bounded: by the size of `text` */
            if (*c == ',') *c = '.';
        }
        if (!type && !strpbrk(text, ".e")) append_text(text, sizeof text, ".0");
    }
    if (type == '%') append_text(text, sizeof text, "%");
    return lay_out_number(r, spec, negative, "", text);
}

static mn_status put_int_spec(jrun *r, const format_spec *spec, int64_t value) {
    char digits[MAX_PRECISION + 80], prefix[3] = "";
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    char type = spec->type ? spec->type : 'd';
    unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    size_t n = sizeof digits - 1;
    if (type == 'c') {
        if (value < 0 || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
            return jinja_fail(r, "%%c arg not in range(0x110000)");
        char one[4];
        return lay_out(r, spec, "", one, utf8_encode(one, (uint32_t)value), '<');
    }
    digits[n] = 0;
    do { /* bounded: 64 digits */
        digits[--n] = (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[magnitude % base];
        magnitude /= base;
    } while (magnitude);
    while ((int64_t)(sizeof digits - 1 - n) < spec->precision && n > 0) /* bounded: by MAX_PRECISION */
        digits[--n] = '0';
    if (spec->alternate && base != 10) snprintf(prefix, sizeof prefix, "0%c", type);
    return lay_out_number(r, spec, value < 0, prefix, digits + n);
}

static mn_status put_text_spec(jrun *r, const format_spec *spec, const jstring *s) {
    size_t n = s->n;
    if (spec->precision >= 0 && (size_t)spec->precision < s->points)
        n = jinja_offset(s, (size_t)spec->precision); /* at most MAX_PRECISION */
    return lay_out(r, spec, "", s->data, n, '<');
}

/* ---- the % operator ---- */

typedef struct percent_state {
    jvalue format, values;
    const jstring *s;
    size_t at;
    size_t used; /* values taken */
} percent_state;

static mn_status next_value(jrun *r, percent_state *p, jvalue *out) {
    bool tuple = p->values.kind == J_TUPLE;
    if (p->used >= (tuple ? p->values.list->n : 1)) return jinja_fail(r, "not enough arguments for format string");
    *out = tuple ? p->values.list->items[p->used] : p->values;
    p->used++;
    return MN_OK;
}

static mn_status percent_number(jrun *r, percent_state *p, int64_t limit, int64_t *out) {
    const char *data = p->s->data;
    if (p->at < p->s->n && data[p->at] == '*') {
        jvalue v;
        p->at++;
        MN_TRY(next_value(r, p, &v));
        if (!j_is_integer(v)) return jinja_fail(r, "* wants int");
        *out = j_integer(v);
    } else {
        for (*out = 0; p->at < p->s->n && data[p->at] >= '0' && data[p->at] <= '9' && *out <= limit;
             p->at++) /* bounded: by the digits of `limit` */
            *out = *out * 10 + (data[p->at] - '0');
    }
    if (*out > limit || *out < -limit)
        MN_FAIL(MN_E_FULL, "chat template: line %d: a format wider than %lld", r->arena.line, (long long)limit);
    return MN_OK;
}

static mn_status percent_convert(jrun *r, const percent_state *p, format_spec *spec, jvalue v) {
    jvalue text = v;
    size_t mark = jinja_mark(r);
    switch (spec->type) {
    case 's':
    case 'r':
    case 'a':
        if (spec->type == 's') {
            MN_TRY(jinja_str(r, v, &text));
        } else {
            MN_TRY(spec->type == 'r' ? jinja_put_repr(r, v) : jinja_put_ascii(r, v));
            MN_TRY(jinja_cut(r, mark, &text));
        }
        if (p->format.markup) MN_TRY(jinja_escape(r, text, &text));
        if (!spec->align) spec->align = '>';
        if (spec->align == '=') spec->align = '>', spec->fill = ' ';
        return put_text_spec(r, spec, text.string);
    case 'c':
        if (v.kind == J_STRING && v.string->points == 1) return put_text_spec(r, spec, v.string);
        if (!j_is_integer(v)) return jinja_fail(r, "%%c requires int or char");
        spec->align = spec->align ? spec->align : '>';
        return put_int_spec(r, spec, j_integer(v));
    case 'd':
    case 'i':
    case 'u':
        spec->type = 'd';
        if (v.kind == J_FLOAT) {
            if (!(fabs(v.real) < 0x1p63)) return jinja_fail(r, "cannot convert float to integer");
            v = j_int((int64_t)v.real);
        }
        break;
    case 'x':
    case 'X':
    case 'o':
        if (v.kind == J_FLOAT) return jinja_fail(r, "%%%c format: an integer is required, not float", spec->type);
        break;
    default:
        if (!j_is_number(v))
            return v.kind == J_UNDEFINED ? jinja_fail_undefined(r, v)
                                         : jinja_fail(r, "must be real number, not %s", jinja_type(v));
        return put_float_spec(r, spec, j_real(v));
    }
    if (v.kind == J_UNDEFINED) return jinja_fail_undefined(r, v);
    if (!j_is_integer(v))
        return jinja_fail(r, "%%%c format: a real number is required, not %s", spec->type, jinja_type(v));
    return put_int_spec(r, spec, j_integer(v));
}

/* One conversion behind its '%'. */
static mn_status percent_one(jrun *r, percent_state *p) {
    const jstring *s = p->s;
    format_spec spec = {.fill = ' ', .precision = -1};
    jvalue v = {.kind = J_MISSING};
    bool zero = false;
    if (p->at < s->n && s->data[p->at] == '(') {
        size_t start = ++p->at;
        for (int depth = 1; p->at < s->n; p->at++) {
            MN_TRY(jinja_charge(r, 1));
            depth += (s->data[p->at] == '(') - (s->data[p->at] == ')');
            if (depth == 0) break;
        }
        if (p->at >= s->n) return jinja_fail(r, "incomplete format key");
        if (p->values.kind != J_DICT) return jinja_fail(r, "format requires a mapping");
        jvalue key;
        MN_TRY(jinja_text(r, s->data + start, p->at++ - start, &key));
        MN_TRY(jinja_dict_get(r, p->values.dict, key, &v));
        if (!j_given(v))
            return jinja_fail(r, "no such key: '%.*s'", key.string->n < 60 ? (int)key.string->n : 60, key.string->data);
        p->used = 1;
    }
    for (; p->at < s->n && s->data[p->at] && strchr("-+ #0", s->data[p->at]); p->at++) {
        char c = s->data[p->at];
        MN_TRY(jinja_charge(r, 1));
        if (c == '-') spec.align = '<';
        if (c == '+' || (c == ' ' && spec.sign != '+')) spec.sign = c;
        if (c == '#') spec.alternate = true;
        if (c == '0') zero = true;
    }
    MN_TRY(percent_number(r, p, MAX_WIDTH, &spec.width));
    if (spec.width < 0) spec.align = '<', spec.width = -spec.width;
    if (p->at < s->n && s->data[p->at] == '.') {
        p->at++;
        MN_TRY(percent_number(r, p, MAX_PRECISION, &spec.precision));
        if (spec.precision < 0) spec.precision = 0;
    }
    if (p->at < s->n && s->data[p->at] && strchr("hlL", s->data[p->at])) p->at++;
    if (p->at >= s->n) return jinja_fail(r, "incomplete format");
    spec.type = s->data[p->at++];
    if (spec.type == '%') return jinja_put_z(r, "%");
    if (!spec.type || !strchr("diuoxXeEfFgGcrsa", spec.type))
        return jinja_fail(r, "unsupported format character '%c'", spec.type);
    if (zero && !spec.align && !strchr("crsa", spec.type)) spec.align = '=', spec.fill = '0';
    if (!j_given(v)) MN_TRY(next_value(r, p, &v));
    return percent_convert(r, p, &spec, v);
}

mn_status jinja_percent(jrun *r, jvalue format, jvalue values, jvalue *out) {
    percent_state p = {.format = format, .values = values, .s = format.string};
    size_t mark = jinja_mark(r);
    while (p.at < p.s->n) {
        const char *start = p.s->data + p.at, *percent = memchr(start, '%', p.s->n - p.at);
        size_t n = percent ? (size_t)(percent - start) : p.s->n - p.at;
        MN_TRY(jinja_put(r, start, n));
        p.at += n + (percent != NULL);
        if (percent) MN_TRY(percent_one(r, &p));
    }
    bool left = values.kind == J_TUPLE ? p.used < values.list->n
                                       : p.used == 0 && values.kind != J_DICT && values.kind != J_LIST &&
                                             values.kind != J_RANGE && values.kind != J_UNDEFINED;
    if (left) return jinja_fail(r, "not all arguments converted during string formatting");
    MN_TRY(jinja_cut(r, mark, out));
    out->markup = format.markup;
    return MN_OK;
}

mn_status jinja_percent_call(jrun *r, jvalue format, const jargs *args, jvalue *out) {
    jlist *list;
    jdict *dict;
    if (args->n && args->n_named)
        return jinja_fail(r, "can't handle positional and keyword arguments at the same time");
    MN_TRY(jinja_str(r, format, &format));
    if (args->n_named) {
        MN_TRY(jinja_dict_new(r, &dict));
        for (size_t i = 0; i < args->n_named; i++)
            MN_TRY(jinja_dict_set(r, dict, j_string(args->named[i].name, false), args->named[i].value));
        return jinja_percent(r, format, j_dict(dict), out);
    }
    MN_TRY(jinja_list_new(r, args->n, &list));
    for (size_t i = 0; i < args->n; i++) MN_TRY(jinja_list_push(r, list, args->items[i]));
    return jinja_percent(r, format, j_tuple(list), out);
}

/* ---- str.format ---- */

typedef struct format_state {
    const jargs *args;
    bool markup;
    int64_t automatic; /* next automatic number; -1 once numbers were written */
} format_state;

static mn_status format_text(jrun *r, format_state *f, const char *data, size_t n, int depth);

static mn_status too_wide(const jrun *r) {
    MN_FAIL(MN_E_FULL, "chat template: line %d: a format wider than %d", r->arena.line, MAX_WIDTH);
}

static mn_status read_spec(jrun *r, const char *at, const char *end, format_spec *out) {
    uint32_t code = 0;
    bool filled = false;
    *out = (format_spec){.fill = ' ', .precision = -1};
    if (at < end) {
        size_t length = jchar_at(at, (size_t)(end - at), 0, &code);
        if (at + length < end && strchr("<>^=", at[length]) && at[length]) {
            filled = true;
            out->fill = code;
            out->align = at[length];
            at += length + 1;
        } else if (*at && strchr("<>^=", *at)) {
            out->align = *at++;
        }
    }
    if (at < end && *at && strchr("+- ", *at)) out->sign = *at++;
    if (at < end && *at == '#') out->alternate = *at++ == '#';
    if (at < end && *at == '0') {
        if (!filled) out->fill = '0';
        if (!out->align) out->align = '=';
        at++;
    }
    for (; at < end && *at >= '0' && *at <= '9' && out->width <= MAX_WIDTH; at++) /* bounded: by MAX_WIDTH's digits */
        out->width = out->width * 10 + (*at - '0');
    if (out->width > MAX_WIDTH) return too_wide(r);
    if (at < end && (*at == ',' || *at == '_')) out->grouping = *at++;
    if (at < end && *at == '.') {
        at++;
        if (at >= end || *at < '0' || *at > '9') return jinja_fail(r, "Format specifier missing precision");
        for (out->precision = 0; at < end && *at >= '0' && *at <= '9' && out->precision <= MAX_PRECISION;
             at++) { /* bounded: by MAX_PRECISION's digits */
            out->precision = out->precision * 10 + (*at - '0');
        }
    }
    if (out->precision > MAX_PRECISION) return too_wide(r);
    if (at < end) out->type = *at++;
    if (at < end) return jinja_fail(r, "Invalid format specifier");
    return MN_OK;
}

static mn_status wrong_type(jrun *r, char type, jvalue v) {
    return jinja_fail(r, "Unknown format code '%c' for object of type '%s'", type, jinja_type(v));
}

/* format(v, spec) */
static mn_status format_value(jrun *r, jvalue v, const char *spec_text, size_t n) {
    format_spec spec;
    if (n == 0) return jinja_put_str(r, v);
    if (v.kind != J_STRING && !j_is_number(v))
        return jinja_fail(r, "unsupported format string passed to %s.__format__", jinja_type(v));
    MN_TRY(read_spec(r, spec_text, spec_text + n, &spec));
    if (v.kind == J_STRING) {
        if (spec.type && spec.type != 's') return wrong_type(r, spec.type, v);
        if (spec.sign || spec.alternate || spec.grouping)
            return jinja_fail(r, "Sign, '#' or grouping not allowed in string format specifier");
        if (spec.align == '=') {
            if (spec.fill != '0') return jinja_fail(r, "'=' alignment not allowed in string format specifier");
            spec.align = '<';
        }
        return put_text_spec(r, &spec, v.string);
    }
    if (j_is_integer(v) && (!spec.type || strchr("bcdoxXn", spec.type))) {
        if (spec.precision >= 0) return jinja_fail(r, "Precision not allowed in integer format specifier");
        if (spec.sign && spec.type == 'c') return jinja_fail(r, "Sign not allowed with integer format specifier 'c'");
        if (spec.grouping && spec.type && !strchr(spec.grouping == '_' ? "bdoxX" : "d", spec.type))
            return jinja_fail(r, "Cannot specify '%c' with '%c'.", spec.grouping, spec.type);
        return put_int_spec(r, &spec, j_integer(v));
    }
    if (spec.type && !strchr("eEfFgGn%", spec.type)) return wrong_type(r, spec.type, v);
    return put_float_spec(r, &spec, j_real(v));
}

static mn_status field_root(jrun *r, format_state *f, const char *name, size_t n, jvalue *out) {
    int64_t index;
    const jstring text = {name, n, n};
    if (n == 0 || strspn(name, "0123456789") >= n) {
        if (n == 0) {
            if (f->automatic < 0)
                return jinja_fail(r, "cannot switch from manual field specification to automatic field numbering");
            index = f->automatic++;
        } else {
            if (f->automatic > 0 || !jinja_read_int(&text, 10, &index))
                return jinja_fail(r, "cannot switch from automatic field numbering to manual field specification");
            f->automatic = -1;
        }
        if ((size_t)index >= f->args->n)
            return jinja_fail(r, "Replacement index %lld out of range for positional args tuple", (long long)index);
        *out = f->args->items[index];
        return MN_OK;
    }
    for (size_t i = 0; i < f->args->n_named; i++) {
        bool same;
        MN_TRY(jinja_same_text(r, f->args->named[i].name, &text, &same));
        if (!same) continue;
        *out = f->args->named[i].value;
        return MN_OK;
    }
    return jinja_fail(r, "no such key: '%.*s'", n < 60 ? (int)n : 60, name);
}

/* name.attribute[index]... */
static mn_status field_value(jrun *r, format_state *f, const char *name, size_t n, jvalue *out) {
    char *copy; /* terminated, for strspn */
    MN_TRY(jinja_alloc(&r->arena, n + 1, &copy));
    if (n) memcpy(copy, name, n);
    copy[n] = 0;
    size_t at = strcspn(copy, ".[");
    char first = copy[at];
    copy[at] = 0;
    MN_TRY(field_root(r, f, copy, at, out));
    copy[at] = first;
    while (at < n) {
        MN_TRY(jinja_charge(r, 1));
        bool attribute = copy[at++] == '.';
        size_t length = strcspn(copy + at, attribute ? ".[" : "]");
        jvalue key;
        if (length == 0 || (!attribute && !copy[at + length])) return jinja_fail(r, "Empty attribute in format string");
        MN_TRY(jinja_text(r, copy + at, length, &key));
        int64_t index = 0;
        bool digits = !attribute && strspn(copy + at, "0123456789") == length;
        if (digits && !jinja_read_int(key.string, 10, &index))
            return jinja_fail(r, "Too many decimal digits in format string");
        MN_TRY(attribute ? jinja_attribute(r, *out, key, out) : jinja_item(r, *out, digits ? j_int(index) : key, out));
        at += length + !attribute;
        if (at < n && copy[at] != '.' && copy[at] != '[')
            return jinja_fail(r, "Only '.' or '[' may follow ']' in format field specifier");
    }
    return MN_OK;
}

/* A replacement field without its braces. */
static mn_status format_field(jrun *r, format_state *f, const char *data, size_t n, int depth) {
    size_t name = 0, brackets = 0, mark = jinja_mark(r);
    while (name < n && (brackets || (data[name] != '!' && data[name] != ':'))) {
        MN_TRY(jinja_charge(r, 1));
        if (data[name] == '[') brackets = 1;
        if (data[name] == ']') brackets = 0;
        name++;
    }
    jvalue v, spec;
    MN_TRY(field_value(r, f, data, name, &v));
    if (name < n && data[name] == '!') {
        if (name + 1 >= n || (name + 2 < n && data[name + 2] != ':'))
            return jinja_fail(r, "expected ':' after conversion specifier");
        char conversion = data[name + 1];
        if (conversion != 's' && conversion != 'r' && conversion != 'a')
            return jinja_fail(r, "Unknown conversion specifier '%c'", conversion);
        MN_TRY(conversion == 's'   ? jinja_put_str(r, v)
               : conversion == 'r' ? jinja_put_repr(r, v)
                                   : jinja_put_ascii(r, v));
        MN_TRY(jinja_cut(r, mark, &v));
        name += 2;
    }
    if (name < n) MN_TRY(format_text(r, f, data + name + 1, n - name - 1, depth + 1));
    MN_TRY(jinja_cut(r, mark, &spec));
    if (f->markup && v.kind == J_STRING && v.markup) {
        if (spec.string->n) return jinja_fail(r, "Unsupported format specification for Markup.");
        return jinja_put_str(r, v);
    }
    MN_TRY(format_value(r, v, spec.string->data, spec.string->n));
    if (!f->markup) return MN_OK;
    MN_TRY(jinja_cut(r, mark, &v));
    return jinja_put_escaped(r, v.string);
}

static mn_status format_text(jrun *r, format_state *f, const char *data, size_t n, int depth) {
    if (depth > 2) return jinja_fail(r, "Max string recursion exceeded");
    for (size_t i = 0; i < n; i++) {
        char c = data[i];
        if (c != '{' && c != '}') {
            MN_TRY(jinja_put(r, &data[i], 1));
            continue;
        }
        if (i + 1 < n && data[i + 1] == c) {
            MN_TRY(jinja_put(r, &c, 1));
            i++;
            continue;
        }
        if (c == '}') return jinja_fail(r, "Single '}' encountered in format string");
        size_t start = ++i;
        for (int level = 1; i < n; i++) {
            MN_TRY(jinja_charge(r, 1));
            level += (data[i] == '{') - (data[i] == '}');
            if (level == 0) break;
        }
        if (i >= n) return jinja_fail(r, "expected '}' before end of string");
        MN_TRY(format_field(r, f, data + start, i - start, depth));
    }
    return MN_OK;
}

mn_status jinja_format_call(jrun *r, jvalue format, const jargs *args, jvalue *out) {
    format_state f = {.args = args, .markup = format.markup};
    size_t mark = jinja_mark(r);
    MN_TRY(format_text(r, &f, format.string->data, format.string->n, 1));
    MN_TRY(jinja_cut(r, mark, out));
    out->markup = format.markup;
    return MN_OK;
}
