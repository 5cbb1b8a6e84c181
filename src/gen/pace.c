/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/pace.h"

#include <math.h>

enum {
    N_TIMES = sizeof((pace *)0)->others_ms / sizeof(double),
    LEAST_TOKENS = 8, /* that are worth a pass, where every pass may take as many */
    LEAST_LATER = 16, /* else: then half of the passes or more have none, and are as fast as without prompts */
    MOST_PASSES = 16, /* with prompts, then one is measured without */
    SHORT_PASSES = 64 /* of the others: a prompt that takes less time is short */
};

static int time_of_others(int n_others) {
    int k = 0;
    while (k < N_TIMES - 1 && n_others >> (k + 1)) k++;
    return k;
}

/* How many times as much as asked the others are slowed down: 1 or more. */
static double urgency(const pace *p, const pace_work *work) {
    const double short_ms = SHORT_PASSES * p->others_ms[time_of_others(work->n_others)];
    const double prompts_ms = (double)work->n_tokens * p->token_ms;
    const double by_number = (double)work->n_prompts / work->n_others;
    return fmax(fmax(1, by_number), prompts_ms > 0 ? short_ms * work->n_prompts / prompts_ms : 1);
}

/* What prompts may take for a pass. */
static double earned_ms(const pace *p, const pace_work *work) {
    return (p->slowdown - 1) * urgency(p, work) * p->others_ms[time_of_others(work->n_others)];
}

int64_t pace_tokens(const pace *p, const pace_work *work) {
    if (p->others_ms[time_of_others(work->n_others)] <= 0 || p->n_with_prompts == MOST_PASSES) return 0;
    if (p->token_ms <= 0) return LEAST_LATER;
    const double n = p->credit_ms / p->token_ms;
    const int least = earned_ms(p, work) / p->token_ms >= LEAST_TOKENS ? LEAST_TOKENS : LEAST_LATER;
    return n < least ? 0 : n > INT32_MAX ? INT32_MAX : (int64_t)n;
}

static void learn(double *mean, double value) {
    *mean = *mean > 0 ? *mean + (value - *mean) / 4 : value;
}

void pace_learn(pace *p, const pace_work *work, int64_t n_tokens, double ms) {
    double *others_ms = &p->others_ms[time_of_others(work->n_others)];
    p->n_with_prompts = n_tokens > 0 ? p->n_with_prompts + 1 : 0;
    if (n_tokens == 0) learn(others_ms, ms);
    double extra = ms - *others_ms;
    if (n_tokens > 0 && extra > 0) learn(&p->token_ms, extra / (double)n_tokens);
    p->credit_ms = work->n_prompts == 0 ? 0 : p->credit_ms + earned_ms(p, work);
    if (n_tokens > 0) p->credit_ms -= extra;
}
