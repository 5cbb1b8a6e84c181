/* The pieces of JSON as nodes: strings, white space, numbers within limits.
 * SPDX-License-Identifier: Apache-2.0 */
#include "constraint/net.h"

#include <stdio.h>
#include <string.h>

enum { DIGITS = 20 };

/* Digits after the point and of an exponent are limited so that a number cannot go on for ever and stays finite. */
#define FRACTION            "(?:\\.\\d{1,18})?"
#define FRACTION_ABOVE_ZERO "\\.\\d{0,17}[1-9]"
#define FRACTION_ZERO       "(?:\\.0{1,18})?"
#define NUMBER              "-?(?:0|[1-9]\\d{0,17})" FRACTION "(?:[eE][+-]?\\d{1,2})?"

#define HEX "[0-9A-Fa-f]"
#define CHARACTER                                                                                                      \
    "[^\"\\\\\\x00-\\x1F]|\\\\(?:[\"\\\\/bfnrt]|u(?:[0-9A-CEFa-cef]" HEX "{3}|[Dd][0-7]" HEX "{2}|[Dd][89ABab]" HEX    \
    "{2}\\\\u[Dd][C-Fc-f]" HEX "{2}))"

uint32_t net_json_rest(net *g, uint32_t next) {
    uint32_t loop = net_loop(g, net_bytes(g, '"', '"', next));
    net_loop_body(g, loop, net_plain(g, CHARACTER, loop));
    return loop;
}

uint32_t net_json_string(net *g, uint32_t min, uint32_t max, uint32_t next) {
    uint32_t rest;
    if (min == 0 && max == NET_MANY) {
        rest = net_json_rest(g, next);
    } else {
        rest = net_repeat(g, net_plain(g, CHARACTER, NET_END), min, max, net_bytes(g, '"', '"', next));
    }
    return net_bytes(g, '"', '"', rest);
}

uint32_t net_json_space(net *g, uint32_t next) {
    return net_plain(g, " |\\n {0,32}|", next);
}

/* ---- whole numbers ---- */

typedef struct digit_range {
    net *g;
    char lo[DIGITS + 1], hi[DIGITS + 1]; /* equally many digits */
    size_t n;
    uint32_t next;
} digit_range;

static uint32_t any_digits(const digit_range *r, size_t n) {
    uint32_t node = r->next;
    while (n-- > 0) node = net_bytes(r->g, '0', '9', node);
    return node;
}

/* The digits from the k-th on, those before it being equal to the bounds that still hold. */
static uint32_t digits_from(const digit_range *r, size_t k, bool above_lo, bool below_hi) {
    if (k == r->n) return r->next;
    if (!above_lo && !below_hi) return any_digits(r, r->n - k);
    unsigned lo = above_lo ? (unsigned char)r->lo[k] : '0', hi = below_hi ? (unsigned char)r->hi[k] : '9';
    if (lo == hi) return net_bytes(r->g, lo, hi, digits_from(r, k + 1, above_lo, below_hi));
    unsigned from = above_lo ? lo + 1 : lo, to = below_hi ? hi - 1 : hi;
    uint32_t node = net_bytes(r->g, from, to, any_digits(r, r->n - k - 1));
    if (above_lo) node = net_split(r->g, net_bytes(r->g, lo, lo, digits_from(r, k + 1, true, false)), node);
    if (below_hi) node = net_split(r->g, net_bytes(r->g, hi, hi, digits_from(r, k + 1, false, true)), node);
    return node;
}

/* Digits without a sign and without zeros in front. */
static uint32_t magnitude(net *g, uint64_t lo, uint64_t hi, uint32_t next) {
    uint32_t node = NET_FAIL;
    uint64_t first = 0; /* of the numbers with n digits */
    for (size_t n = 1; n < DIGITS && first <= hi; n++) {
        uint64_t last = first ? first * 10 - 1 : 9, a = lo > first ? lo : first, b = hi < last ? hi : last;
        if (a <= b) {
            digit_range r = {.g = g, .n = n, .next = next};
            snprintf(r.lo, sizeof r.lo, "%llu", (unsigned long long)a);
            snprintf(r.hi, sizeof r.hi, "%llu", (unsigned long long)b);
            node = net_split(g, digits_from(&r, 0, true, true), node);
        }
        first = last + 1;
    }
    return node;
}

static uint64_t absolute(int64_t x) {
    return x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
}

uint32_t net_integer(net *g, int64_t lo, int64_t hi, uint32_t next) {
    uint32_t node = NET_FAIL;
    if (lo == -NET_INTEGER_MOST && hi == NET_INTEGER_MOST) return net_plain(g, "0|-?[1-9]\\d{0,17}", next);
    if (hi >= 0 && lo <= hi) node = magnitude(g, lo > 0 ? (uint64_t)lo : 0, (uint64_t)hi, next);
    if (lo < 0 && lo <= hi)
        node = net_split(g, node, net_bytes(g, '-', '-', magnitude(g, hi < 0 ? absolute(hi) : 1, absolute(lo), next)));
    return node;
}

/* ---- numbers ---- */

static uint32_t magnitude_real(net *g, uint64_t lo, bool lo_open, uint64_t hi, bool hi_open, uint32_t next) {
    uint32_t node = NET_FAIL;
    if (lo < hi) {
        node = magnitude(g, lo, lo, net_plain(g, lo_open ? FRACTION_ABOVE_ZERO : FRACTION, next));
        if (lo + 1 < hi) node = net_split(g, node, magnitude(g, lo + 1, hi - 1, net_plain(g, FRACTION, next)));
    }
    bool has_hi = lo < hi ? !hi_open : lo == hi && !lo_open && !hi_open;
    return has_hi ? net_split(g, node, magnitude(g, hi, hi, net_plain(g, FRACTION_ZERO, next))) : node;
}

uint32_t net_number(net *g, const net_interval *within, uint32_t next) {
    if (!within) return net_plain(g, NUMBER, next);
    int64_t lo = within->lo, hi = within->hi;
    uint32_t node = NET_FAIL;
    if (lo > hi) return NET_FAIL;
    if (hi >= 0)
        node = magnitude_real(g, lo > 0 ? (uint64_t)lo : 0, lo >= 0 && within->lo_open, (uint64_t)hi, within->hi_open,
                              next);
    if (lo < 0) { /* mirrored; zero belongs to it only as an open end */
        bool touches = hi < 0 ? within->hi_open : hi == 0 && within->hi_open;
        node = net_split(
            g, node,
            net_bytes(g, '-', '-',
                      magnitude_real(g, hi < 0 ? absolute(hi) : 0, touches, absolute(lo), within->lo_open, next)));
    }
    return node;
}
