/* Schemas: keywords, references, combinations, and which kinds of values are left.
 * SPDX-License-Identifier: Apache-2.0 */
#include "constraint/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/distance.h"
#include "base/utf8.h"

enum {
    WORK = 1 << 24, /* steps: schemas of a megabyte take some hundred thousand */
    NEST = 12,      /* nested schemas that are built at once; deeper ones become rules, built later */
};

/* ---- failures ---- */

bool schema_ok(const schema_build *b) {
    return b->g->status == MN_OK;
}

void schema_fail(schema_build *b, mn_status code, const char *format, ...) {
    char problem[300];
    va_list args;
    if (!schema_ok(b)) return;
    va_start(args, format);
    vsnprintf(problem, sizeof problem, format, args);
    va_end(args);
    b->g->status = status_fail(code, "schema, %s: %s", bytes_text(&b->place), problem);
}

uint32_t schema_never(schema_build *b, const char *format, ...) {
    va_list args;
    net *g = b->g;
    if (schema_ok(b) && !g->reason[0]) {
        int n = snprintf(g->reason, sizeof g->reason, "%.150s: ", bytes_text(&b->place));
        va_start(args, format);
        vsnprintf(g->reason + n, sizeof g->reason - (size_t)n, format, args);
        va_end(args);
        g->reason[utf8_valid_prefix(g->reason, strlen(g->reason))] = 0;
    }
    return NET_FAIL;
}

bool schema_charge(schema_build *b, size_t steps) {
    b->work += steps;
    if (b->work > WORK) schema_fail(b, MN_E_ARG, "the schema is too large, or its combinations are too many");
    return schema_ok(b);
}

/* ---- keywords ---- */

static const char *const understood[] = {"type",
                                         "enum",
                                         "const",
                                         "properties",
                                         "required",
                                         "additionalProperties",
                                         "minProperties",
                                         "maxProperties",
                                         "dependentRequired",
                                         "patternProperties",
                                         "propertyNames",
                                         "items",
                                         "prefixItems",
                                         "minItems",
                                         "maxItems",
                                         "minLength",
                                         "maxLength",
                                         "pattern",
                                         "format",
                                         "anyOf",
                                         "oneOf",
                                         "allOf",
                                         "minimum",
                                         "maximum",
                                         "exclusiveMinimum",
                                         "multipleOf",
                                         "$ref",
                                         "exclusiveMaximum",
                                         "additionalItems",
                                         "uniqueItems",
                                         "not",
                                         "if",
                                         "dependentSchemas",
                                         NULL};

/* Keywords that do not restrict the value, or are not asserted. */
static const char *const annotations[] = {"title",
                                          "description",
                                          "default",
                                          "examples",
                                          "example",
                                          "deprecated",
                                          "readOnly",
                                          "writeOnly",
                                          "$schema",
                                          "$id",
                                          "id",
                                          "$comment",
                                          "$defs",
                                          "definitions",
                                          "contentEncoding",
                                          "$anchor",
                                          "$vocabulary",
                                          "contentMediaType",
                                          "contentSchema",
                                          "discriminator",
                                          "nullable", /* only widens "type" */
                                          "then",     /* belong to "if" */
                                          "else",
                                          NULL};

static bool is_among(const char *name, const char *const *names) {
    while (*names && strcmp(*names, name) != 0) names++;
    return *names != NULL;
}

bool schema_is_annotation(const json_member *m) {
    bool unique = strcmp(m->key, "uniqueItems") == 0 && m->value.kind == JSON_BOOL && !m->value.boolean;
    return unique || strncmp(m->key, "x-", 2) == 0 || is_among(m->key, annotations);
}

