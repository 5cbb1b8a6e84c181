/* Decimals of a schema's limits, and the numbers they allow as nodes of a network.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_CONSTRAINT_NUMBER_H
#define MN_CONSTRAINT_NUMBER_H

#include "constraint/net.h"

enum { DECIMAL_DIGITS = 1000, MULTIPLE_MOST = 1000000000 };

/* 0.digits times 10^point; zero has no digits. */
typedef struct decimal {
    bool negative;
    int n, point;
    uint8_t digits[DECIMAL_DIGITS]; /* neither the first nor the last is zero */
} decimal;

/* A number as JSON writes it; what follows it is not read. False: more than DECIMAL_DIGITS before or after the point.
 */
bool decimal_read(decimal *d, const char *text);
int decimal_compare(const decimal *a, const decimal *b);

/* Multiples of of/10^scale; of is 0: all numbers. */
typedef struct multiple {
    uint64_t of;
    unsigned scale;
} multiple;

/* Only what is a multiple of d (above zero), too. False: the least common multiple has too many digits. */
bool multiple_add(multiple *m, const decimal *d);

typedef struct net_numbers {
    bool whole;    /* without a point */
    bool fraction; /* no whole number, supported without the others */
    bool has_lo, has_hi;
    decimal lo, hi;
    bool lo_open, hi_open; /* the limit itself is excluded */
    multiple multiple;
} net_numbers;

/* Without limits and multiples: up to 18 digits before and after the point, and an exponent. Else without an exponent,
 * and with as many digits as the limits need. NET_FAIL when there is no such number. */
uint32_t net_number(net *g, const net_numbers *which, uint32_t next);

#endif
