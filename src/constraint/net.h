/* The network that a constraint is compiled to: nodes that match a byte range, branch, call a rule, or repeat a body.
 *
 * Built from right to left: every function takes the next node and returns the first one, so only loops are patched.
 * Counted repetitions are one node, whatever the counts; the counting is done on the stack (run.h). The first failure
 * is kept in net.status and makes every later call do nothing, so that building code checks once, at the end.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_CONSTRAINT_NET_H
#define MN_CONSTRAINT_NET_H

#include "base/json.h"

enum {
    NET_END = 0,  /* node: the rule, or the body of a repetition, is done */
    NET_FAIL = 1, /* node: nothing matches */
    NET_NODES = 1 << 19,
    NET_DEPTH = 64,  /* calls that may be open at once */
    NET_NEVER = 255, /* net_node.need: the end cannot be reached */
    NET_RULES = 1 << 16,
};

#define NET_MANY UINT32_MAX /* net_node.max: without limit */

typedef enum net_kind { NET_IS_END, NET_IS_FAIL, NET_BYTES, NET_SPLIT, NET_CALL, NET_REPEAT } net_kind;

typedef struct net_node {
    uint8_t kind;
    uint8_t lo, hi;    /* NET_BYTES: inclusive */
    uint8_t need;      /* fewest calls that must be open at once, besides those open here, to reach the end */
    uint32_t next;     /* what comes after */
    uint32_t other;    /* NET_SPLIT: the other way; NET_CALL: the rule; NET_REPEAT: the body, which ends in NET_END */
    uint32_t min, max; /* NET_REPEAT */
} net_node;

typedef struct net {
    net_node *nodes;
    size_t n, capacity;
    uint32_t *slots; /* equal nodes are one node: ids by hash, 0: empty */
    size_t n_slots;
    uint32_t *rules; /* the first node of each rule */
    size_t n_rules, rules_capacity;
    uint32_t root;
    uint8_t class_of[256]; /* bytes that no node distinguishes are one class */
    uint8_t sample[256];   /* a byte of each class */
    unsigned n_classes;
    mn_status status;
    char reason[256]; /* why a part matches nothing, if one does: for the message when the whole matches nothing */
} net;

mn_status net_open(net *g);
void net_clear(net *g);

/* Keeps the first failure. Used as: net_check(g, status_fail(...)). */
bool net_check(net *g, mn_status status);

uint32_t net_bytes(net *g, unsigned lo, unsigned hi, uint32_t next);
uint32_t net_literal(net *g, const char *text, size_t n, uint32_t next);
uint32_t net_split(net *g, uint32_t a, uint32_t b);
/* A choice between `exit` and a body given later by net_loop_body, whose last node leads back to the loop. */
uint32_t net_loop(net *g, uint32_t exit);
void net_loop_body(net *g, uint32_t loop, uint32_t body);
/* body: built with NET_END as the next node. */
uint32_t net_repeat(net *g, uint32_t body, uint32_t min, uint32_t max, uint32_t next);
uint32_t net_call(net *g, uint32_t rule, uint32_t next);
uint32_t net_rule(net *g); /* a new rule; its beginning is to be set in rules[] */

/* Fills need, classes and root when all is built. */
mn_status net_finish(net *g, uint32_t root);

/* ---- sets of characters ---- */

/* Ranges of code points, first << 32 | last. */
typedef struct code_set {
    uint64_t *ranges;
    size_t n, capacity;
} code_set;

enum { CODE_LAST = 0x10FFFF };

void code_set_add(net *g, code_set *set, uint32_t first, uint32_t last);
void code_set_order(code_set *set); /* sorted, disjoint, no neighbours; without surrogates */
/* What an ordered set lacks. */
void code_set_invert(net *g, code_set *set);
void code_set_clear(code_set *set);

/* How characters are written in the text. */
typedef enum net_spelling {
    SPELL_PLAIN, /* as UTF-8 */
    SPELL_JSON,  /* as inside a JSON string, each character in its usual spelling: escaped only where it must be */
} net_spelling;

/* One character of an ordered set. */
uint32_t net_class(net *g, const code_set *set, net_spelling spelling, uint32_t next);

/* ---- regular expressions ---- */

typedef struct net_pattern {
    net_spelling spelling;
    bool search;       /* the pattern may match anywhere in the text, as a schema's does; else it is the whole text */
    uint32_t min, max; /* characters of the whole text: 0 and NET_MANY for any number */
} net_pattern;

/* pattern: UTF-8. Failures name it and the place. */
uint32_t net_regex(net *g, const char *pattern, size_t n, const net_pattern *how, uint32_t next);
/* A whole plain text, for patterns of our own. */
uint32_t net_plain(net *g, const char *pattern, uint32_t next);

/* ---- grammars ---- */

/* The whole text of a grammar in llama.cpp's GBNF, into a net without rules; its root is returned. Failures name the
 * line and the column. */
uint32_t net_grammar(net *g, const char *text, size_t n);

/* ---- JSON ---- */

uint32_t net_json_string(net *g, uint32_t min, uint32_t max, uint32_t next); /* quotes included; counts characters */
uint32_t net_json_rest(net *g, uint32_t next);                               /* any characters and the closing quote */
uint32_t net_json_characters(net *g, uint32_t min, uint32_t max, uint32_t next); /* the same, counted */
uint32_t net_json_space(net *g, uint32_t next); /* white space between tokens of JSON */

/* The whole schema; the root is returned. Failures name the place in the schema. */
uint32_t net_schema(net *g, const json *schema);

/* ---- small things ---- */

void keys_sort(uint64_t *keys, size_t n);

#endif
