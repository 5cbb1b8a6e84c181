/* SPDX-License-Identifier: Apache-2.0 */
#include "speech.h"

#include <pthread.h>
#include <string.h>

#include "base/status.h"

enum { N_THREADS = 2 }; /* so that a short recording does not wait for the end of a long one */

struct speech {
    struct server *server;
    size_t most;
    pthread_t threads[N_THREADS];
    size_t n_threads;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t added;
    job *jobs; /* in order of arrival */
    size_t n_inside;
    speech_counts counts;
    bool stops;
};

/* Holding the lock. */
static job *next_job(speech *s) {
    job *j = s->jobs;
    while (j && j->is_running) j = j->next;
    return j;
}

/* Holding the lock. */
static void take_out(speech *s, const job *j) {
    job **link = &s->jobs;
    while (*link != j) link = &(*link)->next;
    *link = j->next;
}

static void answer(speech *s, job *j) {
    bytes out = {0};
    refusal why = {0};
    mn_status status = j->query(&out, s->server, j, &why);
    int code = job_outcome(&out, j, status, &why);
    pthread_mutex_lock(&s->lock);
    take_out(s, j);
    if (code == 200) {
        s->counts.finished++;
        s->counts.seconds += j->seconds;
    } else if (j->is_cancelled) {
        s->counts.aborted++;
    }
    pthread_mutex_unlock(&s->lock);
    reply_end(j->reply, code, &out);
    job_close(j);
}

static void *run(void *arg) {
    speech *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        job *j;
        while (!(j = next_job(s)) && !s->stops) pthread_cond_wait(&s->added, &s->lock);
        if (j) j->is_running = true;
        pthread_mutex_unlock(&s->lock);
        if (!j) return NULL;
        answer(s, j);
    }
}

mn_status speech_open(speech **out, size_t most, struct server *server) {
    speech *s = mem_alloc(1, sizeof *s);
    *out = s;
    if (!s) return MN_E_NOMEM;
    s->server = server;
    s->most = most < MOST_RECORDINGS ? most : MOST_RECORDINGS;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->added, NULL);
    while (s->n_threads < N_THREADS) {
        if (pthread_create(&s->threads[s->n_threads], NULL, run, s) != 0)
            MN_FAIL(MN_E_IO, "a thread cannot be started");
        s->n_threads++;
    }
    return MN_OK;
}

void speech_stop(speech *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stops = true;
    for (job *j = s->jobs; j; j = j->next) j->is_cancelled = true;
    pthread_cond_broadcast(&s->added);
    pthread_mutex_unlock(&s->lock);
    for (; s->n_threads; s->n_threads--) pthread_join(s->threads[s->n_threads - 1], NULL);
}

void speech_close(speech **out) {
    speech *s = *out;
    *out = NULL;
    if (!s) return;
    speech_stop(s);
    pthread_cond_destroy(&s->added);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

bool speech_enter(speech *s) {
    pthread_mutex_lock(&s->lock);
    bool fits = s->n_inside < s->most;
    s->n_inside += fits;
    pthread_mutex_unlock(&s->lock);
    return fits;
}

void speech_leave(speech *s) {
    pthread_mutex_lock(&s->lock);
    s->n_inside--;
    pthread_mutex_unlock(&s->lock);
}

mn_status speech_add(speech *s, job *j, refusal *why) {
    pthread_mutex_lock(&s->lock);
    bool stops = s->stops;
    if (!stops) {
        job **end = &s->jobs;
        while (*end) end = &(*end)->next;
        j->next = NULL;
        *end = j;
        pthread_cond_signal(&s->added);
    }
    pthread_mutex_unlock(&s->lock);
    if (!stops) return MN_OK;
    *why = (refusal){.status = 503, .code = "shutting_down"};
    MN_FAIL(MN_E_FULL, "the server is shutting down");
}

bool speech_cancel(speech *s, const char *id, const char *owner) {
    bool is_there = false;
    if (!s) return false;
    pthread_mutex_lock(&s->lock);
    for (job *j = s->jobs; j; j = j->next) {
        if (strcmp(j->id, id) == 0 && (!owner || j->owner == owner)) is_there = j->is_cancelled = true;
    }
    pthread_mutex_unlock(&s->lock);
    return is_there;
}

size_t speech_jobs(speech *s) {
    speech_counts counts = speech_count(s);
    return counts.running + counts.waiting;
}

bool speech_goes_on(speech *s, job *j, double done, double duration) {
    pthread_mutex_lock(&s->lock);
    j->seconds_done = done;
    j->seconds = duration;
    bool goes_on = !j->is_cancelled;
    pthread_mutex_unlock(&s->lock);
    return goes_on;
}

bool speech_stops(speech *s) {
    pthread_mutex_lock(&s->lock);
    bool stops = s->stops;
    pthread_mutex_unlock(&s->lock);
    return stops;
}

void speech_visit(speech *s, void (*visit)(void *user, const job *j), void *user) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    for (const job *j = s->jobs; j; j = j->next) visit(user, j);
    pthread_mutex_unlock(&s->lock);
}

speech_counts speech_count(speech *s) {
    speech_counts counts = {0};
    if (!s) return counts;
    pthread_mutex_lock(&s->lock);
    counts = s->counts;
    for (const job *j = s->jobs; j; j = j->next) {
        counts.running += j->is_running;
        counts.waiting += !j->is_running;
    }
    pthread_mutex_unlock(&s->lock);
    return counts;
}
