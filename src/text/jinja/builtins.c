/* Filters over single values, tests, global functions, the methods and fields of everything but strings, and the lookup
 * of built-ins by name.
 * SPDX-License-Identifier: Apache-2.0 */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/distance.h"
#include "text/jinja/internal.h"

enum { MAX_RANGE = 100000 }; /* of the sandbox */

mn_status jinja_arg_int(jrun *r, const jcall *c, int i, int64_t *out) {
    if (!j_given(c->arg[i])) return MN_OK;
    if (c->arg[i].kind == J_UNDEFINED) return jinja_fail_undefined(r, c->arg[i]);
    if (!j_is_integer(c->arg[i]))
        return jinja_fail(r, "'%s' object cannot be interpreted as an integer", jinja_type(c->arg[i]));
    *out = j_integer(c->arg[i]);
    return MN_OK;
}

mn_status jinja_arg_text(jrun *r, const jcall *c, int i, const jstring **out) {
    if (!j_given(c->arg[i])) return MN_OK;
    if (c->arg[i].kind == J_UNDEFINED) return jinja_fail_undefined(r, c->arg[i]);
    if (c->arg[i].kind != J_STRING)
        return jinja_fail(r, "argument %d must be str, not %s", i + 1, jinja_type(c->arg[i]));
    *out = c->arg[i].string;
    return MN_OK;
}

/* ---- filters ---- */

static mn_status filter_abs(jrun *r, const jcall *c, jvalue *out) {
    if (c->self.kind == J_UNDEFINED) return jinja_fail_undefined(r, c->self);
    if (!j_is_number(c->self)) return jinja_fail(r, "bad operand type for abs(): '%s'", jinja_type(c->self));
    if (c->self.kind == J_FLOAT) {
        *out = j_float(fabs(c->self.real));
        return MN_OK;
    }
    if (j_integer(c->self) < 0) return jinja_negate(r, c->self, true, out);
    *out = j_int(j_integer(c->self));
    return MN_OK;
}

static mn_status filter_attr(jrun *r, const jcall *c, jvalue *out) {
    jvalue found;
    if (c->arg[0].kind != J_STRING) return jinja_fail(r, "attribute name must be string");
    MN_TRY(jinja_attribute(r, c->self, c->arg[0], &found));
    bool is_key = false; /* unlike object.name, this never looks at keys */
    if (c->self.kind == J_DICT) {
        jvalue key;
        MN_TRY(jinja_dict_get(r, c->self.dict, c->arg[0], &key));
        is_key = j_given(key) && found.kind != J_METHOD;
    }
    if (is_key) return jinja_undefined(r, NULL, jinja_type_long(c->self), c->arg[0], out);
    *out = found;
    return MN_OK;
}

static mn_status filter_default(jrun *r, const jcall *c, jvalue *out) {
    *out = c->self;
    if (c->self.kind != J_UNDEFINED && !(jinja_arg_flag(c, 1, false) && !jinja_truth(c->self))) return MN_OK;
    if (!j_given(c->arg[0])) return jinja_text_z(r, "", out);
    *out = c->arg[0];
    return MN_OK;
}

static mn_status filter_length(jrun *r, const jcall *c, jvalue *out) {
    int64_t n;
    MN_TRY(jinja_length_of(r, c->self, &n));
    *out = j_int(n);
    return MN_OK;
}

static mn_status float_to_int(jrun *r, double x, jvalue fallback, jvalue *out) {
    *out = fallback;
    if (!isfinite(x)) return MN_OK;
    if (!(fabs(x) < 0x1p63)) return jinja_fail(r, "an integer beyond 64 bits");
    *out = j_int((int64_t)x);
    return MN_OK;
}

static mn_status filter_int(jrun *r, const jcall *c, jvalue *out) {
    int64_t base = 10, value;
    double real;
    jvalue fallback = jinja_arg_or(c, 0, j_int(0));
    MN_TRY(jinja_arg_int(r, c, 1, &base));
    if (c->self.kind == J_UNDEFINED) return jinja_fail_undefined(r, c->self);
    *out = fallback;
    if (j_is_integer(c->self)) *out = j_int(j_integer(c->self));
    if (c->self.kind == J_FLOAT) return float_to_int(r, c->self.real, fallback, out);
    if (c->self.kind != J_STRING) return MN_OK;
    bool allowed = base == 0 || (base >= 2 && base <= 36);
    jstring text;
    MN_TRY(jinja_trimmed(r, c->self.string, &text));
    if (allowed && jinja_read_int(&text, (int)base, &value)) {
        *out = j_int(value);
        return MN_OK;
    }
    return jinja_read_float(&text, &real) ? float_to_int(r, real, fallback, out) : MN_OK;
}

