/* Read bandwidth of main memory, the upper limit of decoding: each thread reads its range of one large block
 * sequentially. Prints GB/s, the best of several passes. bench_memory [threads] [MiB]
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "bench_read.h"
#include "bench_timer.h"
#include "base/thread.h"

enum { PASSES = 5 };

typedef struct reading {
    const uint64_t *data;
    size_t per_task; /* values */
    uint64_t sums[64];
} reading;

static void read_task(void *arg, int task, int thread) {
    (void)thread;
    reading *r = arg;
    r->sums[task] = read_words(r->data + (size_t)task * r->per_task, r->per_task);
}

static double seconds(void) {
    return seconds_of(CLOCK_MONOTONIC);
}

int main(int n, char **words) {
    int threads = n > 1 ? atoi(words[1]) : 0;
    size_t mib = n > 2 ? (size_t)atoi(words[2]) : 1024, size = mib << 20;
    thread_pool *pool;
    if (threads > 64 || mib < 1 || mib > 1 << 20 || thread_pool_open(&pool, threads) != MN_OK) return 2;
    threads = thread_pool_threads(pool);
    void *block = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (threads > 64 || block == MAP_FAILED) return 1;
    madvise(block, size, MADV_HUGEPAGE);
    memset(block, 1, size);
    reading r = {.data = block, .per_task = size / sizeof(uint64_t) / (size_t)threads};
    double best = 0;
    for (int i = 0; i < PASSES; i++) {
        double start = seconds();
        thread_run(pool, threads, read_task, &r);
        double speed = (double)size / (seconds() - start) * 1e-9;
        if (speed > best) best = speed;
    }
    printf("%.1f\n", best);
    thread_pool_close(&pool);
    return r.sums[0] == 0; /* the sums are used */
}
