/* SPDX-License-Identifier: Apache-2.0 */
#include "constraint/net.h"

#include <string.h>

#include "base/utf8.h"

/* ---- small things ---- */

void keys_sort(uint64_t *keys, size_t n) {
    size_t gap = 1;
    while (gap < n / 3) gap = gap * 3 + 1;
    for (; gap > 0; gap /= 3) {
        for (size_t i = gap; i < n; i++) {
            uint64_t key = keys[i];
            size_t k = i;
            for (; k >= gap && keys[k - gap] > key; k -= gap) keys[k] = keys[k - gap];
            keys[k] = key;
        }
    }
}

bool net_check(net *g, mn_status status) {
    if (g->status == MN_OK) g->status = status;
    return g->status == MN_OK;
}

/* ---- nodes ---- */

static uint32_t add_node(net *g, net_node node) {
    if (g->status != MN_OK) return NET_FAIL;
    if (g->n == NET_NODES) {
        g->status = status_fail(MN_E_ARG, "the constraint is too large: it needs more than %d nodes", NET_NODES);
        return NET_FAIL;
    }
    if (!net_check(g, mem_grow(&g->nodes, &g->capacity, g->n + 1, sizeof *g->nodes))) return NET_FAIL;
    g->nodes[g->n] = node;
    return (uint32_t)g->n++;
}

mn_status net_open(net *g) {
    *g = (net){0};
    add_node(g, (net_node){.kind = NET_IS_END});
    add_node(g, (net_node){.kind = NET_IS_FAIL});
    return g->status;
}

void net_clear(net *g) {
    mem_free(g->nodes);
    mem_free(g->slots);
    mem_free(g->rules);
    *g = (net){0};
}

static size_t slot_of(const net *g, const net_node *node) {
    uint64_t h = (uint64_t)node->next << 32 | node->other;
    h = (h ^ (uint64_t)(node->kind << 16 | node->lo << 8 | node->hi) * 0xD6E8FEB86659FD93u) * 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ h >> 31) & (g->n_slots - 1);
}

static bool grow_slots(net *g) {
    size_t n = g->n_slots ? g->n_slots * 2 : 1024, old_n = g->n_slots;
    uint32_t *old = g->slots, *slots = mem_alloc(n, sizeof *slots);
    if (!slots) return net_check(g, MN_E_NOMEM);
    g->slots = slots;
    g->n_slots = n;
    for (size_t i = 0; i < old_n; i++) {
        if (!old[i]) continue;
        size_t slot = slot_of(g, &g->nodes[old[i]]);
        while (slots[slot]) slot = (slot + 1) & (n - 1);
        slots[slot] = old[i];
    }
    mem_free(old);
    return true;
}

/* The node equal to this one, added when there is none. */
static uint32_t share_node(net *g, net_node node) {
    if (g->status != MN_OK || (g->n * 2 > g->n_slots && !grow_slots(g))) return NET_FAIL;
    size_t slot = slot_of(g, &node);
    for (; g->slots[slot]; slot = (slot + 1) & (g->n_slots - 1)) {
        const net_node *known = &g->nodes[g->slots[slot]];
        if (known->kind == node.kind && known->lo == node.lo && known->hi == node.hi && known->next == node.next &&
            known->other == node.other && known->min == node.min && known->max == node.max)
            return g->slots[slot];
    }
    uint32_t id = add_node(g, node);
    if (g->status == MN_OK) g->slots[slot] = id;
    return id;
}

uint32_t net_bytes(net *g, unsigned lo, unsigned hi, uint32_t next) {
    if (next == NET_FAIL || lo > hi) return NET_FAIL;
    return share_node(g, (net_node){.kind = NET_BYTES, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .next = next});
}

uint32_t net_literal(net *g, const char *text, size_t n, uint32_t next) {
    while (n-- > 0) next = net_bytes(g, (unsigned char)text[n], (unsigned char)text[n], next);
    return next;
}

uint32_t net_split(net *g, uint32_t a, uint32_t b) {
    if (a == b || b == NET_FAIL) return a;
    return a == NET_FAIL ? b : share_node(g, (net_node){.kind = NET_SPLIT, .next = a, .other = b});
}