bool schema_restricts(schema_build *b, const json *schema) {
    bool restricts = schema->kind != JSON_OBJECT && !(schema->kind == JSON_BOOL && schema->boolean);
    for (size_t i = 0; schema->kind == JSON_OBJECT && i < schema->n && schema_charge(b, 1); i++) {
        const json_member *m = &schema->members[i];
        if (schema_is_annotation(m)) continue;
        restricts = true;
        if (is_among(m->key, understood)) continue;
        const char *near = text_nearest(m->key, understood);
        schema_fail(b, MN_E_UNSUPPORTED, "the keyword '%.60s' is not supported%s%s", m->key,
                    near ? "; did you mean " : "", near ? near : "");
    }
    return restricts;
}

unsigned schema_types(schema_build *b, const json *schema) {
    static const struct {
        const char *name;
        unsigned bits;
    } names[] = {{"null", VALUE_NULL},     {"boolean", VALUE_BOOL}, {"integer", VALUE_INT},  {"number", VALUE_NUMBER},
                 {"string", VALUE_STRING}, {"array", VALUE_ARRAY},  {"object", VALUE_OBJECT}};
    const json *type = json_get(schema, "type");
    if (!type) return VALUE_ANY;
    size_t n = type->kind == JSON_ARRAY ? type->n : 1;
    unsigned bits = 0;
    for (size_t i = 0; i < n; i++) {
        const json *one = type->kind == JSON_ARRAY ? &type->items[i] : type;
        unsigned found = 0;
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            if (json_is_string(one, names[k].name)) found = names[k].bits;
        }
        if (!found)
            schema_fail(b, MN_E_ARG,
                        "'type' is '%.60s', allowed: null, boolean, integer, number, string, array, object",
                        one->kind == JSON_STRING ? one->string : "no text");
        bits |= found;
    }
    const json *nullable = json_get(schema, "nullable");
    if (nullable && nullable->kind != JSON_BOOL) schema_fail(b, MN_E_ARG, "'nullable' must be true or false");
    return nullable && nullable->boolean ? bits | VALUE_NULL : bits;
}

/* The kinds of values that keywords without a "type" speak of, when all of them speak of one kind. */
static unsigned implied_types(const json *schema) {
    static const struct {
        const char *keyword;
        unsigned bits;
    } rows[] = {{"properties", VALUE_OBJECT},
                {"required", VALUE_OBJECT},
                {"additionalProperties", VALUE_OBJECT},
                {"items", VALUE_ARRAY},
                {"prefixItems", VALUE_ARRAY},
                {"minItems", VALUE_ARRAY},
                {"maxItems", VALUE_ARRAY},
                {"uniqueItems", VALUE_ARRAY},
                {"minLength", VALUE_STRING},
                {"maxLength", VALUE_STRING},
                {"pattern", VALUE_STRING},
                {"format", VALUE_STRING},
                {"minimum", VALUE_NUMBER},
                {"maximum", VALUE_NUMBER},
                {"exclusiveMinimum", VALUE_NUMBER},
                {"exclusiveMaximum", VALUE_NUMBER},
                {"multipleOf", VALUE_NUMBER},
                {"minProperties", VALUE_OBJECT},
                {"maxProperties", VALUE_OBJECT},
                {"dependentRequired", VALUE_OBJECT},
                {"patternProperties", VALUE_OBJECT},
                {"propertyNames", VALUE_OBJECT}};
    unsigned bits = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (json_get(schema, rows[i].keyword)) bits |= rows[i].bits;
    }
    bool one_kind = bits == VALUE_OBJECT || bits == VALUE_ARRAY || bits == VALUE_STRING || bits == VALUE_NUMBER;
    return one_kind ? bits : VALUE_ANY;
}

void schema_counts(schema_build *b, terms list, const char *least, const char *most, uint32_t *min, uint32_t *max) {
    *min = 0;
    *max = NET_MANY;
    for (size_t i = 0; i < list.n; i++) {
        for (int k = 0; k < 2; k++) {
            const json *value = json_get(schema_term(b, list, i), k ? most : least);
            if (!value) continue;
            bool whole = value->kind == JSON_REAL && value->real >= 0 && value->real < 9e15 &&
                         (double)(int64_t)value->real == value->real;
            int64_t count = value->kind == JSON_INT ? value->integer : whole ? (int64_t)value->real : -1;
            if (count < 0 || (count >= NET_MANY && k == 0)) {
                schema_fail(b, MN_E_ARG, "'%s' must be a whole number of 0 to 4294967294", k ? most : least);
            } else if (k && count < *max) {
                *max = (uint32_t)count;
            } else if (!k && count > *min) {
                *min = (uint32_t)count;
            }
        }
    }
}

