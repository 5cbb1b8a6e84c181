/* The methods of strings.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/jinja/internal.h"

static const jstring *self_of(const jcall *c) {
    return c->self.string;
}

/* A text argument; a markup string escapes what it is combined with. */
static mn_status text_of(jrun *r, const jcall *c, int i, const jstring **out) {
    *out = NULL;
    MN_TRY(jinja_arg_text(r, c, i, out));
    if (!*out || !c->self.markup) return MN_OK;
    jvalue escaped;
    MN_TRY(jinja_escape(r, c->arg[i], &escaped));
    *out = escaped.string;
    return MN_OK;
}

static mn_status upper(jrun *r, const jcall *c, jvalue *out) {
    return jinja_map_case(r, c->self, JCASE_UPPER, out);
}
static mn_status lower(jrun *r, const jcall *c, jvalue *out) {
    return jinja_map_case(r, c->self, JCASE_LOWER, out);
}
static mn_status title(jrun *r, const jcall *c, jvalue *out) {
    return jinja_map_case(r, c->self, JCASE_TITLE, out);
}

static mn_status casefold(jrun *r, const jcall *c, jvalue *out) {
    return jinja_map_case(r, c->self, JCASE_FOLD, out);
}

static mn_status capitalize(jrun *r, const jcall *c, jvalue *out) {
    const jstring *s = self_of(c);
    uint32_t code;
    bool markup = c->self.markup;
    size_t mark = jinja_mark(r);
    for (size_t at = 0; at < s->n; at += jchar_at(s->data, s->n, at, &code))
        MN_TRY(jchar_put(r, s, at, at ? JCASE_LOWER : JCASE_TITLE));
    MN_TRY(jinja_cut(r, mark, out));
    out->markup = markup;
    return MN_OK;
}

static mn_status swapcase(jrun *r, const jcall *c, jvalue *out) {
    const jstring *s = self_of(c);
    uint32_t code;
    size_t mark = jinja_mark(r);
    for (size_t at = 0; at < s->n;) {
        size_t length = jchar_at(s->data, s->n, at, &code);
        if (jchar_upper(code) || jchar_lower(code)) {
            MN_TRY(jchar_put(r, s, at, jchar_upper(code) ? JCASE_LOWER : JCASE_UPPER));
        } else {
            MN_TRY(jinja_put(r, s->data + at, length));
        }
        at += length;
    }
    return jinja_cut(r, mark, out);
}

static mn_status strip_sides(jrun *r, const jcall *c, bool left, bool right, jvalue *out) {
    const jstring *s = self_of(c), *set = NULL;
    size_t from, to;
    if (j_given(c->arg[0]) && c->arg[0].kind != J_NONE) MN_TRY(text_of(r, c, 0, &set));
    MN_TRY(jinja_strip(&r->arena, s, set, left, right, &from, &to));
    return jinja_text_part(r, c->self, s->data + from, to - from, out);
}

static mn_status strip(jrun *r, const jcall *c, jvalue *out) {
    return strip_sides(r, c, true, true, out);
}
static mn_status lstrip(jrun *r, const jcall *c, jvalue *out) {
    return strip_sides(r, c, true, false, out);
}
static mn_status rstrip(jrun *r, const jcall *c, jvalue *out) {
    return strip_sides(r, c, false, true, out);
}

/* ---- searching ---- */

/* The part of the string that start and end (arguments 1 and 2) select, as byte offsets; false when it is empty because
 * start lies behind the end. */
static mn_status bounds(jrun *r, const jcall *c, size_t *from, size_t *to, bool *possible) {
    const jstring *s = self_of(c);
    int64_t length = (int64_t)s->points, start = 0, end = length;
    if (j_given(c->arg[1]) && c->arg[1].kind != J_NONE) MN_TRY(jinja_arg_int(r, c, 1, &start));
    if (j_given(c->arg[2]) && c->arg[2].kind != J_NONE) MN_TRY(jinja_arg_int(r, c, 2, &end));
    if (start < 0) start = start + length < 0 ? 0 : start + length;
    if (end < 0) end = end + length < 0 ? 0 : end + length;
    if (end > length) end = length;
    *possible = start <= end;
    MN_TRY(jinja_charge_bytes(r, s->n));
    *from = jinja_offset(s, (size_t)(start > length ? length : start));
    *to = *possible ? jinja_offset(s, (size_t)end) : *from;
    return MN_OK;
}

