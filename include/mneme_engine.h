/* The part of mneme.h that is about many requests: an engine computes them together as they come and go, and caches
 * what their prompts have in common. Programs include <mneme.h>, whose rules hold here.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_ENGINE_H
#define MNEME_ENGINE_H

#ifndef MNEME_H
#error "include <mneme.h>"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- many requests ---- */

/* Computes requests together (continuous batching): each may be added at any time, leaves when it ends, and gets
 * exactly the result that it would get alone. One thread steps an engine (mn_engine_step, mn_engine_wait); add, cancel
 * and take may be called from any thread, at any time between open and close, also in a callback of a request: what is
 * added there joins, and what is cancelled there ends, at the next step; a request can be taken when the step in which
 * it ended has returned. mn_engine_step, mn_engine_wait and the calls about kept texts are MN_E_ARG in a callback of
 * the same engine; mn_engine_prefix_room and mn_engine_close do nothing there, and mn_last_error tells why. */
typedef struct mn_engine mn_engine;

typedef struct mn_engine_options {
    size_t size;                   /* sizeof(mn_engine_options) */
    const mn_cache_options *cache; /* of requests that set none; NULL: the defaults */
    uint64_t memory_limit;         /* bytes that all caches of the model may hold while the engine is open; 0:
                                    * the model's limit. A request begins when its cache and those of its draft model
                                    * fit */
    size_t max_num_seqs;           /* sequences computed together at most; 0: no limit */
    bool enable_prefix_caching;    /* the prefix cache: what requests computed is kept, as far as memory_limit
                                    * allows, for requests whose prompts begin with the same tokens */
    double max_slowdown;           /* while prompts are computed, steps take at most about so many times as long as
                                    * without, in the mean: 1.5 to 1000. More where more prompts are computed than
                                    * requests generate, or where a prompt delays these by less than 64 tokens. 0: no limit,
                                    * prompts are computed fastest */
    const char *cache_dir;         /* a folder, made when it is missing: cached prefixes are written there, too, and are
                                    * found again by the next engine. NULL: none */
    size_t cache_dir_limit;        /* bytes of these files; above it the least recently used are deleted; 0: no limit */
    double prefix_ttl_ms;          /* prefixes that were unused for this long are dropped from memory; 0: no limit */
    size_t owner_quota;            /* bytes of the cached prefixes of one owner, those that were read from files for it
                                    * included; what it adds beyond that replaces its own prefixes, not those of others.
                                    * 0: no limit */
    size_t prefix_limit; /* bytes of the cached prefixes of all owners; above it the least valuable ones are dropped.
                          * 0: no limit but memory_limit */
} mn_engine_options;

MN_API void mn_engine_options_init(mn_engine_options *options, size_t size);

/* MN_E_ARG as in mn_session_open, MN_E_NOMEM. options: NULL for the defaults. */
MN_API mn_status mn_engine_open(mn_engine **engine, mn_model *model, const mn_engine_options *options);
/* Drops the requests that were not taken. */
MN_API void mn_engine_close(mn_engine **engine);

typedef struct mn_request {
    size_t size; /* sizeof(mn_request) */
    const int32_t *prompt;
    size_t n_prompt;
    const mn_generation_config *config; /* NULL: the model's */
    const mn_generate_options *options; /* NULL: the defaults. Its callbacks are called by mn_engine_step,
                                           with the id as `row`; its `user` must remain valid until the
                                           request is taken */
    const mn_cache_options *cache;      /* NULL: the engine's */
    const mn_session *prefix;           /* as in mn_batch_row; its strategy overrides `cache` */
    int priority;                       /* requests of higher priority start first and are preempted last */
    const char *cache_salt;             /* with enable_prefix_caching: requests share what they computed only with
                                           those of the same salt; NULL: "" */
    const char *owner;                  /* whose request it is: of waiting ones with the same priority, that of the
                                           owner for whom fewer tokens were computed starts first; NULL: "" */
} mn_request;

MN_API void mn_request_init(mn_request *options, size_t size);

/* Adds a request, which joins at a following step; *id counts from 0. Requests that mn_generate would refuse are
 * refused here, as are those that need more memory than the limit (MN_E_NOMEM); the engine is then unchanged.
 * Everything that the caller passes is copied, except what must remain valid according to mn_request; prefix is forked,
 * so no other thread may use it during this call. */