/* ---- lists of terms ---- */

terms schema_list(const schema_build *b) {
    return (terms){b->n_terms, 0};
}

void schema_push(schema_build *b, terms *list, const json *schema, unsigned done) {
    if (!schema_charge(b, 1)) return;
    if (schema->kind != JSON_BOOL && schema->kind != JSON_OBJECT) {
        schema_fail(b, MN_E_ARG, "a schema must be an object, true or false");
        return;
    }
    if (!net_check(b->g, mem_grow(&b->terms, &b->terms_capacity, b->n_terms + 1, sizeof *b->terms))) return;
    b->terms[b->n_terms++] = (term){schema, done};
    list->n++;
}

static bool holds(schema_build *b, terms list, const json *schema) {
    for (size_t i = 0; i < list.n && schema_charge(b, 1); i++) {
        if (schema_term(b, list, i) == schema) return true;
    }
    return false;
}

/* ---- taking apart ---- */

/* Adds to the list, which is at the end of b->terms, what its terms are made of: allOf, dependentSchemas, and $ref when
 * `inside` a rule. *has_ref: a $ref is left. */
static void take_apart(schema_build *b, terms *list, bool inside, bool *has_ref) {
    *has_ref = false;
    for (size_t i = 0; i < list->n && schema_charge(b, 1); i++) {
        term *t = &b->terms[list->at + i];
        const json *schema = t->schema, *ref = json_get(schema, "$ref"), *all = json_get(schema, "allOf");
        unsigned done = t->done, side = done & TERM_SIDE;
        t->done |= TERM_ALL | TERM_DEPENDENT | (inside ? TERM_REF : 0u);
        if (ref && !(done & TERM_REF)) {
            *has_ref = !inside || *has_ref;
            const json *target = inside ? schema_target(b, ref) : NULL;
            if (target && !holds(b, *list, target)) {
                schema_push(b, list, target, side);
            } else if (target && json_get(target, "$ref")) {
                schema_fail(b, MN_E_ARG, "the $ref '%.100s' leads back to itself", ref->string);
            }
        }
        if (json_get(schema, "dependentSchemas") && !(done & TERM_DEPENDENT)) {
            ways dependent = schema_ways(b, schema, TERM_DEPENDENT);
            for (size_t k = 0; k < dependent.n && schema_ok(b); k++) {
                if (!holds(b, *list, &dependent.mains[k])) schema_push(b, list, &dependent.mains[k], side);
            }
        }
        if (!all || (done & TERM_ALL)) continue;
        if (all->kind != JSON_ARRAY || all->n == 0) schema_fail(b, MN_E_ARG, "'allOf' must be an array of schemas");
        for (size_t k = 0; k < all->n && all->kind == JSON_ARRAY && schema_ok(b); k++) {
            if (!holds(b, *list, &all->items[k])) schema_push(b, list, &all->items[k], side);
        }
    }
}

/* Removes the terms that restrict nothing; false when one of them is `false`. */
static bool drop_silent(schema_build *b, terms *list) {
    size_t n = 0;
    bool possible = true;
    for (size_t i = 0; i < list->n && schema_ok(b); i++) {
        term t = b->terms[list->at + i];
        if (t.schema->kind == JSON_BOOL) {
            possible &= t.schema->boolean;
            continue;
        }
        if (schema_restricts(b, t.schema)) b->terms[list->at + n++] = t;
    }
    list->n = n;
    b->n_terms = list->at + n;
    return possible;
}

