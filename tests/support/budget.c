/* SPDX-License-Identifier: Apache-2.0 */
#include "support/budget.h"

#include <pthread.h>
#include <time.h>

#include "support/support.h"

#if defined(__has_feature)
#define HAS(feature) __has_feature(feature)
#else
#define HAS(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || HAS(address_sanitizer) ||               \
    HAS(thread_sanitizer) || HAS(memory_sanitizer)
enum { SLOWNESS = 12, STACK = 8 << 16 };
#elif !defined(__OPTIMIZE__)
enum { SLOWNESS = 8, STACK = 2 << 16 };
#else
enum { SLOWNESS = 1, STACK = 1 << 16 };
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

typedef struct call {
    void (*work)(void *arg);
    void *arg;
} call;

static void *run_call(void *arg) {
    call *c = arg;
    c->work(c->arg);
    return NULL;
}

void on_small_stack(void (*work)(void *arg), void *arg) {
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attributes, run_call, &(call){work, arg}), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
}
