/* Which positions a query sees: functions of integers, tested without tensors.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_VISIBLE_H
#define MN_KV_VISIBLE_H

#include <stdint.h>

/* First position of the recent part that a query at `position` sees; the last is `position` itself. window
 * counts the query (Transformers' meaning: position - window < k <= position); 0: everything. */
static inline int64_t visible_first(int64_t position, int window) {
    return window > 0 && position >= window ? position - window + 1 : 0;
}

#endif
