/* SPDX-License-Identifier: Apache-2.0 */
#include "constraint/schema_names.h"

#include <string.h>

#include "base/utf8.h"

enum {
    STATES = 4096,      /* besides one for each byte of the declared names */
    NO_TEXT = 0xFF,     /* a byte that no text has */
    OPENING_WORK = 500, /* of an automaton, in units of schema_charge */
    STEPS_A_UNIT = 2,
    READINGS_A_UNIT = 16,
};

/* ---- declared names ---- */

static uint32_t add_node(member_names *n, uint32_t parent, uint32_t code) {
    if (!net_check(n->b->g, mem_grow(&n->nodes, &n->nodes_capacity, n->n_nodes + 1, sizeof *n->nodes))) return 0;
    n->nodes[n->n_nodes] = (name_node){.code = code, .sibling = n->n_nodes ? n->nodes[parent].child : 0};
    if (n->n_nodes) n->nodes[parent].child = (uint32_t)n->n_nodes;
    return (uint32_t)n->n_nodes++;
}

void names_declare(member_names *n, const char *name, size_t length) {
    uint32_t at = 0;
    for (size_t i = 0; i < length && schema_ok(n->b);) {
        size_t width = utf8_length((unsigned char)name[i]);
        uint32_t code = utf8_decode(name + i, width), child = n->nodes[at].child;
        while (child && n->nodes[child].code != code && schema_charge(n->b, 1)) child = n->nodes[child].sibling;
        at = child ? child : add_node(n, at, code);
        i += width;
    }
    n->declared_bytes += length;
    if (schema_ok(n->b)) n->nodes[at].ends = true;
}

/* The children of a node, in their usual spelling; *codes, unless NULL, becomes the set of their characters. */
static uint32_t child_names(const member_names *n, net *g, size_t id, code_set *codes) {
    uint32_t node = NET_FAIL;
    for (uint32_t child = n->nodes[id].child; child; child = n->nodes[child].sibling) {
        code_set one = {0};
        code_set_add(g, &one, n->nodes[child].code, n->nodes[child].code);
        if (codes) code_set_add(g, codes, n->nodes[child].code, n->nodes[child].code);
        node = net_split(g, net_class(g, &one, SPELL_JSON, n->nodes[child].entry), node);
        code_set_clear(&one);
    }
    return node;
}

/* The possible continuations of a name that so far is a prefix of a declared one. Up to the first character that
 * differs from all of those, each character is written unescaped where JSON allows it. */
static uint32_t undeclared_entry(const member_names *n, size_t id, uint32_t end, uint32_t rest) {
    net *g = n->b->g;
    code_set others = {0};
    uint32_t node = child_names(n, g, id, &others);
    if (!n->nodes[id].ends) node = net_split(g, node, end);
    code_set_order(&others);
    code_set_invert(g, &others);
    node = net_split(g, node, net_class(g, &others, SPELL_JSON, rest));
    code_set_clear(&others);
    return node;
}

uint32_t names_undeclared(member_names *n, uint32_t next) {
    net *g = n->b->g;
    uint32_t end = net_bytes(g, '"', '"', next), rest = net_json_rest(g, next);
    for (size_t id = n->n_nodes; id-- > 0 && schema_ok(n->b);) n->nodes[id].entry = undeclared_entry(n, id, end, rest);
    return schema_ok(n->b) ? net_bytes(g, '"', '"', n->nodes[0].entry) : (uint32_t)NET_FAIL;
}

/* ---- patterns ---- */

static void add_pattern(member_names *n, size_t owner, const json_member *m) {
    if (m->value.kind != JSON_OBJECT && m->value.kind != JSON_BOOL)
        schema_fail(n->b, MN_E_ARG, "'patternProperties' must be an object of schemas");
    if (schema_ok(n->b) &&
        net_check(n->b->g, mem_grow(&n->patterns, &n->patterns_capacity, n->n_patterns + 1, sizeof *n->patterns)))
        n->patterns[n->n_patterns++] =
            (name_pattern){.text = m->key, .n = m->key_n, .term = owner, .schema = &m->value};
}

void names_open(member_names *n, schema_build *b, terms list) {
    bool limited = false;
    *n = (member_names){.b = b};
    add_node(n, 0, 0);
    for (size_t i = 0; i < list.n && schema_ok(b); i++) {
        const json *patterns = json_get(schema_term(b, list, i), "patternProperties");
        limited |= json_get(schema_term(b, list, i), "propertyNames") != NULL;
        if (!patterns) continue;
        if (patterns->kind != JSON_OBJECT) schema_fail(b, MN_E_ARG, "'patternProperties' must be an object of schemas");
        for (size_t k = 0; k < patterns->n && schema_ok(b); k++) add_pattern(n, i, &patterns->members[k]);
    }
    if (!schema_ok(b) || (!limited && n->n_patterns == 0)) return;
    n->automaton = mem_alloc(1, sizeof *n->automaton);
    net_check(b->g, n->automaton ? MN_OK : MN_E_NOMEM);
}

