/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/bpe.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/utf8.h"

enum { SHORT_WORD = 64 }; /* longest word for which scanning is faster than the queue */

#define NO_RANK UINT32_MAX
#define NO_LINK UINT32_MAX

/* ---- the table ---- */

/* Multiply-shift hashing: any two pairs collide for few keys only. */
static inline size_t slot_of(const merge_table *table, uint32_t left, uint32_t right) {
    return (size_t)((left * table->keys[0] + right * table->keys[1]) >> table->shift & MN_HASH_MASK);
}

mn_status merge_table_reserve(merge_table *table, size_t n) {
    size_t n_slots = 16;
    unsigned shift = 60;
    for (; n_slots < n * 2; n_slots *= 2) shift--;
    merge *slots = mem_alloc_raw(n_slots, sizeof *slots);
    if (!slots) return MN_E_NOMEM;
    memset(slots, 0xFF, n_slots * sizeof *slots);
    merge_table_clear(table);
    table->slots = slots;
    table->n_slots = n_slots;
    table->shift = shift;
    for (int i = 0; i < 2; i++) table->keys[i] = hash_seed() | 1;
    return MN_OK;
}

void merge_table_put(merge_table *table, merge entry) {
    size_t slot = slot_of(table, entry.left, entry.right);
    for (; table->slots[slot].left != UINT32_MAX; slot = (slot + 1) & (table->n_slots - 1)) {
        if (table->slots[slot].left == entry.left && table->slots[slot].right == entry.right) {
            table->slots[slot] = entry;
            return;
        }
    }
    table->slots[slot] = entry;
    table->used++;
}

void merge_table_clear(merge_table *table) {
    mem_free(table->slots);
    *table = (merge_table){0};
}

const merge *merge_table_find(const merge_table *table, uint32_t left, uint32_t right) {
    if (table->used == 0) return NULL;
    for (size_t slot = slot_of(table, left, right);; slot = (slot + 1) & (table->n_slots - 1)) {
        const merge *entry = &table->slots[slot];
        if (entry->left == left && entry->right == right) return entry;
        if (entry->left == UINT32_MAX) return NULL;
    }
}

/* ---- merges from ranks ---- */

/* The symbol of a part of a token, or VOCAB_NONE; one character that is no token gets a virtual id. */
static mn_status part_symbol(vocab *virtual_symbols, const vocab *v, const char *text, size_t n, int64_t *out) {
    int32_t id = vocab_find(v, text, n);
    *out = id != VOCAB_NONE && !(v->pieces[id].flags & PIECE_OUTSIDE) ? id : VOCAB_NONE;
    if (*out != VOCAB_NONE || utf8_sequence(text, n) != n) return MN_OK;
    int32_t known = vocab_find(virtual_symbols, text, n);
    if (known == VOCAB_NONE) {
        known = (int32_t)virtual_symbols->n;
        MN_TRY(vocab_put(virtual_symbols, known, text, n, 0, "single characters"));
    }
    *out = (int64_t)v->n + known;
    return MN_OK;
}

/* Doubles the table: the largest possible number of splits of such tokens would be far too large. */
static mn_status double_table(merge_table *table) {
    merge_table grown = {0};
    MN_TRY(merge_table_reserve(&grown, table->n_slots));
    for (size_t i = 0; i < table->n_slots; i++) {
        if (table->slots[i].left != UINT32_MAX) merge_table_put(&grown, table->slots[i]);
    }
    merge_table_clear(table);
    *table = grown;
    return MN_OK;
}

static mn_status put_splits(merge_table *table, vocab *virtual_symbols, const vocab *v, uint32_t id, uint32_t rank,
                            const char *what) {
    const char *text = vocab_text(v, (int32_t)id);
    size_t n = v->pieces[id].n;
    if (n > SPLIT_MAX_BYTES) {
        MN_FAIL(MN_E_FORMAT, "%s: token %" PRIu32 " has %zu bytes, at most %d are allowed where no merges are listed",
                what, id, n, SPLIT_MAX_BYTES);
    }
    for (size_t cut = 1; cut < n; cut++) {
        if (((unsigned char)text[cut] & 0xC0) == 0x80) continue;
        int64_t left, right;
        MN_TRY(part_symbol(virtual_symbols, v, text, cut, &left));
        if (left == VOCAB_NONE) continue;
        MN_TRY(part_symbol(virtual_symbols, v, text + cut, n - cut, &right));
        if (right == VOCAB_NONE) continue;
        if (table->used == SPLIT_MAX)
            MN_FAIL(MN_E_FORMAT, "%s: the tokens can be split in more than %d ways", what, SPLIT_MAX);
        if ((table->used + 1) * 2 > table->n_slots) MN_TRY(double_table(table));
        merge_table_put(table, (merge){(uint32_t)left, (uint32_t)right, rank, id});
    }
    return MN_OK;
}

mn_status merge_table_from_ranks(merge_table *table, vocab *virtual_symbols, const vocab *v, const uint32_t *rank,
                                 const char *what) {
    MN_TRY(merge_table_reserve(table, v->n));
    for (uint32_t id = 0; id < v->n; id++) {
        if (vocab_has(v, id) && !(v->pieces[id].flags & PIECE_OUTSIDE))
            MN_TRY(put_splits(table, virtual_symbols, v, id, rank[id], what));
    }
    return MN_OK;
}

