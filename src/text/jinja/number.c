/* Arithmetic as Python's: whole numbers that do not wrap, floor division, the same rules for strings and lists.
 * SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/internal.h"

static mn_status too_large(const jrun *r) {
    return jinja_fail(r, "an integer beyond 64 bits");
}

static mn_status wrong_operands(const jrun *r, int op, jvalue a, jvalue b) {
    char sign[] = {(char)(op > 0xFF ? op >> 8 : op), (char)(op > 0xFF ? op & 0xFF : 0), 0};
    if (op == '+' && (a.kind == J_STRING || a.kind == J_LIST || a.kind == J_TUPLE)) {
        return jinja_fail(r, "can only concatenate %s (not \"%s\") to %s", jinja_type(a), jinja_type(b), jinja_type(a));
    }
    return jinja_fail(r, "unsupported operand type(s) for %s: '%s' and '%s'", op == JOP_POWER ? "** or pow()" : sign,
                      jinja_type(a), jinja_type(b));
}

static mn_status join_strings(jrun *r, jvalue a, jvalue b, jvalue *out) {
    size_t mark = jinja_mark(r);
    if (a.markup != b.markup) { /* text beside markup is escaped */
        MN_TRY(jinja_escape(r, a, &a));
        MN_TRY(jinja_escape(r, b, &b));
    }
    MN_TRY(jinja_put_str(r, a));
    MN_TRY(jinja_put_str(r, b));
    MN_TRY(jinja_cut(r, mark, out));
    out->markup = a.markup;
    return MN_OK;
}

static mn_status join_lists(jrun *r, jvalue a, jvalue b, jvalue *out) {
    jlist *list;
    MN_TRY(jinja_charge(r, a.list->n + b.list->n));
    MN_TRY(jinja_list_new(r, a.list->n + b.list->n, &list));
    if (a.list->n) memcpy(list->items, a.list->items, a.list->n * sizeof(jvalue));
    if (b.list->n) memcpy(list->items + a.list->n, b.list->items, b.list->n * sizeof(jvalue));
    list->n = a.list->n + b.list->n;
    *out = (jvalue){.kind = a.kind, .list = list};
    return MN_OK;
}

static mn_status repeat(jrun *r, jvalue v, int64_t times, jvalue *out) {
    if (times < 0) times = 0;
    if (v.kind == J_STRING) {
        size_t mark = jinja_mark(r);
        MN_TRY(jinja_put_many(r, v.string->data, v.string->n, v.string->n ? times : 0));
        MN_TRY(jinja_cut(r, mark, out));
        out->markup = v.markup;
        return MN_OK;
    }
    jlist *list;
    size_t n, unit = v.list->n;
    if (!size_mul(unit, (size_t)times, &n) || n > SIZE_MAX / sizeof(jvalue))
        MN_FAIL(MN_E_FULL, "chat template: line %d: a repetition that is too long", r->arena.line);
    MN_TRY(jinja_list_new(r, n, &list));
    MN_TRY(jinja_charge(r, n));
    for (; list->n < n; list->n++) /* charged: above */
        list->items[list->n] = v.list->items[list->n % unit];
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
    while (exponent > 0) { /* bounded: 63 digits */
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
            MN_FAIL(MN_E_UNSUPPORTED, "chat template: line %d: complex numbers are not supported", r->arena.line);
        *out = j_float(pow(a, b));
        if (isinf(out->real) && isfinite(a) && isfinite(b)) return jinja_fail(r, "numerical result out of range");
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
    if (!j_is_number(v)) return jinja_fail(r, "bad operand type for unary %c: '%s'", minus ? '-' : '+', jinja_type(v));
    if (v.kind == J_FLOAT) {
        *out = j_float(minus ? -v.real : v.real);
        return MN_OK;
    }
    if (minus && v.integer == INT64_MIN && v.kind == J_INT) return too_large(r);
    *out = j_int(minus ? -j_integer(v) : j_integer(v));
    return MN_OK;
}

/* ---- reading numbers ---- */

mn_status jinja_trimmed(jrun *r, const jstring *s, jstring *out) {
    size_t from, to;
    MN_TRY(jinja_strip(&r->arena, s, NULL, true, true, &from, &to));
    MN_TRY(jinja_charge(r, 50)); /* reading a number takes a microsecond */
    *out = (jstring){s->data + from, to - from, 0};
    return MN_OK;
}

/* The text without single underscores between digits, zero-terminated in `buffer`; false when it is no ASCII text that
 * fits. */
static bool plain_number(const jstring *s, char *buffer, size_t size) {
    size_t n = 0;
    if (s->n + 1 > size || s->n == 0) return false;
    for (size_t i = 0; i < s->n; i++) { /* bounded: by `size` */
        char c = s->data[i];
        if (c == '_') {
            bool between = i > 0 && i + 1 < s->n && strchr("0123456789abcdefABCDEFxXoO", s->data[i - 1]) &&
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
    for (; *at; at++) { /* bounded: by the size of `text` */
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
    for (size_t i = 0; i < 3; i++) /* bounded: three words */
        word |= strcasecmp(digits, words[i]) == 0;
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
        for (char *c = text; *c; c++) { /* bounded: by the size of `text` */
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
