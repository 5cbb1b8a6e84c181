/* Calls of the system that fail when a test wants: open, read, pread, write, pwrite, writev, fsync, fdatasync, ftruncate,
 * rename, flock, close, mmap and pthread_create of the code under test, in programs that are linked with --wrap for each of them
 * (tests/CMakeLists.txt).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAULT_IO_H
#define TESTS_FAULT_IO_H

#include <stdbool.h>

typedef enum fault_kind {
    FAULT_ENOSPC,
    FAULT_EIO,
    FAULT_EINTR,   /* once: what may be interrupted is to be tried again */
    FAULT_SHORT,   /* a write takes half, a read gives half; other calls: EIO */
    FAULT_FULL,    /* a write takes half, all later ones nothing: ENOSPC; other calls: EIO */
    FAULT_NOTHING, /* a write takes no bytes and reports no error; other calls: EIO */
    N_FAULTS
} fault_kind;

extern const char *const fault_names[N_FAULTS];

/* The k-th of these calls from now fails (1 = the very next); 0 turns this off. */
void fault_io_arm(int k, fault_kind kind);
/* Turns it off and gives the name of the call that failed, NULL when none did. */
const char *fault_io_disarm(void);

/* The name of the call that failed since fault_io_arm, also after it was turned off; NULL: none did. */
const char *fault_io_failed(void);

#endif