typedef struct scored {
    float score;
    uint32_t id;
} scored;

static int by_score(const void *a, const void *b) {
    float x = ((const scored *)a)->score, y = ((const scored *)b)->score;
    return (x < y) - (x > y);
}

mn_status merge_table_from_scores(merge_table *table, vocab *virtual_symbols, const vocab *v, const float *score,
                                  const char *what) {
    scored *order = mem_alloc(v->n, sizeof *order);
    uint32_t *rank = mem_alloc(v->n, sizeof *rank);
    mn_status status = order && rank ? MN_OK : MN_E_NOMEM;
    if (status == MN_OK) {
        for (uint32_t i = 0; i < v->n; i++) order[i] = (scored){score[i] == score[i] ? score[i] : -INFINITY, i};
        qsort(order, v->n, sizeof *order, by_score);
        for (uint32_t i = 0; i < v->n; i++) {
            rank[order[i].id] = i > 0 && order[i].score == order[i - 1].score ? rank[order[i - 1].id] : i;
        }
        status = merge_table_from_ranks(table, virtual_symbols, v, rank, what);
    }
    mem_free(order);
    mem_free(rank);
    return status;
}

/* ---- merging ---- */

mn_status bpe_scratch_reserve(bpe_scratch *scratch, size_t n) {
    return mem_grow(&scratch->symbols, &scratch->capacity, n, sizeof *scratch->symbols);
}

void bpe_scratch_clear(bpe_scratch *scratch) {
    mem_free(scratch->symbols);
    mem_free(scratch->links);
    bpe_queue_clear(&scratch->queue);
    *scratch = (bpe_scratch){0};
}

static size_t merge_short(const merge_table *table, uint32_t *symbols, size_t n) {
    uint32_t rank[SHORT_WORD], id[SHORT_WORD]; /* of the pair i, i + 1 */
    for (size_t i = 0; i + 1 < n; i++) {
        const merge *entry = merge_table_find(table, symbols[i], symbols[i + 1]);
        rank[i] = entry ? entry->rank : NO_RANK;
        id[i] = entry ? entry->id : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best]) best = i;
        }
        if (rank[best] == NO_RANK) break;
        symbols[best] = id[best];
        n--;
        memmove(symbols + best + 1, symbols + best + 2, (n - best - 1) * sizeof *symbols);
        if (best + 1 < n) {
            memmove(rank + best + 1, rank + best + 2, (n - best - 2) * sizeof *rank);
            memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof *id);
            const merge *entry = merge_table_find(table, symbols[best], symbols[best + 1]);
            rank[best] = entry ? entry->rank : NO_RANK;
            id[best] = entry ? entry->id : 0;
        }
        if (best > 0) {
            const merge *entry = merge_table_find(table, symbols[best - 1], symbols[best]);
            rank[best - 1] = entry ? entry->rank : NO_RANK;
            id[best - 1] = entry ? entry->id : 0;
        }
    }
    return n;
}

static inline mn_status push_pair(const merge_table *table, bpe_scratch *scratch, uint32_t at, uint32_t right) {
    const merge *entry = merge_table_find(table, scratch->symbols[at], scratch->symbols[right]);
    return entry ? bpe_queue_push(&scratch->queue, entry->rank, at) : MN_OK;
}

/* A symbol that was merged into its left neighbour has next == itself. A candidate whose pair has changed since is
 * skipped: the new pair has a candidate of its own. */
static mn_status merge_long(const merge_table *table, bpe_scratch *scratch, size_t *n) {
    size_t count = *n;
    MN_TRY(mem_grow(&scratch->links, &scratch->links_capacity, count * 2, sizeof *scratch->links));
    MN_TRY(bpe_queue_start(&scratch->queue, count));
    uint32_t *symbols = scratch->symbols, *previous = scratch->links, *next = scratch->links + count;
    for (uint32_t i = 0; i < count; i++) {
        previous[i] = i ? i - 1 : NO_LINK;
        next[i] = i + 1 < count ? i + 1 : NO_LINK;
        if (i + 1 < count) MN_TRY(push_pair(table, scratch, i, i + 1));
    }
    bpe_candidate top;
    while (bpe_queue_pop(&scratch->queue, &top)) {
        uint32_t at = top.at, right = next[at], left = previous[at];
        if (right == at || right == NO_LINK) continue;
        const merge *entry = merge_table_find(table, symbols[at], symbols[right]);
        if (!entry || entry->rank != top.rank) continue;
        symbols[at] = entry->id;
        uint32_t after = next[right];
        next[right] = right;
        next[at] = after;
        if (left != NO_LINK) MN_TRY(push_pair(table, scratch, left, at));
        if (after != NO_LINK) {
            previous[after] = at;
            MN_TRY(push_pair(table, scratch, at, after));
        }
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != NO_LINK; i = next[i]) symbols[kept++] = symbols[i];
    *n = kept;
    return MN_OK;
}

mn_status bpe_merge(const merge_table *table, bpe_scratch *scratch, size_t *n) {
    if (*n < 2 || table->used == 0) return MN_OK;
    if (*n > SHORT_WORD) return merge_long(table, scratch, n);
    *n = merge_short(table, scratch->symbols, *n);
    return MN_OK;
}