static mn_status filter_float(jrun *r, const jcall *c, jvalue *out) {
    double real;
    if (c->self.kind == J_UNDEFINED) return jinja_fail_undefined(r, c->self);
    *out = jinja_arg_or(c, 0, j_float(0));
    if (j_is_number(c->self)) *out = j_float(j_real(c->self));
    if (c->self.kind != J_STRING) return MN_OK;
    jstring text;
    MN_TRY(jinja_trimmed(r, c->self.string, &text));
    if (jinja_read_float(&text, &real)) *out = j_float(real);
    return MN_OK;
}

/* Rounds a whole number to tens, hundreds, ...: half to even. */
static mn_status round_integer(jrun *r, int64_t x, int64_t digits, jvalue *out) {
    int64_t unit = 1;
    *out = j_int(digits < -18 ? 0 : x);
    if (digits >= 0 || digits < -18) return MN_OK;
    for (; digits < 0; digits++) /* bounded: 18 digits */
        unit *= 10;
    int64_t rest = x % unit, whole = x - rest, size = rest < 0 ? -rest : rest;
    bool up = size > unit - size || (size == unit - size && (whole / unit) % 2 != 0);
    if (up && __builtin_add_overflow(whole, x < 0 ? -unit : unit, &whole))
        return jinja_fail(r, "an integer beyond 64 bits");
    *out = j_int(whole);
    return MN_OK;
}

static mn_status filter_round(jrun *r, const jcall *c, jvalue *out) {
    int64_t digits = 0;
    jvalue v = c->self, method = c->arg[1];
    bool up = j_is(method, "ceil"), down = j_is(method, "floor");
    if (j_given(method) && !up && !down && !j_is(method, "common"))
        return jinja_fail(r, "method must be common, ceil or floor");
    if (v.kind == J_UNDEFINED) return jinja_fail_undefined(r, v);
    if (!j_is_number(v)) return jinja_fail(r, "type %s doesn't define __round__ method", jinja_type(v));
    bool none = c->arg[0].kind == J_NONE && !up && !down;
    if (!none) MN_TRY(jinja_arg_int(r, c, 0, &digits));
    MN_TRY(jinja_charge(r, 200)); /* printing hundreds of digits and reading them takes microseconds */
    if (up || down) {
        double scale = pow(10, (double)digits), scaled = j_real(v) * scale;
        if (!isfinite(scaled)) return jinja_fail(r, "cannot convert float to integer");
        *out = j_float((up ? ceil(scaled) : floor(scaled)) / scale);
    } else if (v.kind == J_FLOAT) {
        if (none) return float_to_int(r, jinja_round(v.real, 0), j_none(), out);
        *out = j_float(jinja_round(v.real, digits));
    } else {
        return round_integer(r, j_integer(v), digits, out);
    }
    return MN_OK;
}

static mn_status filter_random(jrun *r, const jcall *c, jvalue *out) {
    (void)c;
    (void)out;
    MN_FAIL(MN_E_UNSUPPORTED, "chat template: line %d: random is not supported", r->arena.line);
}

const jbuiltin jinja_value_filters[] = {
    {"abs", "", 0, JB_POSITIONAL, filter_abs},
    {"attr", "name", 1, 0, filter_attr},
    {"count", "", 0, JB_POSITIONAL, filter_length},
    {"d", "default_value,boolean", 0, 0, filter_default},
    {"default", "default_value,boolean", 0, 0, filter_default},
    {"float", "default", 0, 0, filter_float},
    {"int", "default,base", 0, 0, filter_int},
    {"length", "", 0, JB_POSITIONAL, filter_length},
    {"random", "", 0, 0, filter_random},
    {"round", "precision,method", 0, 0, filter_round},
};
const size_t jinja_n_value_filters = sizeof jinja_value_filters / sizeof *jinja_value_filters;

/* ---- tests ---- */

#define TEST(name, expression)                                                                                         \
    static mn_status test_##name(jrun *r, const jcall *c, jvalue *out) {                                               \
        jvalue v = c->self;                                                                                            \
        (void)r;                                                                                                       \
        *out = j_bool(expression);                                                                                     \
        return MN_OK;                                                                                                  \
    }
TEST(defined, v.kind != J_UNDEFINED)
TEST(undefined, v.kind == J_UNDEFINED)
TEST(none, v.kind == J_NONE)
TEST(boolean, v.kind == J_BOOL)
TEST(true, v.kind == J_BOOL && v.boolean)
TEST(false, v.kind == J_BOOL && !v.boolean)
TEST(integer, v.kind == J_INT)
TEST(float, v.kind == J_FLOAT)
TEST(number, j_is_number(v))
TEST(string, v.kind == J_STRING)
TEST(mapping, v.kind == J_DICT)
TEST(iterable, v.kind == J_UNDEFINED || v.kind == J_STRING || v.kind == J_LIST || v.kind == J_TUPLE ||
                   v.kind == J_DICT || v.kind == J_RANGE || v.kind == J_VIEW || v.kind == J_ITERATOR ||
                   v.kind == J_LOOP)
