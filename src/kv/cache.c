/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "kv/stage.h"

/* ---- opening ---- */

bool kv_spec_equal(const kv_spec *a, const kv_spec *b) {
    return a->kind == b->kind && a->n_heads == b->n_heads && a->k_dim == b->k_dim && a->v_dim == b->v_dim &&
           a->exact == b->exact && kv_form_equal(a->key, b->key) && kv_form_equal(a->value, b->value) &&
           a->residual == b->residual && a->flush == b->flush && a->exact_first == b->exact_first &&
           a->sinks == b->sinks && a->window == b->window && a->write_once == b->write_once &&
           a->is_offloaded == b->is_offloaded && a->state_bytes == b->state_bytes && a->checkpoints == b->checkpoints &&
           (a->calibration != NULL) == (b->calibration != NULL);
}

/* The layouts of a quantized stream, one for each head; *out stays NULL for an exact one. */
static mn_status make_layouts(code_layout **out, const kv_spec *spec, bool is_key, const kv_options *options) {
    kv_form form = is_key ? spec->key : spec->value;
    if (!kv_form_is_coded(form)) return MN_OK;
    *out = mem_alloc((size_t)spec->n_heads, sizeof **out);
    if (!*out) return MN_E_NOMEM;
    for (int h = 0; h < spec->n_heads; h++) {
        kv_form_layout(*out + h, form, is_key, is_key ? spec->k_dim : spec->v_dim, options->page_tokens,
                       is_key && spec->calibration ? spec->calibration[h].lambda : NULL);
    }
    return MN_OK;
}

/* Calibrations and the layouts that depend on them belong to the entry, everything else to its group. */
static mn_status open_entry(kv_entry *entry, const kv_spec *spec, const kv_options *options) {
    if (spec->kind == KV_STATE) return MN_OK;
    entry->calibration = spec->calibration;
    MN_TRY(make_layouts(&entry->key_codes, spec, true, options));
    return make_layouts(&entry->value_codes, spec, false, options);
}

static mn_status sort_into_groups(kv_cache *cache, const kv_spec *specs) {
    for (int i = 0; i < cache->n_entries; i++) {
        const kv_spec *spec = &specs[i];
        int g = 0;
        while (g < cache->n_groups && !kv_spec_equal(&cache->groups[g].spec, spec)) g++;
        kv_group *group = &cache->groups[g];
        if (g == cache->n_groups) {
            MN_TRY(group_open(group, spec, &cache->options));
            cache->n_groups++;
        }
        cache->entries[i] = (kv_entry){.group = g, .member = group->n_members++};
        for (int kind = 0; kind < N_PAGE_KINDS; kind++) group->page_bytes[kind] += group->entry_bytes[kind];
        MN_TRY(open_entry(&cache->entries[i], spec, &cache->options));
    }
    return MN_OK;
}

static void note_peak(kv_cache *cache) {
    size_t now = kv_bytes(cache);
    if (now > cache->peak_bytes) cache->peak_bytes = now;
}

mn_status kv_open(kv_cache **out, kv_pool *pool, const kv_spec *specs, int n_entries, const kv_options *options) {
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
    for (int g = 0; status == MN_OK && g < cache->n_groups; g++) {
        status = group_reserve_all(&cache->groups[g], pool, &cache->options);
    }
    if (status == MN_OK) status = stage_open(cache);
    if (status != MN_OK) {
        kv_close(&cache);
        return status;
    }
    note_peak(cache);
    *out = cache;
    return MN_OK;
}

void kv_close(kv_cache **cache) {
    kv_cache *c = *cache;
    if (!c) return;
    stage_close(c);
    for (int g = 0; c->groups && g < c->n_groups; g++) group_close(&c->groups[g], c->pool);
    for (int i = 0; c->entries && i < c->n_entries; i++) {
        mem_free(c->entries[i].key_codes);
        mem_free(c->entries[i].value_codes);
    }
    mem_free(c->groups);
    mem_free(c->entries);
    mem_free(c->tasks);
    mem_free(c);
    *cache = NULL;
}

/* ---- a step ---- */

