/* Beam search and beam sampling, as Transformers does since 4.50: stopping criteria end single beams, and all finished
 * texts, also those at the length limit, are ranked by the same formula.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/beams.h"

#include <stdlib.h>

#include "base/mem.h"
#include "gen/search/guidance.h"

typedef struct beam_search {
    beams beams;
    hypothesis *ended; /* [n_ended] of at most `width`, best first; with room for as many running ones */
    size_t n_ended;
    bool is_ranked; /* the candidates of this step are ranked: [n_candidates] in beams.candidates */
    size_t n_candidates;
} beam_search;

static mn_status open(void **state, const search_setup *setup) {
    beam_search *s = mem_alloc(1, sizeof *s);
    size_t width = (size_t)setup->config->num_beams;
    *state = s;
    if (!s) return MN_E_NOMEM;
    s->ended = mem_alloc(2 * width, sizeof *s->ended);
    if (!s->ended) return MN_E_NOMEM;
    return beams_open(&s->beams, setup, width, setup->config->do_sample);
}

static void close(void *state) {
    beam_search *s = state;
    if (!s) return;
    for (size_t i = 0; i < s->n_ended; i++) beams_drop(&s->ended[i]);
    beams_close(&s->beams);
    mem_free(s->ended);
    mem_free(s);
}

/* Finished texts are kept in order; of ties the earlier one is first. */
static mn_status end_beam(beam_search *s, const beam_candidate *c) {
    hypothesis text;
    mn_status status = beams_end(&s->beams, c, &text);
    bool is_full = s->n_ended == s->beams.width;
    if (status != MN_OK || (is_full && !(text.score > s->ended[s->n_ended - 1].score))) {
        beams_drop(&text);
        return status;
    }
    if (is_full) beams_drop(&s->ended[--s->n_ended]);
    size_t at = s->n_ended++;
    for (; at > 0 && s->ended[at - 1].score < text.score; at--) s->ended[at] = s->ended[at - 1];
    s->ended[at] = text;
    return MN_OK;
}

static int by_sum(const void *a, const void *b) {
    const beam_candidate *x = a, *y = b;
    if (x->sum != y->sum) return x->sum > y->sum ? -1 : 1;
    return x->from != y->from ? (x->from > y->from) - (x->from < y->from) : (x->id > y->id) - (x->id < y->id);
}

/* Whether the best running beam could still beat the worst finished text. */
static bool may_improve(const beam_search *s, double best_sum) {
    const search_setup *setup = s->beams.setup;
    const mn_generation_config *config = setup->config;
    if (s->n_ended < s->beams.width) return true;
    if (config->early_stopping == EARLY_STOP_ON) return false;
    bool at_limit = config->early_stopping == EARLY_STOP_NEVER && config->length_penalty > 0;
    size_t length = at_limit ? setup->max_new : s->beams.n_new + 1;
    return beams_normalize(&s->beams, best_sum, length) > s->ended[s->n_ended - 1].score;
}

static mn_status rank(beam_search *s) {
    beams *b = &s->beams;
    MN_TRY(beams_score(b, 0, b->width, NULL, 0));
    s->n_candidates = beams_rank(b, 0, b->width, b->n_ranked, b->candidates);
    s->is_ranked = true;
    return MN_OK;
}

static void choose(void *state) {
    beam_search *s = state;
    if (beams_may_score_ahead(&s->beams)) rank(s);
}

static mn_status advance(void *state, feed_list *feeds) {
    beam_search *s = state;
    beams *b = &s->beams;
    size_t n_kept = 0;
    if (beams_begin(b, feeds)) return MN_OK;
    if (!s->is_ranked) MN_TRY(rank(s));
    s->is_ranked = false;
    size_t n = s->n_candidates;
    for (size_t i = 0; i < n; i++) {
        beam_candidate *c = &b->candidates[i];
        MN_TRY(beams_judge(b, c));
        if (!c->finish) c->finish = beams_limit(b);
        if (c->finish && i < b->width) MN_TRY(end_beam(s, c));
    }
    if (b->sums)
        qsort(b->candidates, n, sizeof *b->candidates, by_sum); /* draws come in the order in which they were drawn */
    for (size_t i = 0; i < n && n_kept < b->width; i++) {
        if (!b->candidates[i].finish) MN_TRY(beams_keep(b, n_kept++, &b->candidates[i]));
    }
    if (n == 0 && s->n_ended == 0) MN_FAIL(MN_E_ARG, "no token is left to any beam after %zu new tokens", b->n_new);
    if (n_kept == 0 || !may_improve(s, b->next[0].sum)) return beams_write(b, s->ended, s->n_ended);
    return beams_move(b, feeds);
}

static mn_status end(void *state, const char *reason) {
    beam_search *s = state;
    beams *b = &s->beams;
    size_t n = s->n_ended;
    for (size_t i = 0; i < b->width && b->n_new > 0; i++) {
        if (b->running[i].session >= 0) s->ended[n++] = beams_open_text(b, &b->running[i], b->n_new, reason);
    }
    return beams_write(b, s->ended, n);
}

const search_kind search_beam = {
    .name = "beam",
    .check = guidance_check,
    .most_feeds = beams_most_feeds,
    .open = open,
    .choose = choose,
    .advance = advance,
    .end = end,
    .close = close,
};
