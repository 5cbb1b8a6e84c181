/* Filters whose subject is text.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "text/jinja/internal.h"

/* str(value), with markup kept as it is. */
static mn_status soft(jrun *r, const jcall *c, jvalue *out) {
    return jinja_str(r, c->self, out);
}

mn_status jinja_text_method(jrun *r, jvalue text, const char *name, const jvalue *args, size_t n, jvalue *out) {
    const jstring key = {name, strlen(name), strlen(name)};
    const jargs given = {.items = args, .n = n};
    return jinja_call_builtin(r, jinja_find(jinja_string_methods, jinja_n_string_methods, &key), text, &given, out);
}

static mn_status upper(jrun *r, const jcall *c, jvalue *out) {
    jvalue text;
    MN_TRY(soft(r, c, &text));
    return jinja_map_case(r, text, JCASE_UPPER, out);
}

static mn_status lower(jrun *r, const jcall *c, jvalue *out) {
    jvalue text;
    MN_TRY(soft(r, c, &text));
    return jinja_map_case(r, text, JCASE_LOWER, out);
}

static mn_status capitalize(jrun *r, const jcall *c, jvalue *out) {
    jvalue text;
    MN_TRY(soft(r, c, &text));
    return jinja_text_method(r, text, "capitalize", NULL, 0, out);
}

/* Words start behind blanks, hyphens and opening brackets; unlike str.title(), not behind apostrophes. */
static mn_status title(jrun *r, const jcall *c, jvalue *out) {
    jvalue text;
    bool start = true;
    uint32_t code;
    size_t mark = jinja_mark(r);
    MN_TRY(soft(r, c, &text));
    const jstring *s = text.string;
    for (size_t at = 0, word = 0; at < s->n;) {
        size_t length = jchar_at(s->data, s->n, at, &code);
        bool separator = jchar_space(code) || (code < 0x80 && strchr("-({[<", (int)code) && code);
        if (separator) {
            MN_TRY(jinja_put(r, s->data + at, length));
        } else if (start) {
            word = at;
            MN_TRY(jchar_put(r, s, at, JCASE_UPPER));
        } else { /* the rest of a word is lowered on its own, without its first letter */
            uint32_t first;
            size_t skip = jchar_at(s->data, s->n, word, &first);
            const jstring rest = {s->data + word + skip, s->n - word - skip, 0};
            MN_TRY(jchar_put(r, &rest, at - word - skip, JCASE_LOWER));
        }
        start = separator;
        at += length;
    }
    return jinja_cut(r, mark, out);
}

static mn_status trim(jrun *r, const jcall *c, jvalue *out) {
    jvalue text;
    MN_TRY(soft(r, c, &text));
    return jinja_text_method(r, text, "strip", c->arg, j_given(c->arg[0]), out);
}

static mn_status plain(jrun *r, jvalue v, jvalue *out) {
    MN_TRY(jinja_str(r, v, out));
    out->markup = false;
    return MN_OK;
}

static mn_status replace(jrun *r, const jcall *c, jvalue *out) {
    jvalue text, args[3];
    MN_TRY(plain(r, c->self, &text));
    MN_TRY(plain(r, c->arg[0], &args[0]));
    MN_TRY(plain(r, c->arg[1], &args[1]));
    args[2] = jinja_arg_or(c, 2, j_none());
    if (args[2].kind == J_NONE) args[2] = j_int(-1);
    return jinja_text_method(r, text, "replace", args, 3, out);
}

static mn_status join(jrun *r, const jcall *c, jvalue *out) {
    jvalue separator, item;
    jiter *it;
    bool more = true;
    size_t mark = jinja_mark(r);
    MN_TRY(jinja_text_z(r, "", &separator));
    MN_TRY(jinja_str(r, jinja_arg_or(c, 0, separator), &separator));
    MN_TRY(jinja_iter(r, c->self, &it));
    jvalue attribute = jinja_arg_or(c, 1, j_none());
    for (bool first = true;; first = false) {
        MN_TRY(jinja_next(r, it, &item, &more));
        if (!more) return jinja_cut(r, mark, out);
        if (attribute.kind != J_NONE) MN_TRY(jinja_sort_key(r, item, attribute, j_none(), false, &item));
        if (!first) MN_TRY(jinja_put_str(r, separator));
        MN_TRY(jinja_put_str(r, item));
    }
}