MN_API mn_status mn_engine_add(mn_engine *engine, const mn_request *request, int *id);

/* With enable_prefix_caching, a request starts from the longest beginning of its prompt that a request before it has
 * computed, or one beside it, for which it waits; the results stay the same, bit for bit. Not shared are caches with
 * backend quanto or hqq, those that preallocate, those that on_oom changed, requests with a prefix of their own, with
 * penalty_alpha, and those of encoder-decoder models. What is kept is dropped when running requests need the memory:
 * what was used long ago and is cheap to compute again for its bytes goes first.
 *
 * One step. Waiting requests start, by priority, then by owner, then in order of arrival, while max_num_seqs and the
 * memory limit allow, given the planned bytes of their caches. Every request whose prompt is computed chooses its next
 * tokens, and the next tokens of every request are computed in one pass. A failure ends only the requests that it
 * concerns; mn_engine_take returns its status.
 *
 * When memory runs out in a step, the on_oom policy of the caches is tried first. Then a request is preempted: the
 * newest of the lowest priority frees its pages and keeps its tokens, waits, later recomputes them and continues with
 * the same result. A request is not preempted when recomputing would not give the same bits (quantized with backend
 * quanto or hqq, or a cache that on_oom changed) or when that frees nothing (static); such a request starts only when
 * there is room for its whole length. A request that runs alone ends with MN_E_NOMEM.
 *
 * *n_running: requests that have not ended; may be NULL. */
MN_API mn_status mn_engine_step(mn_engine *engine, size_t *n_running);

/* Returns when there is work for mn_engine_step, or after timeout_ms (at most 10^9) milliseconds. */
MN_API mn_status mn_engine_wait(mn_engine *engine, double timeout_ms, bool *has_work);

/* Makes mn_engine_wait return at once: the call that waits, or the next one. From any thread. */
MN_API void mn_engine_wake(mn_engine *engine);

typedef struct mn_engine_info {
    size_t size; /* sizeof(mn_engine_info), set by the caller */
    size_t num_requests_running, num_requests_waiting;
    uint64_t n_preemptions; /* since the engine was opened */
    uint64_t cache_bytes;   /* resident bytes of all caches of the model, as memory_limit counts them */
    uint64_t memory_limit;  /* the limit in force; 0: none */
    uint64_t kept_bytes;    /* the prefix cache: its pages, each once, those that running requests share included */
    size_t n_kept;          /* cached prefixes */
    size_t n_files;         /* of cache_dir, and their bytes */
    uint64_t file_bytes;
    uint64_t n_files_read, n_files_written, n_files_failed; /* since the engine was opened */
    uint64_t n_resident_pages, n_offloaded_pages; /* of all caches of the model, shared ones once; pages of a saved
                                                   * cache that is mapped are in neither */
    uint64_t offloaded_bytes;                     /* of the offloaded ones */
} mn_engine_info;

/* Between steps, on the thread that steps. MN_E_NOMEM. */
MN_API mn_status mn_engine_get_info(mn_engine *engine, mn_engine_info *info);

/* A node of the tree of prefixes that are cached or being computed. Its prefix is that of its parent and its own ids.
 */
typedef struct mn_prefix_info {
    size_t size;
    size_t index;       /* in this visit, counted from 0; parents come first */
    ptrdiff_t parent;   /* its index; -1: none */
    const char *salt;   /* of its requests, "": none */
    const int32_t *ids; /* [n_ids] */
    size_t n_ids;
    size_t n_tokens; /* of the whole prefix */
    bool is_kept, is_running, has_file;
    uint64_t bytes;        /* of the cached prefix, those that it shares with others included; 0: not kept */
    uint64_t n_hits;       /* how many requests began with the cached prefix or a part of it */
    double unused_ms;      /* since the last one, or since it was kept; 0: not kept */
    uint64_t id;           /* of its prefix, the same while the engine is open; counts from 1 */
    uint64_t parent_id;    /* 0: none */
    uint64_t unique_bytes; /* of `bytes`, those that nothing else holds: dropping the prefix frees them */
    bool is_pinned;
    double ttl_ms; /* it is dropped when it was not used for so long; 0: never */
} mn_prefix_info;

