/* Limits on processor time, and threads with a small stack.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BUDGET_H
#define TESTS_BUDGET_H

/* Processor time of this thread in seconds. */
double processor_seconds(void);

/* The factor by which this build is slower than the release build: 1, or more with sanitizers or without optimization.
 */
double build_slowness(void);

/* Fails the test when more than `limit` seconds (in the release build) have passed since `from`. */
void assert_within(double from, double limit, const char *what);

/* Runs work(arg) in a thread whose stack has 64 KiB, or in proportion more where a sanitizer widens every frame. */
void on_small_stack(void (*work)(void *arg), void *arg);

#endif
