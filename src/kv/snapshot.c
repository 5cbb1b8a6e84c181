/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/snapshot.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "kv/stage.h"

enum { GROUP_NUMBERS = 4, NAME_BYTES = 64 };

struct kv_snapshot {
    archive_entry *entries; /* [n]; names and copies are owned, see below */
    size_t n, capacity;
    char (*names)[NAME_BYTES]; /* [capacity] */
    void **copies;             /* [n_copies] numbers and offloaded pages */
    size_t n_copies, copy_capacity;
};

static const char *const kind_names[] = {"exact", "coded"};

/* ---- saving ---- */

static size_t count_entries(const kv_cache *cache) {
    size_t n = 1;
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        n += 3 + group->n_held[0] + group->n_held[1] + (size_t)group->n_states;
    }
    return n;
}

static void *add_copy(kv_snapshot *s, size_t n_bytes) {
    if (mem_grow(&s->copies, &s->copy_capacity, s->n_copies + 1, sizeof *s->copies) != MN_OK) return NULL;
    void *copy = mem_alloc_raw(n_bytes, 1);
    if (copy) s->copies[s->n_copies++] = copy;
    return copy;
}

static archive_entry *add_entry(kv_snapshot *s, dtype type, int64_t n, const void *data, size_t n_bytes,
                                bool compress) {
    archive_entry *e = &s->entries[s->n];
    *e = (archive_entry){.name = s->names[s->n],
                         .type = type,
                         .n_dims = 1,
                         .shape = {n},
                         .data = data,
                         .n_bytes = n_bytes,
                         .compress = compress};
    s->n++;
    return e;
}

/* The caller has printed the name into names[s->n]. */
static mn_status add_page(kv_snapshot *s, const kv_cache *cache, const kv_page *page, bool compress) {
    const void *data = page->data;
    if (page->region) {
        void *copy = add_copy(s, page->bytes);
        if (!copy) return MN_E_NOMEM;
        MN_TRY(kv_pool_copy(cache->pool, page, 0, page->bytes, copy));
        data = copy;
    }
    add_entry(s, DTYPE_U8, (int64_t)page->bytes, data, page->bytes, compress);
    return MN_OK;
}

/* An exact page with n_tokens that is in parts or not full: saved as a whole one, with zeros after its tokens. */
static mn_status add_open(kv_snapshot *s, const kv_group *group, kv_page *page, int n_tokens, bool compress) {
    size_t n = group->page_bytes[PAGE_EXACT];
    char *copy = add_copy(s, n);
    if (!copy) return MN_E_NOMEM;
    for (int i = 0; i < group->n_members; i++) {
        page_whole_entry(group, page, n_tokens, i, copy + (size_t)i * group->entry_bytes[PAGE_EXACT]);
    }
    add_entry(s, DTYPE_U8, (int64_t)n, copy, n, compress);
    return MN_OK;
}

/* The same for an offloaded page. */
static mn_status add_open_offloaded(kv_snapshot *s, const kv_cache *cache, const kv_group *group, const kv_page *page,
                                    int n_tokens, bool compress) {
    kv_page resident = {.data = mem_alloc_raw(page->bytes, 1)};
    mn_status status = resident.data ? kv_pool_copy(cache->pool, page, 0, page->bytes, resident.data) : MN_E_NOMEM;
    if (status == MN_OK) status = add_open(s, group, &resident, n_tokens, compress);
    mem_free(resident.data);
    return status;
}

static mn_status add_slot(kv_snapshot *s, const kv_cache *cache, const kv_group *group, page_kind kind, size_t slot,
                          bool compress) {
    kv_page *page = group->pages[kind][slot];
    int64_t held = group_steps(group) ? cache->n_tokens : group->n_filled,
            fill = min_i64(held - (group->first_page + (int64_t)slot) * group->page_tokens, group->page_tokens);
    if (kind == PAGE_CODED || (fill == group->page_tokens && !page->tokens)) return add_page(s, cache, page, compress);
    if (page->region) return add_open_offloaded(s, cache, group, page, (int)fill, compress);
    return add_open(s, group, page, (int)fill, compress);
}

