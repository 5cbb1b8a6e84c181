/* The cache of one sequence: pages of keys and values, described by numbers.
 *
 *   entry   the memory of one attention sub-layer; most models have one per layer
 *   page    P consecutive tokens of every entry of a group, keys and values, in one stored form each
 * (kernels/attend.h says how the bytes lie); shared by reference count, copied when written while shared
 *   group   entries with equal specs; they share one page table, and a page holds all of them side by side
 *   step    reserve, then for each entry append and look, then commit; or abandon
 *
 * Only kv_reserve, kv_open and kv_fork can fail, and when they do nothing has changed. A named strategy is a
 * row of a table in plan.c that fills these specs; there is no type per strategy. What a query may see
 * depends on positions alone (visible.h). SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_KV_H
#define MN_KV_KV_H

#include <stdbool.h>

#include "kernels/kernels.h"
#include "kv/form.h"
#include "kv/pool.h"

/* Everything about one entry. */
typedef struct kv_spec {
    int n_heads;        /* KV heads */
    int k_dim, v_dim;   /* values in a row of a head, even */
    kv_form key, value; /* stored form of each */
    int sinks, window;  /* a query at p sees [0, sinks) and (p - window, p]; window 0: everything up to p */
} kv_spec;

typedef struct kv_options {
    int page_tokens; /* even */
    int64_t reserve; /* tokens allocated at once and kept; 0: pages on demand */
    int64_t limit;   /* tokens refused beyond (MN_E_FULL); 0: none */
} kv_options;

typedef struct kv_cache kv_cache;

/* An empty cache for one sequence; specs are copied. The pool must outlive it. */
mn_status kv_open(kv_cache **out, kv_pool *pool, const kv_spec *specs, int n_entries,
                  const kv_options *options);
void kv_close(kv_cache **cache);

/* ---- a step ---- */

/* Room for n_new tokens in every entry: new pages, and private copies of shared pages that will be written.
 * MN_E_FULL, MN_E_NOMEM; then nothing has changed. */
mn_status kv_reserve(kv_cache *cache, int64_t n_new);

/* Stores tokens [token_begin, token_end) of the step, KV head `head` of an entry. k and v: f32 rows of token
 * 0 of the step; the row of token t lies t * stride floats further. Keys are rotated already. Different
 * heads, and tokens of different pages, may be stored by different threads at once. */
void kv_append(kv_cache *cache, const kernel_table *kernels, int entry, int head, int token_begin,
               int token_end, const float *k, const float *v, ptrdiff_t k_stride, ptrdiff_t v_stride);

/* Counts the step's tokens / forgets the step: the cache is as before kv_reserve. */
void kv_commit(kv_cache *cache);
void kv_abandon(kv_cache *cache);

/* What an attention kernel reads; valid until the next reserve, commit, abandon or truncate. */
typedef struct kv_view {
    const char *const *pages;      /* first byte of each page of the entry's group */
    int n_pages;                   /* those that hold a token, the step's included */
    int64_t n_tokens;              /* held, the step's included */
    size_t k_offset, k_head_bytes; /* keys of head h: page + k_offset + h * k_head_bytes */
    size_t v_offset, v_head_bytes;
    int page_tokens;
    const kv_spec *spec;
} kv_view;

kv_view kv_look(const kv_cache *cache, int entry);

/* ---- between steps ---- */

/* Keeps the first n_keep tokens (0..length). */
mn_status kv_truncate(kv_cache *cache, int64_t n_keep);

/* A second cache with the same past: pages are shared until one of the two writes. A cache with reserved
 * pages gives its fork private ones for everything that is not full, so that its own addresses stay. */
mn_status kv_fork(kv_cache **out, const kv_cache *cache);

int64_t kv_length(const kv_cache *cache);
int64_t kv_room(const kv_cache *cache); /* tokens that fit into the pages at hand, those held included */
int kv_entries(const kv_cache *cache);
const kv_spec *kv_entry_spec(const kv_cache *cache, int entry);
size_t kv_bytes(const kv_cache *cache);      /* of all pages referred to, shared ones counted whole */
size_t kv_peak_bytes(const kv_cache *cache); /* the largest kv_bytes so far */

/* Verifies every invariant; for tests and debug builds. The message says which is broken. */
mn_status kv_check(const kv_cache *cache);

/* Bytes that specs need for n_tokens at this page size, and per token in the limit; the planner and kv_bytes
 * agree. */
size_t kv_plan_bytes(const kv_spec *specs, int n_entries, int page_tokens, int64_t n_tokens);
size_t kv_token_bytes(const kv_spec *specs, int n_entries);

#endif
