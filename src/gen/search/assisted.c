/* Assisted decoding (Leviathan et al. 2023; Chen et al. 2023, "Accelerating large language model decoding with
 * speculative sampling"): draft tokens are computed together with the last chosen one, and those that the model would
 * have chosen are kept.
 *
 * The text is the one that greedy search gives, bit for bit, and when sampling without a draft model's distribution the
 * one that sampling gives with the same seed; with it, text of exactly the same distribution. A pass never computes
 * tokens that cannot be reverted (session_revertible_tokens), so that this holds for every cache.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/drafter.h"

#include <math.h>

#include "base/mem.h"
#include "base/num.h"

/* One returned sequence. */
typedef struct speculation {
    mn_session *session; /* the first is the row's own */
    drafter *drafter;
    float *logits; /* [1 + most][vocab] behind the last chosen token and each proposal */
    bool is_fed;   /* they are computed; else the session's are used */
    size_t n_held; /* tokens of the session before they were fed */
    size_t n_proposed;
    bool is_drafting;               /* the proposals are incomplete */
    int32_t chosen[1 + MOST_DRAFT]; /* [n_chosen] tokens behind the first n_before new ones, not all of which are the
                                       sequence's yet */
    size_t n_chosen, n_before;
} speculation;

typedef struct assisted {
    const search_setup *setup;
    chooser chooser;
    speculation *speculations; /* [n_sequences] */
    bool has_shared;           /* the draft model has computed the prompt, or it is not shared */
    bool is_drafting;          /* the feeds in flight are the draft model's */
} assisted;

static size_t most_feeds(const search_setup *setup) {
    return setup->n_sequences;
}

/* Closes what an ended sequence no longer needs, so that others can use its pages. */
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
    s->has_shared = setup->n_sequences == 1 || !setup->options->assistant;
    s->speculations = mem_alloc(setup->n_sequences, sizeof *s->speculations);
    if (!s->speculations) return MN_E_NOMEM;
    MN_TRY(chooser_open(&s->chooser, setup, true));
    for (size_t i = 0; i < setup->n_sequences; i++) MN_TRY(open_speculation(s, i));
    return MN_OK;
}

/* ---- verification ---- */

/* Random numbers that choice_sample does not use: its streams are the sequences' indices, these have upper halves. */
enum { ACCEPT_STREAM = 1, REST_STREAM = 2 };

static double uniform(const assisted *s, const sequence *to, unsigned stream, size_t at) {
    return random_uniform(s->setup->seed, (uint64_t)to->index + ((uint64_t)stream << 32), at);
}

/* A draw from max(p - q, 0), p being in `choice`; from p where rounding makes all of that 0. */
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

/* The at-th new token, by the chooser's scores. A proposal x drawn from q is accepted with probability p(x) / q(x),
 * else replaced by a draw from max(p - q, 0); the result is distributed as p. */
static int32_t pick(assisted *s, const sequence *to, size_t at, const float *q, int32_t proposed) {
    chooser *c = &s->chooser;
    if (!q) return chooser_pick(c, to, at);
    choice_weigh(&c->choice, c->scores, c->vocab);
    double p = choice_probability(&c->choice, (size_t)proposed);
    if (uniform(s, to, ACCEPT_STREAM, at) * (double)q[proposed] < p) return proposed;
    if (!(c->choice.total > 0)) return choice_best(c->scores, c->vocab);
    return draw_rest(&c->choice, q, uniform(s, to, REST_STREAM, at));
}

/* The k-th proposal; -1: there are fewer. */
static int32_t proposal(const speculation *sp, const sequence *to, size_t k) {
    return k < sp->n_proposed ? to->ids[sp->n_before + k] : -1;
}

/* Chooses one more token after the accepted ones. */
static mn_status choose_next(assisted *s, speculation *sp, sequence *to) {
    chooser *c = &s->chooser;
    size_t k = sp->n_chosen, at = sp->n_before + k;
    const float *logits = sp->is_fed ? sp->logits + k * c->vocab : mn_session_logits(sp->session);
    int32_t proposed = proposal(sp, to, k);
    MN_TRY(chooser_process(c, to->all, to->n_prompt + at, logits));
    int32_t id = pick(s, to, at, proposed < 0 ? NULL : drafter_distribution(sp->drafter, k), proposed);
    sequence_record(to, at, id, c->scores, logits);
    sp->chosen[sp->n_chosen++] = id;
    return MN_OK;
}

static void choose_ahead(assisted *s, speculation *sp, sequence *to) {
    bool goes_on = true;
    while (goes_on && choose_next(s, sp, to) == MN_OK)
        goes_on = sp->chosen[sp->n_chosen - 1] == proposal(sp, to, sp->n_chosen - 1);
}

static void choose(void *state) {
    assisted *s = state;
    for (size_t i = 0; i < s->setup->n_sequences; i++) {
        speculation *sp = &s->speculations[i];
        if (sp->is_drafting) drafter_choose(sp->drafter);
        if (!s->is_drafting && !s->setup->sequences[i].finish) choose_ahead(s, sp, &s->setup->sequences[i]);
    }
}

