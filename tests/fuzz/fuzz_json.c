/* Any bytes as a JSON text: see support/hostile.h for what must hold.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/hostile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    hostile_json(data, n);
    return 0;
}
