/* Where connections come in, and stay: they are kept alive, and may be in TLS.
 *
 * The proxy reads what a client sends, and the HTTP library gets a request only when its head has come whole and right,
 * within its time, and never a byte beyond the end of its body. Each request reaches the library through a pair of
 * sockets of its own, and the next one is looked at when the answer has been sent: whatever a request says about its
 * length, no other one can be hidden in it. Meanwhile the proxy watches whether the client leaves, which the library
 * does not see while an answer is being computed, and keeps deadlines that do not move when a byte drips in.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_PROXY_H
#define MNEME_SERVE_PROXY_H

#include <stdbool.h>
#include <stddef.h>

#include "mneme.h"

struct wire_identity;

typedef struct proxy proxy;
typedef struct client_connection client_connection;

typedef struct proxy_options {
    const char *host;                     /* to listen on; NULL: 127.0.0.1 */
    int port;                             /* 0: any free one */
    const char *unix_path;                /* NULL: none; instead of host and port */
    const struct wire_identity *identity; /* NULL: no TLS; stays open as long as the proxy */
    size_t max_connections;
    double head_ms;  /* for the handshake and the whole head of the first request, and for each other head */
    double body_ms;  /* for the whole body */
    double idle_ms;  /* between an answer and the next request */
    double stall_ms; /* for a client that reads nothing of an answer */
    void *user;
    /* Takes a socket with one request, or closes it and returns false. On the proxy's thread. */
    bool (*enter)(void *user, int fd);
    /* The client has left. On the proxy's thread, which holds its lock. */
    void (*left)(void *user, void *request);
} proxy_options;

/* Listens. MN_E_ARG, MN_E_IO, MN_E_NOMEM: the message says why. */
mn_status proxy_open(proxy **out, const proxy_options *options);
int proxy_port(const proxy *p);       /* 0: a Unix socket */
mn_status proxy_start(proxy *p);      /* its thread */
void proxy_drain(proxy *p);           /* connections end with the answer that they wait for */
void proxy_stop(proxy *p);            /* ends its thread: no connection comes in, no byte goes on; those inside stay */
void proxy_close(proxy **p);          /* when the HTTP library is closed */
size_t proxy_n_busy(proxy *p);        /* those with a request that has begun and is not answered */
size_t proxy_n_connections(proxy *p); /* those, and those that are idle or being closed */

/* The connection of a socket that entered; NULL: none. */
client_connection *proxy_connection(proxy *p, int fd);
/* Who is notified when the client leaves; at once if it has. */
void proxy_take(proxy *p, client_connection *c, void *request);
/* The answer has been written (is_whole), or never will be; the owner of the request is not notified again. */
void proxy_answered(proxy *p, client_connection *c, bool is_whole);
/* The connection ends with the answer. */
void proxy_end(proxy *p, client_connection *c);
/* Whether the connection ends with the answer, which has to say so. */
bool proxy_closes(proxy *p, client_connection *c);
/* The HTTP library is about to close the socket that entered. */
void proxy_release(proxy *p, client_connection *c, int fd);

#endif