TEST(sequence, v.kind == J_UNDEFINED || v.kind == J_STRING || v.kind == J_LIST || v.kind == J_TUPLE ||
                   v.kind == J_DICT || v.kind == J_RANGE)
TEST(callable, v.kind == J_UNDEFINED || v.kind == J_FUNCTION || v.kind == J_METHOD || v.kind == J_MACRO ||
                   v.kind == J_LOOP || v.kind == J_JOINER)
TEST(escaped, v.kind == J_STRING && v.markup)
TEST(filter, v.kind == J_STRING && jinja_find_filter(v.string) != NULL)
TEST(test, v.kind == J_STRING && jinja_find_test(v.string) != NULL)

static mn_status remainder_is(jrun *r, jvalue v, jvalue divisor, int64_t expected, jvalue *out) {
    bool same;
    MN_TRY(jinja_arithmetic(r, '%', v, divisor, &v));
    MN_TRY(jinja_equal(r, v, j_int(expected), &same));
    *out = j_bool(same);
    return MN_OK;
}

static mn_status test_odd(jrun *r, const jcall *c, jvalue *out) {
    return remainder_is(r, c->self, j_int(2), 1, out);
}
static mn_status test_even(jrun *r, const jcall *c, jvalue *out) {
    return remainder_is(r, c->self, j_int(2), 0, out);
}
static mn_status test_divisibleby(jrun *r, const jcall *c, jvalue *out) {
    return remainder_is(r, c->self, c->arg[0], 0, out);
}

static mn_status test_case(jrun *r, const jcall *c, const char *method, jvalue *out) {
    jvalue text;
    const jargs none = {0};
    const jstring name = {method, strlen(method), strlen(method)};
    MN_TRY(jinja_str(r, c->self, &text));
    return jinja_call_builtin(r, jinja_find(jinja_string_methods, jinja_n_string_methods, &name), text, &none, out);
}

static mn_status test_lower(jrun *r, const jcall *c, jvalue *out) {
    return test_case(r, c, "islower", out);
}
static mn_status test_upper(jrun *r, const jcall *c, jvalue *out) {
    return test_case(r, c, "isupper", out);
}

static mn_status test_sameas(jrun *r, const jcall *c, jvalue *out) {
    bool same;
    MN_TRY(jinja_same(r, c->self, c->arg[0], &same));
    *out = j_bool(same);
    return MN_OK;
}

static mn_status test_eq(jrun *r, const jcall *c, jvalue *out) {
    bool same;
    MN_TRY(jinja_equal(r, c->self, c->arg[0], &same));
    *out = j_bool(same);
    return MN_OK;
}

static mn_status test_ne(jrun *r, const jcall *c, jvalue *out) {
    MN_TRY(test_eq(r, c, out));
    *out = j_bool(!out->boolean);
    return MN_OK;
}

static mn_status test_order(jrun *r, const jcall *c, int op, jvalue *out) {
    bool holds;
    MN_TRY(jinja_order(r, op, c->self, c->arg[0], &holds));
    *out = j_bool(holds);
    return MN_OK;
}

static mn_status test_lt(jrun *r, const jcall *c, jvalue *out) {
    return test_order(r, c, '<', out);
}
static mn_status test_gt(jrun *r, const jcall *c, jvalue *out) {
    return test_order(r, c, '>', out);
}
static mn_status test_le(jrun *r, const jcall *c, jvalue *out) {
    return test_order(r, c, JOP_LE, out);
}
static mn_status test_ge(jrun *r, const jcall *c, jvalue *out) {
    return test_order(r, c, JOP_GE, out);
}

static mn_status test_in(jrun *r, const jcall *c, jvalue *out) {
    bool found;
    MN_TRY(jinja_contains(r, c->arg[0], c->self, &found));
    *out = j_bool(found);
    return MN_OK;
}

