/* The head of an HTTP/1.1 request, checked byte by byte by RFC 9112 before the HTTP library gets it: lines end
 * with CRLF, no line is folded, no field is repeated, lengths are numbers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_HEAD_H
#define MNEME_SERVE_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HEAD_MOST_LINE = 8 << 10,   /* bytes of the request line */
    HEAD_MOST_BYTES = 32 << 10, /* of the whole head */
    HEAD_MOST_FIELDS = 100
};

typedef struct http_head {
    int status;          /* 0: more bytes are needed; 200: whole and right; else the status to refuse it with */
    const char *problem; /* one sentence, a fixed text; NULL unless refused */
    size_t n;            /* bytes of the head when it is whole */
    bool has_length, is_chunked;
    uint64_t length; /* Content-Length */
    bool closes;     /* HTTP/1.0, or "Connection: close": this request is the connection's last one */
} http_head;

/* text [n]: what has come so far. */
http_head head_check(const char *text, size_t n);

/* Removes what no route reads and the HTTP library would take apart, in more memory than it has: parameters behind a
 * '?', and cookies. text [n]: a whole and right head. Its new length. */
size_t head_shorten(char *text, size_t n);

/* Whether a name of a field or a method may have this byte: RFC 9110, 5.6.2. */
bool head_is_token_byte(char c);

#endif
