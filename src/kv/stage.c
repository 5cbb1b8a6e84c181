/* Offloaded pages: which pages are offloaded, and how each entry's slices of them are in memory when attention reads
 * them.
 *
 * Full pages that will not be written again are offloaded: all of them, or, with a budget, only as many of the oldest
 * as necessary. Before an entry is attended its slices of offloaded pages are read into one of two areas, while the I/O
 * thread fills the other one with those of the next entry.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/stage.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"

enum { SPARE_SLICES = 8 }; /* allocates for this many more pages than needed, at most for twice as many */

static bool entry_is_offloaded(const kv_cache *cache, int entry) {
    const kv_group *group = &cache->groups[cache->entries[entry].group];
    return group->spec.is_offloaded && group->spec.kind == KV_PAGES;
}

static int next_offloaded_entry(const kv_cache *cache, int entry) {
    while (entry < cache->n_entries && !entry_is_offloaded(cache, entry)) entry++;
    return entry < cache->n_entries ? entry : -1;
}

mn_status stage_open(kv_cache *cache) {
    if (next_offloaded_entry(cache, 0) < 0) return MN_OK;
    cache->stage = mem_alloc(1, sizeof *cache->stage);
    if (!cache->stage) return MN_E_NOMEM;
    cache->stage->areas[0].entry = cache->stage->areas[1].entry = -1;
    return kv_pool_open_offload(cache->pool, NULL);
}

/* Waits for pending reads and invalidates the areas. */
static mn_status area_wait(kv_cache *cache, stage_area *area) {
    if (!area->pending) return MN_OK;
    area->pending = false;
    return kv_offload_wait(kv_pool_offload(cache->pool), &area->ticket);
}

void stage_drain(kv_cache *cache) {
    for (int i = 0; cache->stage && i < 2; i++) {
        area_wait(cache, &cache->stage->areas[i]); /* a failure matters only to a step, which requests
                                                    * again */
        cache->stage->areas[i].entry = -1;
    }
}

void kv_unstage(kv_cache *cache) {
    stage_drain(cache);
    for (int i = 0; cache->stage && i < 2; i++) {
        stage_area *area = &cache->stage->areas[i];
        kv_pool_discount(cache->pool, area->capacity);
        mem_free(area->memory);
        area->memory = NULL;
        area->capacity = 0;
    }
}

void stage_close(kv_cache *cache) {
    if (!cache->stage) return;
    kv_unstage(cache);
    for (int i = 0; i < 2; i++) {
        stage_area *area = &cache->stage->areas[i];
        mem_free(area->slices);
        for (int kind = 0; kind < 2; kind++) mem_free(area->addresses[kind]);
    }
    mem_free(cache->stage);
    cache->stage = NULL;
}

/* ---- sending pages away ---- */

/* The page of a slot that can be offloaded: resident, full, in the final form of its tokens, and not used by a cache
 * that does not offload. */
static kv_page *final_page(const kv_group *group, size_t slot, int64_t n_tokens) {
    int64_t end = (group->first_page + (int64_t)slot + 1) * group->page_tokens;
    bool is_quantized = group->is_coded && group->n_quantized[slot] == group->page_tokens;
    if (end > n_tokens || (group->is_coded && !is_quantized)) return NULL;
    kv_page *page = group->pages[is_quantized ? PAGE_CODED : PAGE_EXACT][slot];
    bool may_go = page && !page->region && atomic_load_explicit(&page->n_resident, memory_order_relaxed) == 0;
    return may_go ? page : NULL;
}

/* A page in parts is offloaded as a whole one, assembled entry by entry. */
static mn_status send_parts(kv_cache *cache, const kv_group *group, kv_page *page) {
    kv_offload *offload = kv_pool_offload(cache->pool);
    size_t n = group->entry_bytes[PAGE_EXACT];
    int64_t region = 0;
    char *entry = mem_alloc_raw(n, 1);
    mn_status status = entry ? kv_offload_take(&region, offload, group->page_bytes[PAGE_EXACT]) : MN_E_NOMEM;
    for (int i = 0; status == MN_OK && i < group->n_members; i++) {
        page_whole_entry(group, page, group->page_tokens, i, entry);
        status = kv_offload_write(offload, region, (size_t)i * n, entry, n);
    }
    mem_free(entry);
    if (status == MN_OK) {
        kv_pool_sent_whole(cache->pool, page, region, group->page_bytes[PAGE_EXACT]);
    } else if (region) {
        kv_offload_return(offload, region);
    }
    return status;
}

