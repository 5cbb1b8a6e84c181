/* Any bytes as a saved cache: see support/hostile.h for what must hold. As they are, and with the checksums put right, so that what
 * lies behind them is reached.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "support/hostile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    uint8_t *copy = malloc(n ? n : 1);
    MUST_HOLD(copy);
    if (n) memcpy(copy, data, n);
    hostile_archive(data, n);
    hostile_archive_reseal(copy, n);
    hostile_archive(copy, n);
    free(copy);
    return 0;
}
