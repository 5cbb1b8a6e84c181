/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/group.h"

#include <string.h>

#include "base/mem.h"
#include "base/num.h"

/* ---- sizes ---- */

static bool is_coded_stream(const kv_spec *spec, bool is_key) {
    return kv_form_is_coded(is_key ? spec->key : spec->value);
}

/* Lays out one entry in a page of that kind: the keys of all heads, then the values. Entries are multiples of 64 bytes,
 * so that heads of ordinary sizes begin on cache lines. */
static void lay_out(kv_group *group, page_kind kind) {
    const kv_spec *spec = &group->spec;
    kv_form exact = kv_form_exact(spec->exact);
    kv_form key = kind == PAGE_CODED ? spec->key : exact, value = kind == PAGE_CODED ? spec->value : exact;
    int tokens = kind == PAGE_HEAD ? group->head_page_tokens : group->page_tokens;
    kv_place *place = &group->place[kind];
    place->k_head_bytes = kv_form_bytes(key, true, spec->calibration != NULL, spec->k_dim, tokens);
    place->v_head_bytes = kv_form_bytes(value, false, false, spec->v_dim, tokens);
    size_t keys = (place->k_head_bytes * (size_t)spec->n_heads + 63) / 64 * 64;
    place->v_offset = keys;
    group->entry_bytes[kind] = (keys + place->v_head_bytes * (size_t)spec->n_heads + 63) / 64 * 64;
}

static mn_status check_spec(const kv_spec *spec, const kv_options *options) {
    if (spec->n_heads < 1 || spec->k_dim < 2 || spec->v_dim < 2 || spec->k_dim % 2 || spec->v_dim % 2) {
        MN_FAIL(MN_E_UNSUPPORTED,
                "a cache of %d heads with rows of %d and %d values: heads must be positive, rows even", spec->n_heads,
                spec->k_dim, spec->v_dim);
    }
    MN_TRY(kv_form_check(spec->key, spec->k_dim, options->page_tokens));
    return kv_form_check(spec->value, spec->v_dim, options->page_tokens);
}

mn_status group_open(kv_group *group, const kv_spec *spec, const kv_options *options) {
    if (spec->kind == KV_STATE) return state_open(group, spec);
    MN_TRY(check_spec(spec, options));
    *group = (kv_group){.spec = *spec, .page_tokens = options->page_tokens};
    group->is_coded = is_coded_stream(spec, true) || is_coded_stream(spec, false);
    if (spec->window && spec->sinks) group->head_tokens = spec->sinks;
    if (group->is_coded && !group->head_tokens) group->head_tokens = spec->exact_first;
    group->head_page_tokens = group->head_tokens + group->head_tokens % 2;
    lay_out(group, PAGE_EXACT);
    lay_out(group, PAGE_HEAD);
    if (group->is_coded) lay_out(group, PAGE_CODED);
    return MN_OK;
}

/* ---- piles ---- */

/* Pushes a page of the reserve, or else of the pool, onto the stack of taken pages; reserved ones are at its bottom. */
static mn_status take_page(kv_group *group, kv_pool *pool, page_kind kind) {
    page_pile *pile = &group->taken[kind], *reserved = kind == PAGE_HEAD ? NULL : &group->reserved[kind];
    MN_TRY(mem_grow(&pile->pages, &pile->capacity, pile->n + 1, sizeof *pile->pages));
    if (reserved && reserved->n > 0) {
        pile->pages[pile->n++] = reserved->pages[--reserved->n];
        group->n_lent[kind]++;
        return MN_OK;
    }
    /* A state is written whole: clearing it would cost as much as reading some of the weights. */
    bool is_whole = group->spec.kind == KV_STATE && group->spec.state_bytes == group->entry_bytes[kind];
    size_t n = group->page_bytes[kind];
    MN_TRY((is_whole ? kv_pool_take_raw : kv_pool_take)(&pile->pages[pile->n], pool, n));
    pile->n++;
    return MN_OK;
}