mn_status stage_offload(kv_cache *cache, bool only_one, bool *sent) {
    *sent = false;
    for (int g = 0; g < cache->n_groups; g++) {
        kv_group *group = &cache->groups[g];
        if (!group->spec.is_offloaded || group->spec.kind != KV_PAGES) continue;
        int64_t n_tokens = group_steps(group) ? cache->n_tokens : group->n_filled;
        for (size_t slot = 0; slot < group->n_slots; slot++) {
            kv_page *page = final_page(group, slot, n_tokens);
            if (!page) continue;
            MN_TRY(page->tokens ? send_parts(cache, group, page) : kv_pool_send(cache->pool, page));
            *sent = true;
            if (only_one) return MN_OK;
        }
    }
    return MN_OK;
}

mn_status kv_send_one(kv_cache *cache, bool *sent) {
    *sent = false;
    return cache->stage ? stage_offload(cache, true, sent) : MN_OK;
}

/* ---- areas ---- */

void stage_share_areas(kv_cache *cache, const kv_cache *beside) {
    if (!cache->stage) return;
    bool serves = beside && beside->stage && !beside->stage->beside && beside->n_entries == cache->n_entries;
    for (int i = 0; serves && i < cache->n_entries; i++) {
        serves = beside->entries[i].group == cache->entries[i].group &&
                 beside->entries[i].member == cache->entries[i].member &&
                 entry_is_offloaded(beside, i) == entry_is_offloaded(cache, i);
    }
    cache->stage->beside = serves ? beside : NULL;
}

/* The slot of the cache `beside` that has the same offloaded page; -1: none. */
static int64_t slot_beside(const kv_cache *cache, int g, int kind, size_t slot) {
    const kv_cache *beside = cache->stage->beside;
    const kv_group *group = &cache->groups[g], *other = beside ? &beside->groups[g] : NULL;
    int64_t there = other ? group_slot(other, group->first_page + (int64_t)slot) : -1;
    bool is_there =
        there >= 0 && there < (int64_t)other->n_slots && other->pages[kind][there] == group->pages[kind][slot];
    return is_there ? there : -1;
}

/* Offloaded pages of a group, and the slices of them to be read into its own areas. */
typedef struct offloaded_count {
    size_t pages, slices, bytes;
} offloaded_count;

static offloaded_count count_offloaded(const kv_cache *cache, int g) {
    const kv_group *group = &cache->groups[g];
    offloaded_count n = {0, 0, 0};
    for (int kind = 0; kind < 2; kind++) {
        for (size_t slot = 0; slot < group->n_slots; slot++) {
            const kv_page *page = group->pages[kind][slot];
            if (!page || !page->region) continue;
            n.pages++;
            if (slot_beside(cache, g, kind, slot) >= 0) continue;
            n.slices++;
            n.bytes += group->entry_bytes[kind];
        }
    }
    return n;
}

static mn_status grow_area(kv_cache *cache, stage_area *area, size_t n_slots, size_t n_slices, size_t n_bytes) {
    MN_TRY(mem_grow(&area->slices, &area->slice_capacity, n_slices, sizeof *area->slices));
    for (int kind = 0; kind < 2; kind++) {
        MN_TRY(mem_grow(&area->addresses[kind], &area->base_capacity[kind], n_slots, sizeof *area->addresses[kind]));
    }
    if (n_bytes <= area->capacity) return MN_OK;
    MN_TRY(kv_pool_count(cache->pool, n_bytes - area->capacity));
    char *memory = mem_alloc(n_bytes, 1);
    if (!memory) {
        kv_pool_discount(cache->pool, n_bytes - area->capacity);
        return MN_E_NOMEM;
    }
    mem_free(area->memory);
    area->memory = memory;
    area->capacity = n_bytes;
    return MN_OK;
}

mn_status stage_reserve(kv_cache *cache) {
    size_t most_slots = 0, most_pages = 0, most_slices = 0, most_bytes = 0, spare = 0;
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        if (!group->spec.is_offloaded || group->spec.kind != KV_PAGES) continue;
        offloaded_count n = count_offloaded(cache, g);
        if (group->capacity > most_slots) most_slots = group->capacity;
        if (n.pages > most_pages) most_pages = n.pages;
        if (n.slices > most_slices) most_slices = n.slices;
        if (n.bytes > most_bytes) {
            most_bytes = n.bytes;
            size_t n_spare = n.slices < SPARE_SLICES ? n.slices : SPARE_SLICES;
            spare = n_spare * group->entry_bytes[group->is_coded ? PAGE_CODED : PAGE_EXACT];
        }
    }
    /* Once allocated, the tables are filled in every step, so they must be as long as the longest group's. */
    if (most_pages == 0 && !cache->stage->areas[0].addresses[0]) return MN_OK;
    for (int i = 0; i < 2; i++) {
        stage_area *area = &cache->stage->areas[i];
        size_t n_bytes = most_bytes <= area->capacity ? area->capacity : most_bytes + spare;
        mn_status status = grow_area(cache, area, most_slots, most_slices + SPARE_SLICES, n_bytes);
        if (status == MN_E_NOMEM && n_bytes > most_bytes)
            status = grow_area(cache, area, most_slots, most_slices + SPARE_SLICES, most_bytes);
        MN_TRY(status);
    }
    return MN_OK;
}

