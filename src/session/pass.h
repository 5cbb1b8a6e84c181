/* One pass of the model over the next tokens of several sessions.
 *
 * A feed is tokens to be computed into a session's cache. Feeds of many sessions are computed together, each with the
 * same bits as alone; a long one is computed in chunks between the tokens of the others. A feed is begun, passed until
 * it is done, or undone.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SESSION_PASS_H
#define MN_SESSION_PASS_H

#include "kv/plan_rows.h"
#include "session/session.h"

typedef struct feed {
    mn_session *session;
    const int32_t *ids; /* [n] to be appended; borrowed until feed_begin returns */
    size_t n;
    float *logits;    /* [n][vocab_size] after each of the tokens; NULL: after the last one, to the session's */
    float *states;    /* [n][hidden_size] final hidden states (after the last norm); NULL: not needed */
    const int *exits; /* [n_exits] layers whose states go through the head too: 0 the embedding, i what layer i gives;
                         ascending */
    int n_exits;
    float *exit_logits; /* [n_exits][vocab_size] after the last token */
    int64_t pause;      /* a pass computes no further than to this length, where it can; 0: none */
    bool is_prompt;     /* it can be computed in small pieces beside others */
    bool is_draft;      /* its tokens are verified by another feed later */
    bool skips_logits;  /* the session has no logits afterwards; not with `logits` */
    /* It waits while its model would compute only such feeds and short drafts are computed, so that theirs join it. */
    bool waits_for_drafts;
    mn_session *shares_pages_with; /* not fed, but with pages of the session: its cache is made smaller, too, when
                                      memory ends; NULL: none */

    size_t before; /* tokens held before; set by feed_begin, as all below */
    int64_t most;  /* tokens of a pass; fewer when memory is short */
    bool is_done, had_logits;
    bool has_failed; /* the last pass failed because of it */
} feed;

/* How much of long feeds a pass may compute, so that the others in it do not wait long. */
typedef struct pass_limit {
    int64_t most_long; /* tokens, 0 or more */
    int64_t n_long;    /* set by feeds_pass: what it computed of them */
} pass_limit;

/* Whether a limit cuts this feed: prompts, and texts that are computed again. */
bool feed_is_long(const feed *f);
int64_t feed_length(const feed *f); /* in tokens: those that it adds, or more that are missing in the cache */

/* Appends the ids to the session's. MN_E_ARG for ids out of range or none, MN_E_FULL, MN_E_NOMEM; then nothing has
 * changed. */
mn_status feed_begin(feed *f);

/* Computes the next piece of every feed that is not done: short ones at once, of long ones as many in order as one
 * chunk holds. Sessions may belong to several models: the feeds of each model are computed together, one model after
 * the other. When memory runs out, pieces get shorter, the on_oom policies of the sessions are applied, and fewer rows
 * are computed at a time, so that the offloaded pages of few are staged at once. On failure no feed advances, and those
 * that it concerns are marked: the session that was cancelled (MN_E_CANCELLED), the one for which there is no memory
 * even alone, or all that were computed together. limit: NULL for none. */
mn_status feeds_pass(feed *const *feeds, size_t n, pass_limit *limit);

/* Undoes a feed that is not done: the session is as before feed_begin. */
void feed_undo(feed *f);

/* feed_begin and as many passes as it takes; undone on failure. */
mn_status feed_run(feed *f);

/* Makes *f the feed after which the session holds exactly ids [n]: the longest common prefix is kept, the rest is
 * dropped, at least the last token is computed. keep: the most tokens to keep. Does not begin the feed; f->n is 0 when
 * the session already has the logits. *n_reused: tokens that are not computed again. */
mn_status feed_sync(feed *f, mn_session *session, const int32_t *ids, size_t n, size_t keep, size_t *n_reused);

/* How many of n texts of so many tokens one pass computes, at least in part. */
int64_t pass_texts(const mn_session *s, int64_t n_tokens, int64_t n);

/* The bytes of the pages of rows that share a prompt and add `own` tokens each, in a session with this plan and these
 * entries (session_specs). */
mn_status session_plan_run(kv_run_bytes *out, const mn_session *s, const kv_spec *specs, int n, int64_t prompt,
                           int64_t own, int64_t rows);

#endif
