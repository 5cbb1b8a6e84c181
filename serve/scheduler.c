/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"

#include <pthread.h>
#include <string.h>

#include "base/status.h"

struct scheduler {
    mn_engine *engine;
    struct server *server;
    file_worker *file_worker;
    size_t max_queue;
    pthread_t thread;
    bool is_started;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t added;
    job *jobs; /* [n_jobs] all that the engine has, and those being given to it */
    size_t n_jobs;
    job *queries, **last_query;
    bool stops;
};

/* The engine may have computed a job before the thread that added it knows its number. */
static job *find(scheduler *s, int number) {
    for (;;) {
        for (job **link = &s->jobs; *link; link = &(*link)->next) {
            job *j = *link;
            if (!j->is_added || j->number != number) continue;
            *link = j->next;
            s->n_jobs--;
            return j;
        }
        pthread_cond_wait(&s->added, &s->lock);
    }
}

static void end_jobs(scheduler *s) {
    for (;;) {
        mn_generation *generation = NULL;
        int number;
        mn_status status = mn_engine_take(s->engine, &number, &generation);
        if (number < 0) return;
        pthread_mutex_lock(&s->lock);
        job *j = find(s, number);
        pthread_mutex_unlock(&s->lock);
        job_end(j, status, generation);
    }
}

static void answer_queries(scheduler *s) {
    pthread_mutex_lock(&s->lock);
    job *first = s->queries;
    s->queries = NULL;
    s->last_query = &s->queries;
    pthread_mutex_unlock(&s->lock);
    for (job *next; first; first = next) {
        next = first->next;
        if (job_answer(first, s->server)) continue;
        bytes out = {0};
        refusal why = {0};
        mn_status status = file_worker_add(s->file_worker, first, &why);
        if (status != MN_OK) job_tell(first, status, &out, &why);
    }
}

static void *run(void *arg) {
    enum { WAIT_MS = 100 };
    scheduler *s = arg;
    for (bool stops = false; !stops;) {
        bool has_work = false;
        mn_engine_wait(s->engine, WAIT_MS, &has_work);
        if (has_work) mn_engine_step(s->engine, NULL);
        end_jobs(s);
        answer_queries(s);
        pthread_mutex_lock(&s->lock);
        stops = s->stops && !s->jobs && !s->queries;
        pthread_mutex_unlock(&s->lock);
    }
    return NULL;
}

mn_status scheduler_open(scheduler **out, const scheduler_options *given) {
    scheduler *s = mem_alloc(1, sizeof *s);
    *out = s;
    if (!s) return MN_E_NOMEM;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->added, NULL);
    s->max_queue = given->max_queue;
    s->server = given->server;
    s->file_worker = given->file_worker;
    s->last_query = &s->queries;
    mn_engine_options options;
    mn_engine_options_init(&options, sizeof options);
    options.cache = given->cache;
    options.memory_limit = given->memory_limit;
    options.max_num_seqs = given->max_num_seqs;
    options.enable_prefix_caching = !given->no_prefix_cache;
    options.cache_dir = given->cache_dir;
    options.cache_dir_limit = given->cache_dir_limit;
    options.prefix_ttl_ms = 1000 * given->cache_ttl;
    options.owner_quota = given->cache_quota;
    options.prefix_limit = given->prefix_memory;
    options.max_slowdown = 2; /* in the mean; the median of 16 streams is then below 2.5 */
    mn_status status = mn_engine_open(&s->engine, given->model, &options);
    if (status == MN_OK && pthread_create(&s->thread, NULL, run, s) != 0)
        status = status_fail(MN_E_IO, "a thread cannot be started");
    s->is_started = status == MN_OK;
    if (status != MN_OK) scheduler_close(out);
    return status;
}

void scheduler_stop(scheduler *s) {
    if (!s || !s->is_started) return;
    pthread_mutex_lock(&s->lock);
    s->stops = true;
    for (job *j = s->jobs; j; j = j->next) {
        j->is_cancelled = true;
        if (j->is_added) mn_engine_cancel(s->engine, j->number);
    }
    pthread_mutex_unlock(&s->lock);
    mn_engine_wake(s->engine);
    pthread_join(s->thread, NULL);
    s->is_started = false;
}

void scheduler_close(scheduler **out) {
    scheduler *s = *out;
    *out = NULL;
    if (!s) return;
    scheduler_stop(s);
    mn_engine_close(&s->engine);
    pthread_cond_destroy(&s->added);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

static void take_out(scheduler *s, const job *j) {
    job **link = &s->jobs;
    while (*link != j) link = &(*link)->next;
    *link = j->next;
    s->n_jobs--;
}

/* Puts a job where it belongs. */
static mn_status take_in(scheduler *s, job *j, refusal *why) {
    pthread_mutex_lock(&s->lock);
    bool stops = s->stops, is_full = !j->query && s->n_jobs >= s->max_queue;
    if (!stops && j->query) {
        j->next = NULL;
        *s->last_query = j;
        s->last_query = &j->next;
    } else if (!stops && !is_full) {
        j->next = s->jobs;
        s->jobs = j;
        s->n_jobs++;
    }
    pthread_mutex_unlock(&s->lock);
    if (stops) {
        *why = (refusal){.status = 503, .code = "shutting_down"};
        MN_FAIL(MN_E_FULL, "the server is shutting down");
    }
    if (!is_full) return MN_OK;
    *why = (refusal){.status = 429, .code = "queue_full"};
    MN_FAIL(MN_E_FULL, "%zu requests wait or are computed, more are not taken now", s->max_queue);
}

mn_status scheduler_add(scheduler *s, job *j, refusal *why) {
    MN_TRY(take_in(s, j, why));
    if (j->query) {
        mn_engine_wake(s->engine);
        return MN_OK;
    }
    mn_request request;
    mn_request_init(&request, sizeof request);
    request.prompt = j->ids;
    request.n_prompt = j->n_ids;
    request.config = j->request.config;
    request.options = &j->options;
    request.cache_salt = j->request.salt;
    request.owner = j->owner;
    request.priority = j->request.priority;
    if (j->request.has_cache) request.cache = &j->cache;
    int number = -1;
    mn_status status = mn_engine_add(s->engine, &request, &number);
    pthread_mutex_lock(&s->lock);
    if (status == MN_OK) {
        j->number = number;
        j->is_added = true;
        if (j->is_cancelled) mn_engine_cancel(s->engine, number);
        pthread_cond_broadcast(&s->added);
    } else {
        take_out(s, j);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

bool scheduler_cancel(scheduler *s, const char *id, const char *owner) {
    bool is_there = false;
    pthread_mutex_lock(&s->lock);
    for (job *j = s->jobs; j; j = j->next) {
        if (strcmp(j->id, id) != 0 || (owner && j->owner != owner)) continue;
        is_there = j->is_cancelled = true;
        if (j->is_added) mn_engine_cancel(s->engine, j->number);
    }
    pthread_mutex_unlock(&s->lock);
    return is_there;
}

size_t scheduler_jobs(scheduler *s) {
    pthread_mutex_lock(&s->lock);
    size_t n = s->n_jobs;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void scheduler_visit(scheduler *s, void (*visit)(void *user, const job *j), void *user) {
    pthread_mutex_lock(&s->lock);
    for (const job *j = s->jobs; j; j = j->next) visit(user, j);
    pthread_mutex_unlock(&s->lock);
}

mn_engine *scheduler_engine(scheduler *s) {
    return s->engine;
}
