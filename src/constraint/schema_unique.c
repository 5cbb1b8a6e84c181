/* Arrays of different items: the automaton has a node for each set of constants that the items so far may be.
 * SPDX-License-Identifier: Apache-2.0 */
#include "constraint/schema.h"

enum {
    CONSTANTS = 64, /* bits of a set */
    WAYS = 12000,   /* from a set to one with an item more */
};

/* Where an item stands. */
typedef struct place {
    uint64_t allowed; /* which constants it may be */
    bool apart;       /* it is no constant, but cannot be equal to an item of another place */
} place;

/* The sets that so many items may be: a slice of unique.sets, in ascending order. */
typedef struct level {
    size_t at, n;
} level;

typedef struct unique {
    schema_build *b;
    terms list;
    uint32_t max;
    place *places; /* the last one is that of all further items */
    size_t n_places, places_capacity;
    const json *constants[CONSTANTS]; /* different ones */
    uint32_t rules[CONSTANTS];        /* their texts */
    size_t n_constants, n_ways;
    uint64_t *sets; /* level by level */
    size_t n_sets, sets_capacity;
    level *levels;
    size_t n_levels, levels_capacity;
    uint32_t *nodes; /* by set: what follows behind these items */
} unique;

bool schema_is_unique(schema_build *b, terms list) {
    bool found = false;
    for (size_t i = 0; i < list.n; i++) {
        const json *value = json_get(schema_term(b, list, i), "uniqueItems");
        if (value && value->kind != JSON_BOOL) schema_fail(b, MN_E_ARG, "'uniqueItems' must be true or false");
        found |= value && value->kind == JSON_BOOL && value->boolean;
    }
    return found;
}

/* ---- what may stand where ---- */

/* The bit of a constant; 0 with a failure. */
static uint64_t bit_of(unique *u, const json *value) {
    size_t i = 0;
    while (i < u->n_constants && schema_charge(u->b, 1) && !schema_equal(u->b, u->constants[i], value)) i++;
    if (i == CONSTANTS) {
        schema_fail(u->b, MN_E_UNSUPPORTED, "'uniqueItems' is supported for up to %d constants, here are more",
                    CONSTANTS);
        return 0;
    }
    if (i == u->n_constants) u->constants[u->n_constants++] = value;
    return (uint64_t)1 << i;
}

static bool items_apart(unique *u, size_t i, size_t k) {
    schema_build *b = u->b;
    size_t begin = b->n_terms;
    terms x = schema_item_terms(b, u->list, i), y = schema_item_terms(b, u->list, k);
    bool apart = false;
    for (size_t n = 0; n < x.n * y.n && !apart && schema_ok(b); n++)
        apart = schema_apart(b, schema_term(b, x, n % x.n), schema_term(b, y, n / x.n), 0);
    b->n_terms = begin;
    return apart;
}

static void fill_place(unique *u, size_t i) {
    schema_build *b = u->b;
    place *p = &u->places[i];
    constants found = {0};
    bool finite = schema_finite(b, schema_item_terms(b, u->list, i), &found);
    for (size_t k = 0; finite && k < found.n && schema_ok(b); k++) p->allowed |= bit_of(u, found.values[k]);
    mem_free(found.values);
    p->apart = !finite && (u->max == u->n_places || i + 1 < u->n_places);
    for (size_t k = 0; k < u->n_places && p->apart && schema_ok(b); k++) p->apart = k == i || items_apart(u, i, k);
    if (!finite && !p->apart)
        schema_fail(b, MN_E_UNSUPPORTED,
                    "'uniqueItems' is supported for constants, booleans and null: other items cannot be remembered; "
                    "use enum, or maxItems 1");
}

/* ---- sets ---- */

static void put_set(unique *u, uint64_t set) {
    if (net_check(u->b->g, mem_grow(&u->sets, &u->sets_capacity, u->n_sets + 1, sizeof *u->sets)))
        u->sets[u->n_sets++] = set;
}

static const place *place_of(const unique *u, size_t item) {
    return &u->places[item < u->n_places ? item : u->n_places - 1];
}

