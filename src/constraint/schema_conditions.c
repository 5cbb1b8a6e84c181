/* Conditions: not, if, dependentSchemas and oneOf as choices between schemas that need none of them.
 *
 * A negation is pushed inwards by one keyword at a time: `not` of an object of keywords is a choice between schemas,
 * each of which contradicts one of them and negates what that one holds by a `not` of its own. All of them say which
 * type they speak of, since no value of another type contradicts a keyword. What is made is remembered by what it was
 * made of, so that recursive schemas make finitely many.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "constraint/schema.h"

/* ---- making schemas ---- */

static const json truth = {.kind = JSON_BOOL, .boolean = true}, falsehood = {.kind = JSON_BOOL};

static json text_value(const char *text) {
    return (json){.kind = JSON_STRING, .n = strlen(text), .string = text};
}

static json_member member(const char *key, json value) {
    return (json_member){.key = key, .key_n = strlen(key), .value = value};
}

/* A copy that lives as long as b; NULL with a failure. */
static const void *keep(schema_build *b, const void *data, size_t n) {
    if (!schema_charge(b, 1) ||
        !net_check(b->g, mem_grow(&b->blocks, &b->blocks_capacity, b->n_blocks + 1, sizeof *b->blocks)))
        return NULL;
    void *copy = mem_alloc(n, 1);
    if (!copy) {
        net_check(b->g, MN_E_NOMEM);
        return NULL;
    }
    memcpy(copy, data, n);
    return b->blocks[b->n_blocks++] = copy;
}

static json array_of(schema_build *b, const json *items, size_t n) {
    json out = {.kind = JSON_ARRAY, .items = keep(b, items, n * sizeof *items)};
    out.n = out.items ? n : 0;
    return out;
}

static json object_of(schema_build *b, const json_member *members, size_t n) {
    json out = {.kind = JSON_OBJECT, .members = keep(b, members, n * sizeof *members)};
    out.n = out.members ? n : 0;
    return out;
}

static json one_keyword(schema_build *b, const char *key, json value) {
    json_member m = member(key, value);
    return object_of(b, &m, 1);
}

static json negated(schema_build *b, const json *schema) {
    if (schema->kind == JSON_BOOL) return schema->boolean ? falsehood : truth;
    return one_keyword(b, "not", *schema);
}

static json both(schema_build *b, json x, json y) {
    const json items[] = {x, y};
    return one_keyword(b, "allOf", array_of(b, items, 2));
}

/* Objects that have the member, or (optional) may lack it. */
static json with_member(schema_build *b, const char *name, size_t n, json value, bool optional) {
    json key = {.kind = JSON_STRING, .n = n, .string = name};
    json_member own = {.key = name, .key_n = n, .value = value};
    const json_member members[] = {member("type", text_value("object")), member("properties", object_of(b, &own, 1)),
                                   member("required", array_of(b, &key, 1))};
    return object_of(b, members, optional ? 2 : 3);
}

static json without_member(schema_build *b, const char *name, size_t n) {
    return with_member(b, name, n, falsehood, true);
}

/* Values of a type under one more keyword. */
static json typed(schema_build *b, const char *type, const char *key, json value) {
    const json_member members[] = {member("type", text_value(type)), member(key, value)};
    return object_of(b, members, 2);
}

static bool is_silent(const json *schema) {
    return schema->kind == JSON_BOOL ? schema->boolean : schema->kind == JSON_OBJECT && schema->n == 0;
}

/* ---- the choices of a term, while they are made ---- */

typedef struct maker {
    schema_build *b;
    const json *schema; /* whose choices these are */
    json *sides, *mains;
    size_t n, sides_capacity, mains_capacity;
} maker;

static void add_way(maker *m, json side, json main) {
    net *g = m->b->g;
    if (!net_check(g, mem_grow(&m->sides, &m->sides_capacity, m->n + 1, sizeof *m->sides)) ||
        !net_check(g, mem_grow(&m->mains, &m->mains_capacity, m->n + 1, sizeof *m->mains)))
        return;
    m->sides[m->n] = side;
    m->mains[m->n++] = main;
}

static void contradict(maker *m, json schema) {
    add_way(m, schema, truth);
}

/* ---- what contradicts a keyword ---- */

