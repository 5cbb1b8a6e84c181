/* The engine of a program: requests come from any thread, wait for memory, are computed together by one thread, and
 * leave.
 *
 * Three lists are shared between threads, under the engine's lock, which is not held while anything is computed:
 * requests that wait, those that have ended, and all that have not. What runs (`steps`) belongs to the thread that
 * steps.
 * SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "base/options.h"
#include "gen/config/cache_request.h"
#include "gen/result.h"
#include "gen/steps.h"

enum {
    AHEAD = 64,         /* further tokens that a request must have room for when it is admitted */
    MOST_COUNTED = 1024 /* sessions of which the pages are counted; of further ones none are */
};

struct mn_engine {
    mn_model *model;        /* held */
    mn_cache_options cache; /* of requests that set none; the engine owns its texts */
    char *texts[5];
    size_t max_num_seqs;
    size_t budget, budget_before; /* bytes of pages, 0: no limit; of the model's pool before the engine was opened */
    steps steps;
    prefix_tree *prefixes; /* what requests have computed; NULL: not kept */
    prefix_disk *disk;     /* their files; NULL: none */
    double token_ms;       /* of computing a token of a prompt, as measured lately; 0: not known */
    pthread_t stepper;     /* the thread that steps or visits, while it does */
    atomic_bool is_stepping, is_visiting;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    request *waiting; /* [n_waiting] by priority, then by arrival */
    size_t n_waiting;
    request *newest; /* of all that have not ended, a list by `older` */
    request *ended, **last_ended;
    owners owners;
    int next_id;
    uint64_t next_order;
    bool was_cancelled; /* a request that has not ended is to be cancelled */
    bool was_woken;
    uint64_t n_preemptions;
    bool is_short; /* a pass ran out of memory: until one succeeds, nothing starts beside what runs */
};

void mn_engine_options_init(mn_engine_options *options, size_t size) {
    const mn_engine_options full = {.size = sizeof full};
    options_init(options, size, &full, sizeof full);
}

void mn_request_init(mn_request *options, size_t size) {
    const mn_request full = {.size = sizeof full};
    options_init(options, size, &full, sizeof full);
}

/* ---- opening ---- */

static mn_status keep_text(mn_engine *e, int i, const char **text) {
    if (!*text) return MN_OK;
    e->texts[i] = mem_copy_text(*text, strlen(*text));
    *text = e->texts[i];
    return *text ? MN_OK : MN_E_NOMEM;
}

/* The engine's own copy of the options, which are those of a session that could be opened. */
static mn_status keep_cache(mn_engine *e, const mn_cache_options *given) {
    mn_session *empty = NULL;
    mn_cache_options_init(&e->cache, sizeof e->cache);
    MN_TRY(options_take(&e->cache, sizeof e->cache, given, "mn_cache_options"));
    MN_TRY(session_open_plan(&empty, e->model, &e->cache));
    mn_session_close(&empty);
    MN_TRY(keep_text(e, 0, &e->cache.implementation));
    MN_TRY(keep_text(e, 1, &e->cache.config));
    MN_TRY(keep_text(e, 2, &e->cache.dtype));
    MN_TRY(keep_text(e, 3, &e->cache.on_oom));
    return keep_text(e, 4, &e->cache.key_file);
}

/* What the model's pool may hold while the engine is open. */
static void set_budget(mn_engine *e, size_t n_bytes) {
    kv_pool *pool = e->model->core->pool;
    e->budget = e->budget_before = kv_pool_budget(pool);
    if (n_bytes && (e->budget == 0 || n_bytes < e->budget)) {
        e->budget = n_bytes;
        kv_pool_set_budget(pool, n_bytes);
    }
}

/* The pool has no more pages: what is kept of ended requests goes first. Other threads may use sessions of the model.
 */
static bool drop_kept(void *user) {
    mn_engine *e = user;
    return atomic_load(&e->is_stepping) && pthread_equal(pthread_self(), e->stepper) && prefix_evict(e->prefixes);
}

