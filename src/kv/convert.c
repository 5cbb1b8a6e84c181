/* Changing the strategy of a cache that holds tokens: what is held is taken over page by page, and what the
 * new strategy would have sealed, sent away or forgotten by now is. SPDX-License-Identifier: Apache-2.0 */
#include "kv/group.h"

#include "base/mem.h"
#include "base/num.h"
#include "kv/stage.h"

static mn_status refuse(const char *what) {
    MN_FAIL(MN_E_UNSUPPORTED, "the cache cannot change so while it holds tokens: %s", what);
}

/* What one entry's tokens can become without being computed again. */
static mn_status check_specs(const kv_group *from, const kv_group *to) {
    const kv_spec *a = &from->spec, *b = &to->spec;
    if (a->kind != b->kind || a->n_heads != b->n_heads || a->k_dim != b->k_dim || a->v_dim != b->v_dim ||
        a->write_once != b->write_once || a->state_bytes != b->state_bytes) {
        return refuse("the entries have other sizes");
    }
    if (a->exact != b->exact) return refuse("exact tokens would have another form");
    if (from->is_coded && (!kv_form_equal(a->key, b->key) || !kv_form_equal(a->value, b->value) ||
                           (a->bases != NULL) != (b->bases != NULL))) {
        return refuse("what is quantized stays as it is");
    }
    /* Codes hold nothing of the first tokens. */
    if (from->is_coded && to->head_tokens < from->head_tokens)
        return refuse("as many first tokens as now must stay exact");
    bool wider = a->window && (b->window == 0 || b->window > a->window);
    if (wider && from->first_page > 0) return refuse("the window would grow over tokens that are forgotten");
    if (a->sinks && b->sinks != a->sinks) return refuse("sinks stay as many as they are");
    if (b->sinks && !a->sinks && from->first_page > 0) return refuse("the first tokens are forgotten");
    return MN_OK;
}

/* Groups correspond one to one. */
static mn_status check_groups(const kv_cache *from, const kv_cache *to) {
    bool alike = from->n_entries == to->n_entries && from->options.page_tokens == to->options.page_tokens;
    for (int i = 0; alike && i < from->n_entries; i++) alike = from->entries[i].group == to->entries[i].group;
    if (!alike) return refuse("layers or pages would be grouped in another way");
    for (int i = 0; i < from->n_entries; i++) {
        const kv_entry *a = &from->entries[i], *b = &to->entries[i];
        MN_TRY(check_specs(&from->groups[a->group], &to->groups[b->group]));
    }
    return MN_OK;
}

static mn_status share_states(kv_group *to, const kv_group *from) {
    if (to->spec.checkpoints != from->spec.checkpoints)
        return refuse("states keep as many checkpoints as they have");
    for (; to->n_states < from->n_states; to->n_states++) {
        to->states[to->n_states] = from->states[to->n_states];
        kv_page_share(to->states[to->n_states].page);
    }
    return MN_OK;
}

static mn_status share_pages(kv_group *to, const kv_group *from, kv_pool *pool) {
    if (from->spec.kind == KV_STATE) return share_states(to, from);
    MN_TRY(group_grow(to, from->n_slots));
    to->first_page = from->first_page;
    to->n_filled = from->n_filled;
    for (size_t slot = 0; slot < from->n_slots; slot++) {
        to->n_slots = slot + 1;
        to->n_sealed[slot] = from->n_sealed[slot];
        for (int kind = 0; kind < 2; kind++) {
            kv_page *page = from->pages[kind][slot];
            if (!page) continue;
            kv_page_share(page);
            group_put(to, (page_kind)kind, slot, page);
            if (!to->spec.is_far) MN_TRY(group_bring_near(to, pool, (page_kind)kind, slot));
        }
    }
    return MN_OK;
}