/* The first place of a text, which is not empty, in data[0..n), or NULL. */
static mn_status find_first(jrun *r, const char *data, size_t n, const jstring *part, const char **out) {
    *out = NULL;
    if (part->n > n) return jinja_charge(r, 1);
    *out = memmem(data, n, part->data, part->n);
    return jinja_charge_text(r, *out ? (size_t)(*out - data) + part->n : n);
}

/* The last one. */
static mn_status find_last(jrun *r, const char *data, size_t n, const jstring *part, const char **out) {
    *out = NULL;
    size_t end = part->n > n ? 0 : n - part->n + 1; /* where it begins lies in front of this */
    while (end > 0) {
        const char *at = memrchr(data, part->data[0], end);
        bool same;
        MN_TRY(jinja_charge_bytes(r, at ? end - (size_t)(at - data) : end));
        if (!at) return MN_OK;
        MN_TRY(jinja_same_bytes(r, at, part->data, part->n, &same));
        if (same) {
            *out = at;
            return MN_OK;
        }
        end = (size_t)(at - data);
    }
    return MN_OK;
}

static mn_status search(jrun *r, const jcall *c, bool last, bool must, jvalue *out) {
    const jstring *s = self_of(c), *part;
    size_t from, to;
    bool possible;
    MN_TRY(jinja_arg_text(r, c, 0, &part));
    MN_TRY(bounds(r, c, &from, &to, &possible));
    const char *found = NULL;
    if (possible && part->n == 0) found = s->data + (last ? to : from);
    if (possible && part->n) {
        MN_TRY(last ? find_last(r, s->data + from, to - from, part, &found)
                    : find_first(r, s->data + from, to - from, part, &found));
    }
    if (!found && must) return jinja_fail(r, "substring not found");
    *out = j_int(found ? (int64_t)jinja_count_points(s->data, (size_t)(found - s->data)) : -1);
    return MN_OK;
}

static mn_status find(jrun *r, const jcall *c, jvalue *out) {
    return search(r, c, false, false, out);
}
static mn_status rfind(jrun *r, const jcall *c, jvalue *out) {
    return search(r, c, true, false, out);
}
static mn_status index_of(jrun *r, const jcall *c, jvalue *out) {
    return search(r, c, false, true, out);
}
static mn_status rindex_of(jrun *r, const jcall *c, jvalue *out) {
    return search(r, c, true, true, out);
}

static mn_status count(jrun *r, const jcall *c, jvalue *out) {
    const jstring *s = self_of(c), *part;
    size_t from, to;
    bool possible;
    int64_t n = 0;
    MN_TRY(jinja_arg_text(r, c, 0, &part));
    MN_TRY(bounds(r, c, &from, &to, &possible));
    if (possible && part->n == 0) n = (int64_t)jinja_count_points(s->data + from, to - from) + 1;
    for (const char *at = s->data + from, *end = s->data + to; possible && part->n;) {
        MN_TRY(find_first(r, at, (size_t)(end - at), part, &at));
        if (!at) break;
        at += part->n;
        n++;
    }
    *out = j_int(n);
    return MN_OK;
}

