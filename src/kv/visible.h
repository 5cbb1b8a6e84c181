/* Which positions a query sees, what may be forgotten, and what is sealed: functions of integers, tested
 * without tensors.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_VISIBLE_H
#define MN_KV_VISIBLE_H

#include <stdint.h>

/* First position of the recent part that a query at `position` sees; the last is `position` itself. window
 * counts the query (Transformers' meaning: position - window < k <= position); 0: everything. */
static inline int64_t visible_first(int64_t position, int window) {
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* Where a query stands when it looks at the sinks: its place among the tokens that it sees. */
static inline int64_t visible_slot(int64_t position, int sinks, int window) {
    int64_t most = (int64_t)sinks + window - 1;
    return window > 0 && position > most ? most : position;
}

/* First position that a cache of n tokens still needs for the queries from n - slack on. */
static inline int64_t needed_first(int64_t n, int window, int slack) {
    return n > slack ? visible_first(n - slack, window) : 0;
}

/* The unit of sealing: queries inside one unit see every token in the same form. It divides the page, and the
 * residual where that leaves steps of a sensible length. */
static inline int seal_unit(int residual, int page_tokens) {
    enum { SHORTEST = 32 };
    int unit = page_tokens;
    while (unit > SHORTEST && unit % 2 == 0 && residual % unit) unit /= 2;
    return unit;
}

/* Tokens [0, result) are sealed when n tokens are held: whole pages that end at least `residual` tokens
 * before the unit that token n lies in. */
static inline int64_t seal_until(int64_t n, int residual, int page_tokens) {
    int unit = seal_unit(residual, page_tokens);
    int64_t end = n / unit * unit - residual;
    return end > 0 ? end / page_tokens * page_tokens : 0;
}

#endif