/* Pushes pages onto the stack of taken pages, exact ones in the order of their slots. */
static mn_status take_part(kv_group *group, kv_pool *pool, int64_t number, const part_plan *plan) {
    page_pile *pile = &group->taken[PAGE_EXACT];
    MN_TRY(mem_grow(&pile->pages, &pile->capacity, pile->n + 1, sizeof *pile->pages));
    if (plan->tokens) {
        MN_TRY(kv_pool_take_part(&pile->pages[pile->n], pool, part_bytes(group, plan->tokens), plan->split,
                                 plan->tokens, plan->base));
        pile->n++;
    } else {
        MN_TRY(take_page(group, pool, PAGE_EXACT));
    }
    pile->pages[pile->n - 1]->number = number;
    return MN_OK;
}

static kv_page *pile_pop(page_pile *pile) {
    return pile->pages[--pile->n];
}

static void pile_close(page_pile *pile, kv_pool *pool) {
    while (pile->n > 0) kv_pool_return(pool, pile_pop(pile));
    mem_free(pile->pages);
    *pile = (page_pile){0};
}

/* Counts a page that enters the group's table, or leaves it before it is returned. */
static void count_resident(const kv_group *group, kv_page *page, int by) {
    if (page && !group->spec.is_offloaded) atomic_fetch_add_explicit(&page->n_resident, by, memory_order_relaxed);
}

void group_close(kv_group *group, kv_pool *pool) {
    state_close(group, pool);
    for (int kind = 0; kind < 2; kind++) {
        for (size_t i = 0; i < group->n_slots; i++) {
            count_resident(group, group->pages[kind][i], -1);
            if (group->pages[kind][i]) kv_pool_return(pool, group->pages[kind][i]);
        }
        pile_close(&group->reserved[kind], pool);
        mem_free(group->pages[kind]);
        mem_free(group->addresses[kind]);
    }
    for (int kind = 0; kind < N_PAGE_KINDS; kind++) pile_close(&group->taken[kind], pool);
    if (group->head) kv_pool_return(pool, group->head);
    mem_free(group->n_quantized);
    *group = (kv_group){0};
}

/* ---- the table ---- */

mn_status group_grow(kv_group *group, size_t n) {
    if (n <= group->capacity) return MN_OK;
    size_t capacity = group->capacity ? group->capacity : 8;
    while (capacity < n) capacity *= 2;
    kv_page **pages[2] = {mem_alloc(capacity, sizeof **pages), mem_alloc(capacity, sizeof **pages)};
    const char **addresses[2] = {mem_alloc(capacity, sizeof **addresses), mem_alloc(capacity, sizeof **addresses)};
    int *n_quantized = mem_alloc(capacity, sizeof *n_quantized);
    bool complete = pages[0] && pages[1] && addresses[0] && addresses[1] && n_quantized;
    for (int kind = 0; kind < 2; kind++) {
        if (complete && group->n_slots > 0) {
            memcpy(pages[kind], group->pages[kind], group->n_slots * sizeof **pages);
            memcpy(addresses[kind], group->addresses[kind], group->n_slots * sizeof **addresses);
        }
        mem_free(complete ? group->pages[kind] : pages[kind]);
        mem_free(complete ? group->addresses[kind] : addresses[kind]);
        if (!complete) continue;
        group->pages[kind] = pages[kind];
        group->addresses[kind] = addresses[kind];
    }
    if (complete && group->n_slots > 0) memcpy(n_quantized, group->n_quantized, group->n_slots * sizeof *n_quantized);
    mem_free(complete ? group->n_quantized : n_quantized);
    if (!complete) return MN_E_NOMEM;
    group->n_quantized = n_quantized;
    group->capacity = capacity;
    return MN_OK;
}