static const jbuiltin tests[] = {
    {"boolean", "", 0, 0, test_boolean},
    {"callable", "", 0, JB_POSITIONAL, test_callable},
    {"defined", "", 0, 0, test_defined},
    {"divisibleby", "num", 1, 0, test_divisibleby},
    {"eq", "b", 1, JB_POSITIONAL, test_eq},
    {"equalto", "b", 1, JB_POSITIONAL, test_eq},
    {"==", "b", 1, JB_POSITIONAL, test_eq},
    {"escaped", "", 0, 0, test_escaped},
    {"even", "", 0, 0, test_even},
    {"false", "", 0, 0, test_false},
    {"filter", "", 0, 0, test_filter},
    {"float", "", 0, 0, test_float},
    {"ge", "b", 1, JB_POSITIONAL, test_ge},
    {">=", "b", 1, JB_POSITIONAL, test_ge},
    {"gt", "b", 1, JB_POSITIONAL, test_gt},
    {">", "b", 1, JB_POSITIONAL, test_gt},
    {"greaterthan", "b", 1, JB_POSITIONAL, test_gt},
    {"in", "seq", 1, 0, test_in},
    {"integer", "", 0, 0, test_integer},
    {"iterable", "", 0, 0, test_iterable},
    {"le", "b", 1, JB_POSITIONAL, test_le},
    {"<=", "b", 1, JB_POSITIONAL, test_le},
    {"lessthan", "b", 1, JB_POSITIONAL, test_lt},
    {"lower", "", 0, 0, test_lower},
    {"lt", "b", 1, JB_POSITIONAL, test_lt},
    {"<", "b", 1, JB_POSITIONAL, test_lt},
    {"mapping", "", 0, 0, test_mapping},
    {"ne", "b", 1, JB_POSITIONAL, test_ne},
    {"!=", "b", 1, JB_POSITIONAL, test_ne},
    {"none", "", 0, 0, test_none},
    {"number", "", 0, 0, test_number},
    {"odd", "", 0, 0, test_odd},
    {"sameas", "other", 1, 0, test_sameas},
    {"sequence", "", 0, 0, test_sequence},
    {"string", "", 0, 0, test_string},
    {"test", "", 0, 0, test_test},
    {"true", "", 0, 0, test_true},
    {"undefined", "", 0, 0, test_undefined},
    {"upper", "", 0, 0, test_upper},
};

/* ---- globals ---- */

static mn_status raise_exception(jrun *r, const jcall *c, jvalue *out) {
    MN_TRY(jinja_str(r, c->arg[0], out));
    return status_fail(MN_E_ARG, "chat template: %.*s", (int)(out->string->n < 2000 ? out->string->n : 2000),
                       out->string->data);
}

static mn_status strftime_now(jrun *r, const jcall *c, jvalue *out) {
    const jstring *layout = NULL;
    struct tm local, *now = &local;
    MN_TRY(jinja_arg_text(r, c, 0, &layout));
    if (r->now) {
        local = *r->now;
    } else {
        time_t seconds = time(NULL);
        if (!localtime_r(&seconds, now)) return jinja_fail(r, "the clock cannot be read");
    }
    if (layout->n > 200 || memchr(layout->data, 0, layout->n))
        return jinja_fail(r, "a date format of %zu bytes, allowed: 200", layout->n);
    char format[2 * 200 + 8], text[4096];
    size_t n = 0;
    for (size_t i = 0; i < layout->n; i++) { /* bounded: 200 bytes. %f, microseconds, is Python's own */
        if (layout->data[i] == '%' && i + 1 < layout->n && layout->data[i + 1] == 'f' && n + 6 < 2 * 200) {
            memcpy(format + n, "000000", 6);
            n += 6;
            i++;
            continue;
        }
        format[n++] = layout->data[i];
        if (layout->data[i] == '%') format[n++] = i + 1 < layout->n ? layout->data[++i] : '%';
        if (n > 2 * 200) return jinja_fail(r, "a date format that is too long");
    }
    format[n++] = 'x'; /* so that an empty result differs from none */
    format[n] = 0;
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c_locale) return mem_no_memory();
    n = strftime_l(text, sizeof text, format, now, c_locale);
    freelocale(c_locale);
    if (n == 0) return jinja_fail(r, "a date that is too long");
    return jinja_text(r, text, n - 1, out);
}

static mn_status make_range(jrun *r, const jcall *c, jvalue *out) {
    int64_t start = 0, stop = 0, step = 1;
    MN_TRY(jinja_arg_int(r, c, 0, &stop));
    if (j_given(c->arg[1])) {
        start = stop;
        MN_TRY(jinja_arg_int(r, c, 1, &stop));
    }
    MN_TRY(jinja_arg_int(r, c, 2, &step));
    if (step == 0) return jinja_fail(r, "range() arg 3 must not be zero");
    jrange *range;
    uint64_t n = 0, unit = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 && stop > start) n = ((uint64_t)stop - (uint64_t)start - 1) / unit + 1;
    if (step < 0 && stop < start) n = ((uint64_t)start - (uint64_t)stop - 1) / unit + 1;
    if (n > MAX_RANGE)
        return jinja_fail(r, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MAX_RANGE);
    MN_TRY(jinja_alloc(&r->arena, sizeof *range, &range));
    *range = (jrange){start, stop, step, (int64_t)n};
    *out = (jvalue){.kind = J_RANGE, .range = range};
    return MN_OK;
}