static mn_status has_affix(jrun *r, const jcall *c, bool prefix, jvalue *out) {
    const jstring *s = self_of(c);
    size_t from, to;
    bool possible, found = false;
    const jvalue *options = &c->arg[0];
    size_t n = 1;
    if (options->kind == J_TUPLE) n = options->list->n, options = options->list->items;
    MN_TRY(bounds(r, c, &from, &to, &possible));
    for (size_t i = 0; i < n && !found; i++) {
        if (options[i].kind == J_UNDEFINED) return jinja_fail_undefined(r, options[i]);
        if (options[i].kind != J_STRING) {
            return jinja_fail(r, "%s first arg must be str or a tuple of str, not %s",
                              prefix ? "startswith" : "endswith", jinja_type(options[i]));
        }
        const jstring *part = options[i].string;
        MN_TRY(jinja_charge(r, 1));
        if (possible && part->n <= to - from)
            MN_TRY(jinja_same_bytes(r, prefix ? s->data + from : s->data + to - part->n, part->data, part->n, &found));
    }
    *out = j_bool(found);
    return MN_OK;
}

static mn_status startswith(jrun *r, const jcall *c, jvalue *out) {
    return has_affix(r, c, true, out);
}
static mn_status endswith(jrun *r, const jcall *c, jvalue *out) {
    return has_affix(r, c, false, out);
}

static mn_status remove_affix(jrun *r, const jcall *c, bool prefix, jvalue *out) {
    const jstring *s = self_of(c), *part;
    MN_TRY(text_of(r, c, 0, &part));
    bool found = false;
    if (part->n <= s->n)
        MN_TRY(jinja_same_bytes(r, prefix ? s->data : s->data + s->n - part->n, part->data, part->n, &found));
    size_t cut = found ? part->n : 0;
    return jinja_text_part(r, c->self, s->data + (prefix ? cut : 0), s->n - cut, out);
}

static mn_status removeprefix(jrun *r, const jcall *c, jvalue *out) {
    return remove_affix(r, c, true, out);
}
static mn_status removesuffix(jrun *r, const jcall *c, jvalue *out) {
    return remove_affix(r, c, false, out);
}

/* ---- replacing, splitting, joining ---- */

static mn_status replace(jrun *r, const jcall *c, jvalue *out) {
    const jstring *s = self_of(c), *old, *with;
    int64_t limit = -1;
    bool markup = c->self.markup;
    MN_TRY(jinja_arg_text(r, c, 0, &old));
    MN_TRY(text_of(r, c, 1, &with));
    MN_TRY(jinja_arg_int(r, c, 2, &limit));
    size_t at = 0, mark = jinja_mark(r);
    while (limit != 0) {
        const char *found = s->data + at;
        if (old->n) MN_TRY(find_first(r, s->data + at, s->n - at, old, &found));
        if (!found) break;
        MN_TRY(jinja_put(r, s->data + at, (size_t)(found - s->data) - at));
        MN_TRY(jinja_put(r, with->data, with->n));
        at = (size_t)(found - s->data) + old->n;
        limit -= limit > 0;
        if (old->n) continue;
        if (at >= s->n) break;
        uint32_t code;
        size_t length = jchar_at(s->data, s->n, at, &code);
        MN_TRY(jinja_put(r, s->data + at, length));
        at += length;
    }
    MN_TRY(jinja_put(r, s->data + at, s->n - at));
    MN_TRY(jinja_cut(r, mark, out));
    out->markup = markup;
    return MN_OK;
}

static mn_status push_part(jrun *r, const jcall *c, jlist *list, size_t from, size_t to) {
    jvalue part;
    MN_TRY(jinja_text_part(r, c->self, self_of(c)->data + from, to - from, &part));
    return jinja_list_push(r, list, part);
}

static void reverse_items(jlist *list) {
    for (size_t i = 0; i < list->n / 2; i++) { /* charged: each item when it was pushed */
        jvalue swap = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = swap;
    }
}

/* Splits at runs of white space, which are also removed at the ends. */
static mn_status split_space(jrun *r, const jcall *c, int64_t limit, jlist *list) {
    const jstring *s = self_of(c);
    uint32_t code;
    MN_TRY(jinja_charge_text(r, s->n));
    for (size_t at = 0;;) {                                                          /* charged: above, and each part */
        while (at < s->n && (jchar_at(s->data, s->n, at, &code), jchar_space(code))) /* charged: above */
            at += jchar_at(s->data, s->n, at, &code);
        if (at >= s->n) return MN_OK;
        size_t start = at;
        if (limit == 0) return push_part(r, c, list, start, s->n);
        while (at < s->n && (jchar_at(s->data, s->n, at, &code), !jchar_space(code))) /* charged: above */
            at += jchar_at(s->data, s->n, at, &code);
        MN_TRY(push_part(r, c, list, start, at));
        limit -= limit > 0;
    }
}

