/* Changing the strategy of a cache that holds tokens: its pages are taken over one by one, and those that the new
 * strategy would have quantized, offloaded or dropped by now are.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kv/group.h"

#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "kv/stage.h"

static mn_status refuse(const char *what) {
    MN_FAIL(MN_E_UNSUPPORTED, "the cache holds tokens and cannot be converted: %s", what);
}

/* Which conversions of an entry are possible without computing its tokens again. */
static mn_status check_specs(const kv_group *from, const kv_group *to) {
    const kv_spec *a = &from->spec, *b = &to->spec;
    if (a->kind != b->kind || a->n_heads != b->n_heads || a->k_dim != b->k_dim || a->v_dim != b->v_dim ||
        a->write_once != b->write_once || a->state_bytes != b->state_bytes) {
        return refuse("the kinds or sizes of the entries differ");
    }
    if (a->exact != b->exact) return refuse("the type of exact tokens differs");
    if (from->is_coded && (!kv_form_equal(a->key, b->key) || !kv_form_equal(a->value, b->value) ||
                           (a->calibration != NULL) != (b->calibration != NULL))) {
        return refuse("the form of quantized tokens cannot change");
    }
    if (from->is_coded && to->head_tokens < from->head_tokens)
        return refuse("first tokens that are stored exactly have no quantized form");
    bool wider = a->window && (b->window == 0 || b->window > a->window);
    if (wider && from->first_page > 0) return refuse("the window would grow over tokens that were dropped");
    if (a->sinks && b->sinks != a->sinks) return refuse("the number of sinks cannot change");
    if (b->sinks && !a->sinks && from->first_page > 0) return refuse("the first tokens were dropped");
    return MN_OK;
}

/* Groups correspond one to one. */
static mn_status check_groups(const kv_cache *from, const kv_cache *to) {
    bool alike = from->n_entries == to->n_entries && from->options.page_tokens == to->options.page_tokens;
    for (int i = 0; alike && i < from->n_entries; i++) alike = from->entries[i].group == to->entries[i].group;
    if (!alike) return refuse("layers or pages would be grouped differently");
    for (int i = 0; i < from->n_entries; i++) {
        const kv_entry *a = &from->entries[i], *b = &to->entries[i];
        MN_TRY(check_specs(&from->groups[a->group], &to->groups[b->group]));
    }
    return MN_OK;
}

static mn_status share_states(kv_group *to, const kv_group *from) {
    if (to->spec.checkpoints != from->spec.checkpoints)
        return refuse("the number of checkpoints of states cannot change");
    for (; to->n_states < from->n_states; to->n_states++) {
        to->states[to->n_states] = from->states[to->n_states];
        kv_page_share(to->states[to->n_states].page);
    }
    return MN_OK;
}

/* A copy of a page that is not full: with room for its tokens, or a whole page for a cache that preallocates. */
static mn_status copy_open(kv_cache *to, const kv_group *group, kv_page *page, int fill, kv_page **out) {
    MN_TRY(group_take_open(group, to->pool, group_reserve(group, &to->options) ? group->page_tokens : fill, out));
    part_copy(group, *out, page, fill);
    return MN_OK;
}

/* A page of the old cache in the new one: the same page, or a copy when an offloaded page must become resident, or when
 * a cache that preallocates will write one that is shared or in parts. */
static mn_status take_over(kv_cache *to, const kv_group *group, size_t slot, page_kind kind, kv_page *page,
                           kv_page **out) {
    int64_t end = (group->first_page + (int64_t)slot + 1) * group->page_tokens;
    bool is_open = group_steps(group) && end > to->n_tokens,
         is_wanted_resident = page->region && !group->spec.is_offloaded;
    *out = page;
    if (is_open && kind == PAGE_EXACT && !page->region) {
        int fill = (int)(group->page_tokens - (end - to->n_tokens));
        bool is_own = !page_is_shared(page), is_roomy = !page->base && page->bytes > open_page_bytes(group, fill);
        if (group_reserve(group, &to->options) ? !is_own || page->tokens : is_own && is_roomy)
            return copy_open(to, group, page, fill, out);
    }
    if (!is_wanted_resident && !(is_open && group_reserve(group, &to->options) && page_is_shared(page))) {
        kv_page_share(page);
        return MN_OK;
    }
    MN_TRY(kv_pool_take(out, to->pool, page->bytes));
    mn_status status = kv_pool_copy(to->pool, page, 0, page->bytes, (*out)->data);
    if (status != MN_OK) kv_pool_return(to->pool, *out);
    return status;
}