/* Fills an entry's table with resident pages and places in the area, and requests the offloaded slices. */
static void area_request(kv_cache *cache, stage_area *area, int i_entry) {
    const kv_entry *entry = &cache->entries[i_entry];
    const kv_group *group = &cache->groups[entry->group];
    size_t n = 0, used = 0;
    for (int kind = 0; kind < 2; kind++) {
        size_t n_bytes = group->entry_bytes[kind], offset = (size_t)entry->member * n_bytes;
        for (size_t slot = 0; slot < group->n_slots; slot++) {
            const kv_page *page = group->pages[kind][slot];
            area->addresses[kind][slot] = page ? page->data : NULL;
            if (!page || !page->region || slot_beside(cache, entry->group, kind, slot) >= 0) continue;
            /* Kernels add the entry's offset, so it is subtracted here. */
            area->addresses[kind][slot] = (const char *)((uintptr_t)(area->memory + used) - offset);
            area->slices[n++] = (kv_offload_slice){page->region, offset, n_bytes, area->memory + used};
            used += n_bytes;
        }
    }
    area->entry = i_entry;
    area->pending = n > 0;
    area->ticket = (kv_offload_ticket){.slices = area->slices, .n_slices = n};
    if (n > 0) kv_offload_request(kv_pool_offload(cache->pool), &area->ticket);
}

void stage_begin(kv_cache *cache) {
    int first = next_offloaded_entry(cache, 0);
    cache->n_sent = kv_pool_sent(cache->pool);
    if (!cache->stage || !cache->stage->areas[0].addresses[0] || first < 0) return;
    cache->stage->current = 1;
    area_request(cache, &cache->stage->areas[0], first);
}

mn_status kv_restage(kv_cache *cache) {
    if (!cache->stage || cache->n_sent == kv_pool_sent(cache->pool)) return MN_OK;
    stage_drain(cache);
    MN_TRY(stage_reserve(cache));
    stage_begin(cache);
    return MN_OK;
}

/* Uses the slices that the cache `beside` has staged for this entry. */
static void take_beside(kv_cache *cache, int i_entry) {
    const kv_cache *beside = cache->stage->beside;
    int g = cache->entries[i_entry].group;
    stage_area *area = &cache->stage->areas[cache->stage->current];
    for (int kind = 0; beside && kind < 2; kind++) {
        for (size_t slot = 0; slot < cache->groups[g].n_slots; slot++) {
            const kv_page *page = cache->groups[g].pages[kind][slot];
            int64_t there = page && page->region ? slot_beside(cache, g, kind, slot) : -1;
            if (there >= 0) area->addresses[kind][slot] = stage_addresses(beside, i_entry, (page_kind)kind)[there];
        }
    }
}

void kv_stage(kv_cache *cache, int entry) {
    kv_stage_areas *stage = cache->stage;
    if (!stage || !entry_is_offloaded(cache, entry) || !stage->areas[0].addresses[0]) return;
    stage_area *area = &stage->areas[1 - stage->current];
    if (area->entry != entry) {
        area_wait(cache, area);
        area_request(cache, area, entry);
    }
    mn_status status = area_wait(cache, area);
    if (status != MN_OK && cache->fault == MN_OK) {
        cache->fault = status;
        snprintf(cache->fault_text, sizeof cache->fault_text, "%s", mn_last_error());
    }
    stage->current = 1 - stage->current;
    take_beside(cache, entry);
    int next = next_offloaded_entry(cache, entry + 1);
    if (next >= 0) area_request(cache, &stage->areas[1 - stage->current], next);
}

mn_status kv_fault(kv_cache *cache) {
    mn_status status = cache->fault;
    cache->fault = MN_OK;
    return status == MN_OK ? MN_OK : status_fail(status, "%s", cache->fault_text);
}

const char *const *stage_addresses(const kv_cache *cache, int entry, page_kind kind) {
    const kv_stage_areas *stage = cache->stage;
    if (stage && stage->areas[stage->current].entry == entry && entry_is_offloaded(cache, entry))
        return (const char *const *)stage->areas[stage->current].addresses[kind];
    return NULL;
}

size_t kv_offloaded_held(const kv_cache *cache) {
    size_t n = 0;
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        for (int kind = 0; kind < 2; kind++) {
            for (size_t slot = 0; slot < group->n_slots; slot++) {
                const kv_page *page = group->pages[kind][slot];
                if (page && page->region) n += page->bytes;
            }
        }
    }
    return n;
}
