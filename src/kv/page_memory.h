/* Memory of unused pages, kept for the next page of that size. Pages have few sizes, so each size has a class, and
 * taking and giving take constant time. Blocks that a class has not needed for a while are freed.
 *
 * The pool locks.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_PAGE_MEMORY_H
#define MN_KV_PAGE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Many adjacent blocks of one size: attention reads many pages, and without the system's large pages most accesses
 * would miss the TLB. */
typedef struct page_slab page_slab;

/* 64-byte aligned. slab NULL: allocated by itself, with mem_alloc. */
typedef struct page_block {
    char *data; /* NULL: none */
    page_slab *slab;
} page_block;

typedef struct free_block free_block;

/* Blocks of one size and kind. A class without blocks can be reused for another size. */
typedef struct page_class {
    size_t bytes;
    bool in_slab;
    free_block *free; /* those in no slab */
    page_slab *slabs; /* with free blocks */
    size_t n_free;
    size_t n_used;     /* blocks of slabs that are in use */
    size_t least_free; /* since the last search for idle blocks */
} page_class;

enum {
    PAGE_IDLE_MS = 30000, /* blocks unused for this long are freed */
    PAGE_SIZES = 64,      /* number of sizes with kept blocks */
};

typedef struct page_memory {
    page_class classes[PAGE_SIZES];
    double checked_ms; /* time of the last search for idle blocks */
} page_memory;

/* Whether pages of that size are allocated in slabs: smaller than the system's large pages, and not tiny. */
bool page_memory_in_slab(size_t n_bytes);

/* A kept block of that size and kind, with the contents of its previous page. data is NULL when none is kept. */
page_block page_memory_take(page_memory *m, size_t n_bytes, bool in_slab);

/* A block in a new slab, whose other blocks are kept; not cleared. data is NULL when there is no memory, or PAGE_SIZES
 * sizes are in use. */
page_block page_memory_take_new_slab(page_memory *m, size_t n_bytes);

/* Keeps a block; one outside slabs is freed when PAGE_SIZES other sizes are in use. */
void page_memory_give(page_memory *m, page_block block, size_t n_bytes);

/* Removes all kept blocks outside slabs: a list for page_memory_free, which needs no lock. */
free_block *page_memory_detach(page_memory *m);
void page_memory_free(free_block *list);

/* Removes the blocks that each class has not needed since the last search, at most once in PAGE_IDLE_MS; now_ms: of
 * clock_ms. Slabs without a used page are freed here, the list has the other blocks. */
free_block *page_memory_detach_idle(page_memory *m, double now_ms);

/* Removes all kept blocks. */
void page_memory_release(page_memory *m);

#endif