/* Appends the accepted tokens and one more. *n: how many were proposed. */
static mn_status add_chosen(assisted *s, speculation *sp, sequence *to, size_t *n) {
    for (*n = 0;; ++*n) {
        if (*n == sp->n_chosen) MN_TRY(choose_next(s, sp, to));
        int32_t id = sp->chosen[*n], proposed = proposal(sp, to, *n);
        to->n_draft_accepted += id == proposed;
        MN_TRY(sequence_add(to, id));
        if (!to->finish && search_time_is_over(s->setup)) MN_TRY(sequence_end(to, "time"));
        if (id != proposed || to->finish || to->cancelled) return MN_OK;
    }
}

static mn_status verify(assisted *s, speculation *sp, sequence *to) {
    size_t n = 0, accepted = to->n_draft_accepted;
    mn_status status = add_chosen(s, sp, to, &n);
    if (sp->is_fed && n < sp->n_proposed)
        session_take_back(sp->session, sp->n_held + 1 + n, sp->logits + n * s->chooser.vocab);
    drafter_learn(sp->drafter, sp->n_proposed, to->n_draft_accepted - accepted);
    sp->n_proposed = sp->n_chosen = 0;
    sp->n_before = to->n_ids;
    sp->is_fed = false;
    return status;
}

/* ---- proposals ---- */

/* In the room behind the sequence's ids. */
static mn_status begin_draft(speculation *sp, const sequence *to, feed_list *next) {
    size_t most = to->max_new - to->n_ids - 1, n = next->n;
    if (most > MOST_DRAFT) most = MOST_DRAFT;
    most = (size_t)session_revertible_tokens(sp->session, (int64_t)most + 1) - 1;
    MN_TRY(drafter_begin(sp->drafter, to->cancelled ? 0 : most, to->ids + to->n_ids, next));
    sp->is_drafting = next->n > n;
    return MN_OK;
}

/* At first the draft model computes the prompt for one sequence, and the others share it. */
static mn_status begin_drafts(assisted *s, feed_list *next) {
    const search_setup *setup = s->setup;
    for (size_t i = 0; i < setup->n_sequences; i++) {
        if (setup->sequences[i].finish) continue;
        if (!s->has_shared) {
            drafter_list_prompt(s->speculations[i].drafter, next);
            s->has_shared = next->n == 0;
            if (next->n > 0) return MN_OK;
        }
        MN_TRY(begin_draft(&s->speculations[i], &setup->sequences[i], next));
    }
    return MN_OK;
}

static mn_status share_prompt(assisted *s) {
    const drafter *from = NULL;
    s->has_shared = true;
    for (size_t i = 0; i < s->setup->n_sequences; i++) {
        drafter *d = s->speculations[i].drafter; /* NULL: the sequence has ended */
        if (from && d) MN_TRY(drafter_share(d, from));
        if (!from) from = d;
    }
    return MN_OK;
}

static mn_status advance_drafts(assisted *s, feed_list *next) {
    if (!s->has_shared) {
        MN_TRY(share_prompt(s));
        return begin_drafts(s, next);
    }
    for (size_t i = 0; i < s->setup->n_sequences; i++) {
        speculation *sp = &s->speculations[i];
        size_t n = next->n;
        if (!sp->is_drafting) continue;
        MN_TRY(drafter_advance(sp->drafter, next));
        sp->is_drafting = next->n > n;
    }
    return MN_OK;
}

/* Lists the last chosen token followed by its proposals. */
static void list_proposals(const assisted *s, speculation *sp, sequence *to, feed_list *next) {
    sp->n_proposed = drafter_count(sp->drafter);
    to->n_drafted += sp->n_proposed;
    sp->n_held = sp->session->n_ids;
    sp->is_fed = true;
    feed *f = feed_list_add(next, sp->session, to->ids + to->n_ids - 1, 1 + sp->n_proposed);
    f->logits = sp->logits;
    f->waits_for_drafts = s->setup->options->assistant != NULL;
}

static mn_status verify_all(assisted *s) {
    for (size_t i = 0; i < s->setup->n_sequences; i++) {
        sequence *to = &s->setup->sequences[i];
        speculation *sp = &s->speculations[i];
        if (to->finish) continue;
        MN_TRY(verify(s, sp, to));
        if (to->finish) release(sp, i, to);
    }
    return MN_OK;
}

/* Either proposals of all sequences are computed, a token of each at a time, or all are verified. */
static mn_status advance(void *state, feed_list *next) {
    assisted *s = state;
    if (s->is_drafting) {
        MN_TRY(advance_drafts(s, next));
    } else {
        MN_TRY(verify_all(s));
        MN_TRY(begin_drafts(s, next));
    }
    s->is_drafting = next->n > 0;
    for (size_t i = 0; !s->is_drafting && i < s->setup->n_sequences; i++) {
        sequence *to = &s->setup->sequences[i];
        if (!to->finish) list_proposals(s, &s->speculations[i], to, next);
    }
    return MN_OK;
}

static mn_status end(void *state, const char *reason) {
    const assisted *s = state;
    for (size_t i = 0; i < s->setup->n_sequences; i++) MN_TRY(sequence_end(&s->setup->sequences[i], reason));
    return MN_OK;
}

static void drop_draft_pages(void *state) {
    assisted *s = state;
    for (size_t i = 0; i < s->setup->n_sequences; i++) drafter_drop_pages(s->speculations[i].drafter);
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
    .choose = choose,
    .advance = advance,
    .end = end,
    .drop_draft_pages = drop_draft_pages,
    .close = close,
};