static void refuse_keyword(maker *m, const json_member *k) {
    schema_fail(m->b, MN_E_UNSUPPORTED,
                "'not' of '%.60s' is not supported, nor what takes it: 'if', and a 'oneOf' whose branches may both "
                "hold (use anyOf)",
                k->key);
}

static const json_member fraction_members[] = {
    {"type", 4, {.kind = JSON_STRING, .n = 6, .string = "number"}},
    {"not",
     3,
     {.kind = JSON_OBJECT,
      .n = 1,
      .members = &(const json_member){"type", 4, {.kind = JSON_STRING, .n = 7, .string = "integer"}}}}};

static void contradict_type(maker *m, const json_member *k) {
    static const struct {
        const char *name;
        unsigned bits;
    } names[] = {{"null", VALUE_NULL},     {"boolean", VALUE_BOOL}, {"number", VALUE_NUMBER},
                 {"string", VALUE_STRING}, {"array", VALUE_ARRAY},  {"object", VALUE_OBJECT}};
    json list[sizeof names / sizeof *names];
    size_t n = 0;
    unsigned types = schema_types(m->b, m->schema);
    (void)k;
    if (schema_fits(m->b, m->schema)) return; /* what is of another type is another constant, too */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!(types & names[i].bits)) list[n++] = text_value(names[i].name);
    }
    if (n) contradict(m, one_keyword(m->b, "type", array_of(m->b, list, n)));
    if ((types & VALUE_NUMBER) == VALUE_INT)
        contradict(m, (json){.kind = JSON_OBJECT, .n = 2, .members = fraction_members});
}

bool schema_is_fraction(const json *schema) {
    return schema->kind == JSON_OBJECT && schema->members == fraction_members;
}

static void contradict_constants(maker *m, const json_member *k) {
    contradict(m, one_keyword(m->b, "not", one_keyword(m->b, k->key, k->value)));
}

static bool names_member(schema_build *b, const json *required, const char *name) {
    bool found = false;
    for (size_t i = 0; required && required->kind == JSON_ARRAY && i < required->n && !found && schema_charge(b, 1);
         i++)
        found = json_is_string(&required->items[i], name);
    return found;
}

/* Whether this is the last member of its name, which is the one that counts. */
static bool counts(schema_build *b, const json *object, const json_member *p) {
    return schema_charge(b, 1 + object->n / 16) && json_get(object, p->key) == &p->value;
}

/* A member that is required may also be missing: one choice for both. */
static void contradict_properties(maker *m, const json_member *k) {
    const json *required = json_get(m->schema, "required");
    if (k->value.kind != JSON_OBJECT) schema_fail(m->b, MN_E_ARG, "'properties' must be an object");
    for (size_t i = 0; i < k->value.n && schema_ok(m->b); i++) {
        const json_member *p = &k->value.members[i];
        bool optional = names_member(m->b, required, p->key);
        if (counts(m->b, &k->value, p) && !is_silent(&p->value))
            contradict(m, with_member(m->b, p->key, p->key_n, negated(m->b, &p->value), optional));
    }
}

static bool check_names(maker *m, const char *keyword, const json *names) {
    bool good = names->kind == JSON_ARRAY;
    for (size_t i = 0; good && i < names->n; i++) good = names->items[i].kind == JSON_STRING;
    if (!good) schema_fail(m->b, MN_E_ARG, "'%s' must have arrays of names", keyword);
    return schema_ok(m->b);
}

static void contradict_required(maker *m, const json_member *k) {
    const json *properties = json_get(m->schema, "properties");
    for (size_t i = 0; check_names(m, k->key, &k->value) && i < k->value.n; i++) {
        const json *own = json_get(properties, k->value.items[i].string);
        if (!own || is_silent(own)) contradict(m, without_member(m->b, k->value.items[i].string, k->value.items[i].n));
    }
}

static void contradict_dependent(maker *m, const json_member *k) {
    bool names = strcmp(k->key, "dependentRequired") == 0;
    if (k->value.kind != JSON_OBJECT) schema_fail(m->b, MN_E_ARG, "'%s' must be an object", k->key);
    for (size_t i = 0; schema_ok(m->b) && i < k->value.n; i++) {
        const json_member *p = &k->value.members[i];
        if (!counts(m->b, &k->value, p)) continue;
        json there = with_member(m->b, p->key, p->key_n, truth, false);
        if (!names) contradict(m, both(m->b, there, negated(m->b, &p->value)));
        for (size_t j = 0; names && check_names(m, k->key, &p->value) && j < p->value.n; j++)
            contradict(m, both(m->b, there, without_member(m->b, p->value.items[j].string, p->value.items[j].n)));
    }
}