/* Tokens of a group that are not quantized, in pages from `first` on. */
static int64_t group_residual(const kv_group *group, int64_t n_tokens, int64_t first) {
    int64_t n = 0;
    for (size_t slot = group->n_slots; slot-- > 0;) {
        int64_t page = group->first_page + (int64_t)slot, begin = page * group->page_tokens;
        if (page < first) break;
        int64_t filled = min_i64(group->page_tokens, n_tokens - begin);
        n += filled - group->n_quantized[slot];
        if (group->n_quantized[slot] > 0) break;
    }
    return n;
}

/* With `flush`: whether a call that begins with this many exact tokens quantizes at its end. */
static bool is_due(const kv_group *group, int64_t residual) {
    return residual >= 1 && residual + 1 >= group->spec.residual;
}

void kv_call_begin(kv_cache *cache) {
    for (int g = 0; g < cache->n_groups; g++) {
        kv_group *group = &cache->groups[g];
        if (!group->spec.flush || !group_steps(group)) continue;
        int64_t residual = group_residual(group, cache->n_tokens, 0);
        group->flushes = cache->n_tokens == 0 || is_due(group, residual);
    }
    cache->call_ends = false;
}

void kv_call_ends(kv_cache *cache, bool ends) {
    cache->call_ends = ends;
}

int kv_unit(const kv_cache *cache) {
    int unit = 0;
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        if (!group_quantizes_by_unit(group)) continue;
        int own = quantize_unit(group->spec.residual, group->page_tokens);
        if (unit == 0 || own < unit) unit = own;
    }
    return unit;
}

int64_t kv_step_limit(const kv_cache *cache, int64_t position) {
    int64_t limit = INT64_MAX;
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        if (!group_quantizes_by_unit(group)) continue;
        int unit = quantize_unit(group->spec.residual, group->page_tokens);
        if (position % unit) limit = min_i64(limit, (position / unit + 1) * unit);
    }
    return limit;
}

static bool group_quantizes(const kv_group *group, int64_t n_tokens, int64_t n_total, bool flushes) {
    kv_group probe = *group;
    probe.flushes = flushes;
    int64_t target = group_quantize_target(&probe, n_total, true), end = ceil_div(n_total, group->page_tokens);
    for (int64_t page = group_step_first(group, n_tokens); page < end; page++) {
        int first, last;
        if (group_quantize_range(group, page, n_total, target, &first, &last)) return true;
    }
    return false;
}

/* Calls of one token each: how many of them quantize nothing, and drop nothing that the first one does not drop. */
static int64_t group_revertible(const kv_group *group, int64_t n_tokens, int64_t most) {
    const kv_spec *spec = &group->spec;
    if (spec->kind == KV_STATE) return 1;
    int64_t needed = visible_first(n_tokens + 1, spec->window) / group->page_tokens, n = 0;
    /* The first call begins with the current pages, the others without those that it drops. */
    int64_t exact = group_residual(group, n_tokens, needed);
    bool flushes = is_due(group, group_residual(group, n_tokens, 0));
    for (; n < most; n++) {
        int64_t total = n_tokens + n + 1;
        if (visible_first(total, spec->window) / group->page_tokens > needed) break;
        flushes = flushes || is_due(group, exact + n);
        if (group->is_coded && group_quantizes(group, n_tokens, total, flushes)) break;
    }
    return n;
}

int64_t kv_revertible_tokens(const kv_cache *cache, int64_t most) {
    int64_t n = min_i64(most, kv_step_limit(cache, cache->n_tokens) - cache->n_tokens);
    for (int g = 0; g < cache->n_groups; g++) {
        if (group_steps(&cache->groups[g])) n = min_i64(n, group_revertible(&cache->groups[g], cache->n_tokens, n));
    }
    return max_i64(n, 1);
}

/* Reserves what the step needs in every group, or nothing. */
static mn_status take_all(kv_cache *cache, int64_t total) {
    mn_status status = MN_OK;
    int n_taken = 0;
    for (; status == MN_OK && n_taken < cache->n_groups; n_taken++) {
        kv_group *group = &cache->groups[n_taken];
        if (!group_steps(group)) continue;
        status = group_take(group, cache->pool, cache->n_tokens, total,
                            group_quantize_target(group, total, cache->call_ends));
    }
    if (status == MN_OK) status = schedule_reserve(cache, true, total);
    if (status == MN_OK && cache->stage) status = stage_reserve(cache);
    if (status != MN_OK) {
        for (int g = 0; g < n_taken; g++) group_return(&cache->groups[g], cache->pool);
    }
    return status;
}

