/* SPDX-License-Identifier: Apache-2.0 */
#include "support/budget.h"

#include <time.h>

#include "support/small_stack.h"
#include "support/support.h"

#if defined(TESTS_SLOWNESS)
enum { SLOWNESS = TESTS_SLOWNESS };
#elif !defined(__OPTIMIZE__)
enum { SLOWNESS = TEST_IS_SANITIZED ? 12 : 8 };
#else
enum { SLOWNESS = TEST_IS_SANITIZED ? 12 : 1 };
#endif

enum { BUSY_MACHINE = 4 };

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double processor_seconds(void) {
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

double process_seconds(void) {
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

double wall_ms(void) {
    assert_true(test_is_long());
    return 1e3 * seconds_of(CLOCK_MONOTONIC);
}

double build_slowness(void) {
    return SLOWNESS;
}

double seconds_allowed(double needed) {
    return needed * SLOWNESS * BUSY_MACHINE;
}

void assert_within(double from, double needed, const char *what) {
    const double seconds = processor_seconds() - from;
    if (seconds > seconds_allowed(needed))
        fail_msg("%s: %.4f s, allowed: %.4f s", what, seconds, seconds_allowed(needed));
}

void on_small_stack(void (*work)(void *arg), void *arg) {
    assert_true(run_on_stack(64 << 10, work, arg, NULL));
}
