/* Contrastive search (Su et al. 2022, "A contrastive framework for neural text generation"): of the top_k most probable
 * tokens the one with the most of (1 - alpha) * probability - alpha * degeneration, where degeneration is the largest
 * cosine between the final state after the candidate and that after any token before it. Candidates are forks that are
 * fed together; the winner's is kept.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/chooser.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"

typedef struct candidate {
    mn_session *fork; /* reused by all steps; NULL: not needed yet */
    int32_t id;
    double probability;
} candidate;

typedef struct contrastive {
    const search_setup *setup;
    chooser chooser;
    candidate *candidates; /* [most] */
    size_t n, most;
    mn_session *ahead; /* the last winner, which holds the last token; the row's session is one token behind. NULL:
                          none yet */
    float *tried;      /* [most][hidden] states after the candidates */
    float *context;    /* [n_prompt + max_new][hidden] states after all tokens so far, of length 1 */
    size_t n_context, hidden;
} contrastive;

static size_t most_feeds(const search_setup *setup) {
    size_t k = (size_t)setup->config->top_k, vocab = (size_t)setup->session->model->net.config.vocab_size;
    return k < vocab ? k : vocab;
}

static void add_context(contrastive *s, const float *state) {
    f32_normalize(s->context + s->n_context++ * s->hidden, state, s->hidden);
}

static mn_status open(void **state, const search_setup *setup) {
    contrastive *s = mem_alloc(1, sizeof *s);
    *state = s;
    if (!s) return MN_E_NOMEM;
    *s = (contrastive){
        .setup = setup, .most = most_feeds(setup), .hidden = (size_t)setup->session->model->net.config.hidden_size};
    s->candidates = mem_alloc(s->most, sizeof *s->candidates);
    s->tried = mem_alloc_raw(s->most * s->hidden, sizeof *s->tried);
    s->context = mem_alloc_raw((setup->n_prompt + setup->max_new) * s->hidden, sizeof *s->context);
    if (!s->candidates || !s->tried || !s->context) return MN_E_NOMEM;
    for (size_t i = 0; i < setup->n_prompt; i++) add_context(s, setup->prompt_states + i * s->hidden);
    return chooser_open(&s->chooser, setup, true);
}

/* ---- choosing ---- */

static void drop_forks(contrastive *s) {
    for (size_t i = 0; s->candidates && i < s->most; i++) mn_session_close(&s->candidates[i].fork);
    mn_session_close(&s->ahead);
}

/* The largest cosine of a state with those of the context. */
static double degeneration(const contrastive *s, const float *state) {
    double length = 0, most = -1;
    for (size_t i = 0; i < s->hidden; i++) length += (double)state[i] * (double)state[i];
    length = sqrt(length);
    for (size_t j = 0; j < s->n_context; j++) {
        const float *other = s->context + j * s->hidden;
        double dot = 0;
        for (size_t i = 0; i < s->hidden; i++) dot += (double)state[i] * (double)other[i];
        if (length > 0 && dot / length > most) most = dot / length;
    }
    return most;
}

static size_t best_candidate(const contrastive *s) {
    double alpha = s->setup->config->penalty_alpha, most = -INFINITY;
    size_t best = 0;
    for (size_t i = 0; i < s->n; i++) {
        double value = (1 - alpha) * s->candidates[i].probability - alpha * degeneration(s, s->tried + i * s->hidden);
        if (!(value > most)) continue;
        most = value;
        best = i;
    }
    return best;
}

static mn_session *newest(const contrastive *s) {
    return s->ahead ? s->ahead : s->setup->session;
}

/* The winner's token is the sequence's next one. */
static mn_status choose(contrastive *s) {
    const search_setup *setup = s->setup;
    sequence *to = setup->sequences;
    size_t best = best_candidate(s);
    int32_t id = s->candidates[best].id;
    sequence_record(to, to->n_ids, id, s->chooser.scores, mn_session_logits(newest(s)));
    MN_TRY(sequence_add(to, id));
    if (!to->finish && search_time_is_over(setup)) MN_TRY(sequence_end(to, "time"));
    if (s->ahead) session_exchange(setup->session, s->ahead);
    s->n = 0;
    if (to->finish) {
        drop_forks(s);
        return MN_OK;
    }
    add_context(s, s->tried + best * s->hidden);
    mn_session *spare = s->ahead;
    s->ahead = s->candidates[best].fork;
    s->candidates[best].fork = spare;
    return MN_OK;
}

/* The most probable tokens, the lower id first among equals, with a fork each. */
static mn_status list_candidates(contrastive *s, feed_list *next) {
    mn_session *session = newest(s);
    const sequence *to = s->setup->sequences;
    chooser *c = &s->chooser;
    MN_TRY(chooser_process(c, to->all, to->n_prompt + to->n_ids, mn_session_logits(session)));
    choice_weigh(&c->choice, c->scores, c->vocab);
    while (s->n < s->most) {
        size_t best = c->vocab;
        double most = 0;
        for (size_t i = 0; i < c->vocab; i++) {
            double probability = (double)c->choice.weights[i];
            if (!(probability > most)) continue;
            most = probability;
            best = i;
        }
        if (best == c->vocab) break;
        candidate *it = &s->candidates[s->n];
        it->id = (int32_t)best;
        it->probability = choice_probability(&c->choice, best);
        c->choice.weights[best] = -1; /* listed; the sum stays */
        MN_TRY(it->fork ? session_refork(it->fork, session, false) : session_fork(&it->fork, session, false));
        feed_list_add(next, it->fork, &it->id, 1)->states = s->tried + s->n++ * s->hidden;
    }
    return MN_OK;
}

static mn_status advance(void *state, feed_list *next) {
    contrastive *s = state;
    if (s->n > 0) MN_TRY(choose(s));
    return s->setup->sequences[0].finish ? MN_OK : list_candidates(s, next);
}

static mn_status end(void *state, const char *reason) {
    const contrastive *s = state;
    return sequence_end(&s->setup->sequences[0], reason);
}

static void close(void *state) {
    contrastive *s = state;
    if (!s) return;
    drop_forks(s);
    chooser_close(&s->chooser);
    mem_free(s->candidates);
    mem_free(s->tried);
    mem_free(s->context);
    mem_free(s);
}

const search_kind search_contrastive = {
    .name = "contrastive",
    .wants_states = true,
    .most_feeds = most_feeds,
    .open = open,
    .advance = advance,
    .end = end,
    .close = close,
};