/* dict(mapping or pairs, name=value, ...) */
static mn_status fill_dict(jrun *r, const jcall *c, jdict **out) {
    MN_TRY(jinja_dict_new(r, out));
    if (c->given.n > 1) return jinja_fail(r, "dict expected at most 1 argument, got %zu", c->given.n);
    if (c->given.n) {
        jvalue from = c->given.items[0], item;
        jiter *it;
        jlist *pair;
        bool more = true;
        for (size_t i = 0; from.kind == J_DICT && i < from.dict->n; i++) {
            MN_TRY(jinja_dict_set(r, *out, from.dict->items[i].key, from.dict->items[i].value));
        }
        if (from.kind != J_DICT) MN_TRY(jinja_iter(r, from, &it));
        while (from.kind != J_DICT) {
            MN_TRY(jinja_next(r, it, &item, &more));
            if (!more) break;
            MN_TRY(jinja_collect(r, item, &pair));
            if (pair->n != 2)
                return jinja_fail(r, "dictionary update sequence element has length %zu; 2 is required", pair->n);
            MN_TRY(jinja_dict_set(r, *out, pair->items[0], pair->items[1]));
        }
    }
    for (size_t i = 0; i < c->given.n_named; i++) {
        MN_TRY(jinja_dict_set(r, *out, j_string(c->given.named[i].name, false), c->given.named[i].value));
    }
    return MN_OK;
}

static mn_status make_dict(jrun *r, const jcall *c, jvalue *out) {
    jdict *dict;
    MN_TRY(fill_dict(r, c, &dict));
    *out = j_dict(dict);
    return MN_OK;
}

static mn_status make_namespace(jrun *r, const jcall *c, jvalue *out) {
    MN_TRY(make_dict(r, c, out));
    out->kind = J_NAMESPACE;
    return MN_OK;
}

static mn_status make_cycler(jrun *r, const jcall *c, jvalue *out) {
    jcycler *cycler;
    if (c->given.n_named) return jinja_fail(r, "cycler takes no keyword arguments");
    if (c->given.n == 0) return jinja_fail(r, "at least one item has to be provided");
    MN_TRY(jinja_alloc(&r->arena, sizeof *cycler, &cycler));
    *cycler = (jcycler){0};
    MN_TRY(jinja_list_new(r, c->given.n, &cycler->items));
    for (size_t i = 0; i < c->given.n; i++) MN_TRY(jinja_list_push(r, cycler->items, c->given.items[i]));
    *out = (jvalue){.kind = J_CYCLER, .cycler = cycler};
    return MN_OK;
}

static mn_status make_joiner(jrun *r, const jcall *c, jvalue *out) {
    jjoiner *joiner;
    MN_TRY(jinja_alloc(&r->arena, sizeof *joiner, &joiner));
    *joiner = (jjoiner){c->arg[0], false};
    if (!j_given(joiner->separator)) MN_TRY(jinja_text_z(r, ", ", &joiner->separator));
    *out = (jvalue){.kind = J_JOINER, .joiner = joiner};
    return MN_OK;
}

static mn_status lipsum(jrun *r, const jcall *c, jvalue *out) {
    return filter_random(r, c, out);
}

static const jbuiltin globals[] = {
    {"cycler", "", 0, JB_VARIADIC, make_cycler},
    {"dict", "", 0, JB_VARIADIC, make_dict},
    {"joiner", "sep", 0, 0, make_joiner},
    {"lipsum", "", 0, JB_VARIADIC, lipsum},
    {"namespace", "", 0, JB_VARIADIC, make_namespace},
    {"raise_exception", "message", 1, 0, raise_exception},
    {"range", "start,stop,step", 1, JB_POSITIONAL, make_range},
    {"strftime_now", "format", 1, 0, strftime_now},
};

/* ---- methods ---- */

static mn_status view_of(jrun *r, const jcall *c, jview_kind kind, jvalue *out) {
    jview *view;
    MN_TRY(jinja_alloc(&r->arena, sizeof *view, &view));
    *view = (jview){c->self.dict, kind};
    *out = (jvalue){.kind = J_VIEW, .view = view};
    return MN_OK;
}

