/* Numbers within limits and multiples: a text is accepted exactly when integer arithmetic, in units of 0.0001, says so;
 * decimals of many digits by a table.
 * SPDX-License-Identifier: Apache-2.0 */
#include "constraint/number.h"
#include "constraint/run.h"
#include "support/support.h"

enum { UNITS = 10000 };

typedef struct machine {
    net g;
    run r;
} machine;

/* lo, hi, multiple: NULL for none. */
static void machine_open(machine *m, bool whole, const char *lo, const char *hi, int open, const char *of) {
    static net_numbers which;
    decimal d;
    which = (net_numbers){.whole = whole, .has_lo = lo, .has_hi = hi, .lo_open = open & 1, .hi_open = open & 2};
    if (lo) assert_true(decimal_read(&which.lo, lo));
    if (hi) assert_true(decimal_read(&which.hi, hi));
    if (of) assert_true(decimal_read(&d, of) && multiple_add(&which.multiple, &d));
    assert_ok(net_open(&m->g));
    assert_ok(net_finish(&m->g, net_number(&m->g, &which, NET_END)));
    assert_ok(run_open(&m->r, &m->g));
}

static void machine_close(machine *m) {
    run_clear(&m->r);
    net_clear(&m->g);
}

static bool takes(machine *m, const char *text) {
    uint32_t state = m->r.start;
    m->r.steps = 0;
    for (; *text && state != RUN_DEAD; text++) assert_ok(run_step(&m->r, state, (uint8_t)*text, &state));
    return m->r.states[state].accepts;
}

/* Whole numbers of a range: every number near its ends. */
static void integer_ranges_accept_exactly_their_numbers(void **state) {
    (void)state;
    static const int64_t ends[] = {INT64_MIN, -1000000007, -1000, -999, -101, -100,  -99,        -11,      -10, -9,
                                   -1,        0,           1,     2,    9,    10,    11,         57,       99,  100,
                                   101,       255,         999,   1000, 4096, 99999, 1000000007, INT64_MAX};
    enum { N = sizeof ends / sizeof *ends };
    for (size_t a = 0; a < N; a++) {
        for (size_t b = a; b < N; b++) {
            machine m;
            char lo[32], hi[32], text[32];
            snprintf(lo, sizeof lo, "%lld", (long long)ends[a]);
            snprintf(hi, sizeof hi, "%lld", (long long)ends[b]);
            machine_open(&m, true, lo, hi, 0, NULL);
            for (size_t i = 0; i < N; i++) {
                for (int64_t d = -2; d <= 2; d++) {
                    int64_t x;
                    if (__builtin_add_overflow(ends[i], d, &x)) continue;
                    snprintf(text, sizeof text, "%lld", (long long)x);
                    if (takes(&m, text) != (ends[a] <= x && x <= ends[b])) fail_msg("%s in %s..%s", text, lo, hi);
                }
            }
            assert_false(takes(&m, "00") || takes(&m, "-0") || takes(&m, "01") || takes(&m, "") || takes(&m, "1.0"));
            machine_close(&m);
        }
    }
}

/* x units, with as many digits after the point as are needed, and `zeros` more. */
static void write_units(char *out, size_t room, int64_t x, int zeros) {
    int64_t size = x < 0 ? -x : x, part = size % UNITS;
    int n = snprintf(out, room, "%s%lld.%04d", x < 0 ? "-" : "", (long long)(size / UNITS), (int)part);
    while (out[n - 1] == '0') out[--n] = 0;
    for (int i = 0; i < zeros; i++) out[n++] = '0';
    out[n] = 0;
    if (out[n - 1] == '.') out[n - 1] = 0;
}

typedef struct range {
    bool whole, has_lo, has_hi;
    int64_t lo, hi, of; /* units; of is 0: all numbers */
    int open;
} range;

static bool contains(const range *r, int64_t x) {
    if (r->has_lo && (r->open & 1 ? x <= r->lo : x < r->lo)) return false;
    if (r->has_hi && (r->open & 2 ? x >= r->hi : x > r->hi)) return false;
    return r->of == 0 || x % r->of == 0;
}

static int64_t draw(uint64_t *seed) {
    static const int64_t steps[] = {1, 10, 100, 1000, UNITS, 10 * UNITS, 100 * UNITS};
    int64_t step = steps[test_random(seed) % 7];
    return ((int64_t)(test_random(seed) % 41) - 20) * step + (int64_t)(test_random(seed) % 3) - 1;
}

