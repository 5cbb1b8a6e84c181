/* The filter pprint: values as Python's pprint.pformat lays them out, in lines of up to 80 characters.
 * SPDX-License-Identifier: Apache-2.0 */
#include "text/jinja/internal.h"

enum { WIDTH = 80 };

/* ---- on one line ---- */

/* Keys that cannot be compared are ordered by the names of their types. */
static int rank_of(jvalue key) {
    switch (key.kind) {
    case J_NONE: return 0;
    case J_BOOL:
    case J_INT:
    case J_FLOAT: return 1;
    case J_STRING: return 2;
    default: return 3;
    }
}

/* The pairs of a dictionary, as tuples in the order of their keys. */
static mn_status sorted_pairs(jrun *r, const jdict *dict, jlist **out) {
    jlist *keys;
    MN_TRY(jinja_list_new(r, dict->n, &keys));
    MN_TRY(jinja_list_new(r, dict->n, out));
    for (size_t i = 0; i < dict->n; i++) {
        jvalue key, pair;
        MN_TRY(jinja_pair(r, j_int(rank_of(dict->items[i].key)), dict->items[i].key, &key));
        MN_TRY(jinja_pair(r, dict->items[i].key, dict->items[i].value, &pair));
        MN_TRY(jinja_list_push(r, keys, key));
        MN_TRY(jinja_list_push(r, *out, pair));
    }
    return jinja_sort(r, (*out)->items, keys->items, dict->n, false);
}

static bool is_list(jvalue v) {
    return v.kind == J_LIST || (v.kind == J_TUPLE && !v.list->group);
}

static const char *brackets_of(jvalue v) {
    return v.kind == J_LIST ? "[]" : v.kind == J_DICT ? "{}" : "()";
}

static mn_status put_flat(jrun *r, jvalue v);

static mn_status put_flat_items(jrun *r, jvalue v) {
    jlist *items = is_list(v) ? v.list : NULL;
    if (!items) MN_TRY(sorted_pairs(r, v.dict, &items));
    MN_TRY(jinja_put(r, brackets_of(v), 1));
    for (size_t i = 0; i < items->n; i++) {
        if (i) MN_TRY(jinja_put_z(r, ", "));
        const jvalue *pair = v.kind == J_DICT ? items->items[i].list->items : NULL;
        MN_TRY(put_flat(r, pair ? pair[0] : items->items[i]));
        if (pair) MN_TRY(jinja_put_z(r, ": "));
        if (pair) MN_TRY(put_flat(r, pair[1]));
    }
    if (v.kind == J_TUPLE && items->n == 1) MN_TRY(jinja_put_z(r, ","));
    return jinja_put(r, brackets_of(v) + 1, 1);
}

/* repr() with the keys of dictionaries in order. */
static mn_status put_flat(jrun *r, jvalue v) {
    if (!is_list(v) && v.kind != J_DICT) return jinja_put_repr(r, v);
    MN_TRY(jinja_enter(r));
    MN_TRY(put_flat_items(r, v));
    jinja_leave(r);
    return MN_OK;
}

static mn_status flat(jrun *r, jvalue v, jvalue *out) {
    const size_t mark = jinja_mark(r);
    MN_TRY(put_flat(r, v));
    return jinja_cut(r, mark, out);
}

/* ---- on several ---- */

/* Where a value stands: columns before it, characters behind it on its last line, depth. */
typedef struct place {
    int64_t indent, allowance;
    int level;
} place;

static mn_status put_pretty(jrun *r, jvalue v, place at);

static mn_status put_break(jrun *r, int64_t indent) {
    MN_TRY(jinja_put_z(r, "\n"));
    return jinja_put_many(r, " ", 1, indent);
}

/* Each item on a line of its own; `more`: characters behind the last one. */
static mn_status put_items(jrun *r, const jlist *items, bool is_dict, place at, int64_t more) {
    for (size_t i = 0; i < items->n; i++) {
        const bool is_last = i + 1 == items->n;
        place inner = {at.indent + 1, is_last ? at.allowance + more : 1, at.level};
        if (i) MN_TRY(jinja_put_z(r, ","));
        if (i) MN_TRY(put_break(r, at.indent + 1));
        jvalue item = items->items[i];
        if (is_dict) {
            jvalue key;
            MN_TRY(flat(r, item.list->items[0], &key));
            MN_TRY(jinja_put_str(r, key));
            MN_TRY(jinja_put_z(r, ": "));
            inner.indent += (int64_t)key.string->points + 2;
            item = item.list->items[1];
        }
        MN_TRY(put_pretty(r, item, inner));
    }
    return MN_OK;
}