static mn_status share_pages(kv_cache *cache, kv_group *to, const kv_group *from) {
    if (from->spec.kind == KV_STATE) return share_states(to, from);
    MN_TRY(group_grow(to, from->n_slots));
    to->first_page = from->first_page;
    to->n_filled = from->n_filled;
    for (size_t slot = 0; slot < from->n_slots; slot++) {
        to->n_slots = slot + 1;
        to->n_quantized[slot] = from->n_quantized[slot];
        for (int kind = 0; kind < 2; kind++) {
            kv_page *page = from->pages[kind][slot];
            if (!page) continue;
            MN_TRY(take_over(cache, to, slot, (page_kind)kind, page, &page));
            group_put(to, (page_kind)kind, slot, page);
        }
    }
    return MN_OK;
}

/* Rows of tokens [begin, begin + n) of one entry, from the old cache into a head. */
static mn_status copy_rows(kv_cache *to, const kv_cache *from, const kernel_table *kernels, int i_entry, int begin,
                           int n, float *rows) {
    kv_entry *entry = &to->entries[i_entry];
    kv_group *group = &to->groups[entry->group];
    size_t k_dim = (size_t)group->spec.k_dim, v_dim = (size_t)group->spec.v_dim, heads = (size_t)group->spec.n_heads;
    float *k = rows, *v = rows + heads * (size_t)n * k_dim;
    MN_TRY(kv_read(from, kernels, i_entry, true, begin, n, k));
    MN_TRY(kv_read(from, kernels, i_entry, false, begin, n, v));
    for (size_t h = 0; h < heads; h++) {
        store_job job = {.slot = begin,
                         .n = n,
                         .k = k + h * (size_t)n * k_dim,
                         .v = v + h * (size_t)n * v_dim,
                         .k_stride = (ptrdiff_t)k_dim,
                         .v_stride = (ptrdiff_t)v_dim};
        group_store(kernels, group, entry, (int)h, PAGE_HEAD, group->head, job);
    }
    return MN_OK;
}

static mn_status copy_all_rows(kv_cache *to, const kv_cache *from, const kernel_table *kernels, int i_group,
                               int64_t begin, int64_t end) {
    const kv_group *group = &to->groups[i_group];
    if (begin >= end) return MN_OK;
    size_t row = (size_t)(group->spec.k_dim + group->spec.v_dim) * (size_t)group->spec.n_heads;
    float *rows = mem_alloc_raw((size_t)(end - begin) * row, sizeof *rows);
    if (!rows) return MN_E_NOMEM;
    mn_status status = MN_OK;
    for (int i = 0; status == MN_OK && i < to->n_entries; i++) {
        if (to->entries[i].group == i_group)
            status = copy_rows(to, from, kernels, i, (int)begin, (int)(end - begin), rows);
    }
    mem_free(rows);
    return status;
}

/* Whether two tables begin with the same page of the sequence's beginning. */
static bool has_same_first(const kv_group *a, const kv_group *b) {
    for (int kind = 0; kind < 2; kind++) {
        if (a->first_page == 0 && b->first_page == 0 && a->n_slots && b->n_slots && a->pages[kind][0] &&
            a->pages[kind][0] == b->pages[kind][0])
            return true;
    }
    return false;
}

/* The head of a group that had none, or a different one: its tokens are read from the old cache, except those that its
 * window dropped, which no query attends to (check_specs). */
