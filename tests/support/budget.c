/* SPDX-License-Identifier: Apache-2.0 */
#include "support/budget.h"

#include <time.h>

#include "support/small_stack.h"
#include "support/support.h"

#if defined(__has_feature)
#define HAS(feature) __has_feature(feature)
#else
#define HAS(feature) 0
#endif

#if defined(TESTS_SLOWNESS)
enum { SLOWNESS = TESTS_SLOWNESS };
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || HAS(address_sanitizer) ||                       \
    HAS(thread_sanitizer) || HAS(memory_sanitizer)
enum { SLOWNESS = 12 };
#elif !defined(__OPTIMIZE__)
enum { SLOWNESS = 8 };
#else
enum { SLOWNESS = 1 };
#endif

double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double build_slowness(void) {
    return SLOWNESS;
}

void assert_within(double from, double limit, const char *what) {
    double seconds = processor_seconds() - from;
    if (seconds > limit * SLOWNESS) fail_msg("%s: %.3f s, allowed: %.3f s", what, seconds, limit * SLOWNESS);
}

void on_small_stack(void (*work)(void *arg), void *arg) {
    assert_true(run_on_stack(64 << 10, work, arg, NULL));
}
