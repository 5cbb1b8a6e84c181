/* Assisted decoding (Leviathan et al. 2023; Chen et al. 2023, "Accelerating large language model decoding with speculative sampling"):
 * tokens that a drafter guesses are computed together with the last chosen one, and those that the model would have chosen are kept.
 *
 * The text is the one that greedy search gives, bit for bit, and when sampling without a draft model's distribution the one that sampling
 * gives with the same seed; with it, text of exactly the same distribution. What is computed together never goes past a point
 * that cannot be taken back (session_quiet_tokens), so that this holds for every cache. SPDX-License-Identifier: Apache-2.0 */
#include "gen/drafter.h"

#include <math.h>

#include "base/mem.h"
#include "base/num.h"

/* One returned sequence. */
typedef struct speculation {
    mn_session *session; /* the first is the row's own */
    drafter *drafter;
    float *logits; /* [1 + most][vocab] behind the last chosen token and each proposal */
    bool is_fed;   /* they are there; else the session's are */
    size_t n_held; /* tokens of the session before they were fed */
    size_t n_proposed;
} speculation;

typedef struct assisted {
    const search_setup *setup;
    chooser chooser;
    speculation *speculations; /* [n_sequences] */
} assisted;

static size_t most_feeds(const search_setup *setup) {
    return setup->n_sequences;
}

/* What an ended sequence needs no more; its pages go to those that go on. */
static void release(speculation *sp, size_t i, sequence *to) {
    if (i > 0) sequence_keep(to, &sp->session);
    drafter_close(&sp->drafter);
    mem_free(sp->logits);
    sp->logits = NULL;
}

static mn_status open_speculation(assisted *s, size_t i) {
    const search_setup *setup = s->setup;
    speculation *sp = &s->speculations[i];
    sp->logits = mem_alloc_raw((1 + drafter_most(setup)) * s->chooser.vocab, sizeof *sp->logits);
    if (!sp->logits) return MN_E_NOMEM;
    const drafter *first = i > 0 ? s->speculations[0].drafter : NULL;
    MN_TRY(drafter_open(&sp->drafter, &s->chooser, &setup->sequences[i], first));
    if (i > 0) return mn_session_fork(&sp->session, setup->session);
    sp->session = setup->session;
    return MN_OK;
}

static mn_status open(void **state, const search_setup *setup) {
    assisted *s = mem_alloc(1, sizeof *s);
    *state = s;
    if (!s) return MN_E_NOMEM;
    s->setup = setup;
    s->speculations = mem_alloc(setup->n_sequences, sizeof *s->speculations);
    if (!s->speculations) return MN_E_NOMEM;
    MN_TRY(chooser_open(&s->chooser, setup, true));
    for (size_t i = 0; i < setup->n_sequences; i++) MN_TRY(open_speculation(s, i));
    return MN_OK;
}

/* ---- verification ---- */

/* Draws that choice_sample, whose streams are the sequences' indices, does not take: in their upper halves. */
enum { ACCEPT_STREAM = 1, REST_STREAM = 2 };

static double uniform(const assisted *s, const sequence *to, unsigned stream) {
    return random_uniform(s->setup->seed, (uint64_t)to->index + ((uint64_t)stream << 32), to->n_ids);
}

/* A draw from max(p - q, 0), p being weighed; from p where rounding leaves nothing of that. */
static int32_t draw_rest(const choice *p, const float *q, double u) {
    double sum = 0;
    size_t last = p->n;
    for (size_t i = 0; i < p->n; i++) sum += fmax(choice_probability(p, i) - (double)q[i], 0);
    double left = u * sum;
    for (size_t i = 0; i < p->n && sum > 0; i++) {
        double more = choice_probability(p, i) - (double)q[i];
        if (!(more > 0)) continue;
        last = i;
        left -= more;
        if (left < 0) break;
    }
    return (int32_t)(last < p->n ? last : choice_draw(p, u));
}

/* The token of this position, by the chooser's scores. A proposal x drawn from q is taken with probability p(x) / q(x), and else a draw from
 * what p has more than q: together that is a draw from p. */