static mn_status open_prefixes(mn_engine *e, const mn_engine_options *options) {
    const char *folder = options->cache_dir;
    const size_t limit = options->cache_dir_limit;
    MN_TRY(prefix_open(&e->prefixes));
    prefix_set_ttl(e->prefixes, options->prefix_ttl_ms);
    prefix_set_quota(e->prefixes, options->owner_quota);
    prefix_set_limit(e->prefixes, options->prefix_limit);
    kv_pool_set_reclaim(e->model->core->pool, drop_kept, e);
    return folder ? prefix_disk_open(&e->disk, e->prefixes, e->model, folder, limit, e->cache.key_file) : MN_OK;
}

/* Refuses what is for the time between steps, when a callback calls it. */
static mn_status refuse_inside(const mn_engine *e, const char *call) {
    bool is_stepping = atomic_load(&e->is_stepping), is_inside = is_stepping || atomic_load(&e->is_visiting);
    if (!is_inside || !pthread_equal(pthread_self(), e->stepper)) return MN_OK;
    MN_FAIL(MN_E_ARG, "%s was called in a callback of %s; allowed: outside of it", call,
            is_stepping ? "mn_engine_step" : "mn_engine_prefixes");
}

static mn_status check_ttl(const char *name, double ms) {
    if (ms >= 0 && ms <= 1e12) return MN_OK;
    MN_FAIL(MN_E_ARG, "%s is %g, allowed: 0 to 1e12", name, ms);
}

mn_status mn_engine_open(mn_engine **engine, mn_model *model, const mn_engine_options *given) {
    mn_engine_options options;
    pthread_condattr_t monotonic;
    mn_engine_options_init(&options, sizeof options);
    *engine = NULL;
    MN_TRY(options_take(&options, sizeof options, given, "mn_engine_options"));
    if (!(options.max_slowdown == 0 || (options.max_slowdown >= 1.5 && options.max_slowdown <= 1000)))
        MN_FAIL(MN_E_ARG, "max_slowdown is %g, allowed: 0 and 1.5 to 1000", options.max_slowdown);
    MN_TRY(check_ttl("prefix_ttl_ms", options.prefix_ttl_ms));
    if (options.cache_dir && !options.enable_prefix_caching)
        MN_FAIL(MN_E_ARG, "cache_dir is set, enable_prefix_caching is not; allowed: both");
    mn_engine *e = mem_alloc(1, sizeof *e);
    if (!e) return MN_E_NOMEM;
    e->model = model_hold(model);
    e->steps.pace.slowdown = options.max_slowdown;
    e->max_num_seqs = options.max_num_seqs ? options.max_num_seqs : SIZE_MAX;
    e->last_ended = &e->ended;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&e->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    set_budget(e, options.memory_limit);
    mn_status status = keep_cache(e, options.cache);
    if (status == MN_OK && options.enable_prefix_caching) status = open_prefixes(e, &options);
    if (status != MN_OK) {
        mn_engine_close(&e);
        return status;
    }
    *engine = e;
    return MN_OK;
}

static void close_list(request *r) {
    for (request *next; r; r = next) {
        next = r->next;
        result_close(&r->result);
    }
}

void mn_engine_close(mn_engine **engine) {
    mn_engine *e = *engine;
    if (!e || refuse_inside(e, "mn_engine_close") != MN_OK) return;
    *engine = NULL;
    for (size_t i = 0; i < e->steps.n; i++) result_close(&e->steps.requests[i]->result);
    close_list(e->steps.ended);
    close_list(e->waiting);
    close_list(e->ended);
    steps_clear(&e->steps);
    if (e->prefixes) kv_pool_set_reclaim(e->model->core->pool, NULL, NULL);
    prefix_disk_close(&e->disk);
    prefix_close(&e->prefixes);
    if (e->budget != e->budget_before) kv_pool_set_budget(e->model->core->pool, e->budget_before);
    for (size_t i = 0; i < sizeof e->texts / sizeof *e->texts; i++) mem_free(e->texts[i]);
    owners_clear(&e->owners);
    mn_model_close(&e->model);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    mem_free(e);
}

/* ---- adding ---- */

/* Under the lock. */
static void put_waiting(mn_engine *e, request *r) {
    request **link = &e->waiting;
    while (*link &&
           ((*link)->priority > r->priority || ((*link)->priority == r->priority && (*link)->order < r->order)))
        link = &(*link)->next;
    r->next = *link;
    *link = r;
    e->n_waiting++;
}