/* Joins the lines of a list, each but the first (unless `first`) behind the indentation. */
static mn_status indent_lines(jrun *r, const jlist *lines, jvalue indention, bool first, bool blank) {
    for (size_t i = 0; i < lines->n; i++) {
        if (i) MN_TRY(jinja_put_z(r, "\n"));
        bool is_indented = i == 0 ? first : blank || lines->items[i].string->n > 0;
        if (is_indented) MN_TRY(jinja_put_str(r, indention));
        MN_TRY(jinja_put_str(r, lines->items[i]));
    }
    return MN_OK;
}

static mn_status indent(jrun *r, const jcall *c, jvalue *out) {
    jvalue indention = jinja_arg_or(c, 0, j_int(4)), newline, text, lines;
    bool markup = c->self.kind == J_STRING && c->self.markup;
    if (indention.kind != J_STRING) {
        jvalue blank;
        MN_TRY(jinja_text_z(r, " ", &blank));
        MN_TRY(jinja_arithmetic(r, '*', blank, indention, &indention));
    }
    MN_TRY(jinja_text_z(r, "\n", &newline));
    newline.markup = markup;
    MN_TRY(jinja_add(r, c->self, newline, &text));
    MN_TRY(jinja_text_method(r, text, "splitlines", NULL, 0, &lines));
    size_t mark = jinja_mark(r);
    MN_TRY(indent_lines(r, lines.list, indention, jinja_arg_flag(c, 1, false), jinja_arg_flag(c, 2, false)));
    MN_TRY(jinja_cut(r, mark, out));
    out->markup = markup;
    return MN_OK;
}

static mn_status escape(jrun *r, const jcall *c, jvalue *out) {
    return jinja_escape(r, c->self, out);
}

static mn_status forceescape(jrun *r, const jcall *c, jvalue *out) {
    jvalue text;
    MN_TRY(plain(r, c->self, &text));
    return jinja_escape(r, text, out);
}

static mn_status safe(jrun *r, const jcall *c, jvalue *out) {
    MN_TRY(soft(r, c, out));
    out->markup = true;
    return MN_OK;
}

static mn_status center(jrun *r, const jcall *c, jvalue *out) {
    jvalue text, width = jinja_arg_or(c, 0, j_int(80));
    MN_TRY(soft(r, c, &text));
    return jinja_text_method(r, text, "center", &width, 1, out);
}

static mn_status truncate(jrun *r, const jcall *c, jvalue *out) {
    int64_t length = 255, leeway = 5, points;
    static const jstring dots = {"...", 3, 3};
    const jstring *end = &dots;
    MN_TRY(jinja_arg_int(r, c, 0, &length));
    MN_TRY(jinja_arg_text(r, c, 2, &end));
    if (j_given(c->arg[3]) && c->arg[3].kind != J_NONE) MN_TRY(jinja_arg_int(r, c, 3, &leeway));
    if (length < (int64_t)end->points)
        return jinja_fail(r, "expected length >= %zu, got %lld", end->points, (long long)length);
    if (leeway < 0) return jinja_fail(r, "expected leeway >= 0, got %lld", (long long)leeway);
    MN_TRY(jinja_length_of(r, c->self, &points));
    *out = c->self;
    if (points <= length || points - length <= leeway) return MN_OK;
    if (c->self.kind != J_STRING) return jinja_fail(r, "truncate wants a string, not %s", jinja_type(c->self));
    const jstring *s = c->self.string;
    MN_TRY(jinja_charge_bytes(r, s->n));
    size_t n = jinja_offset(s, (size_t)(length - (int64_t)end->points));
    if (!jinja_arg_flag(c, 1, false)) {
        const char *blank = memrchr(s->data, ' ', n);
        if (blank) n = (size_t)(blank - s->data);
    }
    jvalue head, tail = j_string(end, false);
    MN_TRY(jinja_text_part(r, c->self, s->data, n, &head));
    return jinja_add(r, head, tail, out);
}

static mn_status wordcount(jrun *r, const jcall *c, jvalue *out) {
    jvalue text;
    int64_t n = 0;
    bool inside = false;
    uint32_t code;
    MN_TRY(soft(r, c, &text));
    MN_TRY(jinja_charge_text(r, text.string->n));
    for (size_t at = 0; at < text.string->n;) { /* charged: above */
        at += jchar_at(text.string->data, text.string->n, at, &code);
        bool word = code == '_' || jchar_alpha(code) || jchar_numeric(code);
        n += word && !inside;
        inside = word;
    }
    *out = j_int(n);
    return MN_OK;
}

