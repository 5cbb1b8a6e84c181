/* Arithmetic as Python's: whole numbers that do not wrap, floor division, the same rules for strings and
 * lists. SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"

static mn_status too_large(const jrun *r) {
    return jinja_fail(r, "an integer beyond 64 bits");
}

static mn_status wrong_operands(const jrun *r, int op, jvalue a, jvalue b) {
    char sign[] = {(char)(op > 0xFF ? op >> 8 : op), (char)(op > 0xFF ? op & 0xFF : 0), 0};
    if (op == '+' && (a.kind == J_STRING || a.kind == J_LIST || a.kind == J_TUPLE)) {
        return jinja_fail(r, "can only concatenate %s (not \"%s\") to %s", jinja_type(a), jinja_type(b),
                          jinja_type(a));
    }
    return jinja_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'",
                      op == JOP_POWER ? "** or pow()" : sign, jinja_type(a), jinja_type(b));
}

static mn_status join_strings(jrun *r, jvalue a, jvalue b, jvalue *out) {
    char *data;
    if (a.markup != b.markup) { /* text beside markup is escaped */
        MN_TRY(jinja_escape(r, a, &a));
        MN_TRY(jinja_escape(r, b, &b));
    }
    size_t n = a.string->n + b.string->n;
    MN_TRY(jinja_spend_bytes(r, n));
    MN_TRY(jinja_take(&r->arena, n, &data));
    if (a.string->n) memcpy(data, a.string->data, a.string->n);
    if (b.string->n) memcpy(data + a.string->n, b.string->data, b.string->n);
    return jinja_text_part(r, a, data, n, out);
}

static mn_status join_lists(jrun *r, jvalue a, jvalue b, jvalue *out) {
    jlist *list;
    MN_TRY(jinja_spend(r, a.list->n + b.list->n));
    MN_TRY(jinja_list_new(r, a.list->n + b.list->n, &list));
    if (a.list->n) memcpy(list->items, a.list->items, a.list->n * sizeof(jvalue));
    if (b.list->n) memcpy(list->items + a.list->n, b.list->items, b.list->n * sizeof(jvalue));
    list->n = a.list->n + b.list->n;
    *out = (jvalue){.kind = a.kind, .list = list};
    return MN_OK;
}

static mn_status repeat(jrun *r, jvalue v, int64_t times, jvalue *out) {
    bool is_text = v.kind == J_STRING;
    size_t unit = is_text ? v.string->n : v.list->n * sizeof(jvalue), n;
    if (times < 0) times = 0;
    if (!size_mul(unit, (size_t)times, &n))
        MN_FAIL(MN_E_FULL, "chat template: line %d: a repetition that is too long", r->line);
    MN_TRY(jinja_spend_bytes(r, n));
    char *data;
    MN_TRY(jinja_take(&r->arena, n, &data));
    for (size_t i = 0; n && i < (size_t)times; i++)
        memcpy(data + i * unit, is_text ? (const void *)v.string->data : v.list->items, unit);
    if (is_text) return jinja_text_part(r, v, data, n, out);
    jlist *list;
    MN_TRY(jinja_list_new(r, 0, &list));
    list->items = (jvalue *)(void *)data;
    list->n = list->capacity = n / sizeof(jvalue);
    *out = (jvalue){.kind = v.kind, .list = list};
    return MN_OK;
}

/* Floor division with remainder of floats, the remainder having the divisor's sign. */
static void divide_floor(double a, double b, double *quotient, double *remainder) {
    double rest = fmod(a, b), q = (a - rest) / b;
    if (rest != 0) {
        if ((b < 0) != (rest < 0)) {
            rest += b;
            q -= 1;
        }
    } else {
        rest = copysign(0, b);
    }
    double whole = floor(q);
    if (q - whole > 0.5) whole += 1;
    *quotient = q != 0 ? whole : copysign(0, a / b);
    *remainder = rest;
}

