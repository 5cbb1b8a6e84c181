/* SPDX-License-Identifier: Apache-2.0 */
#include "support/patience.h"

#include <time.h>

#include "support/support.h"

enum { NAPS_PER_MS = 10 };

void patience_nap(int *n_naps, const char *what) {
    const struct timespec nap = {.tv_nsec = 1000000 / NAPS_PER_MS};
    if (++*n_naps > PATIENCE_MS * NAPS_PER_MS) fail_msg("after %d naps it is still not so: %s", *n_naps, what);
    nanosleep(&nap, NULL);
}
