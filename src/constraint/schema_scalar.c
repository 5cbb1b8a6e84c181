/* Schemas of strings and numbers, constants, and what makes two schemas disjoint.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "constraint/number.h"
#include "constraint/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- strings ---- */

#define DATE                                                                                                                  \
    "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))" \
    "|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define TIME  "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define BYTE  "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"

/* RFC 3339, 9562, 5321 (without quoted names and addresses in numbers), 1123, 2673. Other formats are annotations. */
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"uuid", "^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"},
    {"email", "^[A-Za-z0-9_%+-]{1,20}(?:\\.[A-Za-z0-9_%+-]{1,20}){0,2}@" LABEL "(?:\\." LABEL "){1,2}$"},
    {"hostname", "^" LABEL "(?:\\." LABEL "){0,2}$"},
    {"ipv4", "^" BYTE "(?:\\." BYTE "){3}$"},
};

static const char *format_pattern(const json *format) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (json_is_string(format, formats[i].name)) return formats[i].pattern;
    }
    return NULL;
}

/* The one pattern that all terms require, from "pattern" or "format"; NULL: none. */
static const char *pattern_of(schema_build *b, terms list, size_t *n) {
    const char *found = NULL;
    for (size_t i = 0; i < list.n; i++) {
        const json *pattern = json_get(schema_term(b, list, i), "pattern"),
                   *format = json_get(schema_term(b, list, i), "format");
        if (pattern && pattern->kind != JSON_STRING) {
            schema_fail(b, MN_E_ARG, "'pattern' must be a text");
            return NULL;
        }
        for (int k = 0; k < 2; k++) {
            const char *text = k ? (format ? format_pattern(format) : NULL) : pattern ? pattern->string : NULL;
            size_t length = !text ? 0 : k ? strlen(text) : pattern->n;
            if (!text) continue;
            if (found && (*n != length || memcmp(found, text, length) != 0))
                schema_fail(b, MN_E_UNSUPPORTED, "only one 'pattern' or 'format' can be followed for one text");
            found = text;
            *n = length;
        }
    }
    return found;
}

uint32_t schema_string(schema_build *b, terms list, uint32_t next) {
    net *g = b->g;
    net_pattern how = {.spelling = SPELL_JSON, .search = true};
    size_t n = 0;
    schema_counts(b, list, "minLength", "maxLength", &how.min, &how.max);
    if (how.min > how.max) return schema_never(b, "at least %u characters, but at most %u", how.min, how.max);
    const char *pattern = pattern_of(b, list, &n);
    constants excluded = {0};
    schema_gather_excluded(b, list, 1u << JSON_STRING, &excluded);
    bool has_excluded = excluded.n > 0;
    if (pattern && has_excluded)
        schema_fail(b, MN_E_UNSUPPORTED, "'not' of constants is not supported beside a 'pattern' or 'format'");
    uint32_t other = has_excluded ? schema_other_texts(b, &excluded, how.min, how.max, next) : (uint32_t)NET_FAIL;
    mem_free(excluded.values);
    if (!schema_ok(b) || has_excluded) return other;
    if (!pattern) return net_json_string(g, how.min, how.max, next);
    uint32_t node = net_bytes(g, '"', '"', net_regex(g, pattern, n, &how, net_bytes(g, '"', '"', next)));
    if (!schema_ok(b)) {
        status_context(g->status, "schema, %s", bytes_text(&b->place));
    } else if (node == NET_FAIL) {
        schema_never(b, "no text matches its pattern and lengths");
    }
    return node;
}

/* ---- numbers ---- */

static bool is_number(const json *value) {
    return value->kind == JSON_INT || (value->kind == JSON_REAL && value->written);
}

/* False: more digits than a decimal has. */
static bool decimal_of(const json *number, decimal *out) {
    char text[24];
    if (number->kind == JSON_INT) snprintf(text, sizeof text, "%lld", (long long)number->integer);
    return decimal_read(out, number->kind == JSON_INT ? text : number->written);
}

