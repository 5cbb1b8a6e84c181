/* Pages: taken, shared, returned, counted against a budget, offloaded. Used by all caches of a model, from any thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_POOL_H
#define MN_KV_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kv/offload.h"

/* A mapped saved cache; closed when its last page is returned. */
typedef struct kv_mapping {
    _Atomic int references; /* of pages and of the loading code */
    void *owner;
    void (*close)(void *owner);
} kv_mapping;

void kv_mapping_drop(kv_mapping *mapping);

/* A page is resident (data) or offloaded (region), never both. It is moved only by a thread that holds the model's
 * lock, and only if all caches that use it offload, so no other thread reads it during the move. */
typedef struct kv_page {
    _Atomic int references;
    _Atomic int n_resident; /* of them, tables of caches that do not offload */
    _Atomic uint32_t met;   /* the last count of kv_bytes_together that met it */
    size_t bytes;           /* of data */
    char *data;             /* 64-byte aligned; zeroed when taken; NULL: offloaded */
    int64_t region;         /* in the offload file; 0: none */
    kv_mapping *mapping;    /* the mapping with the data, which must not be written; NULL: data belong to the
                             * page */
    struct page_slab *slab; /* the slab with the data; NULL: none */
    struct kv_page *next;   /* list of unused headers */
    /* Exact pages: a part has room for the slots [split, split + tokens); earlier slots are in `base`, to which it has
     * a reference (NULL: none). tokens 0: a whole page. */
    int split, tokens;
    struct kv_page *base;
    int64_t number; /* taken for a step and not yet in a table: the number of its page in the sequence */
} kv_page;

typedef struct kv_pool kv_pool;

/* budget: bytes of resident pages in use at once; 0: no limit. */
mn_status kv_pool_open(kv_pool **out, size_t budget);
void kv_pool_close(kv_pool **pool); /* every page must have been returned */

/* A resident page with one reference. MN_E_NOMEM over budget (the message has need and budget) or when the system has
 * no memory. */
mn_status kv_pool_take(kv_page **out, kv_pool *pool, size_t n_bytes);
/* The same, not cleared: for callers that write every byte. */
mn_status kv_pool_take_raw(kv_page **out, kv_pool *pool, size_t n_bytes);
/* The same, counted but not refused over budget: for a small page that allows larger ones to be freed. */
mn_status kv_pool_borrow(kv_page **out, kv_pool *pool, size_t n_bytes);
/* A part of a page, of n_bytes; base may be NULL, and stays resident as long as the part exists. */
mn_status kv_pool_take_part(kv_page **out, kv_pool *pool, size_t n_bytes, int split, int tokens, kv_page *base);
/* A page over n_bytes of a mapping, to which it adds a reference; not counted against the budget. */
mn_status kv_pool_map(kv_page **out, kv_mapping *mapping, const void *data, size_t n_bytes);
void kv_page_share(kv_page *page);
void kv_pool_return(kv_pool *pool, kv_page *page); /* drops one reference */

/* Replaces the bytes of a resident, unshared page by at most as many, as a whole page: it takes ownership of data, from
 * mem_alloc. */
void kv_pool_refill(kv_pool *pool, kv_page *page, char *data, size_t n_bytes);

/* Opens the offload file, in `folder` (NULL: the system's), unless it is open already. MN_E_IO. */
mn_status kv_pool_open_offload(kv_pool *pool, const char *folder);
kv_offload *kv_pool_offload(kv_pool *pool); /* NULL: not open */

/* Offloads a resident page. On failure (MN_E_IO, MN_E_FULL) it stays resident. */
mn_status kv_pool_send(kv_pool *pool, kv_page *page);
/* The same for a part: the region, which becomes the page's, has its bytes as a whole page. */
void kv_pool_sent_whole(kv_pool *pool, kv_page *page, int64_t region, size_t n_bytes);
uint64_t kv_pool_sent(kv_pool *pool); /* pages offloaded since the pool was opened */
/* Copies the bytes of a resident or offloaded page. */
mn_status kv_pool_copy(kv_pool *pool, const kv_page *page, size_t offset, size_t n_bytes, void *to);

/* Other resident bytes of caches, such as staging areas: counted against the budget. */
mn_status kv_pool_count(kv_pool *pool, size_t n_bytes);
void kv_pool_discount(kv_pool *pool, size_t n_bytes);

size_t kv_pool_used(kv_pool *pool); /* resident bytes in use */
/* Pages in use, each once, however many caches share it. Those of a mapping are in neither count until they are
 * offloaded. */
typedef struct kv_page_counts {
    uint64_t n_resident, n_offloaded;
    uint64_t offloaded_bytes;
} kv_page_counts;

kv_page_counts kv_pool_pages(kv_pool *pool);
uint32_t kv_pool_next_count(kv_pool *pool); /* a number for kv_page.met, not 0 */
/* Memory of unused pages is kept for later ones and freed when it was not needed for PAGE_IDLE_MS (page_memory.h). That
 * is checked when pages are returned, and here: for a thread that waits, because then no pages are returned. */
void kv_pool_return_idle(kv_pool *pool);
/* Frees all of it now. */
void kv_pool_release(kv_pool *pool);

/* The most resident bytes in use from kv_pool_watch to kv_pool_unwatch, or until now; the pool keeps a pointer to it in
 * between. */
typedef struct kv_watch {
    size_t most;
    struct kv_watch *next; /* linked by the pool */
} kv_watch;

void kv_pool_watch(kv_pool *pool, kv_watch *watch);
void kv_pool_unwatch(kv_pool *pool, kv_watch *watch);
size_t kv_pool_budget(const kv_pool *pool);
/* Called, without a lock, when the budget does not allow a page: returns whether it has freed pages, and then the
 * budget is looked at again. NULL: never. */
typedef bool (*kv_reclaim)(void *user);
void kv_pool_set_reclaim(kv_pool *pool, kv_reclaim reclaim, void *user);
/* Changes the budget; pages in use are not affected. */
void kv_pool_set_budget(kv_pool *pool, size_t budget);

#endif
