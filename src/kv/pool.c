/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kv/page_memory.h"

struct kv_pool {
    pthread_mutex_t lock; /* protects the following members */
    page_memory memory;
    kv_page *spare; /* unused page headers */
    size_t used, budget;
    kv_watch *watches;
    kv_reclaim reclaim; /* NULL: none */
    void *reclaim_user;
    kv_offload *offload; /* NULL: not open */
    _Atomic uint64_t n_sent;
    _Atomic uint64_t n_resident, n_offloaded, offloaded_bytes; /* kv_page_counts */
    _Atomic uint32_t n_counts;
};

mn_status kv_pool_open(kv_pool **out, size_t budget) {
    kv_pool *pool = mem_alloc(1, sizeof *pool);
    *out = NULL;
    if (!pool) return MN_E_NOMEM;
    pthread_mutex_init(&pool->lock, NULL);
    pool->budget = budget;
    *out = pool;
    return MN_OK;
}

static void free_headers(kv_page *list) {
    for (kv_page *page = list, *next; page; page = next) {
        next = page->next;
        mem_free(page);
    }
}

void kv_pool_release(kv_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    page_memory_release(&pool->memory);
    kv_page *spare = pool->spare;
    pool->spare = NULL;
    pthread_mutex_unlock(&pool->lock);
    free_headers(spare);
}

void kv_pool_close(kv_pool **pool) {
    if (!*pool) return;
    kv_pool_release(*pool);
    kv_offload_close(&(*pool)->offload);
    pthread_mutex_destroy(&(*pool)->lock);
    mem_free(*pool);
    *pool = NULL;
}