/* Copies tokens [begin, end) of a group into its head, which is there. */
static mn_status copy_to_head(kv_cache *to, const kv_cache *from, const kernel_table *kernels, int i_group,
                              int64_t begin, int64_t end) {
    kv_group *group = &to->groups[i_group];
    if (begin >= end) return MN_OK;
    size_t k_dim = (size_t)group->spec.k_dim, v_dim = (size_t)group->spec.v_dim, n = (size_t)(end - begin),
           heads = (size_t)group->spec.n_heads;
    float *rows = mem_alloc_raw(heads * n * (k_dim + v_dim), sizeof *rows);
    if (!rows) return MN_E_NOMEM;
    float *k = rows, *v = rows + heads * n * k_dim;
    mn_status status = MN_OK;
    for (int i = 0; status == MN_OK && i < to->n_entries; i++) {
        if (to->entries[i].group != i_group) continue;
        status = kv_read(from, kernels, i, true, begin, (int)n, k);
        if (status == MN_OK) status = kv_read(from, kernels, i, false, begin, (int)n, v);
        for (size_t h = 0; status == MN_OK && h < heads; h++) {
            store_job job = {.slot = (int)begin,
                             .n = (int)n,
                             .k = k + h * n * k_dim,
                             .v = v + h * n * v_dim,
                             .k_stride = (ptrdiff_t)k_dim,
                             .v_stride = (ptrdiff_t)v_dim};
            group_store(kernels, group, &to->entries[i], (int)h, PAGE_HEAD, group->head, job);
        }
    }
    mem_free(rows);
    return status;
}

/* The head of a group that had none, or another one: its tokens are read from the old cache, but for those
 * that a window has forgotten, which no query sees any more. */
static mn_status fill_head(kv_cache *to, const kv_cache *from, const kernel_table *kernels, int i_group,
                           int64_t n_tokens) {
    kv_group *group = &to->groups[i_group];
    const kv_group *old = &from->groups[i_group];
    int64_t n = min_i64(group->head_tokens, n_tokens), old_head = min_i64(old->head_tokens, n),
            first_held = max_i64(old_head, old->first_page * old->page_tokens);
    if (n == 0) return MN_OK;
    if (old->head_tokens == group->head_tokens) {
        kv_page_share(old->head);
        group->head = old->head;
        return MN_OK;
    }
    MN_TRY(kv_pool_take(&group->head, to->pool, group->page_bytes[PAGE_HEAD]));
    MN_TRY(copy_to_head(to, from, kernels, i_group, 0, old_head));
    return copy_to_head(to, from, kernels, i_group, first_held, n);
}

/* ---- what the new strategy has sealed by now ---- */

static int64_t held_tokens(const kv_cache *cache, const kv_group *group) {
    return group_steps(group) ? cache->n_tokens : group->n_filled;
}

/* The part of a page, up to its end, that the new strategy would have sealed at this length. */
static bool is_late(const kv_cache *cache, const kv_group *group, size_t slot, seal_task *part) {
    int64_t P = group->page_tokens, n = held_tokens(cache, group), page = group->first_page + (int64_t)slot;
    int64_t target = group_steps(group) ? seal_until(n, group->spec.residual, group->page_tokens) : n / P * P;
    int first, end;
    if (!group->is_coded || !group_seal_range(group, page, target, &first, &end)) return false;
    *part = (seal_task){.slot = slot, .first = first, .n = end - first};
    return true;
}

/* A page of the slot's own for codes, with those that it has already. */
static mn_status own_codes(kv_group *group, kv_pool *pool, size_t slot) {
    kv_page *old = group->pages[PAGE_CODED][slot], *own;
    page_pile *reserved = &group->reserved[PAGE_CODED];
    if (old && !old->region && !page_is_shared(old)) return MN_OK;
    if (reserved->n > 0) {
        own = reserved->pages[--reserved->n];
    } else {
        MN_TRY(kv_pool_take(&own, pool, group->page_bytes[PAGE_CODED]));
    }
    mn_status status = old ? kv_pool_copy(pool, old, 0, old->bytes, own->data) : MN_OK;
    if (status != MN_OK) {
        kv_pool_return(pool, own);
        return status;
    }
    group_put(group, PAGE_CODED, slot, own);
    if (old) kv_pool_return(pool, old);
    return MN_OK;
}