static mn_status put_container(jrun *r, jvalue v, place at) {
    jlist *items = is_list(v) ? v.list : NULL;
    const bool is_single = v.kind == J_TUPLE && items->n == 1;
    if (!items) MN_TRY(sorted_pairs(r, v.dict, &items));
    MN_TRY(jinja_put(r, brackets_of(v), 1));
    MN_TRY(put_items(r, items, v.kind == J_DICT, at, is_single ? 2 : 1));
    if (is_single) MN_TRY(jinja_put_z(r, ","));
    return jinja_put(r, brackets_of(v) + 1, 1);
}

/* ---- long strings ---- */

/* A string that is written as several, which Python joins. */
typedef struct pieces {
    jvalue text;
    jlist *list; /* their repr()s */
    int64_t width, last_width;
} pieces;

static mn_status flat_part(jrun *r, const pieces *p, const char *data, size_t n, jvalue *out) {
    jvalue part;
    MN_TRY(jinja_text_part(r, p->text, data, n, &part));
    return flat(r, part, out);
}

/* The end of a word and the white space behind it. */
static size_t word_end(const jstring *s, size_t at) {
    uint32_t code;
    bool in_blank = false;
    while (at < s->n) { /* charged: by the caller */
        const size_t n = jchar_at(s->data, s->n, at, &code);
        if (in_blank && !jchar_space(code)) break;
        in_blank = jchar_space(code);
        at += n;
    }
    return at;
}

/* A line that is too long is divided behind white space. */
static mn_status divide(jrun *r, pieces *p, const jstring *line, bool is_last) {
    size_t start = 0;
    jvalue shown, current = {.kind = J_MISSING};
    MN_TRY(jinja_charge_text(r, line->n));
    for (size_t at = 0; at < line->n;) {
        const size_t end = word_end(line, at);
        const int64_t width = is_last && end == line->n ? p->last_width : p->width;
        MN_TRY(flat_part(r, p, line->data + start, end - start, &shown));
        if ((int64_t)shown.string->points > width) {
            if (j_given(current)) MN_TRY(jinja_list_push(r, p->list, current));
            start = at;
            MN_TRY(flat_part(r, p, line->data + start, end - start, &shown));
        }
        current = shown;
        at = end;
    }
    return jinja_list_push(r, p->list, current);
}

static mn_status put_string(jrun *r, jvalue v, place at) {
    const jvalue keep = j_bool(true);
    const bool is_whole = at.level == 1; /* the value itself: in parentheses */
    jvalue lines, shown;
    pieces p = {.text = v};
    if (is_whole) at = (place){at.indent + 1, at.allowance + 1, at.level};
    p.width = WIDTH - at.indent;
    p.last_width = p.width - at.allowance;
    MN_TRY(jinja_list_new(r, 0, &p.list));
    MN_TRY(jinja_text_method(r, v, "splitlines", &keep, 1, &lines));
    for (size_t i = 0; i < lines.list->n; i++) {
        const bool is_last = i + 1 == lines.list->n;
        MN_TRY(flat(r, lines.list->items[i], &shown));
        if ((int64_t)shown.string->points <= (is_last ? p.last_width : p.width)) {
            MN_TRY(jinja_list_push(r, p.list, shown));
        } else {
            MN_TRY(divide(r, &p, lines.list->items[i].string, is_last));
        }
    }
    const bool has_brackets = is_whole && p.list->n > 1;
    if (has_brackets) MN_TRY(jinja_put_z(r, "("));
    for (size_t i = 0; i < p.list->n; i++) {
        if (i) MN_TRY(put_break(r, at.indent));
        MN_TRY(jinja_put_str(r, p.list->items[i]));
    }
    return has_brackets ? jinja_put_z(r, ")") : MN_OK;
}

static mn_status put_pretty(jrun *r, jvalue v, place at) {
    jvalue line;
    MN_TRY(flat(r, v, &line));
    const bool fits = (int64_t)line.string->points <= WIDTH - at.indent - at.allowance;
    const bool is_string = v.kind == J_STRING && !v.markup && v.string->n > 0;
    if (fits || (!is_string && !is_list(v) && v.kind != J_DICT)) return jinja_put_str(r, line);
    MN_TRY(jinja_enter(r));
    at.level++;
    MN_TRY(is_string ? put_string(r, v, at) : put_container(r, v, at));
    jinja_leave(r);
    return MN_OK;
}

mn_status jinja_pprint(jrun *r, const jcall *c, jvalue *out) {
    const size_t mark = jinja_mark(r);
    MN_TRY(put_pretty(r, c->self, (place){0}));
    return jinja_cut(r, mark, out);
}
