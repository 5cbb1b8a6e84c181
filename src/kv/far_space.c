/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/far_space.h"

#include "base/mem.h"

mn_status far_space_reserve(far_space *space) {
    if (space->spare && space->blocks[space->spare].next) return MN_OK;
    size_t need = (space->n_blocks ? space->n_blocks : 1) + 2;
    MN_TRY(mem_grow(&space->blocks, &space->capacity, need, sizeof *space->blocks));
    if (!space->n_blocks) space->blocks[space->n_blocks++] = (far_block){0};
    return MN_OK;
}

static int64_t new_record(far_space *space) {
    int64_t record = space->spare;
    if (!record) return (int64_t)space->n_blocks++;
    space->spare = space->blocks[record].next;
    return record;
}

static void drop_record(far_space *space, int64_t record) {
    space->blocks[record] = (far_block){.next = space->spare};
    space->spare = record;
}

static int size_list(uint64_t size) {
    return 63 - __builtin_clzll(size);
}

static void list_free(far_space *space, int64_t block) {
    far_block *b = &space->blocks[block];
    int64_t *first = &space->free[size_list(b->bytes)];
    b->previous = 0;
    b->next = *first;
    if (b->next) space->blocks[b->next].previous = block;
    *first = block;
}

static void unlist_free(far_space *space, int64_t block) {
    far_block *b = &space->blocks[block];
    if (b->previous) {
        space->blocks[b->previous].next = b->next;
    } else {
        space->free[size_list(b->bytes)] = b->next;
    }
    if (b->next) space->blocks[b->next].previous = b->previous;
}

/* Puts a new free block, in no list yet, behind `before` (0: at the front). */
static int64_t insert_after(far_space *space, int64_t before, uint64_t offset, uint64_t size) {
    int64_t block = new_record(space), after = space->blocks[before].after;
    space->blocks[block] = (far_block){.offset = offset, .bytes = size, .before = before, .after = after};
    space->blocks[before].after = block;
    space->blocks[after].before = block;
    return block;
}

/* Joins two neighbours, in no list both, to the first one. */
static void absorb(far_space *space, int64_t block, int64_t neighbour) {
    far_block *b = &space->blocks[block], *n = &space->blocks[neighbour];
    b->bytes += n->bytes;
    b->after = n->after;
    space->blocks[n->after].before = block;
    drop_record(space, neighbour);
}

static int64_t find_free(const far_space *space, uint64_t size) {
    int list = size_list(size);
    for (int64_t i = space->free[list]; i; i = space->blocks[i].next) {
        if (space->blocks[i].bytes >= size) return i;
    }
    while (++list < FAR_SIZES) {
        if (space->free[list]) return space->free[list];
    }
    return 0;
}

int64_t far_space_take(far_space *space, uint64_t size) {
    int64_t block = find_free(space, size);
    if (!block) return 0;
    unlist_free(space, block);
    far_block *b = &space->blocks[block];
    if (b->bytes > size) {
        list_free(space, insert_after(space, block, b->offset + size, b->bytes - size));
        b->bytes = size;
    }
    b->references = 1;
    return block;
}

static bool is_free(const far_space *space, int64_t block) {
    return block && space->blocks[block].references == 0;
}

void far_space_return(far_space *space, int64_t block) {
    space->blocks[block].references = 0;
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

uint64_t far_space_missing(const far_space *space, uint64_t size) {
    int64_t last = space->blocks ? space->blocks[0].before : 0;
    uint64_t there = is_free(space, last) ? space->blocks[last].bytes : 0;
    return size > there ? size - there : 0;
}

void far_space_grow(far_space *space, uint64_t size) {
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

void far_space_empty(far_space *space) {
    far_block *blocks = space->blocks;
    size_t capacity = space->capacity;
    *space = (far_space){.blocks = blocks, .capacity = capacity};
}

void far_space_clear(far_space *space) {
    mem_free(space->blocks);
    *space = (far_space){0};
}