static void contradict_counts(maker *m, const json_member *k) {
    static const struct {
        const char *type, *least, *most;
    } rows[] = {{"string", "minLength", "maxLength"},
                {"array", "minItems", "maxItems"},
                {"object", "minProperties", "maxProperties"}};
    schema_build *b = m->b;
    size_t i = 0;
    uint32_t min, max;
    while (strcmp(k->key, rows[i].least) != 0 && strcmp(k->key, rows[i].most) != 0) i++;
    bool is_least = strcmp(k->key, rows[i].least) == 0;
    terms list = schema_list(b);
    schema_push(b, &list, m->schema, 0);
    schema_counts(b, list, rows[i].least, rows[i].most, &min, &max);
    b->n_terms = list.at;
    json count = {.kind = JSON_INT, .integer = is_least ? (int64_t)min - 1 : (int64_t)max + 1};
    if (is_least ? min > 0 : max < NET_MANY - 1)
        contradict(m, typed(b, rows[i].type, is_least ? rows[i].most : rows[i].least, count));
}

static void contradict_limits(maker *m, const json_member *k) {
    static const struct {
        const char *key, *exclusive, *other, *other_exclusive;
    } rows[] = {{"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"},
                {"maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"}};
    size_t i = strcmp(k->key, "minimum") != 0 && strcmp(k->key, "exclusiveMinimum") != 0;
    const json *flag = json_get(m->schema, rows[i].exclusive);
    bool is_limit = strcmp(k->key, rows[i].key) == 0, open = flag && flag->kind == JSON_BOOL && flag->boolean;
    if (!is_limit && k->value.kind == JSON_BOOL) return; /* said of the limit, as in draft 4 */
    contradict(m, typed(m->b, "number", is_limit && !open ? rows[i].other_exclusive : rows[i].other, k->value));
}

/* An array whose item `index` is not valid, or that has one. */
static json with_item(schema_build *b, size_t index, const json *schema) {
    json *items = NULL, count = {.kind = JSON_INT, .integer = (int64_t)index + 1}, out = falsehood;
    size_t capacity = 0;
    if (!schema_charge(b, index) || !net_check(b->g, mem_grow(&items, &capacity, index + 1, sizeof *items))) return out;
    for (size_t i = 0; i < index; i++) items[i] = truth;
    items[index] = negated(b, schema);
    const json_member members[] = {member("type", text_value("array")), member("minItems", count),
                                   member("prefixItems", array_of(b, items, index + 1))};
    mem_free(items);
    return object_of(b, members, 3);
}

static void contradict_items(maker *m, const json_member *k) {
    size_t prefix = schema_prefix(m->schema);
    const json *rest = schema_item_of(m->b, m->schema, prefix);
    if (strcmp(k->key, "items") != 0 && json_get(m->schema, "items")) return; /* all are done there */
    for (size_t i = 0; i < prefix && schema_ok(m->b); i++) {
        const json *item = schema_item_of(m->b, m->schema, i);
        if (!is_silent(item)) contradict(m, with_item(m->b, i, item));
    }
    if (!rest || is_silent(rest)) return;
    if (rest->kind == JSON_BOOL) {
        contradict(m, with_item(m->b, prefix, rest));
    } else {
        refuse_keyword(m, k);
    }
}

static bool check_branches(maker *m, const json_member *k) {
    if (k->value.kind != JSON_ARRAY || k->value.n == 0)
        schema_fail(m->b, MN_E_ARG, "'%s' must be an array of schemas", k->key);
    return schema_ok(m->b);
}

static void contradict_all(maker *m, const json_member *k) {
    for (size_t i = 0; check_branches(m, k) && i < k->value.n; i++) contradict(m, negated(m->b, &k->value.items[i]));
}