static mn_status power_integers(jrun *r, int64_t base, int64_t exponent, jvalue *out) {
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0) return jinja_fail(r, "0.0 cannot be raised to a negative power");
        *out = j_float(pow((double)base, (double)exponent));
        return MN_OK;
    }
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return too_large(r);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base)) return too_large(r);
    }
    *out = j_int(result);
    return MN_OK;
}

static mn_status integers(jrun *r, int op, int64_t a, int64_t b, jvalue *out) {
    int64_t result = 0;
    bool overflow = false;
    if (b == 0 && (op == '/' || op == JOP_FLOOR || op == '%')) {
        return jinja_fail(r, op == '/' ? "division by zero" : "integer division or modulo by zero");
    }
    switch (op) {
    case '+': overflow = __builtin_add_overflow(a, b, &result); break;
    case '-': overflow = __builtin_sub_overflow(a, b, &result); break;
    case '*': overflow = __builtin_mul_overflow(a, b, &result); break;
    case '/': *out = j_float((double)a / (double)b); return MN_OK;
    case JOP_POWER: return power_integers(r, a, b, out);
    case JOP_FLOOR:
        overflow = a == INT64_MIN && b == -1;
        if (!overflow) result = a / b - (a % b != 0 && (a % b < 0) != (b < 0));
        break;
    default: /* % */
        if (b != -1) result = a % b;
        if (result != 0 && (result < 0) != (b < 0)) result += b;
    }
    *out = j_int(result);
    return overflow ? too_large(r) : MN_OK;
}

static mn_status floats(jrun *r, int op, double a, double b, jvalue *out) {
    double quotient, remainder;
    if (b == 0 && (op == '/' || op == JOP_FLOOR || op == '%')) return jinja_fail(r, "float division by zero");
    switch (op) {
    case '+': *out = j_float(a + b); return MN_OK;
    case '-': *out = j_float(a - b); return MN_OK;
    case '*': *out = j_float(a * b); return MN_OK;
    case '/': *out = j_float(a / b); return MN_OK;
    case JOP_POWER:
        if (a == 0 && b < 0) return jinja_fail(r, "0.0 cannot be raised to a negative power");
        if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
            MN_FAIL(MN_E_UNSUPPORTED, "chat template: line %d: complex numbers are not supported", r->line);
        *out = j_float(pow(a, b));
        if (isinf(out->real) && isfinite(a) && isfinite(b))
            return jinja_fail(r, "numerical result out of range");
        return MN_OK;
    default:
        divide_floor(a, b, &quotient, &remainder);
        *out = j_float(op == '%' ? remainder : quotient);
        return MN_OK;
    }
}

static bool is_sequence(jvalue v) {
    return v.kind == J_STRING || v.kind == J_LIST || v.kind == J_TUPLE;
}

mn_status jinja_arithmetic(jrun *r, int op, jvalue a, jvalue b, jvalue *out) {
    if (j_is_integer(a) && j_is_integer(b)) return integers(r, op, j_integer(a), j_integer(b), out);
    if (j_is_number(a) && j_is_number(b)) return floats(r, op, j_real(a), j_real(b), out);
    if (op == '%' && a.kind == J_STRING) return jinja_percent(r, a, b, out);
    if (a.kind == J_UNDEFINED) return jinja_fail_undefined(r, a);
    if (b.kind == J_UNDEFINED) return jinja_fail_undefined(r, b);
    if (op == '+' && a.kind == b.kind) {
        if (a.kind == J_STRING) return join_strings(r, a, b, out);
        if (a.kind == J_LIST || a.kind == J_TUPLE) return join_lists(r, a, b, out);
    }
    if (op == '*' && is_sequence(a) && j_is_integer(b)) return repeat(r, a, j_integer(b), out);
    if (op == '*' && is_sequence(b) && j_is_integer(a)) return repeat(r, b, j_integer(a), out);
    return wrong_operands(r, op, a, b);
}

mn_status jinja_add(jrun *r, jvalue a, jvalue b, jvalue *out) {
    return jinja_arithmetic(r, '+', a, b, out);
}

