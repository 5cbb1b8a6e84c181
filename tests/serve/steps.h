/* A server that computes one step whenever the test says so: a question of the test holds its thread between two
 * steps, so that what clients do meanwhile does not depend on speed, and the engine may be looked at.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SERVE_STEPS_H
#define TESTS_SERVE_STEPS_H

#include <semaphore.h>

#include "serve/client.h"
#include "server.h"

static struct { sem_t is_held, may_go; } steps_gate;

static inline void steps_wait(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0) assert_int_equal(errno, EINTR);
}

static inline mn_status steps_hold(bytes *out, server *s, job *j, refusal *why) {
    (void)s, (void)j, (void)why;
    sem_post(&steps_gate.is_held);
    steps_wait(&steps_gate.may_go);
    bytes_append_text(out, "{}");
    return MN_OK;
}

static inline void steps_ask(server *s) {
    refusal why = {0};
    job *j = job_ask(steps_hold);
    assert_non_null(j);
    j->reply = reply_open(false, NULL, NULL);
    assert_ok(scheduler_add(s->scheduler, j, &why));
}

/* From here on the server computes nothing by itself. */
static inline void steps_begin(server *s) {
    sem_init(&steps_gate.is_held, 0, 0);
    sem_init(&steps_gate.may_go, 0, 0);
    steps_ask(s);
    steps_wait(&steps_gate.is_held);
}

/* One step, if there is work. */
static inline void steps_one(server *s) {
    steps_ask(s);
    sem_post(&steps_gate.may_go);
    steps_wait(&steps_gate.is_held);
}

/* From here on it computes by itself again. */
static inline void steps_end(void) {
    sem_post(&steps_gate.may_go);
}

static inline mn_engine_info steps_info(server *s) {
    mn_engine_info info = {.size = sizeof info};
    assert_ok(mn_engine_get_info(scheduler_engine(s->scheduler), &info));
    return info;
}

typedef struct steps_count {
    size_t n_added, n_cancelled;
} steps_count;

static inline void steps_count_job(void *user, const job *j) {
    steps_count *c = user;
    c->n_added += j->is_added;
    c->n_cancelled += j->is_cancelled;
}

/* Until so many requests have reached the engine, and so many of them are cancelled. */
static inline void steps_until(server *s, size_t n_added, size_t n_cancelled) {
    steps_count c = {SIZE_MAX, 0};
    wait_until(c.n_added == n_added && c.n_cancelled == n_cancelled) {
        c = (steps_count){0};
        scheduler_visit(s->scheduler, steps_count_job, &c);
    }
}

/* The request that was added as the n-th, counted from 0; false: it has ended. */
static inline bool steps_request(server *s, int n, mn_request_info *info) {
    *info = (mn_request_info){.size = sizeof *info};
    return mn_engine_request(scheduler_engine(s->scheduler), n, info) == MN_OK;
}

#endif
