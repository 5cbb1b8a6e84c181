/* SPDX-License-Identifier: Apache-2.0 */
#include "file_worker.h"

#include <pthread.h>

#include "base/status.h"

struct file_worker {
    struct server *server;
    ask_query *ask;
    pthread_t thread;
    bool is_started;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    job *first, **last;
    bool stops;
};

static void go(file_worker *w, job *j) {
    bytes out = {0};
    refusal why = {0};
    job_function *file_work = j->file_work;
    j->file_work = NULL;
    mn_status status = file_work(&out, w->server, j, &why);
    if (status == MN_OK && j->query) {
        status = w->ask(w->server, j, &why);
        if (status == MN_OK) return; /* the job is no longer ours, and may be closed by now */
    }
    job_tell(j, status, &out, &why);
}

static void *run(void *arg) {
    file_worker *w = arg;
    pthread_mutex_lock(&w->lock);
    while (w->first || !w->stops) {
        job *j = w->first;
        if (!j) {
            pthread_cond_wait(&w->changed, &w->lock);
            continue;
        }
        w->first = j->next;
        if (!w->first) w->last = &w->first;
        pthread_mutex_unlock(&w->lock);
        go(w, j);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

mn_status file_worker_open(file_worker **out, struct server *s, ask_query *ask) {
    file_worker *w = mem_alloc(1, sizeof *w);
    *out = w;
    if (!w) return MN_E_NOMEM;
    w->server = s;
    w->ask = ask;
    w->last = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->is_started = pthread_create(&w->thread, NULL, run, w) == 0;
    if (w->is_started) return MN_OK;
    file_worker_close(out);
    MN_FAIL(MN_E_IO, "a thread cannot be started");
}

void file_worker_stop(file_worker *w) {
    if (!w || !w->is_started) return;
    pthread_mutex_lock(&w->lock);
    w->stops = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->is_started = false;
}

void file_worker_close(file_worker **out) {
    file_worker *w = *out;
    *out = NULL;
    if (!w) return;
    file_worker_stop(w);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}

mn_status file_worker_add(file_worker *w, job *j, refusal *why) {
    pthread_mutex_lock(&w->lock);
    bool stops = w->stops;
    if (!stops) {
        j->next = NULL;
        *w->last = j;
        w->last = &j->next;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    if (!stops) return MN_OK;
    *why = (refusal){.status = 503, .code = "shutting_down"};
    MN_FAIL(MN_E_FULL, "the server is shutting down");
}
