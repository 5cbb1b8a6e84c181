/* A priority queue of the pairs of a long word: which one is merged next, by rank, then by position.
 *
 * The positions of one rank are a list. While a list is processed from left to right, most new pairs have a higher rank
 * and are appended to their list in order, so millions of candidates cost a few steps each, without sorting. New pairs
 * that come before the current position go through a heap, which stays small.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_TOKENIZER_BPE_QUEUE_H
#define MN_TEXT_TOKENIZER_BPE_QUEUE_H

#include "base/mem.h"

typedef struct bpe_candidate {
    uint32_t rank, at; /* ordered by these two */
} bpe_candidate;

typedef struct bpe_heap {
    bpe_candidate *items;
    size_t n, capacity;
} bpe_heap;

typedef struct bpe_node {
    uint32_t at, next;
} bpe_node;

typedef struct bpe_list {
    uint32_t rank, slot;
    uint32_t first, last; /* nodes */
    bool ordered;
} bpe_list;

/* Zero it before the first use; empty again after the last candidate. */
typedef struct bpe_queue {
    bpe_node *nodes;
    size_t n_nodes, nodes_capacity;
    bpe_list *lists;
    size_t n_lists, lists_capacity;
    uint32_t *slots; /* by hash of the rank: list + 1; 0: empty */
    size_t n_slots;
    bpe_heap waiting;        /* lists not started, by rank; `at` is the list's number */
    bpe_heap early;          /* candidates of ranks up to the current one */
    int64_t rank;            /* of the current list; -1: none yet */
    uint32_t current, spare; /* its next node; the first unused node; UINT32_MAX: none */
} bpe_queue;

mn_status bpe_queue_start(bpe_queue *q, size_t n); /* room for n candidates */
mn_status bpe_queue_push(bpe_queue *q, uint32_t rank, uint32_t at);
bool bpe_queue_pop(bpe_queue *q, bpe_candidate *out); /* false: empty */
void bpe_queue_clear(bpe_queue *q);

#endif
