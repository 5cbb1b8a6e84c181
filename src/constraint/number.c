/* Numbers within limits, and multiples: exact, digit by digit.
 *
 * The digits of a number are read against those of its limits. A limit holds as long as all digits so far are equal to
 * its own; without one that holds, only the number of digits left and the remainder matter, so these nodes are a
 * table. Everything is built from the last digit to the first.
 * SPDX-License-Identifier: Apache-2.0 */
#include "constraint/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DIGITS = 18, /* before and after the point, where no limit has more: a number cannot go on for ever */
    STATES = 20000,
    EXPONENT = 100000, /* larger ones are far beyond DECIMAL_DIGITS */
};

#define INTEGER  "0|-?[1-9]\\d{0,17}"
#define NUMBER   "-?(?:0|[1-9]\\d{0,17})(?:\\.\\d{1,18})?(?:[eE][+-]?\\d{1,2})?"
#define FRACTION "-?(?:0|[1-9]\\d{0,17})\\.\\d{0,17}[1-9]"
#define DEAD     UINT32_MAX /* a remainder that no digit can mend */

/* ---- decimals ---- */

bool decimal_read(decimal *d, const char *text) {
    bool behind = false;
    *d = (decimal){.negative = *text == '-'};
    text += d->negative;
    for (; (*text >= '0' && *text <= '9') || *text == '.'; text++) {
        if (*text == '.') {
            behind = true;
        } else if (*text == '0' && d->n == 0) {
            d->point -= behind;
        } else {
            if (d->n == DECIMAL_DIGITS) return false;
            d->digits[d->n++] = (uint8_t)(*text - '0');
            d->point += !behind;
        }
    }
    while (d->n && d->digits[d->n - 1] == 0) d->n--;
    if (d->n == 0) *d = (decimal){0};
    if (d->n && (*text == 'e' || *text == 'E')) {
        long exponent = strtol(text + 1, NULL, 10);
        d->point += (int)(exponent > EXPONENT ? EXPONENT : exponent < -EXPONENT ? -EXPONENT : exponent);
    }
    return d->point <= DECIMAL_DIGITS && d->n - d->point <= DECIMAL_DIGITS;
}

static int sign_of(const decimal *d) {
    return d->n == 0 ? 0 : d->negative ? -1 : 1;
}

/* The digit worth 10^weight. */
static unsigned digit_of(const decimal *d, int weight) {
    int i = d->point - 1 - weight;
    return i >= 0 && i < d->n ? d->digits[i] : 0;
}

int decimal_compare(const decimal *a, const decimal *b) {
    int sign = sign_of(a), difference = a->point - b->point;
    if (sign != sign_of(b)) return sign - sign_of(b);
    for (int i = 1; difference == 0 && i <= DECIMAL_DIGITS; i++)
        difference = (int)digit_of(a, a->point - i) - (int)digit_of(b, b->point - i);
    return difference * sign;
}

static int whole_digits(const decimal *d) {
    return d->point > 1 ? d->point : 1;
}

static int most(int a, int b) {
    return a > b ? a : b;
}

/* ---- multiples ---- */

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

bool multiple_add(multiple *m, const decimal *d) {
    multiple other = {.of = 0};
    for (int i = 0; i < d->n || i < d->point; i++) {
        other.of = other.of * 10 + (i < d->n ? d->digits[i] : 0);
        if (other.of > MULTIPLE_MOST) return false;
    }
    other.scale = d->n > d->point ? (unsigned)(d->n - d->point) : 0;
    if (m->of == 0) {
        *m = other;
        return other.scale <= DIGITS;
    }
    while (m->scale != other.scale) {
        multiple *coarse = m->scale < other.scale ? m : &other;
        coarse->of *= 10;
        coarse->scale++;
        if (coarse->of > MULTIPLE_MOST) return false;
    }
    m->of = m->of / common_divisor(m->of, other.of) * other.of;
    return m->of <= MULTIPLE_MOST;
}

/* ---- digits ---- */

typedef struct reader {
    net *g;
    uint32_t next;
    unsigned part;                           /* digits after the point, at most */
    uint64_t of;                             /* the number times 10^scale is a multiple of it */
    int scale;                               /* below zero: of so many zeros */
    uint32_t *size;                          /* by digits left: how many remainders are to be told apart */
    uint32_t *row;                           /* in free_nodes, by digits left */
    uint32_t *remainders_lo, *remainders_hi; /* of the first digits of two limits, by digits left */
    uint32_t *free_nodes;                    /* where no limit holds: by digits left and remainder */
} reader;

/* How many of the digits left count for the remainder. Those after them are zeros. */
static int counting(const reader *r, unsigned left) {
    return (int)left + r->scale - (int)r->part;
}

static uint32_t step(const reader *r, unsigned left, uint32_t rest, unsigned digit) {
    int n = counting(r, left);
    if (rest == DEAD || n <= 0) return rest == DEAD || digit ? DEAD : 0;
    uint64_t sum = (uint64_t)rest * 10 + digit;
    if (n == 1) return sum % r->of ? DEAD : 0;
    return (uint32_t)(sum % r->size[left - 1]);
}