/* Seals what is left of a page. Its exact form is given back before the next one is begun, so little more
 * memory is needed than there was. */
static mn_status seal_page(kv_cache *cache, const kernel_table *kernels, int i_group, seal_task part) {
    kv_group *group = &cache->groups[i_group];
    size_t need = 0, n_tasks = 0;
    MN_TRY(
        mem_grow(&cache->tasks, &cache->task_capacity, 2 * (size_t)group->n_members, sizeof *cache->tasks));
    for (part.entry = 0; part.entry < cache->n_entries; part.entry++) {
        for (int is_key = 0; cache->entries[part.entry].group == i_group && is_key < 2; is_key++) {
            part.is_key = is_key;
            cache->tasks[n_tasks++] = part;
            size_t one = seal_task_scratch(cache, &part);
            if (one > need) need = one;
        }
    }
    MN_TRY(group_bring_near(group, cache->pool, PAGE_EXACT, part.slot));
    void *scratch = mem_alloc_raw(need, 1);
    if (!scratch) return MN_E_NOMEM;
    mn_status status = own_codes(group, cache->pool, part.slot);
    if (status == MN_OK) {
        for (size_t i = 0; i < n_tasks; i++) kv_seal(cache, kernels, (int)i, scratch);
        group->n_sealed[part.slot] = (int)part.first + part.n;
        group_tidy(group, cache->pool, held_tokens(cache, group));
    }
    mem_free(scratch);
    return status;
}

/* Pages that find no memory, and those after them, stay exact; a later step seals them. */
static void seal_late_pages(kv_cache *cache, const kernel_table *kernels) {
    mn_status status = MN_OK;
    seal_task part;
    for (int g = 0; status == MN_OK && g < cache->n_groups; g++) {
        for (size_t slot = 0; status == MN_OK && slot < cache->groups[g].n_slots; slot++) {
            if (is_late(cache, &cache->groups[g], slot, &part)) status = seal_page(cache, kernels, g, part);
        }
    }
}

/* Everything that can fail and must leave the old cache as it is. */
static mn_status take_over(kv_cache *to, const kv_cache *from, const kernel_table *kernels,
                           const kv_options *options) {
    if (options->limit && from->n_tokens > options->limit)
        return refuse("it holds more tokens than would be allowed");
    MN_TRY(check_groups(from, to));
    to->n_tokens = from->n_tokens;
    to->options = *options;
    for (int g = 0; g < to->n_groups; g++) {
        kv_group *group = &to->groups[g];
        MN_TRY(share_pages(group, &from->groups[g], to->pool));
        if (group->spec.kind == KV_PAGES) MN_TRY(fill_head(to, from, kernels, g, held_tokens(to, group)));
        MN_TRY(group_reserve_all(group, to->pool, options));
    }
    return MN_OK;
}

mn_status kv_convert(kv_cache **cache, const kernel_table *kernels, const kv_spec *specs, int n_entries,
                     const kv_options *options) {
    kv_cache *from = *cache, *to = NULL;
    kv_options growing = *options; /* what is reserved is taken when the old pages are counted in */
    growing.reserve = 0;
    MN_TRY(kv_open(&to, from->pool, specs, n_entries, &growing));
    mn_status status = take_over(to, from, kernels, options);
    if (status != MN_OK) {
        kv_close(&to);
        return status;
    }
    to->peak_bytes = from->peak_bytes;
    kv_close(&from);
    *cache = to;
    for (int g = 0; g < to->n_groups; g++)
        group_tidy(&to->groups[g], to->pool, held_tokens(to, &to->groups[g]));
    seal_late_pages(to, kernels);
    if (kv_bytes(to) > to->peak_bytes) to->peak_bytes = kv_bytes(to);
    return MN_OK;
}
