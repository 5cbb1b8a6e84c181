/* Iteration: one `next` for every iterable value, conversion to lists, stable sorting.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/jinja/internal.h"

mn_status jinja_iter_new(jrun *r, mn_status (*next)(jrun *, jiter *, jvalue *, bool *), jiter **out) {
    MN_TRY(jinja_alloc(&r->arena, sizeof **out, out));
    **out = (jiter){.next = next, .type = "generator"};
    return MN_OK;
}

mn_status jinja_next(jrun *r, jiter *it, jvalue *item, bool *more) {
    MN_TRY(jinja_charge(r, 1));
    MN_TRY(jinja_enter(r));
    MN_TRY(it->next(r, it, item, more));
    jinja_leave(r);
    return MN_OK;
}

static mn_status next_nothing(jrun *r, jiter *it, jvalue *item, bool *more) {
    (void)r;
    (void)it;
    *item = j_none();
    *more = false;
    return MN_OK;
}

static mn_status next_list(jrun *r, jiter *it, jvalue *item, bool *more) {
    const jlist *list = it->source.list;
    *more = it->at < list->n;
    (void)r;
    if (*more) *item = list->items[it->at++];
    return MN_OK;
}

static mn_status next_range(jrun *r, jiter *it, jvalue *item, bool *more) {
    *more = (int64_t)it->at < it->source.range->n;
    (void)r;
    if (*more) *item = j_int(jinja_range_item(it->source.range, (int64_t)it->at++));
    return MN_OK;
}

static mn_status next_character(jrun *r, jiter *it, jvalue *item, bool *more) {
    const jstring *s = it->source.string;
    uint32_t code;
    *more = it->at < s->n;
    if (!*more) return MN_OK;
    size_t length = jchar_at(s->data, s->n, it->at, &code), at = it->at;
    it->at += length;
    return jinja_text_part(r, (jvalue){.kind = J_STRING}, s->data + at, length, item);
}

static mn_status next_key(jrun *r, jiter *it, jvalue *item, bool *more) {
    const jdict *dict = it->source.kind == J_DICT ? it->source.dict : it->source.view->dict;
    jview_kind kind = it->source.kind == J_DICT ? JVIEW_KEYS : it->source.view->kind;
    *more = it->at < dict->n;
    if (!*more) return MN_OK;
    const jpair *pair = &dict->items[it->at++];
    if (kind == JVIEW_ITEMS) return jinja_pair(r, pair->key, pair->value, item);
    *item = kind == JVIEW_KEYS ? pair->key : pair->value;
    return MN_OK;
}

mn_status jinja_iter(jrun *r, jvalue v, jiter **out) {
    mn_status (*next)(jrun *, jiter *, jvalue *, bool *);
    switch (v.kind) {
    case J_ITERATOR: *out = v.iterator; return MN_OK;
    case J_UNDEFINED: next = next_nothing; break;
    case J_LIST:
    case J_TUPLE: next = next_list; break;
    case J_RANGE: next = next_range; break;
    case J_STRING: next = next_character; break;
    case J_DICT:
    case J_VIEW: next = next_key; break;
    default: return jinja_fail(r, "'%s' object is not iterable", jinja_type(v));
    }
    MN_TRY(jinja_iter_new(r, next, out));
    (*out)->source = v;
    return MN_OK;
}

mn_status jinja_iter_list(jrun *r, jlist *list, jiter **out) {
    return jinja_iter(r, j_list(list), out);
}

mn_status jinja_collect(jrun *r, jvalue v, jlist **out) {
    jiter *it;
    int64_t length = 0;
    MN_TRY(jinja_iter(r, v, &it));
    jinja_length(v, &length);
    MN_TRY(jinja_list_new(r, (size_t)length, out));
    for (bool more = true;;) {
        jvalue item;
        MN_TRY(jinja_next(r, it, &item, &more));
        if (!more) return MN_OK;
        MN_TRY(jinja_list_push(r, *out, item));
    }
}

typedef struct sorted {
    jvalue key, item;
} sorted;

/* Merges from[lo..middle) and from[middle..hi) into to[lo..hi). */
static mn_status merge(jrun *r, const sorted *from, sorted *to, size_t lo, size_t middle, size_t hi, bool reverse) {
    size_t left = lo, right = middle;
    for (size_t i = lo; i < hi; i++) {
        bool take_right = left >= middle;
        MN_TRY(jinja_charge(r, 1));
        if (!take_right && right < hi) {
            const jvalue *a = &from[left].key, *b = &from[right].key;
            MN_TRY(jinja_order(r, '<', reverse ? *a : *b, reverse ? *b : *a, &take_right));
        }
        to[i] = from[take_right ? right++ : left++];
    }
    return MN_OK;
}

mn_status jinja_sort(jrun *r, jvalue *items, const jvalue *keys, size_t n, bool reverse) {
    sorted *from, *to;
    MN_TRY(jinja_charge(r, n));
    MN_TRY(jinja_alloc(&r->arena, n * sizeof *from, &from));
    MN_TRY(jinja_alloc(&r->arena, n * sizeof *to, &to));
    for (size_t i = 0; i < n; i++) /* charged: above */
        from[i] = (sorted){keys[i], items[i]};
    for (size_t width = 1; width < n; width *= 2) {    /* charged: each merge */
        for (size_t lo = 0; lo < n; lo += 2 * width) { /* charged: each merge */
            size_t middle = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
            MN_TRY(merge(r, from, to, lo, middle, hi, reverse));
        }
        sorted *swap = from;
        from = to;
        to = swap;
    }
    for (size_t i = 0; i < n; i++) /* charged: above */
        items[i] = from[i].item;
    return MN_OK;
}

/* One part of an attribute path: digits are an index. */
static mn_status part_of(jrun *r, const char *data, size_t n, jvalue *out) {
    int64_t index;
    const jstring text = {data, n, n};
    bool digits = n > 0 && n < 128 && strspn(data, "0123456789") >= n;
    if (digits && jinja_read_int(&text, 10, &index)) {
        *out = j_int(index);
        return MN_OK;
    }
    *out = (jvalue){.kind = J_STRING};
    return jinja_string_wrap(&r->arena, data, n, &out->string);
}

mn_status jinja_sort_key(jrun *r, jvalue item, jvalue attribute, jvalue fallback, bool fold, jvalue *out) {
    MN_TRY(jinja_charge(r, 1));
    bool path = attribute.kind == J_STRING;
    const char *at = path ? attribute.string->data : NULL, *end = path ? at + attribute.string->n : NULL;
    bool more = path || (j_given(attribute) && attribute.kind != J_NONE);
    while (more) {
        MN_TRY(jinja_charge(r, 1));
        jvalue part = attribute;
        const char *point = NULL;
        if (path) {
            point = at < end ? memchr(at, '.', (size_t)(end - at)) : NULL;
            char *copy; /* part_of wants a terminated text */
            size_t n = (size_t)((point ? point : end) - at);
            MN_TRY(jinja_alloc(&r->arena, n + 1, &copy));
            if (n) memcpy(copy, at, n);
            copy[n] = 0;
            MN_TRY(part_of(r, copy, n, &part));
        }
        MN_TRY(jinja_item(r, item, part, &item));
        if (item.kind == J_UNDEFINED && j_given(fallback) && fallback.kind != J_NONE) item = fallback;
        more = point != NULL;
        at = point ? point + 1 : end;
    }
    *out = item;
    return fold && item.kind == J_STRING ? jinja_map_case(r, item, JCASE_LOWER, out) : MN_OK;
}
