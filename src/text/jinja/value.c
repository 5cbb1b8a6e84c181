/* Values of the template language: strings, lists, comparison as Python does it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja/internal.h"

/* ---- strings ---- */

size_t jinja_count_points(const char *data, size_t n) {
    size_t points = 0;
    for (size_t i = 0; i < n; i++) /* charged: by the caller */
        points += ((unsigned char)data[i] & 0xC0) != 0x80;
    return points;
}

mn_status jinja_string_wrap(jinja_arena *arena, const char *data, size_t n, const jstring **out) {
    jstring *s;
    MN_TRY(jinja_charge_steps(arena, n / 32));
    MN_TRY(jinja_alloc(arena, sizeof *s, &s));
    *s = (jstring){data, n, jinja_count_points(data, n)};
    *out = s;
    return MN_OK;
}

mn_status jinja_text(jrun *r, const char *data, size_t n, jvalue *out) {
    char *copy;
    *out = (jvalue){.kind = J_STRING};
    MN_TRY(jinja_charge_bytes(r, n));
    MN_TRY(jinja_alloc(&r->arena, n, &copy));
    if (n) memcpy(copy, data, n);
    return jinja_string_wrap(&r->arena, copy, n, &out->string);
}

mn_status jinja_text_part(jrun *r, jvalue whole, const char *data, size_t n, jvalue *out) {
    jvalue part = {.kind = J_STRING, .markup = whole.markup};
    MN_TRY(jinja_string_wrap(&r->arena, data, n, &part.string));
    *out = part;
    return MN_OK;
}

mn_status jinja_text_z(jrun *r, const char *data, jvalue *out) {
    return jinja_text(r, data, strlen(data), out);
}

size_t jinja_offset(const jstring *s, size_t point) {
    if (s->points == s->n) return point;
    size_t at = 0;
    for (; point > 0; point--) /* charged: by the caller */
        at += utf8_length((unsigned char)s->data[at]);
    return at;
}

bool jinja_string_is(const jstring *s, const char *text) {
    return s->n == strlen(text) && memcmp(s->data, text, s->n) == 0;
}

mn_status jinja_same_bytes(jrun *r, const char *a, const char *b, size_t n, bool *out) {
    MN_TRY(jinja_charge_bytes(r, n));
    *out = n == 0 || memcmp(a, b, n) == 0;
    return MN_OK;
}

mn_status jinja_same_text(jrun *r, const jstring *a, const jstring *b, bool *out) {
    *out = a->n == b->n;
    return *out ? jinja_same_bytes(r, a->data, b->data, a->n, out) : jinja_charge(r, 1);
}

/* ---- lists ---- */

mn_status jinja_list_new(jrun *r, size_t capacity, jlist **out) {
    MN_TRY(jinja_alloc(&r->arena, sizeof **out, out));
    **out = (jlist){.capacity = capacity};
    return jinja_alloc(&r->arena, capacity * sizeof(jvalue), &(*out)->items);
}