static mn_status add_group(kv_snapshot *s, const kv_cache *cache, int g, bool compress) {
    const kv_group *group = &cache->groups[g];
    if (group->n_slots > 0) {
        snprintf(s->names[s->n], NAME_BYTES, "group.%d.quantized", g);
        add_entry(s, DTYPE_I32, (int64_t)group->n_slots, group->n_quantized,
                  group->n_slots * sizeof *group->n_quantized, false);
    }
    for (int kind = 0; kind < 2; kind++) {
        for (size_t slot = 0; slot < group->n_slots; slot++) {
            if (!group->pages[kind][slot]) continue;
            snprintf(s->names[s->n], NAME_BYTES, "group.%d.%s.%lld", g, kind_names[kind],
                     (long long)(group->first_page + (int64_t)slot));
            MN_TRY(add_slot(s, cache, group, (page_kind)kind, slot, compress));
        }
    }
    if (group->head) {
        snprintf(s->names[s->n], NAME_BYTES, "group.%d.head", g);
        MN_TRY(add_page(s, cache, group->head, compress));
    }
    if (group->n_states == 0) return MN_OK;
    int64_t *positions = add_copy(s, (size_t)group->n_states * sizeof *positions);
    if (!positions) return MN_E_NOMEM;
    for (int i = 0; i < group->n_states; i++) positions[i] = group->states[i].position;
    snprintf(s->names[s->n], NAME_BYTES, "group.%d.states", g);
    add_entry(s, DTYPE_I64, group->n_states, positions, (size_t)group->n_states * sizeof *positions, false);
    for (int i = 0; i < group->n_states; i++) {
        snprintf(s->names[s->n], NAME_BYTES, "group.%d.state.%d", g, i);
        MN_TRY(add_page(s, cache, group->states[i].page, compress));
    }
    return MN_OK;
}

static mn_status collect(kv_snapshot *s, const kv_cache *cache, bool compress) {
    size_t n = count_entries(cache);
    MN_TRY(mem_grow(&s->entries, &s->capacity, n, sizeof *s->entries));
    s->names = mem_alloc(n, sizeof *s->names);
    size_t n_bytes = (size_t)cache->n_groups * GROUP_NUMBERS * sizeof(int64_t);
    int64_t *numbers = s->names ? add_copy(s, n_bytes) : NULL;
    if (!numbers) return MN_E_NOMEM;
    for (int g = 0; g < cache->n_groups; g++) {
        const kv_group *group = &cache->groups[g];
        const int64_t of_group[GROUP_NUMBERS] = {group->first_page, (int64_t)group->n_slots, group->n_filled,
                                                 group->n_states};
        memcpy(numbers + g * GROUP_NUMBERS, of_group, sizeof of_group);
    }
    snprintf(s->names[0], NAME_BYTES, "groups");
    archive_entry *e = add_entry(s, DTYPE_I64, cache->n_groups, numbers, n_bytes, false);
    e->n_dims = 2;
    e->shape[1] = GROUP_NUMBERS;
    for (int g = 0; g < cache->n_groups; g++) MN_TRY(add_group(s, cache, g, compress));
    return MN_OK;
}

mn_status kv_snapshot_open(kv_snapshot **out, const kv_cache *cache, bool compress) {
    *out = NULL;
    kv_snapshot *s = mem_alloc(1, sizeof *s);
    if (!s) return MN_E_NOMEM;
    mn_status status = collect(s, cache, compress);
    if (status == MN_OK) {
        *out = s;
    } else {
        kv_snapshot_close(&s);
    }
    return status;
}

void kv_snapshot_close(kv_snapshot **snapshot) {
    kv_snapshot *s = *snapshot;
    if (!s) return;
    for (size_t i = 0; i < s->n_copies; i++) mem_free(s->copies[i]);
    mem_free(s->copies);
    mem_free(s->names);
    mem_free(s->entries);
    mem_free(s);
    *snapshot = NULL;
}

const archive_entry *kv_snapshot_entries(const kv_snapshot *snapshot, size_t *n) {
    *n = snapshot->n;
    return snapshot->entries;
}

/* ---- restoring ---- */

typedef struct restore {
    kv_cache *cache;
    kv_mapping *mapping; /* owns the archive */
    const archive *saved;
    const kv_options *options;
} restore;

/* Verified bytes of an entry, which must have n_bytes, in the mapping or in *buffer (owned by the caller when not
 * NULL). */
static mn_status entry_bytes(const restore *r, const char *name, dtype type, size_t n_bytes, const archive_view **view,
                             void **buffer, const uint8_t **data) {
    *buffer = NULL;
    *view = archive_find(r->saved, name);
    if (!*view) MN_FAIL(MN_E_REFUSED, "the saved cache has no entry '%s'", name);
    if ((*view)->type != type || (*view)->n_bytes != n_bytes) {
        MN_FAIL(MN_E_REFUSED, "entry '%s' of the saved cache has %zu bytes, this model and strategy need %zu", name,
                (*view)->n_bytes, n_bytes);
    }
    if ((*view)->compressed) {
        *buffer = mem_alloc_raw(n_bytes, 1);
        if (!*buffer) return MN_E_NOMEM;
    }
    mn_status status = archive_bytes(r->saved, *view, *buffer, data);
    if (status != MN_OK) {
        mem_free(*buffer);
        *buffer = NULL;
    }
    return status;
}

