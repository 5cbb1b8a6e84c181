/* One returned sequence while it is written: ids, text that may be shown, what was asked to be kept of each step, and why it
 * ended. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEQUENCE_H
#define MN_GEN_SEQUENCE_H

#include "gen/session.h"
#include "gen/stop.h"

typedef struct sequence {
    const mn_session *session; /* its row's, for the model and the tokenizer */
    const mn_generation_config *config;
    const mn_generate_options *options;
    int row, index; /* of the batch; among the sequences of its row */
    int32_t *all;   /* [n_prompt + max_new] the prompt and behind it the new tokens; owned */
    int32_t *ids;   /* [n_ids] the new tokens, in `all` */
    size_t n_prompt, n_ids, max_new;
    tokenizer_stream *stream; /* NULL without a tokenizer */
    bytes piece;              /* scratch: what the last token decoded to */
    stop_text text;
    mn_logprob *logprobs; /* [n_ids][1 + top_logprobs]; NULL: not kept, as the two below */
    float *scores, *raw;  /* [n_ids][vocab_size] */
    const char *finish;   /* NULL: goes on */
    bool cancelled;       /* the token callback said stop */
    mn_session *
        session_kept; /* that holds the prompt and the ids but the last; owned; NULL: not asked for, the caller's, or taken */
    size_t n_drafted,
        n_draft_accepted; /* assisted decoding: tokens proposed, and those of them that were chosen */

    /* Beams only. */
    bool has_score;
    double score;
    int32_t *beam_indices; /* [n_ids] row of the running beams that each token was chosen from; owned */
    float *transitions;    /* [n_ids] score of each token; owned */
} sequence;

/* MN_E_ARG when the configuration asks for what this checkpoint cannot do; MN_E_NOMEM. Closed by sequence_close in any case. */
mn_status sequence_open(sequence *s, const mn_session *session, const mn_generation_config *config,
                        const mn_generate_options *options, const int32_t *prompt, size_t n_prompt,
                        size_t max_new);
void sequence_close(sequence *s);

/* Appends a chosen token, shows what may be shown, and sets `finish` when it ends the sequence: "eos", "stop_string",
 * "callback", "length". scores: [vocab_size] processed scores it was chosen by; raw: logits before; NULL: not known. */
mn_status sequence_add(sequence *s, int32_t id, const float *scores, const float *raw);

/* The same for one token of a text that is known to the end: nothing is judged, so that sequence_end says why it ended; a stop
 * string alone ends it here too. The log-probabilities are the caller's to write. */
mn_status sequence_append(sequence *s, int32_t id, const float *scores, const float *raw);

/* Log-probabilities by scores [vocab]: of the token, then the `top` best ones, best first. out: [1 + top]. */
void sequence_rank(mn_logprob *out, size_t top, int32_t id, const float *scores, size_t vocab);

/* Takes over *session, which a search needs no more, when sessions are to be kept; closes it otherwise. NULL afterwards. */
void sequence_keep(sequence *s, mn_session **session);

/* Ends it for a reason from outside and releases the text held back; an ended one stays as it is. */
mn_status sequence_end(sequence *s, const char *reason);

#endif