/* The rule of a list of terms. */
static uint32_t rule_of(schema_build *b, terms list) {
    uint64_t hash = list.n;
    for (size_t i = 0; i < list.n; i++) {
        const term *t = &b->terms[list.at + i];
        hash = (hash ^ (uintptr_t)t->schema ^ (uint64_t)t->done << 48) * 0x9E3779B97F4A7C15u;
    }
    schema_charge(b, b->n_rules / 16); /* numbers are compared in no time */
    for (size_t i = 0; i < b->n_rules; i++) {
        const schema_rule *known = &b->rules[i];
        size_t same = 0;
        if (known->hash != hash || known->n_key != list.n) continue;
        while (same < list.n && b->keys[known->key + same].schema == b->terms[list.at + same].schema &&
               b->keys[known->key + same].done == b->terms[list.at + same].done)
            same++;
        if (same == list.n) return known->rule;
    }
    const char *place = bytes_text(&b->place);
    schema_rule rule = {.hash = hash, .key = b->n_keys, .n_key = list.n};
    if (!schema_ok(b) || !net_check(b->g, mem_grow(&b->rules, &b->rules_capacity, b->n_rules + 1, sizeof *b->rules)) ||
        !net_check(b->g, mem_grow(&b->keys, &b->keys_capacity, b->n_keys + list.n, sizeof *b->keys)))
        return 0;
    rule.rule = net_rule(b->g);
    rule.place = mem_copy_text(place, strlen(place));
    if (!rule.place) net_check(b->g, MN_E_NOMEM);
    if (list.n) memcpy(b->keys + b->n_keys, b->terms + list.at, list.n * sizeof *b->keys);
    b->n_keys += list.n;
    b->rules[b->n_rules++] = rule;
    return rule.rule;
}

/* ---- values ---- */

/* The list with choice k of its term i; conditions come first. */
static terms with_way(schema_build *b, terms list, size_t i, unsigned bit, ways all, size_t k) {
    const json *parts[] = {all.sides ? &all.sides[k] : NULL, all.mains ? &all.mains[k] : NULL};
    terms out = schema_list(b);
    for (size_t j = 0; j < list.n && schema_ok(b); j++) {
        term t = b->terms[list.at + j];
        schema_push(b, &out, t.schema, t.done | (j == i ? bit : 0));
    }
    unsigned side = schema_ok(b) ? b->terms[list.at + i].done & TERM_SIDE : 0;
    for (size_t j = 0; j < 2 && schema_ok(b); j++) {
        if (parts[j] && !holds(b, out, parts[j])) schema_push(b, &out, parts[j], j == 0 ? (unsigned)TERM_SIDE : side);
    }
    return out;
}

/* The list with each choice of term i in turn. */
static uint32_t any_of(schema_build *b, terms list, size_t i, unsigned bit, uint32_t next) {
    ways all = schema_ways(b, schema_term(b, list, i), bit);
    bool has_reason = b->g->reason[0] != 0;
    uint32_t node = NET_FAIL;
    for (size_t k = all.n; k-- > 0 && schema_ok(b);) {
        terms way = with_way(b, list, i, bit, all, k);
        if (schema_clash(b, way, list.n)) {
            b->n_terms = way.at;
        } else {
            node = net_split(b->g, schema_value(b, way, next), node);
        }
    }
    if (node == NET_FAIL) return schema_never(b, "no value is allowed");
    if (!has_reason) b->g->reason[0] = 0; /* why some choices allow no value does not matter */
    return node;
}

static unsigned types_of(schema_build *b, terms list) {
    unsigned named = VALUE_ANY, implied = VALUE_ANY;
    bool has_type = false;
    for (size_t i = 0; i < list.n; i++) {
        const json *schema = schema_term(b, list, i);
        has_type |= json_get(schema, "type") && !(b->terms[list.at + i].done & TERM_SIDE);
        named &= schema_types(b, schema);
        implied &= implied_types(schema);
    }
    return has_type ? named : named & implied;
}

