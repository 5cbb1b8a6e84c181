/* Values of the template language: arena, strings, lists, dictionaries, comparison as Python does it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "text/jinja_internal.h"

/* ---- arena ---- */

enum { FIRST_BLOCK = 8 << 10, LARGEST_BLOCK = 1 << 20, SMALL_DICT = 8 };

struct jinja_block {
    jinja_block *next;
    size_t used, size;
    size_t pad; /* keeps what follows 16-byte aligned */
};

mn_status jinja_take(jinja_arena *arena, size_t n, void *out) {
    void **place = out;
    *place = NULL;
    if (n > SIZE_MAX / 4) return mem_no_memory();
    n = (n + 15) & ~(size_t)15;
    if (n > arena->limit - arena->used)
        MN_FAIL(MN_E_FULL, "chat template: more than %zu bytes of memory are needed", arena->limit);
    jinja_block *b = arena->blocks;
    if (!b || b->size - b->used < n) {
        size_t size = b ? b->size * 2 : FIRST_BLOCK;
        if (size > LARGEST_BLOCK) size = LARGEST_BLOCK;
        bool own = n > size / 4;
        if (own) size = n;
        jinja_block *fresh = mem_alloc_raw(1, sizeof *fresh + size);
        if (!fresh) return MN_E_NOMEM;
        *fresh = (jinja_block){.size = size};
        if (b && own) { /* a block of its own; go on filling the current one */
            fresh->next = b->next;
            b->next = fresh;
        } else {
            fresh->next = b;
            arena->blocks = fresh;
        }
        b = fresh;
    }
    *place = (char *)(b + 1) + b->used;
    b->used += n;
    arena->used += n;
    return MN_OK;
}

