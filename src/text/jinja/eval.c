/* Expressions, attributes and calls.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/jinja/internal.h"

/* ---- attributes and items ---- */

static mn_status unsafe_attribute(jrun *r, jvalue object, jvalue name, jvalue *out) {
    jvalue hint;
    size_t mark = jinja_mark(r);
    MN_TRY(jinja_put_z(r, "access to attribute "));
    MN_TRY(jinja_put_repr(r, name));
    MN_TRY(jinja_printf(r, " of '%s' object is unsafe.", jinja_type(object)));
    MN_TRY(jinja_put(r, "", 1)); /* a hint ends with a zero */
    MN_TRY(jinja_cut(r, mark, &hint));
    return jinja_undefined(r, hint.string->data, NULL, name, out);
}

/* What Python's getattr finds on the object; J_MISSING when there is no such attribute. */
static mn_status find_attribute(jrun *r, jvalue object, jvalue name, jvalue *out) {
    const jstring *s = name.string;
    *out = (jvalue){.kind = J_MISSING};
    if (s->n > 4 && memcmp(s->data, "__", 2) == 0 && memcmp(s->data + s->n - 2, "__", 2) == 0) {
        if (object.kind == J_UNDEFINED && object.undefined->hint) return MN_OK; /* it has failed already */
        return unsafe_attribute(r, object, name, out);
    }
    MN_TRY(jinja_charge(r, 4)); /* a walk through a table of names */
    const jbuiltin *builtin = jinja_find_method(object, s);
    if (!builtin) return jinja_field(r, object, s, out);
    if (builtin->flags & JB_MUTATES) return unsafe_attribute(r, object, name, out);
    jmethod *method;
    MN_TRY(jinja_alloc(&r->arena, sizeof *method, &method));
    *method = (jmethod){builtin, object};
    *out = (jvalue){.kind = J_METHOD, .method = method};
    return MN_OK;
}

/* object[index] for indices that fit; J_MISSING where Python raises. */
static mn_status find_item(jrun *r, jvalue object, jvalue index, jvalue *out) {
    *out = (jvalue){.kind = J_MISSING};
    if (object.kind == J_DICT) {
        bool hashable;
        MN_TRY(jinja_hashable(r, index, &hashable));
        return hashable ? jinja_dict_get(r, object.dict, index, out) : MN_OK;
    }
    int64_t length, i;
    if (!j_is_integer(index) || object.kind == J_VIEW || !jinja_length(object, &length)) return MN_OK;
    i = j_integer(index);
    if (i < 0) i += length;
    if (i < 0 || i >= length) return MN_OK;
    if (object.kind == J_RANGE) {
        *out = j_int(jinja_range_item(object.range, i));
        return MN_OK;
    }
    if (object.kind == J_STRING) {
        const jstring *s = object.string;
        MN_TRY(jinja_charge_text(r, s->points == s->n ? 0 : (size_t)i));
        size_t from = jinja_offset(s, (size_t)i);
        uint32_t code;
        return jinja_text_part(r, object, s->data + from, jchar_at(s->data, s->n, from, &code), out);
    }
    *out = object.list->items[i];
    return MN_OK;
}

mn_status jinja_attribute(jrun *r, jvalue object, jvalue name, jvalue *out) {
    MN_TRY(find_attribute(r, object, name, out));
    if (object.kind == J_UNDEFINED && !j_given(*out)) return jinja_fail_undefined(r, object);
    if (!j_given(*out)) MN_TRY(find_item(r, object, name, out));
    return j_given(*out) ? MN_OK : jinja_undefined(r, NULL, jinja_type_long(object), name, out);
}

mn_status jinja_item(jrun *r, jvalue object, jvalue index, jvalue *out) {
    if (object.kind == J_UNDEFINED) return jinja_fail_undefined(r, object);
    MN_TRY(find_item(r, object, index, out));
    if (!j_given(*out) && index.kind == J_STRING) MN_TRY(find_attribute(r, object, index, out));
    return j_given(*out) ? MN_OK : jinja_undefined(r, NULL, jinja_type_long(object), index, out);
}

/* ---- slices ---- */

typedef struct slice_range {
    int64_t start, stop, step, n; /* indices as Python's slice.indices() gives them, and how many items they select */
} slice_range;

static mn_status slice_part(jrun *r, jscope *scope, const jnode *node, bool *given, int64_t *out) {
    jvalue v;
    *given = false;
    if (!node) return MN_OK;
    MN_TRY(jinja_eval(r, scope, node, &v));
    if (v.kind == J_NONE) return MN_OK;
    if (!j_is_integer(v)) return jinja_fail(r, "slice indices must be integers or None or have an __index__ method");
    *given = true;
    *out = j_integer(v);
    return MN_OK;
}

