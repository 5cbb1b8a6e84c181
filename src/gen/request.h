/* One prompt and its sequences. Everything a request needs is opened first; then its prompt is computed, and its search
 * runs until it lists no more feeds. Requests are independent of each other; gen/steps.h computes many in one pass.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_REQUEST_H
#define MN_GEN_REQUEST_H

#include "gen/search/search.h"
#include "gen/owner.h"
#include "session/prefix_disk.h"

/* A constraint and the number of requests that use it. */
typedef struct shared_constraint shared_constraint;

typedef struct request {
    search_setup setup;          /* options: those below */
    mn_generate_options options; /* its pointers belong to the caller */
    mn_session *own_session;     /* the setup's, if the request owns it; NULL: the caller owns it, or it is closed */
    mn_generation_config *own_config; /* the setup's, when it is a copy; else NULL */
    int32_t *own_negative;            /* the same of options.negative_prompt */
    mn_model *assistant;              /* options.assistant, held while the request runs; NULL: none */
    const search_kind *kind;
    void *state; /* of the search; NULL: not started, or ended */
    feed prefill;
    float *prompt_states; /* owned; NULL: not requested */
    int *exits;           /* owned; NULL: none */
    feed_list feeds;      /* in flight */
    sequence *sequences;  /* [n_opened] */
    size_t n_opened;
    step_log steps;
    shared_constraint *constraint; /* NULL: none */
    size_t prompt_tokens;          /* to be computed, once started */
    size_t prompt_done;            /* computed, as reported to on_prefill */
    size_t cached_tokens;
    size_t file_tokens; /* of them, those that it waited for until they were read from a file */
    bool has_started, is_prefilled, is_done, was_cancelled;
    bool has_waited;   /* for a file with the beginning of its prompt */
    int64_t in_memory; /* of the beginning, when it began to wait */
    bool is_apart;     /* it takes no pages of others any more */
    bool resumes;      /* preempted: its rows are computed again one after the other */
    mn_status status;  /* why it failed; it is done then */
    char error[1024];
    mn_cache_info cache; /* when it was done; its names: */
    char implementation[2 * KV_PLAN_TEXT + 16], original_implementation[2 * KV_PLAN_TEXT + 16];
    kv_pool *pool;  /* where the request's pages come from; NULL: not watched */
    kv_watch watch; /* of it, from the opening to the end */
    double started, prompt_started, prompt_ended, ended;
    size_t vocab;
    int priority;                      /* of an engine: higher ones are computed first */
    owner *owner;                      /* there; NULL elsewhere */
    uint64_t order;                    /* of arrival there */
    atomic_bool wants_end;             /* cancelled by another thread */
    size_t need, draft_need, need_end; /* request_need that it is admitted with, while it has fewer tokens than
                                        * need_end; need 0: not counted */
    size_t n_preemptions;
    prefix_tree *prefixes; /* where it finds what others have computed, and leaves what it computes; NULL: nowhere */
    char *cache_salt;
    prefix_root *root;         /* of its strategy; NULL: not looked up, or it shares nothing */
    prefix_end_reason match;   /* why no more of its prompt was found */
    int64_t branch;            /* where another text parts from its prompt; 0: nowhere, or of no use */
    prefix_entry *announced;   /* its prompt, while it runs */
    struct request *older;     /* among an engine's requests that have not ended */
    struct request *next;      /* in the list of those that ended, or that wait */
    struct gen_result *result; /* set by the owner */
} request;

/* Opens a request. r is zero but for prompt, session, configuration and row of its setup, and what it owns of these.
 * The prompt is copied. All input is validated here, before anything is computed. others [n]: requests whose constraint
 * it may share. Closed by request_close in any case. */
mn_status request_open(request *r, const mn_generate_options *options, uint64_t seed, request *const *others,
                       size_t n_others);

