/* The invariants of a cache, and the bytes that a plan needs.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "base/num.h"
#include "kv/group.h"

/* Pages that the step will write must be present and not shared. */
static bool may_be_written(const kv_page *page) {
    return page && !page_is_shared(page) && page->data;
}

/* Parts must be resident and follow each other without a gap up to the last token. */
static mn_status check_parts(const kv_group *group, const kv_page *page, int fill) {
    if (page->split + page_room(group, page) < fill)
        MN_FAIL(MN_E_UNSUPPORTED, "the parts of a page end before its tokens");
    for (; page; page = page->base) {
        size_t wanted = page->tokens ? part_bytes(group, page->tokens) : group->page_bytes[PAGE_EXACT];
        if (page->bytes != wanted)
            MN_FAIL(MN_E_UNSUPPORTED, "the size of a part of a page differs from that of its tokens");
        if (page->split + page_room(group, page) > group->page_tokens || page->split % ATTEND_PART_TOKENS)
            MN_FAIL(MN_E_UNSUPPORTED, "a part of a page has tokens %d to %d", page->split,
                    page->split + page_room(group, page));
        if ((page->base == NULL) != (page->split == 0)) MN_FAIL(MN_E_UNSUPPORTED, "a part of a page has no base");
        if (!page->base) break;
        if (page->base->split >= page->split || page->base->split + page_room(group, page->base) < page->split)
            MN_FAIL(MN_E_UNSUPPORTED, "the parts of a page have a gap");
        if (!page->base->data || atomic_load(&page->base->n_resident) < 1)
            MN_FAIL(MN_E_UNSUPPORTED, "a part of a page is not counted as resident");
    }
    return MN_OK;
}

static mn_status check_slot(const kv_cache *cache, const kv_group *group, size_t slot, int64_t n_tokens,
                            int64_t n_total) {
    int64_t begin = (group->first_page + (int64_t)slot) * group->page_tokens;
    int64_t fill = min_i64(group->page_tokens, n_tokens - begin);
    int quantized = group->n_quantized[slot];
    const kv_page *exact = group->pages[PAGE_EXACT][slot], *coded = group->pages[PAGE_CODED][slot];
    bool in_step = n_total > n_tokens;
    if (quantized < 0 || quantized > max_i64(fill, 0))
        MN_FAIL(MN_E_UNSUPPORTED, "the page has more quantized tokens than tokens");
    if (!exact && quantized < fill)
        MN_FAIL(MN_E_UNSUPPORTED, "the page has tokens that are neither exact nor quantized");
    if (!coded && quantized > 0) MN_FAIL(MN_E_UNSUPPORTED, "the page has quantized tokens but no quantized page");
    if (!in_step && exact && quantized == fill)
        MN_FAIL(MN_E_UNSUPPORTED, "the cache holds an exact page that no token needs");
    if (!in_step && coded && quantized == 0)
        MN_FAIL(MN_E_UNSUPPORTED, "the cache holds a quantized page that no token needs");
    for (int kind = 0; kind < 2; kind++) {
        const kv_page *page = group->pages[kind][slot];
        if (!group->spec.is_offloaded && group->addresses[kind][slot] != (page ? page->data : NULL))
            MN_FAIL(MN_E_UNSUPPORTED, "the address of page %zu differs from that in the table for kernels", slot);
        if (!page) continue;
        if (atomic_load(&page->references) < 1) MN_FAIL(MN_E_UNSUPPORTED, "page %zu has no reference", slot);
        if ((page->data == NULL) == (page->region == 0))
            MN_FAIL(MN_E_UNSUPPORTED, "page %zu is neither resident nor offloaded, or both", slot);
        if (!group->spec.is_offloaded && (page->region || atomic_load(&page->n_resident) < 1))
            MN_FAIL(MN_E_UNSUPPORTED, "page %zu is not counted as resident", slot);
        if (kind == PAGE_EXACT) MN_TRY(check_parts(group, page, (int)fill));
        if (kind == PAGE_CODED && page->bytes != group->page_bytes[kind])
            MN_FAIL(MN_E_UNSUPPORTED, "the size of page %zu differs from that of its group", slot);
    }
    int first, end;
    int64_t target = group_quantize_target(group, n_total, cache->call_ends);
    if (in_step && begin + group->page_tokens > n_tokens &&
        !page_is_writable(group, exact, (int)max_i64(fill, 0), (int)min_i64(group->page_tokens, n_total - begin)))
        MN_FAIL(MN_E_UNSUPPORTED, "page %zu will be written but is missing or shared", slot);
    if (in_step && group_quantize_range(group, group->first_page + (int64_t)slot, n_total, target, &first, &end) &&
        !may_be_written(coded))
        MN_FAIL(MN_E_UNSUPPORTED, "quantized page %zu will be written but is missing or shared", slot);
    return MN_OK;
}