static int64_t clamp_index(int64_t i, int64_t length, int64_t lo, int64_t hi) {
    if (i < 0) i += length;
    return i < lo ? lo : i > hi ? hi : i;
}

static mn_status slice_of(jrun *r, jscope *scope, const jnode *node, int64_t length, slice_range *out) {
    bool has_start, has_stop, has_step;
    int64_t start = 0, stop = 0, step = 1;
    MN_TRY(slice_part(r, scope, node->items.items[0], &has_start, &start));
    MN_TRY(slice_part(r, scope, node->items.items[1], &has_stop, &stop));
    MN_TRY(slice_part(r, scope, node->items.items[2], &has_step, &step));
    if (step == 0) return jinja_fail(r, "slice step cannot be zero");
    int64_t lo = step < 0 ? -1 : 0, hi = step < 0 ? length - 1 : length;
    start = has_start ? clamp_index(start, length, lo, hi) : step < 0 ? hi : lo;
    stop = has_stop ? clamp_index(stop, length, lo, hi) : step < 0 ? lo : hi;
    int64_t distance = step < 0 ? start - stop : stop - start;
    uint64_t unit = step < 0 ? 0 - (uint64_t)step : (uint64_t)step;
    int64_t n = distance > 0 ? (int64_t)((uint64_t)(distance - 1) / unit) + 1 : 0;
    *out = (slice_range){start, stop, step, n};
    return MN_OK;
}

static mn_status slice_string(jrun *r, jvalue v, const slice_range *range, jvalue *out) {
    const jstring *s = v.string;
    MN_TRY(jinja_charge_bytes(r, s->n));
    if (range->n == 0) return jinja_text_part(r, v, s->data, 0, out);
    if (range->step == 1) {
        size_t from = jinja_offset(s, (size_t)range->start);
        const jstring rest = {s->data + from, s->n - from, s->points == s->n ? s->n - from : 0};
        return jinja_text_part(r, v, s->data + from, jinja_offset(&rest, (size_t)range->n), out);
    }
    size_t *offsets, n = 0; /* of every code point */
    char *data;
    uint32_t code;
    MN_TRY(jinja_charge_text(r, s->n));
    MN_TRY(jinja_alloc(&r->arena, (s->points + 1) * sizeof *offsets, &offsets));
    MN_TRY(jinja_alloc(&r->arena, s->n, &data));
    for (size_t at = 0; at < s->n; at += jchar_at(s->data, s->n, at, &code)) /* charged: above */
        offsets[n++] = at;
    offsets[n] = s->n;
    n = 0;
    for (int64_t i = 0; i < range->n; i++) { /* charged: above, a turn for each character at most */
        int64_t at = range->start + i * range->step;
        size_t length = offsets[at + 1] - offsets[at];
        memcpy(data + n, s->data + offsets[at], length);
        n += length;
    }
    return jinja_text_part(r, v, data, n, out);
}

/* start + index * step, and false where that is no integer of 64 bits. */
static bool range_bound(const jrange *range, int64_t index, int64_t *out) {
    __extension__ __int128 exact = (__int128)index * range->step + range->start;
    *out = (int64_t)exact;
    return *out == exact;
}

static mn_status slice_of_range(jrun *r, const jrange *whole, const slice_range *range, jvalue *out) {
    jrange *part;
    MN_TRY(jinja_alloc(&r->arena, sizeof *part, &part));
    *part = (jrange){.n = range->n};
    if (!range_bound(whole, range->start, &part->start) || !range_bound(whole, range->stop, &part->stop) ||
        __builtin_mul_overflow(whole->step, range->step, &part->step))
        return jinja_fail(r, "an integer beyond 64 bits");
    *out = (jvalue){.kind = J_RANGE, .range = part};
    return MN_OK;
}

static mn_status slice(jrun *r, jscope *scope, const jnode *node, jvalue v, jvalue *out) {
    int64_t length = 0;
    slice_range range = {0};
    if (v.kind == J_UNDEFINED) return jinja_fail_undefined(r, v);
    if (v.kind == J_DICT) return jinja_fail(r, "unhashable type: 'slice'");
    if (v.kind == J_VIEW || !jinja_length(v, &length))
        return jinja_fail(r, "'%s' object is not subscriptable", jinja_type(v));
    MN_TRY(slice_of(r, scope, node, length, &range));
    if (v.kind == J_STRING) return slice_string(r, v, &range, out);
    if (v.kind == J_RANGE) return slice_of_range(r, v.range, &range, out);
    jlist *list;
    MN_TRY(jinja_list_new(r, (size_t)range.n, &list));
    for (int64_t i = 0; i < range.n; i++) MN_TRY(jinja_list_push(r, list, v.list->items[range.start + i * range.step]));
    *out = (jvalue){.kind = v.kind, .list = list};
    return MN_OK;
}

