/* Filters over sequences. Those that Python writes as generators are generators here too: they compute, and fail, only
 * when their items are taken, and can be iterated over once.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/jinja/internal.h"

static mn_status to_list(jrun *r, const jcall *c, jvalue *out) {
    jlist *list;
    MN_TRY(jinja_collect(r, c->self, &list));
    *out = j_list(list);
    return MN_OK;
}

static mn_status first(jrun *r, const jcall *c, jvalue *out) {
    jiter *it;
    bool more = true;
    MN_TRY(jinja_iter(r, c->self, &it));
    MN_TRY(jinja_next(r, it, out, &more));
    return more ? MN_OK : jinja_undefined(r, "No first item, sequence was empty.", NULL, j_none(), out);
}

/* What Python's reversed() accepts; also an undefined value, which has a length and an index operator. */
static bool is_reversible(jvalue v) {
    return v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_STRING || v.kind == J_DICT || v.kind == J_VIEW ||
           v.kind == J_RANGE;
}

static mn_status last(jrun *r, const jcall *c, jvalue *out) {
    jlist *list;
    if (!is_reversible(c->self) && c->self.kind != J_UNDEFINED)
        return jinja_fail(r, "'%s' object is not reversible", jinja_type(c->self));
    MN_TRY(jinja_collect(r, c->self, &list));
    if (list->n == 0) return jinja_undefined(r, "No last item, sequence was empty.", NULL, j_none(), out);
    *out = list->items[list->n - 1];
    return MN_OK;
}

static mn_status reverse(jrun *r, const jcall *c, jvalue *out) {
    jlist *list;
    jiter *it;
    if (c->self.kind == J_STRING) {
        const jstring *s = c->self.string;
        char *data;
        uint32_t code;
        MN_TRY(jinja_charge_text(r, s->n));
        MN_TRY(jinja_alloc(&r->arena, s->n, &data));
        for (size_t at = 0; at < s->n;) { /* charged: above */
            size_t length = jchar_at(s->data, s->n, at, &code);
            memcpy(data + s->n - at - length, s->data + at, length);
            at += length;
        }
        return jinja_text_part(r, c->self, data, s->n, out);
    }
    MN_TRY(jinja_collect(r, c->self, &list));
    for (size_t i = 0; i < list->n / 2; i++) { /* charged: each item when it was collected */
        jvalue swap = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = swap;
    }
    *out = j_list(list);
    if (!is_reversible(c->self)) return MN_OK;
    MN_TRY(jinja_iter_list(r, list, &it));
    it->type = "list_reverseiterator";
    *out = j_iterator(it);
    return MN_OK;
}

/* ---- generators ---- */

/* A generator over self; `inner` is opened when the first item is taken. */
static mn_status generator(jrun *r, const jcall *c, mn_status (*next)(jrun *, jiter *, jvalue *, bool *), jiter **it,
                           jvalue *out) {
    MN_TRY(jinja_iter_new(r, next, it));
    (*it)->source = c->self;
    (*it)->args = c->given;
    *out = j_iterator(*it);
    return MN_OK;
}

static mn_status open_inner(jrun *r, jiter *it) {
    if (it->inner) return MN_OK;
    return jinja_iter(r, it->source, &it->inner);
}

static mn_status next_item_pair(jrun *r, jiter *it, jvalue *item, bool *more) {
    if (!it->inner) {
        if (it->source.kind == J_DICT) {
            jview *view;
            MN_TRY(jinja_alloc(&r->arena, sizeof *view, &view));
            *view = (jview){it->source.dict, JVIEW_ITEMS};
            it->source = (jvalue){.kind = J_VIEW, .view = view};
        } else if (it->source.kind != J_UNDEFINED) {
            return jinja_fail(r, "Can only get item pairs from a mapping.");
        }
    }
    MN_TRY(open_inner(r, it));
    return jinja_next(r, it->inner, item, more);
}

static mn_status items(jrun *r, const jcall *c, jvalue *out) {
    jiter *it;
    return generator(r, c, next_item_pair, &it, out);
}

