/* Strings that are none of given texts.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "constraint/schema.h"

typedef struct text_node {
    uint32_t code, child, sibling, entry;
    uint32_t depth; /* characters up to here */
    bool ends;      /* one of the texts */
} text_node;

typedef struct text_tree {
    schema_build *b;
    text_node *nodes; /* [0]: the root; a child comes after its parent */
    size_t n, capacity;
    uint32_t min, max; /* characters of the whole string */
    uint32_t next, rest;
} text_tree;

static uint32_t add_node(text_tree *t, uint32_t parent, uint32_t code) {
    if (!net_check(t->b->g, mem_grow(&t->nodes, &t->capacity, t->n + 1, sizeof *t->nodes))) return 0;
    t->nodes[t->n] = (text_node){.code = code};
    if (t->n) {
        t->nodes[t->n].sibling = t->nodes[parent].child;
        t->nodes[t->n].depth = t->nodes[parent].depth + 1;
        t->nodes[parent].child = (uint32_t)t->n;
    }
    return (uint32_t)t->n++;
}

static void add_text(text_tree *t, const json *text) {
    uint32_t at = 0;
    for (size_t i = 0; i < text->n && schema_ok(t->b);) {
        size_t length = utf8_length((unsigned char)text->string[i]);
        uint32_t code = utf8_decode(text->string + i, length), child = t->nodes[at].child;
        while (child && t->nodes[child].code != code && schema_charge(t->b, 1)) child = t->nodes[child].sibling;
        at = child ? child : add_node(t, at, code);
        i += length;
    }
    if (schema_ok(t->b)) t->nodes[at].ends = true;
}

/* What follows the first character that no text has here. */
static uint32_t rest_of(text_tree *t, uint32_t depth) {
    if (depth >= t->max) return NET_FAIL;
    if (t->min <= depth + 1 && t->max == NET_MANY) return t->rest;
    return net_json_characters(t->b->g, t->min > depth ? t->min - depth - 1 : 0,
                               t->max == NET_MANY ? t->max : t->max - depth - 1, t->next);
}

/* Up to the first character that no text has, characters are written in the usual spelling. */
static uint32_t entry_of(text_tree *t, const text_node *at, uint32_t end) {
    net *g = t->b->g;
    bool may_end = !at->ends && at->depth >= t->min && at->depth <= t->max;
    uint32_t node = may_end ? end : (uint32_t)NET_FAIL;
    code_set others = {0};
    for (uint32_t child = at->child; child; child = t->nodes[child].sibling) {
        code_set one = {0};
        code_set_add(g, &one, t->nodes[child].code, t->nodes[child].code);
        code_set_add(g, &others, t->nodes[child].code, t->nodes[child].code);
        node = net_split(g, net_class(g, &one, SPELL_JSON, t->nodes[child].entry), node);
        code_set_clear(&one);
    }
    code_set_order(&others);
    code_set_invert(g, &others);
    node = net_split(g, node, net_class(g, &others, SPELL_JSON, rest_of(t, at->depth)));
    code_set_clear(&others);
    return node;
}

uint32_t schema_other_texts(schema_build *b, const constants *texts, uint32_t min, uint32_t max, uint32_t next) {
    text_tree t = {.b = b, .min = min, .max = max, .next = next, .rest = net_json_rest(b->g, next)};
    uint32_t first = NET_FAIL, end = net_bytes(b->g, '"', '"', next);
    add_node(&t, 0, 0);
    for (size_t i = 0; i < texts->n && schema_ok(b); i++) add_text(&t, texts->values[i]);
    for (size_t id = t.n; id-- > 0 && schema_ok(b);) t.nodes[id].entry = entry_of(&t, &t.nodes[id], end);
    if (schema_ok(b)) first = t.nodes[0].entry;
    mem_free(t.nodes);
    return net_bytes(b->g, '"', '"', first);
}
