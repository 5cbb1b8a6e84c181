/* Inside of the cache: groups of entries and their page tables. What kv.h promises is kept in cache.c (the
 * container and its steps), group.c (one table), settle.c (sealing, reading back) and check.c.
 *
 * The table of a group covers pages first_page .. first_page + n_slots - 1 of the sequence. A slot holds its
 * exact page when some token of it is not sealed and its coded page when some is; group_tidy establishes that
 * for the tokens counted, so that "give back what a step took" and "forget what no one sees" are one
 * function.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_GROUP_H
#define MN_KV_GROUP_H

#include "kv/kv.h"

typedef enum page_kind { PAGE_EXACT, PAGE_CODED, PAGE_HEAD, N_PAGE_KINDS } page_kind;

/* A pile of pages that belong to a cache but to no slot: reserved ones, and those a step is about to use. */
typedef struct page_pile {
    kv_page **pages;
    size_t n, capacity;
} page_pile;

typedef struct kv_group {
    kv_spec spec; /* of every member, but for its bases */
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
    const char **bases[2];         /* first bytes of these pages, what kernels read */
    int *n_sealed;                 /* tokens of the page that are sealed, from its first on */
    size_t n_held[2];              /* pages in the table */
    kv_page *head;                 /* NULL: none yet */
    page_pile reserved[2];         /* kept when no slot uses them: options.reserve */
    page_pile taken[N_PAGE_KINDS]; /* while kv_reserve runs */
    size_t n_lent[N_PAGE_KINDS];   /* of them, the first ones come from the reserve */
    int64_t n_filled;              /* write_once: tokens; else unused */
    struct kv_checkpoint {
        int64_t position; /* tokens seen */
        kv_page *page;
    } * states; /* KV_STATE: [n_states] of at most checkpoints + 1, oldest first */
    int n_states;
    bool flushes; /* the call under way ends with sealing (spec.flush) */
} kv_group;

typedef struct kv_entry {
    int group, member;
    const kv_basis *bases;                /* [n_heads] or NULL; borrowed */
    code_layout *key_codes, *value_codes; /* [n_heads] or NULL */
} kv_entry;

/* What kv_commit found to seal: tokens [first, first + n) of a page (or, where a form is made of everything
 * sealed together, of several pages) of one entry's keys or values. */
typedef struct seal_task {
    int entry;
    bool is_key;
    size_t slot;
    int64_t first;
    int n;
} seal_task;

struct kv_cache {
    kv_pool *pool;
    kv_options options;
    kv_entry *entries; /* [n_entries] */
    kv_group *groups;  /* [n_groups] */
    int n_entries, n_groups;
    int64_t n_tokens; /* committed */
    int64_t n_step;   /* reserved beyond them; 0 between steps */
    size_t peak_bytes;
    bool call_ends;               /* with the step under way */
    struct kv_stage_areas *stage; /* of far entries; NULL: there are none */
    uint64_t n_sent;              /* kv_pool_sent when the step under way was staged */
    mn_status fault;              /* a far page that could not be read in this step */
    char fault_text[256];
    seal_task *tasks;    /* [n_tasks], made room for by kv_reserve */
    size_t seal_scratch; /* bytes that the largest of them needs */
    size_t n_tasks, task_capacity;
    size_t n_early,
        n_early_asked; /* the first n_early tasks of the step under way are for its own later queries */
};

/* ---- one group ---- */

/* Fills sizes and layouts from the spec; MN_E_UNSUPPORTED. */
mn_status group_open(kv_group *group, const kv_spec *spec, const kv_options *options);
void group_close(kv_group *group, kv_pool *pool);
/* Takes the pages that options.reserve asks for; what was taken stays on failure (group_close returns it). */
mn_status group_reserve_all(kv_group *group, kv_pool *pool, const kv_options *options);

/* Pages of each kind that a sequence of n tokens ever holds at once, when it comes token by token. */
void group_most_pages(const kv_group *group, int64_t n, size_t most[2]);

/* Takes everything that a step from n_tokens to n_total needs, sealing up to position n_sealed included, into
 * group->taken. On failure the caller gives it back with group_return. */
mn_status group_take(kv_group *group, kv_pool *pool, int64_t n_tokens, int64_t n_total, int64_t n_sealed);
void group_return(kv_group *group, kv_pool *pool);
/* Pages that a step may touch: from the first one that may still be sealed, or that the table does not have. */
int64_t group_step_first(const kv_group *group, int64_t n_tokens);
/* Puts what was taken in its place. */
void group_apply(kv_group *group, kv_pool *pool, int64_t n_tokens, int64_t n_total, int64_t n_sealed);
/* Leaves exactly the pages that n_tokens tokens need, earlier ones than a query at n_tokens - slack sees
 * forgotten. */
void group_tidy(kv_group *group, kv_pool *pool, int64_t n_tokens);
/* `fork` becomes a second table over the same pages. */
mn_status group_fork(kv_group *fork, const kv_group *group, kv_pool *pool, int64_t n_tokens,
                     const kv_options *options);
/* The same for a table of equal specs, of pages, that is empty; its reserve is used. */
mn_status group_refork(kv_group *fork, const kv_group *group, kv_pool *pool, int64_t n_tokens,
                       const kv_options *options);
