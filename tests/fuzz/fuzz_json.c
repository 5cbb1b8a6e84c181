/* Random bytes as a JSON text; support/hostile/hostile.h describes the checks.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/hostile/hostile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    hostile_json(data, n);
    return 0;
}