static bool read_number(schema_build *b, const char *name, const json *value, decimal *out) {
    if (!is_number(value)) {
        schema_fail(b, MN_E_ARG, "'%s' must be a number", name);
        return false;
    }
    if (!decimal_of(value, out))
        schema_fail(b, MN_E_UNSUPPORTED, "'%s' has more than %d digits before or after the point", name,
                    DECIMAL_DIGITS);
    return schema_ok(b);
}

static int order_of_decimals(const void *a, const void *b) {
    return decimal_compare(a, b);
}

/* The strictest of all limits on one side. */
static void put_limit(net_numbers *which, const decimal *limit, bool is_lo, bool open) {
    decimal *kept = is_lo ? &which->lo : &which->hi;
    bool *kept_open = is_lo ? &which->lo_open : &which->hi_open, *has = is_lo ? &which->has_lo : &which->has_hi;
    int order = *has ? decimal_compare(limit, kept) : is_lo ? 1 : -1;
    if (order == 0) *kept_open |= open;
    if (is_lo ? order > 0 : order < 0) {
        *kept = *limit;
        *kept_open = open;
    }
    *has = true;
}

/* The limits of one term. In draft 4 the exclusive ones are true or false, and say it of the others. */
static void gather_limits(schema_build *b, const json *schema, net_numbers *which) {
    static const struct {
        const char *limit, *exclusive;
    } rows[] = {{"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}};
    decimal at;
    for (size_t k = 0; k < 2; k++) {
        const json *limit = json_get(schema, rows[k].limit), *exclusive = json_get(schema, rows[k].exclusive);
        bool flag = exclusive && exclusive->kind == JSON_BOOL;
        if (limit && read_number(b, rows[k].limit, limit, &at))
            put_limit(which, &at, k == 0, flag && exclusive->boolean);
        if (exclusive && !flag && read_number(b, rows[k].exclusive, exclusive, &at))
            put_limit(which, &at, k == 0, true);
    }
}

static void gather_multiple(schema_build *b, const json *schema, net_numbers *which) {
    const json *value = json_get(schema, "multipleOf");
    decimal of;
    if (!value || !read_number(b, "multipleOf", value, &of)) return;
    if (of.n == 0 || of.negative) {
        schema_fail(b, MN_E_ARG, "'multipleOf' must be a number above 0");
    } else if (!multiple_add(&which->multiple, &of)) {
        schema_fail(b, MN_E_UNSUPPORTED,
                    "'multipleOf' is only supported with up to 18 digits after the point, and up to %d without it",
                    MULTIPLE_MOST);
    }
}

/* The excluded numbers in ascending order; owned by the caller. */
static decimal *gather_holes(schema_build *b, terms list, size_t *n) {
    constants excluded = {0};
    decimal *holes = NULL;
    size_t capacity = 0;
    schema_gather_excluded(b, list, 1u << JSON_INT | 1u << JSON_REAL, &excluded);
    *n = 0;
    if (excluded.n && net_check(b->g, mem_grow(&holes, &capacity, excluded.n, sizeof *holes))) {
        while (*n < excluded.n && read_number(b, "const", excluded.values[*n], &holes[*n])) ++*n;
        qsort(holes, *n, sizeof *holes, order_of_decimals);
    }
    mem_free(excluded.values);
    return holes;
}

/* The numbers between the holes. */
static uint32_t numbers_between(schema_build *b, net_numbers *which, const decimal *holes, size_t n, uint32_t next) {
    uint32_t node = NET_FAIL;
    for (size_t i = 0; i < n && schema_ok(b); i++) {
        net_numbers below = *which;
        put_limit(&below, &holes[i], false, true);
        node = net_split(b->g, net_number(b->g, &below, next), node);
        put_limit(which, &holes[i], true, true);
    }
    return net_split(b->g, net_number(b->g, which, next), node);
}

uint32_t schema_number(schema_build *b, terms list, bool whole, uint32_t next) {
    net_numbers which = {.whole = whole};
    size_t n_holes;
    for (size_t i = 0; i < list.n && schema_ok(b); i++) {
        gather_limits(b, schema_term(b, list, i), &which);
        gather_multiple(b, schema_term(b, list, i), &which);
        which.fraction |= schema_is_fraction(schema_term(b, list, i));
    }
    decimal *holes = gather_holes(b, list, &n_holes);
    bool gathered = schema_ok(b);
    uint32_t node = gathered ? numbers_between(b, &which, holes, n_holes, next) : (uint32_t)NET_FAIL;
    mem_free(holes);
    if (!gathered) return NET_FAIL;
    if (!schema_ok(b)) {
        status_context(b->g->status, "schema, %s", bytes_text(&b->place));
    } else if (node == NET_FAIL) {
        schema_never(b, "no number lies within its limits");
    }
    return node;
}

/* ---- constants ---- */

static bool read_constant(schema_build *b, const json *value, decimal *out) {
    if (!decimal_of(value, out))
        schema_fail(b, MN_E_UNSUPPORTED, "a constant has more than %d digits before or after the point",
                    DECIMAL_DIGITS);
    return schema_ok(b);
}

/* Not inlined, as values may lie deep in others: the decimals take two kilobytes. */
static __attribute__((noinline)) bool equal_numbers(schema_build *b, const json *x, const json *y) {
    decimal of_x, of_y;
    if (x->kind == JSON_INT && y->kind == JSON_INT) return x->integer == y->integer;
    return read_constant(b, x, &of_x) && read_constant(b, y, &of_y) && decimal_compare(&of_x, &of_y) == 0;
}

bool schema_equal(schema_build *b, const json *x, const json *y) {
    if (is_number(x) && is_number(y)) return equal_numbers(b, x, y);
    if (x->kind != y->kind) return false;
    bool same = x->kind < JSON_STRING || x->n == y->n;
    switch (x->kind) {
    case JSON_BOOL: return x->boolean == y->boolean;
    case JSON_STRING: return same && memcmp(x->string, y->string, x->n) == 0;
    case JSON_ARRAY:
        for (size_t i = 0; i < x->n && same; i++) same = schema_equal(b, &x->items[i], &y->items[i]);
        return same;
    case JSON_OBJECT:
        for (size_t i = 0; i < x->n && same; i++) {
            const json *other = json_get(y, x->members[i].key);
            same = other && schema_equal(b, &x->members[i].value, other);
        }
        return same;
    default: return true;
    }
}

static unsigned kind_of_real(schema_build *b, const json *value) {
    decimal number;
    bool whole = is_number(value) && read_constant(b, value, &number) && number.n <= number.point;
    return whole ? VALUE_INT | VALUE_REAL : VALUE_REAL;
}

static unsigned kinds_of(schema_build *b, const json *value) {
    switch (value->kind) {
    case JSON_NULL: return VALUE_NULL;
    case JSON_BOOL: return VALUE_BOOL;
    case JSON_INT: return VALUE_INT;
    case JSON_REAL: return kind_of_real(b, value);
    case JSON_STRING: return VALUE_STRING;
    case JSON_ARRAY: return VALUE_ARRAY;
    case JSON_OBJECT: return VALUE_OBJECT;
    }
    return 0;
}

/* The values of a schema's "const", else of its "enum"; NULL when it has neither. */
static const json *constants_of(const json *schema, size_t *n) {
    const json *one = json_get(schema, "const"), *several = json_get(schema, "enum");
    *n = one ? 1 : several && several->kind == JSON_ARRAY ? several->n : 0;
    return one ? one : several ? several->items : NULL;
}

void constants_add(schema_build *b, constants *c, const json *value) {
    if (net_check(b->g, mem_grow(&c->values, &c->capacity, c->n + 1, sizeof *c->values))) c->values[c->n++] = value;
}

static bool is_one_of(schema_build *b, const json *value, const json *values, size_t n) {
    for (size_t i = 0; i < n && schema_charge(b, 1); i++) {
        if (schema_equal(b, value, &values[i])) return true;
    }
    return false;
}

bool schema_fits(schema_build *b, const json *schema) {
    size_t n, i = 0;
    const json *values = constants_of(schema, &n);
    unsigned types = schema_types(b, schema);
    while (i < n && schema_charge(b, 1) && (types & kinds_of(b, &values[i]))) i++;
    return values && i == n;
}

/* Beside constants a keyword is refused unless it is evaluated for them, or speaks of values of other kinds. */
static void refuse_beside(schema_build *b, const json *schema, json_kind kind) {
    static const struct {
        const char *keyword;
        unsigned kinds; /* of which it speaks, where it is not evaluated */
    } rows[] = {{"type", 0},
                {"enum", 0},
                {"const", 0},
                {"$ref", 0},
                {"allOf", 0},
                {"anyOf", 0},
                {"oneOf", 0},
                {"not", 0},
                {"if", 0},
                {"dependentSchemas", 0},
                {"minimum", 0},
                {"maximum", 0},
                {"exclusiveMinimum", 0},
                {"exclusiveMaximum", 0},
                {"minLength", 0},
                {"maxLength", 0},
                {"minItems", 0},
                {"maxItems", 0},
                {"minProperties", 0},
                {"maxProperties", 0},
                {"multipleOf", 1u << JSON_INT | 1u << JSON_REAL},
                {"pattern", 1u << JSON_STRING},
                {"format", 1u << JSON_STRING},
                {"items", 1u << JSON_ARRAY},
                {"prefixItems", 1u << JSON_ARRAY},
                {"additionalItems", 1u << JSON_ARRAY},
                {"uniqueItems", 1u << JSON_ARRAY},
                {"properties", 1u << JSON_OBJECT},
                {"required", 1u << JSON_OBJECT},
                {"additionalProperties", 1u << JSON_OBJECT},
                {"patternProperties", 1u << JSON_OBJECT},
                {"propertyNames", 1u << JSON_OBJECT},
                {"dependentRequired", 1u << JSON_OBJECT}};
    for (size_t i = 0; i < schema->n && schema_charge(b, 1); i++) {
        const json_member *m = &schema->members[i];
        bool refused = !schema_is_annotation(m);
        for (size_t k = 0; k < sizeof rows / sizeof *rows && refused; k++) {
            if (strcmp(rows[k].keyword, m->key) == 0) refused = rows[k].kinds >> kind & 1;
        }
        if (refused) schema_fail(b, MN_E_UNSUPPORTED, "'%.60s' beside constants is not supported", m->key);
    }
}

/* Not inlined: decimals are large. */
static __attribute__((noinline)) bool within_limits(schema_build *b, const json *schema, const json *value) {
    net_numbers which = {.whole = false};
    decimal number;
    gather_limits(b, schema, &which);
    if (!schema_ok(b) || (!which.has_lo && !which.has_hi) || !read_number(b, "const", value, &number)) return true;
    int lo = which.has_lo ? decimal_compare(&number, &which.lo) : 1;
    int hi = which.has_hi ? decimal_compare(&which.hi, &number) : 1;
    return (lo > 0 || (lo == 0 && !which.lo_open)) && (hi > 0 || (hi == 0 && !which.hi_open));
}

/* Lengths and counts of a constant, and limits of a number. */
static bool meets_limits(schema_build *b, terms list, const json *value) {
    uint32_t min = 0, max = NET_MANY;
    size_t n = value->kind >= JSON_STRING ? value->n : 0;
    bool within = true;
    for (size_t i = 0; i < list.n && is_number(value) && within; i++)
        within = within_limits(b, schema_term(b, list, i), value);
    if (value->kind == JSON_STRING) {
        schema_counts(b, list, "minLength", "maxLength", &min, &max);
        for (size_t i = n = 0; i < value->n; n++) i += utf8_length((unsigned char)value->string[i]);
    }
    if (value->kind == JSON_ARRAY) schema_counts(b, list, "minItems", "maxItems", &min, &max);
    if (value->kind == JSON_OBJECT) schema_counts(b, list, "minProperties", "maxProperties", &min, &max);
    return within && n >= min && n <= max;
}

bool schema_allows(schema_build *b, terms list, const json *value, const json *values) {
    size_t n;
    for (size_t i = 0; i < list.n; i++) {
        const json *schema = schema_term(b, list, i), *one = json_get(schema, "const"),
                   *several = json_get(schema, "enum"), *excluded = schema_excluded(schema, &n);
        if (!(schema_types(b, schema) & kinds_of(b, value))) return false;
        if (one && !schema_equal(b, one, value)) return false;
        if (several && several->items != values && !is_one_of(b, value, several->items, several->n)) return false;
        if (excluded && is_one_of(b, value, excluded, n)) return false;
        if (schema_is_fraction(schema) && (kinds_of(b, value) & VALUE_INT)) return false;
    }
    if (!meets_limits(b, list, value)) return false;
    for (size_t i = 0; i < list.n; i++) refuse_beside(b, schema_term(b, list, i), value->kind);
    return schema_ok(b);
}

/* A trie of texts as nodes: common prefixes are read once. */
typedef struct text_node {
    uint32_t child, sibling, entry;
    unsigned char byte;
    bool ends;
} text_node;

typedef struct text_tree {
    text_node *nodes; /* [0]: the root; a child comes after its parent */
    size_t n, capacity;
} text_tree;

static void add_text(schema_build *b, text_tree *t, const char *text, size_t n) {
    uint32_t at = 0;
    for (size_t i = 0; i < n && schema_ok(b); i++) {
        unsigned char byte = (unsigned char)text[i];
        uint32_t child = t->nodes[at].child;
        while (child && t->nodes[child].byte != byte) child = t->nodes[child].sibling;
        if (!child) {
            if (!net_check(b->g, mem_grow(&t->nodes, &t->capacity, t->n + 1, sizeof *t->nodes))) return;
            child = (uint32_t)t->n++;
            t->nodes[child] = (text_node){.byte = byte, .sibling = t->nodes[at].child};
            t->nodes[at].child = child;
        }
        at = child;
    }
    if (schema_ok(b)) t->nodes[at].ends = true;
}

static uint32_t build_texts(schema_build *b, text_tree *t, uint32_t next) {
    for (size_t id = t->n; id-- > 0 && schema_ok(b);) {
        uint32_t node = t->nodes[id].ends ? next : (uint32_t)NET_FAIL;
        for (uint32_t child = t->nodes[id].child; child; child = t->nodes[child].sibling)
            node = net_split(b->g, net_bytes(b->g, t->nodes[child].byte, t->nodes[child].byte, t->nodes[child].entry),
                             node);
        t->nodes[id].entry = node;
    }
    return schema_ok(b) ? t->nodes[0].entry : (uint32_t)NET_FAIL;
}

void schema_allowed(schema_build *b, terms list, size_t i, constants *out) {
    size_t n;
    for (size_t k = 0; k < list.n; k++) {
        const json *several = json_get(schema_term(b, list, k), "enum");
        if (several && several->kind != JSON_ARRAY) schema_fail(b, MN_E_ARG, "'enum' must be an array of values");
    }
    const json *values = constants_of(schema_term(b, list, i), &n);
    for (size_t k = 0; k < n && schema_charge(b, list.n); k++) {
        if (schema_allows(b, list, &values[k], values)) constants_add(b, out, &values[k]);
    }
}

uint32_t schema_constants(schema_build *b, terms list, size_t i, uint32_t next) {
    constants allowed = {0};
    text_tree tree = {0};
    bytes text = {0};
    uint32_t node = NET_FAIL;
    schema_allowed(b, list, i, &allowed);
    if (schema_ok(b) && net_check(b->g, mem_grow(&tree.nodes, &tree.capacity, 1, sizeof *tree.nodes))) {
        tree.nodes[tree.n++] = (text_node){0};
        for (size_t k = 0; k < allowed.n && schema_ok(b); k++) {
            text.n = 0;
            json_put(&text, allowed.values[k]);
            if (net_check(b->g, bytes_status(&text))) add_text(b, &tree, text.data, text.n);
        }
        node = build_texts(b, &tree, next);
    }
    bytes_clear(&text);
    mem_free(tree.nodes);
    mem_free(allowed.values);
    return schema_ok(b) && node == NET_FAIL ? schema_never(b, "none of its constants is allowed") : node;
}

/* ---- telling schemas apart ---- */

static const json *follow_refs(schema_build *b, const json *schema) {
    for (int hops = 0; hops < 16; hops++) {
        const json *ref = json_get(schema, "$ref");
        if (!ref) return schema;
        schema = schema_target(b, ref);
        if (!schema) return NULL;
    }
    return NULL;
}

static bool requires(schema_build *b, const json *schema, const char *name) {
    const json *required = json_get(schema, "required");
    for (size_t i = 0; required && required->kind == JSON_ARRAY && i < required->n && schema_charge(b, 1); i++) {
        if (json_is_string(&required->items[i], name)) return true;
    }
    return false;
}

/* A required member whose schemas are apart. */
static bool members_apart(schema_build *b, const json *x, const json *y, int depth) {
    const json *of_x = json_get(x, "properties"), *of_y = json_get(y, "properties");
    if (!of_x || !of_y || of_x->kind != JSON_OBJECT) return false;
    for (size_t i = 0; i < of_x->n && schema_charge(b, 1 + of_x->n / 16); i++) {
        const json *other = json_get(of_y, of_x->members[i].key);
        if (other && (requires(b, x, of_x->members[i].key) || requires(b, y, of_x->members[i].key)) &&
            schema_apart(b, &of_x->members[i].value, other, depth + 1))
            return true;
    }
    return false;
}

/* A required member that the other schema does not allow. */
static bool shuts_out(schema_build *b, const json *x, const json *y) {
    const json *required = json_get(x, "required"), *own = json_get(y, "properties"),
               *others = json_get(y, "additionalProperties");
    bool closed = others && others->kind == JSON_BOOL && !others->boolean && !json_get(y, "patternProperties");
    for (size_t i = 0; closed && required && required->kind == JSON_ARRAY && i < required->n && schema_charge(b, 1);
         i++) {
        if (required->items[i].kind == JSON_STRING && !json_get(own, required->items[i].string)) return true;
    }
    return false;
}

bool schema_apart(schema_build *b, const json *x, const json *y, int depth) {
    enum { DEPTH = 3 };
    x = follow_refs(b, x);
    y = x ? follow_refs(b, y) : NULL;
    if (!y || depth > DEPTH || !schema_charge(b, 1)) return false;
    if (x->kind == JSON_BOOL || y->kind == JSON_BOOL)
        return (x->kind == JSON_BOOL && !x->boolean) || (y->kind == JSON_BOOL && !y->boolean);
    unsigned types = schema_types(b, x) & schema_types(b, y);
    size_t n_x, n_y;
    const json *of_x = constants_of(x, &n_x), *of_y = constants_of(y, &n_y);
    if (of_x || of_y) {
        const json *some = of_x ? of_x : of_y, *rest = of_x ? of_y : NULL;
        size_t n_some = of_x ? n_x : n_y, n_excluded;
        const json *excluded = schema_excluded(of_x ? y : x, &n_excluded);
        bool apart = true;
        for (size_t i = 0; i < n_some && apart; i++) {
            bool by_type = !(types & kinds_of(b, &some[i]));
            apart = by_type || (rest && !is_one_of(b, &some[i], rest, n_y)) ||
                    (excluded && is_one_of(b, &some[i], excluded, n_excluded));
        }
        return apart;
    }
    return types == 0 ||
           (types == VALUE_OBJECT && (members_apart(b, x, y, depth) || shuts_out(b, x, y) || shuts_out(b, y, x)));
}
