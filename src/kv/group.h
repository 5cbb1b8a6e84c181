/* Internals of the cache: groups of entries and their page tables. kv.h is implemented in cache.c (the container and
 * its steps), group.c (one table), quantize_schedule.c (quantizing, reading back) and check.c.
 *
 * The table of a group covers pages first_page .. first_page + n_slots - 1 of the sequence. A slot has an exact page if
 * some of its tokens are not quantized and a quantized page if some are; group_tidy establishes that for the committed
 * tokens, so that returning the pages of an abandoned step and dropping pages outside the window are one function.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_GROUP_H
#define MN_KV_GROUP_H

#include <assert.h>

#include "kv/kv.h"

typedef enum page_kind { PAGE_EXACT, PAGE_CODED, PAGE_HEAD, N_PAGE_KINDS } page_kind;

/* In builds with assertions (debug, sanitizers): checks every invariant after each change of a cache. */
#define KV_ASSERT_VALID(cache) assert(kv_check(cache) == MN_OK)

/* A stack of pages that belong to a cache but to no slot: reserved ones, and those taken for a step. */
typedef struct page_pile {
    kv_page **pages;
    size_t n, capacity;
} page_pile;

typedef struct kv_group {
    kv_spec spec; /* of every member, except its calibration */
    bool is_coded;
    int page_tokens, head_tokens, head_page_tokens;
    int n_members;
    size_t entry_bytes[N_PAGE_KINDS]; /* of one member in a page */
    size_t page_bytes[N_PAGE_KINDS];  /* of all members */
    kv_place place[N_PAGE_KINDS];     /* inside an entry's bytes */
    /* The table: arrays of n_slots, all of the same capacity. */
    int64_t first_page;
    size_t n_slots, capacity;
    kv_page **pages[2];            /* [PAGE_EXACT, PAGE_CODED][slot], NULL: none */
    const char **addresses[2];     /* addresses of these pages, for kernels */
    int *n_quantized;              /* tokens of the page that are quantized, from its first on */
    size_t n_held[2];              /* pages in the table */
    kv_page *head;                 /* NULL: none yet */
    page_pile reserved[2];         /* kept for slots to come: options.reserve */
    page_pile taken[N_PAGE_KINDS]; /* while kv_reserve runs */
    size_t n_lent[N_PAGE_KINDS];   /* how many of them come from the reserve: the first */
    int64_t n_filled;              /* write_once: tokens; else unused */
    struct kv_checkpoint {
        int64_t position; /* tokens seen */
        kv_page *page;
    } * states; /* KV_STATE: [n_states] of at most checkpoints + 1, oldest first */
    int n_states;
    bool flushes; /* the current call quantizes at its end (spec.flush) */
} kv_group;

typedef struct kv_entry {
    int group, member;
    const kv_head_calibration *calibration; /* [n_heads] or NULL; borrowed */
    code_layout *key_codes, *value_codes;   /* [n_heads] or NULL */
} kv_entry;

/* What kv_commit found to quantize: tokens [first, first + n) of a page of one entry's keys or values, or of several
 * pages where a form is computed over all of them (hqq). */
typedef struct quantize_task {
    int entry;
    bool is_key;
    size_t slot;
    int64_t first;
    int n;
} quantize_task;

struct kv_cache {
    kv_pool *pool;
    kv_options options;
    kv_entry *entries; /* [n_entries] */
    kv_group *groups;  /* [n_groups] */
    int n_entries, n_groups;
    int64_t n_tokens; /* committed */
    int64_t n_step;   /* reserved beyond them; 0 between steps */
    size_t peak_bytes;
    bool call_ends;               /* including the current step */
    struct kv_stage_areas *stage; /* of offloaded entries; NULL: none */
    uint64_t n_sent;              /* kv_pool_sent when the current step was staged */
    mn_status fault;              /* an offloaded page could not be read in this step */
    char fault_text[256];
    quantize_task *tasks;    /* [n_tasks], allocated by kv_reserve */
    size_t quantize_scratch; /* scratch bytes that the largest of them needs */
    size_t n_tasks, task_capacity;
    size_t n_early, n_early_asked; /* the first n_early tasks of the current step are for its own later queries */
};

/* ---- one group ---- */

/* Fills sizes and layouts from the spec; MN_E_UNSUPPORTED. */
mn_status group_open(kv_group *group, const kv_spec *spec, const kv_options *options);
void group_close(kv_group *group, kv_pool *pool);
/* Takes the pages of options.reserve; on failure those taken so far stay (group_close returns them). */
mn_status group_reserve_all(kv_group *group, kv_pool *pool, const kv_options *options);

/* The most pages of each kind that a sequence of n tokens holds at once when they come one by one. */
void group_most_pages(const kv_group *group, int64_t n, size_t most[2]);

/* Takes the pages that a step from n_tokens to n_total needs, including those for quantizing up to position
 * n_quantized, into group->taken. On failure the caller returns them with group_return. */
mn_status group_take(kv_group *group, kv_pool *pool, int64_t n_tokens, int64_t n_total, int64_t n_quantized);
void group_return(kv_group *group, kv_pool *pool);
/* Pages that a step may change: from the first one that may be quantized or that the table does not have yet. */
int64_t group_step_first(const kv_group *group, int64_t n_tokens);
/* Puts the taken pages into their slots. */
void group_apply(kv_group *group, kv_pool *pool, int64_t n_tokens, int64_t n_total, int64_t n_quantized);
/* Keeps exactly the pages that n_tokens tokens need and drops those before the window of a query at
 * n_tokens. */