static mn_status fill_head(kv_cache *to, const kv_cache *from, const kernel_table *kernels, int i_group,
                           int64_t n_tokens, const kv_cache *beside) {
    kv_group *group = &to->groups[i_group];
    const kv_group *old = &from->groups[i_group];
    int64_t end = min_i64(group->head_tokens, n_tokens), old_head = min_i64(old->head_tokens, end),
            first_held = max_i64(old_head, old->first_page * old->page_tokens);
    if (end == 0) return MN_OK;
    if (old->head && old->head_tokens == group->head_tokens) {
        kv_page_share(old->head);
        group->head = old->head;
        return MN_OK;
    }
    const kv_group *other = beside && i_group < beside->n_groups ? &beside->groups[i_group] : NULL;
    if (other && other->head && kv_spec_equal(&other->spec, &group->spec) && has_same_first(other, group) &&
        group->head_tokens <= group->page_tokens && n_tokens >= group->head_tokens) {
        kv_page_share(other->head);
        group->head = other->head;
        return MN_OK;
    }
    MN_TRY(kv_pool_borrow(&group->head, to->pool, group->page_bytes[PAGE_HEAD]));
    MN_TRY(copy_all_rows(to, from, kernels, i_group, 0, old_head));
    return copy_all_rows(to, from, kernels, i_group, first_held, end);
}

static int64_t held_tokens(const kv_cache *cache, const kv_group *group) {
    return group_steps(group) ? cache->n_tokens : group->n_filled;
}

/* The caches that are converted and quantized together; they may share pages. */
typedef struct company {
    kv_cache *const *caches;
    int n;
    const kernel_table *kernels;
} company;

static int references(const kv_page *page) {
    return page->mapping ? INT_MAX : atomic_load_explicit(&page->references, memory_order_acquire);
}

/* Where the codes of a page go: into its quantized page if that is not shared; else, when all n_holders of its exact
 * page want the codes, into the memory of the exact page, so that the budget is not exceeded; pages that other caches
 * read, or of a mapped file, are left alone. */
static mn_status place_codes(kv_cache *cache, kv_group *group, size_t slot, kv_page *codes, int n_holders) {
    kv_page *page = group->pages[PAGE_EXACT][slot], *old = group->pages[PAGE_CODED][slot];
    page_pile *reserved = &group->reserved[PAGE_CODED];
    bool is_own = old && !page_is_shared(old) && !old->region;
    if (!is_own && !group_reserve(group, &cache->options) && references(page) == n_holders &&
        codes->bytes <= page->bytes) {
        kv_pool_refill(cache->pool, page, codes->data, codes->bytes);
        group_put(group, PAGE_EXACT, slot, NULL);
    } else {
        if (is_own) {
            page = old;
        } else if (reserved->n > 0) {
            page = reserved->pages[--reserved->n];
        } else {
            MN_TRY(kv_pool_take(&page, cache->pool, codes->bytes));
        }
        memcpy(page->data, codes->data, codes->bytes);
        mem_free(codes->data);
    }
    group_put(group, PAGE_CODED, slot, page);
    if (old && !is_own) kv_pool_return(cache->pool, old);
    return MN_OK;
}

static size_t page_scratch(const kv_cache *cache, int i_group, quantize_task task) {
    size_t most = 0;
    for (int i = 0; i < cache->n_entries; i++) {
        for (int is_key = 0; cache->entries[i].group == i_group && is_key < 2; is_key++) {
            task.entry = i;
            task.is_key = is_key;
            size_t one = quantize_task_scratch(cache, &task);
            if (one > most) most = one;
        }
    }
    return most;
}

/* Makes the codes of a part of one page, in memory of their own. */
static mn_status make_codes(kv_cache *cache, const kernel_table *kernels, int i_group, quantize_task task,
                            kv_page *codes) {
    kv_group *group = &cache->groups[i_group];
    kv_page *old = group->pages[PAGE_CODED][task.slot];
    MN_TRY(mem_grow(&cache->tasks, &cache->task_capacity, 1, sizeof *cache->tasks));
    void *scratch = mem_alloc_raw(page_scratch(cache, i_group, task), 1);
    codes->data = mem_alloc(codes->bytes, 1);
    mn_status status = scratch && codes->data ? MN_OK : MN_E_NOMEM;
    if (status == MN_OK && old) status = kv_pool_copy(cache->pool, old, 0, codes->bytes, codes->data);
    if (status == MN_OK) {
        group_put(group, PAGE_CODED, task.slot, codes);
        for (int i = 0; i < cache->n_entries; i++) {
            for (int is_key = 0; cache->entries[i].group == i_group && is_key < 2; is_key++) {
                task.entry = i;
                task.is_key = is_key;
                cache->tasks[0] = task;
                kv_quantize(cache, kernels, 0, scratch);
            }
        }
        group_put(group, PAGE_CODED, task.slot, old);
    }
    mem_free(scratch);
    return status;
}

