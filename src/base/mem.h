/* Memory: checked sizes, aligned blocks, growable bytes, failure injection and counters.
 *
 * Every allocation of the library goes through mem_alloc or mem_grow, so that tests can fail the k-th one, count those
 * of a decode step, and see leaks. All blocks are freed by mem_free.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_MEM_H
#define MN_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#define MN_MEMORY_SANITIZER 1
#endif
#endif

enum { MEM_ALIGN = 64 };

/* count * size bytes, zeroed, 64-byte aligned; NULL (with the message set) when there is no memory or the product
 * overflows. Zero bytes give a valid pointer. */
void *mem_alloc(size_t count, size_t size);

/* As mem_alloc without clearing: for large buffers that are written before they are read. Blocks of 2 MiB and more are
 * backed by large pages where the system has them. */
void *mem_alloc_raw(size_t count, size_t size);

/* Grows *block (which may be NULL) to hold at least `need` elements of `size` bytes, doubling; *capacity counts
 * elements. On failure nothing has changed. */
mn_status mem_grow(void *block, size_t *capacity, size_t need, size_t size);

/* A copy of n bytes with a terminating zero, or NULL with the message set. */
char *mem_copy_text(const char *text, size_t n);

void mem_free(void *block);

/* Marks bytes that a library has written, for the memory sanitizer, which does not see writes of uninstrumented
 * libraries. Does nothing in other builds. */
static inline void mem_written(const void *data, size_t n) {
#if defined(MN_MEMORY_SANITIZER)
    __msan_unpoison(data, n);
#else
    (void)data, (void)n;
#endif
}

/* MN_E_NOMEM with the standard sentence; for callers that got NULL. */
mn_status mem_no_memory(void);

/* For tests: the next allocation numbered k from now fails (1 = the very next); 0 turns this off. */
void mem_fail_after(int64_t k);

typedef struct mem_counters {
    int64_t allocations; /* calls that gave a block, since the start of the program */
    int64_t live;        /* blocks not yet freed */
} mem_counters;

mem_counters mem_count(void);

/* Growable bytes. A failed append is remembered, so a writer checks once at the end with bytes_status. There is always
 * room for a zero behind them: where bytes_status is MN_OK, bytes_text has all of a text that is not empty. */
typedef struct bytes {
    char *data;      /* owned; not zero-terminated unless bytes_text was called */
    size_t n;        /* bytes in use */
    size_t capacity; /* bytes allocated */
    bool failed;     /* an append found no memory; later appends do nothing */
} bytes;

void bytes_append(bytes *b, const void *data, size_t n);
void bytes_append_text(bytes *b, const char *text);
void bytes_printf(bytes *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
mn_status bytes_status(const bytes *b);
/* The bytes as a zero-terminated string owned by b; "" when empty or failed. */
const char *bytes_text(bytes *b);
void bytes_clear(bytes *b); /* frees; b is empty again */

/* Overflow-checked arithmetic; false when the result does not fit. */
static inline bool size_mul(size_t a, size_t b, size_t *out) {
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool size_add(size_t a, size_t b, size_t *out) {
    return !__builtin_add_overflow(a, b, out);
}

#endif
