/* Ways to choose the next tokens: greedy and sampling, beams, contrastive search, assisted decoding.
 *
 * A search takes one input row from the logits after its prompt to its returned sequences. Every search lists feeds,
 * one pass computes those of all (steps.h), and the searches continue. Searches computed together may be of different
 * kinds and are independent of each other.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEARCH_SEARCH_H
#define MN_GEN_SEARCH_SEARCH_H

#include "base/clock.h"
#include "constraint/constraint.h"
#include "session/pass.h"
#include "gen/logits/processors.h"
#include "gen/search/sequence.h"

/* Scores and logits of every running beam and step, kept on request. */
typedef struct step_log {
    float *scores, *logits; /* [n_steps][n_beams][vocab_size]; NULL: not kept */
    size_t n_steps, n_beams;
} step_log;

/* The inputs and outputs of a search; must outlive it. */
typedef struct search_setup {
    mn_session *session; /* holds the prompt and the logits after it; at the end the prompt and sequences[0] but its
                            last token */
    const int32_t *prompt;
    size_t n_prompt;
    const float *prompt_states; /* [n_prompt][hidden_size] final states, for kinds that need them; else NULL */
    const int *exits;           /* [n_exits] layers that dola_layers names (gen/search/dola.h); none: NULL */
    int n_exits;
    float *exit_logits; /* [n_exits][vocab_size] of these layers after the prompt; the search may overwrite them */
    const mn_generation_config *config;
    const mn_generate_options *options;
    constraint *constraint; /* NULL: none */
    int row;                /* of the batch, for callbacks */
    uint64_t seed;
    size_t max_new;
    double started;      /* clock_ms when the run began: max_time */
    sequence *sequences; /* [n_sequences] opened, in the order in which they are returned */
    size_t n_sequences;
    step_log *steps; /* filled by beam searches */
} search_setup;

/* The feeds that a search lists; the array does not move. */
typedef struct feed_list {
    feed *feeds;
    size_t n, capacity;
} feed_list;

typedef struct search_kind {
    const char *name;
    bool wants_states; /* of the prompt, which is then computed anew */
    /* NULL, or checks the input before anything is computed. */
    mn_status (*check)(const search_setup *setup);
    /* The most sessions fed together. */
    size_t (*most_feeds)(const search_setup *setup);
    /* *state may be set on failure too; close takes it. */
    mn_status (*open)(void **state, const search_setup *setup);
    /* Called before advance, on any thread, unless the row has callbacks for scores: chooses in advance what `advance`
     * would choose first, from computed results of this row alone. Failures are left to `advance`, which repeats and
     * reports them. Allocates nothing but states of a constraint. NULL: `advance` does everything. */
    void (*choose)(void *state);
    /* Called when all feeds have been computed: chooses tokens and lists the next feeds (ids stay valid
     * until the next call). Nothing listed: the sequences are complete. */
    mn_status (*advance)(void *state, feed_list *next);
    /* Ends early for `reason` ("cancelled") with partial sequences. */
    mn_status (*end)(void *state, const char *reason);
    /* Releases the pages of a draft model; the next feeds compute them again. NULL: there are none. */
    void (*drop_draft_pages)(void *state);
    void (*close)(void *state);
} search_kind;

/* The kind that a configuration requests. */
const search_kind *search_choose(const mn_generation_config *config, const mn_generate_options *options);

extern const search_kind search_sample;   /* greedy, and sampling of one or several sequences */
extern const search_kind search_assisted; /* both of them with a draft model or prompt lookup */
extern const search_kind search_contrastive;
extern const search_kind search_beam;  /* beam search, and beam sampling */
extern const search_kind search_group; /* diverse groups of beams, and beams with forced phrases */

/* Lists a feed; there is room for most_feeds of them. */
static inline feed *feed_list_add(feed_list *list, mn_session *session, const int32_t *ids, size_t n) {
    feed *f = &list->feeds[list->n++];
    *f = (feed){.session = session, .ids = ids, .n = n};
    return f;
}

/* The setup of the row's processors. */
static inline processor_setup search_processors(const search_setup *setup) {
    return (processor_setup){.config = setup->config,
                             .vocab = (size_t)setup->session->model->net.config.vocab_size,
                             .row = setup->row,
                             .prompt = setup->prompt,
                             .n_prompt = setup->n_prompt,
                             .max_length = (int64_t)(setup->n_prompt + setup->max_new),
                             .process = setup->options->process,
                             .prefix_allowed = setup->options->prefix_allowed,
                             .user = setup->options->user,
                             .constraint = setup->constraint};
}

static inline bool search_time_is_over(const search_setup *setup) {
    double most = setup->config->max_time;
    return most > 0 && clock_ms() - setup->started > most * 1e3;
}

#endif
