/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/steps.h"

#include "base/mem.h"

mn_status steps_add(steps *s, request *r) {
    size_t n_feeds = request_most_feeds(r);
    for (size_t i = 0; i < s->n; i++) n_feeds += request_most_feeds(s->requests[i]);
    MN_TRY(mem_grow(&s->active, &s->active_capacity, n_feeds, sizeof *s->active));
    MN_TRY(mem_grow(&s->requests, &s->capacity, s->n + 1, sizeof *s->requests));
    s->requests[s->n++] = r;
    if (!s->last_ended) s->last_ended = &s->ended;
    return MN_OK;
}

void steps_clear(steps *s) {
    mem_free(s->requests);
    mem_free(s->active);
    *s = (steps){0};
}

/* Those that are done leave. */
static void tidy(steps *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        request *r = s->requests[i];
        if (!r->is_done) {
            s->requests[n++] = r;
            continue;
        }
        r->next = NULL;
        *s->last_ended = r;
        s->last_ended = &r->next;
    }
    s->n = n;
}

void steps_choose(steps *s) {
    s->n_active = 0;
    for (size_t i = 0; i < s->n; i++) {
        request *r = s->requests[i];
        mn_status status = request_advance(r);
        if (status == MN_OK && request_is_cancelled(r)) status = MN_E_CANCELLED;
        if (status != MN_OK) request_stop(r, status);
        if (!r->is_done) s->n_active = request_list_feeds(r, s->active, s->n_active);
    }
    tidy(s);
}

/* Of those that were computed together, the ones whose prompt got on. */
static void tell_prefill(steps *s) {
    for (size_t i = 0; i < s->n; i++) {
        request *r = s->requests[i];
        size_t done = request_prompt_done(r);
        if (done == r->prompt_done) continue;
        r->prompt_done = done;
        if (done == r->prompt_tokens) r->prompt_ended = clock_ms();
        if (r->options.on_prefill) r->options.on_prefill(r->options.user, done, r->prompt_tokens);
    }
}

void steps_compute(steps *s) {
    if (s->n_active == 0) return;
    mn_status status = feeds_pass(s->active, s->n_active);
    for (size_t i = 0; i < s->n && status != MN_OK; i++) {
        if (request_has_failed(s->requests[i])) request_stop(s->requests[i], status);
    }
    tell_prefill(s);
    tidy(s);
}

void steps_stop(steps *s, request *r, mn_status status) {
    request_stop(r, status);
    tidy(s);
}