/* Copies a verified entry of exactly n_bytes. */
static mn_status entry_copy(const restore *r, const char *name, dtype type, size_t n_bytes, void *to) {
    const archive_view *view;
    const uint8_t *data;
    void *buffer;
    MN_TRY(entry_bytes(r, name, type, n_bytes, &view, &buffer, &data));
    memcpy(to, data, n_bytes);
    mem_free(buffer);
    return MN_OK;
}

/* A page to be filled: from the group's reserve, or else from the pool. */
static mn_status take_page(const restore *r, kv_group *group, page_kind kind, kv_page **out) {
    page_pile *reserved = kind == PAGE_HEAD ? NULL : &group->reserved[kind];
    if (!reserved || reserved->n == 0) return kv_pool_take(out, r->cache->pool, group->page_bytes[kind]);
    *out = reserved->pages[--reserved->n];
    return MN_OK;
}

/* A page that is not full, with room for its tokens. */
static mn_status load_open(const restore *r, const char *name, const kv_group *group, int n_tokens, kv_page **out) {
    const archive_view *view;
    const uint8_t *data;
    void *buffer;
    MN_TRY(entry_bytes(r, name, DTYPE_U8, group->page_bytes[PAGE_EXACT], &view, &buffer, &data));
    mn_status status = group_take_open(group, r->cache->pool, n_tokens, out);
    kv_page saved = {.data = (char *)(uintptr_t)data};
    if (status == MN_OK) part_copy(group, *out, &saved, n_tokens);
    mem_free(buffer);
    return status;
}

/* The page of that name with n_tokens: mapped when it will not be written, else a copy. A cache that preallocates
 * always gets copies. */
static mn_status load_page(const restore *r, const char *name, kv_group *group, page_kind kind, bool is_full,
                           int n_tokens, kv_page **out) {
    const archive_view *view = archive_find(r->saved, name);
    size_t n_bytes = group->page_bytes[kind];
    bool may_map = is_full && !r->cache->options.reserve;
    *out = NULL;
    if (may_map && view && !view->compressed && view->type == DTYPE_U8 && view->n_bytes == n_bytes) {
        const uint8_t *data;
        MN_TRY(archive_bytes(r->saved, view, NULL, &data));
        return kv_pool_map(out, r->mapping, data, n_bytes);
    }
    if (kind == PAGE_EXACT && n_tokens < group->page_tokens && !group_reserve(group, r->options))
        return load_open(r, name, group, n_tokens, out);
    kv_page *page = NULL;
    MN_TRY(take_page(r, group, kind, &page));
    mn_status status = entry_copy(r, name, DTYPE_U8, n_bytes, page->data);
    if (status != MN_OK) {
        kv_pool_return(r->cache->pool, page);
        return status;
    }
    *out = page;
    return MN_OK;
}

static mn_status load_states(const restore *r, int g, int64_t n_states) {
    kv_group *group = &r->cache->groups[g];
    char name[NAME_BYTES];
    int64_t positions[64];
    if (n_states < 0 || n_states > group->spec.checkpoints + 1 || n_states > 64)
        MN_FAIL(MN_E_REFUSED, "the saved cache has %lld states, this strategy keeps %d", (long long)n_states,
                group->spec.checkpoints + 1);
    if (n_states == 0) return MN_OK;
    snprintf(name, sizeof name, "group.%d.states", g);
    MN_TRY(entry_copy(r, name, DTYPE_I64, (size_t)n_states * sizeof *positions, positions));
    for (int i = 0; i < n_states; i++) {
        snprintf(name, sizeof name, "group.%d.state.%d", g, i);
        MN_TRY(load_page(r, name, group, PAGE_EXACT, true, 1, &group->states[i].page));
        group->states[i].position = positions[i];
        group->n_states = i + 1;
    }
    return MN_OK;
}

