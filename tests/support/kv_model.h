/* What a cache must hold, told a second time and without pages of bytes: for every entry the rows that a
 * reader must get, and which pages there are, by number, so that shared ones are counted once. The rules of
 * kv.h and visible.h and the flush of Transformers' quantized cache stand here in words of their own; the
 * codes of sealed tokens are made by seal_write in a buffer of this model at the time the rule names, once.
 *
 * An entry has pages of its own here, whatever groups the cache forms: bytes and sharing are the same.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_KV_MODEL_H
#define TESTS_KV_MODEL_H

#include "kv/kv.h"

enum {
    MODEL_TOKENS = 192,
    MODEL_ENTRIES = 5,
    MODEL_PAGES = MODEL_TOKENS / 2,
    MODEL_STATES = 8,
    MODEL_IDS = 1 << 15
};

/* Pages of all caches of a pool; number 0 is none. */
typedef struct model_pool {
    size_t budget, used; /* bytes; budget 0: none */
    int n_free;
    int free[MODEL_IDS];
    int references[MODEL_IDS];
    size_t bytes[MODEL_IDS];
    bool is_mapped[MODEL_IDS]; /* a file's: not counted, and never written */
    /* A part of an exact page: the slots from `from` on, `room` of them, those before in another page; room 0: a whole page. */
    int before[MODEL_IDS], from[MODEL_IDS], room[MODEL_IDS];
} model_pool;

void model_pool_open(model_pool *pool, size_t budget);

typedef struct model_slot {
    int page[2]; /* exact, coded */
    int n_sealed;
} model_slot;

typedef struct model_state {
    int64_t position;
    int page;
    uint64_t trail; /* what the tokens up to there come to */
} model_state;

typedef struct model_entry {
    kv_spec spec;
    const kernel_table *kernels;
    int number, page_tokens, head_tokens;
    bool is_coded, seals_whole_pages, flushes;
    size_t bytes[3]; /* of a page: exact (or a state), coded, head */
    int64_t first_page;
    int n_slots;
    model_slot slots[MODEL_PAGES];
    int head;
    int n_kept[2], most_kept[2]; /* reserved pages that no slot uses; pages that the reserve is */
    int64_t n_filled;
    int n_states, next_state;
    model_state states[MODEL_STATES];
    float *rows[2]; /* keys, values: [n_heads][MODEL_TOKENS][dim], as they must be read now */
} model_entry;

typedef struct model_cache {
    model_pool *pool;
    kv_options options;
    int n_entries;
    model_entry entries[MODEL_ENTRIES];
    int64_t n, n_step;
    uint64_t trails[MODEL_TOKENS + 1];
    bool call_ends;
    size_t peak;
} model_cache;

/* Bits that look like chance, of x. */
uint64_t model_mixed(uint64_t x);
/* The value that token `token` brings for an entry, as the exact form keeps it. */
float model_value(uint32_t token, int entry, int head, bool is_key, int d, kv_codec exact);
/* Rows of a stream between heads, and of one token. */
float *model_row(const model_entry *e, bool is_key, int head, int64_t position);
static inline int model_dim(const model_entry *e, bool is_key) {
    return is_key ? e->spec.k_dim : e->spec.v_dim;
}
static inline bool model_steps(const model_entry *e) {
    return !e->spec.write_once;
}

/* What happens to a cache. The calls that may be refused give false, with nothing changed, when the budget of
 * the pool does not allow them. */
bool model_open(model_cache **out, model_pool *pool, const kv_spec *specs, int n_entries,
                const kv_options *options, const kernel_table *kernels);
void model_close(model_cache **cache);
bool model_fork(model_cache **out, const model_cache *cache);
void model_call_begin(model_cache *cache);
int64_t model_step_limit(const model_cache *cache);
bool model_fits(const model_cache *cache, int64_t n_new); /* within the budget */
void model_reserve(model_cache *cache, int64_t n_new);
void model_commit(model_cache *cache, const uint32_t *tokens);
void model_abandon(model_cache *cache);
bool model_fill_fits(const model_cache *cache, int64_t n);
void model_fill(model_cache *cache, const uint32_t *tokens, int64_t n);
int64_t model_reachable(const model_cache *cache, int64_t n);
void model_truncate(model_cache *cache, int64_t n);

/* The cache with other specs and another reserve; false when the rules of kv_convert forbid it. No budget. */
bool model_convert(model_cache *cache, const kv_spec *specs, int64_t reserve);
/* The cache as a file gives it back: pages that are full lie in the file. No budget. */
void model_reload(model_cache *cache);

size_t model_bytes(const model_cache *cache);
/* How many bytes they are at least and at most where pages in parts may have become whole ones in the far home. */
void model_bytes_range(const model_cache *cache, size_t *least, size_t *most);
/* First position that an entry holds beside its head; tokens that are held. */
int64_t model_first_held(const model_entry *e);
int64_t model_held(const model_cache *cache, const model_entry *e);
/* Tokens [0, result) of the page lie in codes. */
int model_sealed(const model_entry *e, int64_t page);

/* Bases for coded keys: orthonormal ones, different for every entry and head, of `dim` 16 or 32; [2] heads.
 * Constant after the first call, which makes them. */
const kv_basis *model_bases(int entry, int dim);

#endif