static uint32_t free_node(const reader *r, unsigned left, uint32_t rest) {
    return rest == DEAD ? (uint32_t)NET_FAIL : r->free_nodes[r->row[left] + rest];
}

/* to: where each digit leads. */
static uint32_t place_node(const reader *r, unsigned left, const uint32_t *to, bool may_end) {
    net *g = r->g;
    uint32_t node = NET_FAIL, end = may_end ? r->next : (uint32_t)NET_FAIL;
    for (unsigned first = 0, last; left && first < 10; first = last + 1) {
        for (last = first; last < 9 && to[last + 1] == to[first];) last++;
        node = net_split(g, net_bytes(g, '0' + first, '0' + last, to[first]), node);
    }
    if (left > r->part) return node;
    return net_split(g, end, left == r->part ? net_bytes(g, '.', '.', node) : node);
}

/* The table for up to so many digits, and room for what is known of limits. */
static bool fill_free(reader *r, unsigned digits) {
    size_t n = 0, lengths = digits + 1;
    r->size = mem_alloc(4 * lengths, sizeof *r->size);
    if (!r->size) return net_check(r->g, MN_E_NOMEM);
    r->row = r->size + lengths;
    r->remainders_lo = r->row + lengths;
    r->remainders_hi = r->remainders_lo + lengths;
    for (unsigned left = 0; left <= digits; left++) {
        uint64_t size = r->of;
        int count = counting(r, left);
        for (int i = 0; i < count && size > 1; i++) size /= common_divisor(size, 10);
        r->size[left] = count > 0 ? (uint32_t)size : 1;
        r->row[left] = (uint32_t)n;
        n += r->size[left];
    }
    if (n > STATES)
        return net_check(r->g, status_fail(MN_E_UNSUPPORTED, "'multipleOf' takes %zu states, at most %d", n, STATES));
    r->free_nodes = mem_alloc(n, sizeof *r->free_nodes);
    if (!r->free_nodes) return net_check(r->g, MN_E_NOMEM);
    for (unsigned left = 0; left <= digits; left++) {
        for (uint32_t rest = 0; rest < r->size[left]; rest++) {
            uint32_t to[10];
            for (unsigned d = 0; left && d < 10; d++) to[d] = free_node(r, left - 1, step(r, left, rest, d));
            r->free_nodes[r->row[left] + rest] = place_node(r, left, to, rest == 0);
        }
    }
    return r->g->status == MN_OK;
}

typedef struct limit {
    const decimal *at; /* NULL: none */
    bool open;         /* the limit itself is excluded */
} limit;

/* Whether the limit has zeros only in the digits left. */
static bool ends_here(const reader *r, const decimal *d, unsigned left) {
    return d->n == 0 || d->point - d->n >= (int)left - (int)r->part;
}

/* Where the limits that are given hold. */
typedef struct place {
    unsigned left;
    const decimal *lo, *hi;               /* NULL: does not hold */
    bool lo_open, hi_open, first;         /* first: of several digits, so no zero */
    uint32_t rest;                        /* remainder of the digits so far */
    uint32_t lo_node, hi_node, both_node; /* of the next digit */
} place;

static uint32_t limited_node(const reader *r, const place *p) {
    uint32_t to[10];
    int weight = (int)p->left - 1 - (int)r->part;
    unsigned a = p->lo ? digit_of(p->lo, weight) : 0, b = p->hi ? digit_of(p->hi, weight) : 9;
    if (p->rest == DEAD) return NET_FAIL;
    if (p->first && a == 0) a = 1;
    for (unsigned d = 0; p->left && d < 10; d++) {
        bool at_lo = p->lo && d == a, at_hi = p->hi && d == b;
        to[d] = d < a || d > b   ? (uint32_t)NET_FAIL
                : at_lo && at_hi ? p->both_node
                : at_lo          ? p->lo_node
                : at_hi          ? p->hi_node
                                 : free_node(r, p->left - 1, step(r, p->left, p->rest, d));
    }
    bool above = !p->lo || (ends_here(r, p->lo, p->left) && !p->lo_open);
    bool below = !p->hi || !ends_here(r, p->hi, p->left) || !p->hi_open;
    return place_node(r, p->left, to, p->rest == 0 && above && below);
}

/* The remainders of the first digits of d. */
static void follow(const reader *r, const decimal *d, unsigned digits, uint32_t *remainders) {
    remainders[digits] = 0;
    for (unsigned left = digits; left > 0; left--)
        remainders[left - 1] = step(r, left, remainders[left], digit_of(d, (int)left - 1 - (int)r->part));
}

