/* Schemas of objects and arrays.
 * SPDX-License-Identifier: Apache-2.0 */
#include "constraint/schema_names.h"

#include <string.h>

#include "base/utf8.h"

enum { DEPENDENCIES = 8 }; /* each one doubles the ways to build an object */

/* ---- places ---- */

static size_t enter_name(schema_build *b, const char *name) {
    size_t before = b->place.n;
    size_t n = strlen(name);
    bytes_printf(&b->place, ".%.*s", (int)utf8_valid_prefix(name, n < 40 ? n : 40), name);
    return before;
}

static size_t enter_item(schema_build *b, size_t index, bool any) {
    size_t before = b->place.n;
    if (any) {
        bytes_append_text(&b->place, "[*]");
    } else {
        bytes_printf(&b->place, "[%zu]", index);
    }
    return before;
}

/* ---- objects ---- */

typedef struct property {
    const char *name;
    size_t n;
    bool required, banned;
    uint32_t state; /* behind its name, where an automaton reads the names */
} property;

typedef struct object {
    schema_build *b;
    terms list;
    property *properties; /* in the order of the schema */
    size_t n, capacity;
    bool open;         /* members of other names may follow */
    uint32_t min, max; /* members in all; max is NET_MANY without a limit */
    bool shared;       /* members are built several times */
    member_names names;
    uint32_t others; /* a member of another name, where an automaton reads the names */
} object;

static property *find_property(object *o, const char *name) {
    for (size_t i = 0; i < o->n && schema_charge(o->b, 1); i++) {
        if (strcmp(o->properties[i].name, name) == 0) return &o->properties[i];
    }
    return NULL;
}

static void add_property(object *o, const char *name, size_t n) {
    schema_build *b = o->b;
    if (memchr(name, 0, n)) {
        schema_fail(b, MN_E_UNSUPPORTED, "a name with a zero character is not supported");
    } else if (net_check(b->g, mem_grow(&o->properties, &o->capacity, o->n + 1, sizeof *o->properties))) {
        o->properties[o->n++] = (property){.name = name, .n = n};
    }
}

static property *declare(object *o, const char *name, size_t n) {
    property *p = find_property(o, name);
    if (p) return p;
    add_property(o, name, n);
    return schema_ok(o->b) ? &o->properties[o->n - 1] : NULL;
}

static void gather_properties(object *o) {
    for (size_t i = 0; i < o->list.n; i++) {
        const json *properties = json_get(schema_term(o->b, o->list, i), "properties");
        if (!properties) continue;
        if (properties->kind != JSON_OBJECT) schema_fail(o->b, MN_E_ARG, "'properties' must be an object");
        for (size_t k = 0; properties->kind == JSON_OBJECT && k < properties->n && schema_ok(o->b); k++) {
            const json_member *m = &properties->members[k];
            bool counts = schema_charge(o->b, properties->n / 16) &&
                          json_get(properties, m->key) == &m->value; /* the last of its name */
            if (counts && (o->list.n == 1 || !find_property(o, m->key))) add_property(o, m->key, m->key_n);
        }
    }
}

static void gather_required(object *o) {
    for (size_t i = 0; i < o->list.n; i++) {
        const json *required = json_get(schema_term(o->b, o->list, i), "required");
        if (!required) continue;
        if (required->kind != JSON_ARRAY) schema_fail(o->b, MN_E_ARG, "'required' must be an array of names");
        for (size_t k = 0; required->kind == JSON_ARRAY && k < required->n && schema_ok(o->b); k++) {
            const json *name = &required->items[k];
            if (name->kind != JSON_STRING) {
                schema_fail(o->b, MN_E_ARG, "'required' must be an array of names");
                return;
            }
            property *p = declare(o, name->string, name->n);
            if (p) p->required = true;
        }
    }
}

/* Members that neither properties nor patternProperties name are generated where the schema specifies them:
 * additionalProperties that is not false, or neither of the two at all. */
