/* A sequence of tokens: its ids, its cache, the logits after its last token.
 *
 * The ids are authoritative; the cache holds keys and values of some prefix of them, and the next step computes the
 * rest. So a session without a cache, a rollback, a change of rotary angles and a failed step are the same case: the
 * cache is shorter than the ids.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SESSION_SESSION_H
#define MN_SESSION_SESSION_H

#include <stdatomic.h>

#include "base/mac.h"
#include "kv/plan.h"
#include "model/model.h"
#include "text/tokenizer/tokenizer.h"

/* The public handle of a model. It is freed when the last of its holders has closed it. */
struct mn_model {
    model_core *core;
    tokenizer *text;                  /* NULL: the checkpoint has none */
    mn_generation_config *generation; /* of the checkpoint */
    int64_t pad_token_id;             /* that it names; -1: none */
    char *warning;                    /* about its files; NULL: none */
    atomic_size_t n_holders;          /* the program that opened it, and each object that needs it */
};

/* The model for one more holder, who closes it with mn_model_close. */
static inline mn_model *model_hold(const mn_model *model) {
    mn_model *held = (mn_model *)(uintptr_t)model;
    atomic_fetch_add_explicit(&held->n_holders, 1, memory_order_relaxed);
    return held;
}

/* The policy of a session when there is no memory for the next step. */
typedef enum on_oom { OOM_FAIL, OOM_OFFLOAD, OOM_QUANTIZE, OOM_EVICT, N_OOM } on_oom;
mn_status on_oom_read(on_oom *out, const char *text);

/* The cache options with which a session was opened; without an implementation, a generation's configuration determines
 * it. */
typedef struct requested_cache {
    bool names_cache;
    int64_t max_cache_len;
    int page_tokens, prefill_chunk;
} requested_cache;

struct mn_session {
    mn_model *owner; /* held */
    model_core *model;
    kv_plan plan;
    on_oom on_oom;
    requested_cache requested;
    char original_implementation[2 * KV_PLAN_TEXT + 16]; /* name of the plan before on_oom changed it; "": unchanged */
    const kv_calibration *calibration;                   /* the model's, for quantized keys; NULL: none */
    kv_calibrator *calibrator;                           /* collects keys and queries of this session; NULL: none */
    kv_cache *cache;
    int64_t regime; /* identifies the rotary angles of the cached keys */
    int32_t *ids;   /* [n_ids] */
    size_t n_ids, ids_capacity;
    float *logits; /* [vocab_size] */
    bool has_logits;
    int prefill_chunk;
    mac_key key; /* of its saved caches */
    atomic_bool cancelled;
    mn_session *next_in_ring, *previous_in_ring; /* session_begin_ring; NULL: none */
};

/* mn_session_set_cache for internal callers: the requested options stay. */
mn_status session_change_cache(mn_session *session, const kv_plan *plan);

/* After MN_E_NOMEM: applies the on_oom policy of the first session to its cache and to those of the others that share
 * pages with it. MN_OK: try again; otherwise the failure stands. */
mn_status session_apply_on_oom(mn_session *const *sessions, size_t n);

/* After MN_E_NOMEM in a session whose policy is to fail: returns it, with the other policies that its cache allows in
 * the message. */
mn_status session_name_on_oom(const mn_session *s);

/* The entries of a session's cache. *specs is owned by the caller. */
mn_status session_specs(kv_spec **specs, int *n, const mn_session *session);
/* Those that a session of the model with this plan and calibration (NULL: none) would have. */
mn_status session_plan_specs(kv_spec **specs, int *n, const model_core *model, const kv_plan *plan,
                             const kv_calibration *calibration);

/* The bytes that a session with these entries and options reports once n_tokens were computed into it, as
 * kv_plan_bytes. */
size_t session_plan_bytes(const model_core *model, const kv_options *options, const kv_spec *specs, int n,
                          int64_t n_tokens);

/* The length that determines length-dependent rotary angles: that of the attention window, where it is bounded. */
int64_t session_angle_length(const mn_session *session, int64_t total);

/* Maximal number of tokens of a session: max_cache_len or the number of learned positions; 0: unlimited. */
int64_t session_limit(const mn_session *session);

