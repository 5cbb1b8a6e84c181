/* How prompts are cut between the tokens of others, on a machine whose times are known exactly.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/pace.h"

#include "support/support.h"

/* A pass takes others_ms, and token_ms more for each token of a prompt. */
typedef struct machine {
    double others_ms, token_ms;
    int n_prompts, n_others;
} machine;

enum { MANY = 1 << 20 }; /* tokens of prompts: not short */

/* n passes beside prompts of n_prompt_tokens in all; the mean of their times beside others_ms. */
static double slowdown(pace *p, const machine *m, int64_t n_prompt_tokens, int n) {
    const pace_work work = {m->n_prompts, m->n_others, n_prompt_tokens};
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const int64_t tokens = pace_tokens(p, &work);
        const double ms = m->others_ms + (double)tokens * m->token_ms;
        if (tokens != 0 && tokens < 8) fail_msg("a piece of %d tokens", (int)tokens);
        pace_learn(p, &work, tokens, ms);
        sum += ms;
    }
    return sum / n / m->others_ms;
}

static void near(double value, double wanted) {
    if (value < 0.9 * wanted || value > 1.1 * wanted) fail_msg("passes take %g times as long, not %g", value, wanted);
}

static void as_much_as_asked(void **state) {
    (void)state;
    static const double asked[] = {1.5, 2, 8};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        for (int n_others = 1; n_others <= 256; n_others *= 4) {
            const machine m = {3 + n_others, 1.1, 1, n_others};
            pace p = {.slowdown = asked[i]};
            near(slowdown(&p, &m, MANY, 1000), asked[i]);
        }
    }
}

static int compare(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Not only the mean: pieces come with every pass, or with less than half of them. */
static void the_median_pass_is_not_slower(void **state) {
    (void)state;
    enum { N = 1001 };
    double times[N];
    for (double others_ms = 1; others_ms < 100; others_ms *= 1.05) {
        const machine m = {others_ms, 1, 1, 4};
        const pace_work work = {1, 4, MANY};
        pace p = {.slowdown = 2};
        slowdown(&p, &m, MANY, 100);
        for (int i = 0; i < N; i++) {
            const int64_t tokens = pace_tokens(&p, &work);
            times[i] = others_ms + (double)tokens;
            pace_learn(&p, &work, tokens, times[i]);
        }
        qsort(times, N, sizeof *times, compare);
        if (times[N / 2] > 2.2 * others_ms)
            fail_msg("the median pass takes %g ms, without prompts %g", times[N / 2], others_ms);
    }
}

static void more_where_more_prompts_wait(void **state) {
    (void)state;
    pace p = {.slowdown = 2}, q = p, r = p;
    near(slowdown(&p, &(machine){4, 1, 4, 4}, MANY, 1000), 2);
    near(slowdown(&q, &(machine){4, 1, 15, 1}, MANY, 1000), 1 + 15);
    near(slowdown(&r, &(machine){6, 1, 10, 4}, MANY, 1000), 1 + 2.5);
}

/* The time of 64 passes is 256 ms: twice that of 128 tokens. */
static void more_where_prompts_are_short(void **state) {
    (void)state;
    const machine m = {4, 1, 1, 1};
    pace p = {.slowdown = 2}, q = p, r = p;
    near(slowdown(&p, &m, 256, 1000), 2);
    near(slowdown(&q, &m, 128, 1000), 1 + 2);
    near(slowdown(&r, &m, 32, 1000), 1 + 8);
    p = (pace){.slowdown = 2};
    near(slowdown(&p, &(machine){4, 1, 2, 4}, 2 * 128, 1000), 1 + 2);
}

/* The time without prompts is measured before prompts begin, and again while they go on. */
static void times_are_measured(void **state) {
    (void)state;
    pace p = {.slowdown = 2};
    const machine deep = {40, 1, 1, 4}, shallow = {4, 1, 1, 4};
    assert_int_equal(pace_tokens(&p, &(pace_work){1, 4, MANY}), 0);
    near(slowdown(&p, &deep, MANY, 1000), 2);
    slowdown(&p, &shallow, MANY, 200);
    near(slowdown(&p, &shallow, MANY, 1000), 2);
    near(slowdown(&p, &deep, MANY, 1000), 2);
}

/* What prompts could have taken while there were none is not made up for. */
static void nothing_is_saved_up(void **state) {
    (void)state;
    const pace_work none = {0, 1, 0}, one = {1, 1, MANY};
    pace p = {.slowdown = 2, .token_ms = 1};
    for (int i = 0; i < 1000; i++) pace_learn(&p, &none, 0, 4);
    assert_int_equal(pace_tokens(&p, &one), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_much_as_asked),
                                       cmocka_unit_test(the_median_pass_is_not_slower),
                                       cmocka_unit_test(more_where_more_prompts_wait),
                                       cmocka_unit_test(more_where_prompts_are_short),
                                       cmocka_unit_test(times_are_measured),
                                       cmocka_unit_test(nothing_is_saved_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
