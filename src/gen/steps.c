/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/steps.h"

#include "base/clock.h"
#include "base/mem.h"

mn_status steps_add(steps *s, request *r) {
    size_t n_feeds = request_most_feeds(r);
    for (size_t i = 0; i < s->n; i++) n_feeds += request_most_feeds(s->requests[i]);
    MN_TRY(mem_grow(&s->active, &s->active_capacity, n_feeds, sizeof *s->active));
    size_t capacity = s->capacity;
    MN_TRY(mem_grow(&s->choosing, &capacity, s->n + 1, sizeof *s->choosing));
    MN_TRY(mem_grow(&s->requests, &s->capacity, s->n + 1, sizeof *s->requests));
    s->requests[s->n++] = r;
    return MN_OK;
}

void steps_clear(steps *s) {
    mem_free(s->requests);
    mem_free(s->active);
    mem_free(s->choosing);
    *s = (steps){0};
}

void steps_give_ended(steps *s, request *r) {
    if (!s->last_ended) s->last_ended = &s->ended;
    r->next = NULL;
    *s->last_ended = r;
    s->last_ended = &r->next;
}

request *steps_take_ended(steps *s) {
    request *first = s->ended;
    s->ended = NULL;
    s->last_ended = NULL;
    return first;
}

/* Removes finished requests. */
static void tidy(steps *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        request *r = s->requests[i];
        if (!r->is_done) {
            s->requests[n++] = r;
            continue;
        }
        steps_give_ended(s, r);
    }
    s->n = n;
}

static void choose_one(void *arg, int task, int thread) {
    request *const *requests = arg;
    (void)thread;
    request_choose(requests[task]);
}

/* A request's choice depends on its own tokens and logits only, so requests choose on several threads. */
static void choose_ahead(steps *s) {
    int n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (request_can_choose(s->requests[i])) s->choosing[n++] = s->requests[i];
    }
    if (n < 2) return;
    int64_t n_values = (int64_t)n * (int64_t)s->choosing[0]->vocab;
    model_run_tasks(s->choosing[0]->setup.session->model, n, n_values, choose_one, s->choosing);
}

void steps_choose(steps *s) {
    choose_ahead(s);
    s->n_active = 0;
    for (size_t i = 0; i < s->n; i++) {
        request *r = s->requests[i];
        /* Asked before the token callback: behind it another thread of the caller may be busy with the token. */
        mn_status status = request_is_aborted(r) ? MN_E_CANCELLED : request_advance(r);
        if (status == MN_OK && request_is_cancelled(r)) status = MN_E_CANCELLED;
        if (status != MN_OK) request_stop(r, status);
        if (!r->is_done) s->n_active = request_list_feeds(r, s->active, s->n_active);
    }
    tidy(s);
}

/* Reports progress of the prompts that the pass computed. */
static void report_prefill(steps *s) {
    for (size_t i = 0; i < s->n; i++) {
        request *r = s->requests[i];
        size_t done = request_prompt_done(r);
        if (done == r->prompt_done) continue;
        r->prompt_done = done;
        if (done == r->prompt_tokens) r->prompt_ended = clock_ms();
        request_keep_prefix(r);
        if (r->options.on_prefill) r->options.on_prefill(r->options.user, done, r->prompt_tokens);
    }
}

static pace_work work_of(const steps *s) {
    pace_work work = {0};
    for (size_t i = 0; i < s->n_active; i++) {
        const bool is_long = feed_is_long(s->active[i]);
        work.n_prompts += is_long;
        work.n_others += !is_long;
        if (is_long) work.n_tokens += feed_length(s->active[i]);
    }
    return work;
}

mn_status steps_pass(steps *s) {
    const pace_work work = work_of(s);
    pass_limit limit = {0};
    if (s->n_active == 0) return MN_OK;
    if (s->pace.slowdown <= 0 || work.n_others == 0) {
        s->pace.credit_ms = 0;
        return feeds_pass(s->active, s->n_active, NULL);
    }
    limit.most_long = pace_tokens(&s->pace, &work);
    double begin = clock_ms();
    MN_TRY(feeds_pass(s->active, s->n_active, &limit));
    pace_learn(&s->pace, &work, limit.n_long, clock_ms() - begin);
    return MN_OK;
}

void steps_stop_failed(steps *s, mn_status status) {
    for (size_t i = 0; i < s->n; i++) {
        if (request_has_failed(s->requests[i])) request_stop(s->requests[i], status);
    }
}

void steps_end_pass(steps *s) {
    report_prefill(s);
    tidy(s);
}

void steps_compute(steps *s) {
    mn_status status = steps_pass(s);
    if (status != MN_OK) steps_stop_failed(s, status);
    steps_end_pass(s);
}

void steps_remove(steps *s, const request *r) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->requests[i] != r) s->requests[n++] = s->requests[i];
    }
    s->n = n;
}

void steps_stop(steps *s, request *r, mn_status status) {
    request_stop(r, status);
    tidy(s);
}
