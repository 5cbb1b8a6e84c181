/* Where the body of a request ends, byte by byte as RFC 9112 writes it: after Content-Length bytes, or with the last of
 * its chunks. What comes behind it is the next request.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_BODY_H
#define MNEME_SERVE_BODY_H

#include "http/head.h"

enum {
    BODY_MOST_DIGITS = 8,        /* of the size of a chunk */
    BODY_MOST_EXTENSION = 256,   /* bytes of a chunk's extensions */
    BODY_MOST_TRAILER = 1 << 10, /* bytes of all fields behind the last chunk */
};

typedef struct body {
    bool is_over;
    const char *problem; /* one sentence, a fixed text; NULL: none so far */
    int state;
    uint64_t left; /* bytes of data until something else has to come */
    size_t n_line; /* digits, or bytes of extensions or of the trailer */
} body;

body body_begin(const http_head *h);
/* How many of text [n] belong to the body. Those before a problem count. */
size_t body_take(body *b, const char *text, size_t n);

#endif