void group_put(kv_group *group, page_kind kind, size_t slot, kv_page *page) {
    count_resident(group, group->pages[kind][slot], -1);
    count_resident(group, page, 1);
    group->n_held[kind] += (size_t)(page != NULL) - (size_t)(group->pages[kind][slot] != NULL);
    group->pages[kind][slot] = page;
    group->addresses[kind][slot] = page ? page->data : NULL;
}

/* Tokens of a page when the sequence has n_tokens. */
static int page_fill(const kv_group *group, int64_t page, int64_t n_tokens) {
    return (int)min_i64(group->page_tokens, n_tokens - page * group->page_tokens);
}

/* What a step does to one slot. */
typedef struct slot_need {
    part_plan exact;        /* a new page, a larger one, or a private part after a shared one */
    bool coded, copy_coded; /* a new page; a private copy of a shared one */
} slot_need;

static slot_need need_of(const kv_group *group, int64_t page, int64_t n_tokens, int64_t n_total, int64_t n_quantized) {
    int64_t begin = page * group->page_tokens, slot = group_slot(group, page);
    bool is_new = slot >= (int64_t)group->n_slots;
    kv_page *exact = is_new ? NULL : group->pages[PAGE_EXACT][slot],
            *coded = is_new ? NULL : group->pages[PAGE_CODED][slot];
    bool written = n_tokens < begin + group->page_tokens && n_total > begin;
    int first, end;
    bool quantizes = group_quantize_range(group, page, n_total, n_quantized, &first, &end);
    slot_need need = {.coded = quantizes && !coded, .copy_coded = quantizes && coded && page_is_shared(coded)};
    if (written)
        need.exact = part_for(group, exact, (int)max_i64(n_tokens - begin, 0), page_fill(group, page, n_total));
    return need;
}

int64_t group_step_first(const kv_group *group, int64_t n_tokens) {
    int64_t page = n_tokens / group->page_tokens;
    while (group->is_coded && page > group->first_page &&
           group->n_quantized[group_slot(group, page - 1)] < group->page_tokens)
        page--;
    return page;
}

/* A resident page with the bytes of another one, resident or offloaded. */
static mn_status copy_page(kv_page **out, kv_pool *pool, const kv_page *page) {
    MN_TRY(kv_pool_take(out, pool, page->bytes));
    mn_status status = kv_pool_copy(pool, page, 0, page->bytes, (*out)->data);
    if (status == MN_OK) return MN_OK;
    kv_pool_return(pool, *out);
    *out = NULL;
    return status;
}

mn_status group_make_resident(kv_group *group, kv_pool *pool, page_kind kind, size_t slot) {
    kv_page *offload = group->pages[kind][slot], *resident;
    if (!offload || !offload->region) return MN_OK;
    MN_TRY(copy_page(&resident, pool, offload));
    kv_pool_return(pool, offload);
    group_put(group, kind, slot, resident);
    return MN_OK;
}

mn_status group_take(kv_group *group, kv_pool *pool, int64_t n_tokens, int64_t n_total, int64_t n_quantized) {
    if (group->spec.kind == KV_STATE) { return take_page(group, pool, PAGE_EXACT); }
    int64_t end = ceil_div(n_total, group->page_tokens);
    MN_TRY(group_grow(group, (size_t)group_slot(group, end)));
    for (int64_t page = group_step_first(group, n_tokens); page < end; page++) {
        int64_t slot = group_slot(group, page);
        for (int kind = 0; kind < 2; kind++) { /* slots beyond the table are empty */
            MN_TRY(group_make_resident(group, pool, (page_kind)kind, (size_t)slot));
        }
        slot_need need = need_of(group, page, n_tokens, n_total, n_quantized);
        if (need.exact.needed) MN_TRY(take_part(group, pool, page, &need.exact));
        if (need.coded || need.copy_coded) MN_TRY(take_page(group, pool, PAGE_CODED));
    }
    if (n_tokens < group->head_tokens && (!group->head || page_is_shared(group->head))) {
        MN_TRY(take_page(group, pool, PAGE_HEAD));
    }
    return MN_OK;
}