static void decide_open(object *o) {
    bool allowed = true, named = false, specified = false;
    for (size_t i = 0; i < o->list.n; i++) {
        const json *schema = schema_term(o->b, o->list, i), *others = json_get(schema, "additionalProperties");
        bool is_side = o->b->terms[o->list.at + i].done & TERM_SIDE;
        named |= !is_side && (json_get(schema, "properties") || json_get(schema, "patternProperties"));
        specified |= !is_side && others;
        if (!others) continue;
        if (others->kind != JSON_BOOL && others->kind != JSON_OBJECT)
            schema_fail(o->b, MN_E_ARG, "'additionalProperties' must be a schema");
        if (others->kind == JSON_BOOL && !others->boolean) allowed = false;
    }
    o->open = allowed && (specified || !named);
}

/* The constraints of all terms on the member of that name; NULL: on one whose name is not declared. state: behind the
 * name, where an automaton reads the names. */
static terms terms_of_member(object *o, const char *name, uint32_t state) {
    schema_build *b = o->b;
    terms member = schema_list(b);
    for (size_t i = 0; i < o->list.n && schema_ok(b); i++) {
        const json *schema = schema_term(b, o->list, i), *properties = json_get(schema, "properties");
        const json *own =
            name && properties && schema_charge(b, properties->n / 16) ? json_get(properties, name) : NULL;
        const json *others = json_get(schema, "additionalProperties");
        size_t before = member.n;
        if (own) schema_push(b, &member, own, 0);
        for (size_t k = 0; k < o->names.n_patterns && schema_charge(b, 1); k++) {
            const name_pattern *p = &o->names.patterns[k];
            if (p->term == i && names_match(&o->names, p, state)) schema_push(b, &member, p->schema, 0);
        }
        if (others && member.n == before) schema_push(b, &member, others, 0);
    }
    return member;
}

/* From the colon on. */
static uint32_t member_value(object *o, const char *name, uint32_t state, uint32_t next) {
    schema_build *b = o->b;
    const name_pattern *pattern = name ? NULL : names_first(&o->names, state);
    size_t before = enter_name(b, name ? name : pattern ? pattern->text : "*");
    terms member = terms_of_member(o, name, state);
    uint32_t value = o->shared ? schema_shared_value(b, member, next) : schema_value(b, member, next);
    b->place.n = before;
    return net_bytes(b->g, ':', ':', net_plain(b->g, " ?", value));
}

/* ---- members of other names ---- */

/* A member whose name is not declared, from the quote to the end of its value. */
static uint32_t other_member(object *o, uint32_t next) {
    if (o->names.automaton) return net_repeat(o->b->g, o->others, 1, 1, next);
    return names_undeclared(&o->names, member_value(o, NULL, RUN_DEAD, next));
}

/* The same where an automaton reads the names: built once for all places. */
static uint32_t build_others(object *o) {
    member_names *n = &o->names;
    schema_build *b = o->b;
    size_t n_states = names_explore(n), ends = 0;
    uint32_t *values = mem_alloc(n_states, sizeof *values);
    bool shared = o->shared;
    if (!values) {
        net_check(b->g, MN_E_NOMEM);
        return NET_FAIL;
    }
    for (uint32_t s = 0; s < n_states; s++) ends += names_end(n, s);
    o->shared |= ends > 1;
    for (uint32_t s = 0; s < n_states && schema_ok(b); s++) {
        bool may_end = names_end(n, s) && (o->open || names_first(n, s));
        values[s] = may_end ? member_value(o, NULL, s, NET_END) : (uint32_t)NET_FAIL;
    }
    o->shared = shared;
    uint32_t node = schema_ok(b) ? names_others(n, values) : (uint32_t)NET_FAIL;
    mem_free(values);
    return node;
}

