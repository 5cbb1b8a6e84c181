/* Random bytes as a saved cache; support/hostile/hostile.h describes the checks. Each input is tried unchanged and with
 * corrected checksums, so that the code after the checksums is reached.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "support/hostile/hostile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    uint8_t *copy = malloc(n ? n : 1);
    MUST_HOLD(copy);
    if (n) memcpy(copy, data, n);
    hostile_archive(data, n);
    hostile_archive_fix_checksums(copy, n);
    hostile_archive(copy, n);
    free(copy);
    return 0;
}
