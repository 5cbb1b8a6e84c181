/* Clocks and medians of the bench programs.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BENCH_TIMER_H
#define MN_BENCH_TIMER_H

#include <stdlib.h>
#include <time.h>

/* Seconds of a clock: CLOCK_MONOTONIC for time on the wall; CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID for
 * processor time, which depends less on other load. */
static inline double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. */
static inline double median_of(double *values, size_t n) {
    qsort(values, n, sizeof *values, compare_doubles);
    return values[n / 2];
}

#endif
