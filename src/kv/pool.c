/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

/* Pages smaller than the system's large pages come from slabs that are not: attention walks over many of them, and
 * without large pages most of its steps would miss the TLB. Tiny ones do not matter. */
enum { SLAB_BYTES = 8 << 20, SLAB_LEAST = 128 << 10, SLAB_MOST = 2 << 20 };

typedef struct page_slab {
    struct page_slab *next;
    char *data;
    size_t page_bytes, n_left; /* places that were never used are the last ones */
} page_slab;

/* At the beginning of a place whose page went away without it. */
typedef struct free_place {
    struct free_place *next;
    size_t bytes;
} free_place;

struct kv_pool {
    pthread_mutex_t lock; /* of everything below */
    kv_page *free_pages;  /* near ones kept for reuse; few sizes, so a list is enough */
    kv_page *free_parts;  /* parts of pages, likewise */
    page_slab *slabs;
    free_place *free_places;
    size_t used, budget;
    kv_watch *watches;
    kv_far *far; /* NULL: no far home */
    _Atomic uint64_t n_sent;
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

static void free_pages(kv_page *list) {
    for (kv_page *page = list, *next; page; page = next) {
        next = page->next;
        if (!page->in_slab) mem_free(page->data);
        mem_free(page);
    }
}

void kv_pool_close(kv_pool **pool) {
    if (!*pool) return;
    free_pages((*pool)->free_pages);
    free_pages((*pool)->free_parts);
    for (page_slab *slab = (*pool)->slabs, *next; slab; slab = next) {
        next = slab->next;
        mem_free(slab->data);
        mem_free(slab);
    }
    kv_far_close(&(*pool)->far);
    pthread_mutex_destroy(&(*pool)->lock);
    mem_free(*pool);
    *pool = NULL;
}

/* A kept page of that size, or NULL. */
static kv_page *take_kept(kv_page **list, size_t n_bytes) {
    for (kv_page **link = list; *link; link = &(*link)->next) {
        kv_page *page = *link;
        if (page->bytes != n_bytes) continue;
        *link = page->next;
        return page;
    }
    return NULL;
}

static page_slab *make_slab(size_t page_bytes) {
    page_slab *slab = mem_alloc(1, sizeof *slab);
    if (!slab) return NULL;
    slab->page_bytes = page_bytes;
    slab->n_left = SLAB_BYTES / page_bytes;
    slab->data = mem_alloc_raw(slab->n_left, page_bytes);
    if (slab->data) return slab;
    mem_free(slab);
    return NULL;
}

/* A place of a slab; what lies in it is not cleared. */
static char *take_place(kv_pool *pool, size_t n_bytes) {
    for (free_place **link = &pool->free_places; *link; link = &(*link)->next) {
        free_place *place = *link;
        if (place->bytes != n_bytes) continue;
        *link = place->next;
        return (char *)place;
    }
    page_slab *slab = pool->slabs;
    while (slab && (slab->page_bytes != n_bytes || slab->n_left == 0)) slab = slab->next;
    if (!slab) {
        slab = make_slab(n_bytes);
        if (!slab) return NULL;
        slab->next = pool->slabs;
        pool->slabs = slab;
    }
    return slab->data + (SLAB_BYTES / n_bytes - slab->n_left--) * n_bytes;
}

/* The page's data go; under the lock where they lie in a slab. */
static void drop_data(kv_pool *pool, kv_page *page) {
    if (!page->in_slab) {
        mem_free(page->data);
        return;
    }
    free_place *place = (free_place *)(void *)page->data;
    place->bytes = page->bytes;
    pthread_mutex_lock(&pool->lock);
    place->next = pool->free_places;
    pool->free_places = place;
    pthread_mutex_unlock(&pool->lock);
    page->in_slab = false;
}

static kv_page *make_page(kv_pool *pool, size_t n_bytes, bool is_part) {
    kv_page *page = mem_alloc(1, sizeof *page);
    if (!page) return NULL;
    page->bytes = n_bytes;
    page->in_slab = !is_part && n_bytes >= SLAB_LEAST && n_bytes < SLAB_MOST && n_bytes % MEM_ALIGN == 0;
    if (page->in_slab) {
        pthread_mutex_lock(&pool->lock);
        page->data = take_place(pool, n_bytes);
        pthread_mutex_unlock(&pool->lock);
        if (page->data) memset(page->data, 0, n_bytes);
    } else {
        page->data = mem_alloc(n_bytes, 1);
    }
    if (page->data) return page;
    mem_free(page);
    return NULL;
}

/* Under the lock. */
static void add_used(kv_pool *pool, size_t n_bytes) {
    pool->used += n_bytes;
    for (kv_watch *watch = pool->watches; watch; watch = watch->next) {
        if (pool->used > watch->most) watch->most = pool->used;
    }
}

mn_status kv_pool_count(kv_pool *pool, size_t n_bytes) {
    pthread_mutex_lock(&pool->lock);
    bool fits = !pool->budget || (n_bytes <= pool->budget && pool->used <= pool->budget - n_bytes);
    size_t used = pool->used;
    if (fits) add_used(pool, n_bytes);
    pthread_mutex_unlock(&pool->lock);
    if (fits) return MN_OK;
    MN_FAIL(MN_E_NOMEM, "the cache needs %zu more bytes: %zu of the %zu allowed are in use", n_bytes, used,
            pool->budget);
}

void kv_pool_discount(kv_pool *pool, size_t n_bytes) {
    pthread_mutex_lock(&pool->lock);
    pool->used -= n_bytes;
    pthread_mutex_unlock(&pool->lock);
}

/* A page of n_bytes that are counted already; they are discounted on failure. */
static mn_status take_counted(kv_page **out, kv_pool *pool, size_t n_bytes, bool is_raw) {
    pthread_mutex_lock(&pool->lock);
    kv_page *page = take_kept(&pool->free_pages, n_bytes);
    pthread_mutex_unlock(&pool->lock);
    if (page) {
        if (!is_raw)
            memset(page->data, 0, n_bytes); /* what another form left may be no numbers in this one */
    } else {
        page = make_page(pool, n_bytes, false);
    }
    if (!page) {
        kv_pool_discount(pool, n_bytes);
        return MN_E_NOMEM;
    }
    atomic_store_explicit(&page->references, 1, memory_order_relaxed);
    *out = page;
    return MN_OK;
}

mn_status kv_pool_take(kv_page **out, kv_pool *pool, size_t n_bytes) {
    *out = NULL;
    MN_TRY(kv_pool_count(pool, n_bytes));
    return take_counted(out, pool, n_bytes, false);
}

mn_status kv_pool_take_raw(kv_page **out, kv_pool *pool, size_t n_bytes) {
    *out = NULL;
    MN_TRY(kv_pool_count(pool, n_bytes));
    return take_counted(out, pool, n_bytes, true);
}

mn_status kv_pool_borrow(kv_page **out, kv_pool *pool, size_t n_bytes) {
    *out = NULL;
    pthread_mutex_lock(&pool->lock);
    add_used(pool, n_bytes);
    pthread_mutex_unlock(&pool->lock);
    return take_counted(out, pool, n_bytes, false);
}

/* All free parts, and the free pages that are no places of a slab. */
static kv_page *take_useless(kv_pool *pool) {
    kv_page *useless = pool->free_parts, *page;
    pool->free_parts = NULL;
    for (kv_page **link = &pool->free_pages; (page = *link) != NULL;) {
        if (page->in_slab) {
            link = &page->next;
            continue;
        }
        *link = page->next;
        page->next = useless;
        useless = page;
    }
    return useless;
}

/* Parts of a page grow from size to size, all rows of a batch at once: what is of a size that nobody wants now goes back to the
 * system before another size is asked for. */
mn_status kv_pool_take_part(kv_page **out, kv_pool *pool, size_t n_bytes, int split, int tokens,
                            kv_page *base) {
    kv_page *useless = NULL;
    *out = NULL;
    MN_TRY(kv_pool_count(pool, n_bytes));
    pthread_mutex_lock(&pool->lock);
    kv_page *page = take_kept(&pool->free_parts, n_bytes);
    if (!page) { useless = take_useless(pool); }
    pthread_mutex_unlock(&pool->lock);
    free_pages(useless);
    if (page) {
        memset(page->data, 0, n_bytes);
    } else {
        page = make_page(pool, n_bytes, true);
    }
    if (!page) {
        kv_pool_discount(pool, n_bytes);
        return MN_E_NOMEM;
    }
    atomic_store_explicit(&page->references, 1, memory_order_relaxed);
    page->split = split;
    page->tokens = tokens;
    page->base = base;
    if (base) {
        kv_page_share(base);
        atomic_fetch_add_explicit(&base->n_near, 1, memory_order_relaxed);
    }
    *out = page;
    return MN_OK;
}

/* The page is a whole one from here on; what it was a part of is returned by the caller. */
static kv_page *leave_base(kv_page *page) {
    kv_page *base = page->base;
    if (base) atomic_fetch_sub_explicit(&base->n_near, 1, memory_order_relaxed);
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

/* A page that nobody refers to any more. */
static void drop_page(kv_pool *pool, kv_page *page, bool is_part) {
    if (page->region || page->mapping) {
        if (page->region) kv_far_return(pool->far, page->region);
        if (page->mapping) kv_mapping_drop(page->mapping);
        mem_free(page);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    kv_page **list = is_part ? &pool->free_parts : &pool->free_pages;
    pool->used -= page->bytes;
    page->next = *list;
    *list = page;
    pthread_mutex_unlock(&pool->lock);
}

void kv_pool_return(kv_pool *pool, kv_page *page) {
    while (page && atomic_fetch_sub_explicit(&page->references, 1, memory_order_acq_rel) == 1) {
        bool is_part = page->tokens > 0;
        kv_page *base = leave_base(page);
        drop_page(pool, page, is_part);
        page = base;
    }
}

void kv_pool_refill(kv_pool *pool, kv_page *page, char *data, size_t n_bytes) {
    kv_page *base = leave_base(page);
    drop_data(pool, page);
    page->data = data;
    kv_pool_discount(pool, page->bytes - n_bytes);
    page->bytes = n_bytes;
    kv_pool_return(pool, base);
}

/* ---- the far home ---- */

mn_status kv_pool_open_far(kv_pool *pool, const char *folder) {
    pthread_mutex_lock(&pool->lock);
    mn_status status = MN_OK;
    if (!pool->far) status = kv_far_open(&pool->far, &(kv_far_options){.folder = folder});
    pthread_mutex_unlock(&pool->lock);
    return status;
}

kv_far *kv_pool_far(kv_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    kv_far *far = pool->far;
    pthread_mutex_unlock(&pool->lock);
    return far;
}

static void rest_far(kv_pool *pool, kv_page *page, int64_t region) {
    if (page->mapping) {
        kv_mapping_drop(page->mapping);
        page->mapping = NULL;
    } else {
        drop_data(pool, page);
        kv_pool_discount(pool, page->bytes);
    }
    page->data = NULL;
    page->region = region;
    atomic_fetch_add_explicit(&pool->n_sent, 1, memory_order_relaxed);
}

mn_status kv_pool_send(kv_pool *pool, kv_page *page) {
    int64_t region = 0;
    MN_TRY(kv_far_take(&region, pool->far, page->bytes));
    mn_status status = kv_far_write(pool->far, region, 0, page->data, page->bytes);
    if (status != MN_OK) {
        kv_far_return(pool->far, region);
        return status;
    }
    rest_far(pool, page, region);
    return MN_OK;
}

void kv_pool_sent_whole(kv_pool *pool, kv_page *page, int64_t region, size_t n_bytes) {
    kv_page *base = leave_base(page);
    rest_far(pool, page, region);
    page->bytes = n_bytes;
    kv_pool_return(pool, base);
}

uint64_t kv_pool_sent(kv_pool *pool) {
    return atomic_load_explicit(&pool->n_sent, memory_order_relaxed);
}

mn_status kv_pool_copy(kv_pool *pool, const kv_page *page, size_t offset, size_t n_bytes, void *to) {
    if (page->region) return kv_far_read(pool->far, page->region, offset, to, n_bytes);
    memcpy(to, page->data + offset, n_bytes);
    return MN_OK;
}

static size_t count_blocks(const kv_page *list) {
    size_t n = 0;
    for (; list; list = list->next) n += list->in_slab ? 1 : 2;
    return n;
}

size_t kv_pool_kept(kv_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    size_t n = count_blocks(pool->free_pages) + count_blocks(pool->free_parts);
    for (const page_slab *slab = pool->slabs; slab; slab = slab->next) n += 2;
    pthread_mutex_unlock(&pool->lock);
    return n;
}

size_t kv_pool_used(kv_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    size_t used = pool->used;
    pthread_mutex_unlock(&pool->lock);
    return used;
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

size_t kv_pool_budget(const kv_pool *pool) {
    return pool->budget;
}