bool kv_shares_pages(const kv_cache *a, const kv_cache *b) {
    for (int g = 0; g < a->n_groups && g < b->n_groups; g++) {
        const kv_group *x = &a->groups[g], *y = &b->groups[g];
        int64_t first = max_i64(x->first_page, y->first_page);
        size_t i = (size_t)group_slot(x, first), j = (size_t)group_slot(y, first);
        for (int kind = 0; i < x->n_slots && j < y->n_slots && kind < 2; kind++) {
            if (x->pages[kind][i] && x->pages[kind][i] == y->pages[kind][j]) return true;
        }
    }
    return false;
}

mn_status kv_reserve(kv_cache *cache, int64_t n_new) {
    return kv_reserve_beside(cache, n_new, NULL);
}

mn_status kv_reserve_beside(kv_cache *cache, int64_t n_new, const kv_cache *beside) {
    assert(cache->n_step == 0 && n_new > 0);
    int64_t total = cache->n_tokens + n_new;
    if (cache->options.limit && total > cache->options.limit) {
        MN_FAIL(MN_E_FULL, "the cache holds %lld tokens of at most %lld: no room for %lld more",
                (long long)cache->n_tokens, (long long)cache->options.limit, (long long)n_new);
    }
    stage_drain(cache);
    stage_share_areas(cache, beside);
    bool sent = false;
    if (cache->stage && !kv_pool_budget(cache->pool)) MN_TRY(stage_offload(cache, false, &sent));
    mn_status status = take_all(cache, total);
    /* To stay within the budget, pages are offloaded one by one until the step fits. */
    while (status == MN_E_NOMEM && cache->stage && kv_pool_budget(cache->pool)) {
        mn_status sending = stage_offload(cache, true, &sent);
        if (sending != MN_OK) return sending;
        if (!sent) break;
        status = take_all(cache, total);
    }
    if (status != MN_OK) return status;
    for (int g = 0; g < cache->n_groups; g++) {
        kv_group *group = &cache->groups[g];
        if (!group_steps(group)) continue;
        group_apply(group, cache->pool, cache->n_tokens, total, group_quantize_target(group, total, cache->call_ends));
    }
    quantize_early(cache, total);
    cache->n_step = n_new;
    note_peak(cache);
    stage_begin(cache);
    return MN_OK;
}

static void tidy_all(kv_cache *cache) {
    for (int g = 0; g < cache->n_groups; g++) {
        kv_group *group = &cache->groups[g];
        if (group_steps(group)) group_tidy(group, cache->pool, cache->n_tokens);
    }
}

void kv_abandon(kv_cache *cache) {
    stage_drain(cache);
    cache->fault = MN_OK;
    if (cache->n_step == 0) return;
    cache->n_step = 0;
    cache->n_tasks = cache->n_early = 0;
    tidy_all(cache);
    KV_ASSERT_VALID(cache);
}

void group_store(const kernel_table *kernels, const kv_group *group, const kv_entry *entry, int head, page_kind kind,
                 kv_page *page, store_job job) {
    const bool is_head = kind == PAGE_HEAD;
    const kv_place place = is_head ? group->place[kind] : part_place(group, page);
    const size_t offset = (size_t)entry->member * group->entry_bytes[kind];
    char *base = page->data + (is_head ? offset : part_offset(group, page, offset));
    job.keys = base + place.k_offset + (size_t)head * place.k_head_bytes;
    job.values = base + place.v_offset + (size_t)head * place.v_head_bytes;
    job.page_tokens = is_head ? group->head_page_tokens : page_room(group, page);
    job.slot -= page->split;
    job.k_dim = group->spec.k_dim;
    job.v_dim = group->spec.v_dim;
    if (group->spec.exact == KV_F32) {
        kernels->store_f32(&job);
    } else {
        kernels->store_bf16(&job);
    }
}