/* Returns a block without a page: kept if it is in a slab. */
static void drop_block(kv_pool *pool, page_block block, size_t n_bytes) {
    if (!block.slab) {
        mem_free(block.data);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    page_memory_give(&pool->memory, block, n_bytes);
    pthread_mutex_unlock(&pool->lock);
}

/* A page of n_bytes with one reference, cleared unless is_raw; NULL: no memory. */
static kv_page *make_page(kv_pool *pool, size_t n_bytes, bool is_part, bool is_raw) {
    bool in_slab = !is_part && page_memory_in_slab(n_bytes), is_clear = false;
    free_block *useless = NULL;
    pthread_mutex_lock(&pool->lock);
    kv_page *page = pool->spare;
    if (page) pool->spare = page->next;
    page_block block = page_memory_take(&pool->memory, n_bytes, in_slab);
    if (!block.data && in_slab) block = page_memory_take_new_slab(&pool->memory, n_bytes);
    /* Parts grow from size to size, for all rows of a batch at once: kept blocks of sizes that are no longer needed are
     * freed before a block of another size is allocated. */
    if (!block.data && is_part) useless = page_memory_detach(&pool->memory);
    pthread_mutex_unlock(&pool->lock);
    page_memory_free(useless);
    if (!page) page = mem_alloc(1, sizeof *page);
    if (!block.data && !in_slab) {
        block.data = mem_alloc(n_bytes, 1);
        is_clear = true;
    }
    if (!page || !block.data) {
        mem_free(page);
        drop_block(pool, block, n_bytes);
        return NULL;
    }
    if (!is_clear && !is_raw)
        memset(block.data, 0, n_bytes); /* bytes of another form may be NaN in this
                                         * one */
    *page = (kv_page){.bytes = n_bytes, .data = block.data, .slab = block.slab};
    atomic_store_explicit(&page->references, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->n_resident, 1, memory_order_relaxed);
    return page;
}

/* Holding the lock. */
static void add_used(kv_pool *pool, size_t n_bytes) {
    pool->used += n_bytes;
    for (kv_watch *watch = pool->watches; watch; watch = watch->next) {
        if (pool->used > watch->most) watch->most = pool->used;
    }
}

mn_status kv_pool_count(kv_pool *pool, size_t n_bytes) {
    size_t used, budget;
    kv_reclaim reclaim;
    void *user;
    do {
        pthread_mutex_lock(&pool->lock);
        bool fits = !pool->budget || (n_bytes <= pool->budget && pool->used <= pool->budget - n_bytes);
        used = pool->used;
        budget = pool->budget;
        reclaim = pool->reclaim;
        user = pool->reclaim_user;
        if (fits) add_used(pool, n_bytes);
        pthread_mutex_unlock(&pool->lock);
        if (fits) return MN_OK;
    } while (n_bytes <= budget && reclaim && reclaim(user));
    MN_FAIL(MN_E_NOMEM, "the cache needs %zu more bytes: %zu of the %zu allowed are in use", n_bytes, used, budget);
}

void kv_pool_discount(kv_pool *pool, size_t n_bytes) {
    pthread_mutex_lock(&pool->lock);
    pool->used -= n_bytes;
    pthread_mutex_unlock(&pool->lock);
}

/* A page of n_bytes that have been counted; on failure they are subtracted again. */
static mn_status take_counted(kv_page **out, kv_pool *pool, size_t n_bytes, bool is_part, bool is_raw) {
    *out = make_page(pool, n_bytes, is_part, is_raw);
    if (*out) return MN_OK;
    kv_pool_discount(pool, n_bytes);
    return MN_E_NOMEM;
}

mn_status kv_pool_take(kv_page **out, kv_pool *pool, size_t n_bytes) {
    *out = NULL;
    MN_TRY(kv_pool_count(pool, n_bytes));
    return take_counted(out, pool, n_bytes, false, false);
}

mn_status kv_pool_take_raw(kv_page **out, kv_pool *pool, size_t n_bytes) {
    *out = NULL;
    MN_TRY(kv_pool_count(pool, n_bytes));
    return take_counted(out, pool, n_bytes, false, true);
}

mn_status kv_pool_borrow(kv_page **out, kv_pool *pool, size_t n_bytes) {
    *out = NULL;
    pthread_mutex_lock(&pool->lock);
    add_used(pool, n_bytes);
    pthread_mutex_unlock(&pool->lock);
    return take_counted(out, pool, n_bytes, false, false);
}

mn_status kv_pool_take_part(kv_page **out, kv_pool *pool, size_t n_bytes, int split, int tokens, kv_page *base) {
    *out = NULL;
    MN_TRY(kv_pool_count(pool, n_bytes));
    MN_TRY(take_counted(out, pool, n_bytes, true, false));
    kv_page *page = *out;
    page->split = split;
    page->tokens = tokens;
    page->base = base;
    if (base) {
        kv_page_share(base);
        atomic_fetch_add_explicit(&base->n_resident, 1, memory_order_relaxed);
    }
    return MN_OK;
}

/* Makes the page a whole one; the caller returns its base. */
static kv_page *leave_base(kv_page *page) {
    kv_page *base = page->base;
    if (base) atomic_fetch_sub_explicit(&base->n_resident, 1, memory_order_relaxed);
    page->base = NULL;
    page->split = page->tokens = 0;
    return base;
}

void kv_mapping_drop(kv_mapping *mapping) {
    if (atomic_fetch_sub_explicit(&mapping->references, 1, memory_order_acq_rel) != 1) return;
    mapping->close(mapping->owner);
    mem_free(mapping);
}

mn_status kv_pool_map(kv_page **out, kv_mapping *mapping, const void *data, size_t n_bytes) {
    kv_page *page = mem_alloc(1, sizeof *page);
    *out = page;
    if (!page) return MN_E_NOMEM;
    page->bytes = n_bytes;
    page->data = (char *)(uintptr_t)data;
    page->mapping = mapping;
    atomic_fetch_add_explicit(&mapping->references, 1, memory_order_relaxed);
    atomic_store_explicit(&page->references, 1, memory_order_relaxed);
    return MN_OK;
}

void kv_page_share(kv_page *page) {
    atomic_fetch_add_explicit(&page->references, 1, memory_order_relaxed);
}

void kv_pool_return_idle(kv_pool *pool) {
    const double now = clock_ms();
    pthread_mutex_lock(&pool->lock);
    free_block *idle = page_memory_detach_idle(&pool->memory, now);
    pthread_mutex_unlock(&pool->lock);
    page_memory_free(idle);
}

/* A page without references. */
static void drop_page(kv_pool *pool, kv_page *page) {
    if (page->region || page->mapping) {
        if (page->region) {
            kv_offload_return(pool->offload, page->region);
            atomic_fetch_sub_explicit(&pool->n_offloaded, 1, memory_order_relaxed);
            atomic_fetch_sub_explicit(&pool->offloaded_bytes, page->bytes, memory_order_relaxed);
        }
        if (page->mapping) kv_mapping_drop(page->mapping);
        mem_free(page);
        return;
    }
    double now = clock_ms();
    atomic_fetch_sub_explicit(&pool->n_resident, 1, memory_order_relaxed);
    pthread_mutex_lock(&pool->lock);
    pool->used -= page->bytes;
    page_memory_give(&pool->memory, (page_block){page->data, page->slab}, page->bytes);
    free_block *idle = page_memory_detach_idle(&pool->memory, now);
    page->next = pool->spare;
    pool->spare = page;
    pthread_mutex_unlock(&pool->lock);
    page_memory_free(idle);
}

void kv_pool_return(kv_pool *pool, kv_page *page) {
    while (page && atomic_fetch_sub_explicit(&page->references, 1, memory_order_acq_rel) == 1) {
        kv_page *base = leave_base(page);
        drop_page(pool, page);
        page = base;
    }
}

void kv_pool_refill(kv_pool *pool, kv_page *page, char *data, size_t n_bytes) {
    kv_page *base = leave_base(page);
    drop_block(pool, (page_block){page->data, page->slab}, page->bytes);
    page->slab = NULL;
    page->data = data;
    kv_pool_discount(pool, page->bytes - n_bytes);
    page->bytes = n_bytes;
    kv_pool_return(pool, base);
}

/* ---- the offload file ---- */

mn_status kv_pool_open_offload(kv_pool *pool, const char *folder) {
    pthread_mutex_lock(&pool->lock);
    mn_status status = MN_OK;
    if (!pool->offload) status = kv_offload_open(&pool->offload, folder);
    pthread_mutex_unlock(&pool->lock);
    return status;
}

kv_offload *kv_pool_offload(kv_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    kv_offload *offload = pool->offload;
    pthread_mutex_unlock(&pool->lock);
    return offload;
}

/* n_bytes: of the region. */
static void mark_offloaded(kv_pool *pool, kv_page *page, int64_t region, size_t n_bytes) {
    if (page->mapping) {
        kv_mapping_drop(page->mapping);
        page->mapping = NULL;
    } else {
        drop_block(pool, (page_block){page->data, page->slab}, page->bytes);
        page->slab = NULL;
        kv_pool_discount(pool, page->bytes);
        atomic_fetch_sub_explicit(&pool->n_resident, 1, memory_order_relaxed);
    }
    page->data = NULL;
    page->region = region;
    page->bytes = n_bytes;
    atomic_fetch_add_explicit(&pool->n_offloaded, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->offloaded_bytes, n_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->n_sent, 1, memory_order_relaxed);
}

mn_status kv_pool_send(kv_pool *pool, kv_page *page) {
    int64_t region = 0;
    MN_TRY(kv_offload_take(&region, pool->offload, page->bytes));
    mn_status status = kv_offload_write(pool->offload, region, 0, page->data, page->bytes);
    if (status != MN_OK) {
        kv_offload_return(pool->offload, region);
        return status;
    }
    mark_offloaded(pool, page, region, page->bytes);
    return MN_OK;
}

void kv_pool_sent_whole(kv_pool *pool, kv_page *page, int64_t region, size_t n_bytes) {
    kv_page *base = leave_base(page);
    mark_offloaded(pool, page, region, n_bytes);
    kv_pool_return(pool, base);
}

uint64_t kv_pool_sent(kv_pool *pool) {
    return atomic_load_explicit(&pool->n_sent, memory_order_relaxed);
}

mn_status kv_pool_copy(kv_pool *pool, const kv_page *page, size_t offset, size_t n_bytes, void *to) {
    if (page->region) return kv_offload_read(pool->offload, page->region, offset, to, n_bytes);
    memcpy(to, page->data + offset, n_bytes);
    return MN_OK;
}

uint32_t kv_pool_next_count(kv_pool *pool) {
    uint32_t number = atomic_fetch_add_explicit(&pool->n_counts, 1, memory_order_relaxed) + 1;
    return number ? number : kv_pool_next_count(pool);
}

size_t kv_pool_used(kv_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    size_t used = pool->used;
    pthread_mutex_unlock(&pool->lock);
    return used;
}

kv_page_counts kv_pool_pages(kv_pool *pool) {
    return (kv_page_counts){
        .n_resident = atomic_load_explicit(&pool->n_resident, memory_order_relaxed),
        .n_offloaded = atomic_load_explicit(&pool->n_offloaded, memory_order_relaxed),
        .offloaded_bytes = atomic_load_explicit(&pool->offloaded_bytes, memory_order_relaxed),
    };
}

void kv_pool_watch(kv_pool *pool, kv_watch *watch) {
    pthread_mutex_lock(&pool->lock);
    *watch = (kv_watch){pool->used, pool->watches};
    pool->watches = watch;
    pthread_mutex_unlock(&pool->lock);
}

void kv_pool_unwatch(kv_pool *pool, kv_watch *watch) {
    pthread_mutex_lock(&pool->lock);
    kv_watch **link = &pool->watches;
    while (*link != watch) link = &(*link)->next;
    *link = watch->next;
    pthread_mutex_unlock(&pool->lock);
}

void kv_pool_set_budget(kv_pool *pool, size_t budget) {
    pthread_mutex_lock(&pool->lock);
    pool->budget = budget;
    pthread_mutex_unlock(&pool->lock);
}

void kv_pool_set_reclaim(kv_pool *pool, kv_reclaim reclaim, void *user) {
    pthread_mutex_lock(&pool->lock);
    pool->reclaim = reclaim;
    pool->reclaim_user = user;
    pthread_mutex_unlock(&pool->lock);
}

size_t kv_pool_budget(const kv_pool *pool) {
    return pool->budget;
}
