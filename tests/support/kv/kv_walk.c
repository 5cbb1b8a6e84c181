/* SPDX-License-Identifier: Apache-2.0 */
#include "support/kv/kv_walk.h"

#include <stdint.h>

#include "kv/stage.h"
#include "support/support.h"

enum { N_PLACES = 1 << 14 };

typedef struct walked {
    const kv_page *page;
    unsigned walk; /* in which it was met last */
    int n_pointers, n_dropped;
} walked;

static walked places[N_PLACES];
static const walked *met[N_PLACES]; /* [n_met] of the last walk */
static size_t n_met;
static unsigned n_walks;

static walked *place_of(const kv_page *page) {
    size_t i = ((uintptr_t)page >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 50;
    while (places[i].walk == n_walks && places[i].page != page) i = (i + 1) % N_PLACES;
    return &places[i];
}

/* Follows a pointer: a page that it leads to first is followed further. */
static void follow(const kv_page *page) {
    for (; page; page = page->base) {
        walked *at = place_of(page);
        const bool is_new = at->walk != n_walks;
        if (is_new) {
            *at = (walked){.page = page, .walk = n_walks};
            assert_true(n_met < N_PLACES / 2);
            met[n_met++] = at;
        }
        at->n_pointers++;
        if (!is_new) return;
    }
}

typedef void (*visit_page)(const kv_page *page);

static void each_pointer(const kv_cache *cache, visit_page visit) {
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        visit(group->head);
        for (int kind = 0; kind < 2; kind++) {
            for (size_t i = 0; i < group->n_slots; i++) visit(group->pages[kind][i]);
            for (size_t i = 0; i < group->reserved[kind].n; i++) visit(group->reserved[kind].pages[i]);
        }
        for (int kind = 0; kind < N_PAGE_KINDS; kind++) {
            for (size_t i = 0; i < group->taken[kind].n; i++) visit(group->taken[kind].pages[i]);
        }
        for (int i = 0; i < group->n_states; i++) visit(group->states[i].page);
    }
}

const walk_sums *walk_pages(kv_cache *const *caches, size_t n, bool alone) {
    static walk_sums sums;
    sums = (walk_sums){0};
    n_walks++;
    n_met = 0;
    for (size_t i = 0; i < n; i++) {
        each_pointer(caches[i], follow);
        for (int area = 0; caches[i]->stage && area < 2; area++) sums.staged += caches[i]->stage->areas[area].capacity;
    }
    for (size_t i = 0; i < n_met; i++) {
        const kv_page *page = met[i]->page;
        if (alone && met[i]->n_pointers != atomic_load(&page->references)) return NULL;
        if (page->region) {
            sums.offloaded += page->bytes;
        } else if (page->mapping) {
            sums.mapped += page->bytes;
        } else {
            sums.resident += page->bytes;
        }
    }
    return &sums;
}

static size_t freed;

/* Drops a pointer; a page without any is gone, and its own with it. */
static void drop(const kv_page *page) {
    for (; page; page = page->base) {
        walked *at = place_of(page);
        if (++at->n_dropped < at->n_pointers) return;
        if (!page->region && !page->mapping) freed += page->bytes;
    }
}

static void restore(const kv_page *page) {
    for (; page; page = page->base) place_of(page)->n_dropped = 0;
}

size_t walk_freed(const kv_cache *cache) {
    freed = 0;
    each_pointer(cache, drop);
    each_pointer(cache, restore);
    return freed;
}