static mn_status refuse_what_never_fits(const mn_engine *e, const request *r) {
    size_t need, draft_need;
    if (e->max_num_seqs < r->feeds.capacity)
        MN_FAIL(MN_E_ARG, "the request computes %zu sequences together, max_num_seqs is %zu", r->feeds.capacity,
                e->max_num_seqs);
    if (r->setup.session->n_ids > 0) return MN_OK; /* pages shared with others do not count */
    MN_TRY(request_need(r, 1, &need, &draft_need));
    if (!size_add(need, draft_need, &need)) need = SIZE_MAX;
    if (e->budget == 0 || need <= e->budget) return MN_OK;
    MN_FAIL(MN_E_NOMEM, "the request needs %zu bytes of cache for %zu tokens, %zu are allowed", need, r->setup.n_prompt,
            e->budget);
}

static mn_status open_own(const mn_engine *e, request *r, const mn_request *given) {
    mn_generate_options options;
    mn_generate_options_init(&options, sizeof options);
    const mn_generation_config *config = given->config ? given->config : e->model->generation;
    MN_TRY(options_take(&options, sizeof options, given->options, "mn_generate_options"));
    MN_TRY(generation_config_copy(&r->own_config, config));
    if (given->prefix) {
        const mn_batch_row row = {.size = sizeof(mn_batch_row), .n_prompt = given->n_prompt, .prefix = given->prefix};
        MN_TRY(request_session(&r->own_session, e->model, given->cache, &row, config));
    } else {
        MN_TRY(cache_request_plan(&r->own_session, e->model, given->cache ? given->cache : &e->cache, config,
                                  given->n_prompt));
    }
    session_begin_ring(r->own_session);
    r->priority = given->priority;
    r->prefixes = given->prefix ? NULL : e->prefixes;
    if (given->cache_salt) r->cache_salt = mem_copy_text(given->cache_salt, strlen(given->cache_salt));
    if (given->cache_salt && !r->cache_salt) return MN_E_NOMEM;
    r->setup = (search_setup){
        .session = r->own_session, .prompt = given->prompt, .n_prompt = given->n_prompt, .config = r->own_config};
    MN_TRY(request_open(r, &options, request_seed(config), NULL, 0));
    MN_TRY(request_copy_negative(r));
    return refuse_what_never_fits(e, r);
}

/* The id is assigned when nothing can fail any more. */
static void name_request(request *r, int id) {
    r->setup.row = id;
    for (size_t k = 0; k < r->n_opened; k++) r->sequences[k].row = id;
}

mn_status mn_engine_add(mn_engine *e, const mn_request *given, int *id) {
    mn_request full;
    mn_request_init(&full, sizeof full);
    gen_result *result = NULL;
    request *r = NULL;
    MN_TRY(options_take(&full, sizeof full, given, "mn_request"));
    mn_status status = result_open(&result, 1);
    if (status == MN_OK) {
        r = result->requests[0] = mem_alloc(1, sizeof *r);
        status = r ? open_own(e, r, &full) : MN_E_NOMEM;
    }
    if (status == MN_OK) status = result_reserve(result);
    if (status != MN_OK) {
        result_close(&result);
        return status;
    }
    r->result = result;
    pthread_mutex_lock(&e->lock);
    status = owner_of(&r->owner, &e->owners, full.owner);
    if (status != MN_OK) {
        pthread_mutex_unlock(&e->lock);
        result_close(&result);
        return status;
    }
    *id = e->next_id;
    e->next_id = e->next_id == INT_MAX ? 0 : e->next_id + 1;
    name_request(r, *id);
    r->order = e->next_order++;
    r->older = e->newest;
    e->newest = r;
    put_waiting(e, r);
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return MN_OK;
}