static mn_status check_states(const kv_group *group, int64_t n_tokens) {
    if (group->n_states > group->spec.checkpoints + 1) MN_FAIL(MN_E_UNSUPPORTED, "more states than checkpoints");
    for (int i = 0; i < group->n_states; i++) {
        if (group->states[i].position <= (i > 0 ? group->states[i - 1].position : 0))
            MN_FAIL(MN_E_UNSUPPORTED, "states are out of order");
    }
    int64_t newest = group->n_states ? group->states[group->n_states - 1].position : 0;
    if (newest != n_tokens) {
        MN_FAIL(MN_E_UNSUPPORTED, "the newest state is that of %lld tokens, the cache holds %lld", (long long)newest,
                (long long)n_tokens);
    }
    return MN_OK;
}

static mn_status check_group(const kv_cache *cache, const kv_group *group) {
    int64_t n = group_steps(group) ? cache->n_tokens : group->n_filled;
    int64_t total = group_steps(group) ? n + cache->n_step : n;
    if (group->spec.kind == KV_STATE) return check_states(group, n);
    int64_t end = ceil_div(total, group->page_tokens);
    if (group->first_page + (int64_t)group->n_slots != end && (group->n_slots > 0 || total > 0)) {
        MN_FAIL(MN_E_UNSUPPORTED, "the table ends at page %lld, the tokens at %lld",
                (long long)(group->first_page + (int64_t)group->n_slots), (long long)end);
    }
    const kv_spec *spec = &group->spec;
    if (group->first_page * group->page_tokens > visible_first(n, spec->window))
        MN_FAIL(MN_E_UNSUPPORTED, "a page inside the attention window is missing");
    if (cache->n_step == 0 && group->first_page < visible_first(n, spec->window) / group->page_tokens)
        MN_FAIL(MN_E_UNSUPPORTED, "the cache holds a page outside the attention window");
    if (total > 0 && group->head_tokens > 0 && !group->head) MN_FAIL(MN_E_UNSUPPORTED, "the head page is missing");
    if (total > n && n < group->head_tokens && !may_be_written(group->head))
        MN_FAIL(MN_E_UNSUPPORTED, "the head page will be written but is shared");
    size_t held[2] = {0, 0};
    for (size_t i = 0; i < group->n_slots; i++) {
        MN_TRY(check_slot(cache, group, i, n, total));
        for (int kind = 0; kind < 2; kind++) held[kind] += group->pages[kind][i] != NULL;
    }
    for (size_t i = group->n_slots; i < group->capacity; i++) {
        if (group->pages[PAGE_EXACT][i] || group->pages[PAGE_CODED][i])
            MN_FAIL(MN_E_UNSUPPORTED, "a page lies beyond the table");
    }
    for (int kind = 0; kind < 2; kind++) {
        const page_pile *reserved = &group->reserved[kind];
        if (held[kind] != group->n_held[kind])
            MN_FAIL(MN_E_UNSUPPORTED, "the number of pages differs from those in the table");
        if (reserved->n > 0 && reserved->n + held[kind] > reserved->capacity)
            MN_FAIL(MN_E_UNSUPPORTED, "more pages are reserved than requested");
    }
    return MN_OK;
}