size_t group_bytes(const kv_group *group);

/* A far page that will be written or read here is wanted near, with the bytes that it has. */
mn_status group_bring_near(kv_group *group, kv_pool *pool, page_kind kind, size_t slot);

/* Stores rows of one entry's head in a page; place and sizes of the job are filled in here. */
void group_store(const kernel_table *kernels, const kv_group *group, const kv_entry *entry, int head,
                 page_kind kind, kv_page *page, store_job job);
/* Whether n_keep tokens can be kept, and the largest length up to it that can. */
bool group_reaches(const kv_group *group, int64_t n_keep);
int64_t group_reachable(const kv_group *group, int64_t n_keep);

static inline bool group_steps(const kv_group *group) {
    return !group->spec.write_once;
}
/* Sealed page by page, for all queries of a unit alike. */
static inline bool group_seals_by_unit(const kv_group *group) {
    return group->is_coded && !group->spec.flush && group_steps(group);
}
/* Tokens that a group has pages for from the beginning. What is to rest far is not kept near. */
static inline int64_t group_reserve(const kv_group *group, const kv_options *options) {
    return group->spec.is_far ? 0 : options->reserve;
}
static inline int64_t group_slot(const kv_group *group, int64_t page) {
    return page - group->first_page;
}
/* Not to be written: others read it, or it is a file's. */
static inline bool page_is_shared(const kv_page *page) {
    return page->mapping || atomic_load_explicit(&page->references, memory_order_acquire) > 1;
}
/* Room for n slots; a page, or none, into a slot. */
mn_status group_grow(kv_group *group, size_t n_slots);
void group_put(kv_group *group, page_kind kind, size_t slot, kv_page *page);

/* ---- exact pages in parts ---- */

/* What a step that writes slots [begin, end) of a page takes for it: a page, or a part of one behind what is kept of the old
 * one. */
typedef struct part_plan {
    bool needed;
    int split, tokens; /* as in kv_page */
    kv_page *base;
} part_plan;

/* page: the one there is, or NULL. */
part_plan part_for(const kv_group *group, kv_page *page, int begin, int end);
bool page_is_writable(const kv_group *group, const kv_page *page, int begin, int end);
/* Fills a part, or a whole page, with the slots up to `end` of a page in any parts, from its own first slot on. */
void part_copy(const kv_group *group, kv_page *to, kv_page *from, int end);

int page_room(const kv_group *group, const kv_page *page); /* slots of its own */
size_t part_bytes(const kv_group *group, int tokens);
size_t open_page_bytes(const kv_group *group,
                       int n_tokens); /* of a page that nobody shares, with so many tokens */
mn_status group_take_open(const kv_group *group, kv_pool *pool, int n_tokens,
                          kv_page **out);     /* such a page */
size_t page_chain_bytes(const kv_page *page); /* of all its parts */
/* An offset or a size in a whole page as it is in a part; where the streams of an entry lie in one. */
size_t part_offset(const kv_group *group, const kv_page *page, size_t offset);
kv_place part_place(const kv_group *group, const kv_page *page);

/* The part that a slot lies in: slots [first, end) of the page are read there, which has room for `room`. */
typedef struct page_rows {
    const kv_page *part;
    int first, end, room;
} page_rows;

page_rows page_rows_at(const kv_group *group, kv_page *page, int slot);
/* One entry's bytes as they are in a whole page: its first n tokens, zeros behind. */
void page_whole_entry(const kv_group *group, kv_page *page, int n_tokens, int member, char *to);

/* ---- sealing ---- */

/* Position up to which a group is to be sealed once n tokens are held. */
int64_t group_seal_target(const kv_group *group, int64_t n, bool call_ends);
/* Tokens [*first, *end) of a page that are to be sealed now that n tokens are held; false: none. The page may lie beyond the
 * table. With `flush`, pages that are forgotten at n are left out: which of them are still there depends on how a call was cut
 * into steps. */
bool group_seal_range(const kv_group *group, int64_t page, int64_t n, int64_t target, int *first, int *end);
/* Room for the tasks of a step that ends at n_total, before its pages are in the tables. */
mn_status settle_reserve(kv_cache *cache, bool steps, int64_t n_total);
/* Lists what later units of the step see sealed, once its pages are in the tables. */
void settle_early(kv_cache *cache, int64_t n_total);

/* Bytes of scratch that kv_seal needs for a task. */
size_t seal_task_scratch(const kv_cache *cache, const seal_task *task);

/* ---- recurrent states: groups of kind KV_STATE; what a group function is to pages ---- */

mn_status state_open(kv_group *group, const kv_spec *spec);
void state_commit(kv_group *group, kv_pool *pool,
                  int64_t n_tokens); /* the state that the step wrote becomes the newest */
void state_tidy(kv_group *group, kv_pool *pool, int64_t n_tokens); /* forgets states behind n_tokens */
void state_close(kv_group *group, kv_pool *pool);
int64_t state_reachable(const kv_group *group, int64_t n_keep);
mn_status state_fork(kv_group *fork, const kv_group *group);

#endif
