/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/kv.h"

#include <string.h>

#include "base/mem.h"

static bool spec_equal(const kv_spec *a, const kv_spec *b) {
    return a->n_heads == b->n_heads && a->k_dim == b->k_dim && a->v_dim == b->v_dim &&
           kv_form_equal(a->key, b->key) && kv_form_equal(a->value, b->value) && a->sinks == b->sinks &&
           a->window == b->window;
}

/* Bytes of one entry in one page: the keys of all heads, then the values. A multiple of 64, so that entries
 * and heads of ordinary sizes begin on cache lines. */
static size_t spec_page_bytes(const kv_spec *spec, int page_tokens) {
    size_t head = kv_form_bytes(spec->key, true, false, spec->k_dim, page_tokens) +
                  kv_form_bytes(spec->value, false, false, spec->v_dim, page_tokens);
    return (head * (size_t)spec->n_heads + 63) / 64 * 64;
}

size_t kv_token_bytes(const kv_spec *specs, int n_entries) {
    size_t bits = 0;
    for (int i = 0; i < n_entries; i++) {
        const kv_spec *s = &specs[i];
        bits += (size_t)s->n_heads *
                ((size_t)s->k_dim * (size_t)s->key.bits + (size_t)s->v_dim * (size_t)s->value.bits);
    }
    return bits / 8;
}

size_t kv_plan_bytes(const kv_spec *specs, int n_entries, int page_tokens, int64_t n_tokens) {
    size_t n_pages = (size_t)ceil_div(n_tokens, page_tokens), page = 0, total;
    for (int i = 0; i < n_entries; i++) page += spec_page_bytes(&specs[i], page_tokens);
    return size_mul(n_pages, page, &total) ? total : SIZE_MAX;
}

/* ---- the container ---- */

typedef struct kv_group {
    kv_spec spec;
    size_t entry_bytes; /* of one member in a page */
    size_t page_bytes;  /* of all members */
    int n_members;
    kv_page **pages;    /* [n_pages], all groups have equally many */
    const char **bases; /* [n_pages] first byte of each, what kernels read */
    size_t page_capacity, base_capacity;
    size_t n_spares; /* pages taken for copies, while kv_reserve runs */
} kv_group;

typedef struct kv_entry {
    int group;
    size_t offset; /* of its bytes in a page of the group */
} kv_entry;

struct kv_cache {
    kv_pool *pool;
    kv_options options;
    kv_entry *entries; /* [n_entries] */
    kv_group *groups;  /* [n_groups] */
    int n_entries, n_groups;
    int64_t n_tokens; /* committed */
    int64_t n_step;   /* reserved beyond them; 0 between steps */
    size_t n_pages;   /* of each group */
    size_t n_pages_before_step;
    size_t peak_bytes;
};

static size_t pages_for(const kv_cache *cache, int64_t n_tokens) {
    return (size_t)ceil_div(n_tokens, cache->options.page_tokens);
}

/* Pages that the cache keeps even when no token lies in them. */
static size_t kept_pages(const kv_cache *cache) {
    return pages_for(cache, cache->options.reserve);
}

static void drop_pages(kv_cache *cache, size_t n_keep) {
    for (int g = 0; g < cache->n_groups; g++) {
        for (size_t i = n_keep; i < cache->n_pages; i++)
            kv_pool_return(cache->pool, cache->groups[g].pages[i]);
    }
    if (n_keep < cache->n_pages) cache->n_pages = n_keep;
}

void kv_close(kv_cache **cache) {
    kv_cache *c = *cache;
    if (!c) return;
    drop_pages(c, 0);
    for (int g = 0; g < c->n_groups; g++) {
        mem_free(c->groups[g].pages);
        mem_free(c->groups[g].bases);
    }
    mem_free(c->groups);
    mem_free(c->entries);
    mem_free(c);
    *cache = NULL;
}

static void note_peak(kv_cache *cache) {
    size_t now = kv_bytes(cache);
    if (now > cache->peak_bytes) cache->peak_bytes = now;
}

/* Appends one page to every group, or to none. */
static mn_status add_page(kv_cache *cache) {
    mn_status status = MN_OK;
    int g = 0;
    for (; g < cache->n_groups && status == MN_OK; g++) {
        kv_group *group = &cache->groups[g];
        status = mem_grow(&group->pages, &group->page_capacity, cache->n_pages + 1, sizeof *group->pages);
        if (status == MN_OK) {
            status = mem_grow(&group->bases, &group->base_capacity, cache->n_pages + 1, sizeof *group->bases);
        }
        kv_page *page = NULL;
        if (status == MN_OK) status = kv_pool_take(&page, cache->pool, group->page_bytes);
        if (status != MN_OK) break;
        group->pages[cache->n_pages] = page;
        group->bases[cache->n_pages] = page->data;
    }
    if (status != MN_OK) {
        while (g-- > 0) kv_pool_return(cache->pool, cache->groups[g].pages[cache->n_pages]);
        return status;
    }
    cache->n_pages++;
    return MN_OK;
}

