/* How prompts are cut between the tokens of others, from measured times: a pass adds to the credit the time that
 * prompts may take, and takes off what they took. So pieces are large enough to be computed well, and the others are
 * slowed down as much as asked in the mean. They are slowed down more
 * - where more prompts wait than others go on, by as many times as much: a prompt then gets the time of a row that goes
 *   on, and rows do not go on few at a time while most wait;
 * - where prompts are short, so that each costs the others less than 64 tokens however it is cut: its first token comes
 *   sooner.
 * No result depends on it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_PACE_H
#define MN_GEN_PACE_H

#include <stdint.h>

typedef struct pace {
    double slowdown;     /* passes take so many times as long as without prompts, in the mean; 0: no limit */
    double others_ms[8]; /* passes without prompts, by the number of feeds: 1, 2 to 3, 4 to 7 ...; 0: not known */
    double token_ms;     /* a token of a prompt beside others; 0: not known */
    double credit_ms;
    int n_with_prompts; /* passes since one without */
} pace;

/* What there is to compute before a pass. */
typedef struct pace_work {
    int n_prompts, n_others; /* feeds; n_others is 1 or more */
    int64_t n_tokens;        /* of the prompts, with those that are computed */
} pace_work;

/* How many tokens of prompts the next pass takes: none while they would be too few to be worth a pass, and now and then
 * none to measure the time without them. */
int64_t pace_tokens(const pace *p, const pace_work *work);

/* After a pass of `ms` that took n_tokens of prompts. */
void pace_learn(pace *p, const pace_work *work, int64_t n_tokens, double ms);

#endif