static mn_status text_argument(jrun *r, jvalue v, const char *what, const jstring **out) {
    if (v.kind == J_UNDEFINED) return jinja_fail_undefined(r, v);
    if (v.kind != J_STRING) return jinja_fail(r, "No %s named by a value of type '%s'", what, jinja_type(v));
    *out = v.string;
    return MN_OK;
}

static mn_status named_argument(jrun *r, const jargs *args, const char *name, jvalue *out) {
    *out = (jvalue){.kind = J_MISSING};
    for (size_t i = 0; i < args->n_named && !j_given(*out); i++) {
        MN_TRY(jinja_charge(r, 1));
        if (jinja_string_is(args->named[i].name, name)) *out = args->named[i].value;
    }
    return MN_OK;
}

/* The filter or test named by argument `at`, and the arguments behind it. */
static mn_status applied(jrun *r, jiter *it, size_t at, bool filter) {
    const jstring *name = NULL;
    MN_TRY(text_argument(r, it->args.items[at], filter ? "filter" : "test", &name));
    it->builtin = filter ? jinja_find_filter(name) : jinja_find_test(name);
    if (!it->builtin)
        return jinja_fail(r, "No %s named '%.*s'.", filter ? "filter" : "test", name->n < 60 ? (int)name->n : 60,
                          name->data);
    it->args.items += at + 1;
    it->args.n -= at + 1;
    return MN_OK;
}

static mn_status prepare_map(jrun *r, jiter *it) {
    jvalue attribute;
    MN_TRY(named_argument(r, &it->args, "attribute", &attribute));
    if (it->args.n == 0 && j_given(attribute)) {
        it->attribute = attribute;
        MN_TRY(named_argument(r, &it->args, "default", &it->fallback));
        it->flag = true;
        if (it->args.n_named > 1u + j_given(it->fallback)) return jinja_fail(r, "Unexpected keyword argument");
        return MN_OK;
    }
    if (it->args.n == 0) return jinja_fail(r, "map requires a filter argument");
    return MN_OK; /* the filter is looked up at the first item */
}

static mn_status next_mapped(jrun *r, jiter *it, jvalue *item, bool *more) {
    *more = jinja_truth(it->source);
    if (!*more) return MN_OK; /* nothing to map, be it iterable or not: nothing is prepared */
    if (!it->ready) MN_TRY(prepare_map(r, it));
    it->ready = true;
    MN_TRY(open_inner(r, it));
    MN_TRY(jinja_next(r, it->inner, item, more));
    if (!*more) return MN_OK;
    if (it->flag) return jinja_sort_key(r, *item, it->attribute, it->fallback, false, item);
    if (!it->builtin) MN_TRY(applied(r, it, 0, true));
    MN_TRY(jinja_enter(r));
    MN_TRY(jinja_call_builtin(r, it->builtin, *item, &it->args, item));
    jinja_leave(r);
    return MN_OK;
}

static mn_status map(jrun *r, const jcall *c, jvalue *out) {
    jiter *it;
    return generator(r, c, next_mapped, &it, out);
}

static mn_status prepare_select(jrun *r, jiter *it) {
    it->ready = true;
    if (!it->flag) return MN_OK;
    if (it->args.n == 0) return jinja_fail(r, "Missing parameter for attribute name");
    it->attribute = it->args.items[0];
    it->args.items++;
    it->args.n--;
    return MN_OK;
}

static mn_status next_selected(jrun *r, jiter *it, jvalue *item, bool *more) {
    *more = jinja_truth(it->source);
    if (!*more) return MN_OK;
    if (!it->ready) MN_TRY(prepare_select(r, it));
    MN_TRY(open_inner(r, it));
    for (;;) {
        jvalue subject, result;
        MN_TRY(jinja_next(r, it->inner, item, more));
        if (!*more) return MN_OK;
        subject = *item;
        if (it->flag) MN_TRY(jinja_sort_key(r, *item, it->attribute, j_none(), false, &subject));
        result = subject;
        if (!it->builtin && it->args.n) MN_TRY(applied(r, it, 0, false));
        MN_TRY(jinja_enter(r));
        if (it->builtin) MN_TRY(jinja_call_builtin(r, it->builtin, subject, &it->args, &result));
        jinja_leave(r);
        if (jinja_truth(result) != it->negate) return MN_OK;
    }
}

