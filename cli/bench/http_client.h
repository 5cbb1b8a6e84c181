/* Requests to one server over HTTP, many at once on one thread, by libcurl, which is loaded when the first client is
 * opened.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_BENCH_HTTP_CLIENT_H
#define MNEME_CLI_BENCH_HTTP_CLIENT_H

#include <stdbool.h>

#include "base/mem.h"

enum { HTTP_MOST_BODY = 64 << 20, HTTP_MOST_ERROR_BODY = 4096 };

typedef struct http_client http_client;
typedef struct http_call http_call;

/* Bytes of the body of an answer with status 200. A failure ends the call, and its message becomes call->error. */
typedef mn_status (*http_taker)(http_call *call, const char *data, size_t n);

struct http_call {
    /* Set by the caller; the texts stay until the call has ended. */
    const char *path; /* behind the address, as "/v1/models" */
    const char *json; /* the body of a POST; NULL: a GET */
    size_t n_json;
    http_taker take;          /* NULL: into `body` */
    void (*end)(http_call *); /* called when it has ended; may be NULL */
    void *user;
    /* Set by the client. */
    int status; /* 0: there was no answer */
    bool has_ended;
    char error[320]; /* "" when the whole answer came, whatever its status */
    bytes body;      /* of an answer with another status its first bytes; freed by http_call_clear */
    void *handle;    /* libcurl's */
};

/* address: http://HOST:PORT[/PREFIX], the same with https, or unix:PATH; a prefix "/v1" is left out, as the paths have
 * it. key: for "Authorization: Bearer", or NULL. MN_E_ARG for another address; MN_E_UNSUPPORTED without libcurl. */
mn_status http_client_open(http_client **out, const char *address, const char *key);
void http_client_close(http_client **client);

/* The call stays where it is until it has ended, or the client is closed. */
mn_status http_client_start(http_client *c, http_call *call);

/* Moves bytes of all calls, after waiting for some at most wait_ms; *n_ended: how many calls have ended in it. */
mn_status http_client_step(http_client *c, int wait_ms, size_t *n_ended);

/* http_client_start, and steps until it has ended or `stop` returns true, which is MN_E_CANCELLED. For clients without
 * other calls. */
mn_status http_client_ask(http_client *c, http_call *call, bool (*stop)(void));

void http_call_clear(http_client *c, http_call *call);

#endif
