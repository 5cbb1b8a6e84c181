/* Bytes of blocks that the library holds, in programs whose posix_memalign and free are wrapped (tests/CMakeLists.txt).
 * Resident memory would depend on the sizes of the system's pages. Not for several threads at once.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_HEAP_BYTES_H
#define TESTS_HEAP_BYTES_H

#include <stdint.h>

typedef struct heap_counters {
    int64_t live;
    int64_t most; /* the maximum of live since a test last set this field */
} heap_counters;

extern heap_counters heap_bytes;

#endif