void names_clear(member_names *n) {
    if (n->automaton) {
        run_clear(&n->automaton->r);
        net_clear(&n->automaton->g);
        mem_free(n->automaton->limits);
    }
    mem_free(n->automaton);
    mem_free(n->patterns);
    mem_free(n->nodes);
    *n = (member_names){0};
}

/* ---- the automaton ---- */

/* A failure of the automaton's is one of the schema's. */
static bool check(member_names *n, mn_status status) {
    if (status != MN_OK && schema_ok(n->b)) {
        net_check(n->b->g, status_context(status, "schema, %s", bytes_text(&n->b->place)));
    }
    return schema_ok(n->b);
}

/* A part of the network begins with its mark: what its names lead to, a node that no text gets past. So the nodes of
 * two parts differ, and a state shows to which parts the names that lead to it belong. */
static name_set begin_set(net *g, uint32_t *last) {
    *last = net_bytes(g, NO_TEXT, NO_TEXT, *last);
    return (name_set){.mark = *last};
}

/* Names in their usual spelling that the pattern matches. */
static uint32_t matching(net *g, const char *pattern, size_t n, bool search, uint32_t mark) {
    const net_pattern how = {.spelling = SPELL_JSON, .search = search, .max = NET_MANY};
    return net_bytes(g, '"', '"', net_regex(g, pattern, n, &how, net_bytes(g, '"', '"', mark)));
}

static uint32_t declared_names(member_names *n, net *g, uint32_t mark) {
    uint32_t end = net_bytes(g, '"', '"', mark);
    for (size_t id = n->n_nodes; id-- > 0;)
        n->nodes[id].entry = net_split(g, child_names(n, g, id, NULL), n->nodes[id].ends ? end : (uint32_t)NET_FAIL);
    return net_bytes(g, '"', '"', n->nodes[0].entry);
}

/* Whether each keyword of a schema says the same of strings without the others. */
static bool is_separable(schema_build *b, const json *schema) {
    static const char *const keywords[] = {"type",   "enum",  "const", "minLength", "maxLength", "pattern",
                                           "format", "allOf", "anyOf", "oneOf",     "$ref"};
    bool all = schema->kind == JSON_OBJECT;
    for (size_t i = 0; all && i < schema->n && schema_charge(b, 1); i++) {
        const json one = {.kind = JSON_OBJECT, .n = 1, .members = &schema->members[i]};
        bool known = !schema_restricts(b, &one);
        for (size_t k = 0; k < sizeof keywords / sizeof *keywords; k++)
            known |= strcmp(schema->members[i].key, keywords[k]) == 0;
        all &= known;
    }
    return all;
}

static void add_limit(member_names *n, const json *schema, uint32_t *last, uint32_t *root) {
    name_automaton *a = n->automaton;
    if (!schema_restricts(n->b, schema) ||
        !net_check(n->b->g, mem_grow(&a->limits, &a->limits_capacity, a->n_limits + 1, sizeof *a->limits)))
        return;
    name_set set = begin_set(&a->g, last);
    *root = net_split(&a->g, *root, schema_strings(n->b, &a->g, schema, set.mark));
    set.end = (uint32_t)a->g.n;
    a->limits[a->n_limits++] = set;
}

/* What "propertyNames" requires: keywords by themselves, as the automaton can follow all of them at once. */
static void add_limits(member_names *n, const json *schema, int depth, uint32_t *last, uint32_t *root) {
    enum { DEPTH = 16 };
    if (depth == DEPTH || !is_separable(n->b, schema)) {
        add_limit(n, schema, last, root);
        return;
    }
    for (size_t i = 0; i < schema->n && schema_ok(n->b); i++) {
        const json one = {.kind = JSON_OBJECT, .n = 1, .members = &schema->members[i]};
        const json *ref = json_get(&one, "$ref"), *all = json_get(&one, "allOf");
        const json *target = ref ? schema_target(n->b, ref) : NULL;
        if (target) add_limits(n, target, depth + 1, last, root);
        for (size_t k = 0; all && all->kind == JSON_ARRAY && k < all->n && schema_ok(n->b); k++)
            add_limits(n, &all->items[k], depth + 1, last, root);
        if (!target && !(all && all->kind == JSON_ARRAY && all->n)) add_limit(n, &one, last, root);
    }
}

