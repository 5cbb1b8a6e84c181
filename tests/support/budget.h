/* Limits on work: processor time, and threads with a small stack.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BUDGET_H
#define TESTS_BUDGET_H

/* Processor time of this thread in seconds. */
double processor_seconds(void);

/* How many times as long this build takes as the release build may: 1, or more with sanitizers or without optimisation. */
double build_slowness(void);

/* Fails the test when more than `limit` seconds (in the release build) have passed since `from`. */
void assert_within(double from, double limit, const char *what);

/* Runs work(arg) in a thread whose stack has 64 KiB, or in proportion more where a sanitizer widens every frame. */
void on_small_stack(void (*work)(void *arg), void *arg);

#endif