mn_status jinja_negate(jrun *r, jvalue v, bool minus, jvalue *out) {
    if (v.kind == J_UNDEFINED) return jinja_fail_undefined(r, v);
    if (!j_is_number(v))
        return jinja_fail(r, "bad operand type for unary %c: '%s'", minus ? '-' : '+', jinja_type(v));
    if (v.kind == J_FLOAT) {
        *out = j_float(minus ? -v.real : v.real);
        return MN_OK;
    }
    if (minus && v.integer == INT64_MIN && v.kind == J_INT) return too_large(r);
    *out = j_int(minus ? -j_integer(v) : j_integer(v));
    return MN_OK;
}

/* ---- reading numbers ---- */

/* The text without white space around it and without single underscores between digits, zero-terminated in
 * `buffer`; false when it is no ASCII text that fits. */
static bool plain_number(const jstring *s, char *buffer, size_t size) {
    size_t from, to, n = 0;
    jinja_strip(s, NULL, true, true, &from, &to);
    if (to - from + 1 > size || from == to) return false;
    for (size_t i = from; i < to; i++) {
        char c = s->data[i];
        if (c == '_') {
            bool between = i > from && i + 1 < to && strchr("0123456789abcdefABCDEFxXoO", s->data[i - 1]) &&
                           strchr("0123456789abcdefABCDEF", s->data[i + 1]);
            if (!between) return false;
            continue;
        }
        if (c <= ' ' || c >= 0x7F) return false;
        buffer[n++] = c;
    }
    buffer[n] = 0;
    return true;
}

bool jinja_read_int(const jstring *s, int base, int64_t *out) {
    char text[128], *at = text;
    if (!plain_number(s, text, sizeof text)) return false;
    bool negative = *at == '-';
    if (*at == '-' || *at == '+') at++;
    if (*at == '0' && at[1]) {
        char letter = (char)(at[1] | 0x20);
        int prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
        if (prefix && (base == prefix || base == 0)) base = prefix, at += 2;
    }
    if (base == 0) {
        if (*at == '0' && strspn(at, "0") != strlen(at)) return false;
        base = 10;
    }
    int64_t value = 0;
    if (!*at) return false;
    for (; *at; at++) {
        int digit = *at >= '0' && *at <= '9'                     ? *at - '0'
                    : (*at | 0x20) >= 'a' && (*at | 0x20) <= 'z' ? (*at | 0x20) - 'a' + 10
                                                                 : 99;
        if (digit >= base) return false;
        if (__builtin_mul_overflow(value, (int64_t)base, &value) ||
            __builtin_sub_overflow(value, (int64_t)digit, &value))
            return false;
    }
    if (!negative && value == INT64_MIN) return false;
    *out = negative ? value : -value;
    return true;
}

bool jinja_read_float(const jstring *s, double *out) {
    char text[512], *end;
    if (!plain_number(s, text, sizeof text)) return false;
    const char *digits = text + (*text == '-' || *text == '+');
    bool word = false;
    static const char *const words[] = {"inf", "infinity", "nan"};
    for (size_t i = 0; i < 3; i++) word |= strcasecmp(digits, words[i]) == 0;
    if (!word && (strspn(digits, "0123456789.eE+-") != strlen(digits))) return false;
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale) return false;
    *out = strtod_l(text, &end, c_locale);
    freelocale(c_locale);
    return *end == 0 && end != text;
}

double jinja_round(double x, int64_t digits) {
    char text[400];
    if (!isfinite(x) || digits > 300) return x;
    if (digits >= 0) { /* the decimal text is rounded correctly, half to even by the exact binary value */
        snprintf(text, sizeof text, "%.*f", (int)digits, x);
        for (char *c = text; *c; c++) {
            if (*c == ',') *c = '.';
        }
        const jstring s = {text, strlen(text), strlen(text)};
        double result = x;
        return jinja_read_float(&s, &result) ? result : x;
    }
    if (digits < -308) return 0 * x;
    double unit = pow(10, (double)-digits), scaled = x / unit, whole = nearbyint(scaled);
    return whole * unit;
}