/* Reads the declared names as the terms' patterns and "propertyNames" have it, and decides on the others. */
static void judge_names(object *o) {
    member_names *n = &o->names;
    for (size_t i = 0; i < o->n && schema_ok(o->b) && (o->open || n->automaton); i++)
        names_declare(n, o->properties[i].name, o->properties[i].n);
    if (!n->automaton) return;
    names_build(n, o->list);
    for (size_t i = 0; i < o->n && schema_ok(o->b); i++) {
        property *p = &o->properties[i];
        p->state = names_read(n, p->name, p->n);
        p->banned = p->state == RUN_DEAD;
        if (p->required && p->banned)
            schema_never(o->b, "the required name '%.60s' is not one of 'propertyNames'", p->name);
    }
    if (schema_ok(o->b) && (o->open || n->n_patterns)) o->others = build_others(o);
    o->open = o->others != NET_FAIL;
}

/* ---- an object from left to right ---- */

static uint32_t declared_name(object *o, const property *p, uint32_t next) {
    bytes text = {0};
    json_put_string(&text, p->name, p->n);
    net_check(o->b->g, bytes_status(&text));
    uint32_t node = net_literal(o->b->g, text.data, text.failed ? 0 : text.n, next);
    bytes_clear(&text);
    return node;
}

/* Where a place between two members leads. */
typedef struct place {
    uint32_t *after; /* by how many members were written: a comma must come first */
    uint32_t bare;   /* none was written yet */
} place;

/* Behind the declared members. Members of other names may have the same name, so all of them together are counted as
 * one for the least number. */
static void end_members(object *o, size_t most, place *at, uint32_t close) {
    net *g = o->b->g;
    uint32_t end = net_json_space(g, close), loop = NET_FAIL, member = NET_FAIL, more = NET_FAIL;
    bool limited = o->max != NET_MANY;
    if (o->open) {
        if (!limited) loop = net_loop(g, end);
        member = other_member(o, limited ? (uint32_t)NET_END : loop);
        more = net_bytes(g, ',', ',', net_json_space(g, member));
        if (!limited) net_loop_body(g, loop, more);
        if (limited && o->max > 0) member = other_member(o, net_repeat(g, more, 0, o->max - 1, end));
    }
    for (size_t n = 0; n <= most; n++) {
        bool enough = n >= o->min, nearly = n + 1 >= o->min;
        uint32_t some = enough ? end : (uint32_t)NET_FAIL;
        if (o->open && nearly && limited) some = net_repeat(g, more, !enough, o->max - (uint32_t)n, end);
        if (o->open && nearly && !limited) some = enough ? loop : more;
        at->after[n] = some;
    }
    at->bare = net_split(g, o->open && o->max > 0 && o->min <= 1 ? member : (uint32_t)NET_FAIL,
                         o->min == 0 ? close : (uint32_t)NET_FAIL);
}

/* Members in the order of the schema, from the last to the first. They are counted as far as the limits ask. */
static uint32_t build_object(object *o, uint32_t next) {
    net *g = o->b->g;
    size_t most = o->max == NET_MANY ? o->min : o->max < o->n ? o->max : o->n;
    place at = {.after = mem_alloc(most + 1, sizeof *at.after)};
    if (!at.after) {
        net_check(g, MN_E_NOMEM);
        return NET_FAIL;
    }
    end_members(o, most, &at, net_bytes(g, '}', '}', next));
    for (size_t i = o->n; i-- > 0 && schema_ok(o->b);) {
        const property *p = &o->properties[i];
        for (size_t n = 0; n <= most && n <= i && schema_charge(o->b, 1); n++) {
            uint32_t behind = n >= o->max || p->banned ? (uint32_t)NET_FAIL : at.after[n < most ? n + 1 : most];
            uint32_t member = declared_name(o, p, member_value(o, p->name, p->state, behind));
            uint32_t next_member = net_bytes(g, ',', ',', net_json_space(g, member));
            if (n == 0) at.bare = p->required ? member : net_split(g, member, at.bare);
            at.after[n] = p->required ? next_member : net_split(g, next_member, at.after[n]);
        }
    }
    mem_free(at.after);
    return net_bytes(g, '{', '{', net_json_space(g, at.bare));
}