static mn_status selection(jrun *r, const jcall *c, bool negate, bool attribute, jvalue *out) {
    jiter *it;
    MN_TRY(generator(r, c, next_selected, &it, out));
    it->negate = negate;
    it->flag = attribute;
    return MN_OK;
}

static mn_status select_(jrun *r, const jcall *c, jvalue *out) {
    return selection(r, c, false, false, out);
}
static mn_status reject(jrun *r, const jcall *c, jvalue *out) {
    return selection(r, c, true, false, out);
}
static mn_status selectattr(jrun *r, const jcall *c, jvalue *out) {
    return selection(r, c, false, true, out);
}
static mn_status rejectattr(jrun *r, const jcall *c, jvalue *out) {
    return selection(r, c, true, true, out);
}

static mn_status next_unique(jrun *r, jiter *it, jvalue *item, bool *more) {
    MN_TRY(open_inner(r, it));
    if (!it->seen) MN_TRY(jinja_dict_new(r, &it->seen));
    for (;;) {
        jvalue key, known;
        MN_TRY(jinja_next(r, it->inner, item, more));
        if (!*more) return MN_OK;
        MN_TRY(jinja_sort_key(r, *item, it->attribute, j_none(), it->flag, &key));
        MN_TRY(jinja_check_hashable(r, key));
        MN_TRY(jinja_dict_get(r, it->seen, key, &known));
        if (j_given(known)) continue;
        return jinja_dict_set(r, it->seen, key, j_none());
    }
}

static mn_status unique(jrun *r, const jcall *c, jvalue *out) {
    jiter *it;
    MN_TRY(generator(r, c, next_unique, &it, out));
    it->flag = !jinja_arg_flag(c, 0, false);
    it->attribute = c->arg[1];
    return MN_OK;
}

static mn_status next_batch(jrun *r, jiter *it, jvalue *item, bool *more) {
    jlist *batch;
    bool any = true;
    MN_TRY(open_inner(r, it));
    MN_TRY(jinja_list_new(r, 0, &batch));
    while (any && ((int64_t)batch->n != it->count || batch->n == 0)) {
        jvalue one;
        MN_TRY(jinja_next(r, it->inner, &one, &any));
        if (any) MN_TRY(jinja_list_push(r, batch, one));
    }
    *more = batch->n > 0;
    bool fill = *more && !any && j_given(it->fallback) && it->fallback.kind != J_NONE;
    while (fill && (int64_t)batch->n < it->count) MN_TRY(jinja_list_push(r, batch, it->fallback));
    *item = j_list(batch);
    return MN_OK;
}

static mn_status batch(jrun *r, const jcall *c, jvalue *out) {
    jiter *it;
    MN_TRY(generator(r, c, next_batch, &it, out));
    it->fallback = c->arg[1];
    return jinja_arg_int(r, c, 0, &it->count);
}

static mn_status next_slice(jrun *r, jiter *it, jvalue *item, bool *more) {
    jlist *all, *part;
    if (!it->ready) {
        MN_TRY(jinja_collect(r, it->source, &all));
        it->source = j_list(all);
        it->ready = true;
        if (it->count == 0) return jinja_fail(r, "integer division or modulo by zero");
    }
    all = it->source.list;
    int64_t n = (int64_t)all->n, i = (int64_t)it->at;
    *more = i < it->count;
    if (!*more) return MN_OK;
    int64_t each = n / it->count, extra = n % it->count;
    int64_t start = i * each + (i < extra ? i : extra), end = start + each + (i < extra);
    MN_TRY(jinja_list_new(r, (size_t)(end - start) + 1, &part));
    for (int64_t k = start; k < end; k++) MN_TRY(jinja_list_push(r, part, all->items[k]));
    if (j_given(it->fallback) && it->fallback.kind != J_NONE && i >= extra)
        MN_TRY(jinja_list_push(r, part, it->fallback));
    it->at++;
    *item = j_list(part);
    return jinja_charge(r, 1);
}

static mn_status slice(jrun *r, const jcall *c, jvalue *out) {
    jiter *it;
    MN_TRY(generator(r, c, next_slice, &it, out));
    it->fallback = c->arg[1];
    return jinja_arg_int(r, c, 0, &it->count);
}