void group_return(kv_group *group, kv_pool *pool) {
    for (int kind = 0; kind < N_PAGE_KINDS; kind++) {
        page_pile *pile = &group->taken[kind];
        while (pile->n > 0) {
            kv_page *page = pile_pop(pile);
            if (pile->n < group->n_lent[kind]) {
                group->reserved[kind].pages[group->reserved[kind].n++] = page;
            } else {
                kv_pool_return(pool, page);
            }
        }
        group->n_lent[kind] = 0;
    }
}

static void put_copy(kv_group *group, kv_pool *pool, size_t slot, kv_page *copy) {
    kv_page *shared = group->pages[PAGE_CODED][slot];
    memcpy(copy->data, shared->data, group->page_bytes[PAGE_CODED]);
    group_put(group, PAGE_CODED, slot, copy);
    kv_pool_return(pool, shared);
}

/* Replaces the slot's page and keeps its first `fill` tokens. */
static void put_part(kv_group *group, kv_pool *pool, size_t slot, kv_page *part, int fill) {
    kv_page *old = group->pages[PAGE_EXACT][slot];
    if (old) part_copy(group, part, old, fill);
    group_put(group, PAGE_EXACT, slot, part);
    if (old) kv_pool_return(pool, old);
}

void group_apply(kv_group *group, kv_pool *pool, int64_t n_tokens, int64_t n_total, int64_t n_quantized) {
    if (group->spec.kind == KV_STATE) return; /* the next state stays on the stack until commit */
    int64_t end = ceil_div(n_total, group->page_tokens), begin = group_step_first(group, n_tokens);
    while ((int64_t)group->n_slots < group_slot(group, end)) group->n_quantized[group->n_slots++] = 0;
    for (int64_t page = end; page-- > begin;) {
        slot_need need = need_of(group, page, n_tokens, n_total, n_quantized);
        size_t slot = (size_t)group_slot(group, page);
        page_pile *exact = &group->taken[PAGE_EXACT], *coded = &group->taken[PAGE_CODED];
        if (exact->n > 0 && exact->pages[exact->n - 1]->number == page)
            put_part(group, pool, slot, pile_pop(exact), (int)max_i64(n_tokens - page * group->page_tokens, 0));
        /* A page that was shared when it was counted may no longer be: then its copy is not needed. */
        if (need.coded) group_put(group, PAGE_CODED, slot, pile_pop(coded));
        if (need.copy_coded) put_copy(group, pool, slot, pile_pop(coded));
    }
    page_pile *heads = &group->taken[PAGE_HEAD];
    if (heads->n > 0) {
        kv_page *own = pile_pop(heads);
        if (group->head) {
            memcpy(own->data, group->head->data, group->page_bytes[PAGE_HEAD]);
            kv_pool_return(pool, group->head);
        }
        group->head = own;
    }
    group_return(group, pool);
}

/* Returns the page to the reserve, unless that has reached its capacity. */
static void drop_page(kv_group *group, kv_pool *pool, page_kind kind, size_t slot) {
    kv_page *page = group->pages[kind][slot];
    if (!page) return;
    group_put(group, kind, slot, NULL);
    page_pile *reserved = &group->reserved[kind];
    bool is_wanted = reserved->n + group->n_held[kind] < reserved->capacity;
    if (is_wanted && !page_is_shared(page) && !page->region && !page->tokens) {
        reserved->pages[reserved->n++] = page;
    } else {
        kv_pool_return(pool, page);
    }
}

static void drop_slot(kv_group *group, kv_pool *pool, size_t slot) {
    drop_page(group, pool, PAGE_EXACT, slot);
    drop_page(group, pool, PAGE_CODED, slot);
}

/* Drops the parts after the last token of a page. */
static void leave_parts(kv_group *group, kv_pool *pool, size_t slot, int fill) {
    kv_page *page = group->pages[PAGE_EXACT][slot];
    while (page && page->base && page->split >= fill) {
        kv_page *base = page->base;
        kv_page_share(base);
        group_put(group, PAGE_EXACT, slot, base);
        kv_pool_return(pool, page);
        page = base;
    }
}

