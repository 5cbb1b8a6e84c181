/* Which positions a query attends to, which may be dropped, and which are quantized: functions of integers, tested
 * without tensors.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_VISIBLE_H
#define MN_KV_VISIBLE_H

#include <stdint.h>

/* First position of the recent part that a query at `position` attends to; the last is `position` itself. window counts
 * the query (Transformers' meaning: position - window < k <= position); 0: everything. */
static inline int64_t visible_first(int64_t position, int window) {
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* Position of a query relative to the sinks: its index among the tokens that it attends to. */
static inline int64_t visible_slot(int64_t position, int sinks, int window) {
    int64_t most = (int64_t)sinks + window - 1;
    return window > 0 && position > most ? most : position;
}

/* The unit of quantization: queries inside one unit read every token in the same form. It divides the page, and the
 * residual unless steps would become too short. */
static inline int quantize_unit(int residual, int page_tokens) {
    enum { SHORTEST = 32 };
    int unit = page_tokens;
    while (unit > SHORTEST && unit % 2 == 0 && residual % unit) unit /= 2;
    return unit;
}

/* Tokens [0, result) are quantized when n tokens are held: whole pages that end at least `residual` tokens before the
 * unit of token n. */
static inline int64_t quantize_until(int64_t n, int residual, int page_tokens) {
    int unit = quantize_unit(residual, page_tokens);
    int64_t end = n / unit * unit - residual;
    return end > 0 ? end / page_tokens * page_tokens : 0;
}

#endif