uint32_t net_loop(net *g, uint32_t exit) {
    return add_node(g, (net_node){.kind = NET_SPLIT, .next = exit, .other = NET_FAIL});
}

void net_loop_body(net *g, uint32_t loop, uint32_t body) {
    if (g->status == MN_OK) g->nodes[loop].other = body;
}

uint32_t net_repeat(net *g, uint32_t body, uint32_t min, uint32_t max, uint32_t next) {
    if (min > max || next == NET_FAIL) return NET_FAIL;
    if (max == 0 || body == NET_END) return next;
    if (body == NET_FAIL) return min ? (uint32_t)NET_FAIL : next;
    return share_node(g, (net_node){.kind = NET_REPEAT, .next = next, .other = body, .min = min, .max = max});
}

uint32_t net_call(net *g, uint32_t rule, uint32_t next) {
    if (next == NET_FAIL) return NET_FAIL;
    return share_node(g, (net_node){.kind = NET_CALL, .next = next, .other = rule});
}

uint32_t net_rule(net *g) {
    if (g->status != MN_OK) return 0;
    if (g->n_rules == NET_RULES) {
        g->status = status_fail(MN_E_ARG, "the constraint is too large: it needs more than %d rules", NET_RULES);
        return 0;
    }
    if (!net_check(g, mem_grow(&g->rules, &g->rules_capacity, g->n_rules + 1, sizeof *g->rules))) return 0;
    g->rules[g->n_rules] = NET_FAIL;
    return (uint32_t)g->n_rules++;
}

/* ---- what is known of a whole network ---- */

static uint8_t most(uint8_t a, uint8_t b) {
    return a > b ? a : b;
}

static uint8_t need_of(const net *g, const net_node *node) {
    uint8_t next = g->nodes[node->next].need, other = 0;
    switch ((net_kind)node->kind) {
    case NET_IS_END: return 0;
    case NET_IS_FAIL: return NET_NEVER;
    case NET_BYTES: return next;
    case NET_SPLIT: other = g->nodes[node->other].need; return next < other ? next : other;
    case NET_REPEAT: return node->min ? most(next, g->nodes[node->other].need) : next;
    case NET_CALL:
        other = g->nodes[g->rules[node->other]].need;
        return other >= NET_DEPTH ? NET_NEVER : most(next, (uint8_t)(other + 1));
    }
    return NET_NEVER;
}

/* Least numbers that satisfy need_of everywhere: they only fall, so this ends. Nodes mostly come after those they lead
 * to, so few rounds do. */
static void fill_need(net *g) {
    for (size_t i = 0; i < g->n; i++) g->nodes[i].need = NET_NEVER;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < g->n; i++) {
            uint8_t need = need_of(g, &g->nodes[i]);
            if (need < g->nodes[i].need) {
                g->nodes[i].need = need;
                changed = true;
            }
        }
    }
}

static void fill_classes(net *g) {
    bool begins[257] = {[0] = true};
    for (size_t i = 0; i < g->n; i++) {
        if (g->nodes[i].kind != NET_BYTES) continue;
        begins[g->nodes[i].lo] = true;
        begins[g->nodes[i].hi + 1] = true;
    }
    g->n_classes = 0;
    for (unsigned b = 0; b < 256; b++) {
        if (begins[b]) g->sample[g->n_classes++] = (uint8_t)b;
        g->class_of[b] = (uint8_t)(g->n_classes - 1);
    }
}

mn_status net_finish(net *g, uint32_t root) {
    if (g->status != MN_OK) return g->status;
    g->root = root;
    fill_need(g);
    fill_classes(g);
    mem_free(g->slots); /* nothing is added from here on */
    g->slots = NULL;
    g->n_slots = 0;
    return MN_OK;
}

/* ---- sets of characters ---- */

void code_set_add(net *g, code_set *set, uint32_t first, uint32_t last) {
    if (!net_check(g, mem_grow(&set->ranges, &set->capacity, set->n + 1, sizeof *set->ranges))) return;
    set->ranges[set->n++] = (uint64_t)first << 32 | last;
}