/* ---- sorting and grouping ---- */

/* Keys of a list for a comma-separated list of attribute paths: each key is a list. */
static mn_status sort_keys(jrun *r, const jlist *list, jvalue attribute, bool fold, jvalue **out) {
    MN_TRY(jinja_alloc(&r->arena, list->n * sizeof **out, out));
    for (size_t i = 0; i < list->n; i++) {
        jlist *key;
        jvalue part;
        MN_TRY(jinja_list_new(r, 1, &key));
        if (attribute.kind == J_STRING) {
            const char *at = attribute.string->data, *end = at + attribute.string->n;
            for (;;) {
                MN_TRY(jinja_charge_bytes(r, (size_t)(end - at)));
                const char *comma = at < end ? memchr(at, ',', (size_t)(end - at)) : NULL;
                MN_TRY(jinja_text(r, at, (size_t)((comma ? comma : end) - at), &part));
                MN_TRY(jinja_sort_key(r, list->items[i], part, j_none(), fold, &part));
                MN_TRY(jinja_list_push(r, key, part));
                if (!comma) break;
                at = comma + 1;
            }
        } else {
            MN_TRY(jinja_sort_key(r, list->items[i], attribute, j_none(), fold, &part));
            MN_TRY(jinja_list_push(r, key, part));
        }
        (*out)[i] = j_list(key);
    }
    return MN_OK;
}

static mn_status sort(jrun *r, const jcall *c, jvalue *out) {
    jlist *list;
    jvalue *keys;
    MN_TRY(jinja_collect(r, c->self, &list));
    MN_TRY(sort_keys(r, list, jinja_arg_or(c, 2, j_none()), !jinja_arg_flag(c, 1, false), &keys));
    MN_TRY(jinja_sort(r, list->items, keys, list->n, jinja_arg_flag(c, 0, false)));
    *out = j_list(list);
    return MN_OK;
}

static mn_status dictsort(jrun *r, const jcall *c, jvalue *out) {
    jlist *list;
    jvalue *keys, by = c->arg[1];
    if (c->self.kind == J_UNDEFINED) return jinja_fail_undefined(r, c->self);
    if (c->self.kind != J_DICT) return jinja_fail(r, "'%s' object has no attribute 'items'", jinja_type(c->self));
    bool by_value = j_is(by, "value");
    if (j_given(by) && !by_value && !j_is(by, "key"))
        return jinja_fail(r, "You can only sort by either \"key\" or \"value\"");
    const jdict *dict = c->self.dict;
    MN_TRY(jinja_list_new(r, dict->n, &list));
    MN_TRY(jinja_alloc(&r->arena, dict->n * sizeof *keys, &keys));
    for (size_t i = 0; i < dict->n; i++) {
        jvalue pair;
        MN_TRY(jinja_pair(r, dict->items[i].key, dict->items[i].value, &pair));
        MN_TRY(jinja_list_push(r, list, pair));
        MN_TRY(jinja_sort_key(r, by_value ? dict->items[i].value : dict->items[i].key, j_none(), j_none(),
                              !jinja_arg_flag(c, 0, false), &keys[i]));
    }
    MN_TRY(jinja_sort(r, list->items, keys, list->n, jinja_arg_flag(c, 2, false)));
    *out = j_list(list);
    return MN_OK;
}

static mn_status push_group(jrun *r, jlist *groups, jvalue key, jlist *members) {
    jvalue pair;
    MN_TRY(jinja_pair(r, key, j_list(members), &pair));
    pair.list->group = true;
    return jinja_list_push(r, groups, pair);
}

