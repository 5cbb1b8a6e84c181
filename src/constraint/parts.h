/* The parts of a regular expression or of a grammar as a tree: nodes are built from right to left, so a text is parsed
 * into parts first.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_CONSTRAINT_PARTS_H
#define MN_CONSTRAINT_PARTS_H

#include "constraint/net.h"

#define NO_PART UINT32_MAX

typedef enum part_kind {
    PART_CLASS,
    PART_SEQUENCE,
    PART_CHOICE,
    PART_REPEAT,
    PART_START,
    PART_STOP,
    PART_RULE, /* of a grammar */
} part_kind;

typedef struct part {
    part_kind kind;
    uint32_t last, before;  /* the last of its parts; the one before it among its parent's */
    uint32_t min, max;      /* PART_REPEAT */
    uint32_t set_at, set_n; /* PART_CLASS: in part_tree.pool */
    uint32_t rule;          /* PART_RULE: its number */
    uint32_t place;         /* in the text */
} part;

typedef struct part_tree {
    net *g;
    part *parts;
    size_t n, capacity;
    code_set pool; /* the ranges of all classes, one after the other */
    const uint32_t
        *entries; /* PART_RULE: the first node of each rule, which has the number of the net's rule; borrowed */
} part_tree;

/* After a failure of the net these do nothing and return 0. */
uint32_t part_add(part_tree *t, part_kind kind, uint32_t place);
/* The characters of `set`, which is ordered and emptied. */
uint32_t part_add_class(part_tree *t, code_set *set, uint32_t place);
void part_append(part_tree *t, uint32_t parent, uint32_t child);
/* The parent, or its only child in its place. */
uint32_t part_unwrap(const part_tree *t, uint32_t parent);
uint32_t part_first(const part_tree *t, uint32_t parent);

/* The nodes of a part and what it contains. */
uint32_t part_build(part_tree *t, uint32_t id, net_spelling spelling, uint32_t next);

void part_tree_clear(part_tree *t);

#endif
