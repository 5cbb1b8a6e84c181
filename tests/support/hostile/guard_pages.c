/* The library's memory between inaccessible pages, in programs that are linked with --wrap for mem_alloc,
 * mem_alloc_raw and mem_free (tests/CMakeLists.txt). A block of elements ends at the page after it, a block of bytes at
 * the next multiple of 64, so that a kernel that accesses one element too many ends the program.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"

enum { PAGE = 4096, MOST_BLOCKS = 4096, FILL = 0xA5 };

void *__wrap_mem_alloc(size_t count, size_t size);
void *__wrap_mem_alloc_raw(size_t count, size_t size);
void __wrap_mem_free(void *block);
void *__real_mem_alloc_raw(size_t count, size_t size);
void __real_mem_free(void *block);

typedef struct guarded_block {
    void *block;
    char *base; /* of the mapping, the page before the block included */
    size_t n_mapped;
} guarded_block;

static guarded_block blocks[MOST_BLOCKS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* fill: the initial value of every byte. */
static void *guarded_alloc(size_t count, size_t size, int fill) {
    size_t n;
    if (!size_mul(count, size, &n) || n > SIZE_MAX / 4) return __real_mem_alloc_raw(count, size);
    size_t taken = size == 1 ? (n + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN : n;
    size_t n_inner = (taken + PAGE - 1) / PAGE * PAGE, n_mapped = n_inner + 2 * PAGE;
    char *base = mmap(NULL, n_mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return __real_mem_alloc_raw(count, size);
    if (n_inner) mprotect(base + PAGE, n_inner, PROT_READ | PROT_WRITE);
    void *block = base + PAGE + n_inner - taken;
    if (n_inner && fill) memset(base + PAGE, fill, n_inner);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MOST_BLOCKS; i++) {
        if (blocks[i].block) continue;
        blocks[i] = (guarded_block){block, base, n_mapped};
        pthread_mutex_unlock(&lock);
        return block;
    }
    pthread_mutex_unlock(&lock);
    munmap(base, n_mapped);
    return __real_mem_alloc_raw(count, size);
}

void *__wrap_mem_alloc(size_t count, size_t size) {
    return guarded_alloc(count, size, 0);
}

void *__wrap_mem_alloc_raw(size_t count, size_t size) {
    return guarded_alloc(count, size, FILL);
}

void __wrap_mem_free(void *block) {
    guarded_block own = {0};
    pthread_mutex_lock(&lock);
    for (size_t i = 0; block && i < MOST_BLOCKS; i++) {
        if (blocks[i].block != block) continue;
        own = blocks[i];
        blocks[i] = (guarded_block){0};
        break;
    }
    pthread_mutex_unlock(&lock);
    if (own.base) {
        munmap(own.base, own.n_mapped);
    } else {
        __real_mem_free(block);
    }
}
