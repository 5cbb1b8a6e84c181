/* Exact pages in parts. A new page has room for a few tokens, doubled whenever it is full; a shared page is not
 * written: it keeps its slots, and each cache adds a private part for later ones. So rows that differ in their last
 * tokens share the others. A full page is whole or consists of shared parts; quantizing, offloading and saving read it
 * part by part.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/num.h"
#include "kv/group.h"

/* The smallest part. Preallocated pages are whole, and small pages are not divided. */
static int least_tokens(const kv_group *group) {
    bool divides = group->page_tokens % ATTEND_PART_TOKENS == 0 && group->reserved[PAGE_EXACT].capacity == 0;
    return divides ? ATTEND_PART_TOKENS : group->page_tokens;
}

static int part_room(const kv_group *group, int split, int end) {
    int room = least_tokens(group), most = group->page_tokens - split;
    while (room < end - split) room *= 2;
    return room < most ? room : most;
}

int page_room(const kv_group *group, const kv_page *page) {
    return page->tokens ? page->tokens : group->page_tokens;
}

size_t part_bytes(const kv_group *group, int tokens) {
    return group->page_bytes[PAGE_EXACT] / (size_t)group->page_tokens * (size_t)tokens;
}

size_t open_page_bytes(const kv_group *group, int n_tokens) {
    int room = part_room(group, 0, n_tokens);
    return room == group->page_tokens ? group->page_bytes[PAGE_EXACT] : part_bytes(group, room);
}

mn_status group_take_open(const kv_group *group, kv_pool *pool, int n_tokens, kv_page **out) {
    int room = part_room(group, 0, n_tokens);
    if (room == group->page_tokens) return kv_pool_take(out, pool, group->page_bytes[PAGE_EXACT]);
    return kv_pool_take_part(out, pool, part_bytes(group, room), 0, room, NULL);
}

size_t page_chain_bytes(const kv_page *page) {
    size_t n = 0;
    for (; page; page = page->base) n += page->bytes;
    return n;
}

bool page_is_writable(const kv_group *group, const kv_page *page, int begin, int end) {
    return page && !page_is_shared(page) && page->data && begin >= page->split &&
           end <= page->split + page_room(group, page);
}

part_plan part_for(const kv_group *group, kv_page *page, int begin, int end) {
    part_plan plan = {.needed = !page_is_writable(group, page, begin, end)};
    if (!plan.needed) return plan;
    int least = least_tokens(group), kept = begin / least * least;
    kv_page *from = least < group->page_tokens ? page : NULL;
    while (from && from->split > begin) from = from->base;
    if (from) {
        bool grows = from == page && !page_is_shared(page);
        bool has_base = !grows && kept > from->split;
        plan.base = has_base ? from : from->base;
        plan.split = has_base ? kept : from->split;
    }
    plan.tokens = part_room(group, plan.split, end);
    if (plan.tokens == group->page_tokens) plan.tokens = 0;
    return plan;
}

/* The part of a page with a slot; *end: of the slots read from it. */
static kv_page *part_of(const kv_group *group, kv_page *page, int slot, int *end) {
    *end = page->split + page_room(group, page);
    for (; slot < page->split; page = page->base) *end = page->split;
    return page;
}

size_t part_offset(const kv_group *group, const kv_page *page, size_t offset) {
    return page->tokens ? offset / (size_t)group->page_tokens * (size_t)page->tokens : offset;
}

kv_place part_place(const kv_group *group, const kv_page *page) {
    const kv_place *whole = &group->place[PAGE_EXACT];
    return (kv_place){.k_offset = part_offset(group, page, whole->k_offset),
                      .k_head_bytes = part_offset(group, page, whole->k_head_bytes),
                      .v_offset = part_offset(group, page, whole->v_offset),
                      .v_head_bytes = part_offset(group, page, whole->v_head_bytes)};
}

/* The first byte of an entry. */
static char *part_entry(const kv_group *group, const kv_page *page, int member) {
    return page->data + part_offset(group, page, (size_t)member * group->entry_bytes[PAGE_EXACT]);
}

