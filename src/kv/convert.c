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
    bool wider = a->window && (b->window == 0 || b->window > a->window);
    if (wider && from->first_page > 0) return refuse("the window would grow over tokens that are forgotten");
    if (a->sinks && b->sinks != a->sinks) return refuse("sinks stay as many as they are");
    if (to->head_tokens && to->head_tokens != from->head_tokens && from->first_page > 0)
        return refuse("the first tokens, which it keeps exactly, are forgotten");
    return MN_OK;
}

/* Pages that would have to be read back to be sealed. */
static mn_status check_homes(const kv_group *from, const kv_group *to) {
    if (!to->is_coded || from->is_coded) return MN_OK;
    for (size_t slot = 0; slot < from->n_slots; slot++) {
        const kv_page *page = from->pages[PAGE_EXACT][slot];
        if (page && page->region) return refuse("far pages are not quantized later");
    }
    return MN_OK;
}

/* Groups correspond one to one. */
static mn_status check_groups(const kv_cache *from, const kv_cache *to) {
    if (from->n_entries != to->n_entries || from->n_groups != to->n_groups ||
        from->options.page_tokens != to->options.page_tokens) {
        return refuse("layers or pages would be grouped in another way");
    }
    for (int i = 0; i < from->n_entries; i++) {
        const kv_entry *a = &from->entries[i], *b = &to->entries[i];
        if (a->group != b->group || a->member != b->member)
            return refuse("layers would be grouped in another way");
        MN_TRY(check_specs(&from->groups[a->group], &to->groups[b->group]));
        MN_TRY(check_homes(&from->groups[a->group], &to->groups[b->group]));
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

static mn_status share_pages(kv_group *to, const kv_group *from) {
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
        }
    }
    return MN_OK;
}

/* The head of a group that had none, or another one: its tokens are read from the old cache. */
static mn_status fill_head(kv_cache *to, const kv_cache *from, const kernel_table *kernels, int i_group,
                           int64_t n_tokens) {
    kv_group *group = &to->groups[i_group];
    const kv_group *old = &from->groups[i_group];
    int n = (int)min_i64(group->head_tokens, n_tokens);
    if (n == 0) return MN_OK;
    if (old->head && old->head_tokens == group->head_tokens) {
        kv_page_share(old->head);
        group->head = old->head;
        return MN_OK;
    }
    MN_TRY(kv_pool_take(&group->head, to->pool, group->page_bytes[PAGE_HEAD]));
    size_t k_dim = (size_t)group->spec.k_dim, v_dim = (size_t)group->spec.v_dim,
           heads = (size_t)group->spec.n_heads;
    float *rows = mem_alloc_raw(heads * (size_t)n * (k_dim + v_dim), sizeof *rows);
    if (!rows) return MN_E_NOMEM;
    float *k = rows, *v = rows + heads * (size_t)n * k_dim;
    mn_status status = MN_OK;
    for (int i = 0; status == MN_OK && i < to->n_entries; i++) {
        if (to->entries[i].group != i_group) continue;
        status = kv_read(from, kernels, i, true, 0, n, k);
        if (status == MN_OK) status = kv_read(from, kernels, i, false, 0, n, v);
        for (size_t h = 0; status == MN_OK && h < heads; h++) {
            store_job job = {.n = n,
                             .k = k + h * (size_t)n * k_dim,
                             .v = v + h * (size_t)n * v_dim,
                             .k_stride = (ptrdiff_t)k_dim,
                             .v_stride = (ptrdiff_t)v_dim};
            group_store(kernels, group, &to->entries[i], (int)h, PAGE_HEAD, group->head, job);
        }
    }
    mem_free(rows);
    return status;
}

/* Seals, page by page, what the new strategy has sealed at this length; a page's exact form is given back
 * before the next one is begun, so little more memory is needed than there was. */
static mn_status seal_page(kv_cache *cache, const kernel_table *kernels, int i_group, size_t slot) {
    kv_group *group = &cache->groups[i_group];
    seal_task task = {.slot = slot, .n = group->page_tokens};
    size_t need = 0;
    for (int i = 0; i < cache->n_entries; i++) {
        for (int is_key = 0; cache->entries[i].group == i_group && is_key < 2; is_key++) {
            task.entry = i;
            task.is_key = is_key;
            size_t one = seal_task_scratch(cache, &task);
            if (one > need) need = one;
        }
    }
    MN_TRY(mem_grow(&cache->tasks, &cache->task_capacity, 1, sizeof *cache->tasks));
    kv_page *page = NULL;
    void *scratch = mem_alloc_raw(need, 1);
    mn_status status = scratch ? kv_pool_take(&page, cache->pool, group->page_bytes[PAGE_CODED]) : MN_E_NOMEM;
    if (status == MN_OK) {
        group_put(group, PAGE_CODED, slot, page);
        for (int i = 0; i < cache->n_entries; i++) {
            for (int is_key = 0; cache->entries[i].group == i_group && is_key < 2; is_key++) {
                task.entry = i;
                task.is_key = is_key;
                cache->tasks[0] = task;
                kv_seal(cache, kernels, 0, scratch);
            }
        }
        group->n_sealed[slot] = group->page_tokens;
        group_tidy(group, cache->pool, cache->n_tokens);
    }
    mem_free(scratch);
    return status;
}

static mn_status seal_old_pages(kv_cache *cache, const kernel_table *kernels) {
    for (int g = 0; g < cache->n_groups; g++) {
        kv_group *group = &cache->groups[g];
        if (!group->is_coded || !group_steps(group)) continue;
        int64_t target = seal_until(cache->n_tokens, group->spec.residual, group->page_tokens);
        for (size_t slot = 0; slot < group->n_slots; slot++) {
            int64_t end = (group->first_page + (int64_t)slot + 1) * group->page_tokens;
            if (end > target || group->n_sealed[slot] > 0) continue;
            MN_TRY(seal_page(cache, kernels, g, slot));
        }
    }
    return MN_OK;
}

mn_status kv_convert(kv_cache **cache, const kernel_table *kernels, const kv_spec *specs, int n_entries,
                     const kv_options *options) {
    kv_cache *from = *cache, *to = NULL;
    MN_TRY(kv_open(&to, from->pool, specs, n_entries, options));
    mn_status status = check_groups(from, to);
    to->n_tokens = from->n_tokens;
    for (int g = 0; status == MN_OK && g < to->n_groups; g++) {
        kv_group *group = &to->groups[g];
        int64_t n = group_steps(group) ? from->n_tokens : from->groups[g].n_filled;
        status = share_pages(group, &from->groups[g]);
        if (status == MN_OK && group->spec.kind == KV_PAGES) status = fill_head(to, from, kernels, g, n);
    }
    if (status != MN_OK) {
        kv_close(&to);
        return status;
    }
    to->peak_bytes = from->peak_bytes;
    kv_close(&from);
    *cache = to;
    for (int g = 0; g < to->n_groups; g++) {
        if (group_steps(&to->groups[g])) group_tidy(&to->groups[g], to->pool, to->n_tokens);
    }
    status = seal_old_pages(to, kernels);
    if (kv_bytes(to) > to->peak_bytes) to->peak_bytes = kv_bytes(to);
    /* Pages that found no memory stay exact, and are sealed by a later step. */
    return status == MN_E_NOMEM ? MN_OK : status;
}