static uint32_t build_network(member_names *n, terms list) {
    static const char every[] = "[\\s\\S]*";
    name_automaton *a = n->automaton;
    net *g = &a->g;
    uint32_t last = NET_END, root;
    a->any = begin_set(g, &last);
    root = matching(g, every, sizeof every - 1, false, a->any.mark);
    a->any.end = (uint32_t)g->n;
    size_t before = n->b->place.n;
    bytes_append_text(&n->b->place, ".propertyNames");
    for (size_t i = 0; i < list.n && schema_ok(n->b); i++) {
        const json *schema = json_get(schema_term(n->b, list, i), "propertyNames");
        if (schema) add_limits(n, schema, 0, &last, &root);
    }
    n->b->place.n = before;
    a->declared = begin_set(g, &last);
    root = net_split(g, root, declared_names(n, g, a->declared.mark));
    for (size_t k = 0; k < n->n_patterns && g->status == MN_OK; k++) {
        name_pattern *p = &n->patterns[k];
        p->set = begin_set(g, &last);
        root = net_split(g, root, matching(g, p->text, p->n, true, p->set.mark));
        p->set.end = (uint32_t)g->n;
    }
    return root;
}

void names_build(member_names *n, terms list) {
    name_automaton *a = n->automaton;
    if (!schema_charge(n->b, OPENING_WORK) || !check(n, net_open(&a->g))) return;
    uint32_t root = build_network(n, list);
    if (check(n, net_finish(&a->g, root))) check(n, run_open(&a->r, &a->g));
}

/* How many readings of a state are in a set's part of the network. */
static uint32_t readings_of(const member_names *n, uint32_t state, name_set set) {
    const run *r = &n->automaton->r;
    const run_state *s = &r->states[state];
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t node = (uint32_t)(r->readings[s->at + i] >> 32), frame = (uint32_t)r->readings[s->at + i];
        for (; frame; frame = r->frames[frame].parent) node = r->frames[frame].node; /* bodies may be shared */
        count += node >= set.mark && node < set.end;
    }
    return count;
}

/* Whether the names that end in a state belong to the set. */
static bool is_in(const member_names *n, uint32_t state, name_set set) {
    return readings_of(n, state, (name_set){set.mark, set.mark + 1}) > 0;
}

/* Whether a name that leads to a state is, or may become, one that is allowed. */
static bool is_alive(const member_names *n, uint32_t state) {
    const name_automaton *a = n->automaton;
    bool alive = readings_of(n, state, a->any) > 0;
    for (size_t i = 0; i < a->n_limits && alive; i++) alive = readings_of(n, state, a->limits[i]) > 0;
    return alive;
}

static bool step(member_names *n, uint32_t state, uint8_t byte, uint32_t *next) {
    run *r = &n->automaton->r;
    r->steps = 0;
    mn_status status = run_step(r, state, byte, next);
    return schema_charge(n->b, 1 + r->steps / STEPS_A_UNIT) && check(n, status);
}

uint32_t names_read(member_names *n, const char *name, size_t length) {
    bytes text = {0};
    uint32_t state = n->automaton->r.start;
    json_put_string(&text, name, length);
    net_check(n->b->g, bytes_status(&text));
    for (size_t i = 0; i < text.n && schema_ok(n->b); i++) step(n, state, (uint8_t)text.data[i], &state);
    bytes_clear(&text);
    return schema_ok(n->b) && is_alive(n, state) ? state : (uint32_t)RUN_DEAD;
}

bool names_match(const member_names *n, const name_pattern *p, uint32_t state) {
    return n->automaton && is_in(n, state, p->set);
}

const name_pattern *names_first(const member_names *n, uint32_t state) {
    for (size_t k = 0; k < n->n_patterns; k++) {
        if (names_match(n, &n->patterns[k], state)) return &n->patterns[k];
    }
    return NULL;
}

bool names_end(const member_names *n, uint32_t state) {
    return is_in(n, state, n->automaton->any) && is_alive(n, state) && !is_in(n, state, n->automaton->declared);
}