/* ---- calls ---- */

/* How much of a name a message shows. */
static int shown(const jstring *name) {
    return name->n < 60 ? (int)name->n : 60;
}

/* Binds the arguments to the names of the signature. */
static __attribute__((noinline)) mn_status bind_arguments(jrun *r, const jbuiltin *b, const jargs *args, jcall *call) {
    int n = 0;
    const char *names[JINJA_PARAMETERS], *at = b->parameters;
    size_t lengths[JINJA_PARAMETERS];
    while (*at && n < JINJA_PARAMETERS) { /* bounded: by JINJA_PARAMETERS */
        names[n] = at;
        lengths[n] = strcspn(at, ",");
        at += lengths[n] + (at[lengths[n]] == ',');
        n++;
    }
    if (args->n > (size_t)n)
        return jinja_fail(r, "%s() takes at most %d argument(s) (%zu given)", b->name, n, args->n + args->n_named);
    for (size_t i = 0; i < args->n; i++) /* bounded: by JINJA_PARAMETERS */
        call->arg[i] = args->items[i];
    for (size_t k = 0; k < args->n_named; k++) { /* bounded: each turn takes a parameter or fails */
        const jnamed *named = &args->named[k];
        int i = 0;
        if (b->flags & JB_POSITIONAL) return jinja_fail(r, "%s() takes no keyword arguments", b->name);
        while (i < n && /* bounded: by JINJA_PARAMETERS */
               !(lengths[i] == named->name->n && memcmp(names[i], named->name->data, lengths[i]) == 0))
            i++;
        if (i == n)
            return jinja_fail(r, "%s() got an unexpected keyword argument '%.*s'", b->name, shown(named->name),
                              named->name->data);
        if (j_given(call->arg[i]))
            return jinja_fail(r, "%s() got multiple values for argument '%.*s'", b->name, shown(named->name),
                              named->name->data);
        call->arg[i] = named->value;
    }
    for (int i = 0; i < b->required; i++) { /* bounded: by JINJA_PARAMETERS */
        if (!j_given(call->arg[i]))
            return jinja_fail(r, "%s() missing required argument '%.*s'", b->name, (int)lengths[i], names[i]);
    }
    return MN_OK;
}

mn_status jinja_call_builtin(jrun *r, const jbuiltin *b, jvalue self, const jargs *args, jvalue *out) {
    jcall call = {.self = self, .given = *args};
    MN_TRY(jinja_charge(r, 1));
    if (!(b->flags & JB_VARIADIC)) MN_TRY(bind_arguments(r, b, args, &call));
    return b->call(r, &call, out);
}

mn_status jinja_call(jrun *r, jvalue callee, const jargs *args, jvalue *out) {
    switch (callee.kind) {
    case J_UNDEFINED: return jinja_fail_undefined(r, callee);
    case J_FUNCTION: return jinja_call_builtin(r, callee.function, j_none(), args, out);
    case J_METHOD: return jinja_call_builtin(r, callee.method->builtin, callee.method->self, args, out);
    case J_MACRO: return jinja_call_macro(r, callee.macro, args, out);
    case J_LOOP:
        if (args->n != 1 || args->n_named) return jinja_fail(r, "loop() takes one argument");
        return jinja_call_loop(r, callee.loop, args->items[0], out);
    case J_JOINER:
        if (args->n || args->n_named) return jinja_fail(r, "a joiner takes no arguments");
        if (callee.joiner->used) {
            *out = callee.joiner->separator;
            return MN_OK;
        }
        callee.joiner->used = true;
        return jinja_text_z(r, "", out);
    default: return jinja_fail(r, "'%s' object is not callable", jinja_type(callee));
    }
}

static mn_status add_double_star(jrun *r, jvalue v, jnamed *named, size_t *n) {
    for (size_t i = 0; i < v.dict->n; i++) {
        MN_TRY(jinja_charge(r, 1));
        if (v.dict->items[i].key.kind != J_STRING) return jinja_fail(r, "keywords must be strings");
        named[(*n)++] = (jnamed){v.dict->items[i].key.string, v.dict->items[i].value};
    }
    return MN_OK;
}

