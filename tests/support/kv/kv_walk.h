/* The pages that caches hold, counted by identity: every pointer to a page is followed, and each page is listed once,
 * with the pointers that lead to it. An independent count of what the sums of kv.h and the counters of the pool say.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_KV_WALK_H
#define TESTS_KV_WALK_H

#include "kv/kv.h"

/* Bytes of pages, each once. */
typedef struct walk_sums {
    size_t resident;  /* the pool's own memory */
    size_t mapped;    /* in mapped files */
    size_t offloaded; /* in the offload file */
    size_t staged;    /* memory into which offloaded pages are read; no pages */
} walk_sums;

/* Of n caches together, between steps. Not for several threads at once. NULL: a reference count differs from the
 * pointers to its page, which must be all there are, where `alone` is set. */
const walk_sums *walk_pages(kv_cache *const *caches, size_t n, bool alone);

/* Resident bytes that closing `cache`, one of those of the last walk, would free. */
size_t walk_freed(const kv_cache *cache);

#endif