static mn_status groupby(jrun *r, const jcall *c, jvalue *out) {
    jlist *list, *groups, *members = NULL;
    jvalue attribute = c->arg[0], fallback = c->arg[1], current = {.kind = J_MISSING}, *keys;
    bool fold = !jinja_arg_flag(c, 2, false), same = false;
    MN_TRY(jinja_collect(r, c->self, &list));
    MN_TRY(jinja_alloc(&r->arena, list->n * sizeof *keys, &keys));
    for (size_t i = 0; i < list->n; i++) MN_TRY(jinja_sort_key(r, list->items[i], attribute, fallback, fold, &keys[i]));
    MN_TRY(jinja_sort(r, list->items, keys, list->n, false));
    MN_TRY(jinja_list_new(r, 0, &groups));
    for (size_t i = 0; i < list->n; i++) {
        jvalue key;
        MN_TRY(jinja_sort_key(r, list->items[i], attribute, fallback, fold, &key));
        same = false;
        if (members) MN_TRY(jinja_equal(r, current, key, &same));
        if (!same) {
            jvalue shown; /* the first member's key as it is written */
            MN_TRY(jinja_list_new(r, 0, &members));
            MN_TRY(jinja_sort_key(r, list->items[i], attribute, fallback, false, &shown));
            MN_TRY(push_group(r, groups, shown, members));
            current = key;
        }
        MN_TRY(jinja_list_push(r, members, list->items[i]));
    }
    *out = j_list(groups);
    return MN_OK;
}

static mn_status extreme(jrun *r, const jcall *c, int op, jvalue *out) {
    jlist *list;
    jvalue best = {.kind = J_MISSING};
    bool fold = !jinja_arg_flag(c, 0, false);
    MN_TRY(jinja_collect(r, c->self, &list));
    if (list->n == 0) return jinja_undefined(r, "No aggregated item, sequence was empty.", NULL, j_none(), out);
    for (size_t i = 0; i < list->n; i++) {
        jvalue key;
        bool better = true;
        MN_TRY(jinja_charge(r, 1));
        MN_TRY(jinja_sort_key(r, list->items[i], c->arg[1], j_none(), fold, &key));
        if (i) MN_TRY(jinja_order(r, op, key, best, &better));
        if (!better) continue;
        best = key;
        *out = list->items[i];
    }
    return MN_OK;
}

static mn_status min(jrun *r, const jcall *c, jvalue *out) {
    return extreme(r, c, '<', out);
}
static mn_status max(jrun *r, const jcall *c, jvalue *out) {
    return extreme(r, c, '>', out);
}

static mn_status sum(jrun *r, const jcall *c, jvalue *out) {
    jlist *list;
    jvalue attribute = jinja_arg_or(c, 0, j_none()), total = jinja_arg_or(c, 1, j_int(0));
    MN_TRY(jinja_collect(r, c->self, &list));
    if (total.kind == J_STRING) return jinja_fail(r, "sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; i < list->n; i++) {
        jvalue item = list->items[i];
        MN_TRY(jinja_charge(r, 1));
        if (attribute.kind != J_NONE) MN_TRY(jinja_sort_key(r, item, attribute, j_none(), false, &item));
        MN_TRY(jinja_add(r, total, item, &total));
    }
    *out = total;
    return MN_OK;
}

const jbuiltin jinja_list_filters[] = {
    {"batch", "linecount,fill_with", 1, 0, batch},
    {"dictsort", "case_sensitive,by,reverse", 0, 0, dictsort},
    {"first", "", 0, 0, first},
    {"groupby", "attribute,default,case_sensitive", 1, 0, groupby},
    {"items", "", 0, 0, items},
    {"last", "", 0, 0, last},
    {"list", "", 0, 0, to_list},
    {"map", "", 0, JB_VARIADIC, map},
    {"max", "case_sensitive,attribute", 0, 0, max},
    {"min", "case_sensitive,attribute", 0, 0, min},
    {"reject", "", 0, JB_VARIADIC, reject},
    {"rejectattr", "", 0, JB_VARIADIC, rejectattr},
    {"reverse", "", 0, 0, reverse},
    {"select", "", 0, JB_VARIADIC, select_},
    {"selectattr", "", 0, JB_VARIADIC, selectattr},
    {"slice", "slices,fill_with", 1, 0, slice},
    {"sort", "reverse,case_sensitive,attribute", 0, 0, sort},
    {"sum", "attribute,start", 0, 0, sum},
    {"unique", "case_sensitive,attribute", 0, 0, unique},
};
const size_t jinja_n_list_filters = sizeof jinja_list_filters / sizeof *jinja_list_filters;