/* Whether the least number of members can be met, by members that certainly have different names. */
static bool check_least(object *o) {
    if (o->min <= o->n + o->open) return true;
    if (o->open) {
        schema_fail(o->b, MN_E_UNSUPPORTED,
                    "'minProperties' is %u, supported with these 'properties' up to %zu: others may have the same name",
                    o->min, o->n + 1);
    } else {
        schema_never(o->b, "at least %u members, but only %zu are declared", o->min, o->n);
    }
    return false;
}

/* ---- members that require others ---- */

typedef struct dependency {
    const char *name;
    const json *needs; /* names */
} dependency;

static bool check_names(schema_build *b, const json *names) {
    bool good = names->kind == JSON_ARRAY;
    for (size_t i = 0; good && i < names->n; i++) good = names->items[i].kind == JSON_STRING;
    if (!good) schema_fail(b, MN_E_ARG, "'dependentRequired' must be an object of arrays of names");
    return good;
}

/* All names are declared, so that no member that is not can have them. */
static size_t gather_dependencies(object *o, dependency *found) {
    schema_build *b = o->b;
    size_t n = 0;
    for (size_t i = 0; i < o->list.n; i++) {
        const json *all = json_get(schema_term(b, o->list, i), "dependentRequired");
        if (!all) continue;
        if (all->kind != JSON_OBJECT)
            schema_fail(b, MN_E_ARG, "'dependentRequired' must be an object of arrays of names");
        for (size_t k = 0; schema_ok(b) && k < all->n; k++) {
            const json_member *m = &all->members[k];
            if (!check_names(b, &m->value) || m->value.n == 0) continue;
            if (n == DEPENDENCIES) {
                schema_fail(b, MN_E_UNSUPPORTED, "'dependentRequired' is supported for up to %d members", DEPENDENCIES);
                return 0;
            }
            declare(o, m->key, m->key_n);
            for (size_t j = 0; j < m->value.n && schema_ok(b); j++)
                declare(o, m->value.items[j].string, m->value.items[j].n);
            found[n++] = (dependency){m->key, &m->value};
        }
    }
    return schema_ok(b) ? n : 0;
}

/* Each way in which the members that require others are present or absent. */
static uint32_t dependent_object(object *o, const dependency *all, size_t n, uint32_t next) {
    schema_build *b = o->b;
    property *kept = NULL;
    size_t capacity = 0;
    uint32_t node = NET_FAIL;
    if (n == 0 || !net_check(b->g, mem_grow(&kept, &capacity, o->n, sizeof *kept)))
        return n == 0 ? build_object(o, next) : (uint32_t)NET_FAIL;
    memcpy(kept, o->properties, o->n * sizeof *kept);
    for (unsigned present = 0; present < 1u << n && schema_ok(b); present++) {
        bool possible = true;
        memcpy(o->properties, kept, o->n * sizeof *kept);
        for (size_t i = 0; i < n; i++) {
            property *p = find_property(o, all[i].name);
            if (!(present >> i & 1)) p->banned = true;
            if (present >> i & 1) p->required = true;
            for (size_t k = 0; present >> i & 1 && k < all[i].needs->n; k++)
                find_property(o, all[i].needs->items[k].string)->required = true;
        }
        for (size_t i = 0; i < o->n; i++) possible &= !(o->properties[i].required && o->properties[i].banned);
        if (possible) node = net_split(b->g, build_object(o, next), node);
    }
    mem_free(kept);
    return node;
}

uint32_t schema_object(schema_build *b, terms list, uint32_t next) {
    dependency dependencies[DEPENDENCIES];
    object o = {.b = b, .list = list, .others = NET_FAIL};
    gather_properties(&o);
    if (schema_ok(b)) gather_required(&o);
    decide_open(&o);
    schema_counts(b, list, "minProperties", "maxProperties", &o.min, &o.max);
    size_t n = schema_ok(b) ? gather_dependencies(&o, dependencies) : 0;
    uint32_t node = NET_FAIL;
    if (o.min == 0 && schema_excludes_empty(b, list, JSON_OBJECT)) o.min = 1;
    o.shared = n > 0 || o.min > 0 || o.max != NET_MANY;
    for (size_t i = 0; i < list.n; i++) o.shared |= (b->terms[list.at + i].done & TERM_SIDE) != 0;
    names_open(&o.names, b, list);
    if (schema_ok(b)) judge_names(&o);
    if (schema_ok(b) && check_least(&o)) node = dependent_object(&o, dependencies, n, next);
    names_clear(&o.names);
    mem_free(o.properties);
    if (node == NET_FAIL && o.max != NET_MANY) schema_never(b, "no object has at most %u members", o.max);
    return node;
}

