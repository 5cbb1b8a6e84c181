/* A system without O_TMPFILE, fallocate and io_uring, in programs
 * that are linked with --wrap for open, fallocate and uring_open (tests/CMakeLists.txt).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_OLD_SYSTEM_H
#define TESTS_OLD_SYSTEM_H

#include <stdbool.h>

/* Whether the system is such a one from now on. */
void old_system(bool is_old);

#endif