void kv_append(kv_cache *cache, const kernel_table *kernels, int i_entry, int head, int token_begin, int token_end,
               const float *k, const float *v, ptrdiff_t k_stride, ptrdiff_t v_stride) {
    const kv_entry *entry = &cache->entries[i_entry];
    const kv_group *group = &cache->groups[entry->group];
    int64_t base = group_steps(group) ? cache->n_tokens : 0;
    assert(head >= 0 && head < group->spec.n_heads && token_begin >= 0);
    assert(token_end <= (group_steps(group) ? cache->n_step : group->n_filled));
    for (int t = token_begin; t < token_end;) {
        int64_t position = base + t;
        int slot = (int)(position % group->page_tokens), n = group->page_tokens - slot;
        if (n > token_end - t) n = token_end - t;
        store_job job = {.slot = slot,
                         .n = n,
                         .k = k + t * k_stride,
                         .v = v + t * v_stride,
                         .k_stride = k_stride,
                         .v_stride = v_stride};
        int64_t place = group_slot(group, position / group->page_tokens);
        group_store(kernels, group, entry, head, PAGE_EXACT, group->pages[PAGE_EXACT][place], job);
        if (position < group->head_tokens) {
            job.slot = (int)position;
            job.n = (int)min_i64(n, group->head_tokens - position);
            group_store(kernels, group, entry, head, PAGE_HEAD, group->head, job);
        }
        t += n;
    }
}

static kv_place place_of(const kv_group *group, const kv_entry *entry, page_kind kind) {
    kv_place place = group->place[kind];
    size_t offset = (size_t)entry->member * group->entry_bytes[kind];
    place.k_offset += offset;
    place.v_offset += offset;
    return place;
}

kv_view kv_attention_view(const kv_cache *cache, int i_entry) {
    const kv_entry *entry = &cache->entries[i_entry];
    const kv_group *group = &cache->groups[entry->group];
    const char *const *exact = stage_addresses(cache, i_entry, PAGE_EXACT), *const *coded = stage_addresses(
                                                                                cache, i_entry, PAGE_CODED);
    return (kv_view){
        .spec = &group->spec,
        .n_tokens = group_steps(group) ? cache->n_tokens + cache->n_step : group->n_filled,
        .page_tokens = group->page_tokens,
        .first_page = group->first_page,
        .n_pages = (int)group->n_slots,
        .exact = exact ? exact : (const char *const *)group->addresses[PAGE_EXACT],
        .pages = group->pages[PAGE_EXACT],
        .coded = coded ? coded : (const char *const *)group->addresses[PAGE_CODED],
        .n_quantized = group->n_quantized,
        .quantizes_early = cache->n_early > 0 && group_quantizes_by_unit(group),
        .exact_place = place_of(group, entry, PAGE_EXACT),
        .coded_place = place_of(group, entry, PAGE_CODED),
        .head_place = place_of(group, entry, PAGE_HEAD),
        .head = group->head ? group->head->data : NULL,
        .n_head = group->head_tokens,
        .head_page_tokens = group->head_page_tokens,
        .key_codes = entry->key_codes,
        .value_codes = entry->value_codes,
        .calibration = entry->calibration,
    };
}

/* ---- write once ---- */

mn_status kv_fill(kv_cache *cache, int64_t n) {
    mn_status status = MN_OK;
    int n_taken = 0;
    for (; status == MN_OK && n_taken < cache->n_groups; n_taken++) {
        kv_group *group = &cache->groups[n_taken];
        if (group_steps(group)) continue;
        if (group->n_filled > 0) {
            status = status_fail(MN_E_ARG, "cross entries are filled once; they hold %lld tokens",
                                 (long long)group->n_filled);
        } else {
            status = group_take(group, cache->pool, 0, n, group_quantize_target(group, n, true));
        }
    }
    if (status == MN_OK) status = schedule_reserve(cache, false, n);
    for (int g = 0; g < n_taken; g++) {
        kv_group *group = &cache->groups[g];
        if (group_steps(group)) continue;
        if (status != MN_OK) {
            group_return(group, cache->pool);
            continue;
        }
        group_apply(group, cache->pool, 0, n, group_quantize_target(group, n, true));
        group->n_filled = n;
    }
    if (status == MN_OK) note_peak(cache);
    return status;
}