/* Evaluates arguments into the arena. `caller` (J_MISSING: none) becomes one more keyword argument. */
static mn_status eval_arguments(jrun *r, jscope *scope, const jarguments *a, jvalue caller, jargs *out) {
    static const jstring name_caller = {"caller", 6, 6};
    jlist *items, *star;
    jvalue v;
    jnamed *named;
    size_t n_named = 0, more = a->n_named + j_given(caller);
    *out = (jargs){0};
    if (!a->positional.n && !more && !a->star && !a->double_star) return MN_OK;
    MN_TRY(jinja_list_new(r, a->positional.n, &items));
    for (; items->n < a->positional.n; items->n++)
        MN_TRY(jinja_eval(r, scope, a->positional.items[items->n], &items->items[items->n]));
    if (a->star) {
        MN_TRY(jinja_eval(r, scope, a->star, &v));
        MN_TRY(jinja_collect(r, v, &star));
        for (size_t i = 0; i < star->n; i++) MN_TRY(jinja_list_push(r, items, star->items[i]));
    }
    v = (jvalue){.kind = J_MISSING};
    if (a->double_star) {
        MN_TRY(jinja_eval(r, scope, a->double_star, &v));
        if (v.kind != J_DICT) return jinja_fail(r, "argument after ** must be a mapping, not %s", jinja_type(v));
        more += v.dict->n;
    }
    MN_TRY(jinja_alloc(&r->arena, more * sizeof *named, &named));
    for (; n_named < a->n_named; n_named++) {
        named[n_named].name = a->named[n_named].name;
        MN_TRY(jinja_eval(r, scope, a->named[n_named].value, &named[n_named].value));
    }
    if (j_given(caller)) named[n_named++] = (jnamed){&name_caller, caller};
    if (j_given(v)) MN_TRY(add_double_star(r, v, named, &n_named));
    *out = (jargs){items->items, items->n, named, n_named};
    return MN_OK;
}

static mn_status call(jrun *r, jscope *scope, const jnode *node, jvalue callee, jvalue caller, jvalue *out) {
    jargs args;
    MN_TRY(eval_arguments(r, scope, node->arguments, caller, &args));
    r->arena.line = node->line;
    return jinja_call(r, callee, &args, out);
}

static mn_status apply_filter(jrun *r, jscope *scope, const jnode *node, jvalue value, jvalue *out) {
    jargs args;
    MN_TRY(eval_arguments(r, scope, node->arguments, (jvalue){.kind = J_MISSING}, &args));
    if (!node->builtin) {
        return jinja_fail(r, "No %s named '%.*s' found.", node->kind == N_FILTER ? "filter" : "test", shown(node->text),
                          node->text->data);
    }
    r->arena.line = node->line;
    return jinja_call_builtin(r, node->builtin, value, &args, out);
}

/* ---- operators ---- */

static mn_status eval_compare_once(jrun *r, int op, jvalue a, jvalue b, bool *out) {
    switch (op) {
    case JOP_EQ: return jinja_equal(r, a, b, out);
    case JOP_NE:
        MN_TRY(jinja_equal(r, a, b, out));
        *out = !*out;
        return MN_OK;
    case JOP_IN: return jinja_contains(r, b, a, out);
    case JOP_NOT_IN:
        MN_TRY(jinja_contains(r, b, a, out));
        *out = !*out;
        return MN_OK;
    default: return jinja_order(r, op, a, b, out);
    }
}

static mn_status compare(jrun *r, jscope *scope, const jnode *node, jvalue left, jvalue *out) {
    jvalue right;
    bool holds = true;
    for (size_t i = 0; i < node->items.n && holds; i++) {
        const jnode *operand = node->items.items[i];
        MN_TRY(jinja_eval(r, scope, operand->a, &right));
        MN_TRY(eval_compare_once(r, operand->op, left, right, &holds));
        left = right;
    }
    *out = j_bool(holds);
    return MN_OK;
}

static mn_status concat(jrun *r, jscope *scope, const jnode *node, jvalue first, jvalue *out) {
    size_t mark = jinja_mark(r);
    MN_TRY(jinja_put_str(r, first));
    for (size_t i = 0; i < node->items.n; i++) {
        jvalue v;
        MN_TRY(jinja_eval(r, scope, node->items.items[i], &v));
        MN_TRY(jinja_put_str(r, v));
    }
    return jinja_cut(r, mark, out);
}

static mn_status eval_display(jrun *r, jscope *scope, const jnode *node, jvalue *out) {
    jlist *list;
    MN_TRY(jinja_list_new(r, node->items.n, &list));
    for (size_t i = 0; i < node->items.n; i++) MN_TRY(jinja_eval(r, scope, node->items.items[i], &list->items[i]));
    list->n = node->items.n;
    *out = node->kind == N_LIST ? j_list(list) : j_tuple(list);
    return MN_OK;
}

