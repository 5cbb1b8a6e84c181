/* Staging of far pages, between the container and the pool.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_STAGE_H
#define MN_KV_STAGE_H

#include "kv/group.h"

/* One entry's slices of far pages. */
typedef struct stage_area {
    int entry;    /* -1: nothing */
    bool pending; /* asked for and not yet waited for */
    char *memory;
    size_t capacity; /* bytes, counted against the pool's budget */
    kv_far_slice *slices;
    size_t slice_capacity;
    const char **bases[2]; /* [PAGE_EXACT, PAGE_CODED][slot] as kv_look gives them */
    size_t base_capacity[2];
    kv_far_ticket ticket;
} stage_area;

typedef struct kv_stage_areas {
    stage_area areas[2];
    int current; /* the one being attended; the other is being filled */
    const kv_cache
        *beside; /* of the same pass and staged before: shared pages are near in its areas; NULL: none. From
                             * kv_reserve to kv_commit */
} kv_stage_areas;

/* Does nothing for caches without far entries. MN_E_IO when there is no far home to be had. */
mn_status stage_open(kv_cache *cache);
void stage_close(kv_cache *cache);
/* The cache whose areas serve in the step that is reserved next; NULL: none. */
void stage_beside(kv_cache *cache, const kv_cache *beside);
/* Sends settled pages away: all, or the oldest near one. */
mn_status stage_send(kv_cache *cache, bool only_one, bool *sent);
/* Room for the slices of any entry. */
mn_status stage_reserve(kv_cache *cache);
/* Asks for the first far entry of a step. */
void stage_begin(kv_cache *cache);
/* Ends what is under way; before pages change. */
void stage_drain(kv_cache *cache);
/* The table of the entry that is staged now, NULL: not staged. */
const char *const *stage_bases(const kv_cache *cache, int entry, page_kind kind);

#endif
