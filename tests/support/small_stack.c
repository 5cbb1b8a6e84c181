/* SPDX-License-Identifier: Apache-2.0 */
#include "support/small_stack.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "support/budget.h"

enum { GUARD = 4096, PAINT = 0xA5 };

/* What the thread sanitizer keeps of a thread lies on its stack. */
#ifdef __SANITIZE_THREAD__
enum { SANITIZER = 1 << 20 };
#else
enum { SANITIZER = 0 };
#endif

typedef struct job {
    void (*work)(void *);
    void *data;
} job;

static void *thread_main(void *argument) {
    const job *j = argument;
    j->work(j->data);
    return NULL;
}

bool run_on_stack(size_t size, void (*work)(void *), void *data, size_t *used) {
    pthread_t thread;
    pthread_attr_t attributes;
    job j = {work, data};
    if (build_slowness() > 1) size *= 8;
    size += SANITIZER;
    unsigned char *memory = mmap(NULL, GUARD + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    unsigned char *stack = memory + GUARD;
    bool ran = mprotect(memory, GUARD, PROT_NONE) == 0;
    memset(stack, PAINT, size);
    pthread_attr_init(&attributes);
    ran = ran && pthread_attr_setstack(&attributes, stack, size) == 0 &&
          pthread_create(&thread, &attributes, thread_main, &j) == 0 && pthread_join(thread, NULL) == 0;
    pthread_attr_destroy(&attributes);
    size_t untouched = 0;
    while (untouched < size && stack[untouched] == PAINT) untouched++;
    const size_t touched = size - untouched;
    if (used) *used = touched > SANITIZER ? touched - SANITIZER : 0;
    munmap(memory, GUARD + size);
    return ran;
}