static mn_status dict_keys(jrun *r, const jcall *c, jvalue *out) {
    return view_of(r, c, JVIEW_KEYS, out);
}
static mn_status dict_values(jrun *r, const jcall *c, jvalue *out) {
    return view_of(r, c, JVIEW_VALUES, out);
}
static mn_status dict_items(jrun *r, const jcall *c, jvalue *out) {
    return view_of(r, c, JVIEW_ITEMS, out);
}

static mn_status dict_get(jrun *r, const jcall *c, jvalue *out) {
    MN_TRY(jinja_check_hashable(r, c->arg[0]));
    MN_TRY(jinja_dict_get(r, c->self.dict, c->arg[0], out));
    if (!j_given(*out)) *out = jinja_arg_or(c, 1, j_none());
    return MN_OK;
}

static mn_status dict_copy(jrun *r, const jcall *c, jvalue *out) {
    jdict *dict;
    MN_TRY(jinja_dict_new(r, &dict));
    for (size_t i = 0; i < c->self.dict->n; i++)
        MN_TRY(jinja_dict_set(r, dict, c->self.dict->items[i].key, c->self.dict->items[i].value));
    *out = j_dict(dict);
    return MN_OK;
}

static mn_status list_count(jrun *r, const jcall *c, jvalue *out) {
    int64_t n = 0;
    for (size_t i = 0; i < c->self.list->n; i++) {
        bool same;
        MN_TRY(jinja_equal(r, c->self.list->items[i], c->arg[0], &same));
        n += same;
    }
    *out = j_int(n);
    return MN_OK;
}

static mn_status list_index(jrun *r, const jcall *c, jvalue *out) {
    int64_t length = (int64_t)c->self.list->n, start = 0, end = length;
    MN_TRY(jinja_arg_int(r, c, 1, &start));
    MN_TRY(jinja_arg_int(r, c, 2, &end));
    if (start < 0) start = start + length < 0 ? 0 : start + length;
    if (end < 0) end += length;
    for (int64_t i = start; i < end && i < length; i++) {
        bool same;
        MN_TRY(jinja_equal(r, c->self.list->items[i], c->arg[0], &same));
        if (!same) continue;
        *out = j_int(i);
        return MN_OK;
    }
    return jinja_fail(r, "the value is not in the list");
}

static mn_status range_index(jrun *r, const jcall *c, jvalue *out) {
    bool found;
    MN_TRY(jinja_contains(r, c->self, c->arg[0], &found));
    if (!found) return jinja_fail(r, "the value is not in the range");
    const jrange *range = c->self.range;
    uint64_t value = (uint64_t)(c->arg[0].kind == J_FLOAT ? (int64_t)c->arg[0].real : j_integer(c->arg[0]));
    uint64_t start = (uint64_t)range->start, step = (uint64_t)range->step;
    *out = j_int((int64_t)(range->step > 0 ? (value - start) / step : (start - value) / (0 - step)));
    return MN_OK;
}

static mn_status range_count(jrun *r, const jcall *c, jvalue *out) {
    bool found;
    MN_TRY(jinja_contains(r, c->self, c->arg[0], &found));
    *out = j_int(found);
    return MN_OK;
}

static mn_status list_copy(jrun *r, const jcall *c, jvalue *out) {
    jlist *list;
    MN_TRY(jinja_collect(r, c->self, &list));
    *out = j_list(list);
    return MN_OK;
}

static mn_status loop_cycle(jrun *r, const jcall *c, jvalue *out) {
    if (c->given.n_named) return jinja_fail(r, "cycle() takes no keyword arguments");
    if (c->given.n == 0) return jinja_fail(r, "no items for cycling given");
    *out = c->given.items[(size_t)c->self.loop->index0 % c->given.n];
    return MN_OK;
}

static mn_status loop_changed(jrun *r, const jcall *c, jvalue *out) {
    jloop *loop = c->self.loop;
    jlist *values;
    bool same = false;
    if (c->given.n_named) return jinja_fail(r, "changed() takes no keyword arguments");
    MN_TRY(jinja_list_new(r, c->given.n, &values));
    for (size_t i = 0; i < c->given.n; i++) MN_TRY(jinja_list_push(r, values, c->given.items[i]));
    if (j_given(loop->changed)) MN_TRY(jinja_equal(r, loop->changed, j_tuple(values), &same));
    loop->changed = j_tuple(values);
    *out = j_bool(!same);
    return MN_OK;
}