void group_tidy(kv_group *group, kv_pool *pool, int64_t n_tokens) {
    if (group->spec.kind == KV_STATE) {
        state_tidy(group, pool, n_tokens);
        return;
    }
    const kv_spec *spec = &group->spec;
    int64_t end = ceil_div(n_tokens, group->page_tokens);
    while (group->n_slots > 0 && group->first_page + (int64_t)group->n_slots > end)
        drop_slot(group, pool, --group->n_slots);
    if (group->n_slots == 0) group->first_page = n_tokens == 0 ? 0 : end;
    int64_t needed = visible_first(n_tokens, spec->window) / group->page_tokens;
    size_t n_evicted = 0;
    while (n_evicted < group->n_slots && group->first_page + (int64_t)n_evicted < needed)
        drop_slot(group, pool, n_evicted++);
    if (n_evicted > 0) {
        size_t n = group->n_slots - n_evicted;
        for (int kind = 0; kind < 2; kind++) {
            memmove(group->pages[kind], group->pages[kind] + n_evicted, n * sizeof *group->pages[kind]);
            memmove(group->addresses[kind], group->addresses[kind] + n_evicted, n * sizeof *group->addresses[kind]);
        }
        memmove(group->n_quantized, group->n_quantized + n_evicted, n * sizeof *group->n_quantized);
        /* Slots beyond the table are empty. */
        for (int kind = 0; kind < 2; kind++) {
            memset(group->pages[kind] + n, 0, n_evicted * sizeof *group->pages[kind]);
            memset(group->addresses[kind] + n, 0, n_evicted * sizeof *group->addresses[kind]);
        }
        group->n_slots = n;
        group->first_page += (int64_t)n_evicted;
    }
    for (size_t i = 0; i < group->n_slots; i++) {
        int fill = page_fill(group, group->first_page + (int64_t)i, n_tokens);
        if (group->n_quantized[i] > fill) group->n_quantized[i] = fill;
        if (group->n_quantized[i] == fill) drop_page(group, pool, PAGE_EXACT, i);
        if (group->n_quantized[i] == 0) drop_page(group, pool, PAGE_CODED, i);
        leave_parts(group, pool, i, fill);
    }
    if (n_tokens == 0 && group->head) {
        kv_pool_return(pool, group->head);
        group->head = NULL;
    }
}

/* ---- reserving everything ---- */

/* The most pages of each kind that a sequence of n tokens holds at once. */
void group_most_pages(const kv_group *group, int64_t n, size_t most[2]) {
    const kv_spec *spec = &group->spec;
    int64_t page = group->page_tokens, all = ceil_div(n, page), held = all;
    if (spec->window) held = min_i64(all, ceil_div(spec->window, page) + 1);
    most[PAGE_EXACT] = (size_t)held;
    most[PAGE_CODED] = 0;
    if (!group->is_coded) return;
    most[PAGE_CODED] = (size_t)held;
    int64_t tail = spec->flush ? held : ceil_div(spec->residual, page) + 2;
    most[PAGE_EXACT] = (size_t)min_i64(held, tail);
}

mn_status group_reserve_all(kv_group *group, kv_pool *pool, const kv_options *options) {
    int64_t n = group_reserve(group, options);
    if (!n || group->spec.kind == KV_STATE) return MN_OK;
    size_t most[2];
    group_most_pages(group, n, most);
    MN_TRY(group_grow(group, most[PAGE_EXACT] > most[PAGE_CODED] ? most[PAGE_EXACT] : most[PAGE_CODED]));
    for (int kind = 0; kind < 2; kind++) {
        page_pile *pile = &group->reserved[kind];
        if (most[kind] == 0) continue;
        if (!pile->pages) pile->pages = mem_alloc(most[kind], sizeof *pile->pages);
        if (!pile->pages) return MN_E_NOMEM;
        pile->capacity = most[kind];
        while (pile->n + group->n_held[kind] < most[kind]) {
            MN_TRY(kv_pool_take(&pile->pages[pile->n], pool, group->page_bytes[kind]));
            pile->n++;
        }
        while (pile->n > 0 && pile->n + group->n_held[kind] > most[kind]) kv_pool_return(pool, pile_pop(pile));
    }
    return MN_OK;
}

