/* One prompt on its way to its sequences: everything it needs is opened at the beginning, its prompt is computed, then its search goes on
 * until it asks for nothing more. Requests know nothing of each other; gen/engine.h computes many side by side.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_REQUEST_H
#define MN_GEN_REQUEST_H

#include "gen/search.h"

/* A constraint and how many requests ask it. */
typedef struct shared_constraint shared_constraint;

typedef struct request {
    search_setup setup;          /* options: those below */
    mn_generate_options options; /* its pointers are the caller's */
    mn_session *own_session; /* the setup's, when it is the request's; NULL: the caller's, or it is gone */
    mn_generation_config *own_config; /* the setup's, when it is a copy; else NULL */
    int32_t *own_negative;            /* the same of options.negative_prompt */
    const search_kind *kind;
    void *state; /* of the search; NULL: not begun, or ended */
    feed prefill;
    float *prompt_states; /* owned; NULL: not wanted */
    int *exits;           /* owned; NULL: none */
    feed_list feeds;      /* in flight */
    sequence *sequences;  /* [n_opened] */
    size_t n_opened;
    step_log steps;
    shared_constraint *constraint; /* NULL: none */
    size_t prompt_tokens;          /* to be computed, once it has begun */
    size_t prompt_done;            /* computed: as told to on_prefill */
    size_t cached_tokens;
    bool has_begun, is_prefilled, is_done, was_cancelled;
    mn_status status; /* why it failed; it is done then */
    char error[1024];
    mn_cache_info cache; /* when it was done; its names: */
    char implementation[2 * KV_PLAN_TEXT + 16], before[2 * KV_PLAN_TEXT + 16];
    kv_pool *pool;  /* where the request's pages come from; NULL: not watched */
    kv_watch watch; /* of it, from the opening to the end */
    double started, prompt_ended, ended;
    size_t vocab;
    struct request *next;      /* in the list of those that ended */
    struct gen_result *result; /* what it becomes; the owner's */
} request;

/* Opens a request whose setup has prompt, session, configuration and row; r is zero but for that and for what it owns of it. The prompt
 * is copied. Everything that can be refused is refused here, before anything is computed.
 * others [n]: requests whose constraint it may share. Closed by request_close in any case. */
mn_status request_open(request *r, const mn_generate_options *options, uint64_t seed, request *const *others,
                       size_t n_others);

/* The session of a request of its own: empty with these options, or a fork of the row's prefix, which is then a session of the model;
 * where neither names a cache, with the one that the configuration asks for. A past whose codes depend on what was one call is not
 * shared: the request computes its whole prompt, as it would alone. */
mn_status request_session(mn_session **out, mn_model *model, const mn_cache_options *cache,
                          const mn_batch_row *row, const mn_generation_config *config);

/* Takes back what was not computed to the end, so that a session of the caller holds what it held before. */
void request_close(request *r);

/* A copy of the caller's negative prompt. MN_E_NOMEM. */
mn_status request_copy_negative(request *r);

/* Lets the search choose, when all that it asked for is computed, and begins what it asks for next; the first time, the prompt. */
mn_status request_advance(request *r);

/* Whether somebody wants it to end: its callback, or mn_session_cancel. */
bool request_is_cancelled(request *r);

/* Ends it: for MN_E_CANCELLED with what there is, for another failure with this status and the thread's message. A request that is
 * done stays as it is. */
void request_stop(request *r, mn_status status);

/* The number of feeds that it has at most, and those that are not done: appended to list [n], how many there are then. */
size_t request_most_feeds(const request *r);
size_t request_list_feeds(request *r, feed **list, size_t n);
/* Whether the last pass failed because of it. */
bool request_has_failed(const request *r);

/* Of its prompt_tokens, those that are computed. */
size_t request_prompt_done(const request *r);

/* The status of a request that has failed, with its message; MN_OK otherwise. */
mn_status request_status(const request *r);

/* The configuration's seed, or a fresh one. */
uint64_t request_seed(const mn_generation_config *config);

#endif