static bool is_shared(const kv_page *page) {
    return atomic_load_explicit(&page->references, memory_order_acquire) > 1;
}

/* Takes one page for every shared one of [first, end) into the places behind the group's pages; *n_taken
 * counts them, on failure too. */
static mn_status take_spares(kv_cache *cache, kv_group *group, size_t first, size_t end, size_t *n_taken) {
    for (size_t i = first; i < end; i++) {
        if (!is_shared(group->pages[i])) continue;
        size_t place = cache->n_pages + *n_taken;
        MN_TRY(mem_grow(&group->pages, &group->page_capacity, place + 1, sizeof *group->pages));
        MN_TRY(kv_pool_take(&group->pages[place], cache->pool, group->page_bytes));
        ++*n_taken;
    }
    return MN_OK;
}

/* Puts copies, made in the spare pages, in the place of shared pages. */
static void replace_shared(kv_cache *cache, kv_group *group, size_t first, size_t end, size_t n_spares) {
    kv_page **spare = group->pages + cache->n_pages;
    for (size_t i = first; i < end && n_spares > 0; i++) {
        kv_page *shared = group->pages[i];
        if (!is_shared(shared)) continue;
        kv_page *own = spare[--n_spares];
        memcpy(own->data, shared->data, group->page_bytes);
        kv_pool_return(cache->pool, shared);
        group->pages[i] = own;
        group->bases[i] = own->data;
    }
    while (n_spares > 0) kv_pool_return(cache->pool, spare[--n_spares]); /* no longer shared meanwhile */
}

/* Gives the cache its own copies of the shared pages among [first, end), or changes nothing. */
static mn_status make_private(kv_cache *cache, size_t first, size_t end) {
    mn_status status = MN_OK;
    int n_groups = 0;
    for (; status == MN_OK && n_groups < cache->n_groups; n_groups++) {
        kv_group *group = &cache->groups[n_groups];
        group->n_spares = 0;
        status = take_spares(cache, group, first, end, &group->n_spares);
    }
    for (int g = 0; g < n_groups; g++) {
        kv_group *group = &cache->groups[g];
        replace_shared(cache, group, first, status == MN_OK ? end : first, group->n_spares);
    }
    return status;
}

static mn_status sort_into_groups(kv_cache *cache, const kv_spec *specs) {
    for (int i = 0; i < cache->n_entries; i++) {
        const kv_spec *spec = &specs[i];
        if (spec->n_heads < 1 || spec->k_dim < 2 || spec->v_dim < 2 || spec->k_dim % 2 || spec->v_dim % 2) {
            MN_FAIL(MN_E_UNSUPPORTED,
                    "a cache of %d heads with rows of %d and %d values: heads must be positive, rows even",
                    spec->n_heads, spec->k_dim, spec->v_dim);
        }
        int g = 0;
        while (g < cache->n_groups && !spec_equal(&cache->groups[g].spec, spec)) g++;
        kv_group *group = &cache->groups[g];
        if (g == cache->n_groups) {
            group->spec = *spec;
            group->entry_bytes = spec_page_bytes(spec, cache->options.page_tokens);
            cache->n_groups++;
        }
        cache->entries[i] = (kv_entry){.group = g, .offset = (size_t)group->n_members * group->entry_bytes};
        group->n_members++;
        group->page_bytes += group->entry_bytes;
    }
    return MN_OK;
}

mn_status kv_open(kv_cache **out, kv_pool *pool, const kv_spec *specs, int n_entries,
                  const kv_options *options) {
    *out = NULL;
    if (options->page_tokens < 2 || options->page_tokens % 2) {
        MN_FAIL(MN_E_ARG, "page_tokens is %d, allowed: an even number from 2", options->page_tokens);
    }
    kv_cache *cache = mem_alloc(1, sizeof *cache);
    if (!cache) return MN_E_NOMEM;
    *cache = (kv_cache){.pool = pool, .options = *options, .n_entries = n_entries};
    mn_status status = MN_OK;
    cache->entries = mem_alloc((size_t)n_entries, sizeof *cache->entries);
    cache->groups = mem_alloc((size_t)n_entries, sizeof *cache->groups);
    if (!cache->entries || !cache->groups) status = MN_E_NOMEM;
    if (status == MN_OK) status = sort_into_groups(cache, specs);
    while (status == MN_OK && cache->n_pages < kept_pages(cache)) status = add_page(cache);
    if (status != MN_OK) {
        kv_close(&cache);
        return status;
    }
    note_peak(cache);
    *out = cache;
    return MN_OK;
}