static size_t point_before(const jstring *s, size_t at) {
    do at--;
    while (at > 0 && ((unsigned char)s->data[at] & 0xC0) == 0x80); /* bounded: a character has four bytes */
    return at;
}

static mn_status rsplit_space(jrun *r, const jcall *c, int64_t limit, jlist *list) {
    const jstring *s = self_of(c);
    uint32_t code;
    MN_TRY(jinja_charge_text(r, s->n));
    for (size_t at = s->n;;) { /* charged: above, and each part */
        while (at > 0 && (jchar_at(s->data, s->n, point_before(s, at), &code), jchar_space(code))) /* charged: above */
            at = point_before(s, at);
        if (at == 0) return MN_OK;
        size_t end = at;
        if (limit == 0) return push_part(r, c, list, 0, end);
        while (at > 0 && (jchar_at(s->data, s->n, point_before(s, at), &code), !jchar_space(code))) /* charged: above */
            at = point_before(s, at);
        MN_TRY(push_part(r, c, list, at, end));
        limit -= limit > 0;
    }
}

static mn_status split_text(jrun *r, const jcall *c, const jstring *mark, int64_t limit, bool last, jlist *list) {
    const jstring *s = self_of(c);
    size_t from = 0, to = s->n;
    while (limit != 0) {
        const char *found;
        MN_TRY(last ? find_last(r, s->data, to, mark, &found)
                    : find_first(r, s->data + from, s->n - from, mark, &found));
        if (!found) break;
        size_t at = (size_t)(found - s->data);
        MN_TRY(last ? push_part(r, c, list, at + mark->n, to) : push_part(r, c, list, from, at));
        if (last) {
            to = at;
        } else {
            from = at + mark->n;
        }
        limit -= limit > 0;
    }
    return push_part(r, c, list, from, to);
}

static mn_status split_at(jrun *r, const jcall *c, bool last, jvalue *out) {
    const jstring *mark = NULL;
    int64_t limit = -1;
    jlist *list;
    if (j_given(c->arg[0]) && c->arg[0].kind != J_NONE) MN_TRY(jinja_arg_text(r, c, 0, &mark));
    MN_TRY(jinja_arg_int(r, c, 1, &limit));
    MN_TRY(jinja_list_new(r, 0, &list));
    if (mark && mark->n == 0) return jinja_fail(r, "empty separator");
    MN_TRY(mark   ? split_text(r, c, mark, limit, last, list)
           : last ? rsplit_space(r, c, limit, list)
                  : split_space(r, c, limit, list));
    if (last) reverse_items(list);
    *out = j_list(list);
    return MN_OK;
}

static mn_status split(jrun *r, const jcall *c, jvalue *out) {
    return split_at(r, c, false, out);
}
static mn_status rsplit(jrun *r, const jcall *c, jvalue *out) {
    return split_at(r, c, true, out);
}