/* None of the branches but `kept` (or none at all) and those that are apart from it. */
static json none_of(schema_build *b, const json *branches, size_t kept) {
    maker m = {.b = b};
    for (size_t i = 0; i < branches->n && schema_ok(b); i++) {
        bool apart = kept < branches->n && schema_apart(b, &branches->items[kept], &branches->items[i], 0);
        if (i != kept && !apart) contradict(&m, negated(b, &branches->items[i]));
    }
    json out = m.n ? one_keyword(b, "allOf", array_of(b, m.sides, m.n)) : truth;
    mem_free(m.sides);
    mem_free(m.mains);
    return out;
}

static void contradict_any(maker *m, const json_member *k) {
    bool one = strcmp(k->key, "oneOf") == 0;
    if (!check_branches(m, k)) return;
    contradict(m, none_of(m->b, &k->value, k->value.n));
    for (size_t i = 0; one && i < k->value.n; i++) {
        for (size_t j = 0; j < i && schema_ok(m->b); j++) {
            const json *x = &k->value.items[j], *y = &k->value.items[i];
            if (!schema_apart(m->b, x, y, 0)) contradict(m, both(m->b, *x, *y));
        }
    }
}

static void contradict_not(maker *m, const json_member *k) {
    contradict(m, k->value);
}

static void contradict_if(maker *m, const json_member *k) {
    const json *then = json_get(m->schema, "then"), *other = json_get(m->schema, "else");
    if (then) contradict(m, both(m->b, k->value, negated(m->b, then)));
    if (other) contradict(m, both(m->b, negated(m->b, &k->value), negated(m->b, other)));
}

static void contradict_ref(maker *m, const json_member *k) {
    const json *target = schema_target(m->b, &k->value);
    if (target) contradict(m, negated(m->b, target));
}

static void contradict_true_only(maker *m, const json_member *k) {
    if (!is_silent(&k->value)) refuse_keyword(m, k);
}

static void contradict_nothing(maker *m, const json_member *k) {
    (void)m;
    (void)k;
}

static void contradict_keyword(maker *m, const json_member *k) {
    static const struct {
        const char *key;
        void (*contradict)(maker *m, const json_member *k);
    } rows[] = {{"type", contradict_type},
                {"const", contradict_constants},
                {"enum", contradict_constants},
                {"properties", contradict_properties},
                {"required", contradict_required},
                {"additionalProperties", contradict_true_only},
                {"minProperties", contradict_counts},
                {"maxProperties", contradict_counts},
                {"dependentRequired", contradict_dependent},
                {"dependentSchemas", contradict_dependent},
                {"items", contradict_items},
                {"prefixItems", contradict_items},
                {"additionalItems", contradict_nothing}, /* done with items */
                {"minItems", contradict_counts},
                {"maxItems", contradict_counts},
                {"minLength", contradict_counts},
                {"maxLength", contradict_counts},
                {"minimum", contradict_limits},
                {"maximum", contradict_limits},
                {"exclusiveMinimum", contradict_limits},
                {"exclusiveMaximum", contradict_limits},
                {"allOf", contradict_all},
                {"anyOf", contradict_any},
                {"oneOf", contradict_any},
                {"not", contradict_not},
                {"if", contradict_if},
                {"$ref", contradict_ref}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(k->key, rows[i].key) == 0) {
            rows[i].contradict(m, k);
            return;
        }
    }
    if (!schema_is_annotation(k)) refuse_keyword(m, k);
}

/* ---- schemas that choose or negate themselves ---- */

/* Schemas of the same value, each once. */
typedef struct reached {
    schema_build *b;
    const char *what; /* for the failure */
    const json **schemas;
    size_t n, capacity;
} reached;

static void reach(reached *r, const json *schema) {
    if (!schema || schema->kind != JSON_OBJECT || schema->n == 0) return;
    if (r->n && schema->members == r->schemas[0]->members)
        schema_fail(r->b, MN_E_ARG, "%s leads back to itself", r->what);
    for (size_t i = 1; i < r->n && schema_charge(r->b, 1); i++) {
        if (schema->members == r->schemas[i]->members) return;
    }
    if (schema_ok(r->b) && net_check(r->b->g, mem_grow(&r->schemas, &r->capacity, r->n + 1, sizeof *r->schemas)))
        r->schemas[r->n++] = schema;
}

/* Fails when a schema speaks of the same value again through references: then its own branch or negation would decide
 * whether it holds. */