void kv_fill_abandon(kv_cache *cache) {
    for (int g = 0; g < cache->n_groups; g++) {
        kv_group *group = &cache->groups[g];
        if (group_steps(group)) continue;
        group->n_filled = 0;
        group_tidy(group, cache->pool, 0);
    }
}

kv_state kv_states(const kv_cache *cache, int i_entry) {
    const kv_entry *entry = &cache->entries[i_entry];
    const kv_group *group = &cache->groups[entry->group];
    size_t offset = (size_t)entry->member * group->entry_bytes[PAGE_EXACT];
    return (kv_state){
        .now = group->n_states ? group->states[group->n_states - 1].page->data + offset : NULL,
        .next = group->taken[PAGE_EXACT].pages[0]->data + offset,
    };
}

int64_t kv_filled(const kv_cache *cache, int entry) {
    return cache->groups[cache->entries[entry].group].n_filled;
}

/* ---- between steps ---- */

mn_status kv_truncate(kv_cache *cache, int64_t n_keep) {
    if (n_keep < 0 || n_keep > cache->n_tokens) {
        MN_FAIL(MN_E_ARG, "cannot keep %lld tokens of a cache that holds %lld", (long long)n_keep,
                (long long)cache->n_tokens);
    }
    for (int g = 0; g < cache->n_groups; g++) {
        if (group_reaches(&cache->groups[g], n_keep)) continue;
        MN_FAIL(
            MN_E_UNSUPPORTED,
            "cannot go back to %lld tokens: tokens that they attend to were dropped; at most %lld tokens can be kept",
            (long long)n_keep, (long long)kv_reachable(cache, n_keep));
    }
    kv_abandon(cache);
    cache->n_tokens = n_keep;
    tidy_all(cache);
    KV_ASSERT_VALID(cache);
    return MN_OK;
}

/* The largest length up to n_keep that every group reaches. */
static int64_t reach(const kv_cache *cache, int64_t n_keep, int64_t (*of_group)(const kv_group *, int64_t)) {
    int64_t n = min_i64(n_keep, cache->n_tokens);
    for (int g = 0; g < cache->n_groups;) {
        int64_t reached = of_group(&cache->groups[g], n);
        g = reached < n ? 0 : g + 1;
        n = reached;
    }
    return n;
}

int64_t kv_reachable(const kv_cache *cache, int64_t n_keep) {
    return reach(cache, n_keep, group_reachable);
}

int64_t kv_shareable(const kv_cache *cache, int64_t n_keep) {
    return reach(cache, n_keep, group_shareable);
}

mn_status kv_fork(kv_cache **out, const kv_cache *cache) {
    *out = NULL;
    kv_cache *fork = mem_alloc(1, sizeof *fork);
    if (!fork) return MN_E_NOMEM;
    mn_status status = MN_OK;
    *fork = *cache;
    fork->stage = NULL;
    fork->fault = MN_OK;
    fork->tasks = NULL;
    fork->n_tasks = fork->task_capacity = 0;
    fork->n_entries = fork->n_groups = 0;
    fork->entries = mem_alloc((size_t)cache->n_entries, sizeof *fork->entries);
    fork->groups = mem_alloc((size_t)cache->n_entries, sizeof *fork->groups);
    if (!fork->entries || !fork->groups) status = MN_E_NOMEM;
    for (int i = 0; status == MN_OK && i < cache->n_entries; i++) {
        kv_entry *entry = &fork->entries[fork->n_entries++];
        *entry = (kv_entry){.group = cache->entries[i].group, .member = cache->entries[i].member};
        kv_spec spec = cache->groups[entry->group].spec;
        spec.calibration = cache->entries[i].calibration;
        status = open_entry(entry, &spec, &cache->options);
    }
    for (int g = 0; status == MN_OK && g < cache->n_groups; g++) {
        fork->n_groups++;
        status = group_fork(&fork->groups[g], &cache->groups[g], cache->pool, cache->n_tokens, &cache->options);
    }
    if (status == MN_OK) status = stage_open(fork);
    if (status != MN_OK) {
        kv_close(&fork);
        return status;
    }
    fork->peak_bytes = kv_bytes(fork);
    KV_ASSERT_VALID(fork);
    *out = fork;
    return MN_OK;
}