/* ---- arrays ---- */

/* The constraint of a term on item `index`, or of all from there on; NULL: nothing. The array form of "items" is that
 * of "prefixItems" in older drafts, where "additionalItems" is the rest. */
const json *schema_item_of(schema_build *b, const json *schema, size_t index) {
    const json *items = json_get(schema, "items"), *prefix = json_get(schema, "prefixItems");
    if (items && items->kind == JSON_ARRAY) {
        prefix = items;
        items = json_get(schema, "additionalItems");
    }
    if (prefix && prefix->kind != JSON_ARRAY) schema_fail(b, MN_E_ARG, "'prefixItems' must be an array of schemas");
    return prefix && prefix->kind == JSON_ARRAY && index < prefix->n ? &prefix->items[index] : items;
}

size_t schema_prefix(const json *schema) {
    const json *items = json_get(schema, "items"), *prefix = json_get(schema, "prefixItems");
    if (items && items->kind == JSON_ARRAY) return items->n;
    return prefix && prefix->kind == JSON_ARRAY ? prefix->n : 0;
}

terms schema_item_terms(schema_build *b, terms list, size_t index) {
    terms item = schema_list(b);
    for (size_t i = 0; i < list.n && schema_ok(b); i++) {
        const json *schema = schema_item_of(b, schema_term(b, list, i), index);
        if (schema) schema_push(b, &item, schema, 0);
    }
    return item;
}

uint32_t schema_item(schema_build *b, terms list, size_t index, bool any, uint32_t next) {
    terms item = schema_item_terms(b, list, index);
    size_t before = enter_item(b, index, any);
    uint32_t node = any ? schema_shared_value(b, item, next) : schema_value(b, item, next);
    b->place.n = before;
    return node;
}

uint32_t schema_array(schema_build *b, terms list, uint32_t next) {
    net *g = b->g;
    uint32_t min, max;
    size_t prefix = 0;
    schema_counts(b, list, "minItems", "maxItems", &min, &max);
    if (schema_excludes_empty(b, list, JSON_ARRAY) && min == 0) min = 1;
    if (min > max) return schema_never(b, "at least %u items, but at most %u", min, max);
    for (size_t i = 0; i < list.n; i++) {
        size_t n = schema_prefix(schema_term(b, list, i));
        if (n > prefix) prefix = n;
    }
    uint32_t close = net_bytes(g, ']', ']', next), end = net_json_space(g, close), node;
    if (max == 0) return net_bytes(g, '[', '[', end);
    if (max > 1 && schema_is_unique(b, list)) return schema_unique_array(b, list, prefix, min, max, next);
    if (prefix > max) prefix = max;
    /* `node` is what follows so many items: the comma and more, or the end. From right to left, the items that are all
     * alike first; without a prefix the first of them has no comma before it. */
    uint32_t alone = prefix ? (uint32_t)prefix : 1, least = min > alone ? min - alone : 0;
    uint32_t most = max == NET_MANY ? NET_MANY : max - alone, more = end;
    if (most > 0) {
        uint32_t round = net_bytes(g, ',', ',', net_json_space(g, schema_item(b, list, prefix, true, NET_END)));
        more = net_repeat(g, round, least, most, end);
    }
    node = more;
    for (size_t i = alone; i-- > 0 && schema_ok(b);) {
        node = schema_item(b, list, i, prefix == 0, node);
        if (i > 0) node = net_bytes(g, ',', ',', net_json_space(g, node));
        if (min <= i) node = net_split(g, node, i > 0 ? end : close);
    }
    return net_bytes(g, '[', '[', net_json_space(g, node));
}