void code_set_order(code_set *set) {
    size_t n = 0;
    keys_sort(set->ranges, set->n);
    for (size_t i = 0; i < set->n; i++) {
        uint32_t first = (uint32_t)(set->ranges[i] >> 32), last = (uint32_t)set->ranges[i];
        uint32_t before = n ? (uint32_t)set->ranges[n - 1] : 0;
        if (n && first <= before + 1) {
            if (last > before) set->ranges[n - 1] += last - before;
        } else {
            set->ranges[n++] = set->ranges[i];
        }
    }
    set->n = n;
}

void code_set_invert(net *g, code_set *set) {
    code_set rest = {0};
    uint32_t from = 0;
    for (size_t i = 0; i < set->n; i++) {
        uint32_t first = (uint32_t)(set->ranges[i] >> 32);
        if (first > from) code_set_add(g, &rest, from, first - 1);
        from = (uint32_t)set->ranges[i] + 1;
    }
    if (from <= CODE_LAST) code_set_add(g, &rest, from, CODE_LAST);
    code_set_clear(set);
    *set = rest;
}

void code_set_clear(code_set *set) {
    mem_free(set->ranges);
    *set = (code_set){0};
}

/* Characters whose sequences have the same length and differ in ways that one range per byte can express, or parts of
 * them. */
static uint32_t utf8_range(net *g, uint32_t first, uint32_t last, uint32_t next) {
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (first <= ends[i] && last > ends[i])
            return net_split(g, utf8_range(g, first, ends[i], next), utf8_range(g, ends[i] + 1, last, next));
    }
    if (first >= 0xD800 && last <= 0xDFFF) return NET_FAIL; /* surrogates are no characters */
    for (uint32_t low = 0x3F; last > 0x7F && low <= 0x3FFFF; low = low << 6 | 0x3F) {
        if ((first & ~low) == (last & ~low)) continue;
        uint32_t cut = first & low ? first | low : (last & low) != low ? (last & ~low) - 1 : last;
        if (cut < last) return net_split(g, utf8_range(g, first, cut, next), utf8_range(g, cut + 1, last, next));
    }
    char a[4] = {0}, b[4] = {0};
    size_t n = utf8_encode(a, first);
    utf8_encode(b, last);
    while (n-- > 0) next = net_bytes(g, (unsigned char)a[n], (unsigned char)b[n], next);
    return next;
}

/* The escape of one character: by a letter if it has one, else, and for control characters besides, by its number. */
static uint32_t json_escape(net *g, uint32_t code, uint32_t next) {
    static const char letters[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    const char *letter = code ? strchr(meanings, (int)code) : NULL;
    uint32_t node = NET_FAIL;
    if (code < 0x20) {
        uint32_t digit = code & 15, last = net_literal(g, &"0123456789abcdef"[digit], 1, next);
        if (digit > 9) last = net_split(g, last, net_literal(g, &"ABCDEF"[digit - 10], 1, next));
        node = net_literal(g, code < 16 ? "u000" : "u001", 4, last);
    }
    if (letter) node = net_split(g, net_literal(g, &letters[letter - meanings], 1, next), node);
    return net_bytes(g, '\\', '\\', node);
}

/* Code points of a range as JSON writes them. */
static uint32_t json_range(net *g, uint32_t first, uint32_t last, uint32_t next) {
    uint32_t node = NET_FAIL;
    while (first <= last && first <= '\\') {
        bool escaped = first < 0x20 || first == '"' || first == '\\';
        uint32_t end = first;
        if (escaped) {
            node = net_split(g, json_escape(g, first, next), node);
        } else {
            end = first < '"' ? '"' - 1 : '\\' - 1;
            if (end > last) end = last;
            node = net_split(g, utf8_range(g, first, end, next), node);
        }
        first = end + 1;
    }
    return first <= last ? net_split(g, utf8_range(g, first, last, next), node) : node;
}

uint32_t net_class(net *g, const code_set *set, net_spelling spelling, uint32_t next) {
    uint32_t node = NET_FAIL;
    for (size_t i = set->n; i-- > 0;) { /* the highest first, so that sets alike up there share nodes */
        uint32_t first = (uint32_t)(set->ranges[i] >> 32), last = (uint32_t)set->ranges[i];
        node = net_split(
            g, spelling == SPELL_JSON ? json_range(g, first, last, next) : utf8_range(g, first, last, next), node);
    }
    return node;
}
