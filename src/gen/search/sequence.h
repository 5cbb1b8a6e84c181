/* One returned sequence during generation: ids, text that may be shown, requested outputs of each step, and why it
 * ended.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEARCH_SEQUENCE_H
#define MN_GEN_SEARCH_SEQUENCE_H

#include "session/session.h"
#include "gen/search/stop.h"

typedef struct sequence {
    const mn_session *session; /* of its row, for the model and the tokenizer */
    const mn_generation_config *config;
    const mn_generate_options *options;
    int row, index; /* of the batch; among the sequences of its row */
    int32_t *all;   /* [n_prompt + max_new] the prompt and the new tokens; owned */
    int32_t *ids;   /* [n_ids] the new tokens, in `all` */
    size_t n_prompt, n_ids, max_new;
    tokenizer_stream *stream; /* NULL without a tokenizer */
    bytes piece;              /* scratch: what the last token decoded to */
    stop_text text;
    size_t shown;             /* bytes of it that were reported */
    int32_t *logprob_ids;     /* [n_ids][1 + top_logprobs]; NULL: not kept, as the three below */
    float *logprobs;          /* of these ids */
    float *scores, *raw;      /* [n_ids][vocab_size] */
    const char *finish;       /* NULL: not ended */
    bool has_ended;           /* the last event was reported */
    bool cancelled;           /* the token callback requested the end */
    mn_session *session_kept; /* that holds the prompt and the ids but the last; owned; NULL: not requested, the
                                 caller's, or taken */
    size_t n_drafted, n_draft_accepted; /* assisted decoding: tokens proposed, and those of them that were chosen */

    /* Beams only. */
    bool has_score;
    double score;
    int32_t *beam_indices; /* [n_ids] row of the running beams that each token was chosen from; owned */
    float *transitions;    /* [n_ids] score of each token; owned */
} sequence;

/* MN_E_ARG when the configuration needs what this checkpoint lacks; MN_E_NOMEM. Closed by sequence_close in any
 * case. */
mn_status sequence_open(sequence *s, const mn_session *session, const mn_generation_config *config,
                        const mn_generate_options *options, const int32_t *prompt, size_t n_prompt, size_t max_new);
void sequence_close(sequence *s);

/* Keeps the requested outputs of the at-th new token: the scores [vocab_size] it is chosen by and the logits; NULL: not
 * known. Changes only this sequence and runs no callback, so any thread may call it. */
void sequence_record(sequence *s, size_t at, int32_t id, const float *scores, const float *raw);

/* Appends a chosen token that was recorded, reports text that may be shown, and sets `finish` when it ends the
 * sequence: "eos", "stop_string", "callback", "length". */
mn_status sequence_add(sequence *s, int32_t id);

/* The same for one token of a complete text: stopping criteria are not checked, as the reason is given to sequence_end,
 * except that a stop string ends it here too. The end token of the text, behind which `finish` is set already, adds no
 * text. The caller writes the log-probabilities; NULL: scores or logits are not
 * known. */
mn_status sequence_append(sequence *s, int32_t id, const float *scores, const float *raw);

/* Log-probabilities by scores [vocab]: of the token, then the `top` best ones, best first. ids, logprobs: [1 + top]. */
void sequence_rank(int32_t *ids, float *logprobs, size_t top, int32_t id, const float *scores, size_t vocab);

/* Takes *session, which the search no longer needs, when sessions are to be kept; closes it otherwise. NULL afterwards.
 */
void sequence_keep(sequence *s, mn_session **session);

/* Ends it, for this reason unless it has one, and reports the last event: the reason and the text held back. An ended
 * one is unchanged. */
mn_status sequence_end(sequence *s, const char *reason);

#endif