void group_tidy(kv_group *group, kv_pool *pool, int64_t n_tokens);
/* Makes `fork` a second table over the same pages. */
mn_status group_fork(kv_group *fork, const kv_group *group, kv_pool *pool, int64_t n_tokens, const kv_options *options);
/* The same for an empty table of pages with equal specs, whose reserve is used. */
mn_status group_refork(kv_group *fork, const kv_group *group, kv_pool *pool, int64_t n_tokens,
                       const kv_options *options);
size_t group_bytes(const kv_group *group);
/* Bytes of the group's own resident pages that no earlier call with this number met. */
size_t group_unmet_bytes(const kv_group *group, uint32_t number);
/* Of pages that nobody else holds. */
size_t group_unique_bytes(const kv_group *group);

/* Makes an offloaded page resident before it is written or read here. */
mn_status group_make_resident(kv_group *group, kv_pool *pool, page_kind kind, size_t slot);

/* Stores rows of one entry's head in a page; place and sizes of the job are filled in here. */
void group_store(const kernel_table *kernels, const kv_group *group, const kv_entry *entry, int head, page_kind kind,
                 kv_page *page, store_job job);
/* Whether n_keep tokens can be kept, and the largest possible length up to it. */
bool group_reaches(const kv_group *group, int64_t n_keep);
int64_t group_reachable(const kv_group *group, int64_t n_keep);
/* The same for a table that is then as if it had never held more. */
int64_t group_shareable(const kv_group *group, int64_t n_keep);

static inline bool group_steps(const kv_group *group) {
    return !group->spec.write_once;
}
/* Whether it is quantized page by page, at the same place for all queries of a unit. */
static inline bool group_quantizes_by_unit(const kv_group *group) {
    return group->is_coded && !group->spec.flush && group_steps(group);
}
/* Tokens for which a group preallocates pages; none for offloaded entries. */
static inline int64_t group_reserve(const kv_group *group, const kv_options *options) {
    return group->spec.is_offloaded ? 0 : options->reserve;
}
static inline int64_t group_slot(const kv_group *group, int64_t page) {
    return page - group->first_page;
}
/* Must not be written: shared, or mapped from a file. */
static inline bool page_is_shared(const kv_page *page) {
    return page->mapping || atomic_load_explicit(&page->references, memory_order_acquire) > 1;
}
/* Makes room for n slots; puts a page, or none, into a slot. */
mn_status group_grow(kv_group *group, size_t n_slots);
void group_put(kv_group *group, page_kind kind, size_t slot, kv_page *page);

/* ---- exact pages in parts ---- */

/* What a step that writes slots [begin, end) of a page needs: a page, or a part after the kept slots of the old one. */
typedef struct part_plan {
    bool needed;
    int split, tokens; /* as in kv_page */
    kv_page *base;
} part_plan;

/* page: the current one, or NULL. */
part_plan part_for(const kv_group *group, kv_page *page, int begin, int end);
bool page_is_writable(const kv_group *group, const kv_page *page, int begin, int end);
/* Fills a part, or a whole page, from its first slot on, with the slots up to `end` of a page that may be in parts. */
void part_copy(const kv_group *group, kv_page *to, kv_page *from, int end);

int page_room(const kv_group *group, const kv_page *page); /* slots of its own */
size_t part_bytes(const kv_group *group, int tokens);
size_t open_page_bytes(const kv_group *group, int n_tokens); /* of an unshared page with this many tokens */
mn_status group_take_open(const kv_group *group, kv_pool *pool, int n_tokens,
                          kv_page **out);     /* allocates such a page */
size_t page_chain_bytes(const kv_page *page); /* of all its parts */
/* An offset or a size of a whole page converted to that of a part; the offsets of an entry's streams in a part. */
size_t part_offset(const kv_group *group, const kv_page *page, size_t offset);
kv_place part_place(const kv_group *group, const kv_page *page);

/* The part with a slot: slots [first, end) of the page are read from it; it has room for `room`. */
typedef struct page_rows {
    const kv_page *part;
    int first, end, room;
} page_rows;

page_rows page_rows_at(const kv_group *group, kv_page *page, int slot);
/* One entry's bytes as in a whole page: its first n tokens, then zeros. */
void page_whole_entry(const kv_group *group, kv_page *page, int n_tokens, int member, char *to);

/* ---- quantizing ---- */

/* Position up to which a group is quantized when it holds n tokens. */
int64_t group_quantize_target(const kv_group *group, int64_t n, bool call_ends);
/* Tokens [*first, *end) of a page to be quantized when n tokens are held; false: none. The page may be beyond the
 * table. With `flush`, pages that are dropped at n are left out: whether they still exist depends on how the call was
 * divided into steps. */
bool group_quantize_range(const kv_group *group, int64_t page, int64_t n, int64_t target, int *first, int *end);
/* Room for the tasks of a step that ends at n_total, before its pages are in the tables. */
mn_status schedule_reserve(kv_cache *cache, bool steps, int64_t n_total);
/* Lists the tasks for tokens that later units of the step read quantized, once its pages are in the tables. */
void quantize_early(kv_cache *cache, int64_t n_total);

/* Bytes of scratch that kv_quantize needs for a task. */
size_t quantize_task_scratch(const kv_cache *cache, const quantize_task *task);

/* ---- recurrent states: groups of kind KV_STATE; what a group function is to pages ---- */

mn_status state_open(kv_group *group, const kv_spec *spec);
void state_commit(kv_group *group, kv_pool *pool,
                  int64_t n_tokens); /* the state that the step wrote becomes the newest */
void state_tidy(kv_group *group, kv_pool *pool, int64_t n_tokens); /* drops states after n_tokens */
void state_close(kv_group *group, kv_pool *pool);
int64_t state_reachable(const kv_group *group, int64_t n_keep);
mn_status state_fork(kv_group *fork, const kv_group *group);

#endif