mn_status jinja_list_push(jrun *r, jlist *list, jvalue item) {
    MN_TRY(jinja_charge(r, 1));
    if (list->n == list->capacity) {
        size_t capacity = list->capacity < 4 ? 8 : list->capacity * 2;
        jvalue *items;
        MN_TRY(jinja_alloc(&r->arena, capacity * sizeof *items, &items));
        if (list->n) memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = item;
    return MN_OK;
}

mn_status jinja_pair(jrun *r, jvalue first, jvalue second, jvalue *out) {
    jlist *pair;
    MN_TRY(jinja_list_new(r, 2, &pair));
    pair->items[0] = first;
    pair->items[1] = second;
    pair->n = 2;
    *out = j_tuple(pair);
    return MN_OK;
}

/* ---- JSON ---- */

mn_status jinja_from_json(jrun *r, const json *value, jvalue *out) {
    MN_TRY(jinja_charge(r, 1));
    switch (value->kind) {
    case JSON_NULL: *out = j_none(); return MN_OK;
    case JSON_BOOL: *out = j_bool(value->boolean); return MN_OK;
    case JSON_INT: *out = j_int(value->integer); return MN_OK;
    case JSON_REAL: *out = j_float(value->real); return MN_OK;
    case JSON_STRING:
        *out = (jvalue){.kind = J_STRING};
        return jinja_string_wrap(&r->arena, value->string, value->n, &out->string);
    case JSON_ARRAY:
    case JSON_OBJECT: break;
    }
    MN_TRY(jinja_enter(r));
    if (value->kind == JSON_ARRAY) {
        jlist *list;
        MN_TRY(jinja_list_new(r, value->n, &list));
        for (size_t i = 0; i < value->n; i++) MN_TRY(jinja_from_json(r, &value->items[i], &list->items[i]));
        list->n = value->n;
        *out = j_list(list);
    } else {
        jdict *dict;
        MN_TRY(jinja_dict_new(r, &dict));
        for (size_t i = 0; i < value->n; i++) {
            const json_member *m = &value->members[i];
            jvalue key = {.kind = J_STRING}, item;
            MN_TRY(jinja_string_wrap(&r->arena, m->key, m->key_n, &key.string));
            MN_TRY(jinja_from_json(r, &m->value, &item));
            MN_TRY(jinja_dict_set(r, dict, key, item));
        }
        *out = j_dict(dict);
    }
    jinja_leave(r);
    return MN_OK;
}

mn_status jinja_undefined(jrun *r, const char *hint, const char *owner, jvalue name, jvalue *out) {
    jundefined *u;
    MN_TRY(jinja_alloc(&r->arena, sizeof *u, &u));
    *u = (jundefined){hint, name, owner};
    *out = (jvalue){.kind = J_UNDEFINED, .undefined = u};
    return MN_OK;
}

/* ---- properties ---- */

const char *jinja_type(jvalue v) {
    static const char *const names[] = {"missing", "Undefined", "NoneType",    "bool",     "int",
                                        "float",   "str",       "list",        "tuple",    "dict",
                                        "range",   "dict_view", "generator",   "function", "builtin_function_or_method",
                                        "Macro",   "Namespace", "LoopContext", "Cycler",   "Joiner"};
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    if (v.kind == J_STRING && v.markup) return "Markup";
    if (v.kind == J_VIEW) return views[v.view->kind];
    if (v.kind == J_ITERATOR) return v.iterator->type;
    return names[v.kind];
}

const char *jinja_type_long(jvalue v) {
    switch (v.kind) {
    case J_NONE: return "None";
    case J_STRING: return v.markup ? "markupsafe.Markup object" : "str object";
    case J_BOOL: return "bool object";
    case J_INT: return "int object";
    case J_FLOAT: return "float object";
    case J_LIST: return "list object";
    case J_TUPLE: return v.list->group ? "jinja2.filters._GroupTuple object" : "tuple object";
    case J_DICT: return "dict object";
    case J_RANGE: return "range object";
    case J_VIEW:
        return v.view->kind == JVIEW_KEYS     ? "dict_keys object"
               : v.view->kind == JVIEW_VALUES ? "dict_values object"
                                              : "dict_items object";
    case J_FUNCTION: return "function object";
    case J_METHOD: return "builtin_function_or_method object";
    case J_MACRO: return "jinja2.runtime.Macro object";
    case J_NAMESPACE: return "jinja2.utils.Namespace object";
    case J_LOOP: return "jinja2.runtime.LoopContext object";
    case J_CYCLER: return "jinja2.utils.Cycler object";
    case J_JOINER: return "jinja2.utils.Joiner object";
    case J_UNDEFINED: return "jinja2.runtime.Undefined object";
    default: return "generator object";
    }
}

bool jinja_length(jvalue v, int64_t *out) {
    switch (v.kind) {
    case J_UNDEFINED: *out = 0; return true;
    case J_STRING: *out = (int64_t)v.string->points; return true;
    case J_LIST:
    case J_TUPLE: *out = (int64_t)v.list->n; return true;
    case J_DICT: *out = (int64_t)v.dict->n; return true;
    case J_VIEW: *out = (int64_t)v.view->dict->n; return true;
    case J_RANGE: *out = v.range->n; return true;
    default: return false;
    }
}

mn_status jinja_length_of(jrun *r, jvalue v, int64_t *out) {
    if (v.kind == J_LOOP) return jinja_loop_length(r, v.loop, out);
    if (jinja_length(v, out)) return MN_OK;
    return jinja_fail(r, "object of type '%s' has no len()", jinja_type(v));
}

bool jinja_truth(jvalue v) {
    int64_t length;
    switch (v.kind) {
    case J_MISSING:
    case J_NONE: return false;
    case J_BOOL:
    case J_INT: return j_integer(v) != 0;
    case J_FLOAT: return v.real != 0;
    default: return !jinja_length(v, &length) || length > 0;
    }
}

mn_status jinja_same(jrun *r, jvalue a, jvalue b, bool *out) {
    *out = a.kind == b.kind;
    if (!*out) return MN_OK;
    switch (a.kind) {
    case J_NONE: return MN_OK;
    case J_BOOL:
    case J_INT: *out = j_integer(a) == j_integer(b); return MN_OK;
    case J_FLOAT: *out = memcmp(&a.real, &b.real, sizeof a.real) == 0; return MN_OK;
    case J_STRING: return jinja_same_text(r, a.string, b.string, out);
    default: *out = a.pointer == b.pointer || (a.kind == J_TUPLE && a.list->n == 0 && b.list->n == 0); return MN_OK;
    }
}

/* Never overflows: the items of a range lie between its ends. */
int64_t jinja_range_item(const jrange *range, int64_t index) {
    return (int64_t)((uint64_t)range->start + (uint64_t)index * (uint64_t)range->step);
}

/* ---- comparison ---- */

static int compare_numbers(jvalue a, jvalue b) { /* both are numbers and not NaN */
    if (a.kind != J_FLOAT && b.kind != J_FLOAT) {
        int64_t x = j_integer(a), y = j_integer(b);
        return x < y ? -1 : x > y;
    }
    long double x = a.kind == J_FLOAT ? a.real : (long double)j_integer(a);
    long double y = b.kind == J_FLOAT ? b.real : (long double)j_integer(b);
    return x < y ? -1 : x > y;
}

static bool has_nan(jvalue a, jvalue b) {
    return (a.kind == J_FLOAT && isnan(a.real)) || (b.kind == J_FLOAT && isnan(b.real));
}

static int compare_strings(const jstring *a, const jstring *b) { /* UTF-8 sorts as its code points do */
    size_t n = a->n < b->n ? a->n : b->n;
    int order = n ? memcmp(a->data, b->data, n) : 0;
    return order ? order : a->n < b->n ? -1 : a->n > b->n;
}

static mn_status lists_equal(jrun *r, const jlist *a, const jlist *b, bool *out) {
    *out = a->n == b->n;
    if (a == b || !*out) return MN_OK;
    MN_TRY(jinja_enter(r));
    for (size_t i = 0; i < a->n && *out; i++) MN_TRY(jinja_equal(r, a->items[i], b->items[i], out));
    jinja_leave(r);
    return MN_OK;
}

static mn_status dicts_equal(jrun *r, const jdict *a, const jdict *b, bool *out) {
    *out = a->n == b->n;
    if (a == b || !*out) return MN_OK;
    MN_TRY(jinja_enter(r));
    for (size_t i = 0; i < a->n && *out; i++) {
        jvalue other;
        MN_TRY(jinja_dict_get(r, b, a->items[i].key, &other));
        *out = j_given(other);
        if (*out) MN_TRY(jinja_equal(r, a->items[i].value, other, out));
    }
    jinja_leave(r);
    return MN_OK;
}

mn_status jinja_equal(jrun *r, jvalue a, jvalue b, bool *out) {
    if (a.kind == J_STRING && b.kind == J_STRING) return jinja_same_text(r, a.string, b.string, out);
    MN_TRY(jinja_charge(r, 1));
    if (j_is_number(a) && j_is_number(b)) {
        *out = !has_nan(a, b) && compare_numbers(a, b) == 0;
    } else if (a.kind != b.kind) {
        *out = false;
    } else if (a.kind == J_LIST || a.kind == J_TUPLE) {
        return lists_equal(r, a.list, b.list, out);
    } else if (a.kind == J_DICT) {
        return dicts_equal(r, a.dict, b.dict, out);
    } else if (a.kind == J_RANGE) {
        *out = a.range->n == b.range->n && (a.range->n == 0 || (a.range->start == b.range->start &&
                                                                (a.range->n == 1 || a.range->step == b.range->step)));
    } else if (a.kind == J_METHOD) {
        MN_TRY(jinja_same(r, a.method->self, b.method->self, out));
        *out = *out && a.method->builtin == b.method->builtin;
    } else {
        *out = a.kind == J_UNDEFINED || a.kind == J_NONE || a.pointer == b.pointer;
    }
    return MN_OK;
}

static mn_status order_lists(jrun *r, int op, const jlist *a, const jlist *b, bool *out) {
    MN_TRY(jinja_enter(r));
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        MN_TRY(jinja_equal(r, a->items[i], b->items[i], &same));
        if (same) continue;
        MN_TRY(jinja_order(r, op, a->items[i], b->items[i], out));
        jinja_leave(r);
        return MN_OK;
    }
    jinja_leave(r);
    return jinja_order(r, op, j_int((int64_t)a->n), j_int((int64_t)b->n), out);
}