void jinja_arena_clear(jinja_arena *arena) {
    for (jinja_block *b = arena->blocks, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    arena->blocks = NULL;
}

/* ---- strings ---- */

size_t jinja_count_points(const char *data, size_t n) {
    size_t points = 0;
    for (size_t i = 0; i < n; i++) points += ((unsigned char)data[i] & 0xC0) != 0x80;
    return points;
}

mn_status jinja_string_wrap(jinja_arena *arena, const char *data, size_t n, const jstring **out) {
    jstring *s;
    MN_TRY(jinja_take(arena, sizeof *s, &s));
    *s = (jstring){data, n, jinja_count_points(data, n)};
    *out = s;
    return MN_OK;
}

mn_status jinja_string_new(jinja_arena *arena, const char *data, size_t n, const jstring **out) {
    char *copy;
    MN_TRY(jinja_take(arena, n, &copy));
    if (n) memcpy(copy, data, n);
    return jinja_string_wrap(arena, copy, n, out);
}

mn_status jinja_text(jrun *r, const char *data, size_t n, jvalue *out) {
    *out = (jvalue){.kind = J_STRING};
    MN_TRY(jinja_spend_bytes(r, n));
    return jinja_string_new(&r->arena, data, n, &out->string);
}

mn_status jinja_text_z(jrun *r, const char *data, jvalue *out) {
    return jinja_text(r, data, strlen(data), out);
}

mn_status jinja_text_part(jrun *r, jvalue whole, const char *data, size_t n, jvalue *out) {
    jvalue part = {.kind = J_STRING, .markup = whole.markup};
    MN_TRY(jinja_spend_bytes(r, n));
    MN_TRY(jinja_string_wrap(&r->arena, data, n, &part.string));
    *out = part;
    return MN_OK;
}

size_t jinja_offset(const jstring *s, size_t point) {
    if (s->points == s->n) return point;
    size_t at = 0;
    for (; point > 0; point--) at += utf8_length((unsigned char)s->data[at]);
    return at;
}

bool jinja_string_is(const jstring *s, const char *text) {
    return s->n == strlen(text) && memcmp(s->data, text, s->n) == 0;
}

/* ---- lists ---- */

mn_status jinja_list_new(jrun *r, size_t capacity, jlist **out) {
    MN_TRY(jinja_take(&r->arena, sizeof **out, out));
    **out = (jlist){.capacity = capacity};
    return jinja_take(&r->arena, capacity * sizeof(jvalue), &(*out)->items);
}

mn_status jinja_list_push(jrun *r, jlist *list, jvalue item) {
    MN_TRY(jinja_spend(r, 1));
    if (list->n == list->capacity) {
        size_t capacity = list->capacity < 4 ? 8 : list->capacity * 2;
        jvalue *items;
        MN_TRY(jinja_take(&r->arena, capacity * sizeof *items, &items));
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

/* ---- dictionaries ---- */

mn_status jinja_dict_new(jrun *r, jdict **out) {
    MN_TRY(jinja_take(&r->arena, sizeof **out, out));
    **out = (jdict){0};
    return MN_OK;
}

static uint64_t hash_bytes(const char *data, size_t n) {
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)data[i]) * 0x100000001B3u;
    return h;
}

bool jinja_hashable(jvalue v) {
    if (v.kind == J_TUPLE) {
        for (size_t i = 0; i < v.list->n; i++) {
            if (v.list->items[i].kind == J_TUPLE || !jinja_hashable(v.list->items[i]))
                return false; /* flat tuples only */
        }
        return true;
    }
    return v.kind != J_LIST && v.kind != J_DICT && v.kind != J_VIEW;
}

/* Equal keys have equal hashes: 1, 1.0 and true are the same key. */
static uint64_t hash_key(jvalue key) {
    switch (key.kind) {
    case J_STRING: return hash_bytes(key.string->data, key.string->n);
    case J_BOOL:
    case J_INT: return (uint64_t)j_integer(key) * 0x9E3779B97F4A7C15u;
    case J_FLOAT:
        if (key.real == floor(key.real) && fabs(key.real) < 0x1p62)
            return (uint64_t)(int64_t)key.real * 0x9E3779B97F4A7C15u;
        return hash_bytes((const char *)&key.real, sizeof key.real);
    case J_TUPLE: {
        uint64_t h = 1;
        for (size_t i = 0; i < key.list->n; i++) h = h * 31 + hash_key(key.list->items[i]);
        return h;
    }
    case J_NONE:
    case J_UNDEFINED: return key.kind;
    default: return (uint64_t)(uintptr_t)key.pointer;
    }
}

/* Index of the key, or -1. Keys are hashable, so comparing them is cheap. */
static mn_status dict_find(jrun *r, const jdict *dict, jvalue key, uint64_t hash, int64_t *out) {
    bool same = false;
    *out = -1;
    size_t mask = dict->slots ? dict->n_slots - 1 : 0, slot = (size_t)hash & mask;
    for (size_t i = 0; dict->slots ? dict->slots[slot] != 0 : i < dict->n; i++, slot = (slot + 1) & mask) {
        size_t at = dict->slots ? dict->slots[slot] - 1 : i;
        if (dict->items[at].hash != hash || (key.kind == J_STRING && dict->items[at].key.kind != J_STRING))
            continue;
        MN_TRY(jinja_equal(r, dict->items[at].key, key, &same));
        if (!same) continue;
        *out = (int64_t)at;
        return MN_OK;
    }
    return MN_OK;
}

static mn_status dict_rehash(jrun *r, jdict *dict) {
    dict->n_slots = dict->capacity * 2;
    MN_TRY(jinja_take(&r->arena, dict->n_slots * sizeof *dict->slots, &dict->slots));
    memset(dict->slots, 0, dict->n_slots * sizeof *dict->slots);
    for (size_t i = 0; i < dict->n; i++) {
        size_t slot = (size_t)dict->items[i].hash & (dict->n_slots - 1);
        while (dict->slots[slot]) slot = (slot + 1) & (dict->n_slots - 1);
        dict->slots[slot] = (uint32_t)i + 1;
    }
    return MN_OK;
}

mn_status jinja_dict_set(jrun *r, jdict *dict, jvalue key, jvalue value) {
    int64_t at;
    if (!jinja_hashable(key)) return jinja_fail(r, "unhashable type: '%s'", jinja_type(key));
    MN_TRY(jinja_spend_bytes(r, key.kind == J_STRING ? key.string->n : 0));
    uint64_t hash = hash_key(key);
    MN_TRY(dict_find(r, dict, key, hash, &at));
    if (at >= 0) {
        dict->items[at].value = value;
        return MN_OK;
    }
    if (dict->n == dict->capacity) {
        size_t capacity = dict->capacity ? dict->capacity * 2 : SMALL_DICT;
        jpair *items;
        MN_TRY(jinja_take(&r->arena, capacity * sizeof *items, &items));
        if (dict->n) memcpy(items, dict->items, dict->n * sizeof *items);
        dict->items = items;
        dict->capacity = capacity;
        if (capacity > SMALL_DICT) MN_TRY(dict_rehash(r, dict));
    }
    if (dict->slots) {
        size_t slot = (size_t)hash & (dict->n_slots - 1);
        while (dict->slots[slot]) slot = (slot + 1) & (dict->n_slots - 1);
        dict->slots[slot] = (uint32_t)dict->n + 1;
    }
    dict->items[dict->n++] = (jpair){key, value, hash};
    return MN_OK;
}

mn_status jinja_dict_get(jrun *r, const jdict *dict, jvalue key, jvalue *out) {
    int64_t at;
    *out = (jvalue){.kind = J_MISSING};
    MN_TRY(jinja_spend_bytes(r, key.kind == J_STRING ? key.string->n : 0));
    MN_TRY(dict_find(r, dict, key, hash_key(key), &at));
    if (at >= 0) *out = dict->items[at].value;
    return MN_OK;
}

jvalue jinja_dict_text(const jdict *dict, const jstring *key) {
    int64_t at = -1;
    dict_find(NULL, dict, j_string(key, false), hash_bytes(key->data, key->n),
              &at); /* strings compare without a run */
    return at >= 0 ? dict->items[at].value : (jvalue){.kind = J_MISSING};
}

mn_status jinja_dict_put(jrun *r, jdict *dict, const char *key, jvalue value) {
    jvalue name = {.kind = J_STRING};
    MN_TRY(jinja_string_wrap(&r->arena, key, strlen(key), &name.string));
    return jinja_dict_set(r, dict, name, value);
}

mn_status jinja_from_json(jrun *r, const json *value, jvalue *out) {
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
    MN_TRY(jinja_take(&r->arena, sizeof *u, &u));
    *u = (jundefined){hint, name, owner};
    *out = (jvalue){.kind = J_UNDEFINED, .undefined = u};
    return MN_OK;
}

/* ---- properties ---- */

const char *jinja_type(jvalue v) {
    static const char *const names[] = {
        "missing", "Undefined", "NoneType",    "bool",     "int",
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

bool jinja_same(jvalue a, jvalue b) {
    if (a.kind != b.kind) return false;
    switch (a.kind) {
    case J_NONE: return true;
    case J_BOOL:
    case J_INT: return j_integer(a) == j_integer(b);
    case J_FLOAT: return memcmp(&a.real, &b.real, sizeof a.real) == 0;
    case J_STRING:
        return a.string->n == b.string->n && memcmp(a.string->data, b.string->data, a.string->n) == 0;
    default: return a.pointer == b.pointer || ((a.kind == J_TUPLE) && a.list->n == 0 && b.list->n == 0);
    }
}

mn_status jinja_range_item(const jrange *range, int64_t index, jvalue *out) {
    *out = j_int(range->start + index * range->step);
    return MN_OK;
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
    if (a.kind == J_STRING && b.kind == J_STRING) {
        bool long_text = r && a.string->n > 256 && a.string->n == b.string->n;
        if (long_text) MN_TRY(jinja_spend_bytes(r, a.string->n));
        *out = a.string->n == b.string->n && memcmp(a.string->data, b.string->data, a.string->n) == 0;
        return MN_OK;
    }
    MN_TRY(jinja_spend(r, 1));
    if (j_is_number(a) && j_is_number(b)) {
        *out = !has_nan(a, b) && compare_numbers(a, b) == 0;
    } else if (a.kind != b.kind) {
        *out = false;
    } else if (a.kind == J_LIST || a.kind == J_TUPLE) {
        return lists_equal(r, a.list, b.list, out);
    } else if (a.kind == J_DICT) {
        return dicts_equal(r, a.dict, b.dict, out);
    } else if (a.kind == J_RANGE) {
        *out = a.range->n == b.range->n &&
               (a.range->n == 0 ||
                (a.range->start == b.range->start && (a.range->n == 1 || a.range->step == b.range->step)));
    } else if (a.kind == J_METHOD) {
        *out = a.method->builtin == b.method->builtin && jinja_same(a.method->self, b.method->self);
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
    MN_TRY(jinja_spend(r, 1));
    if (a.kind == J_UNDEFINED) return jinja_fail_undefined(r, a);
    if (b.kind == J_UNDEFINED) return jinja_fail_undefined(r, b);
    if (j_is_number(a) && j_is_number(b)) {
        if (has_nan(a, b)) {
            *out = false;
            return MN_OK;
        }
        order = compare_numbers(a, b);
    } else if (a.kind == J_STRING && b.kind == J_STRING) {
        MN_TRY(jinja_spend_bytes(r, a.string->n < b.string->n ? a.string->n : b.string->n));
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
        MN_TRY(jinja_spend_bytes(r, container.string->n));
        *out = item.string->n == 0 ||
               memmem(container.string->data, container.string->n, item.string->data, item.string->n);
        return MN_OK;
    }
    if (container.kind == J_DICT || (container.kind == J_VIEW && container.view->kind == JVIEW_KEYS)) {
        if (!jinja_hashable(item)) return jinja_fail(r, "unhashable type: '%s'", jinja_type(item));
        MN_TRY(jinja_dict_get(r, container.kind == J_DICT ? container.dict : container.view->dict, item,
                              &other));
        *out = j_given(other);
        return MN_OK;
    }
    MN_TRY(jinja_iter(r, container, &it));
    for (;;) {
        MN_TRY(jinja_next(r, it, &other, &more));
        if (!more) return MN_OK;
        MN_TRY(jinja_equal(r, other, item, out));
        if (*out || jinja_same(other, item)) {
            *out = true;
            return MN_OK;
        }
    }
}