/* Whether every query has a window, so that a text may exceed the model's context. */
bool session_has_unbounded_context(const mn_session *session);

/* Capacity of an entry in tokens: the session's limit or its window, the smaller one; 0: unlimited. */
int64_t session_entry_limit(const mn_session *session, const kv_spec *spec);

/* Capacity for n ids, rounded up to the tokens of the cache's pages, so that steps within them do not allocate. */
mn_status session_make_room(mn_session *session, size_t n);

/* Weights of cross attention while ids [n] are computed from the beginning, of heads [n_heads], which the model must
 * have, to `out` [n_heads][n][max_source_positions]. The session must be encoded; it is unchanged. MN_E_NOMEM. */
mn_status session_cross_weights(const mn_session *session, const int32_t *ids, size_t n, const cross_head *heads,
                                size_t n_heads, float *out);

/* Truncates the cache to n tokens, or to fewer when tokens that they attend to were dropped; the next step recomputes
 * the missing ones. */
void session_go_back(mn_session *session, int64_t n);

/* How many tokens, at most `most` and at least 1, may be fed at once so that session_take_back leaves the session as if
 * those that stay had been fed one by one: kv_revertible_tokens, where rotary angles do not change. */
int64_t session_revertible_tokens(const mn_session *session, int64_t most);

/* Keeps the first n ids of those held; logits [vocab_size]: after the last of them. */
void session_take_back(mn_session *session, size_t n, const float *logits);

/* Gives each the tokens, logits, cache and strategy of the other; sessions of one model. Each keeps what its owner set:
 * key, on_oom, what was requested. */
void session_exchange(mn_session *a, mn_session *b);

/* Drops all tokens and releases the pages. */
void session_empty(mn_session *session);

/* The two halves of mn_session_open. After the first, a session has no cache and no memory of the model; session_specs,
 * session_limit, opening others like it and closing it are allowed. It stays in this state when the second half
 * fails. */
mn_status session_open_plan(mn_session **out, mn_model *model, const mn_cache_options *options);
mn_status session_open_cache(mn_session *session);

/* From here on, sessions that are opened like this one or as its forks, and theirs, are its relatives until they are
 * closed: a ring, which one thread at a time changes. session_leave_ring takes one out of it. */
void session_begin_ring(mn_session *session);
void session_leave_ring(mn_session *session);

/* Whether the pages of a session can be dropped at any time without changing its results: computing its ids again gives
 * the same bits. Not so when quantized tokens depend on how tokens were divided into calls, when on_oom changed the
 * cache, and when pages are preallocated. */
bool session_may_drop_pages(const mn_session *session);

/* Releases the pages; the next step computes the tokens again. */
void session_drop_pages(mn_session *session);

/* A session of the same model and strategy without ids, a cache and memory for logits, which is no relative: others are
 * opened over it. */
mn_status session_open_empty(mn_session **out, const mn_session *like);

/* One with these n ids, and a fork of the cache of others with this strategy that had computed them. */
mn_status session_open_over(mn_session **out, const mn_session *empty, const int32_t *ids, size_t n, int64_t regime,
                            const kv_cache *cache);

/* An empty session of the same model and strategy. */
mn_status session_open_like(mn_session **out, const mn_session *like);

/* Bytes of the pages of a cache: kv_bytes, kv_offloaded_held, kv_unique_bytes. */
typedef struct session_sizes {
    size_t bytes, offloaded, unique;
} session_sizes;

/* kv_fork, kv_refork, the sizes, kv_read of a session's cache; sizes are 0 without one. All of them are safe while
 * other threads compute sessions that share its pages, as is session_go_back. */
mn_status session_fork_cache(kv_cache **fork, const mn_session *session);
mn_status session_refork_cache(mn_session *fork, const mn_session *session);
session_sizes session_count(const mn_session *session);
mn_status session_read_rows(const mn_session *session, int entry, bool is_key, int64_t begin, int n, float *rows);

/* mn_session_fork; the logits are copied only on request. */
mn_status session_fork(mn_session **fork, const mn_session *session, bool with_logits);

/* Makes `fork`, whose tokens are no longer needed, a fork of `session` in the memory that it has. On failure it is
 * empty. */
mn_status session_refork(mn_session *fork, const mn_session *session, bool with_logits);

#endif