/* The part of a page that is exact and that the new strategy would have quantized at this length. */
static bool is_late(const kv_cache *cache, const kv_group *group, size_t slot, quantize_task *part) {
    int64_t P = group->page_tokens, n = held_tokens(cache, group), page = group->first_page + (int64_t)slot;
    int64_t target = group_steps(group) ? quantize_until(n, group->spec.residual, group->page_tokens) : n / P * P;
    int first, end;
    if (!group->is_coded || !group_quantize_range(group, page, n, target, &first, &end)) return false;
    *part = (quantize_task){.slot = slot, .first = first, .n = end - first};
    return true;
}

/* A slot of one cache's table, to find the caches that share its page. */
typedef struct late_page {
    int group;
    int64_t number;
    const kv_page *exact, *coded;
    quantize_task part;
} late_page;

/* Whether another cache quantizes the same part of the same page to the same form. */
static bool is_same_late(const kv_cache *cache, const kv_group *like, const late_page *page) {
    if (page->group >= cache->n_groups) return false;
    const kv_group *group = &cache->groups[page->group];
    int64_t slot = group_slot(group, page->number);
    quantize_task part;
    return slot >= 0 && slot < (int64_t)group->n_slots && kv_spec_equal(&group->spec, &like->spec) &&
           group->spec.calibration == like->spec.calibration && group->pages[PAGE_EXACT][slot] == page->exact &&
           group->pages[PAGE_CODED][slot] == page->coded && is_late(cache, group, (size_t)slot, &part) &&
           part.first == page->part.first && part.n == page->part.n;
}

static void end_quantized(kv_cache *cache, kv_group *group, size_t slot, const quantize_task *part) {
    group->n_quantized[slot] = (int)part->first + part->n;
    group_tidy(group, cache->pool, held_tokens(cache, group));
}

/* The codes that another cache made of the same page, in its memory or in a new page. */
static void share_codes(kv_cache *cache, const late_page *page, kv_page *codes) {
    kv_group *group = &cache->groups[page->group];
    size_t slot = (size_t)group_slot(group, page->number);
    kv_page *old = group->pages[PAGE_CODED][slot];
    if (group->pages[PAGE_EXACT][slot] == codes) {
        group_put(group, PAGE_EXACT, slot, NULL);
    } else {
        kv_page_share(codes);
    }
    group_put(group, PAGE_CODED, slot, codes);
    if (old) kv_pool_return(cache->pool, old);
    end_quantized(cache, group, slot, &page->part);
}

/* Quantizes a page of cache i and shares the result with the later caches that share the page; on failure nothing has
 * changed. */
static mn_status quantize_page(const company *c, int i, late_page *page) {
    kv_cache *cache = c->caches[i];
    kv_group *group = &cache->groups[page->group];
    const size_t slot = page->part.slot;
    kv_page codes = {.bytes = group->page_bytes[PAGE_CODED]};
    page->exact = group->pages[PAGE_EXACT][slot];
    page->coded = group->pages[PAGE_CODED][slot];
    int n_holders = 1;
    for (int j = i + 1; j < c->n; j++) n_holders += is_same_late(c->caches[j], group, page);
    MN_TRY(group_make_resident(group, cache->pool, PAGE_EXACT, slot));
    if (group->pages[PAGE_EXACT][slot] != page->exact) n_holders = 1;
    mn_status status = make_codes(cache, c->kernels, page->group, page->part, &codes);
    if (status == MN_OK) status = place_codes(cache, group, slot, &codes, n_holders);
    if (status != MN_OK) {
        mem_free(codes.data);
        return status;
    }
    kv_page *placed = group->pages[PAGE_CODED][slot];
    for (int j = i + 1; j < c->n; j++) {
        if (is_same_late(c->caches[j], group, page)) share_codes(c->caches[j], page, placed);
    }
    end_quantized(cache, group, slot, &page->part);
    return MN_OK;
}

