/* SPDX-License-Identifier: Apache-2.0 */
#include "reply.h"

#include <string.h>

reply *reply_open(bool streams, void (*wake)(void *), void *user) {
    reply *r = mem_alloc(1, sizeof *r);
    if (!r) return NULL;
    pthread_mutex_init(&r->lock, NULL);
    atomic_init(&r->holders, 1);
    r->streams = streams;
    r->status = 200;
    r->wake = wake;
    r->wake_user = user;
    return r;
}

void reply_hold(reply *r) {
    atomic_fetch_add(&r->holders, 1);
}

void reply_release(reply *r) {
    if (!r || atomic_fetch_sub(&r->holders, 1) > 1) return;
    bytes_clear(&r->out);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

/* Holding the lock. */
static void wake(reply *r) {
    if (!r->is_waited_for || !r->wake) return;
    r->is_waited_for = false;
    r->wake(r->wake_user);
}

/* Holding the lock. What was sent is dropped when it is most of what there is. */
static void append(reply *r, bytes *text) {
    if (r->sent > r->out.n / 2) {
        size_t left = r->out.n - r->sent;
        memmove(r->out.data, r->out.data + r->sent, left);
        r->out.n = left;
        r->sent = 0;
    }
    if (text->n) bytes_append(&r->out, text->data, text->n);
    bytes_clear(text);
}

bool reply_put(reply *r, bytes *text) {
    pthread_mutex_lock(&r->lock);
    bool fits = !r->is_cut && !text->failed && r->out.n - r->sent + text->n <= MOST_WAITING;
    if (fits) append(r, text);
    bytes_clear(text);
    fits = fits && !r->out.failed;
    r->is_cut = !fits;
    if (r->streams) wake(r);
    pthread_mutex_unlock(&r->lock);
    return fits;
}

void reply_end(reply *r, int status, bytes *text) {
    pthread_mutex_lock(&r->lock);
    if (!r->is_ended) {
        if (!r->is_cut) append(r, text); /* an end behind a gap would look like a whole answer */
        r->status = status;
        r->is_ended = true;
        wake(r);
    }
    bytes_clear(text);
    pthread_mutex_unlock(&r->lock);
}

void reply_count(reply *r, size_t prompt, size_t cached, size_t generated) {
    pthread_mutex_lock(&r->lock);
    r->prompt_tokens += prompt;
    r->cached_tokens += cached;
    r->generated_tokens += generated;
    pthread_mutex_unlock(&r->lock);
}

void reply_forget_wake(reply *r) {
    pthread_mutex_lock(&r->lock);
    r->wake = NULL;
    r->is_waited_for = false;
    pthread_mutex_unlock(&r->lock);
}
