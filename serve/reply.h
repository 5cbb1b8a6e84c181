/* The answer to a client: bytes from the thread that computes to the thread of the HTTP library. Both hold it, and the
 * last one frees it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_REPLY_H
#define MNEME_SERVE_REPLY_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"

enum { MOST_WAITING = 4 << 20 }; /* unread bytes of a client; with more it is disconnected */

typedef struct reply {
    pthread_mutex_t lock; /* of all below, but the first two */
    atomic_int holders;
    bool streams;
    bytes out; /* [n]; the first `sent` have been given away */
    size_t sent;
    bool is_ended; /* nothing more comes */
    bool is_cut; /* something did not fit: what follows is dropped, and the connection ends without an end of the stream
                  */
    const char *type; /* of the content; NULL: JSON, or events */
    int status;       /* of HTTP, when it is ended, or from the beginning of a stream on */
    size_t prompt_tokens, cached_tokens, generated_tokens; /* of the generations that have ended */
    bool is_waited_for;                                    /* the library's connection is suspended */
    void (*wake)(void *user);                              /* ends that; called with the lock */
    void *wake_user;
} reply;

reply *reply_open(bool streams, void (*wake)(void *), void *user); /* one holder; NULL: no memory */
void reply_hold(reply *r);
void reply_release(reply *r);

/* Adds text and clears it; false: the client does not read what there is, or memory ran out; then nothing is added any
 * more. */
bool reply_put(reply *r, bytes *text);
/* The last text; status counts where nothing was sent yet. */
void reply_end(reply *r, int status, bytes *text);
/* Counts the tokens of a generation of the answer. */
void reply_count(reply *r, size_t prompt, size_t cached, size_t generated);
/* Nobody will wake it any more. */
void reply_forget_wake(reply *r);

#endif