/* One item more than the last level has; false when none can follow. */
static bool add_level(unique *u) {
    schema_build *b = u->b;
    size_t item = u->n_levels - 1, begin = u->n_sets;
    level last = u->levels[item], more = {.at = begin};
    const place *p = place_of(u, item);
    for (size_t i = 0; i < last.n && schema_ok(b); i++) {
        uint64_t set = u->sets[last.at + i], unused = p->allowed & ~set;
        if (p->apart) put_set(u, set);
        for (size_t k = 0; k < u->n_constants; k++) {
            if (unused >> k & 1) put_set(u, set | (uint64_t)1 << k);
        }
        if (u->n_ways + u->n_sets - begin > WAYS)
            schema_fail(b, MN_E_UNSUPPORTED,
                        "'uniqueItems' has too many sets of its %zu constants; supported are up to 11 constants, 17 "
                        "with maxItems 4, 29 with maxItems 3, 64 with maxItems 2",
                        u->n_constants);
    }
    u->n_ways += u->n_sets - begin;
    if (!schema_charge(b, u->n_sets - begin) || u->n_sets == begin) return false;
    keys_sort(u->sets + begin, u->n_sets - begin);
    for (size_t i = begin; i < u->n_sets; i++) {
        if (more.n == 0 || u->sets[begin + more.n - 1] != u->sets[i]) u->sets[begin + more.n++] = u->sets[i];
    }
    u->n_sets = begin + more.n;
    if (net_check(b->g, mem_grow(&u->levels, &u->levels_capacity, u->n_levels + 1, sizeof *u->levels)))
        u->levels[u->n_levels++] = more;
    return schema_ok(b);
}

/* ---- nodes ---- */

static uint32_t constant_rule(schema_build *b, const json *value) {
    bytes text = {0};
    uint32_t rule = net_rule(b->g);
    json_put(&text, value);
    if (net_check(b->g, bytes_status(&text))) b->g->rules[rule] = net_literal(b->g, text.data, text.n, NET_END);
    bytes_clear(&text);
    return rule;
}

static uint32_t node_of(const unique *u, level of, uint64_t set) {
    size_t at = of.at;
    for (size_t n = of.n, half; n > 1; n -= half) {
        half = n / 2;
        if (u->sets[at + half] <= set) at += half;
    }
    return u->nodes[at];
}

/* An item and what follows it. */
static uint32_t item_from(unique *u, size_t item, uint64_t set) {
    const place *p = place_of(u, item);
    level more = u->levels[item + 1];
    uint32_t node = NET_FAIL;
    uint64_t unused = p->allowed & ~set;
    if (p->apart) return schema_item(u->b, u->list, item, u->levels[item].n > 1, node_of(u, more, set));
    for (size_t k = u->n_constants; k-- > 0;) {
        if (unused >> k & 1)
            node = net_split(u->b->g, net_call(u->b->g, u->rules[k], node_of(u, more, set | (uint64_t)1 << k)), node);
    }
    return node;
}

static uint32_t build_sets(unique *u, uint32_t min, uint32_t next) {
    net *g = u->b->g;
    uint32_t close = net_bytes(g, ']', ']', next), end = net_json_space(g, close);
    for (size_t i = 0; i < u->n_constants; i++) u->rules[i] = constant_rule(u->b, u->constants[i]);
    u->nodes = mem_alloc(u->n_sets, sizeof *u->nodes);
    if (!u->nodes) {
        net_check(g, MN_E_NOMEM);
        return NET_FAIL;
    }
    for (size_t item = u->n_levels; item-- > 0;) {
        for (size_t i = u->levels[item].at; i < u->levels[item].at + u->levels[item].n && schema_ok(u->b); i++) {
            uint32_t node = item + 1 < u->n_levels ? item_from(u, item, u->sets[i]) : (uint32_t)NET_FAIL;
            if (item > 0) node = net_bytes(g, ',', ',', net_json_space(g, node));
            u->nodes[i] = item < min ? node : net_split(g, node, item > 0 ? end : close);
        }
    }
    return net_bytes(g, '[', '[', net_json_space(g, u->nodes[0]));
}

uint32_t schema_unique_array(schema_build *b, terms list, size_t prefix, uint32_t min, uint32_t max, uint32_t next) {
    unique u = {.b = b, .list = list, .max = max, .n_places = prefix < max ? prefix + 1 : max};
    uint32_t node = NET_FAIL;
    bool ok = net_check(b->g, mem_grow(&u.places, &u.places_capacity, u.n_places, sizeof *u.places)) &&
              net_check(b->g, mem_grow(&u.levels, &u.levels_capacity, 1, sizeof *u.levels));
    for (size_t i = 0; ok && i < u.n_places && schema_ok(b); i++) {
        u.places[i] = (place){0};
        fill_place(&u, i);
    }
    if (schema_ok(b)) {
        u.levels[u.n_levels++] = (level){0, 1};
        put_set(&u, 0);
        while (u.n_levels - 1 < max && add_level(&u)) continue;
    }
    if (schema_ok(b) && u.n_levels <= min) {
        schema_never(b, "at least %u different items, but only %zu are possible", min, u.n_levels - 1);
    } else if (schema_ok(b)) {
        node = build_sets(&u, min, next);
    }
    mem_free(u.places);
    mem_free(u.sets);
    mem_free(u.levels);
    mem_free(u.nodes);
    return node;
}
