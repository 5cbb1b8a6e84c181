/* Greedy search and sampling: one token at a time for each returned sequence, which share the prompt's pages.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/search.h"

#include "base/mem.h"
#include "gen/logits.h"

/* One returned sequence. */
typedef struct draw {
    mn_session *session; /* the first is the row's own */
    logits_row logits;
    int32_t next; /* chosen and to be fed */
} draw;

typedef struct sampling {
    const search_setup *setup;
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
    size_t vocab = (size_t)setup->session->model->config.vocab_size;
    for (size_t i = 0; i < setup->n_sequences; i++) {
        draw *d = &s->draws[i];
        if (i == 0) {
            d->session = setup->session;
        } else {
            MN_TRY(mn_session_fork(&d->session, setup->session));
        }
        MN_TRY(logits_open(&d->logits, setup->config, vocab, setup->seed, setup->prompt, setup->n_prompt));
    }
    return MN_OK;
}

static mn_status choose(const search_setup *setup, draw *d, sequence *to) {
    const float *logits = mn_session_logits(d->session);
    logits_process(&d->logits, logits);
    d->next = logits_choose(&d->logits);
    logits_accept(&d->logits, d->next);
    MN_TRY(sequence_add(to, d->next, d->logits.scores, logits));
    return search_time_is_over(setup) ? sequence_end(to, "time") : MN_OK;
}

static mn_status advance(void *state, feed_list *next) {
    sampling *s = state;
    for (size_t i = 0; i < s->setup->n_sequences; i++) {
        draw *d = &s->draws[i];
        sequence *to = &s->setup->sequences[i];
        if (to->finish) continue;
        MN_TRY(choose(s->setup, d, to));
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
        logits_close(&s->draws[i].logits);
    }
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

const search_kind *search_choose(const mn_generation_config *config, const mn_generate_options *options) {
    (void)config;
    (void)options;
    return &search_sample;
}
