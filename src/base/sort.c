/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sort.h"

#include <string.h>

#include "base/mem.h"

/* Merges from[lo..middle) and from[middle..hi) into to[lo..hi). */
static void merge(const void **from, const void **to, size_t lo, size_t middle, size_t hi, sort_order order) {
    size_t a = lo, b = middle;
    for (size_t i = lo; i < hi; i++) {
        bool take_b = a >= middle || (b < hi && order(from[b], from[a]) < 0);
        to[i] = take_b ? from[b++] : from[a++];
    }
}

mn_status sort_pointers(const void **items, size_t n, sort_order order) {
    bool sorted = true;
    for (size_t i = 1; i < n && sorted; i++) sorted = order(items[i - 1], items[i]) <= 0;
    if (sorted) return MN_OK;
    const void **scratch = mem_alloc_raw(n, sizeof *scratch);
    if (!scratch) return MN_E_NOMEM;
    const void **from = items, **to = scratch;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t middle = lo + width < n ? lo + width : n, hi = middle + width < n ? middle + width : n;
            merge(from, to, lo, middle, hi, order);
        }
        const void **swap = from;
        from = to;
        to = swap;
    }
    if (from != items) memcpy(items, from, n * sizeof *items);
    mem_free(scratch);
    return MN_OK;
}
