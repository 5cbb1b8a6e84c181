/* Any bytes as a recording: see support/hostile.h for what must hold.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/hostile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    hostile_audio(data, n);
    return 0;
}