static void check_range(const range *r, uint64_t *seed, size_t *inside) {
    machine m;
    char lo[40], hi[40], of[40], text[40];
    write_units(lo, sizeof lo, r->lo, 0);
    write_units(hi, sizeof hi, r->hi, 0);
    write_units(of, sizeof of, r->of, 0);
    machine_open(&m, r->whole, r->has_lo ? lo : NULL, r->has_hi ? hi : NULL, r->open, r->of ? of : NULL);
    for (int i = 0; i < 120; i++) {
        int64_t near = i % 3 == 0 ? draw(seed) : i % 3 == 1 ? r->lo : r->hi, x = near + i / 6 - 10;
        if (r->of && i % 2) x -= x % r->of;
        if (r->whole && i % 4) x -= x % UNITS;
        bool fraction = x % UNITS != 0, expected = contains(r, x) && !(r->whole && fraction);
        write_units(text, sizeof text, x, r->whole && !fraction ? 0 : (int)(test_random(seed) % 3));
        if (r->whole && strchr(text, '.')) expected = false;
        if (takes(&m, text) != expected)
            fail_msg("%s in %s..%s, open %d, multiples of %s, whole %d: %d", text, r->has_lo ? lo : "",
                     r->has_hi ? hi : "", r->open, of, r->whole, !expected);
        *inside += expected;
    }
    machine_close(&m);
}

static void decimals_within_limits_are_accepted_exactly(void **state) {
    (void)state;
    static const int64_t multiples[] = {1, 2, 5, 7, 75, 100, 250, 300, 5000, 30000, 120000, 70000, 1000000, 15000};
    uint64_t seed = 5;
    size_t inside = 0, many = test_is_long() ? 20000 : 1500;
    for (size_t i = 0; i < many; i++) {
        range r = {.whole = i % 3 == 0, .has_lo = i % 5 != 0, .has_hi = i % 7 != 0, .open = (int)(i % 4)};
        r.lo = draw(&seed);
        r.hi = i % 2 ? r.lo + (int64_t)(test_random(&seed) % 30) : draw(&seed);
        r.of = i % 4 == 1 ? 0 : multiples[test_random(&seed) % 14];
        check_range(&r, &seed, &inside);
    }
    assert_true(inside > many * 5);
}

#define NINES "99999999999999999999999999999999999999999999999999"

static void decimals_of_any_length_are_exact(void **state) {
    (void)state;
    static const struct {
        const char *lo, *hi;
        int open;
        const char *of, *text;
        bool expected;
    } rows[] = {
        {"0.1", "0.3", 0, NULL, "0.1", true},
        {"0.1", "0.3", 0, NULL, "0.099999999999999999", false},
        {"0.1", "0.3", 1, NULL, "0.1", false},
        {"0.1", "0.3", 1, NULL, "0.100000000000000001", true},
        {"0.1", "0.3", 0, NULL, "0.300", true},
        {"0.1", "0.3", 0, NULL, "0.300000000000000001", false},
        {"9007199254740993.5", NULL, 0, NULL, "9007199254740993.5", true},
        {"9007199254740993.5", NULL, 0, NULL, "9007199254740993.4", false},
        {"9007199254740993.5", NULL, 0, NULL, "9007199254740993", false},
        {NINES, NULL, 0, NULL, NINES, true},
        {NINES, NULL, 1, NULL, NINES, false},
        {NINES, NULL, 1, NULL, "1" NINES, true},
        {NINES, NULL, 0, NULL, "12", false},
        {"-" NINES ".25", "0", 0, NULL, "-" NINES ".25", true},
        {"-" NINES ".25", "0", 0, NULL, "-" NINES ".250000000000000001", false},
        {"1e3", "1.0025E+3", 0, NULL, "1002.5", true},
        {"1e3", "1.0025E+3", 0, NULL, "1002.6", false},
        {"1e-30", "2e-30", 3, NULL, "0.0000000000000000000000000000015", true},
        {"1e-30", "2e-30", 3, NULL, "0.000000000000000000000000000001", false},
        {NULL, NULL, 0, "0.0001", "0.0075", true},
        {NULL, NULL, 0, "0.0001", "0.00751", false},
        {NULL, NULL, 0, "0.0001", "-17.50000000", true},
        {NULL, NULL, 0, "997", "-996003", true},
        {NULL, NULL, 0, "997", "996004", false},
        {NULL, NULL, 0, "1000000000", "123000000000", true},
        {NULL, NULL, 0, "1000000000", "123000000001", false},
        {NULL, NULL, 0, "1e-8", "12391239123", true},
        {NULL, NULL, 0, "1.5", "4.5", true},
        {NULL, NULL, 0, "1.5", "35", false},
        {NULL, NULL, 0, "1.5", "0", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        machine m;
        machine_open(&m, false, rows[i].lo, rows[i].hi, rows[i].open, rows[i].of);
        if (takes(&m, rows[i].text) != rows[i].expected) fail_msg("row %zu: %s", i, rows[i].text);
        machine_close(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integer_ranges_accept_exactly_their_numbers),
        cmocka_unit_test(decimals_within_limits_are_accepted_exactly),
        cmocka_unit_test(decimals_of_any_length_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
