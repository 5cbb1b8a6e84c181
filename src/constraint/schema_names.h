/* The names of an object's members: which are declared, which patterns match the others, and which "propertyNames"
 * allows.
 *
 * Without patterns and "propertyNames" a name is only told from the declared ones, along a tree of their characters.
 * With them a name is read by an automaton whose states tell all of it at the closing quote: the patterns, the strings
 * of "propertyNames" and the declared names are one network (net.h), and its states are those of a run (run.h).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_CONSTRAINT_SCHEMA_NAMES_H
#define MN_CONSTRAINT_SCHEMA_NAMES_H

#include "constraint/run.h"
#include "constraint/schema.h"

typedef struct name_node {
    uint32_t code, child, sibling, entry;
    bool ends; /* a declared name */
} name_node;

/* Names as a part of the automaton's network. */
typedef struct name_set {
    uint32_t mark, end; /* the node that they lead to, the first one of their part; the first node behind it */
} name_set;

typedef struct name_pattern {
    const char *text;
    size_t n, term;     /* term: of the list, whose "patternProperties" has it */
    const json *schema; /* of members whose names it matches */
    name_set set;
} name_pattern;

typedef struct name_automaton {
    net g;
    run r;
    name_set any, declared;
    name_set *limits; /* what "propertyNames" requires: all of them */
    size_t n_limits, limits_capacity;
} name_automaton;

typedef struct member_names {
    schema_build *b;
    name_node *nodes; /* the declared names; [0]: the root; a child comes after its parent */
    size_t n_nodes, nodes_capacity, declared_bytes;
    name_pattern *patterns;
    size_t n_patterns, patterns_capacity;
    name_automaton *automaton; /* NULL: no patterns and no "propertyNames" */
} member_names;

/* names may be cleared after a failure, which b has. */
void names_open(member_names *n, schema_build *b, terms list);
void names_declare(member_names *n, const char *name, size_t length);
void names_clear(member_names *n);

/* Any name but the declared ones, quotes included. Without an automaton. */
uint32_t names_undeclared(member_names *n, uint32_t next);

/* The automaton, when all names are declared. */
void names_build(member_names *n, terms list);
/* The state behind a declared name, quotes included; RUN_DEAD when "propertyNames" does not allow it. */
uint32_t names_read(member_names *n, const char *name, size_t length);
/* Whether a pattern matches the names that end in a state; the first that does, or NULL. */
bool names_match(const member_names *n, const name_pattern *p, uint32_t state);
const name_pattern *names_first(const member_names *n, uint32_t state);

/* Makes all states; how many there are. */
size_t names_explore(member_names *n);
/* Whether allowed names that are not declared end in a state. */
bool names_end(const member_names *n, uint32_t state);
/* Any of these names, quotes included, and after each what values has for the state in which it ends. */
uint32_t names_others(member_names *n, const uint32_t *values);

#endif