static mn_status cycler_next(jrun *r, const jcall *c, jvalue *out) {
    jcycler *cycler = c->self.cycler;
    *out = cycler->items->items[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->items->n;
    return jinja_charge(r, 1);
}

static mn_status cycler_reset(jrun *r, const jcall *c, jvalue *out) {
    c->self.cycler->at = 0;
    *out = j_none();
    return jinja_charge(r, 1);
}

static mn_status float_is_integer(jrun *r, const jcall *c, jvalue *out) {
    *out = j_bool(isfinite(c->self.real) && c->self.real == floor(c->self.real));
    return jinja_charge(r, 1);
}

static mn_status int_bit_length(jrun *r, const jcall *c, jvalue *out) {
    int64_t x = j_integer(c->self);
    uint64_t magnitude = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    *out = j_int(magnitude ? 64 - __builtin_clzll(magnitude) : 0);
    return jinja_charge(r, 1);
}

enum { P = JB_POSITIONAL, M = JB_MUTATES };

static const jbuiltin dict_methods[] = {
    {"get", "key,default", 1, P, dict_get},
    {"items", "", 0, P, dict_items},
    {"keys", "", 0, P, dict_keys},
    {"values", "", 0, P, dict_values},
    {"copy", "", 0, P, dict_copy},
    {"clear", "", 0, M, NULL},
    {"pop", "", 0, M, NULL},
    {"popitem", "", 0, M, NULL},
    {"setdefault", "", 0, M, NULL},
    {"update", "", 0, M, NULL},
};
static const jbuiltin list_methods[] = {
    {"count", "value", 1, P, list_count},
    {"index", "value,start,stop", 1, P, list_index},
    {"copy", "", 0, P, list_copy},
    {"append", "", 0, M, NULL},
    {"clear", "", 0, M, NULL},
    {"extend", "", 0, M, NULL},
    {"insert", "", 0, M, NULL},
    {"pop", "", 0, M, NULL},
    {"remove", "", 0, M, NULL},
    {"reverse", "", 0, M, NULL},
    {"sort", "", 0, M, NULL},
};
static const jbuiltin tuple_methods[] = {{"count", "value", 1, P, list_count},
                                         {"index", "value,start,stop", 1, P, list_index}};
static const jbuiltin range_methods[] = {{"count", "value", 1, P, range_count}, {"index", "value", 1, P, range_index}};
static const jbuiltin loop_methods[] = {{"cycle", "", 0, JB_VARIADIC, loop_cycle},
                                        {"changed", "", 0, JB_VARIADIC, loop_changed}};
static const jbuiltin cycler_methods[] = {{"next", "", 0, 0, cycler_next}, {"reset", "", 0, 0, cycler_reset}};
static const jbuiltin float_methods[] = {{"is_integer", "", 0, P, float_is_integer}};
static const jbuiltin int_methods[] = {{"bit_length", "", 0, P, int_bit_length}};

/* ---- fields ---- */

static mn_status loop_field(jrun *r, jloop *loop, const jstring *name, jvalue *out) {
    int64_t length = 0;
    bool before = jinja_string_is(name, "previtem"), after = jinja_string_is(name, "nextitem");
    if (jinja_string_is(name, "index")) {
        *out = j_int(loop->index0 + 1);
    } else if (jinja_string_is(name, "index0")) {
        *out = j_int(loop->index0);
    } else if (jinja_string_is(name, "first")) {
        *out = j_bool(loop->index0 == 0);
    } else if (jinja_string_is(name, "last")) {
        MN_TRY(jinja_loop_peek(r, loop));
        *out = j_bool(!j_given(loop->after));
    } else if (jinja_string_is(name, "depth")) {
        *out = j_int(loop->depth0 + 1);
    } else if (jinja_string_is(name, "depth0")) {
        *out = j_int(loop->depth0);
    } else if (jinja_string_is(name, "length") || jinja_string_is(name, "revindex") ||
               jinja_string_is(name, "revindex0")) {
        MN_TRY(jinja_loop_length(r, loop, &length));
        *out = j_int(name->n == 6 ? length : name->n == 8 ? length - loop->index0 : length - loop->index0 - 1);
    } else if (before || after) {
        if (after) MN_TRY(jinja_loop_peek(r, loop));
        *out = before ? loop->before : loop->after;
        if (!j_given(*out))
            return jinja_undefined(r, before ? "there is no previous item" : "there is no next item", NULL, j_none(),
                                   out);
    }
    return MN_OK;
}

static mn_status macro_field(jrun *r, const jmacro *macro, const jstring *name, jvalue *out) {
    const jparameters *p = macro->node->parameters;
    if (jinja_string_is(name, "name")) {
        *out = macro->node->text ? j_string(macro->node->text, false) : j_none();
    } else if (jinja_string_is(name, "arguments")) {
        jlist *list;
        MN_TRY(jinja_list_new(r, p->n, &list));
        for (size_t i = 0; i < p->n; i++) MN_TRY(jinja_list_push(r, list, j_string(p->items[i].name, false)));
        *out = j_tuple(list);
    } else if (jinja_string_is(name, "caller")) {
        *out = j_bool(p->uses_caller);
    } else if (jinja_string_is(name, "catch_kwargs")) {
        *out = j_bool(p->uses_kwargs);
    } else if (jinja_string_is(name, "catch_varargs")) {
        *out = j_bool(p->uses_varargs);
    }
    return MN_OK;
}

mn_status jinja_field(jrun *r, jvalue object, const jstring *name, jvalue *out) {
    *out = (jvalue){.kind = J_MISSING};
    switch (object.kind) {
    case J_LOOP: return loop_field(r, object.loop, name, out);
    case J_MACRO: return macro_field(r, object.macro, name, out);
    case J_NAMESPACE: return jinja_dict_get(r, object.dict, j_string(name, false), out);
    case J_CYCLER:
        if (jinja_string_is(name, "current")) *out = object.cycler->items->items[object.cycler->at];
        if (jinja_string_is(name, "pos")) *out = j_int((int64_t)object.cycler->at);
        if (jinja_string_is(name, "items")) *out = j_tuple(object.cycler->items);
        return MN_OK;
    case J_TUPLE:
        if (object.list->group && jinja_string_is(name, "grouper")) *out = object.list->items[0];
        if (object.list->group && jinja_string_is(name, "list")) *out = object.list->items[1];
        return MN_OK;
    case J_RANGE:
        if (jinja_string_is(name, "start")) *out = j_int(object.range->start);
        if (jinja_string_is(name, "stop")) *out = j_int(object.range->stop);
        if (jinja_string_is(name, "step")) *out = j_int(object.range->step);
        return MN_OK;
    case J_BOOL:
    case J_INT:
        if (jinja_string_is(name, "real") || jinja_string_is(name, "numerator")) *out = j_int(j_integer(object));
        if (jinja_string_is(name, "imag")) *out = j_int(0);
        if (jinja_string_is(name, "denominator")) *out = j_int(1);
        return MN_OK;
    case J_FLOAT:
        if (jinja_string_is(name, "real")) *out = object;
        if (jinja_string_is(name, "imag")) *out = j_float(0);
        return MN_OK;
    default: return MN_OK;
    }
}

/* ---- lookup ---- */

#define FIND(table, name) jinja_find(table, sizeof(table) / sizeof *(table), name)

const jbuiltin *jinja_find(const jbuiltin *table, size_t n, const jstring *name) {
    for (size_t i = 0; i < n; i++) { /* bounded: by the table's length */
        if (jinja_string_is(name, table[i].name)) return &table[i];
    }
    return NULL;
}

const jbuiltin *jinja_find_filter(const jstring *name) {
    const jbuiltin *b = jinja_find(jinja_text_filters, jinja_n_text_filters, name);
    if (!b) b = jinja_find(jinja_list_filters, jinja_n_list_filters, name);
    return b ? b : jinja_find(jinja_value_filters, jinja_n_value_filters, name);
}

const char *jinja_nearest_filter(const jstring *name) {
    const jbuiltin *const tables[] = {jinja_text_filters, jinja_list_filters, jinja_value_filters};
    const size_t sizes[] = {jinja_n_text_filters, jinja_n_list_filters, jinja_n_value_filters};
    const char *names[64];
    char text[DISTANCE_LONGEST];
    size_t n = 0;
    for (int t = 0; t < 3; t++) { /* bounded: three tables */
        for (size_t i = 0; i < sizes[t] && n + 1 < sizeof names / sizeof *names;
             i++) /* bounded: by the table's length */
            names[n++] = tables[t][i].name;
    }
    names[n] = NULL;
    snprintf(text, sizeof text, "%.*s", name->n < sizeof text ? (int)name->n : (int)sizeof text - 1, name->data);
    return text_nearest(text, names);
}

const jbuiltin *jinja_find_test(const jstring *name) {
    return FIND(tests, name);
}
const jbuiltin *jinja_find_global(const jstring *name) {
    return FIND(globals, name);
}

const jbuiltin *jinja_find_method(jvalue object, const jstring *name) {
    switch (object.kind) {
    case J_STRING: return jinja_find(jinja_string_methods, jinja_n_string_methods, name);
    case J_DICT: return FIND(dict_methods, name);
    case J_LIST: return FIND(list_methods, name);
    case J_TUPLE: return FIND(tuple_methods, name);
    case J_RANGE: return FIND(range_methods, name);
    case J_LOOP: return FIND(loop_methods, name);
    case J_CYCLER: return FIND(cycler_methods, name);
    case J_FLOAT: return FIND(float_methods, name);
    case J_BOOL:
    case J_INT: return FIND(int_methods, name);
    default: return NULL;
    }
}