/* Visits the tree until visit returns false; what it gets is valid during the call. Between steps, on the thread that
 * steps. What a callback of a request cannot call, the visitor cannot either. */
MN_API mn_status mn_engine_prefixes(mn_engine *engine, bool (*visit)(void *user, const mn_prefix_info *info),
                                    void *user);

/* The id of a prefix that is cached with the engine's own cache and this salt (NULL: ""), as one of its own from now on
 * if it is the beginning of a longer one. MN_E_NOT_FOUND when it is not kept whole, MN_E_ARG without
 * enable_prefix_caching, MN_E_NOMEM. This and the following calls: between steps, on the thread that steps. */
MN_API mn_status mn_engine_prefix_of(mn_engine *engine, const int32_t *ids, size_t n, const char *salt, uint64_t *id);

/* A session with a cached prefix and its cache, owned by the caller and of no engine: to be saved (mn_session_save) on
 * any thread, or gone on with, where the engine's cache offloads on the thread that steps. MN_E_NOT_FOUND for what is
 * not kept in memory, MN_E_NOMEM. */
MN_API mn_status mn_engine_prefix_session(mn_engine *engine, uint64_t id, mn_session **session);

/* Keeps the tokens that a session of the model holds in its cache, as if a request of this owner and salt (NULL: "")
 * had computed them; *id: of the prefix. The session stays the caller's. MN_E_ARG for one without tokens; MN_E_REFUSED
 * for a cache that is not shared (mn_engine_add); MN_E_FULL when it alone exceeds owner_quota or prefix_limit;
 * MN_E_NOMEM. */
MN_API mn_status mn_engine_prefix_add(mn_engine *engine, const mn_session *session, const char *salt, const char *owner,
                                      uint64_t *id);

/* Drops cached prefixes, in the order of mn_engine_step, until caches can take so many bytes more, or nothing is left
 * to drop: before a session is loaded on another thread. */
MN_API void mn_engine_prefix_room(mn_engine *engine, size_t n_bytes);

/* pin: the prefix is not dropped when memory is needed. Pinned prefixes have at most half of the memory limit and of
 * prefix_limit, and those of one owner half of owner_quota (MN_E_FULL).
 * ttl_ms: it is dropped when no request began with it for so long; 0: the engine's prefix_ttl_ms, which pinned prefixes
 * do not have; at most 10^12. Its file stays. MN_E_NOT_FOUND for what is not kept in memory; on failure nothing has
 * changed. MN_E_ARG, MN_E_NOMEM. */
MN_API mn_status mn_engine_prefix_hold(mn_engine *engine, uint64_t id, bool pin, double ttl_ms);

/* Drops a prefix and those that begin with it, their files too. MN_E_NOT_FOUND; MN_E_REFUSED, with nothing dropped,
 * while one of them is being computed. */
MN_API mn_status mn_engine_prefix_drop(mn_engine *engine, uint64_t id);

typedef struct mn_request_info {
    size_t size;       /* sizeof(mn_request_info), set by the caller */
    const char *state; /* static text: "queued", "prompt" (being computed), "decode" */
    size_t prompt_tokens, cached_tokens;
    size_t prompt_done;         /* tokens of the prompt that are computed, cached ones included */
    size_t generated_tokens;    /* of all its sequences */
    const char *implementation; /* of its cache; valid until the next step */
    size_t n_preemptions;
} mn_request_info;

/* A request that has not ended. Between steps, on the thread that steps. MN_E_ARG when there is none with this id. */
MN_API mn_status mn_engine_request(mn_engine *engine, int id, mn_request_info *info);

/* Ends a request at the beginning of the next step: its sequences have the tokens generated so far and finish_reason
 * "cancelled". MN_E_ARG when it has already ended or does not exist. */
MN_API mn_status mn_engine_cancel(mn_engine *engine, int id);

/* Takes the first request that ended and was not taken: *id and its generation (owned by the caller), in which `row` is
 * the id and times are counted from mn_engine_add. *id is -1 when there is none. Returns the status of the request,
 * with its message in mn_last_error; *generation is NULL when it failed. */
MN_API mn_status mn_engine_take(mn_engine *engine, int *id, mn_generation **generation);

#ifdef __cplusplus
}
#endif

#endif
