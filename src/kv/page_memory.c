/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/page_memory.h"

#include <stdint.h>

#include "base/mem.h"

enum { SLAB_BYTES = 8 << 20, SLAB_LEAST = 128 << 10, SLAB_MOST = 2 << 20 };

/* At the beginning of an unused block. */
struct free_block {
    free_block *next;
};

struct page_slab {
    page_slab *next, *before; /* in its class: those with free blocks */
    char *data;
    free_block *free;
    size_t n_blocks, n_free; /* n_free includes those that were never used, which are the last ones */
    size_t n_fresh;
};

bool page_memory_in_slab(size_t n_bytes) {
    return n_bytes >= SLAB_LEAST && n_bytes < SLAB_MOST && n_bytes % MEM_ALIGN == 0;
}

static page_class *find_class(page_memory *m, size_t n_bytes, bool in_slab) {
    for (int i = 0; i < PAGE_SIZES; i++) {
        if (m->classes[i].bytes == n_bytes && m->classes[i].in_slab == in_slab) return &m->classes[i];
    }
    return NULL;
}

/* The class of that size, or an unused class; NULL: none is left. */
static page_class *make_class(page_memory *m, size_t n_bytes, bool in_slab) {
    page_class *class = find_class(m, n_bytes, in_slab);
    for (int i = 0; !class && i < PAGE_SIZES; i++) {
        if (m->classes[i].n_free + m->classes[i].n_used > 0) continue;
        class = &m->classes[i];
        *class = (page_class){.bytes = n_bytes, .in_slab = in_slab};
    }
    return class;
}

static void push(free_block **list, char *data) {
    free_block *block = (free_block *)(void *)data;
    block->next = *list;
    *list = block;
}

static char *pop(free_block **list) {
    free_block *block = *list;
    if (block) *list = block->next;
    return (char *)block;
}

static void link_slab(page_class *class, page_slab *slab) {
    slab->before = NULL;
    slab->next = class->slabs;
    if (slab->next) slab->next->before = slab;
    class->slabs = slab;
}

static void unlink_slab(page_class *class, page_slab *slab) {
    if (slab->next) slab->next->before = slab->before;
    if (slab->before)
        slab->before->next = slab->next;
    else
        class->slabs = slab->next;
}

static void free_slab(page_class *class, page_slab *slab) {
    unlink_slab(class, slab);
    class->n_free -= slab->n_blocks;
    mem_free(slab->data);
    mem_free(slab);
}

static void count_taken(page_class *class) {
    class->n_free--;
    if (class->n_free < class->least_free) class->least_free = class->n_free;
}

static page_block take_of(page_class *class, page_slab *slab) {
    char *data = pop(&slab->free);
    if (!data) data = slab->data + (slab->n_blocks - slab->n_fresh--) * class->bytes;
    if (--slab->n_free == 0) unlink_slab(class, slab);
    class->n_used++;
    count_taken(class);
    return (page_block){data, slab};
}

page_block page_memory_take(page_memory *m, size_t n_bytes, bool in_slab) {
    page_class *class = find_class(m, n_bytes, in_slab);
    if (!class || class->n_free == 0) return (page_block){NULL, NULL};
    if (in_slab) return take_of(class, class->slabs);
    count_taken(class);
    return (page_block){pop(&class->free), NULL};
}

page_block page_memory_take_new_slab(page_memory *m, size_t n_bytes) {
    page_class *class = make_class(m, n_bytes, true);
    page_slab *slab = class ? mem_alloc(1, sizeof *slab) : NULL;
    if (!slab) return (page_block){NULL, NULL};
    slab->n_blocks = slab->n_free = slab->n_fresh = SLAB_BYTES / n_bytes;
    slab->data = mem_alloc_raw(slab->n_blocks, n_bytes);
    if (!slab->data) {
        mem_free(slab);
        return (page_block){NULL, NULL};
    }
    link_slab(class, slab);
    class->n_free += slab->n_free;
    return take_of(class, slab);
}

void page_memory_give(page_memory *m, page_block block, size_t n_bytes) {
    page_class *class = make_class(m, n_bytes, block.slab != NULL);
    if (!class) {
        mem_free(block.data);
        return;
    }
    class->n_free++;
    if (!block.slab) {
        push(&class->free, block.data);
        return;
    }
    class->n_used--;
    push(&block.slab->free, block.data);
    if (block.slab->n_free++ == 0) link_slab(class, block.slab);
}

/* Frees up to `most` blocks of a class, those in slabs by whole slabs. */
static void detach_some(page_class *class, size_t most, free_block **list) {
    for (; class->free && most > 0; most--) {
        push(list, pop(&class->free));
        class->n_free--;
    }
    for (page_slab *slab = class->slabs, *next; slab; slab = next) {
        next = slab->next;
        if (slab->n_free < slab->n_blocks || slab->n_blocks > most) continue;
        most -= slab->n_blocks;
        free_slab(class, slab);
    }
    class->least_free = class->n_free;
}

free_block *page_memory_detach(page_memory *m) {
    free_block *list = NULL;
    for (int i = 0; i < PAGE_SIZES; i++) {
        if (!m->classes[i].in_slab) detach_some(&m->classes[i], SIZE_MAX, &list);
    }
    return list;
}

void page_memory_free(free_block *list) {
    for (char *data; (data = pop(&list)) != NULL;) mem_free(data);
}

free_block *page_memory_detach_idle(page_memory *m, double now_ms) {
    free_block *list = NULL;
    if (now_ms - m->checked_ms < PAGE_IDLE_MS) return NULL;
    m->checked_ms = now_ms;
    for (int i = 0; i < PAGE_SIZES; i++) detach_some(&m->classes[i], m->classes[i].least_free, &list);
    return list;
}

void page_memory_release(page_memory *m) {
    free_block *list = NULL;
    for (int i = 0; i < PAGE_SIZES; i++) detach_some(&m->classes[i], SIZE_MAX, &list);
    page_memory_free(list);
}
