/* The clock of a program whose clock_gettime is wrapped (tests/CMakeLists.txt): it may stand still, and be moved. Dates
 * and the time of processors stay the system's, and so do limits of time that the system keeps. Any thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_MOVED_CLOCK_H
#define TESTS_MOVED_CLOCK_H

/* From here on time passes only when it is moved. */
void clock_hold(void);
/* It runs again, ahead by what it was moved. */
void clock_run(void);
/* Forward. */
void clock_move(double ms);

#endif