static bool find_constants(const schema_build *b, terms list, size_t *at) {
    for (*at = 0; *at < list.n; ++*at) {
        const json *schema = schema_term(b, list, *at);
        if (json_get(schema, "enum") || json_get(schema, "const")) return true;
    }
    return false;
}

/* The values that are words. */
static const struct {
    unsigned type;
    const char *text;
    json value;
} words[] = {{VALUE_NULL, "null", {.kind = JSON_NULL}},
             {VALUE_BOOL, "false", {.kind = JSON_BOOL}},
             {VALUE_BOOL, "true", {.kind = JSON_BOOL, .boolean = true}}};

static uint32_t plain_value(schema_build *b, terms list, uint32_t next) {
    net *g = b->g;
    unsigned types = types_of(b, list);
    uint32_t node = NET_FAIL;
    size_t i;
    if (find_constants(b, list, &i)) return schema_constants(b, list, i, next);
    if (types == 0) return schema_never(b, "no type is left");
    for (i = 0; i < sizeof words / sizeof *words; i++) {
        if ((types & words[i].type) && schema_allows(b, list, &words[i].value, NULL))
            node = net_split(g, net_literal(g, words[i].text, strlen(words[i].text), next), node);
    }
    if (types & VALUE_NUMBER) node = net_split(g, schema_number(b, list, !(types & VALUE_REAL), next), node);
    if (types & VALUE_STRING) node = net_split(g, schema_string(b, list, next), node);
    if (types & VALUE_ARRAY) node = net_split(g, schema_array(b, list, next), node);
    if (types & VALUE_OBJECT) node = net_split(g, schema_object(b, list, next), node);
    return node;
}

/* The first term with branches to choose from, and their TERM_ bit; 0: there is none. */
static unsigned find_choice(const schema_build *b, terms list, size_t *at) {
    for (size_t i = 0, n; i < list.n; i++) {
        term t = b->terms[list.at + i];
        *at = i;
        if (json_get(t.schema, "anyOf") && !(t.done & TERM_ANY)) return TERM_ANY;
        if (json_get(t.schema, "oneOf") && !(t.done & TERM_ONE)) return TERM_ONE;
        if (json_get(t.schema, "if") && !(t.done & TERM_IF)) return TERM_IF;
        bool excludes = schema_excluded(t.schema, &n) || schema_is_fraction(t.schema);
        if (json_get(t.schema, "not") && !(t.done & TERM_NOT) && !excludes) return TERM_NOT;
    }
    return 0;
}

/* A list that has been taken apart. */
static uint32_t chosen_value(schema_build *b, terms list, uint32_t next) {
    size_t i;
    unsigned bit = find_choice(b, list, &i);
    return bit ? any_of(b, list, i, bit, next) : plain_value(b, list, next);
}

static uint32_t value_of(schema_build *b, terms list, bool shared, uint32_t next) {
    size_t begin = list.at;
    bool has_ref;
    uint32_t node = NET_FAIL;
    if (next == NET_FAIL) { /* nothing can follow it */
        b->n_terms = begin;
        return NET_FAIL;
    }
    bool deep = ++b->depth > NEST;
    take_apart(b, &list, false, &has_ref);
    if (!drop_silent(b, &list)) {
        node = schema_never(b, "no value is allowed");
    } else if (schema_ok(b)) {
        node = shared || has_ref || deep || list.n == 0 ? net_call(b->g, rule_of(b, list), next)
                                                        : chosen_value(b, list, next);
    }
    b->depth--;
    b->n_terms = begin;
    return node;
}

uint32_t schema_value(schema_build *b, terms list, uint32_t next) {
    return value_of(b, list, false, next);
}

uint32_t schema_shared_value(schema_build *b, terms list, uint32_t next) {
    return value_of(b, list, true, next);
}

/* ---- sets of values ---- */

static bool finite_choice(schema_build *b, terms list, size_t i, unsigned bit, constants *out) {
    ways all = schema_ways(b, schema_term(b, list, i), bit);
    bool finite = true;
    for (size_t k = 0; k < all.n && finite; k++) finite = schema_finite(b, with_way(b, list, i, bit, all, k), out);
    return finite;
}

