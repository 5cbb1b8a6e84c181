/* SPDX-License-Identifier: Apache-2.0 */
#include "support/hostile/heap_bytes.h"

#include <malloc.h>

heap_counters heap_bytes;

int __real_posix_memalign(void **out, size_t alignment, size_t n);
int __wrap_posix_memalign(void **out, size_t alignment, size_t n);
void __real_free(void *block);
void __wrap_free(void *block);

int __wrap_posix_memalign(void **out, size_t alignment, size_t n) {
    int code = __real_posix_memalign(out, alignment, n);
    if (code == 0) heap_bytes.live += (int64_t)malloc_usable_size(*out);
    if (heap_bytes.live > heap_bytes.most) heap_bytes.most = heap_bytes.live;
    return code;
}

void __wrap_free(void *block) {
    heap_bytes.live -= (int64_t)malloc_usable_size(block);
    __real_free(block);
}