mn_status kv_check(const kv_cache *cache) {
    int64_t total = cache->n_tokens + cache->n_step;
    if (cache->options.limit && total > cache->options.limit) MN_FAIL(MN_E_UNSUPPORTED, "more tokens than the limit");
    if (kv_bytes(cache) > cache->peak_bytes) MN_FAIL(MN_E_UNSUPPORTED, "the peak is below the bytes in use");
    for (int g = 0; g < cache->n_groups; g++) MN_TRY(check_group(cache, &cache->groups[g]));
    return MN_OK;
}

/* ---- planning ---- */

/* Bytes that a group holds for n tokens appended in one call; SIZE_MAX on overflow. */
static size_t planned_bytes(const kv_group *group, const kv_options *options, int64_t n) {
    const kv_spec *spec = &group->spec;
    if (spec->kind == KV_STATE) {
        int64_t states = min_i64(n, (int64_t)spec->checkpoints + 1);
        return (size_t)states * group->page_bytes[PAGE_EXACT];
    }
    size_t reserved[2], n_pages[2] = {0, 0};
    int64_t page = group->page_tokens, end = ceil_div(n, page), first = visible_first(n, spec->window) / page;
    int64_t quantized = group_quantize_target(group, n, true);
    n_pages[PAGE_CODED] = (size_t)max_i64(0, ceil_div(quantized, page) - first);
    n_pages[PAGE_EXACT] = (size_t)(quantized < n ? end - max_i64(first, quantized / page) : 0);
    if (group_reserve(group, options)) {
        group_most_pages(group, group_reserve(group, options), reserved);
        for (int kind = 0; kind < 2; kind++) {
            if (n_pages[kind] < reserved[kind]) n_pages[kind] = reserved[kind];
        }
    }
    size_t exact, coded, total, head = n > 0 ? group->page_bytes[PAGE_HEAD] : 0, last = 0;
    if (!group_reserve(group, options) && n_pages[PAGE_EXACT] > 0 &&
        n % page) { /* the newest page has room for its tokens only */
        n_pages[PAGE_EXACT]--;
        last = open_page_bytes(group, (int)(n % page));
    }
    bool fits = size_mul(n_pages[PAGE_EXACT], group->page_bytes[PAGE_EXACT], &exact) && size_add(exact, last, &exact) &&
                size_mul(n_pages[PAGE_CODED], group->page_bytes[PAGE_CODED], &coded) &&
                size_add(exact, coded, &total) && size_add(total, head, &total);
    return fits ? total : SIZE_MAX;
}

size_t kv_plan_bytes(const kv_spec *specs, int n_entries, const kv_options *options, int64_t n_tokens) {
    size_t total = 0;
    for (int i = 0; i < n_entries; i++) {
        kv_group group = {0};
        mn_status status = group_open(&group, &specs[i], options);
        group.flushes = true;
        if (status == MN_OK) {
            for (int kind = 0; kind < N_PAGE_KINDS; kind++) group.page_bytes[kind] = group.entry_bytes[kind];
            if (!size_add(total, planned_bytes(&group, options, n_tokens), &total)) total = SIZE_MAX;
        }
        group_close(&group, NULL);
        if (status != MN_OK || total == SIZE_MAX) return SIZE_MAX;
    }
    return total;
}

/* Of the quantized form, in a page of the default size. States and cross attention do not grow with steps. */
static size_t entry_page_bytes(const kv_spec *s) {
    if (s->kind == KV_STATE || s->write_once) return 0;
    size_t head = kv_form_bytes(s->key, true, s->calibration != NULL, s->k_dim, PAGE_TOKENS) +
                  kv_form_bytes(s->value, false, false, s->v_dim, PAGE_TOKENS);
    return head * (size_t)s->n_heads;
}

size_t kv_token_bytes(const kv_spec *specs, int n_entries) {
    size_t total = 0;
    for (int i = 0; i < n_entries; i++) total += entry_page_bytes(&specs[i]);
    return total / PAGE_TOKENS;
}

size_t kv_cache_token_bytes(const kv_cache *cache) {
    size_t total = 0;
    for (int i = 0; i < cache->n_entries; i++) total += entry_page_bytes(kv_entry_spec(cache, i));
    return total / PAGE_TOKENS;
}