/* Whether the tables of `fork` have room for those of `cache`. */
static bool is_alike(const kv_cache *fork, const kv_cache *cache) {
    bool alike = fork->n_entries == cache->n_entries && fork->n_groups == cache->n_groups &&
                 fork->options.page_tokens == cache->options.page_tokens &&
                 fork->options.reserve == cache->options.reserve && fork->options.limit == cache->options.limit;
    for (int i = 0; alike && i < cache->n_entries; i++) {
        const kv_entry *a = &fork->entries[i], *b = &cache->entries[i];
        alike = a->group == b->group && a->member == b->member && a->calibration == b->calibration;
    }
    for (int g = 0; alike && g < cache->n_groups; g++) {
        const kv_spec *spec = &cache->groups[g].spec;
        alike = spec->kind == KV_PAGES && !spec->write_once && kv_spec_equal(&fork->groups[g].spec, spec);
    }
    return alike;
}

mn_status kv_refork(kv_cache **fork, const kv_cache *cache) {
    kv_cache *to = *fork, *fresh = NULL;
    mn_status status = MN_OK;
    if (!is_alike(to, cache)) {
        MN_TRY(kv_fork(&fresh, cache));
        kv_close(fork);
        *fork = fresh;
        return MN_OK;
    }
    MN_TRY(kv_truncate(to, 0));
    for (int g = 0; status == MN_OK && g < cache->n_groups; g++) {
        status = group_refork(&to->groups[g], &cache->groups[g], cache->pool, cache->n_tokens, &cache->options);
    }
    if (status == MN_OK) {
        to->n_tokens = cache->n_tokens;
        to->call_ends = cache->call_ends;
        to->peak_bytes = kv_bytes(to);
        KV_ASSERT_VALID(to);
    } else {
        tidy_all(to);
    }
    return status;
}

int64_t kv_length(const kv_cache *cache) {
    return cache->n_tokens;
}

bool kv_moves_pages(const kv_cache *cache) {
    return cache->stage != NULL;
}

int64_t kv_room(const kv_cache *cache) {
    int64_t room = cache->options.reserve;
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        if (!group_steps(group)) continue;
        room = max_i64(room, (group->first_page + (int64_t)group->n_slots) * group->page_tokens);
    }
    return room;
}

int kv_entries(const kv_cache *cache) {
    return cache->n_entries;
}

const kv_spec *kv_entry_spec(const kv_cache *cache, int entry) {
    return &cache->groups[cache->entries[entry].group].spec;
}

size_t kv_bytes(const kv_cache *cache) {
    size_t n = 0;
    for (int g = 0; g < cache->n_groups; g++) n += group_bytes(&cache->groups[g]);
    return n;
}

size_t kv_bytes_together(kv_cache *const *caches, size_t n) {
    size_t sum = 0;
    uint32_t number = 0;
    for (size_t i = 0; i < n; i++) {
        if (!caches[i]) continue;
        if (number == 0) number = kv_pool_next_count(caches[i]->pool);
        for (int g = 0; g < caches[i]->n_groups; g++) sum += group_unmet_bytes(&caches[i]->groups[g], number);
    }
    return sum;
}

size_t kv_unique_bytes(const kv_cache *cache) {
    size_t n = 0;
    for (int g = 0; g < cache->n_groups; g++) n += group_unique_bytes(&cache->groups[g]);
    return n;
}

size_t kv_peak_bytes(const kv_cache *cache) {
    return cache->peak_bytes;
}

int64_t kv_first_held(const kv_cache *cache, int entry) {
    const kv_group *group = &cache->groups[cache->entries[entry].group];
    return group->first_page * group->page_tokens;
}

int kv_head_tokens(const kv_cache *cache, int entry) {
    return cache->groups[cache->entries[entry].group].head_tokens;
}

int64_t kv_quantized(const kv_cache *cache, int entry) {
    const kv_group *group = &cache->groups[cache->entries[entry].group];
    int64_t n = 0;
    for (size_t slot = 0; slot < group->n_slots; slot++) n += group->n_quantized[slot];
    return n;
}
