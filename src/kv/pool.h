/* Pages: taken, shared, returned, counted against a budget. Used by all caches of a model, from any thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_POOL_H
#define MN_KV_POOL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum kv_home { KV_HOME_MEMORY } kv_home;

typedef struct kv_page {
    _Atomic int references;
    kv_home home;         /* where the bytes rest */
    size_t bytes;         /* of data */
    char *data;           /* 64-byte aligned; zeroed when first made, finite ever after */
    struct kv_page *next; /* in the pool's list of free pages */
} kv_page;

typedef struct kv_pool kv_pool;

/* budget: bytes of pages in use at once; 0: no limit. */
mn_status kv_pool_open(kv_pool **out, size_t budget);
void kv_pool_close(kv_pool **pool); /* every page must have been returned */

/* A page with one reference. MN_E_NOMEM over budget (the message gives need and budget) or when the system
 * has none. */
mn_status kv_pool_take(kv_page **out, kv_pool *pool, size_t n_bytes);
void kv_page_share(kv_page *page);
void kv_pool_return(kv_pool *pool, kv_page *page); /* drops one reference */

size_t kv_pool_used(kv_pool *pool); /* bytes of pages with a reference */

#endif