/* ---- forks ---- */

/* A private copy for the fork, a whole page, from its reserve when it has one. */
static mn_status copy_into_fork(kv_page **out, kv_group *fork, kv_pool *pool, page_kind kind, kv_page *page) {
    page_pile *reserved = &fork->reserved[kind];
    kv_page *copy;
    if (reserved->n == 0) {
        MN_TRY(kv_pool_take(&copy, pool, fork->page_bytes[kind]));
    } else {
        copy = pile_pop(reserved);
    }
    mn_status status = MN_OK;
    if (page->tokens) {
        part_copy(fork, copy, page, page->split + page->tokens);
    } else {
        status = kv_pool_copy(pool, page, 0, page->bytes, copy->data);
    }
    if (status != MN_OK) {
        kv_pool_return(pool, copy);
        return status;
    }
    *out = copy;
    return MN_OK;
}

/* A fork's page: shared, unless the cache preallocates and this page will be written again. */
static mn_status fork_page(kv_group *fork, const kv_group *group, kv_pool *pool, page_kind kind, size_t slot,
                           bool copies) {
    kv_page *page = group->pages[kind][slot];
    if (!page) return MN_OK;
    if (copies) {
        MN_TRY(copy_into_fork(&page, fork, pool, kind, page));
    } else {
        kv_page_share(page);
    }
    group_put(fork, kind, slot, page);
    return MN_OK;
}

static mn_status fork_head(kv_group *fork, const kv_group *group, kv_pool *pool, bool copies) {
    if (!group->head) return MN_OK;
    if (copies) return copy_page(&fork->head, pool, group->head);
    kv_page_share(group->head);
    fork->head = group->head;
    return MN_OK;
}

mn_status group_refork(kv_group *fork, const kv_group *group, kv_pool *pool, int64_t n_tokens,
                       const kv_options *options) {
    bool has_reserve = group_reserve(group, options) > 0;
    if (group->spec.write_once) n_tokens = group->n_filled;
    fork->first_page = group->first_page;
    fork->flushes = group->flushes;
    MN_TRY(group_grow(fork, group->n_slots > 0 ? group->n_slots : 1));
    for (size_t i = 0; i < group->n_slots; i++) {
        fork->n_slots = i + 1;
        fork->n_quantized[i] = group->n_quantized[i];
        bool full = (group->first_page + (int64_t)i + 1) * group->page_tokens <= n_tokens;
        MN_TRY(fork_page(fork, group, pool, PAGE_EXACT, i, has_reserve && !full));
        MN_TRY(fork_page(fork, group, pool, PAGE_CODED, i, has_reserve && !full));
    }
    MN_TRY(fork_head(fork, group, pool, has_reserve && n_tokens < group->head_tokens));
    return group_reserve_all(fork, pool, options);
}

mn_status group_fork(kv_group *fork, const kv_group *group, kv_pool *pool, int64_t n_tokens,
                     const kv_options *options) {
    *fork = *group;
    for (int kind = 0; kind < 2; kind++) {
        fork->pages[kind] = NULL;
        fork->addresses[kind] = NULL;
        fork->n_held[kind] = 0;
        fork->reserved[kind] = (page_pile){0};
    }
    memset(fork->taken, 0, sizeof fork->taken);
    fork->n_quantized = NULL;
    fork->head = NULL;
    fork->n_slots = fork->capacity = 0;
    fork->states = NULL;
    fork->n_states = 0;
    if (group->spec.kind == KV_STATE) return state_fork(fork, group);
    return group_refork(fork, group, pool, n_tokens, options);
}

