/* System calls that fail on request: open, read, pread, write, pwrite, writev, fsync, fdatasync,
 * ftruncate, rename, flock, close, fstat, fchmod, mmap and pthread_create of the code under test, in programs that are
 * linked with --wrap for each of them (tests/CMakeLists.txt).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAULT_IO_H
#define TESTS_FAULT_IO_H

#include <stdbool.h>

typedef enum fault_kind {
    FAULT_ENOSPC,
    FAULT_EIO,
    FAULT_EINTR,   /* EINTR, once: the caller must retry */
    FAULT_SHORT,   /* a write or read of half the bytes; other calls: EIO */
    FAULT_FULL,    /* a write of half the bytes, then ENOSPC for all later ones; other calls: EIO */
    FAULT_NOTHING, /* a write of no bytes without an error; other calls: EIO */
    N_FAULTS
} fault_kind;

extern const char *const fault_names[N_FAULTS];

/* The k-th of these calls from now fails (1: the next); 0 disables this. */
void fault_io_arm(int k, fault_kind kind);
/* Disables failures and returns the name of the call that failed, NULL when none did. */
const char *fault_io_disarm(void);

/* The name of the call that failed since fault_io_arm, also after failures were disabled; NULL: none did. */
const char *fault_io_failed(void);

#endif
