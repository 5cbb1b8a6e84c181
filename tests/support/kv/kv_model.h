/* A model of a cache, an independent implementation without pages of bytes: for every entry the rows that a reader must
 * get, and its pages by number, so that shared ones are counted once. It implements the rules of kv.h and visible.h and
 * the flush of Transformers' quantized cache independently; quantized tokens are made once, at the time that the rule
 * sets, by quantize_write in a buffer of this model.
 *
 * Here every entry has its own pages, whatever groups the cache forms: bytes and sharing are the same.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_KV_MODEL_H
#define TESTS_KV_MODEL_H

#include "kv/kv.h"

enum { MODEL_TOKENS = 192, MODEL_ENTRIES = 5, MODEL_PAGES = MODEL_TOKENS / 2, MODEL_STATES = 8, MODEL_IDS = 1 << 15 };

/* Pages of all caches of a pool; number 0: no page. */
typedef struct model_pool {
    size_t budget, used; /* bytes; budget 0: none */
    int n_free;
    int free[MODEL_IDS];
    int references[MODEL_IDS];
    size_t bytes[MODEL_IDS];
    bool is_mapped[MODEL_IDS]; /* mapped from a file: not counted, and never written */
    /* A part of an exact page: `room` slots from `from` on, earlier ones in another page; room 0: a whole page. */
    int before[MODEL_IDS], from[MODEL_IDS], room[MODEL_IDS];
} model_pool;

void model_pool_open(model_pool *pool, size_t budget);

typedef struct model_slot {
    int page[2]; /* exact, coded */
    int n_quantized;
} model_slot;

typedef struct model_state {
    int64_t position;
    int page;
    uint64_t trail; /* a hash of the tokens up to here */
} model_state;

typedef struct model_entry {
    kv_spec spec;
    const kernel_table *kernels;
    int number, page_tokens, head_tokens;
    bool is_coded, quantizes_whole_pages, flushes;
    size_t bytes[3]; /* of a page: exact (or a state), quantized, head */
    int64_t first_page;
    int n_slots;
    model_slot slots[MODEL_PAGES];
    int head;
    int n_kept[2], most_kept[2]; /* preallocated pages that no slot uses; preallocated pages */
    int64_t n_filled;
    int n_states, next_state;
    model_state states[MODEL_STATES];
    float *rows[2]; /* keys, values: [n_heads][MODEL_TOKENS][dim], as a reader must get them now */
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

/* A hash of x. */
uint64_t model_mixed(uint64_t x);
/* The value of `token` in an entry, as the exact form stores it. */
float model_value(uint32_t token, int entry, int head, bool is_key, int d, kv_codec exact);
/* Rows of a stream between heads, and of one token. */
float *model_row(const model_entry *e, bool is_key, int head, int64_t position);
static inline int model_dim(const model_entry *e, bool is_key) {
    return is_key ? e->spec.k_dim : e->spec.v_dim;
}
static inline bool model_steps(const model_entry *e) {
    return !e->spec.write_once;
}

/* Operations of a cache. Those that may be refused return false, without a change, when the budget of the pool does not
 * allow them. */
bool model_open(model_cache **out, model_pool *pool, const kv_spec *specs, int n_entries, const kv_options *options,
                const kernel_table *kernels);
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

/* Converts the cache to other specs and another preallocation; false when the rules of kv_convert forbid it. No budget.
 */
bool model_convert(model_cache *cache, const kv_spec *specs, int64_t reserve);
/* The cache as loaded from a file: full pages are mapped from the file. No budget. */
void model_reload(model_cache *cache);

size_t model_bytes(const model_cache *cache);
/* Lower and upper bounds of the bytes, where pages in parts may have become whole ones in the offload file, or ones
 * with space for their tokens alone. */
void model_bytes_range(const model_cache *cache, size_t *least, size_t *most);
/* First position that an entry holds besides its head; number of held tokens. */
int64_t model_first_held(const model_entry *e);
int64_t model_held(const model_cache *cache, const model_entry *e);
/* Tokens [0, result) of the page are quantized. */
int model_quantized(const model_entry *e, int64_t page);

/* Calibrations for quantized keys: orthonormal, different for every entry and head, of `dim` 16 or 32; [2] heads. The
 * first call makes them; they are constant. */
const kv_head_calibration *model_calibration(int entry, int dim);

#endif