static mn_status eval_dict(jrun *r, jscope *scope, const jnode *node, jvalue *out) {
    jdict *dict;
    MN_TRY(jinja_dict_new(r, &dict));
    for (size_t i = 0; i + 1 < node->items.n; i += 2) {
        jvalue key, value;
        MN_TRY(jinja_eval(r, scope, node->items.items[i], &key));
        MN_TRY(jinja_eval(r, scope, node->items.items[i + 1], &value));
        MN_TRY(jinja_dict_set(r, dict, key, value));
    }
    *out = j_dict(dict);
    return MN_OK;
}

static mn_status eval_name(jrun *r, const jscope *scope, const jnode *node, jvalue *out) {
    for (int i = 0; i < node->hops; i++) /* bounded: by the nesting of the template */
        scope = scope->parent;
    *out = scope->slots[node->slot];
    if (j_given(*out)) return MN_OK;
    return jinja_undefined(r, NULL, NULL, j_string(node->text, false), out);
}

static mn_status eval_cond(jrun *r, jscope *scope, const jnode *node, jvalue *out) {
    MN_TRY(jinja_eval(r, scope, node->b, out));
    if (jinja_truth(*out)) return jinja_eval(r, scope, node->a, out);
    if (node->c) return jinja_eval(r, scope, node->c, out);
    return jinja_undefined(r, "the inline if-expression evaluated to false and no else section was defined.", NULL,
                           j_none(), out);
}

/* What one step of a chain makes of the value before it. */
static mn_status apply(jrun *r, jscope *scope, const jnode *step, jvalue v, jvalue *out) {
    jvalue right;
    switch (step->kind) {
    case N_ATTRIBUTE: return jinja_attribute(r, v, j_string(step->text, false), out);
    case N_ITEM: MN_TRY(jinja_eval(r, scope, step->b, &right)); return jinja_item(r, v, right, out);
    case N_SLICE: return slice(r, scope, step, v, out);
    case N_CALL: return call(r, scope, step, v, (jvalue){.kind = J_MISSING}, out);
    case N_FILTER:
    case N_TEST: return apply_filter(r, scope, step, v, out);
    case N_NOT: *out = j_bool(!jinja_truth(v)); return MN_OK;
    case N_BINARY: MN_TRY(jinja_eval(r, scope, step->b, &right)); return jinja_arithmetic(r, step->op, v, right, out);
    case N_CONCAT: return concat(r, scope, step, v, out);
    case N_COMPARE: return compare(r, scope, step, v, out);
    case N_AND:
    case N_OR: *out = v; return jinja_truth(v) == (step->kind == N_AND) ? jinja_eval(r, scope, step->b, out) : MN_OK;
    default: return jinja_negate(r, v, step->kind == N_NEGATE, out);
    }
}

mn_status jinja_apply_steps(jrun *r, jscope *scope, const jnode *chain, size_t n, jvalue *value) {
    for (size_t i = 0; i < n; i++) {
        MN_TRY(jinja_charge(r, 1));
        MN_TRY(apply(r, scope, chain->items.items[i], *value, value));
    }
    return MN_OK;
}

mn_status jinja_eval_call(jrun *r, jscope *scope, const jnode *chain, jvalue caller, jvalue *out) {
    size_t last = chain->items.n - 1;
    MN_TRY(jinja_eval(r, scope, chain->a, out));
    MN_TRY(jinja_apply_steps(r, scope, chain, last, out));
    return call(r, scope, chain->items.items[last], *out, caller, out);
}

static mn_status eval_node(jrun *r, jscope *scope, const jnode *node, jvalue *out) {
    switch (node->kind) {
    case N_CHAIN:
        MN_TRY(jinja_eval(r, scope, node->a, out));
        return jinja_apply_steps(r, scope, node, node->items.n, out);
    case N_DICT: return eval_dict(r, scope, node, out);
    case N_COND: return eval_cond(r, scope, node, out);
    default: return eval_display(r, scope, node, out);
    }
}

mn_status jinja_eval(jrun *r, jscope *scope, const jnode *node, jvalue *out) {
    MN_TRY(jinja_charge(r, 1));
    if (node->kind == N_CONST) {
        *out = node->value;
        return MN_OK;
    }
    if (node->kind == N_NAME) return eval_name(r, scope, node, out);
    MN_TRY(jinja_enter(r));
    MN_TRY(eval_node(r, scope, node, out));
    jinja_leave(r);
    return MN_OK;
}