static mn_status put_quoted(jrun *r, jvalue v, bool query) {
    MN_TRY(jinja_str(r, v, &v));
    for (size_t i = 0; i < v.string->n; i++) {
        char ch = v.string->data[i];
        bool keep = (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') ||
                    (ch && strchr("_.-~", ch)) || (ch == '/' && !query);
        if (keep) {
            MN_TRY(jinja_put(r, &ch, 1));
        } else if (ch == ' ' && query) {
            MN_TRY(jinja_put_z(r, "+"));
        } else {
            MN_TRY(jinja_charge(r, 1));
            MN_TRY(jinja_printf(r, "%%%02X", (unsigned char)ch));
        }
    }
    return MN_OK;
}

static mn_status put_query(jrun *r, jvalue pairs) {
    jiter *it;
    bool more = true;
    if (pairs.kind == J_DICT) {
        jview *view;
        MN_TRY(jinja_alloc(&r->arena, sizeof *view, &view));
        *view = (jview){pairs.dict, JVIEW_ITEMS};
        pairs = (jvalue){.kind = J_VIEW, .view = view};
    }
    MN_TRY(jinja_iter(r, pairs, &it));
    for (bool first = true;; first = false) {
        jvalue item;
        jlist *pair;
        MN_TRY(jinja_next(r, it, &item, &more));
        if (!more) return MN_OK;
        MN_TRY(jinja_collect(r, item, &pair));
        if (pair->n != 2) return jinja_fail(r, "not a pair: %zu values", pair->n);
        if (!first) MN_TRY(jinja_put_z(r, "&"));
        MN_TRY(put_quoted(r, pair->items[0], true));
        MN_TRY(jinja_put_z(r, "="));
        MN_TRY(put_quoted(r, pair->items[1], true));
    }
}

static mn_status urlencode(jrun *r, const jcall *c, jvalue *out) {
    bool pairs = c->self.kind == J_DICT || c->self.kind == J_LIST || c->self.kind == J_TUPLE ||
                 c->self.kind == J_VIEW || c->self.kind == J_ITERATOR || c->self.kind == J_RANGE ||
                 c->self.kind == J_UNDEFINED;
    size_t mark = jinja_mark(r);
    MN_TRY(pairs ? put_query(r, c->self) : put_quoted(r, c->self, false));
    return jinja_cut(r, mark, out);
}

static mn_status format(jrun *r, const jcall *c, jvalue *out) {
    return jinja_percent_call(r, c->self, &c->given, out);
}

static mn_status put_attribute(jrun *r, const jpair *p, bool space) {
    jvalue value;
    if (p->key.kind != J_STRING)
        return jinja_fail(r, "expected string or bytes-like object, got '%s'", jinja_type(p->key));
    for (size_t k = 0; k < p->key.string->n; k++) {
        char ch = p->key.string->data[k];
        MN_TRY(jinja_charge(r, 1));
        if (ch && strchr(" \t\n\r\f\v/>=", ch)) return jinja_fail(r, "Invalid character in attribute name");
    }
    MN_TRY(jinja_escape(r, p->value, &value));
    if (space) MN_TRY(jinja_put_z(r, " "));
    MN_TRY(jinja_put_escaped(r, p->key.string));
    MN_TRY(jinja_put_z(r, "=\""));
    MN_TRY(jinja_put_str(r, value));
    return jinja_put_z(r, "\"");
}

static mn_status xmlattr(jrun *r, const jcall *c, jvalue *out) {
    if (c->self.kind == J_UNDEFINED) return jinja_fail_undefined(r, c->self);
    if (c->self.kind != J_DICT) return jinja_fail(r, "'%s' object has no attribute 'items'", jinja_type(c->self));
    bool space = jinja_arg_flag(c, 0, true);
    size_t mark = jinja_mark(r);
    for (size_t i = 0; i < c->self.dict->n; i++) {
        const jpair *p = &c->self.dict->items[i];
        MN_TRY(jinja_charge(r, 1));
        if (p->value.kind == J_NONE || p->value.kind == J_UNDEFINED) continue;
        MN_TRY(put_attribute(r, p, space || r->out->n > mark));
    }
    return jinja_cut(r, mark, out);
}

static mn_status filesizeformat(jrun *r, const jcall *c, jvalue *out) {
    static const char prefixes[] = "kMGTPEZY";
    double size, unit, base = jinja_arg_flag(c, 0, false) ? 1024 : 1000;
    size_t mark = jinja_mark(r);
    if (c->self.kind == J_UNDEFINED) return jinja_fail_undefined(r, c->self);
    jstring text = {0};
    if (c->self.kind == J_STRING) MN_TRY(jinja_trimmed(r, c->self.string, &text));
    if (j_is_number(c->self)) {
        size = j_real(c->self);
    } else if (!jinja_read_float(&text, &size)) {
        return jinja_fail(r, "could not convert to a number");
    }
    if (size == 1) return jinja_text_z(r, "1 Byte", out);
    if (size < base) {
        if (!(size > -0x1p63)) return jinja_fail(r, "cannot convert this float to an integer");
        MN_TRY(jinja_printf(r, "%lld Bytes", (long long)size));
        return jinja_cut(r, mark, out);
    }
    int i = 0;
    for (unit = base * base; i < 7 && size >= unit; i++) /* bounded: seven prefixes */
        unit *= base;
    jvalue args[1] = {j_float(base * size / unit)}, number;
    const jargs given = {.items = args, .n = 1};
    MN_TRY(jinja_text_z(r, "%.1f", &number));
    MN_TRY(jinja_percent_call(r, number, &given, &number));
    MN_TRY(jinja_put_str(r, number));
    MN_TRY(jinja_printf(r, " %c%s", base > 1000 && i == 0 ? 'K' : prefixes[i], base > 1000 ? "iB" : "B"));
    return jinja_cut(r, mark, out);
}

/* ---- JSON ---- */

static mn_status json_separators(jrun *r, jvalue v, jjson_style *style) {
    jlist *pair;
    if (v.kind == J_NONE) return MN_OK;
    MN_TRY(jinja_collect(r, v, &pair));
    if (pair->n != 2 || pair->items[0].kind != J_STRING || pair->items[1].kind != J_STRING) {
        return jinja_fail(r, "separators must be two strings");
    }
    style->item_separator = pair->items[0].string->data;
    style->item_separator_n = pair->items[0].string->n;
    style->key_separator = pair->items[1].string->data;
    style->key_separator_n = pair->items[1].string->n;
    return MN_OK;
}

/* tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False), as Transformers defines it. */
static mn_status tojson(jrun *r, const jcall *c, jvalue *out) {
    jvalue indention = jinja_arg_or(c, 1, j_none());
    jjson_style style = {.item_separator = ", ", .item_separator_n = 2, .key_separator = ": ", .key_separator_n = 2};
    style.ascii = jinja_arg_flag(c, 0, false);
    style.sort = jinja_arg_flag(c, 3, false);
    if (indention.kind != J_NONE) {
        if (indention.kind != J_STRING) {
            jvalue blank;
            MN_TRY(jinja_text_z(r, " ", &blank));
            MN_TRY(jinja_arithmetic(r, '*', blank, indention, &indention));
        }
        style.indent = indention.string->data;
        style.indent_n = indention.string->n;
        style.item_separator_n = 1;
    }
    MN_TRY(json_separators(r, jinja_arg_or(c, 2, j_none()), &style));
    size_t mark = jinja_mark(r);
    MN_TRY(jinja_put_json(r, c->self, &style, 0));
    return jinja_cut(r, mark, out);
}

static mn_status urlize(jrun *r, const jcall *c, jvalue *out) {
    (void)c;
    (void)out;
    MN_FAIL(MN_E_UNSUPPORTED, "chat template: line %d: the filter 'urlize' is not supported", r->arena.line);
}

const jbuiltin jinja_text_filters[] = {
    {"capitalize", "", 0, 0, capitalize},
    {"center", "width", 0, 0, center},
    {"e", "", 0, JB_POSITIONAL, escape},
    {"escape", "", 0, JB_POSITIONAL, escape},
    {"filesizeformat", "binary", 0, 0, filesizeformat},
    {"forceescape", "", 0, 0, forceescape},
    {"format", "", 0, JB_VARIADIC, format},
    {"indent", "width,first,blank", 0, 0, indent},
    {"join", "d,attribute", 0, 0, join},
    {"lower", "", 0, 0, lower},
    {"pprint", "", 0, 0, jinja_pprint},
    {"replace", "old,new,count", 2, 0, replace},
    {"safe", "", 0, 0, safe},
    {"string", "", 0, 0, soft},
    {"striptags", "", 0, 0, jinja_striptags},
    {"title", "", 0, 0, title},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, 0, tojson},
    {"trim", "chars", 0, 0, trim},
    {"truncate", "length,killwords,end,leeway", 0, 0, truncate},
    {"upper", "", 0, 0, upper},
    {"urlencode", "", 0, 0, urlencode},
    {"urlize", "", 0, JB_VARIADIC, urlize},
    {"wordcount", "", 0, 0, wordcount},
    {"wordwrap", "width,break_long_words,wrapstring,break_on_hyphens", 0, 0, jinja_wordwrap},
    {"xmlattr", "autospace", 0, 0, xmlattr},
};
const size_t jinja_n_text_filters = sizeof jinja_text_filters / sizeof *jinja_text_filters;