mn_status kv_reserve(kv_cache *cache, int64_t n_new) {
    int64_t total = cache->n_tokens + n_new;
    if (cache->options.limit && total > cache->options.limit) {
        MN_FAIL(MN_E_FULL, "the cache holds %lld tokens of at most %lld: no room for %lld more",
                (long long)cache->n_tokens, (long long)cache->options.limit, (long long)n_new);
    }
    size_t n_before = cache->n_pages;
    size_t first = (size_t)(cache->n_tokens / cache->options.page_tokens), end = pages_for(cache, total);
    mn_status status = MN_OK;
    while (status == MN_OK && cache->n_pages < end) status = add_page(cache);
    if (status == MN_OK) status = make_private(cache, first, end < n_before ? end : n_before);
    if (status != MN_OK) {
        drop_pages(cache, n_before);
        return status;
    }
    cache->n_pages_before_step = n_before;
    cache->n_step = n_new;
    note_peak(cache);
    return MN_OK;
}

void kv_append(kv_cache *cache, const kernel_table *kernels, int entry, int head, int token_begin,
               int token_end, const float *k, const float *v, ptrdiff_t k_stride, ptrdiff_t v_stride) {
    kv_view view = kv_look(cache, entry);
    int page_tokens = view.page_tokens;
    for (int t = token_begin; t < token_end;) {
        int64_t position = cache->n_tokens + t;
        int slot = (int)(position % page_tokens), n = page_tokens - slot;
        if (n > token_end - t) n = token_end - t;
        char *page = cache->groups[cache->entries[entry].group].pages[position / page_tokens]->data;
        store_job job = {
            .keys = page + view.k_offset + (size_t)head * view.k_head_bytes,
            .values = page + view.v_offset + (size_t)head * view.v_head_bytes,
            .page_tokens = page_tokens,
            .slot = slot,
            .n = n,
            .k_dim = view.spec->k_dim,
            .v_dim = view.spec->v_dim,
            .k = k + t * k_stride,
            .v = v + t * v_stride,
            .k_stride = k_stride,
            .v_stride = v_stride,
        };
        if (view.spec->key.codec == KV_F32) {
            kernels->store_f32(&job);
        } else {
            kernels->store_bf16(&job);
        }
        t += n;
    }
}

void kv_commit(kv_cache *cache) {
    cache->n_tokens += cache->n_step;
    cache->n_step = 0;
}

void kv_abandon(kv_cache *cache) {
    if (cache->n_step == 0) return;
    cache->n_step = 0;
    drop_pages(cache, cache->n_pages_before_step);
}

kv_view kv_look(const kv_cache *cache, int entry) {
    const kv_entry *e = &cache->entries[entry];
    const kv_group *group = &cache->groups[e->group];
    int page_tokens = cache->options.page_tokens;
    int64_t n_tokens = cache->n_tokens + cache->n_step;
    size_t k_bytes = kv_form_bytes(group->spec.key, true, false, group->spec.k_dim, page_tokens);
    return (kv_view){
        .pages = group->bases,
        .n_pages = (int)pages_for(cache, n_tokens),
        .n_tokens = n_tokens,
        .k_offset = e->offset,
        .k_head_bytes = k_bytes,
        .v_offset = e->offset + k_bytes * (size_t)group->spec.n_heads,
        .v_head_bytes = kv_form_bytes(group->spec.value, false, false, group->spec.v_dim, page_tokens),
        .page_tokens = page_tokens,
        .spec = &group->spec,
    };
}

mn_status kv_truncate(kv_cache *cache, int64_t n_keep) {
    if (n_keep < 0 || n_keep > cache->n_tokens) {
        MN_FAIL(MN_E_ARG, "cannot keep %lld tokens of a cache that holds %lld", (long long)n_keep,
                (long long)cache->n_tokens);
    }
    kv_abandon(cache);
    cache->n_tokens = n_keep;
    size_t needed = pages_for(cache, n_keep), kept = kept_pages(cache);
    drop_pages(cache, needed > kept ? needed : kept);
    return MN_OK;
}

/* Page i of a fork: shared, unless the cache reserves its pages and this one will still be written. */
static mn_status fork_page(kv_cache *fork, const kv_cache *cache, size_t i) {
    bool shares = !cache->options.reserve || (int64_t)(i + 1) * cache->options.page_tokens <= cache->n_tokens;
    if (!shares) {
        MN_TRY(add_page(fork));
        for (int g = 0; g < cache->n_groups; g++) {
            memcpy(fork->groups[g].pages[i]->data, cache->groups[g].pages[i]->data,
                   cache->groups[g].page_bytes);
        }
        return MN_OK;
    }
    for (int g = 0; g < cache->n_groups; g++) {
        kv_page_share(cache->groups[g].pages[i]);
        fork->groups[g].pages[i] = cache->groups[g].pages[i];
        fork->groups[g].bases[i] = cache->groups[g].bases[i];
    }
    fork->n_pages++;
    return MN_OK;
}

