/* A stable sort of pointers. It takes n log n steps whatever the input is, so names from a hostile file cannot slow it
 * down as they can a hash table.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_SORT_H
#define MN_BASE_SORT_H

#include <stddef.h>

#include "base/status.h"

/* Negative, zero or positive as *a comes before, with or after *b. */
typedef int (*sort_order)(const void *a, const void *b);

/* Sorts n pointers by what they point to. MN_E_NOMEM leaves them as they were. */
mn_status sort_pointers(const void **items, size_t n, sort_order order);

#endif