mn_status jinja_order(jrun *r, int op, jvalue a, jvalue b, bool *out) {
    int order;
    MN_TRY(jinja_charge(r, 1));
    if (a.kind == J_UNDEFINED) return jinja_fail_undefined(r, a);
    if (b.kind == J_UNDEFINED) return jinja_fail_undefined(r, b);
    if (j_is_number(a) && j_is_number(b)) {
        if (has_nan(a, b)) {
            *out = false;
            return MN_OK;
        }
        order = compare_numbers(a, b);
    } else if (a.kind == J_STRING && b.kind == J_STRING) {
        MN_TRY(jinja_charge_bytes(r, a.string->n < b.string->n ? a.string->n : b.string->n));
        order = compare_strings(a.string, b.string);
    } else if (a.kind == b.kind && (a.kind == J_LIST || a.kind == J_TUPLE)) {
        return order_lists(r, op, a.list, b.list, out);
    } else {
        const char *sign = op == '<' ? "<" : op == '>' ? ">" : op == JOP_LE ? "<=" : ">=";
        return jinja_fail(r, "'%s' not supported between instances of '%s' and '%s'", sign, jinja_type(a),
                          jinja_type(b));
    }
    *out = op == '<' ? order < 0 : op == '>' ? order > 0 : op == JOP_LE ? order <= 0 : order >= 0;
    return MN_OK;
}