static bool ends_line(uint32_t c) {
    return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

static mn_status splitlines(jrun *r, const jcall *c, jvalue *out) {
    const jstring *s = self_of(c);
    bool keep = jinja_arg_flag(c, 0, false);
    jlist *list;
    uint32_t code;
    MN_TRY(jinja_charge_text(r, s->n));
    MN_TRY(jinja_list_new(r, 0, &list));
    for (size_t start = 0; start < s->n;) { /* charged: above, and each part */
        size_t at = start, length = 0;
        for (; at < s->n; at += length) { /* charged: above */
            length = jchar_at(s->data, s->n, at, &code);
            if (ends_line(code)) break;
        }
        size_t next = at < s->n ? at + length : at;
        if (at < s->n && code == '\r' && next < s->n && s->data[next] == '\n') next++;
        MN_TRY(push_part(r, c, list, start, keep ? next : at));
        start = next;
    }
    *out = j_list(list);
    return MN_OK;
}

static mn_status partition_at(jrun *r, const jcall *c, bool last, jvalue *out) {
    const jstring *s = self_of(c), *mark;
    jlist *list;
    MN_TRY(jinja_arg_text(r, c, 0, &mark));
    if (mark->n == 0) return jinja_fail(r, "empty separator");
    const char *found;
    MN_TRY(last ? find_last(r, s->data, s->n, mark, &found) : find_first(r, s->data, s->n, mark, &found));
    size_t at = found ? (size_t)(found - s->data) : last ? 0 : s->n, behind = found ? at + mark->n : at;
    MN_TRY(jinja_list_new(r, 3, &list));
    MN_TRY(push_part(r, c, list, 0, at));
    MN_TRY(push_part(r, c, list, at, behind));
    MN_TRY(push_part(r, c, list, behind, s->n));
    *out = j_tuple(list);
    return MN_OK;
}

static mn_status partition(jrun *r, const jcall *c, jvalue *out) {
    return partition_at(r, c, false, out);
}
static mn_status rpartition(jrun *r, const jcall *c, jvalue *out) {
    return partition_at(r, c, true, out);
}

static mn_status join(jrun *r, const jcall *c, jvalue *out) {
    jlist *items;
    bool markup = c->self.markup;
    size_t mark = jinja_mark(r);
    MN_TRY(jinja_collect(r, c->arg[0], &items));
    for (size_t i = 0; i < items->n; i++) {
        jvalue item = items->items[i];
        if (markup) MN_TRY(jinja_escape(r, item, &item));
        if (item.kind != J_STRING)
            return jinja_fail(r, "sequence item %zu: expected str instance, %s found", i, jinja_type(item));
        if (i) MN_TRY(jinja_put_str(r, c->self));
        MN_TRY(jinja_put_str(r, item));
    }
    MN_TRY(jinja_cut(r, mark, out));
    out->markup = markup;
    return MN_OK;
}

/* ---- padding ---- */

static mn_status pad_to(jrun *r, const jcall *c, char align, jvalue *out) {
    const jstring *s = self_of(c), *fill = NULL;
    static const jstring blank = {" ", 1, 1};
    int64_t width = 0;
    MN_TRY(jinja_arg_int(r, c, 0, &width));
    MN_TRY(jinja_arg_text(r, c, 1, &fill));
    if (!fill) fill = &blank;
    if (fill->points != 1) return jinja_fail(r, "The fill character must be exactly one character long");
    int64_t missing = width > 0 ? width - (int64_t)s->points : 0;
    if (missing <= 0) return jinja_text_part(r, c->self, s->data, s->n, out);
    int64_t before = align == '<' ? 0 : align == '>' ? missing : missing / 2 + (missing & width & 1);
    bool markup = c->self.markup;
    size_t mark = jinja_mark(r);
    MN_TRY(jinja_put_many(r, fill->data, fill->n, before));
    MN_TRY(jinja_put(r, s->data, s->n));
    MN_TRY(jinja_put_many(r, fill->data, fill->n, missing - before));
    MN_TRY(jinja_cut(r, mark, out));
    out->markup = markup;
    return MN_OK;
}

static mn_status ljust(jrun *r, const jcall *c, jvalue *out) {
    return pad_to(r, c, '<', out);
}
static mn_status rjust(jrun *r, const jcall *c, jvalue *out) {
    return pad_to(r, c, '>', out);
}
static mn_status center(jrun *r, const jcall *c, jvalue *out) {
    return pad_to(r, c, '^', out);
}

static mn_status zfill(jrun *r, const jcall *c, jvalue *out) {
    const jstring *s = self_of(c);
    int64_t width = 0;
    MN_TRY(jinja_arg_int(r, c, 0, &width));
    int64_t missing = width > 0 ? width - (int64_t)s->points : 0;
    size_t sign = s->n && (s->data[0] == '-' || s->data[0] == '+'), mark = jinja_mark(r);
    MN_TRY(jinja_put(r, s->data, sign));
    MN_TRY(jinja_put_many(r, "0", 1, missing));
    MN_TRY(jinja_put(r, s->data + sign, s->n - sign));
    return jinja_cut(r, mark, out);
}

static mn_status expandtabs(jrun *r, const jcall *c, jvalue *out) {
    const jstring *s = self_of(c);
    int64_t size = 8, column = 0;
    size_t mark = jinja_mark(r);
    MN_TRY(jinja_arg_int(r, c, 0, &size));
    for (size_t i = 0; i < s->n; i++) {
        if (s->data[i] == '\t') {
            int64_t blanks = size > 0 ? size - column % size : 0;
            MN_TRY(jinja_put_many(r, " ", 1, blanks));
            column += blanks;
        } else {
            MN_TRY(jinja_put(r, s->data + i, 1));
            column += ((unsigned char)s->data[i] & 0xC0) != 0x80;
            if (s->data[i] == '\n' || s->data[i] == '\r') column = 0;
        }
    }
    return jinja_cut(r, mark, out);
}

/* ---- properties ---- */

static mn_status all_are(const jcall *c, bool (*property)(uint32_t), bool empty, jvalue *out) {
    const jstring *s = self_of(c);
    uint32_t code;
    bool all = s->n > 0 || empty;
    for (size_t at = 0; at < s->n && all; at += jchar_at(s->data, s->n, at, &code)) { /* charged: by the caller */
        jchar_at(s->data, s->n, at, &code);
        all = property(code);
    }
    *out = j_bool(all);
    return MN_OK;
}

static bool is_alnum(uint32_t c) {
    return jchar_alpha(c) || jchar_decimal(c) || jchar_digit(c) || jchar_numeric(c);
}
static bool is_ascii(uint32_t c) {
    return c < 0x80;
}

#define PROPERTY(name, property, empty)                                                                                \
    static mn_status name(jrun *r, const jcall *c, jvalue *out) {                                                      \
        MN_TRY(jinja_charge_text(r, c->self.string->n));                                                               \
        return all_are(c, property, empty, out);                                                                       \
    }
PROPERTY(isalpha_, jchar_alpha, false)
PROPERTY(isalnum_, is_alnum, false)
PROPERTY(isascii_, is_ascii, true)
PROPERTY(isdecimal_, jchar_decimal, false)
PROPERTY(isdigit_, jchar_digit, false)
PROPERTY(isnumeric_, jchar_numeric, false)
PROPERTY(isspace_, jchar_space, false)
PROPERTY(isprintable_, jchar_printable, true)

/* Whether all cased characters, of which there is at least one, are of one case. */
static mn_status one_case(const jcall *c, bool want_upper, jvalue *out) {
    const jstring *s = self_of(c);
    uint32_t code;
    bool some = false, wrong = false;
    for (size_t at = 0; at < s->n; at += jchar_at(s->data, s->n, at, &code)) { /* charged: by the caller */
        jchar_at(s->data, s->n, at, &code);
        some |= want_upper ? jchar_upper(code) : jchar_lower(code);
        wrong |= jchar_title(code) || (want_upper ? jchar_lower(code) : jchar_upper(code));
    }
    *out = j_bool(some && !wrong);
    return MN_OK;
}

static mn_status isupper_(jrun *r, const jcall *c, jvalue *out) {
    MN_TRY(jinja_charge_text(r, c->self.string->n));
    return one_case(c, true, out);
}

static mn_status islower_(jrun *r, const jcall *c, jvalue *out) {
    MN_TRY(jinja_charge_text(r, c->self.string->n));
    return one_case(c, false, out);
}

static mn_status istitle_(jrun *r, const jcall *c, jvalue *out) {
    const jstring *s = self_of(c);
    uint32_t code;
    bool some = false, right = true, inside = false;
    MN_TRY(jinja_charge_text(r, s->n));
    for (size_t at = 0; at < s->n && right; at += jchar_at(s->data, s->n, at, &code)) { /* charged: above */
        jchar_at(s->data, s->n, at, &code);
        bool big = jchar_upper(code) || jchar_title(code), small = jchar_lower(code);
        if (big) right = !inside;
        if (small) right = inside;
        inside = big || small;
        some |= inside;
    }
    *out = j_bool(some && right);
    return MN_OK;
}

static mn_status isidentifier_(jrun *r, const jcall *c, jvalue *out) {
    const jstring *s = self_of(c);
    uint32_t code;
    bool right = s->n > 0;
    MN_TRY(jinja_charge_text(r, s->n));
    for (size_t at = 0; at < s->n && right; at += jchar_at(s->data, s->n, at, &code)) { /* charged: above */
        jchar_at(s->data, s->n, at, &code);
        right = jchar_identifier(code, at == 0);
    }
    *out = j_bool(right);
    return MN_OK;
}

static mn_status format(jrun *r, const jcall *c, jvalue *out) {
    return jinja_format_call(r, c->self, &c->given, out);
}

static mn_status unsupported(jrun *r, const jcall *c, jvalue *out) {
    (void)c;
    (void)out;
    MN_FAIL(MN_E_UNSUPPORTED, "chat template: line %d: byte strings and translation tables are not supported",
            r->arena.line);
}

enum { P = JB_POSITIONAL, V = JB_VARIADIC };

const jbuiltin jinja_string_methods[] = {
    {"upper", "", 0, P, upper},
    {"lower", "", 0, P, lower},
    {"title", "", 0, P, title},
    {"casefold", "", 0, P, casefold},
    {"capitalize", "", 0, P, capitalize},
    {"swapcase", "", 0, P, swapcase},
    {"strip", "chars", 0, P, strip},
    {"lstrip", "chars", 0, P, lstrip},
    {"rstrip", "chars", 0, P, rstrip},
    {"find", "sub,start,end", 1, P, find},
    {"rfind", "sub,start,end", 1, P, rfind},
    {"index", "sub,start,end", 1, P, index_of},
    {"rindex", "sub,start,end", 1, P, rindex_of},
    {"count", "sub,start,end", 1, P, count},
    {"startswith", "prefix,start,end", 1, P, startswith},
    {"endswith", "suffix,start,end", 1, P, endswith},
    {"removeprefix", "prefix", 1, P, removeprefix},
    {"removesuffix", "suffix", 1, P, removesuffix},
    {"replace", "old,new,count", 2, P, replace},
    {"split", "sep,maxsplit", 0, 0, split},
    {"rsplit", "sep,maxsplit", 0, 0, rsplit},
    {"splitlines", "keepends", 0, 0, splitlines},
    {"partition", "sep", 1, P, partition},
    {"rpartition", "sep", 1, P, rpartition},
    {"join", "iterable", 1, P, join},
    {"ljust", "width,fillchar", 1, P, ljust},
    {"rjust", "width,fillchar", 1, P, rjust},
    {"center", "width,fillchar", 1, P, center},
    {"zfill", "width", 1, P, zfill},
    {"expandtabs", "tabsize", 0, 0, expandtabs},
    {"isalpha", "", 0, P, isalpha_},
    {"isalnum", "", 0, P, isalnum_},
    {"isascii", "", 0, P, isascii_},
    {"isdecimal", "", 0, P, isdecimal_},
    {"isdigit", "", 0, P, isdigit_},
    {"isnumeric", "", 0, P, isnumeric_},
    {"isspace", "", 0, P, isspace_},
    {"isprintable", "", 0, P, isprintable_},
    {"isupper", "", 0, P, isupper_},
    {"islower", "", 0, P, islower_},
    {"istitle", "", 0, P, istitle_},
    {"isidentifier", "", 0, P, isidentifier_},
    {"format", "", 0, V, format},
    {"encode", "", 0, V, unsupported},
    {"translate", "", 0, V, unsupported},
    {"maketrans", "", 0, V, unsupported},
};
const size_t jinja_n_string_methods = sizeof jinja_string_methods / sizeof *jinja_string_methods;
