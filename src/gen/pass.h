/* Bringing sessions up to date: one pass of the model over whatever several of them need next.
 *
 * A feed is tokens on their way into a session's cache. Those of many sessions are computed side by side, each with the bits
 * that it would have alone; a long one goes chunk by chunk, with the others' tokens between. A feed is begun, passed until it
 * is done, or undone. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_PASS_H
#define MN_GEN_PASS_H

#include "gen/session.h"

typedef struct feed {
    mn_session *session;
    const int32_t *ids; /* [n] to be appended; borrowed until feed_begin returns */
    size_t n;
    float
        *logits; /* [n][vocab_size] behind each of the tokens; NULL: behind the last one, to the session's */
    float *states; /* [n][hidden_size] final hidden states (after the last norm); NULL: not wanted */
    const int *
        exits; /* [n_exits] layers whose states go through the head too: 0 the embedding, i what layer i gives; ascending */
    int n_exits;
    float *exit_logits; /* [n_exits][vocab_size] behind the last token */
    mn_session *
        kin; /* not fed, but with pages of the session: its cache is made smaller, too, when memory ends; NULL: none */

    size_t before; /* tokens held before; set by feed_begin, as all below */
    int64_t most;  /* tokens of a pass; fewer when memory is short */
    bool is_done, had_logits;
    bool has_failed; /* the last pass failed because of it */
} feed;

/* Appends the ids to the session's. MN_E_ARG for ids out of range or none, MN_E_FULL, MN_E_NOMEM; then nothing has changed. */
mn_status feed_begin(feed *f);

/* Computes the next piece of every feed that is not done: short ones at once, of long ones as many in order as one chunk
 * holds. When memory ends, pieces get shorter, sessions do what their on_oom says, and fewer rows are computed at a time, so that far pages
 * are near for few of them at once. A failure leaves every feed where it was and marks
 * those that it is about: the session that was cancelled (MN_E_CANCELLED), the one that there is no memory for though it is alone, or all
 * that were computed together. */
mn_status feeds_pass(feed *const *feeds, size_t n);

/* Takes a feed that is not done back: the session holds what it held. */
void feed_undo(feed *f);

/* feed_begin and as many passes as it takes; undone on failure. */
mn_status feed_run(feed *f);

/* Makes *f the feed after which the session holds exactly ids [n]: the longest common prefix stays, the rest is dropped, at least
 * the last token is computed. keep: at most so many tokens stay. Not begun; f->n is 0 when the logits are there already. *n_reused: tokens that are
 * not computed again. */
mn_status feed_sync(feed *f, mn_session *session, const int32_t *ids, size_t n, size_t keep,
                    size_t *n_reused);

#endif
