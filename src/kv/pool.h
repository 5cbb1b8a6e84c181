/* Pages: taken, shared, returned, counted against a budget, moved to the far home. Used by all caches of a model, from any
 * thread. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_POOL_H
#define MN_KV_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kv/far.h"

/* A saved cache that is mapped; closed when its last page is returned. */
typedef struct kv_mapping {
    _Atomic int references; /* pages and whoever loads them */
    void *owner;
    void (*close)(void *owner);
} kv_mapping;

void kv_mapping_drop(kv_mapping *mapping);

/* Bytes rest near (data) or far (region), never in both. A page is moved by whoever holds the model's lock, and only while no
 * cache without a far home reads it, so nobody reads it meanwhile. */
typedef struct kv_page {
    _Atomic int references;
    _Atomic int n_near;   /* of them, tables of caches that have no far home */
    size_t bytes;         /* of data */
    char *data;           /* 64-byte aligned; zeroed when taken; NULL: the page is far */
    int64_t region;       /* in the far home; 0: none */
    kv_mapping *mapping;  /* data lie in it and are not to be written; NULL: data are the page's own */
    bool in_slab;         /* data are a place in one of the pool's slabs */
    struct kv_page *next; /* in one of the pool's lists of free pages */
    /* Exact pages: a part has room for the slots [split, split + tokens); those before lie in `base`, to which it has a
     * reference, NULL: there are none. tokens 0: a whole page. */
    int split, tokens;
    struct kv_page *base;
    int64_t number; /* taken for a step and not yet in a table: the page of the sequence that it is for */
} kv_page;

typedef struct kv_pool kv_pool;

/* budget: bytes of near pages in use at once; 0: no limit. */
mn_status kv_pool_open(kv_pool **out, size_t budget);
void kv_pool_close(kv_pool **pool); /* every page must have been returned */

/* A near page with one reference. MN_E_NOMEM over budget (the message gives need and budget) or when the system
 * has none. */
mn_status kv_pool_take(kv_page **out, kv_pool *pool, size_t n_bytes);
/* The same for who writes every byte: it may hold what another page left. */
mn_status kv_pool_take_raw(kv_page **out, kv_pool *pool, size_t n_bytes);
/* The same, counted but not refused over budget: for a small page with whose help larger ones are given back next. */
mn_status kv_pool_borrow(kv_page **out, kv_pool *pool, size_t n_bytes);
/* A part of a page, of n_bytes; base may be NULL, and stays near as long as the part is there. */
mn_status kv_pool_take_part(kv_page **out, kv_pool *pool, size_t n_bytes, int split, int tokens,
                            kv_page *base);
/* A page over n_bytes of a mapping, which gets one reference more; not counted against the budget. */
mn_status kv_pool_map(kv_page **out, kv_mapping *mapping, const void *data, size_t n_bytes);
void kv_page_share(kv_page *page);
void kv_pool_return(kv_pool *pool, kv_page *page); /* drops one reference */

/* Gives a near page that nobody shares other bytes, no more of them than it has, as a whole page: data, from mem_alloc, become
 * its own. */
void kv_pool_refill(kv_pool *pool, kv_page *page, char *data, size_t n_bytes);

/* Opens the far home, in `folder` (NULL: the system's), unless it is open already. MN_E_IO. */
mn_status kv_pool_open_far(kv_pool *pool, const char *folder);
kv_far *kv_pool_far(kv_pool *pool); /* NULL: not open */

/* Moves a near page away. On failure (MN_E_IO, MN_E_FULL) it stays. */
mn_status kv_pool_send(kv_pool *pool, kv_page *page);
/* The same for a part: its bytes as a whole page were written to that region, which becomes the page's. */
void kv_pool_sent_whole(kv_pool *pool, kv_page *page, int64_t region, size_t n_bytes);
uint64_t kv_pool_sent(kv_pool *pool); /* pages moved away since the pool was opened */
/* Copies a page's bytes, wherever they are. */
mn_status kv_pool_copy(kv_pool *pool, const kv_page *page, size_t offset, size_t n_bytes, void *to);

/* Other bytes that caches keep near, as staging areas: counted against the budget. */
mn_status kv_pool_count(kv_pool *pool, size_t n_bytes);
void kv_pool_discount(kv_pool *pool, size_t n_bytes);

size_t kv_pool_used(kv_pool *pool); /* near bytes in use */
size_t kv_pool_kept(kv_pool *pool); /* blocks of memory that are kept for reuse: what a test of leaks leaves out */

/* The most near bytes in use from kv_pool_watch to kv_pool_unwatch, or until now; the pool keeps a pointer meanwhile. */
typedef struct kv_watch {
    size_t most;
    struct kv_watch *next; /* the pool's */
} kv_watch;

void kv_pool_watch(kv_pool *pool, kv_watch *watch);
void kv_pool_unwatch(kv_pool *pool, kv_watch *watch);
size_t kv_pool_budget(const kv_pool *pool);

#endif
