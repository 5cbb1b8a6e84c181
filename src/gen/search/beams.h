/* Shared by all beam searches: the tree of tokens, the sessions of beams, the best continuations, and the results.
 *
 * A step: beams_score for the running beams, beams_rank for their best continuations, then the search keeps some
 * (beams_keep), ends some (beams_end), and beams_move continues those kept. A continued beam keeps its session; one
 * with several continuations is forked into sessions of dropped beams: pages change owners and no key or value moves
 * but those of a page that two beams go on writing.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEARCH_BEAMS_H
#define MN_GEN_SEARCH_BEAMS_H

#include "gen/logits/choice.h"
#include "gen/logits/processors.h"
#include "gen/search/search.h"

/* A token after another one. */
typedef struct beam_node {
    int32_t before; /* -1: the prompt */
    int32_t id;
    int32_t from; /* running beam that it was added to */
    float score;  /* processed log-probability */
} beam_node;

/* A running beam, in one of `width` places. */
typedef struct beam {
    int32_t session; /* index; -1: the place is empty */
    int32_t node;    /* its last token; -1: it is the prompt */
    int32_t from;    /* of those kept for the next step: the beam that it goes on from */
    double sum;      /* of its tokens' scores */
} beam;

/* A token that may be added to a running beam. */
typedef struct beam_candidate {
    double sum; /* with the token */
    float score;
    int32_t id, from;
    const char *finish; /* why its text ends; NULL: it continues */
} beam_candidate;

/* A text that may be returned. */
typedef struct hypothesis {
    double score; /* sum / length^length_penalty */
    int32_t node;
    int32_t session;  /* that holds all but the last token; -1: none, except for the best finished text */
    mn_session *kept; /* the same for a finished text if sessions are kept; owned, taken by beams_write or beams_drop;
                         NULL: none */
    const char *finish;
} hypothesis;

typedef struct beams {
    const search_setup *setup;
    size_t width, vocab, n_new; /* places; tokens; tokens behind the prompt in every running beam */
    beam *running, *next;       /* [width] */
    float *scores;              /* [width][vocab] of this step */
    float *sums;                /* [width][vocab] with those of the beams; NULL: nothing is drawn */
    choice choice;              /* over sums */
    size_t *drawn;              /* [n_ranked] scratch; with sums */
    beam_candidate *candidates; /* [n_ranked] scratch of the search */
    size_t n_ends;              /* end tokens */
    size_t n_ranked;            /* candidates ranked in each step, when all places are in one group */
    bool time_is_over;
    processors *processors;
    beam_node *nodes; /* [n_nodes] */
    size_t n_nodes, node_capacity;
    int32_t *logprob_ids; /* [n_nodes][1 + top_logprobs]; NULL: not kept, as the next */
    float *logprobs;
    size_t logprob_id_capacity, logprob_capacity;
    mn_session **sessions; /* [width + 1], the first one the setup's, the last one that of the best text ended; NULL:
                              not used yet */
    mn_session *
        *unconditional; /* [width] guidance: the same tokens without the prompt (gen/search/guidance.h); NULL: none */
    bool *taken;        /* [width] scratch */
    int32_t best_node;  /* what the last session holds but for its last token; -1: nothing */
    double best_score;
    size_t score_capacity, logit_capacity; /* of the setup's steps */
    int32_t *ids;                          /* [n_prompt + max_new] scratch */
    tokenizer_stream *stream;              /* for stop strings; NULL: none */
    bytes piece;
    stop_text text;
} beams;

/* Allocates all memory that does not grow; closed by beams_close in any case. The first of every `group` places becomes
 * the prompt. */
mn_status beams_open(beams *b, const search_setup *setup, size_t group, bool draws);
void beams_close(beams *b);
size_t beams_most_feeds(const search_setup *setup);

/* Whether feeds are needed before the first step. */
bool beams_begin(beams *b, feed_list *feeds);

/* Whether all inputs of beams_score are computed and it would not allocate. */
bool beams_may_score_ahead(const beams *b);

/* Processed log-probabilities of the running beams in places [first, first + n). chosen: as in processor_step. */
mn_status beams_score(beams *b, size_t first, size_t n, const int32_t *chosen, size_t n_chosen);

/* The best n_wanted continuations of the beams in places [first, first + n), best first, ties by place and id; with
 * sampling that many different draws, in the order drawn. Fewer where fewer are possible. out: [n_wanted]. */
size_t beams_rank(beams *b, size_t first, size_t n, size_t n_wanted, beam_candidate *out);

/* The candidate that appends `id` to the running beam in a place. */
beam_candidate beams_candidate(const beams *b, size_t place, size_t id);

/* Sets whether a candidate ends its text: "eos", "stop_string", "callback". */
mn_status beams_judge(beams *b, beam_candidate *candidate);

/* Why every text ends with this step: "time", "length"; NULL: it does not. */
const char *beams_limit(const beams *b);

/* Writes the text up to a node, prompt included, to b->ids, where there is room for a token more; how many ids. */
size_t beams_ids(beams *b, int32_t node);

/* The token becomes a node. */
mn_status beams_add_node(beams *b, const beam_candidate *candidate, int32_t *node);

/* The running beam `place` of the next step. */
mn_status beams_keep(beams *b, size_t place, const beam_candidate *candidate);

/* sum / length^length_penalty. */
double beams_normalize(const beams *b, double sum, size_t length);

/* The finished text of this candidate; if it is the best so far, its cache is kept. */
mn_status beams_end(beams *b, const beam_candidate *candidate, hypothesis *out);

/* Drops a finished text. */
void beams_drop(hypothesis *text);

/* The running text in a place of the next step, or of this one when none has been kept, as one that ends now. */
hypothesis beams_open_text(const beams *b, const beam *open, size_t length, const char *finish);

/* Continues the beams kept and lists their last tokens as feeds. */
mn_status beams_move(beams *b, feed_list *feeds);

/* Writes the best of n hypotheses to the setup's sequences, best first, sorting the hypotheses, and puts the best one's
 * cache into the setup's session. Afterwards hypotheses own no sessions. */
mn_status beams_write(beams *b, hypothesis *texts, size_t n);

#endif