/* Names the pattern that a state has most readings of. */
static void refuse_size(member_names *n, uint32_t state, size_t limit) {
    const name_automaton *a = n->automaton;
    const name_pattern *largest = NULL;
    uint32_t most = 0;
    for (size_t i = 0; i < a->n_limits; i++) {
        uint32_t count = readings_of(n, state, a->limits[i]);
        if (count > most) most = count;
    }
    for (size_t k = 0; k < n->n_patterns; k++) {
        uint32_t count = readings_of(n, state, n->patterns[k].set);
        if (count < most) continue;
        most = count;
        largest = &n->patterns[k];
    }
    if (largest) {
        size_t shown = utf8_valid_prefix(largest->text, largest->n < 60 ? largest->n : 60);
        schema_fail(n->b, MN_E_UNSUPPORTED, "the names take more than %zu states, most for the pattern '%.*s'", limit,
                    (int)shown, largest->text);
    } else {
        schema_fail(n->b, MN_E_UNSUPPORTED, "the names take more than %zu states, most for 'propertyNames'", limit);
    }
}

/* Whether each reading of a state goes on with both bytes or with neither. */
static bool are_alike(const run *r, uint32_t state, uint8_t a, uint8_t b) {
    const run_state *s = &r->states[state];
    bool alike = true;
    for (uint32_t i = 0; i < s->n && alike; i++) {
        const net_node *node = &r->g->nodes[r->readings[s->at + i] >> 32];
        alike = (node->lo <= a && a <= node->hi) == (node->lo <= b && b <= node->hi);
    }
    return alike;
}

static void leave_by_each_byte(member_names *n, uint32_t state) {
    const net *g = &n->automaton->g;
    run *r = &n->automaton->r;
    size_t readings = r->states[state].n, row = (size_t)state * g->n_classes;
    schema_charge(n->b, readings * (g->n_classes + n->automaton->n_limits) / READINGS_A_UNIT);
    if (!is_alive(n, state)) return;
    for (unsigned c = 0; g->sample[c] != NO_TEXT && schema_ok(n->b); c++) {
        uint32_t next;
        if (c > 0 && are_alike(r, state, g->sample[c - 1], g->sample[c])) {
            r->next[row + c] = r->next[row + c - 1];
        } else {
            step(n, state, g->sample[c], &next);
        }
    }
}

size_t names_explore(member_names *n) {
    const run *r = &n->automaton->r;
    size_t limit = STATES + n->declared_bytes;
    for (uint32_t state = r->start; state < r->n_states && schema_ok(n->b); state++) {
        leave_by_each_byte(n, state);
        if (r->n_states > limit) refuse_size(n, state, limit);
    }
    return r->n_states;
}

/* ---- the automaton as nodes of the schema's network ---- */

static const uint32_t unknown = UINT32_MAX;

/* nodes: by state, unknown until it is made. loops: by state, what earlier nodes that lead to it were given instead. */
static uint32_t node_of(net *g, const uint32_t *nodes, uint32_t *loops, uint32_t state) {
    if (nodes[state] != unknown) return nodes[state];
    if (!loops[state]) loops[state] = net_loop(g, NET_FAIL);
    return loops[state];
}

static uint32_t leave_state(const member_names *n, const uint32_t *nodes, uint32_t *loops, uint32_t state) {
    const net *own = &n->automaton->g;
    const uint32_t *next = n->automaton->r.next + (size_t)state * own->n_classes;
    uint32_t node = NET_FAIL;
    for (unsigned first = 0, last; first < NO_TEXT; first = last + 1) {
        uint32_t to = next[own->class_of[first]];
        for (last = first; last + 1 < NO_TEXT && next[own->class_of[last + 1]] == to;) last++;
        if (to != RUN_DEAD && nodes[to] != NET_FAIL)
            node = net_split(n->b->g, net_bytes(n->b->g, first, last, node_of(n->b->g, nodes, loops, to)), node);
    }
    return node;
}

uint32_t names_others(member_names *n, const uint32_t *values) {
    const run *r = &n->automaton->r;
    uint32_t *nodes = mem_alloc(2 * r->n_states, sizeof *nodes), node = NET_FAIL;
    if (!nodes) {
        net_check(n->b->g, MN_E_NOMEM);
        return NET_FAIL;
    }
    uint32_t *loops = nodes + r->n_states;
    for (uint32_t s = 0; s < r->n_states; s++) {
        nodes[s] = !is_alive(n, s) ? (uint32_t)NET_FAIL : is_in(n, s, n->automaton->any) ? values[s] : unknown;
    }
    /* From the last state to the first, so that most nodes come after those that they lead to. */
    for (uint32_t s = (uint32_t)r->n_states; s-- > r->start && schema_ok(n->b);) {
        if (nodes[s] != unknown) continue;
        nodes[s] = leave_state(n, nodes, loops, s);
        if (loops[s]) net_loop_body(n->b->g, loops[s], nodes[s]);
    }
    if (schema_ok(n->b)) node = nodes[r->start];
    mem_free(nodes);
    return node;
}