static mn_status load_slots(const restore *r, int g, int64_t n_tokens) {
    kv_group *group = &r->cache->groups[g];
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "group.%d.quantized", g);
    if (group->n_slots > 0)
        MN_TRY(entry_copy(r, name, DTYPE_I32, group->n_slots * sizeof *group->n_quantized, group->n_quantized));
    for (size_t slot = 0; slot < group->n_slots; slot++) {
        int64_t page = group->first_page + (int64_t)slot, begin = page * group->page_tokens;
        int64_t fill = min_i64(group->page_tokens, n_tokens - begin);
        const bool wanted[2] = {group->n_quantized[slot]<fill, group->n_quantized[slot]> 0};
        for (int kind = 0; kind < 2; kind++) {
            if (!wanted[kind]) continue;
            if (kind == PAGE_CODED && !group->is_coded)
                MN_FAIL(MN_E_REFUSED, "the saved cache has quantized tokens where this strategy quantizes none");
            kv_page *loaded = NULL;
            snprintf(name, sizeof name, "group.%d.%s.%lld", g, kind_names[kind], (long long)page);
            MN_TRY(load_page(r, name, group, (page_kind)kind, fill == group->page_tokens, (int)fill, &loaded));
            group_put(group, (page_kind)kind, slot, loaded);
        }
    }
    if (n_tokens == 0 || group->head_tokens == 0) return MN_OK;
    snprintf(name, sizeof name, "group.%d.head", g);
    return load_page(r, name, group, PAGE_HEAD, n_tokens >= group->head_tokens, group->head_tokens, &group->head);
}

static mn_status load_group(const restore *r, int g, const int64_t numbers[GROUP_NUMBERS], int64_t n_tokens) {
    kv_group *group = &r->cache->groups[g];
    int64_t first = numbers[0], n_slots = numbers[1];
    if (group->spec.kind == KV_STATE) return load_states(r, g, numbers[3]);
    if (group->spec.write_once) n_tokens = group->n_filled = numbers[2];
    bool is_sane = n_tokens >= 0 && n_tokens <= (int64_t)1 << 40;
    int64_t end = is_sane ? ceil_div(n_tokens, group->page_tokens) : -1;
    if (first < 0 || first > end || n_slots != end - first || (size_t)n_slots > archive_entries(r->saved)) {
        MN_FAIL(MN_E_REFUSED, "the saved cache has %lld pages from page %lld on for %lld tokens", (long long)n_slots,
                (long long)first, (long long)n_tokens);
    }
    MN_TRY(group_grow(group, (size_t)n_slots));
    group->first_page = first;
    group->n_slots = (size_t)n_slots;
    return load_slots(r, g, n_tokens);
}

static mn_status load_all(const restore *r, const kv_options *options, int64_t n_tokens) {
    kv_cache *cache = r->cache;
    int64_t numbers[GROUP_NUMBERS];
    size_t n_bytes = (size_t)cache->n_groups * sizeof numbers;
    const archive_view *view;
    const uint8_t *data;
    void *buffer;
    MN_TRY(entry_bytes(r, "groups", DTYPE_I64, n_bytes, &view, &buffer, &data));
    mn_status status = MN_OK;
    cache->n_tokens = n_tokens;
    for (int g = 0; status == MN_OK && g < cache->n_groups; g++) {
        memcpy(numbers, data + (size_t)g * sizeof numbers, sizeof numbers);
        status = load_group(r, g, numbers, n_tokens);
    }
    mem_free(buffer);
    cache->options = *options;
    for (int g = 0; status == MN_OK && g < cache->n_groups; g++) {
        status = group_reserve_all(&cache->groups[g], cache->pool, options);
    }
    if (status != MN_OK) return status;
    cache->peak_bytes = kv_bytes(cache);
    if (kv_check(cache) == MN_OK) return MN_OK;
    char reason[160];
    snprintf(reason, sizeof reason, "%s", mn_last_error());
    MN_FAIL(MN_E_REFUSED, "the saved cache contradicts itself: %s", reason);
}

static void close_archive(void *owner) {
    archive *a = owner;
    archive_close(&a);
}

mn_status kv_restore(kv_cache **out, kv_pool *pool, const kv_spec *specs, int n_entries, const kv_options *options,
                     archive *saved, int64_t n_tokens) {
    *out = NULL;
    kv_mapping *mapping = mem_alloc(1, sizeof *mapping);
    if (!mapping) {
        archive_close(&saved);
        return MN_E_NOMEM;
    }
    mapping->owner = saved;
    mapping->close = close_archive;
    atomic_store(&mapping->references, 1);
    restore r = {.mapping = mapping, .saved = saved, .options = options};
    kv_options growing = *options; /* reserved pages are taken once the loaded pages are counted */
    growing.reserve = 0;
    mn_status status = kv_open(&r.cache, pool, specs, n_entries, &growing);
    if (status == MN_OK) status = load_all(&r, options, n_tokens);
    if (status == MN_OK) {
        *out = r.cache;
    } else {
        kv_close(&r.cache);
    }
    kv_mapping_drop(mapping);
    return status;
}