/* A new session for a request: empty with these options, or a fork of the row's prefix, which must be a session of the
 * same model. Where neither names a cache, the configuration's is used. A prefix whose quantized values depend on how
 * tokens were divided into calls is not shared: the request computes its whole prompt, as it would alone. */
mn_status request_session(mn_session **out, mn_model *model, const mn_cache_options *cache, const mn_batch_row *row,
                          const mn_generation_config *config);

/* Undoes unfinished computation, so that a session of the caller is as it was before. */
void request_close(request *r);

/* Before the start: shares the constraint of another request if both are equal. */
void request_share_constraint(request *r, request *const *others, size_t n_others);

/* Bytes of pages that it needs by the plan of its cache: for its tokens and `ahead` more, or for the most tokens it may
 * have, where that is less or its pages cannot be dropped; and those of its draft model. SIZE_MAX when they cannot be
 * counted; MN_E_NOMEM, MN_E_ARG where the plan does not fit the model. */
mn_status request_need(const request *r, int64_t ahead, size_t *need, size_t *draft_need);

/* Whether its pages can be dropped at any time without changing its result, and dropping them. Its feeds stay and are
 * computed later. */
bool request_may_be_preempted(const request *r);
void request_preempt(request *r);

/* What is kept or computed by others of its prompt, or of its tokens when it was preempted. Zero when it shares
 * nothing. MN_E_NOMEM. */
mn_status request_find_prefix(request *r, prefix_match *match);
/* Begins with that, before anything of it is computed, and announces the prompt to others. */
mn_status request_begin_prefix(request *r, const prefix_match *match);
/* What that did is undone, before the request has begun to compute: it can be started again. */
void request_leave_prefix(request *r);
/* Bytes of full pages that it would share if it started now; they are evicted later than others. MN_E_NOMEM. */
mn_status request_shared_bytes(request *r, size_t *shared);
/* Gives a preempted request what is still kept of its tokens. */
void request_resume_prefixes(request *r);
/* Keeps what it has computed where a later request cannot take it from the whole: at the end of the prompt, and where
 * its prompt and another's parted. */
void request_keep_prefix(request *r);

/* When memory ends for a request that runs alone: drops its pages and lets it compute them itself, since a page that it
 * shares with a text that is kept may be larger than what it uses of it. False: its pages are its own. */
bool request_compute_apart(request *r);

/* Feeds that failed are tried again. */
void request_retry(request *r);

/* A copy of the caller's negative prompt. MN_E_NOMEM. */
mn_status request_copy_negative(request *r);

/* Whether its search can choose ahead now, and doing so: on any thread, concurrently with other requests. */
bool request_can_choose(const request *r);
void request_choose(request *r);

/* When all feeds are computed: runs the search and starts its next feeds; the first time, the prompt. */
mn_status request_advance(request *r);

/* What its abort_callback says. */
bool request_is_aborted(const request *r);

/* Whether it was cancelled: by its token callback or mn_session_cancel. */
bool request_is_cancelled(request *r);

/* Ends it: for MN_E_CANCELLED with a partial result, for another failure with this status and the thread's message. A
 * finished request is unchanged. */
void request_stop(request *r, mn_status status);

/* The most feeds that it can have; and appending its unfinished feeds to list [n], which returns the new n. */
size_t request_most_feeds(const request *r);
size_t request_list_feeds(request *r, feed **list, size_t n);
/* Whether the last pass failed because of it, in its own model or a draft model; and whether in its own. */
bool request_has_failed(const request *r);
bool request_has_failed_itself(const request *r);

/* The number of its prompt_tokens that are computed. */
size_t request_prompt_done(const request *r);

/* The status of a request that has failed, with its message; MN_OK otherwise. */
mn_status request_status(const request *r);

/* The constraint of regex, grammar or json_schema, one of which is set. MN_E_ARG. */
mn_status request_make_constraint(constraint **out, const mn_generation_config *config, const tokenizer *text,
                                  size_t vocab);

/* The configuration's seed, or a fresh one. */
uint64_t request_seed(const mn_generation_config *config);

#endif
