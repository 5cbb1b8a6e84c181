/* One timeline of tokens: its ids, its cache, the logits behind its last token.
 *
 * The ids are the truth; the cache holds keys and values of some prefix of them and is brought up to date by
 * the next step. That is what makes a cache-less session, a rollback, a change of rotary angles and a failed
 * step the same thing: the cache is shorter than the ids for a while. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SESSION_H
#define MN_GEN_SESSION_H

#include <stdatomic.h>

#include "base/mac.h"
#include "gen/generation_config.h"
#include "kv/plan.h"
#include "model/model.h"
#include "text/tokenizer.h"

/* What the public handle of a model holds. */
struct mn_model {
    model_core *core;
    tokenizer *text;                  /* NULL: the checkpoint has none */
    mn_generation_config *generation; /* of the checkpoint */
};

/* What a session does when there is no memory for the next step. */
typedef enum on_oom { OOM_FAIL, OOM_OFFLOAD, OOM_QUANTIZE, OOM_EVICT, N_OOM } on_oom;
mn_status on_oom_read(on_oom *out, const char *text);

/* What whoever opened a session said of its cache; where no cache was named, a generation's configuration names it. */
typedef struct asked_cache {
    bool names_cache;
    int64_t max_cache_len;
    int page_tokens, prefill_chunk;
} asked_cache;

struct mn_session {
    mn_model *owner;
    model_core *model;
    kv_plan plan;
    char *config; /* of the plan, as it was given; NULL: nothing */
    on_oom on_oom;
    asked_cache asked;
    char before[2 * KV_PLAN_TEXT + 16]; /* name of the plan before memory ended; "": it did not */
    const kv_basis_set *bases;          /* the model's, that keys are coded in here; NULL: none */
    kv_cache *cache;
    int64_t regime; /* rotary angles that the cached keys were made with */
    int32_t *ids;   /* [n_ids] */
    size_t n_ids, ids_capacity;
    float *logits; /* [vocab_size] */
    bool has_logits;
    int prefill_chunk;
    mac_key key; /* of its saved caches */
    atomic_bool cancelled; /* the last member: session_exchange leaves it */
};

/* Loads the model's calibrated bases from where mn_cache_calibrate puts them; none is no failure. MN_E_REFUSED for damaged ones
 * and another model's. */
mn_status model_load_bases(mn_model *model);

/* mn_session_set_cache, by somebody else than the one who opened it. */
mn_status session_change_cache(mn_session *session, const mn_cache_options *options);

/* After MN_E_NOMEM: makes the first session's cache smaller as its on_oom says, and those of the others that share pages with it.
 * MN_OK: try again; otherwise the failure stays. */
mn_status session_relieve(mn_session *const *sessions, size_t n);

/* The entries of a session's cache. *specs is owned by the caller. */
mn_status session_specs(kv_spec **specs, int *n, const mn_session *session);

/* The length that decides length-dependent rotary angles: of what a query sees, where that is bounded. */
int64_t session_angle_length(const mn_session *session, int64_t total);

/* Tokens that a session holds at most: max_cache_len, or as many as there are learned positions; 0: there is no such end. */
int64_t session_limit(const mn_session *session);

/* Whether every query looks through a window, so that a text may pass the model's context. */
bool session_is_endless(const mn_session *session);

/* Tokens that an entry has room for: the session's limit and its window, the smaller one; 0: there is no such end. */
int64_t session_entry_limit(const mn_session *session, const kv_spec *spec);

/* Room for n ids; as many as the cache's pages hold are made room for at once, so that steps inside them do not allocate. */
mn_status session_make_room(mn_session *session, size_t n);

/* What cross attention looks at while ids [n] are read from the beginning: weights of heads [n_heads], which the model must have, to
 * `out` [n_heads][n][max_source_positions]. The session was encoded; it stays as it is. MN_E_NOMEM. */
mn_status session_cross_weights(const mn_session *session, const int32_t *ids, size_t n,
                                const cross_head *heads, size_t n_heads, float *out);

/* Takes the cache back to n tokens, or further where what they see is gone; the ids bring it up to date again. */
void session_go_back(mn_session *session, int64_t n);

/* How many tokens, at most `most` and at least 1, may be fed at once so that session_take_back leaves the session as if those that stay
 * had been fed one by one: kv_quiet_tokens, where rotary angles do not change. */
int64_t session_quiet_tokens(const mn_session *session, int64_t most);

/* Keeps the first n ids, of those held; logits [vocab_size]: behind the last of them. */
void session_take_back(mn_session *session, size_t n, const float *logits);

/* Gives each the tokens, cache and logits of the other; sessions of one model. */
void session_exchange(mn_session *a, mn_session *b);

/* Forgets all tokens; the pages go. */
void session_empty(mn_session *session);

/* What mn_session_open does before it opens the cache: a session of these options that others are opened like, and nothing else. */
mn_status session_open_plan(mn_session **out, mn_model *model, const mn_cache_options *options);

/* An empty session of the same model and strategy. */
mn_status session_open_like(mn_session **out, const mn_session *like);

/* mn_session_fork; the logits, of no use to who feeds the fork next, are copied only when asked for. */
mn_status session_fork(mn_session **fork, const mn_session *session, bool with_logits);

/* Gives `fork`, whose own text is not needed any more, the same past as `session`: what a fork is, in the memory of an old one.
 * On failure it is empty. */
mn_status session_refork(mn_session *fork, const mn_session *session, bool with_logits);

#endif