mn_status kv_fork(kv_cache **out, const kv_cache *cache) {
    *out = NULL;
    kv_cache *fork = mem_alloc(1, sizeof *fork);
    if (!fork) return MN_E_NOMEM;
    mn_status status = MN_OK;
    *fork = *cache;
    fork->n_step = 0;
    fork->n_pages = 0;
    fork->entries = mem_alloc((size_t)cache->n_entries, sizeof *fork->entries);
    fork->groups = mem_alloc((size_t)cache->n_entries, sizeof *fork->groups);
    fork->n_groups = fork->groups ? cache->n_groups : 0;
    if (!fork->entries || !fork->groups) {
        status = MN_E_NOMEM;
        goto done;
    }
    memcpy(fork->entries, cache->entries, (size_t)cache->n_entries * sizeof *fork->entries);
    size_t n_pages = pages_for(cache, cache->n_tokens);
    if (n_pages < kept_pages(cache)) n_pages = kept_pages(cache);
    for (int g = 0; g < cache->n_groups; g++) {
        kv_group *group = &fork->groups[g];
        *group = cache->groups[g];
        group->pages = NULL;
        group->bases = NULL;
        group->page_capacity = group->base_capacity = 0;
    }
    for (int g = 0; status == MN_OK && g < cache->n_groups; g++) {
        kv_group *group = &fork->groups[g];
        status = mem_grow(&group->pages, &group->page_capacity, n_pages, sizeof *group->pages);
        if (status == MN_OK)
            status = mem_grow(&group->bases, &group->base_capacity, n_pages, sizeof *group->bases);
    }
    for (size_t i = 0; status == MN_OK && i < n_pages; i++) status = fork_page(fork, cache, i);
done:
    if (status != MN_OK) {
        kv_close(&fork);
        return status;
    }
    fork->peak_bytes = kv_bytes(fork);
    *out = fork;
    return MN_OK;
}

int64_t kv_length(const kv_cache *cache) {
    return cache->n_tokens;
}
int64_t kv_room(const kv_cache *cache) {
    return (int64_t)cache->n_pages * cache->options.page_tokens;
}
int kv_entries(const kv_cache *cache) {
    return cache->n_entries;
}

const kv_spec *kv_entry_spec(const kv_cache *cache, int entry) {
    return &cache->groups[cache->entries[entry].group].spec;
}

size_t kv_bytes(const kv_cache *cache) {
    size_t page = 0;
    for (int g = 0; g < cache->n_groups; g++) page += cache->groups[g].page_bytes;
    return page * cache->n_pages;
}

size_t kv_peak_bytes(const kv_cache *cache) {
    return cache->peak_bytes;
}

mn_status kv_check(const kv_cache *cache) {
    int64_t total = cache->n_tokens + cache->n_step;
    if (cache->n_pages < pages_for(cache, total))
        MN_FAIL(MN_E_UNSUPPORTED, "fewer pages than the tokens need");
    if (cache->n_step == 0 && cache->n_pages > pages_for(cache, total) &&
        cache->n_pages > kept_pages(cache)) {
        MN_FAIL(MN_E_UNSUPPORTED, "%zu pages are held for %lld tokens", cache->n_pages, (long long)total);
    }
    if (cache->options.limit && total > cache->options.limit)
        MN_FAIL(MN_E_UNSUPPORTED, "more tokens than the limit");
    if (kv_bytes(cache) > cache->peak_bytes) MN_FAIL(MN_E_UNSUPPORTED, "the peak was not noted");
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        for (size_t i = 0; i < cache->n_pages; i++) {
            const kv_page *page = group->pages[i];
            int references = atomic_load(&page->references);
            if (references < 1) MN_FAIL(MN_E_UNSUPPORTED, "page %zu has no reference", i);
            if (page->bytes != group->page_bytes)
                MN_FAIL(MN_E_UNSUPPORTED, "page %zu has another size than its group", i);
            if (group->bases[i] != page->data)
                MN_FAIL(MN_E_UNSUPPORTED, "page %zu is not where kernels look", i);
            bool written =
                cache->n_step > 0 && (int64_t)(i + 1) * cache->options.page_tokens > cache->n_tokens;
            if (written && (int64_t)i * cache->options.page_tokens < total && references != 1) {
                MN_FAIL(MN_E_UNSUPPORTED, "page %zu is shared and about to be written", i);
            }
        }
    }
    return MN_OK;
}