/* Numbers with n digits before the point, of those from lo to hi. */
static uint32_t with_digits(const reader *r, int n, limit lo, limit hi) {
    uint32_t lo_node = NET_FAIL, hi_node = NET_FAIL, both_node = NET_FAIL, node = NET_FAIL;
    unsigned digits = (unsigned)n + r->part, same = digits; /* lo and hi agree until so many digits are left */
    const decimal *low = lo.at && whole_digits(lo.at) == n ? lo.at : NULL;
    const decimal *high = hi.at && whole_digits(hi.at) == n ? hi.at : NULL;
    if (low) follow(r, low, digits, r->remainders_lo);
    if (high) follow(r, high, digits, r->remainders_hi);
    while (low && high && same > 0 &&
           digit_of(low, (int)same - 1 - (int)r->part) == digit_of(high, (int)same - 1 - (int)r->part))
        same--;
    for (unsigned left = low || high ? 0 : digits; left <= digits; left++) {
        place p = {.left = left,
                   .lo_open = lo.open,
                   .hi_open = hi.open,
                   .first = left == digits && n > 1,
                   .lo_node = lo_node,
                   .hi_node = hi_node,
                   .both_node = both_node};
        place at_lo = p, at_hi = p;
        at_lo.lo = p.lo = low;
        at_hi.hi = p.hi = high;
        at_lo.rest = low ? r->remainders_lo[left] : DEAD;
        at_hi.rest = high ? r->remainders_hi[left] : DEAD;
        p.rest = low ? at_lo.rest : high ? at_hi.rest : 0;
        if (left == digits) node = limited_node(r, &p);
        if (left < digits && low && high && left >= same) both_node = limited_node(r, &p);
        if (left < digits) lo_node = limited_node(r, &at_lo);
        if (left < digits) hi_node = limited_node(r, &at_hi);
    }
    return node;
}

/* Numbers without a sign. */
static uint32_t magnitude(const reader *r, int longest, limit lo, limit hi) {
    uint32_t node = NET_FAIL;
    for (int n = whole_digits(lo.at); n <= longest && r->g->status == MN_OK; n++)
        node = net_split(r->g, with_digits(r, n, lo, hi), node);
    return node;
}

/* Digits before the point without an upper limit. */
static int longest_above(const decimal *lo) {
    return whole_digits(lo) < DIGITS ? DIGITS : whole_digits(lo) + 1;
}

static uint32_t build(reader *r, const net_numbers *which) {
    static const decimal zero;
    const decimal *lo = which->has_lo ? &which->lo : NULL, *hi = which->has_hi ? &which->hi : NULL;
    int sign_lo = lo ? sign_of(lo) : -1, sign_hi = hi ? sign_of(hi) : 1;
    limit from = {sign_lo > 0 ? lo : &zero, sign_lo >= 0 && which->lo_open}, to = {hi, which->hi_open};
    limit from_minus = {sign_hi < 0 ? hi : &zero, sign_hi <= 0 ? which->hi_open : which->whole};
    limit to_minus = {lo, which->lo_open};
    if (sign_hi == 0 && which->whole) from_minus.open = true; /* -0 is no whole number here */
    int longest = hi ? whole_digits(hi) : longest_above(from.at);
    int longest_minus = lo ? whole_digits(lo) : longest_above(from_minus.at);
    uint32_t node = NET_FAIL;
    if (!fill_free(r, (unsigned)most(longest, longest_minus) + r->part)) return NET_FAIL;
    if (sign_hi >= 0) node = magnitude(r, longest, from, to);
    if (sign_lo < 0)
        node = net_split(r->g, node, net_bytes(r->g, '-', '-', magnitude(r, longest_minus, from_minus, to_minus)));
    return node;
}

uint32_t net_number(net *g, const net_numbers *which, uint32_t next) {
    bool limited = which->has_lo || which->has_hi || which->multiple.of;
    if (which->whole && which->fraction) return NET_FAIL;
    if (which->fraction && limited)
        net_check(g,
                  status_fail(MN_E_UNSUPPORTED, "'not' of integers is not supported beside other limits of numbers"));
    if (!limited) return net_plain(g, which->whole ? INTEGER : which->fraction ? FRACTION : NUMBER, next);
    if (which->has_lo && which->has_hi && decimal_compare(&which->lo, &which->hi) > 0) return NET_FAIL;
    if (g->status != MN_OK || next == NET_FAIL) return NET_FAIL;
    reader r = {.g = g, .next = next, .of = 1};
    if (!which->whole) {
        int behind_lo = which->has_lo ? which->lo.n - which->lo.point : 0;
        int behind_hi = which->has_hi ? which->hi.n - which->hi.point : 0;
        r.part = (unsigned)most(DIGITS, most(behind_lo, behind_hi) + 1);
    }
    r.scale = (int)r.part;
    if (which->multiple.of) {
        r.of = which->multiple.of;
        r.scale = (int)which->multiple.scale;
    }
    for (; which->whole && r.scale > 0; r.scale--) r.of /= common_divisor(r.of, 10);
    for (; r.of % 10 == 0; r.scale--) r.of /= 10;
    uint32_t node = build(&r, which);
    mem_free(r.free_nodes);
    mem_free(r.size);
    return node;
}
