/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/bpe_queue.h"

#include <string.h>

#define NO_NODE UINT32_MAX

enum { FIRST_SLOTS = 64 };

/* ---- heaps ---- */

static inline bool before(const bpe_candidate *a, const bpe_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static mn_status heap_push(bpe_heap *h, bpe_candidate candidate) {
    MN_TRY(mem_grow(&h->items, &h->capacity, h->n + 1, sizeof *h->items));
    size_t i = h->n++;
    for (size_t parent; i > 0 && before(&candidate, &h->items[parent = (i - 1) / 2]); i = parent)
        h->items[i] = h->items[parent];
    h->items[i] = candidate;
    return MN_OK;
}

static bpe_candidate heap_pop(bpe_heap *h) {
    bpe_candidate top = h->items[0], moving = h->items[--h->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && before(&h->items[child + 1], &h->items[child])) child++;
        if (!before(&h->items[child], &moving)) break;
        h->items[i] = h->items[child];
    }
    h->items[i] = moving;
    return top;
}

/* ---- lists ---- */

static size_t slot_of(const bpe_queue *q, uint32_t rank) {
    uint64_t h = rank * 0x9E3779B97F4A7C15u;
    size_t slot = (h ^ h >> 32) & (q->n_slots - 1);
    while (q->slots[slot] && q->lists[q->slots[slot] - 1].rank != rank) slot = (slot + 1) & (q->n_slots - 1);
    return slot;
}

static mn_status grow_slots(bpe_queue *q) {
    size_t n_slots = q->n_slots ? q->n_slots * 4 : FIRST_SLOTS;
    uint32_t *slots = mem_alloc(n_slots, sizeof *slots);
    if (!slots) return MN_E_NOMEM;
    mem_free(q->slots);
    q->slots = slots;
    q->n_slots = n_slots;
    for (size_t i = 0; i < q->n_lists; i++) {
        q->lists[i].slot = (uint32_t)slot_of(q, q->lists[i].rank);
        q->slots[q->lists[i].slot] = (uint32_t)i + 1;
    }
    return MN_OK;
}

static mn_status list_of(bpe_queue *q, uint32_t rank, bpe_list **out) {
    if ((q->n_lists + 1) * 2 > q->n_slots) MN_TRY(grow_slots(q));
    size_t slot = slot_of(q, rank);
    if (!q->slots[slot]) {
        MN_TRY(mem_grow(&q->lists, &q->lists_capacity, q->n_lists + 1, sizeof *q->lists));
        MN_TRY(heap_push(&q->waiting, (bpe_candidate){rank, (uint32_t)q->n_lists}));
        q->lists[q->n_lists++] = (bpe_list){rank, (uint32_t)slot, NO_NODE, NO_NODE, true};
        q->slots[slot] = (uint32_t)q->n_lists;
    }
    *out = &q->lists[q->slots[slot] - 1];
    return MN_OK;
}

/* Where the ordered run that begins at `node` ends: its last node. */
static uint32_t run_end(const bpe_node *nodes, uint32_t node) {
    while (nodes[node].next != NO_NODE && nodes[nodes[node].next].at >= nodes[node].at) node = nodes[node].next;
    return node;
}

/* Merges two ordered runs that end in NO_NODE behind *tail; *tail is then the last node. */
static void merge_runs(bpe_node *nodes, uint32_t a, uint32_t b, uint32_t **tail) {
    while (a != NO_NODE || b != NO_NODE) {
        bool take_b = a == NO_NODE || (b != NO_NODE && nodes[b].at < nodes[a].at);
        uint32_t *taken = take_b ? &b : &a;
        **tail = *taken;
        *tail = &nodes[*taken].next;
        *taken = **tail;
    }
}

/* Sorts a list by merging its sorted runs in pairs. */
static uint32_t order(bpe_node *nodes, uint32_t first) {
    for (;;) {
        uint32_t rest = first, *tail = &first;
        size_t merges = 0;
        while (rest != NO_NODE) {
            uint32_t a = rest, a_end = run_end(nodes, a), b = nodes[a_end].next, b_end = NO_NODE;
            nodes[a_end].next = NO_NODE;
            rest = NO_NODE;
            if (b != NO_NODE) {
                b_end = run_end(nodes, b);
                rest = nodes[b_end].next;
                nodes[b_end].next = NO_NODE;
                merges++;
            }
            merge_runs(nodes, a, b, &tail);
        }
        *tail = NO_NODE;
        if (merges <= 1) return first;
    }
}

/* ---- the queue ---- */

mn_status bpe_queue_start(bpe_queue *q, size_t n) {
    for (size_t i = 0; i < q->n_lists; i++) q->slots[q->lists[i].slot] = 0;
    q->n_nodes = q->n_lists = q->waiting.n = q->early.n = 0;
    q->rank = -1;
    q->current = q->spare = NO_NODE;
    return mem_grow(&q->nodes, &q->nodes_capacity, n, sizeof *q->nodes);
}

mn_status bpe_queue_push(bpe_queue *q, uint32_t rank, uint32_t at) {
    if (rank <= q->rank) return heap_push(&q->early, (bpe_candidate){rank, at});
    bpe_list *list;
    MN_TRY(list_of(q, rank, &list));
    uint32_t node = q->spare;
    if (node == NO_NODE) {
        MN_TRY(mem_grow(&q->nodes, &q->nodes_capacity, q->n_nodes + 1, sizeof *q->nodes));
        node = (uint32_t)q->n_nodes++;
    } else {
        q->spare = q->nodes[node].next;
    }
    q->nodes[node] = (bpe_node){at, NO_NODE};
    if (list->last == NO_NODE) {
        list->first = node;
    } else {
        list->ordered &= q->nodes[list->last].at <= at;
        q->nodes[list->last].next = node;
    }
    list->last = node;
    return MN_OK;
}

bool bpe_queue_pop(bpe_queue *q, bpe_candidate *out) {
    if (q->early.n == 0 && q->current == NO_NODE) {
        if (q->waiting.n == 0) return false;
        const bpe_list *list = &q->lists[heap_pop(&q->waiting).at];
        q->rank = list->rank;
        q->current = list->ordered ? list->first : order(q->nodes, list->first);
    }
    bpe_candidate next = {(uint32_t)q->rank, q->current == NO_NODE ? NO_NODE : q->nodes[q->current].at};
    if (q->early.n && (q->current == NO_NODE || before(&q->early.items[0], &next))) {
        *out = heap_pop(&q->early);
        return true;
    }
    uint32_t node = q->current;
    q->current = q->nodes[node].next;
    q->nodes[node].next = q->spare;
    q->spare = node;
    *out = next;
    return true;
}

void bpe_queue_clear(bpe_queue *q) {
    mem_free(q->nodes);
    mem_free(q->lists);
    mem_free(q->slots);
    mem_free(q->waiting.items);
    mem_free(q->early.items);
    *q = (bpe_queue){0};
}
