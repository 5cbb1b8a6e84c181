/* SPDX-License-Identifier: Apache-2.0 */
#include "support/hostile/moved_clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum { SECOND = 1000000000 };

static atomic_int_fast64_t ahead, held; /* nanoseconds; held: when the clock was stopped, 0: it runs */
static atomic_int n_timed_out;

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __real_pthread_cond_timedwait(pthread_cond_t *changed, pthread_mutex_t *lock, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *changed, pthread_mutex_t *lock, const struct timespec *until);

static int64_t of(const struct timespec *time) {
    return (int64_t)time->tv_sec * SECOND + time->tv_nsec;
}

static struct timespec from(int64_t ns) {
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *time) {
    const int failure = __real_clock_gettime(clock, time);
    if (clock != CLOCK_MONOTONIC) return failure;
    const int64_t stopped = atomic_load(&held);
    *time = from((stopped ? stopped : of(time)) + atomic_load(&ahead));
    return failure;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *changed, pthread_mutex_t *lock, const struct timespec *until) {
    struct timespec shown, real;
    __wrap_clock_gettime(CLOCK_MONOTONIC, &shown);
    __real_clock_gettime(CLOCK_MONOTONIC, &real);
    real = from(of(&real) + of(until) - of(&shown));
    const int failure = __real_pthread_cond_timedwait(changed, lock, &real);
    if (failure == ETIMEDOUT) atomic_fetch_add(&n_timed_out, 1);
    return failure;
}

int clock_timed_out(void) {
    return atomic_load(&n_timed_out);
}

void clock_hold(void) {
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    atomic_fetch_add(&ahead, SECOND - (now.tv_nsec + atomic_load(&ahead)) % SECOND);
    atomic_store(&held, of(&now));
}

void clock_run(void) {
    atomic_store(&held, 0);
}

void clock_move(double ms) {
    atomic_fetch_add(&ahead, (int64_t)(ms * 1e6));
}