static int32_t pick(assisted *s, const sequence *to, const float *q, int32_t proposed) {
    chooser *c = &s->chooser;
    if (!q) return chooser_pick(c, to);
    choice_weigh(&c->choice, c->scores, c->vocab);
    double p = choice_probability(&c->choice, (size_t)proposed);
    if (uniform(s, to, ACCEPT_STREAM) * (double)q[proposed] < p) return proposed;
    if (!(c->choice.total > 0)) return choice_best(c->scores, c->vocab);
    return draw_rest(&c->choice, q, uniform(s, to, REST_STREAM));
}

/* Chooses tokens as long as they are the proposed ones, and one more. *n: how many were proposed. */
static mn_status choose(assisted *s, speculation *sp, sequence *to, size_t *n) {
    const float *logits = sp->is_fed ? sp->logits : mn_session_logits(sp->session);
    chooser *c = &s->chooser;
    for (*n = 0;; ++*n, logits += c->vocab) {
        size_t length = to->n_prompt + to->n_ids;
        bool has_more = *n < sp->n_proposed;
        int32_t proposed = has_more ? to->all[length] : -1;
        MN_TRY(chooser_process(c, to->all, length, logits));
        int32_t id = pick(s, to, has_more ? drafter_distribution(sp->drafter, *n) : NULL, proposed);
        to->n_draft_accepted += id == proposed;
        MN_TRY(sequence_add(to, id, c->scores, logits));
        if (!to->finish && search_time_is_over(s->setup)) MN_TRY(sequence_end(to, "time"));
        if (id != proposed || to->finish || to->cancelled) return MN_OK;
    }
}

static mn_status verify(assisted *s, speculation *sp, sequence *to) {
    size_t n = 0, accepted = to->n_draft_accepted;
    mn_status status = choose(s, sp, to, &n);
    if (sp->is_fed && n < sp->n_proposed)
        session_take_back(sp->session, sp->n_held + 1 + n, sp->logits + n * s->chooser.vocab);
    drafter_learn(sp->drafter, sp->n_proposed, to->n_draft_accepted - accepted);
    sp->n_proposed = 0;
    sp->is_fed = false;
    return status;
}

/* Lists the last chosen token with what the drafter proposes behind it: in the room behind the sequence's ids. */
static mn_status propose(speculation *sp, sequence *to, feed_list *next) {
    int32_t *last = to->all + to->n_prompt + to->n_ids - 1;
    size_t left = to->max_new - to->n_ids, most = left - 1;
    if (most > MOST_DRAFT) most = MOST_DRAFT;
    most = (size_t)session_quiet_tokens(sp->session, (int64_t)most + 1) - 1;
    if (!to->cancelled) MN_TRY(drafter_propose(sp->drafter, most, last + 1, &sp->n_proposed));
    to->n_drafted += sp->n_proposed;
    sp->n_held = sp->session->n_ids;
    sp->is_fed = true;
    feed_list_add(next, sp->session, last, 1 + sp->n_proposed)->logits = sp->logits;
    return MN_OK;
}

static mn_status advance(void *state, feed_list *next) {
    assisted *s = state;
    for (size_t i = 0; i < s->setup->n_sequences; i++) {
        sequence *to = &s->setup->sequences[i];
        speculation *sp = &s->speculations[i];
        if (to->finish) continue;
        MN_TRY(verify(s, sp, to));
        if (to->finish) {
            release(sp, i, to);
        } else {
            MN_TRY(propose(sp, to, next));
        }
    }
    return MN_OK;
}

static mn_status end(void *state, const char *reason) {
    const assisted *s = state;
    for (size_t i = 0; i < s->setup->n_sequences; i++) MN_TRY(sequence_end(&s->setup->sequences[i], reason));
    return MN_OK;
}

static void close(void *state) {
    assisted *s = state;
    if (!s) return;
    for (size_t i = 0; s->speculations && i < s->setup->n_sequences; i++)
        release(&s->speculations[i], i, &s->setup->sequences[i]);
    chooser_close(&s->chooser);
    mem_free(s->speculations);
    mem_free(s);
}

const search_kind search_assisted = {
    .name = "assisted",
    .check = drafter_check,
    .most_feeds = most_feeds,
    .open = open,
    .advance = advance,
    .end = end,
    .close = close,
};
