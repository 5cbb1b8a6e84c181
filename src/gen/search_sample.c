/* Greedy search and sampling: one token at a time for each returned sequence, which share the prompt's pages.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/search.h"

#include <string.h>

#include "base/mem.h"
#include "gen/choice.h"

/* One returned sequence. */
typedef struct draw {
    mn_session *session; /* the first is the row's own */
    int32_t next;        /* chosen and to be fed */
} draw;

typedef struct sampling {
    const search_setup *setup;
    processors *processors;
    choice choice; /* empty in greedy search */
    float *scores; /* [vocab] of the step */
    size_t vocab;
    draw *draws; /* [n_sequences] */
    bool has_begun;
} sampling;

static size_t most_feeds(const search_setup *setup) {
    return setup->n_sequences;
}

static mn_status open(void **state, const search_setup *setup) {
    sampling *s = mem_alloc(1, sizeof *s);
    *state = s;
    if (!s) return MN_E_NOMEM;
    s->setup = setup;
    s->draws = mem_alloc(setup->n_sequences, sizeof *s->draws);
    if (!s->draws) return MN_E_NOMEM;
    processor_setup wanted = search_processors(setup);
    s->vocab = wanted.vocab;
    s->scores = mem_alloc_raw(s->vocab, sizeof *s->scores);
    if (!s->scores) return MN_E_NOMEM;
    MN_TRY(processors_open(&s->processors, &wanted));
    if (setup->config->do_sample) MN_TRY(choice_open(&s->choice, s->vocab));
    for (size_t i = 0; i < setup->n_sequences; i++) {
        draw *d = &s->draws[i];
        if (i == 0) {
            d->session = setup->session;
        } else {
            MN_TRY(mn_session_fork(&d->session, setup->session));
        }
    }
    return MN_OK;
}

static mn_status choose(sampling *s, draw *d, sequence *to) {
    const search_setup *setup = s->setup;
    const float *logits = mn_session_logits(d->session);
    processor_step step = {.ids = to->all, .n = to->n_prompt + to->n_ids};
    memcpy(s->scores, logits, s->vocab * sizeof *logits);
    MN_TRY(processors_run(s->processors, &step, s->scores));
    d->next = setup->config->do_sample ? choice_sample(&s->choice, s->scores, s->vocab, setup->seed,
                                                       (uint64_t)to->index, to->n_ids)
                                       : choice_best(s->scores, s->vocab);
    MN_TRY(sequence_add(to, d->next, s->scores, logits));
    return search_time_is_over(setup) ? sequence_end(to, "time") : MN_OK;
}

static mn_status advance(void *state, feed_list *next) {
    sampling *s = state;
    for (size_t i = 0; i < s->setup->n_sequences; i++) {
        draw *d = &s->draws[i];
        sequence *to = &s->setup->sequences[i];
        if (to->finish) continue;
        MN_TRY(choose(s, d, to));
        if (!to->finish) feed_list_add(next, d->session, &d->next, 1);
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
    for (size_t i = 0; s->draws && i < s->setup->n_sequences; i++) {
        if (i > 0) mn_session_close(&s->draws[i].session);
    }
    processors_close(&s->processors);
    choice_close(&s->choice);
    mem_free(s->scores);
    mem_free(s->draws);
    mem_free(s);
}

const search_kind search_sample = {
    .name = "sample",
    .most_feeds = most_feeds,
    .open = open,
    .advance = advance,
    .end = end,
    .close = close,
};
