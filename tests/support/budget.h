/* Limits on processor time, and threads with a small stack.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BUDGET_H
#define TESTS_BUDGET_H

/* Processor time in seconds, of this thread and of the whole process. */
double processor_seconds(void);
double process_seconds(void);

/* Milliseconds of wall time, in the long tier only: elsewhere asking for it fails the test. */
double wall_ms(void);

/* The factor by which this build is slower than the release build: 1, or more with sanitizers or without optimization.
 */
double build_slowness(void);

/* The limit of processor time for what takes so many seconds in the release build on a quiet machine: times the
 * slowness of this build, and times four, because programs beside it take caches, memory and the clock rate away. */
double seconds_allowed(double needed);

/* Fails the test when this thread has used more than seconds_allowed(needed) since `from`. */
void assert_within(double from, double needed, const char *what);

/* Runs work(arg) in a thread whose stack has 64 KiB, or in proportion more where a sanitizer widens every frame. */
void on_small_stack(void (*work)(void *arg), void *arg);

#endif
