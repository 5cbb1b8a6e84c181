/* `mneme advise`: how much is computed in a given time.
 * SPDX-License-Identifier: Apache-2.0 */
#include "advise/advise.h"
#include "support/support.h"

/* From a machine that computes 20,000 tokens a second to one that computes 2. */
static const pass_cost costs[] = {{0.05, 0.1}, {1.2, 7}, {1, 100}, {50, 200}, {500, 500}, {1.5, 1.5}};
enum { N_COSTS = sizeof costs / sizeof *costs };

/* Four segments: one is compared, three are timed. In each the last token is not computed. */
static double effort_cost(const pass_cost *cost, pass_effort e) {
    size_t timed = e.n_compared / 8 < 4 ? 4 : e.n_compared / 8, single = e.n_compared - 1 + 3 * (timed - 1);
    return cost->token_ms * (double)e.depth + cost->single_ms * (double)single;
}

/* A quarter of the time is left for caches that are slower than dynamic. */
static void efforts_fit_in_the_time(void **state) {
    (void)state;
    for (int i = 0; i < N_COSTS; i++) {
        for (int passes = 1; passes <= 18; passes++) {
            for (double ms = 10; ms < 1e8; ms *= 3) {
                pass_effort e = advise_effort(&costs[i], passes, ms, 4096);
                assert_in_range(e.depth, 64, 4096);
                assert_in_range(e.n_compared, 16, 128);
                const bool is_least = e.depth == 64 && e.n_compared == 16;
                if (!is_least && effort_cost(&costs[i], e) * passes * 1.25 > ms * (1 + 1e-9))
                    fail_msg("cost %d, %d passes, %g ms: depth %zu, %zu compared", i, passes, ms, e.depth,
                             e.n_compared);
            }
        }
    }
}

static void more_time_is_used(void **state) {
    (void)state;
    for (int i = 0; i < N_COSTS; i++) {
        pass_effort before = {64, 16};
        for (double ms = 1; ms < 1e9; ms *= 2) {
            pass_effort e = advise_effort(&costs[i], 14, ms, 4096);
            assert_true(e.n_compared >= before.n_compared);
            assert_true(e.depth >= before.depth || e.n_compared > before.n_compared);
            before = e;
        }
        assert_int_equal(before.depth, 4096);
        assert_int_equal(before.n_compared, 128);
    }
}

static void short_contexts_stay_short(void **state) {
    (void)state;
    for (size_t most = 1; most < 64; most++) {
        assert_int_equal(advise_effort(&costs[0], 14, 60000, most).depth, most);
        assert_int_equal(advise_effort(&costs[0], 14, 0, most).depth, most);
        assert_int_equal(advise_effort(&costs[0], 14, -5, most).n_compared, 16);
    }
}

/* A cache that needs so many bytes, decodes so many tokens a second and diverges by so many nats. */
static advised_cache made(uint64_t peak, double per_second, double kl) {
    return (advised_cache){.peak_bytes = peak,
                           .fits = true,
                           .is_measured = true,
                           .m = {.has_begun = true, .median_ms = {1e3 / per_second}, .kl = kl * 10}};
}

/* The closest one that is at least half as fast as the fastest; the front by hand. */
static void one_is_chosen(void **state) {
    (void)state;
    static const struct {
        double rows[4][3];
        int n, chosen;
        bool front[4];
    } cases[] = {
        {{{90, 100, 0}, {90, 99, 0}, {20, 60, 0}, {30, 110, 0.1}}, 4, 0, {true, true, true, true}},
        {{{20, 49, 0}, {50, 100, 0.01}, {40, 95, 0.02}, {60, 95, 0.02}}, 4, 1, {true, true, true, false}},
        {{{20, 51, 0}, {50, 100, 0.01}, {40, 95, 0.02}, {60, 120, 0.02}}, 4, 1, {true, true, true, true}},
        {{{20, 70, 0}, {50, 100, 0.01}, {40, 50, 0.02}, {10, 65, 0}}, 4, 0, {false, true, false, true}},
        {{{30, 100, 0.5}, {30, 80, 0.5}, {30, 95, 0.4}, {31, 95, 0.4}}, 4, 2, {false, false, true, false}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        advice *a = calloc(1, sizeof *a);
        assert_non_null(a);
        a->n = cases[i].n;
        a->t.n_segments = 1;
        a->t.n_compared = 10;
        for (int k = 0; k < a->n; k++)
            a->caches[k] = made((uint64_t)cases[i].rows[k][0], cases[i].rows[k][1], cases[i].rows[k][2]);
        advise_choose(a);
        if (a->recommended != cases[i].chosen) fail_msg("case %zu: row %d is chosen", i, a->recommended);
        for (int k = 0; k < a->n; k++)
            if (a->caches[k].is_on_front != cases[i].front[k]) fail_msg("case %zu: the front and row %d", i, k);
        a->caches[cases[i].chosen].fits = false; /* neither chosen nor a reason to leave others out */
        advise_choose(a);
        assert_int_not_equal(a->recommended, cases[i].chosen);
        assert_false(a->caches[cases[i].chosen].is_on_front);
        free(a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(efforts_fit_in_the_time),
        cmocka_unit_test(more_time_is_used),
        cmocka_unit_test(short_contexts_stay_short),
        cmocka_unit_test(one_is_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