/* After a page for which there is no memory, or that cannot be read, the rest stay exact; a later step quantizes them
 * or fails. Goes page by page through all caches, so that little additional memory is needed at any time. */
static void quantize_late_pages(const company *c) {
    int n_groups = 0;
    for (int i = 0; i < c->n; i++) n_groups = (int)max_i64(n_groups, c->caches[i]->n_groups);
    for (int g = 0; g < n_groups; g++) {
        int64_t begin = INT64_MAX, end = 0;
        for (int i = 0; i < c->n; i++) {
            if (g >= c->caches[i]->n_groups) continue;
            const kv_group *group = &c->caches[i]->groups[g];
            begin = min_i64(begin, group->first_page);
            end = max_i64(end, group->first_page + (int64_t)group->n_slots);
        }
        for (int64_t number = begin; number < end; number++) {
            for (int i = 0; i < c->n; i++) {
                kv_cache *cache = c->caches[i];
                if (g >= cache->n_groups || cache->groups[g].spec.kind != KV_PAGES) continue;
                int64_t slot = group_slot(&cache->groups[g], number);
                late_page page = {.group = g, .number = number};
                if (slot < 0 || slot >= (int64_t)cache->groups[g].n_slots ||
                    !is_late(cache, &cache->groups[g], (size_t)slot, &page.part))
                    continue;
                if (quantize_page(c, i, &page) != MN_OK) return;
            }
        }
    }
}

mn_status kv_convert_begin(kv_cache **cache, const kernel_table *kernels, const kv_spec *specs, int n_entries,
                           const kv_options *options, const kv_cache *beside) {
    kv_cache *from = *cache, *to = NULL;
    kv_options unreserved = *options;
    unreserved.reserve = 0;
    if (options->limit && from->n_tokens > options->limit) return refuse("it holds more tokens than the new limit");
    MN_TRY(kv_open(&to, from->pool, specs, n_entries, &unreserved));
    mn_status status = check_groups(from, to);
    to->options = *options;
    to->n_tokens = from->n_tokens;
    to->call_ends = from->call_ends;
    for (int g = 0; status == MN_OK && g < to->n_groups; g++) {
        kv_group *group = &to->groups[g];
        group->flushes = from->groups[g].flushes;
        status = share_pages(to, group, &from->groups[g]);
        if (status == MN_OK && group->spec.kind == KV_PAGES)
            status = fill_head(to, from, kernels, g, held_tokens(to, group), beside);
    }
    for (int g = 0; status == MN_OK && g < to->n_groups; g++)
        status = group_reserve_all(&to->groups[g], to->pool, options); /* what is held counts */
    if (status != MN_OK) {
        kv_close(&to);
        return status;
    }
    to->peak_bytes = from->peak_bytes;
    kv_close(&from);
    *cache = to;
    return MN_OK;
}

void kv_convert_end(kv_cache *const *caches, int n, const kernel_table *kernels) {
    for (int i = 0; i < n; i++) {
        kv_cache *cache = caches[i];
        for (int g = 0; g < cache->n_groups; g++) {
            if (group_steps(&cache->groups[g])) group_tidy(&cache->groups[g], cache->pool, cache->n_tokens);
        }
    }
    quantize_late_pages(&(company){caches, n, kernels});
    for (int i = 0; i < n; i++) {
        if (kv_bytes(caches[i]) > caches[i]->peak_bytes) caches[i]->peak_bytes = kv_bytes(caches[i]);
        KV_ASSERT_VALID(caches[i]);
    }
}

mn_status kv_convert(kv_cache **cache, const kernel_table *kernels, const kv_spec *specs, int n_entries,
                     const kv_options *options) {
    MN_TRY(kv_convert_begin(cache, kernels, specs, n_entries, options, NULL));
    kv_convert_end(cache, 1, kernels);
    return MN_OK;
}
