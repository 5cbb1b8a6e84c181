/* The routes, one table: path, function, and the description in /openapi.json.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_ROUTES_H
#define MNEME_SERVE_ROUTES_H

#include "server.h"

typedef struct route {
    const char *method, *path; /* {id}: any part of a path */
    bool is_public;            /* without a key */
    make_job *job;             /* one of these two */
    answer *answer;
    unsigned form;       /* of the body, BODY_...; 0: there is none */
    const char *help;    /* one line */
    const char *returns; /* members that the answer always has, "a|b"; NULL: it is no JSON */
    const char *example; /* a body; NULL: one of the required fields */
    const char *type;    /* of what it answers; NULL: JSON */
} route;

/* How its errors are written. */
write_error *route_error(const route *r);

/* Why the server cannot answer it: a fixed text; NULL: it can. */
const char *route_lacks(const route *r, const server *s);

/* The row at `index`, counted from 0; NULL after the last one. */
const route *route_at(size_t index);

#endif
