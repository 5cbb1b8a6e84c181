/* SPDX-License-Identifier: Apache-2.0 */
#include "support/hostile/moved_clock.h"

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum { SECOND = 1000000000 };

static atomic_int_fast64_t ahead, held; /* nanoseconds; held: when the clock was stopped, 0: it runs */

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time) {
    const int failure = __real_clock_gettime(clock, time);
    if (clock != CLOCK_MONOTONIC) return failure;
    const int64_t stopped = atomic_load(&held);
    const int64_t now = (stopped ? stopped : (int64_t)time->tv_sec * SECOND + time->tv_nsec) + atomic_load(&ahead);
    *time = (struct timespec){.tv_sec = now / SECOND, .tv_nsec = now % SECOND};
    return failure;
}

void clock_hold(void) {
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    atomic_store(&held, (int64_t)now.tv_sec * SECOND + now.tv_nsec);
}

void clock_run(void) {
    atomic_store(&held, 0);
}

void clock_move(double ms) {
    atomic_fetch_add(&ahead, (int64_t)(ms * 1e6));
}