static bool finite_types(schema_build *b, terms list, constants *out) {
    unsigned types = types_of(b, list);
    if (types & ~(unsigned)(VALUE_NULL | VALUE_BOOL)) return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if ((types & words[i].type) && schema_allows(b, list, &words[i].value, NULL))
            constants_add(b, out, &words[i].value);
    }
    return true;
}

bool schema_finite(schema_build *b, terms list, constants *out) {
    size_t begin = list.at, i;
    bool has_ref, finite = true;
    if (++b->depth > 2 * NEST) {
        finite = false;
    } else {
        take_apart(b, &list, true, &has_ref);
    }
    if (finite && drop_silent(b, &list) && schema_ok(b)) {
        unsigned bit = find_choice(b, list, &i);
        if (bit) {
            finite = finite_choice(b, list, i, bit, out);
        } else if (find_constants(b, list, &i)) {
            schema_allowed(b, list, i, out);
        } else {
            finite = finite_types(b, list, out);
        }
    }
    b->depth--;
    b->n_terms = begin;
    return finite && schema_ok(b);
}

/* ---- the whole ---- */

static void build_rule(schema_build *b, size_t i) {
    schema_rule rule = b->rules[i];
    bool has_ref;
    terms list = schema_list(b);
    for (size_t k = 0; k < rule.n_key && schema_ok(b); k++)
        schema_push(b, &list, b->keys[rule.key + k].schema, b->keys[rule.key + k].done);
    b->place.n = 0;
    bytes_append_text(&b->place, rule.place ? rule.place : "");
    take_apart(b, &list, true, &has_ref);
    bool possible = drop_silent(b, &list);
    uint32_t node = NET_FAIL;
    if (schema_ok(b)) node = possible ? chosen_value(b, list, NET_END) : schema_never(b, "no value is allowed");
    if (schema_ok(b)) b->g->rules[rule.rule] = node;
    b->n_terms = 0;
}

/* The rules too. */
static uint32_t build(schema_build *b, terms list, uint32_t next) {
    uint32_t root = schema_ok(b) ? schema_value(b, list, next) : (uint32_t)NET_FAIL;
    for (size_t i = 0; i < b->n_rules && schema_ok(b); i++) build_rule(b, i);
    net_check(b->g, bytes_status(&b->place));
    for (size_t i = 0; i < b->n_rules; i++) mem_free(b->rules[i].place);
    mem_free(b->rules);
    mem_free(b->keys);
    mem_free(b->terms);
    schema_ways_clear(b);
    bytes_clear(&b->place);
    return root;
}

uint32_t schema_strings(schema_build *b, net *g, const json *schema, uint32_t next) {
    static const json_member type = {"type", 4, {.kind = JSON_STRING, .n = 6, .string = "string"}};
    static const json is_string = {.kind = JSON_OBJECT, .n = 1, .members = &type};
    schema_build own = {.g = g,
                        .root = b->root,
                        .resources = b->resources,
                        .n_resources = b->n_resources,
                        .anchors = b->anchors,
                        .n_anchors = b->n_anchors,
                        .refs = b->refs,
                        .n_refs = b->n_refs,
                        .work = b->work,
                        .depth = b->depth};
    bytes_append(&own.place, b->place.data, b->place.n);
    terms list = schema_list(&own);
    schema_push(&own, &list, &is_string, 0);
    schema_push(&own, &list, schema, 0);
    uint32_t root = build(&own, list, next);
    b->work = own.work;
    net_check(b->g, g->status);
    return root;
}

uint32_t net_schema(net *g, const json *schema) {
    schema_build b = {.g = g, .root = schema};
    if (g->status != MN_OK) return NET_FAIL;
    bytes_append_text(&b.place, "$");
    schema_index(&b);
    terms list = schema_list(&b);
    schema_push(&b, &list, schema, 0);
    uint32_t root = build(&b, list, NET_END);
    schema_index_clear(&b);
    return root;
}
