/* Byte-pair merging: symbols are token ids, a table gives the pairs that are merged, and their order.
 *
 * Rank order (lowest first, leftmost on ties) serves merge lists, tiktoken ranks and SentencePiece scores alike. Short
 * words are merged by scanning, long ones with a queue, so no text costs quadratic time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_TOKENIZER_BPE_H
#define MN_TEXT_TOKENIZER_BPE_H

#include "text/tokenizer/bpe_queue.h"
#include "text/tokenizer/vocab.h"

typedef struct merge {
    uint32_t left, right; /* left == UINT32_MAX: an empty slot */
    uint32_t rank;
    uint32_t id; /* of the union */
} merge;

typedef struct merge_table {
    merge *slots;
    size_t n_slots, used;
    uint64_t keys[2]; /* random and odd, so that no file can contain pairs chosen to collide */
    unsigned shift;   /* 64 - log2(n_slots) */
} merge_table;

enum {
    SPLIT_MAX_BYTES = 1024, /* longest token that is tried at every cut; the longest known has 256 */
    SPLIT_MAX = 1 << 24,    /* merges found in this way; known vocabularies have some two million */
};

/* Room for n merges; MN_E_NOMEM. */
mn_status merge_table_reserve(merge_table *table, size_t n);
/* Adds one, within the reserved room; a second one of the same pair replaces the first. */
void merge_table_put(merge_table *table, merge entry);
void merge_table_clear(merge_table *table);
const merge *merge_table_find(const merge_table *table, uint32_t left, uint32_t right); /* NULL when there is none */

/* All ways to build a token from two symbols, where tokens join by rank[id] (0 first; equal ranks allowed) as soon as
 * their union is a token. PIECE_OUTSIDE are left out. A first symbol (one byte-level letter, or one character) that is
 * no token itself gets a virtual id from v->n on, see virtual_symbols. MN_E_FORMAT (with `what`) for a token of more
 * than SPLIT_MAX_BYTES, or more merges than SPLIT_MAX. */
mn_status merge_table_from_ranks(merge_table *table, vocab *virtual_symbols, const vocab *v, const uint32_t *rank,
                                 const char *what);

/* The same where the union with the highest score joins first. */
mn_status merge_table_from_scores(merge_table *table, vocab *virtual_symbols, const vocab *v, const float *score,
                                  const char *what);

/* Scratch of one thread. */
typedef struct bpe_scratch {
    uint32_t *symbols; /* the word; filled by the caller */
    size_t capacity;
    uint32_t *links; /* previous and next of each symbol, when the word is long */
    size_t links_capacity;
    bpe_queue queue;
} bpe_scratch;

mn_status bpe_scratch_reserve(bpe_scratch *scratch, size_t n); /* room for n symbols */
void bpe_scratch_clear(bpe_scratch *scratch);

/* Merges scratch->symbols[0..*n) in place. */
mn_status bpe_merge(const merge_table *table, bpe_scratch *scratch, size_t *n);

#endif
