/* The clock of a program whose clock_gettime and pthread_cond_timedwait are wrapped (tests/CMakeLists.txt): it may
 * stand still, and be moved. Dates and the time of processors stay the system's. Any thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_MOVED_CLOCK_H
#define TESTS_MOVED_CLOCK_H

/* From here on time passes only when it is moved. It stands at a whole second, so that sums are exact. */
void clock_hold(void);
/* It runs again, ahead by what it was moved. */
void clock_run(void);
/* Forward. */
void clock_move(double ms);
/* How many waits for a condition have ended by their limit, which is real time from when they began. */
int clock_timed_out(void);

#endif