static void check_returns(schema_build *b, const json *schema, const char *what) {
    static const char *const keys[] = {"not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas"};
    reached r = {.b = b, .what = what};
    reach(&r, schema);
    for (size_t i = 0; i < r.n && schema_ok(b); i++) {
        const json *ref = json_get(r.schemas[i], "$ref");
        if (ref) reach(&r, schema_target(b, ref));
        for (size_t k = 0; k < sizeof keys / sizeof *keys && schema_ok(b); k++) {
            const json *inner = json_get(r.schemas[i], keys[k]);
            bool map = k + 1 == sizeof keys / sizeof *keys;
            if (!inner || inner->kind < JSON_ARRAY) continue;
            if (inner->kind == JSON_OBJECT && !map) reach(&r, inner);
            for (size_t j = 0; (inner->kind == JSON_ARRAY || map) && j < inner->n && schema_ok(b); j++)
                reach(&r, inner->kind == JSON_ARRAY ? &inner->items[j] : &inner->members[j].value);
        }
    }
    mem_free(r.schemas);
}

/* ---- the choices of a term ---- */

static void make_not(maker *m) {
    check_returns(m->b, m->schema, "the negation of a schema");
    for (size_t i = 0; i < m->schema->n && schema_ok(m->b); i++) {
        const json_member *k = &m->schema->members[i];
        if (counts(m->b, m->schema, k)) contradict_keyword(m, k);
    }
}

static void make_if(maker *m) {
    const json *condition = json_get(m->schema, "if"), *then = json_get(m->schema, "then"),
               *other = json_get(m->schema, "else");
    add_way(m, *condition, then ? *then : truth);
    add_way(m, negated(m->b, condition), other ? *other : truth);
}

static void make_one(maker *m) {
    const json *branches = json_get(m->schema, "oneOf");
    check_returns(m->b, m->schema, "'oneOf'");
    for (size_t i = 0; i < branches->n && schema_ok(m->b); i++)
        add_way(m, none_of(m->b, branches, i), branches->items[i]);
}

static void make_dependent(maker *m) {
    const json *all = json_get(m->schema, "dependentSchemas");
    if (all->kind != JSON_OBJECT) schema_fail(m->b, MN_E_ARG, "'dependentSchemas' must be an object of schemas");
    for (size_t i = 0; schema_ok(m->b) && i < all->n; i++) {
        const json_member *p = &all->members[i];
        json_member parts[] = {member("if", with_member(m->b, p->key, p->key_n, truth, false)),
                               member("then", p->value)};
        if (counts(m->b, all, p) && !is_silent(&p->value)) add_way(m, truth, object_of(m->b, parts, 2));
    }
}

/* The choices made of a schema's keyword, once. */
static ways made_of(schema_build *b, const json *schema, unsigned bit) {
    schema_charge(b, b->n_made / 16); /* pointers are compared in no time */
    for (size_t i = 0; i < b->n_made; i++) {
        if (b->made[i].of == schema->members && b->made[i].n == schema->n && b->made[i].bit == bit)
            return b->made[i].ways;
    }
    maker m = {.b = b, .schema = schema};
    if (!schema_ok(b) || !net_check(b->g, mem_grow(&b->made, &b->made_capacity, b->n_made + 1, sizeof *b->made)))
        return (ways){0};
    if (bit == TERM_ANY) check_returns(b, schema, "'anyOf'"); /* its branches are ways as they are */
    if (bit == TERM_NOT) make_not(&m);
    if (bit == TERM_IF) make_if(&m);
    if (bit == TERM_ONE) make_one(&m);
    if (bit == TERM_DEPENDENT) make_dependent(&m);
    ways made = {m.sides, m.mains, m.n};
    b->made[b->n_made++] = (schema_made){.of = schema->members, .n = schema->n, .bit = bit, .ways = made};
    return made;
}

ways schema_ways(schema_build *b, const json *schema, unsigned bit) {
    const json *no = json_get(schema, "not"), *any = json_get(schema, "anyOf"), *one = json_get(schema, "oneOf");
    const json *branches = bit == TERM_ANY ? any : bit == TERM_ONE ? one : NULL;
    if (branches && (branches->kind != JSON_ARRAY || branches->n == 0))
        schema_fail(b, MN_E_ARG, "'%s' must be an array of schemas", bit == TERM_ANY ? "anyOf" : "oneOf");
    if (bit == TERM_NOT && no->kind != JSON_OBJECT && no->kind != JSON_BOOL)
        schema_fail(b, MN_E_ARG, "'not' must be a schema");
    if (!schema_ok(b)) return (ways){0};
    if (bit == TERM_ANY) {
        made_of(b, schema, bit);
        return (ways){.mains = any->items, .n = schema_ok(b) ? any->n : 0};
    }
    if (bit == TERM_NOT && no->kind == JSON_BOOL) return (ways){.sides = &truth, .n = !no->boolean};
    return made_of(b, bit == TERM_NOT ? no : schema, bit);
}

