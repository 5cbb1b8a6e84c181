/* Staging of offloaded pages, between the container and the pool.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_STAGE_H
#define MN_KV_STAGE_H

#include "kv/group.h"

/* One entry's slices of offloaded pages. */
typedef struct stage_area {
    int entry;    /* -1: nothing */
    bool pending; /* requested and not yet awaited */
    char *memory;
    size_t capacity; /* bytes, counted against the pool's budget */
    kv_offload_slice *slices;
    size_t slice_capacity;
    const char **addresses[2]; /* [PAGE_EXACT, PAGE_CODED][slot] as kv_attention_view gives them */
    size_t base_capacity[2];
    kv_offload_ticket ticket;
} stage_area;

typedef struct kv_stage_areas {
    stage_area areas[2];
    int current;            /* the one being attended; the other is being filled */
    const kv_cache *beside; /* staged earlier in the same pass: its areas have the shared pages; NULL: none. From
                             * kv_reserve to kv_commit */
} kv_stage_areas;

/* Does nothing for caches without offloaded entries. MN_E_IO when the offload file cannot be opened. */
mn_status stage_open(kv_cache *cache);
void stage_close(kv_cache *cache);
/* The cache whose areas the next reserved step uses; NULL: none. */
void stage_share_areas(kv_cache *cache, const kv_cache *beside);
/* Offloads pages that will not change: all, or the oldest resident one. */
mn_status stage_offload(kv_cache *cache, bool only_one, bool *sent);
/* Allocates memory for the slices of any entry. */
mn_status stage_reserve(kv_cache *cache);
/* Requests the slices of the first offloaded entry of a step. */
void stage_begin(kv_cache *cache);
/* Ends pending reads; called before pages change. */
void stage_drain(kv_cache *cache);
/* The table of the entry that is currently staged, NULL: not staged. */
const char *const *stage_addresses(const kv_cache *cache, int entry, page_kind kind);

#endif
