/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LARGE_PAGE = 2 << 20 };

static _Atomic int64_t n_allocations, n_live, n_until_failure;

mem_counters mem_count(void) {
    return (mem_counters){atomic_load_explicit(&n_allocations, memory_order_relaxed),
                          atomic_load_explicit(&n_live, memory_order_relaxed)};
}

void mem_fail_after(int64_t k) {
    atomic_store(&n_until_failure, k);
}

static bool injected_failure(void) {
    if (atomic_load_explicit(&n_until_failure, memory_order_relaxed) == 0) return false;
    return atomic_fetch_sub(&n_until_failure, 1) == 1;
}

mn_status mem_no_memory(void) {
    return status_fail(MN_E_NOMEM, "out of memory");
}

/* Large blocks begin at a large page and request large pages: a page fault for every 2 MiB, not for every 4 KiB. */
static void *take_block(size_t n) {
    void *block = NULL;
    bool is_large = n >= LARGE_PAGE;
    if (posix_memalign(&block, is_large ? LARGE_PAGE : MEM_ALIGN, n) != 0) return NULL;
    if (is_large) madvise(block, n, MADV_HUGEPAGE);
    return block;
}

void *mem_alloc_raw(size_t count, size_t size) {
    size_t n;
    if (!size_mul(count, size, &n) || n > SIZE_MAX / 2) {
        status_fail(MN_E_NOMEM, "out of memory: %zu elements of %zu bytes requested", count, size);
        return NULL;
    }
    n = (n + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
    void *block = injected_failure() ? NULL : take_block(n ? n : MEM_ALIGN);
    if (!block) {
        status_fail(MN_E_NOMEM, "out of memory: %zu bytes requested", n);
        return NULL;
    }
    atomic_fetch_add_explicit(&n_allocations, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&n_live, 1, memory_order_relaxed);
    return block;
}

void *mem_alloc(size_t count, size_t size) {
    void *block = mem_alloc_raw(count, size);
    if (block) memset(block, 0, count * size);
    return block;
}

mn_status mem_grow(void *block, size_t *capacity, size_t need, size_t size) {
    if (need <= *capacity) return MN_OK;
    size_t new_capacity = *capacity < 8 ? 8 : *capacity;
    while (new_capacity < need) new_capacity = new_capacity > SIZE_MAX / 2 ? need : new_capacity * 2;
    char **slot = block;
    char *grown = mem_alloc_raw(new_capacity, size);
    if (!grown) return MN_E_NOMEM;
    if (*slot) memcpy(grown, *slot, *capacity * size);
    mem_free(*slot);
    *slot = grown;
    *capacity = new_capacity;
    return MN_OK;
}

char *mem_copy_text(const char *text, size_t n) {
    char *copy = n < SIZE_MAX ? mem_alloc_raw(n + 1, 1) : NULL;
    if (!copy) return NULL;
    if (n) memcpy(copy, text, n);
    copy[n] = 0;
    return copy;
}

void mem_free(void *block) {
    if (!block) return;
    atomic_fetch_sub_explicit(&n_live, 1, memory_order_relaxed);
    free(block);
}

/* Makes room for n more bytes and a zero. */
static bool make_room(bytes *b, size_t n) {
    size_t need;
    if (size_add(b->n, n, &need) && need < SIZE_MAX && mem_grow(&b->data, &b->capacity, need + 1, 1) == MN_OK)
        return true;
    b->failed = true;
    return false;
}

void bytes_append(bytes *b, const void *data, size_t n) {
    if (b->failed || n == 0 || !make_room(b, n)) return;
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

void bytes_append_text(bytes *b, const char *text) {
    bytes_append(b, text, strlen(text));
}

void bytes_printf(bytes *b, const char *format, ...) {
    char line[512];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof line) {
        bytes_append(b, line, (size_t)n);
    } else if (n >= 0 && !b->failed && make_room(b, (size_t)n)) {
        vsnprintf(b->data + b->n, (size_t)n + 1, format, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

mn_status bytes_status(const bytes *b) {
    return b->failed ? mem_no_memory() : MN_OK;
}

const char *bytes_text(bytes *b) {
    if (b->failed || !make_room(b, 0)) return "";
    b->data[b->n] = 0;
    return b->data;
}

void bytes_clear(bytes *b) {
    mem_free(b->data);
    *b = (bytes){0};
}