/* ---- going back ---- */

bool group_reaches(const kv_group *group, int64_t n_keep) {
    return group_reachable(group, n_keep) == n_keep;
}

int64_t group_reachable(const kv_group *group, int64_t n_keep) {
    if (group->spec.write_once || n_keep == 0) return n_keep;
    if (group->spec.kind == KV_STATE) return state_reachable(group, n_keep);
    return group->first_page * group->page_tokens <= visible_first(n_keep, group->spec.window) ? n_keep : 0;
}

/* Tokens before this position may be quantized. */
static int64_t quantized_end(const kv_group *group) {
    size_t slot = group->n_slots;
    while (slot > 0 && group->n_quantized[slot - 1] == 0) slot--;
    return slot ? (group->first_page + (int64_t)slot - 1) * group->page_tokens + group->n_quantized[slot - 1] : 0;
}

int64_t group_shareable(const kv_group *group, int64_t n_keep) {
    int64_t n = group_reachable(group, n_keep);
    if (n == 0 || !group->is_coded) return n;
    if (group->spec.flush) return 0; /* codes depend on how tokens were divided into calls */
    return quantized_end(group) <= group_quantize_target(group, n, true) ? n : 0;
}

size_t group_bytes(const kv_group *group) {
    if (group->spec.kind == KV_STATE) {
        return ((size_t)group->n_states + group->taken[PAGE_EXACT].n) * group->page_bytes[PAGE_EXACT];
    }
    size_t n =
        (group->head ? group->page_bytes[PAGE_HEAD] : 0) + group->n_held[PAGE_CODED] * group->page_bytes[PAGE_CODED];
    for (int kind = 0; kind < 2; kind++) n += group->reserved[kind].n * group->page_bytes[kind];
    for (size_t slot = 0; slot < group->n_slots; slot++) n += page_chain_bytes(group->pages[PAGE_EXACT][slot]);
    return n;
}

static size_t meet(kv_page *page, uint32_t number) {
    size_t n = 0;
    for (; page && atomic_exchange_explicit(&page->met, number, memory_order_relaxed) != number; page = page->base)
        n += page->data && !page->mapping ? page->bytes : 0;
    return n;
}

static size_t meet_pile(const page_pile *pile, uint32_t number) {
    size_t n = 0;
    for (size_t i = 0; i < pile->n; i++) n += meet(pile->pages[i], number);
    return n;
}

size_t group_unmet_bytes(const kv_group *group, uint32_t number) {
    size_t n = meet(group->head, number);
    for (int kind = 0; kind < 2; kind++) {
        n += meet_pile(&group->reserved[kind], number);
        for (size_t slot = 0; slot < group->n_slots; slot++) n += meet(group->pages[kind][slot], number);
    }
    for (int kind = 0; kind < N_PAGE_KINDS; kind++) n += meet_pile(&group->taken[kind], number);
    for (int i = 0; i < group->n_states; i++) n += meet(group->states[i].page, number);
    return n;
}

/* Of a page and those that it continues, up to the first one that others hold, too. */
static size_t unique(const kv_page *page) {
    size_t n = 0;
    for (; page && atomic_load_explicit(&page->references, memory_order_acquire) == 1; page = page->base)
        n += page->data && !page->mapping ? page->bytes : 0;
    return n;
}

size_t group_unique_bytes(const kv_group *group) {
    size_t n = unique(group->head);
    for (int kind = 0; kind < 2; kind++) {
        for (size_t i = 0; i < group->reserved[kind].n; i++) n += unique(group->reserved[kind].pages[i]);
        for (size_t slot = 0; slot < group->n_slots; slot++) n += unique(group->pages[kind][slot]);
    }
    for (int i = 0; i < group->n_states; i++) n += unique(group->states[i].page);
    return n;
}
