/* A program whose list has no case; no_case.sh asserts that it fails.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

int main(void) {
    const struct CMUnitTest *none = NULL;
    return _cmocka_run_group_tests("none", none, 0, NULL, NULL);
}
