/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/offload_space.h"

#include <assert.h>

#include "base/mem.h"

mn_status offload_space_reserve(offload_space *space) {
    if (space->spare && space->blocks[space->spare].next) return MN_OK;
    size_t need = (space->n_blocks ? space->n_blocks : 1) + 2;
    MN_TRY(mem_grow(&space->blocks, &space->capacity, need, sizeof *space->blocks));
    if (!space->n_blocks) space->blocks[space->n_blocks++] = (offload_block){0};
    return MN_OK;
}

static int64_t new_record(offload_space *space) {
    int64_t record = space->spare;
    if (!record) return (int64_t)space->n_blocks++;
    space->spare = space->blocks[record].next;
    return record;
}

static void drop_record(offload_space *space, int64_t record) {
    space->blocks[record] = (offload_block){.next = space->spare};
    space->spare = record;
}

static int size_list(uint64_t size) {
    return 63 - __builtin_clzll(size);
}

static void list_free(offload_space *space, int64_t block) {
    offload_block *b = &space->blocks[block];
    int64_t *first = &space->free[size_list(b->bytes)];
    b->previous = 0;
    b->next = *first;
    if (b->next) space->blocks[b->next].previous = block;
    *first = block;
}

static void unlist_free(offload_space *space, int64_t block) {
    offload_block *b = &space->blocks[block];
    if (b->previous) {
        space->blocks[b->previous].next = b->next;
    } else {
        space->free[size_list(b->bytes)] = b->next;
    }
    if (b->next) space->blocks[b->next].previous = b->previous;
}

/* Inserts a new free block, in no list yet, after `before` (0: at the front). */
static int64_t insert_after(offload_space *space, int64_t before, uint64_t offset, uint64_t size) {
    int64_t block = new_record(space), after = space->blocks[before].after;
    space->blocks[block] = (offload_block){.offset = offset, .bytes = size, .before = before, .after = after};
    space->blocks[before].after = block;
    space->blocks[after].before = block;
    return block;
}

/* Merges the second of two neighbours into the first; both are in no list. */
static void absorb(offload_space *space, int64_t block, int64_t neighbour) {
    offload_block *b = &space->blocks[block], *n = &space->blocks[neighbour];
    b->bytes += n->bytes;
    b->after = n->after;
    space->blocks[n->after].before = block;
    drop_record(space, neighbour);
}

static int64_t find_free(const offload_space *space, uint64_t size) {
    int list = size_list(size);
    for (int64_t i = space->free[list]; i; i = space->blocks[i].next) {
        if (space->blocks[i].bytes >= size) return i;
    }
    while (++list < FAR_SIZES) {
        if (space->free[list]) return space->free[list];
    }
    return 0;
}

int64_t offload_space_take(offload_space *space, uint64_t size) {
    assert(size > 0);
    int64_t block = find_free(space, size);
    if (!block) return 0;
    unlist_free(space, block);
    offload_block *b = &space->blocks[block];
    if (b->bytes > size) {
        list_free(space, insert_after(space, block, b->offset + size, b->bytes - size));
        b->bytes = size;
    }
    b->is_taken = true;
    return block;
}

static bool is_free(const offload_space *space, int64_t block) {
    return block && !space->blocks[block].is_taken;
}

void offload_space_return(offload_space *space, int64_t block) {
    space->blocks[block].is_taken = false;
    int64_t before = space->blocks[block].before, after = space->blocks[block].after;
    if (is_free(space, after)) {
        unlist_free(space, after);
        absorb(space, block, after);
    }
    if (is_free(space, before)) {
        unlist_free(space, before);
        absorb(space, before, block);
        block = before;
    }
    list_free(space, block);
}

uint64_t offload_space_missing(const offload_space *space, uint64_t size) {
    int64_t last = space->blocks ? space->blocks[0].before : 0;
    uint64_t there = is_free(space, last) ? space->blocks[last].bytes : 0;
    return size > there ? size - there : 0;
}

void offload_space_grow(offload_space *space, uint64_t size) {
    if (!size) return;
    int64_t last = space->blocks[0].before;
    if (is_free(space, last)) {
        unlist_free(space, last);
        space->blocks[last].bytes += size;
    } else {
        last = insert_after(space, last, space->end, size);
    }
    list_free(space, last);
    space->end += size;
}

void offload_space_empty(offload_space *space) {
    offload_block *blocks = space->blocks;
    size_t capacity = space->capacity;
    *space = (offload_space){.blocks = blocks, .capacity = capacity};
}

void offload_space_clear(offload_space *space) {
    mem_free(space->blocks);
    *space = (offload_space){0};
}