void schema_ways_clear(schema_build *b) {
    for (size_t i = 0; i < b->n_made; i++) {
        mem_free((void *)b->made[i].ways.sides);
        mem_free((void *)b->made[i].ways.mains);
    }
    for (size_t i = 0; i < b->n_blocks; i++) mem_free(b->blocks[i]);
    mem_free(b->made);
    mem_free(b->blocks);
}

/* ---- constants that are excluded ---- */

const json *schema_excluded(const json *schema, size_t *n) {
    const json *no = json_get(schema, "not"), *one = json_get(no, "const"), *several = json_get(no, "enum");
    if ((one != NULL) + (several != NULL) != 1 || (several && several->kind != JSON_ARRAY)) return NULL;
    for (size_t i = 0; i < no->n; i++) {
        const json_member *k = &no->members[i];
        if (strcmp(k->key, one ? "const" : "enum") != 0 && !schema_is_annotation(k)) return NULL;
    }
    *n = one ? 1 : several->n;
    return one ? one : several->items;
}

void schema_gather_excluded(schema_build *b, terms list, unsigned kinds, constants *out) {
    for (size_t i = 0; i < list.n; i++) {
        size_t n;
        const json *values = schema_excluded(schema_term(b, list, i), &n);
        for (size_t k = 0; values && k < n && schema_charge(b, 1); k++) {
            if (kinds >> values[k].kind & 1) constants_add(b, out, &values[k]);
        }
    }
}

bool schema_excludes_empty(schema_build *b, terms list, json_kind kind) {
    constants found = {0};
    schema_gather_excluded(b, list, 1u << kind, &found);
    for (size_t i = 0; i < found.n; i++) {
        if (found.values[i]->n)
            schema_fail(b, MN_E_UNSUPPORTED,
                        "'not' of a constant that is an array or object is only supported for [] and {}");
    }
    mem_free(found.values);
    return found.n > 0;
}

/* ---- lists that no value can meet ---- */

static bool is_required(schema_build *b, terms list, const char *name) {
    bool found = false;
    for (size_t i = 0; i < list.n && !found; i++)
        found = names_member(b, json_get(schema_term(b, list, i), "required"), name);
    return found;
}

/* Whether two terms exclude each other by a member that some term requires. */
static bool members_clash(schema_build *b, terms list, const json *x, const json *y) {
    const json *of_x = json_get(x, "properties"), *of_y = json_get(y, "properties"), *needs = json_get(x, "required");
    bool clash = false;
    for (size_t i = 0; of_x && of_x->kind == JSON_OBJECT && i < of_x->n && !clash && schema_charge(b, 1); i++) {
        const json_member *p = &of_x->members[i];
        const json *other = json_get(of_y, p->key);
        bool never = p->value.kind == JSON_BOOL && !p->value.boolean;
        if (!never && !other) continue;
        clash = (never || schema_apart(b, &p->value, other, 1)) && is_required(b, list, p->key);
    }
    for (size_t i = 0; needs && needs->kind == JSON_ARRAY && i < needs->n && !clash && schema_charge(b, 1); i++) {
        const json *other = needs->items[i].kind == JSON_STRING ? json_get(of_y, needs->items[i].string) : NULL;
        clash = other && other->kind == JSON_BOOL && !other->boolean;
    }
    return clash;
}

bool schema_clash(schema_build *b, terms list, size_t from) {
    bool clash = false;
    for (size_t i = from; i < list.n && !clash; i++) {
        const json *x = schema_term(b, list, i);
        clash = x->kind == JSON_BOOL && !x->boolean;
        for (size_t k = 0; k < i && !clash && schema_charge(b, 1); k++) {
            const json *y = schema_term(b, list, k);
            clash = schema_apart(b, x, y, 0) || members_clash(b, list, x, y);
        }
    }
    return clash;
}
