/* Greedy search and sampling: one token at a time for each returned sequence, which share the prompt's pages. Guidance
 * feeds every token to a second session as well, which does not contain the prompt.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/chooser.h"

#include <string.h>

#include "base/mem.h"
#include "gen/search/dola.h"
#include "gen/search/guidance.h"
#include "gen/logits/scores.h"

/* One returned sequence. */
typedef struct draw {
    mn_session *session;       /* the first is the row's own */
    mn_session *unconditional; /* guidance: the same tokens after the negative prompt; NULL: none */
    float *early;              /* [n_exits][vocab] of the layers that dola_layers names; NULL: none */
    int32_t next;              /* chosen and to be fed */
    bool is_chosen;            /* `next` is not a token of the sequence yet */
} draw;

typedef struct sampling {
    const search_setup *setup;
    draw *draws; /* [n_sequences] */
    chooser chooser;
    float *scratch;   /* [vocab] */
    bool has_started; /* draws[0].unconditional holds the negative prompt */
} sampling;

static size_t most_feeds(const search_setup *setup) {
    return setup->n_sequences * (guidance_is_on(setup) ? 2 : 1);
}

/* Closes what an ended sequence no longer needs, so that others can use its pages. */
static void release(draw *d, size_t i, sequence *to) {
    if (i > 0) sequence_keep(to, &d->session);
    mn_session_close(&d->unconditional);
    mem_free(d->early);
    d->early = NULL;
}

static mn_status open_draw(sampling *s, size_t i) {
    const search_setup *setup = s->setup;
    draw *d = &s->draws[i];
    size_t n_early = (size_t)setup->n_exits * s->chooser.vocab;
    if (n_early > 0) {
        d->early = mem_alloc_raw(n_early, sizeof *d->early);
        if (!d->early) return MN_E_NOMEM;
        memcpy(d->early, setup->exit_logits, n_early * sizeof *d->early);
    }
    if (i > 0) return mn_session_fork(&d->session, setup->session);
    d->session = setup->session;
    return guidance_is_on(setup) ? session_open_like(&d->unconditional, setup->session) : MN_OK;
}

static mn_status open(void **state, const search_setup *setup) {
    sampling *s = mem_alloc(1, sizeof *s);
    *state = s;
    if (!s) return MN_E_NOMEM;
    s->setup = setup;
    s->draws = mem_alloc(setup->n_sequences, sizeof *s->draws);
    if (!s->draws) return MN_E_NOMEM;
    MN_TRY(chooser_open(&s->chooser, setup, false));
    if (setup->n_exits > 0) {
        s->scratch = mem_alloc_raw(s->chooser.vocab, sizeof *s->scratch);
        if (!s->scratch) return MN_E_NOMEM;
    }
    for (size_t i = 0; i < setup->n_sequences; i++) MN_TRY(open_draw(s, i));
    return MN_OK;
}

static mn_status choose_next(sampling *s, draw *d, sequence *to) {
    const search_setup *setup = s->setup;
    const float *logits = mn_session_logits(d->session);
    chooser *c = &s->chooser;
    if (d->early) {
        dola_contrast(c->scores, logits, d->early, (size_t)setup->n_exits, c->vocab, s->scratch);
    } else {
        memcpy(c->scores, logits, c->vocab * sizeof *logits);
    }
    if (d->unconditional)
        scores_guide(c->scores, mn_session_logits(d->unconditional), c->vocab, setup->config->guidance_scale);
    MN_TRY(chooser_process(c, to->all, to->n_prompt + to->n_ids, NULL));
    d->next = chooser_pick(c, to, to->n_ids);
    d->is_chosen = true;
    sequence_record(to, to->n_ids, d->next, c->scores, logits);
    return MN_OK;
}

static void choose(void *state) {
    sampling *s = state;
    for (size_t i = 0; s->has_started && i < s->setup->n_sequences; i++) {
        sequence *to = &s->setup->sequences[i];
        if (!to->finish && choose_next(s, &s->draws[i], to) != MN_OK) return;
    }
}

static mn_status add_next(sampling *s, draw *d, sequence *to) {
    if (!d->is_chosen) MN_TRY(choose_next(s, d, to));
    d->is_chosen = false;
    MN_TRY(sequence_add(to, d->next));
    return search_time_is_over(s->setup) ? sequence_end(to, "time") : MN_OK;
}

static void list_next(const sampling *s, draw *d, feed_list *next) {
    feed *f = feed_list_add(next, d->session, &d->next, 1);
    if (d->early) {
        f->exits = s->setup->exits;
        f->n_exits = s->setup->n_exits;
        f->exit_logits = d->early;
    }
    if (d->unconditional) feed_list_add(next, d->unconditional, &d->next, 1);
}

/* The negative prompt is computed once and shared. */
static mn_status begin(sampling *s, feed_list *next) {
    size_t n = 0;
    const int32_t *ids = guidance_ids(s->setup, &n);
    if (s->draws[0].unconditional && s->draws[0].unconditional->n_ids == 0) {
        feed_list_add(next, s->draws[0].unconditional, ids, n);
        return MN_OK;
    }
    for (size_t i = 1; s->draws[0].unconditional && i < s->setup->n_sequences; i++)
        MN_TRY(mn_session_fork(&s->draws[i].unconditional, s->draws[0].unconditional));
    s->has_started = true;
    return MN_OK;
}

static mn_status advance(void *state, feed_list *next) {
    sampling *s = state;
    if (!s->has_started) MN_TRY(begin(s, next));
    for (size_t i = 0; s->has_started && i < s->setup->n_sequences; i++) {
        draw *d = &s->draws[i];
        sequence *to = &s->setup->sequences[i];
        if (to->finish) continue;
        MN_TRY(add_next(s, d, to));
        if (to->finish) {
            release(d, i, to);
        } else {
            list_next(s, d, next);
        }
    }
    return MN_OK;
}

static mn_status end(void *state, const char *reason) {
    const sampling *s = state;
    for (size_t i = 0; i < s->setup->n_sequences; i++) MN_TRY(sequence_end(&s->setup->sequences[i], reason));
    return MN_OK;
}

static void close(void *state) {
    sampling *s = state;
    if (!s) return;
    for (size_t i = 0; s->draws && i < s->setup->n_sequences; i++) release(&s->draws[i], i, &s->setup->sequences[i]);
    chooser_close(&s->chooser);
    mem_free(s->scratch);
    mem_free(s->draws);
    mem_free(s);
}

const search_kind search_sample = {
    .name = "sample",
    .check = guidance_check,
    .most_feeds = most_feeds,
    .open = open,
    .choose = choose,
    .advance = advance,
    .end = end,
    .close = close,
};