mn_status jinja_contains(jrun *r, jvalue container, jvalue item, bool *out) {
    jiter *it;
    jvalue other;
    bool more = true;
    *out = false;
    if (container.kind == J_STRING) {
        if (item.kind == J_UNDEFINED) return jinja_fail_undefined(r, item);
        if (item.kind != J_STRING)
            return jinja_fail(r, "'in <string>' requires string as left operand, not %s", jinja_type(item));
        MN_TRY(jinja_charge_text(r, container.string->n));
        *out = item.string->n == 0 ||
               memmem(container.string->data, container.string->n, item.string->data, item.string->n);
        return MN_OK;
    }
    if (container.kind == J_DICT || (container.kind == J_VIEW && container.view->kind == JVIEW_KEYS)) {
        MN_TRY(jinja_check_hashable(r, item));
        MN_TRY(jinja_dict_get(r, container.kind == J_DICT ? container.dict : container.view->dict, item, &other));
        *out = j_given(other);
        return MN_OK;
    }
    MN_TRY(jinja_iter(r, container, &it));
    for (;;) {
        MN_TRY(jinja_next(r, it, &other, &more));
        if (!more) return MN_OK;
        MN_TRY(jinja_equal(r, other, item, out));
        if (!*out && other.kind == J_FLOAT) MN_TRY(jinja_same(r, other, item, out)); /* NaN is in [NaN] */
        if (*out) return MN_OK;
    }
}