mn_status mn_engine_cancel(mn_engine *e, int id) {
    pthread_mutex_lock(&e->lock);
    request *r = e->newest;
    while (r && r->setup.row != id) r = r->older;
    if (r) {
        atomic_store(&r->wants_end, true);
        e->was_cancelled = true;
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    if (!r) MN_FAIL(MN_E_ARG, "no request %d waits or is running", id);
    return MN_OK;
}

/* ---- stepping ---- */

/* Under the lock. */
static void take_from_waiting(mn_engine *e, const request *r) {
    request **link = &e->waiting;
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    e->n_waiting--;
}

/* Requests that another thread has cancelled end with the tokens they have. */
static void end_cancelled(mn_engine *e) {
    request *waited = NULL;
    pthread_mutex_lock(&e->lock);
    bool some = e->was_cancelled;
    e->was_cancelled = false;
    for (request *r = some ? e->waiting : NULL, *next; r; r = next) {
        next = r->next;
        if (!atomic_load(&r->wants_end)) continue;
        take_from_waiting(e, r);
        r->next = waited;
        waited = r;
    }
    pthread_mutex_unlock(&e->lock);
    for (request *next; waited; waited = next) {
        next = waited->next;
        request_stop(waited, MN_E_CANCELLED);
        steps_give_ended(&e->steps, waited);
    }
    for (size_t i = 0; some && i < e->steps.n;) {
        request *r = e->steps.requests[i];
        if (atomic_load(&r->wants_end))
            steps_stop(&e->steps, r, MN_E_CANCELLED);
        else
            i++;
    }
}

static void learn_token_ms(mn_engine *e, const request *r) {
    enum { LEAST = 64 };
    if (!r->has_started || r->prompt_ended <= r->prompt_started || r->prompt_tokens < LEAST) return;
    double ms = (r->prompt_ended - r->prompt_started) / (double)r->prompt_tokens;
    e->token_ms = e->token_ms > 0 ? e->token_ms + (ms - e->token_ms) / 4 : ms;
}

/* Makes ended requests available to be taken. */
static void publish_ended(mn_engine *e) {
    request *first = steps_take_ended(&e->steps);
    if (!first) return;
    pthread_mutex_lock(&e->lock);
    *e->last_ended = first;
    for (request *r = first; r; r = r->next) {
        request **link = &e->newest;
        while (*link != r) link = &(*link)->older;
        *link = r->older;
        e->last_ended = &r->next;
        owner_leave(&e->owners, r->owner);
        r->owner = NULL;
        learn_token_ms(e, r);
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* ---- memory ---- */

/* The running request to preempt first: the newest of those with the lowest priority, which must be below `below` where
 * that is given. */
static request *next_victim(const mn_engine *e, int below) {
    request *victim = NULL;
    for (size_t i = 0; i < e->steps.n; i++) {
        request *r = e->steps.requests[i];
        if (r->priority >= below || !request_may_be_preempted(r)) continue;
        bool is_earlier =
            victim && (r->priority > victim->priority || (r->priority == victim->priority && r->order < victim->order));
        if (!is_earlier) victim = r;
    }
    return victim;
}

static void preempt(mn_engine *e, request *r) {
    request_preempt(r);
    steps_remove(&e->steps, r);
    r->n_preemptions++;
    pthread_mutex_lock(&e->lock);
    e->n_preemptions++;
    put_waiting(e, r);
    pthread_mutex_unlock(&e->lock);
}

/* The bytes that a request is expected to use; counted anew when it has reached the number of tokens counted. */
static void count_need(request *r) {
    size_t n_ids = r->setup.session->n_ids;
    if (r->need > 0 && n_ids < r->need_end) return;
    if (request_need(r, AHEAD, &r->need, &r->draft_need) != MN_OK) r->need = SIZE_MAX;
    r->need_end = n_ids + AHEAD;
}

/* Bytes of pages: of running requests when each of them has its own, what they have yet to allocate, and those of draft
 * models. */
typedef struct demand {
    size_t whole, growth, drafts;
} demand;

/* A request that holds `held` bytes already. False: a sum overflows. */
static bool add_demand(demand *d, request *r, size_t held) {
    count_need(r);
    return size_add(d->whole, r->need, &d->whole) &&
           size_add(d->growth, r->need > held ? r->need - held : 0, &d->growth) &&
           size_add(d->drafts, r->draft_need, &d->drafts);
}

/* Whether a request fits beside those that run, when the pool has `used` bytes in use. Of two bounds, which are both
 * too high, the lower one: one counts a page once for each request that shares it, the other counts pages that other
 * requests will free. */
static bool fits(const mn_engine *e, const demand *running, request *r, size_t used) {
    demand d = *running;
    size_t shared, whole, growth;
    if (request_shared_bytes(r, &shared) != MN_OK || !add_demand(&d, r, shared)) return false;
    if (!size_add(used > running->whole ? used : running->whole, r->need, &whole)) whole = SIZE_MAX;
    if (!size_add(used, d.growth, &growth)) growth = SIZE_MAX;
    return size_add(whole < growth ? whole : growth, d.drafts, &whole) && whole <= e->budget;
}

typedef struct cache_list {
    kv_cache *caches[MOST_COUNTED];
    size_t n, n_bytes;
} cache_list;

static mn_status count_together(void *arg) {
    cache_list *list = arg;
    list->n_bytes = kv_bytes_together(list->caches, list->n);
    return MN_OK;
}

/* Bytes that running requests hold, shared pages once. Counted between passes: requests with a prefix share pages with
 * sessions of the program. */
static size_t bytes_of_running(const mn_engine *e) {
    cache_list list = {.n = 0};
    for (size_t i = 0; i < e->steps.n; i++) {
        const mn_session *first = e->steps.requests[i]->setup.session, *s = first;
        do {
            if (list.n < MOST_COUNTED) list.caches[list.n++] = s->cache;
            s = s->next_in_ring;
        } while (s && s != first);
    }
    model_between_passes(e->model->core, count_together, &list);
    return list.n_bytes;
}

/* Whether a request has room beside those that run. What is kept of ended requests makes room, if that is enough. */
static bool has_room(const mn_engine *e, request *r) {
    demand running = {0};
    size_t n_rows = r->feeds.capacity;
    if (e->steps.n == 0) return true;
    for (size_t i = 0; i < e->steps.n; i++) n_rows += e->steps.requests[i]->feeds.capacity;
    if (n_rows > e->max_num_seqs) return false;
    if (e->budget == 0) return true;
    for (size_t i = 0; i < e->steps.n; i++) {
        request *other = e->steps.requests[i];
        const mn_session *s = other->setup.session;
        if (!add_demand(&running, other, session_count(s).bytes)) return false;
    }
    if (fits(e, &running, r, kv_pool_used(e->model->core->pool))) return true;
    const size_t least = e->prefixes ? bytes_of_running(e) : 0;
    while (e->prefixes && fits(e, &running, r, least) && prefix_evict(e->prefixes)) {
        if (fits(e, &running, r, kv_pool_used(e->model->core->pool))) return true;
    }
    return false;
}

/* Starts or resumes a waiting request. */
static mn_status start(mn_engine *e, request *r) {
    if (!r->setup.session->cache) MN_TRY(session_open_cache(r->setup.session));
    mn_status status = MN_OK;
    if (!r->has_started) {
        prefix_match match; /* looked for again: what was found may have been dropped */
        request_share_constraint(r, e->steps.requests, e->steps.n);
        MN_TRY(request_find_prefix(r, &match));
        status = request_begin_prefix(r, &match);
    } else {
        request_resume_prefixes(r);
    }
    if (status == MN_OK) status = steps_add(&e->steps, r);
    if (status != MN_OK && !r->has_started) request_leave_prefix(r);
    return status;
}

/* Whether a running request will have computed more of the prompt than there is now. */
static bool is_worth_waiting(request *r) {
    prefix_match match;
    if (r->has_started || request_find_prefix(r, &match) != MN_OK) return false;
    return match.later > match.now && match.later >= r->setup.session->plan.options.page_tokens / 2;
}

/* Drops what is kept until so many bytes are free. */
static void make_room(mn_engine *e, size_t n_bytes) {
    kv_pool *pool = e->model->core->pool;
    if (!e->prefixes || e->budget == 0) return;
    while ((n_bytes > e->budget || kv_pool_used(pool) > e->budget - n_bytes) && prefix_evict(e->prefixes)) {}
}

/* Whether a file that has more of a request's text is being read, or is to be: what is kept makes room for it. */
static bool waits_for_file(mn_engine *e, request *r) {
    prefix_match match;
    if (!e->disk || r->has_started || request_find_prefix(r, &match) != MN_OK || !match.file) return false;
    if (!prefix_disk_reads(e->disk, &match, e->token_ms, !r->has_waited, r->owner->name)) return false;
    if (!r->has_waited) {
        make_room(e, prefix_file_bytes(match.file));
        r->in_memory = match.now;
    }
    r->has_waited = true; /* once: what was read may be evicted before the request begins */
    return true;
}

/* Whether a waiting request starts before another that came earlier: it is of the same priority, and its owner was
 * served less. */
static bool goes_first(const request *later, const request *earlier) {
    return !earlier || (later->priority == earlier->priority && later->owner->served < earlier->owner->served);
}

/* The request to start now. */
static request *next_waiting(mn_engine *e) {
    request *first = NULL;
    pthread_mutex_lock(&e->lock);
    for (request *r = e->waiting; r && (!first || r->priority == first->priority);) {
        if (goes_first(r, first)) {
            pthread_mutex_unlock(&e->lock); /* other threads add requests and remove none */
            bool waits = e->prefixes && (is_worth_waiting(r) || waits_for_file(e, r));
            pthread_mutex_lock(&e->lock);
            if (!waits) first = r;
        }
        r = r->next;
    }
    pthread_mutex_unlock(&e->lock);
    return first;
}

/* What was computed for each owner since the last step. */
static void charge(mn_engine *e) {
    for (size_t i = 0; i < e->steps.n; i++) {
        const request *r = e->steps.requests[i];
        r->owner->served += (double)r->n_opened;
    }
}

/* Starts waiting requests in their order while there is room; one with a higher priority preempts others. */
static void admit(mn_engine *e) {
    while (!e->is_short || e->steps.n == 0) {
        request *r = next_waiting(e);
        if (!r) return;
        while (!has_room(e, r)) {
            request *victim = next_victim(e, r->priority);
            if (!victim) return;
            preempt(e, victim);
        }
        mn_status status = start(e, r);
        if (status == MN_E_NOMEM && e->steps.n > 0) return; /* until those that run have ended */
        pthread_mutex_lock(&e->lock);
        take_from_waiting(e, r);
        if (status == MN_OK && !r->has_started) /* what a preempted one computes again is not its owner's fault */
            r->owner->served += (double)((int64_t)r->setup.n_prompt - kv_length(r->setup.session->cache));
        pthread_mutex_unlock(&e->lock);
        if (status == MN_OK) continue;
        request_stop(r, status);
        steps_give_ended(&e->steps, r);
    }
}

static bool is_short_of_pages(const mn_engine *e) {
    for (size_t i = 0; i < e->steps.n; i++) {
        if (request_has_failed_itself(e->steps.requests[i])) return true;
    }
    return false;
}

/* One pass. When it runs out of memory even after the sessions' on_oom, a request is preempted: its pages are dropped
 * and it waits, at least until a pass succeeds: what was planned for it may be less than it needs, and then it would be
 * started and preempted for ever. One that runs alone computes its pages itself. That does not help a draft model,
 * which has a pool of its own. */
static void compute_step(mn_engine *e) {
    mn_status status = steps_pass(&e->steps);
    bool helps = status == MN_E_NOMEM && is_short_of_pages(e);
    bool is_alone = helps && e->steps.n == 1 && request_compute_apart(e->steps.requests[0]);
    request *victim = helps && e->steps.n > 1 ? next_victim(e, INT_MAX) : NULL;
    e->is_short = victim || is_alone;
    if (e->is_short)
        for (size_t i = 0; i < e->steps.n; i++) request_retry(e->steps.requests[i]);
    if (victim) {
        preempt(e, victim);
    } else if (status != MN_OK && !is_alone) {
        steps_stop_failed(&e->steps, status);
    }
    steps_end_pass(&e->steps);
}

mn_status mn_engine_step(mn_engine *e, size_t *n_running) {
    MN_TRY(refuse_inside(e, "mn_engine_step"));
    e->stepper = pthread_self();
    atomic_store(&e->is_stepping, true);
    end_cancelled(e);
    if (e->prefixes) prefix_expire(e->prefixes);
    if (e->disk) prefix_disk_turn(e->disk);
    admit(e);
    if (e->disk && e->steps.n == 0) { /* nothing else to do than to wait for files */
        prefix_disk_wait(e->disk);
        prefix_disk_turn(e->disk);
        admit(e);
    }
    steps_choose(&e->steps);
    compute_step(e);
    publish_ended(e);
    atomic_store(&e->is_stepping, false);
    pthread_mutex_lock(&e->lock);
    charge(e);
    if (n_running) *n_running = e->steps.n + e->n_waiting;
    pthread_mutex_unlock(&e->lock);
    return MN_OK;
}

mn_status mn_engine_wait(mn_engine *e, double timeout_ms, bool *has_work) {
    struct timespec until;
    MN_TRY(refuse_inside(e, "mn_engine_wait"));
    clock_gettime(CLOCK_MONOTONIC, &until);
    double end = (double)until.tv_nsec + fmin(fmax(timeout_ms, 0), 1e9) * 1e6;
    until.tv_sec += (time_t)(end / 1e9);
    until.tv_nsec = (long)fmod(end, 1e9);
    int failure = 0;
    if (e->prefixes) prefix_expire(e->prefixes);
    if (e->disk) prefix_disk_turn(e->disk);
    kv_pool_return_idle(e->model->core->pool);
    pthread_mutex_lock(&e->lock);
    while (e->steps.n == 0 && !e->waiting && !e->was_woken && !failure)
        failure = pthread_cond_timedwait(&e->changed, &e->lock, &until);
    e->was_woken = false;
    *has_work = e->steps.n > 0 || e->waiting;
    pthread_mutex_unlock(&e->lock);
    return MN_OK;
}

void mn_engine_wake(mn_engine *e) {
    pthread_mutex_lock(&e->lock);
    e->was_woken = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* ---- what it does ---- */

mn_status mn_engine_get_info(mn_engine *e, mn_engine_info *info) {
    mn_engine_info full = {.size = sizeof full, .memory_limit = e->budget, .num_requests_running = e->steps.n};
    const kv_page_counts pages = kv_pool_pages(e->model->core->pool);
    full.cache_bytes = kv_pool_used(e->model->core->pool);
    full.n_resident_pages = pages.n_resident;
    full.n_offloaded_pages = pages.n_offloaded;
    full.offloaded_bytes = pages.offloaded_bytes;
    if (e->prefixes) {
        size_t kept;
        MN_TRY(prefix_bytes(&kept, e->prefixes));
        full.kept_bytes = kept;
        full.n_kept = prefix_entries(e->prefixes);
    }
    if (e->disk) {
        const prefix_disk_info files = prefix_disk_get_info(e->disk);
        full.n_files = files.n_files;
        full.file_bytes = files.bytes;
        full.n_files_read = files.n_read;
        full.n_files_written = files.n_written;
        full.n_files_failed = files.n_failed;
    }
    pthread_mutex_lock(&e->lock);
    full.num_requests_waiting = e->n_waiting;
    full.n_preemptions = e->n_preemptions;
    pthread_mutex_unlock(&e->lock);
    return options_give(info, &full, sizeof full, "mn_engine_info");
}

mn_status mn_engine_prefixes(mn_engine *e, bool (*visit)(void *user, const mn_prefix_info *info), void *user) {
    MN_TRY(refuse_inside(e, "mn_engine_prefixes"));
    e->stepper = pthread_self();
    atomic_store(&e->is_visiting, true);
    if (e->prefixes) prefix_visit(e->prefixes, visit, user);
    atomic_store(&e->is_visiting, false);
    return MN_OK;
}

static mn_status need_prefixes(const mn_engine *e, const char *call) {
    if (!e->prefixes) MN_FAIL(MN_E_ARG, "the engine has no prefix cache: enable_prefix_caching is not set");
    return refuse_inside(e, call);
}

mn_status mn_engine_prefix_of(mn_engine *e, const int32_t *ids, size_t n, const char *salt, uint64_t *id) {
    mn_session *empty = NULL;
    prefix_root *root = NULL;
    MN_TRY(need_prefixes(e, "mn_engine_prefix_of"));
    MN_TRY(session_open_plan(&empty, e->model, &e->cache));
    mn_status status = prefix_root_of(&root, e->prefixes, empty, salt);
    mn_session_close(&empty);
    if (status == MN_OK && !root) status = status_fail(MN_E_NOT_FOUND, "prefixes of this cache are not shared");
    return status == MN_OK ? prefix_id_of(id, root, ids, n) : status;
}

mn_status mn_engine_prefix_hold(mn_engine *e, uint64_t id, bool pin, double ttl_ms) {
    MN_TRY(need_prefixes(e, "mn_engine_prefix_hold"));
    MN_TRY(check_ttl("ttl_ms", ttl_ms));
    return prefix_hold(e->prefixes, id, pin, ttl_ms, e->budget / 2);
}

mn_status mn_engine_prefix_session(mn_engine *e, uint64_t id, mn_session **session) {
    *session = NULL;
    MN_TRY(need_prefixes(e, "mn_engine_prefix_session"));
    return prefix_session(session, e->prefixes, id);
}

void mn_engine_prefix_room(mn_engine *e, size_t n_bytes) {
    if (refuse_inside(e, "mn_engine_prefix_room") == MN_OK) make_room(e, n_bytes);
}

mn_status mn_engine_prefix_add(mn_engine *e, const mn_session *session, const char *salt, const char *of,
                               uint64_t *id) {
    prefix_root *root = NULL;
    MN_TRY(need_prefixes(e, "mn_engine_prefix_add"));
    if (session->owner != e->model) MN_FAIL(MN_E_ARG, "the session is of another model than the engine");
    if (mn_session_length(session) == 0) MN_FAIL(MN_E_ARG, "the session has no tokens");
    MN_TRY(prefix_root_of(&root, e->prefixes, session, salt));
    if (!root) MN_FAIL(MN_E_REFUSED, "prefixes of the cache '%s' are not shared", session->plan.name);
    return prefix_add(id, root, session, of);
}

mn_status mn_engine_prefix_drop(mn_engine *e, uint64_t id) {
    MN_TRY(need_prefixes(e, "mn_engine_prefix_drop"));
    return prefix_drop(e->prefixes, e->disk, id);
}

mn_status mn_engine_request(mn_engine *e, int id, mn_request_info *info) {
    pthread_mutex_lock(&e->lock);
    const request *r = e->newest;
    while (r && r->setup.row != id) r = r->older;
    pthread_mutex_unlock(&e->lock);
    if (!r || r->is_done) MN_FAIL(MN_E_ARG, "no request %d waits or is running", id);
    mn_request_info full = {.size = sizeof full,
                            .state = r->is_prefilled  ? "decode"
                                     : r->has_started ? "prompt"
                                                      : "queued",
                            .prompt_tokens = r->setup.n_prompt,
                            .cached_tokens = r->cached_tokens,
                            .implementation = r->setup.session->plan.name,
                            .n_preemptions = r->n_preemptions};
    full.prompt_done = r->has_started ? r->cached_tokens + request_prompt_done(r) : 0;
    for (size_t k = 0; k < r->n_opened; k++) full.generated_tokens += r->sequences[k].n_ids;
    return options_give(info, &full, sizeof full, "mn_request_info");
}

/* ---- taking ---- */

mn_status mn_engine_take(mn_engine *e, int *id, mn_generation **generation) {
    *generation = NULL;
    *id = -1;
    pthread_mutex_lock(&e->lock);
    request *r = e->ended;
    if (r) {
        e->ended = r->next;
        if (!r->next) e->last_ended = &e->ended;
    }
    pthread_mutex_unlock(&e->lock);
    if (!r) return MN_OK;
    gen_result *result = r->result;
    *id = r->setup.row;
    result->public.seed = r->setup.seed;
    result->public.prompt_ms = r->prompt_ended - r->started;
    result->public.predicted_ms = r->ended - r->prompt_ended;
    result->public.n_preemptions = r->n_preemptions;
    result->public.queue_ms = (r->has_started ? r->prompt_started : r->ended) - r->started;
    mn_status status = request_status(r);
    if (status == MN_OK) status = result_publish(result);
    if (status != MN_OK) result_close(&result);
    *generation = result ? &result->public : NULL;
    return status;
}
