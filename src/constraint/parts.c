/* SPDX-License-Identifier: Apache-2.0 */
#include "constraint/parts.h"

static bool ok(const part_tree *t) {
    return t->g->status == MN_OK;
}

uint32_t part_add(part_tree *t, part_kind kind, uint32_t place) {
    if (!ok(t) || !net_check(t->g, mem_grow(&t->parts, &t->capacity, t->n + 1, sizeof *t->parts))) return 0;
    t->parts[t->n] = (part){.kind = kind, .last = NO_PART, .before = NO_PART, .place = place};
    return (uint32_t)t->n++;
}

uint32_t part_add_class(part_tree *t, code_set *set, uint32_t place) {
    uint32_t id = part_add(t, PART_CLASS, place);
    code_set_order(set);
    if (!ok(t)) return 0;
    t->parts[id].set_at = (uint32_t)t->pool.n;
    t->parts[id].set_n = (uint32_t)set->n;
    for (size_t i = 0; i < set->n; i++)
        code_set_add(t->g, &t->pool, (uint32_t)(set->ranges[i] >> 32), (uint32_t)set->ranges[i]);
    set->n = 0;
    return id;
}

void part_append(part_tree *t, uint32_t parent, uint32_t child) {
    if (!ok(t)) return;
    t->parts[child].before = t->parts[parent].last;
    t->parts[parent].last = child;
}

uint32_t part_unwrap(const part_tree *t, uint32_t parent) {
    if (!ok(t)) return 0;
    uint32_t last = t->parts[parent].last;
    return last != NO_PART && t->parts[last].before == NO_PART ? last : parent;
}

uint32_t part_first(const part_tree *t, uint32_t parent) {
    uint32_t first = t->parts[parent].last;
    while (first != NO_PART && t->parts[first].before != NO_PART) first = t->parts[first].before;
    return first;
}

static uint32_t build_repeat(part_tree *t, const part *it, net_spelling spelling, uint32_t next) {
    uint32_t inner = it->last, loop, body;
    if (it->max == 0) return it->min ? (uint32_t)NET_FAIL : next;
    if (it->min == 0 && it->max == 1) return net_split(t->g, part_build(t, inner, spelling, next), next);
    if (it->min == 1 && it->max == 1) return part_build(t, inner, spelling, next);
    if (it->min > 1 || it->max != NET_MANY)
        return net_repeat(t->g, part_build(t, inner, spelling, NET_END), it->min, it->max, next);
    loop = net_loop(t->g, next);
    body = part_build(t, inner, spelling, loop);
    net_loop_body(t->g, loop, body);
    return it->min ? body : loop;
}

uint32_t part_build(part_tree *t, uint32_t id, net_spelling spelling, uint32_t next) {
    const part *it = &t->parts[id];
    uint32_t node = next;
    switch (it->kind) {
    case PART_CLASS: {
        code_set set = {.ranges = t->pool.ranges ? t->pool.ranges + it->set_at : NULL, .n = it->set_n};
        return net_class(t->g, &set, spelling, next);
    }
    case PART_SEQUENCE:
        for (uint32_t child = it->last; child != NO_PART; child = t->parts[child].before)
            node = part_build(t, child, spelling, node);
        return node;
    case PART_CHOICE:
        node = NET_FAIL;
        for (uint32_t child = it->last; child != NO_PART; child = t->parts[child].before)
            node = net_split(t->g, part_build(t, child, spelling, next), node);
        return node;
    case PART_REPEAT: return build_repeat(t, it, spelling, next);
    case PART_RULE:
        /* In last position the end of the rule is the end of what called: no call, so lists may be of any length. */
        return next == NET_END ? t->entries[it->rule] : net_call(t->g, it->rule, next);
    case PART_START:
    case PART_STOP: break;
    }
    return next;
}

void part_tree_clear(part_tree *t) {
    mem_free(t->parts);
    code_set_clear(&t->pool);
    *t = (part_tree){0};
}