page_rows page_rows_at(const kv_group *group, kv_page *page, int slot) {
    int end;
    kv_page *part = part_of(group, page, slot, &end);
    return (page_rows){part, part->split, end, page_room(group, part)};
}

/* Rows of `room` words: columns [begin, begin + n) counted from the first of each side. */
static void copy_columns(char *to, int to_begin, int to_room, const char *from, int from_begin, int from_room,
                         int n_rows, int n) {
    enum { WORD = 4 };
    for (int row = 0; row < n_rows; row++) {
        memcpy(to + ((size_t)row * (size_t)to_room + (size_t)to_begin) * WORD,
               from + ((size_t)row * (size_t)from_room + (size_t)from_begin) * WORD, (size_t)n * WORD);
    }
}

/* Copies slots [begin, end) of one entry, from a page that may be in parts, to the entry's bytes `to` in a page with
 * `room` slots from `split` on. In both exact forms a key component is a word per slot, and a value is a word per slot
 * or two. */
static void copy_entry(const kv_group *group, char *to, int split, int room, const kv_place *place, int member,
                       kv_page *page, int begin, int end) {
    const kv_spec *spec = &group->spec;
    int together = spec->exact == KV_F32 ? 1 : 2;
    for (int slot = begin; slot < end;) {
        page_rows rows = page_rows_at(group, page, slot);
        kv_place of_part = part_place(group, rows.part);
        const char *from = part_entry(group, rows.part, member);
        int stop = end < rows.end ? end : rows.end, n = stop - slot;
        for (int h = 0; h < spec->n_heads; h++) {
            copy_columns(to + place->k_offset + (size_t)h * place->k_head_bytes, slot - split, room,
                         from + of_part.k_offset + (size_t)h * of_part.k_head_bytes, slot - rows.first, rows.room,
                         spec->k_dim / together, n);
            size_t row = (size_t)spec->v_dim;
            copy_columns(to + place->v_offset + (size_t)h * place->v_head_bytes +
                             (size_t)((slot - split) / together) * row * 4,
                         0, 0,
                         from + of_part.v_offset + (size_t)h * of_part.v_head_bytes +
                             (size_t)((slot - rows.first) / together) * row * 4,
                         0, 0, 1, (n + together - 1) / together * spec->v_dim);
        }
        slot = stop;
    }
}

void part_copy(const kv_group *group, kv_page *to, kv_page *from, int end) {
    kv_place place = part_place(group, to);
    for (int member = 0; member < group->n_members; member++) {
        copy_entry(group, part_entry(group, to, member), to->split, page_room(group, to), &place, member, from,
                   to->split, end);
    }
}

void page_whole_entry(const kv_group *group, kv_page *page, int n_tokens, int member, char *to) {
    memset(to, 0, group->entry_bytes[PAGE_EXACT]);
    copy_entry(group, to, 0, group->page_tokens, &group->place[PAGE_EXACT], member, page, 0, n_tokens);
}

int kv_parts(const kv_view *view, int64_t i, int head, attend_part *parts) {
    kv_page *page = view->pages[i];
    const kv_place *place = &view->exact_place;
    int n = 0, end = view->page_tokens;
    if (!page || !page->tokens) return 0;
    for (const kv_page *at = page; at; at = at->base) n++;
    for (int k = n; page; end = page->split, page = page->base) {
        size_t room = page->tokens ? (size_t)page->tokens : (size_t)view->page_tokens,
               tokens = (size_t)view->page_tokens;
        size_t k_offset = place->k_offset + (size_t)head * place->k_head_bytes,
               v_offset = place->v_offset + (size_t)head * place->v_head_bytes;
        parts[--k] = (attend_part){.keys = page->data + k_offset / tokens * room,
                                   .values = page->data + v_offset / tokens * room,
                                   .first = page->split,
                                   .end = (int)min_i64(end, page->split + (int64_t)room),
                                   .tokens = (int)room};
    }
    return n;
}
