/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/added.h"

#include <string.h>

static uint32_t child_of(const added_set *set, uint32_t node, unsigned char byte) {
    uint32_t child = set->nodes[node].child;
    while (child && set->nodes[child].byte != byte) child = set->nodes[child].sibling;
    return child;
}

static mn_status add_node(added_set *set, added_node node) {
    MN_TRY(mem_grow(&set->nodes, &set->capacity, set->n + 1, sizeof *set->nodes));
    set->nodes[set->n++] = node;
    return MN_OK;
}

mn_status added_set_put(added_set *set, const char *text, size_t n, int32_t id, unsigned flags, const char *what) {
    if (n == 0 || n > ADDED_MAX_BYTES) {
        MN_FAIL(MN_E_FORMAT, "%s: the added token %d has %zu bytes, allowed: 1 to %d", what, (int)id, n,
                ADDED_MAX_BYTES);
    }
    if (set->n == 0) MN_TRY(add_node(set, (added_node){.id = -1}));
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)text[i];
        uint32_t child = child_of(set, node, byte);
        if (!child) {
            MN_TRY(add_node(set, (added_node){.sibling = set->nodes[node].child, .id = -1, .byte = byte}));
            child = (uint32_t)(set->n - 1);
            set->nodes[node].child = child;
        }
        node = child;
    }
    set->nodes[node].id = id;
    set->nodes[node].flags = (uint8_t)flags;
    set->starts[(unsigned char)text[0]] = true;
    return MN_OK;
}

void added_set_clear(added_set *set) {
    mem_free(set->nodes);
    *set = (added_set){0};
}

/* Longest text that starts at text[0]: its node, or 0. */
static uint32_t longest(const added_set *set, const char *text, size_t n, size_t *length) {
    uint32_t best = 0, node = 0;
    for (size_t i = 0; i < n; i++) {
        node = child_of(set, node, (unsigned char)text[i]);
        if (!node) break;
        if (set->nodes[node].id >= 0) {
            best = node;
            *length = i + 1;
        }
    }
    return best;
}

/* Start of the character that ends at text[end). */
static size_t character_before(const char *text, size_t end) {
    size_t start = end - 1;
    while (start > 0 && ((unsigned char)text[start] & 0xC0) == 0x80) start--;
    return start;
}

static bool stands_alone(const unicode_table *classes, const char *text, size_t n, size_t start, size_t end) {
    size_t length;
    if (start > 0 && (unicode_class_at(classes, text + character_before(text, start), &length) & UNICODE_WORD))
        return false;
    return end >= n || !(unicode_class_at(classes, text + end, &length) & UNICODE_WORD);
}

added_match added_set_find(const added_set *set, const unicode_table *classes, const char *text, size_t n, size_t *from,
                           size_t floor, bool allow_special) {
    size_t at = *from, length = 0;
    for (;; at += length) {
        uint32_t node = 0;
        while (at < n && (!set->starts[(unsigned char)text[at]] || !(node = longest(set, text + at, n - at, &length))))
            at++;
        if (at >= n || set->n == 0) return (added_match){n, n, -1};
        unsigned flags = set->nodes[node].flags;
        if ((flags & ADDED_SPECIAL) && !allow_special) continue;
        size_t start = at, end = at + length;
        if ((flags & ADDED_SINGLE_WORD) && !stands_alone(classes, text, n, start, end)) continue;
        *from = end;
        while ((flags & ADDED_LSTRIP) && start > floor) {
            size_t before = character_before(text, start);
            if (before < floor || !(unicode_class_at(classes, text + before, &length) & UNICODE_SPACE)) break;
            start = before;
        }
        if ((flags & ADDED_RSTRIP) && end < floor) end = floor; /* the white space that the previous one took along */
        while ((flags & ADDED_RSTRIP) && end < n && (unicode_class_at(classes, text + end, &length) & UNICODE_SPACE))
            end += length;
        return (added_match){start, end, set->nodes[node].id};
    }
}
