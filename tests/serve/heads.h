/* Heads of requests that RFC 9112 forbids, with the status that refuses them, and heads that it allows.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SERVE_HEADS_H
#define TESTS_SERVE_HEADS_H

#include <stddef.h>

#define LINE "POST /v1/x HTTP/1.1\r\n"
#define HOST "Host: localhost\r\n"
#define END  "\r\n"

typedef struct sample {
    const char *text;
    size_t n;
    int status;
} sample;

#define S(status, text)                                                                                                \
    { text, sizeof(text) - 1, status }

static const sample refused[] = {
    /* the request line */
    S(400, "\r\n" LINE HOST END),
    S(400, " " LINE HOST END),
    S(400, "POST  /v1/x HTTP/1.1\r\n" HOST END),
    S(400, "POST /v1/x  HTTP/1.1\r\n" HOST END),
    S(400, "POST /v1/x HTTP/1.1 \r\n" HOST END),
    S(400, "POST\t/v1/x HTTP/1.1\r\n" HOST END),
    S(400, "POST /v1/x\tHTTP/1.1\r\n" HOST END),
    S(400, "POST /v1/x\r\n" HOST END),
    S(400, "POST\r\n" HOST END),
    S(400, "POST /v1/x HTTP/1.1\n" HOST END),
    S(400, "POST /v1/x HTTP/1.1\r" HOST END),
    S(400, "POST /v1/x HTTP/1.1\r\r\n" HOST END),
    S(501, "PO ST /v1/x HTTP/1.1\r\n" HOST END),
    S(400, "PO(ST /v1/x HTTP/1.1\r\n" HOST END),
    S(400, "PO\"ST /v1/x HTTP/1.1\r\n" HOST END),
    S(400, "POST: /v1/x HTTP/1.1\r\n" HOST END),
    S(400, "P\0ST /v1/x HTTP/1.1\r\n" HOST END),
    S(400, "\200POST /v1/x HTTP/1.1\r\n" HOST END),
    S(501, "post /v1/x HTTP/1.1\r\n" HOST END),
    S(501, "BREW /v1/x HTTP/1.1\r\n" HOST END),
    S(501, "POSTS /v1/x HTTP/1.1\r\n" HOST END),
    S(501, "PRI /v1/x HTTP/1.1\r\n" HOST END),
    S(501, "PRI * HTTP/2.0\r\n" HOST END),
    S(400, "GET * HTTP/1.1\r\n" HOST END),
    S(400, "OPTIONS * HTTP/1.1\r\n" HOST END),
    S(400, "GET http://localhost/v1/x HTTP/1.1\r\n" HOST END),
    S(400, "CONNECT localhost:80 HTTP/1.1\r\n" HOST END),
    S(400, "GET v1/x HTTP/1.1\r\n" HOST END),
    S(400, "GET ?x HTTP/1.1\r\n" HOST END),
    S(400, "GET  HTTP/1.1\r\n" HOST END),
    S(400, "GET /v1/x#part HTTP/1.1\r\n" HOST END),
    S(400, "GET /v1/\x01x HTTP/1.1\r\n" HOST END),
    S(400, "GET /v1/\x7fx HTTP/1.1\r\n" HOST END),
    S(400, "GET /v1/\x80x HTTP/1.1\r\n" HOST END),
    S(400, "GET /v1/\xc3\xa9 HTTP/1.1\r\n" HOST END),
    S(400, "GET /v1/\0x HTTP/1.1\r\n" HOST END),
    S(400, "GET /health%00x HTTP/1.1\r\n" HOST END),
    S(400, "GET /v1/x% HTTP/1.1\r\n" HOST END),
    S(400, "GET /v1/x%2 HTTP/1.1\r\n" HOST END),
    S(400, "GET /v1/%zzx HTTP/1.1\r\n" HOST END),
    S(400, "GET /v1/x HTTP\r\n" HOST END),
    S(400, "GET /v1/x HTTP/1\r\n" HOST END),
    S(400, "GET /v1/x HTTP/1.\r\n" HOST END),
    S(400, "GET /v1/x HTTP/1.10\r\n" HOST END),
    S(400, "GET /v1/x HTTP/11\r\n" HOST END),
    S(400, "GET /v1/x http/1.1\r\n" HOST END),
    S(400, "GET /v1/x HTTPS/1.1\r\n" HOST END),
    S(400, "GET /v1/x /1.1\r\n" HOST END),
    S(505, "GET /v1/x HTTP/0.9\r\n" HOST END),
    S(505, "GET /v1/x HTTP/1.2\r\n" HOST END),
    S(505, "GET /v1/x HTTP/2.0\r\n" HOST END),
    S(505, "GET /v1/x HTTP/3.0\r\n" HOST END),
    /* lines */
    S(400, LINE "Host: localhost\nA: b\r\n" END),
    S(400, LINE HOST "A: b\n" END),
    S(400, LINE HOST "A: b\r" END),
    S(400, LINE HOST "A: b\rC: d\r\n" END),
    S(400, LINE HOST "A: b\r\r\n" END),
    S(400, LINE HOST "\n"),
    S(400, LINE HOST "\r\r\n"),
    S(400, LINE HOST "A: b\r\n c\r\n" END),
    S(400, LINE HOST "A: b\r\n\tc\r\n" END),
    S(400, LINE " " HOST END),
    S(400, LINE "\tA: b\r\n" HOST END),
    S(400, LINE HOST " \r\n" END),
    /* names of fields */
    S(400, LINE HOST "A : b\r\n" END),
    S(400, LINE HOST "A\t: b\r\n" END),
    S(400, LINE HOST ": b\r\n" END),
    S(400, LINE HOST "A b\r\n" END),
    S(400, LINE HOST "A\r\n" END),
    S(400, LINE HOST "A B: c\r\n" END),
    S(400, LINE HOST "A(B): c\r\n" END),
    S(400, LINE HOST "A,B: c\r\n" END),
    S(400, LINE HOST "A/B: c\r\n" END),
    S(400, LINE HOST "A;B: c\r\n" END),
    S(400, LINE HOST "A=B: c\r\n" END),
    S(400, LINE HOST "A\"B: c\r\n" END),
    S(400, LINE HOST "A[0]: c\r\n" END),
    S(400, LINE HOST "A{B}: c\r\n" END),
    S(400, LINE HOST "A@B: c\r\n" END),
    S(400, LINE HOST "A\\B: c\r\n" END),
    S(400, LINE HOST "A\0B: c\r\n" END),
    S(400, LINE HOST "A\x01"
                     "B: c\r\n" END),
    S(400, LINE HOST "\xc3\xa9: c\r\n" END),
    S(400, LINE HOST "Content-Length : 3\r\n" END),
    S(400, LINE HOST "Transfer-Encoding : chunked\r\n" END),
    /* values */
    S(400, LINE HOST "A: b\0c\r\n" END),
    S(400, LINE HOST "A: \0\r\n" END),
    S(400, LINE HOST "A: b\x01\r\n" END),
    S(400, LINE HOST "A: \x1b[31m\r\n" END),
    S(400, LINE HOST "A: \x7f\r\n" END),
    S(400, LINE HOST "A: \x0b\r\n" END),
    S(400, LINE HOST "A: \x0c\r\n" END),
    S(400, LINE HOST "A: \x08\r\n" END),
    /* Host */
    S(400, LINE END),
    S(400, LINE "A: b\r\n" END),
    S(400, LINE HOST HOST END),
    S(400, LINE HOST "host: other\r\n" END),
    S(400, LINE "Host:\r\n" END),
    S(400, LINE "Host: \r\n" END),
    S(400, LINE "Host: a b\r\n" END),
    S(400, LINE "Host: a,b\r\n" END),
    S(400, LINE "Host: a/b\r\n" END),
    S(400, LINE "Host: user@a\r\n" END),
    S(400, LINE "Host: a?b\r\n" END),
    S(400, LINE "Host: <a>\r\n" END),
    S(400, LINE "Host: \xc3\xa9\r\n" END),
    /* Content-Length */
    S(400, LINE HOST "Content-Length: 3\r\nContent-Length: 3\r\n" END),
    S(400, LINE HOST "Content-Length: 3\r\ncontent-length: 4\r\n" END),
    S(400, LINE HOST "Content-Length: 3, 3\r\n" END),
    S(400, LINE HOST "Content-Length: 3,4\r\n" END),
    S(400, LINE HOST "Content-Length: +3\r\n" END),
    S(400, LINE HOST "Content-Length: -1\r\n" END),
    S(400, LINE HOST "Content-Length: 0x3\r\n" END),
    S(400, LINE HOST "Content-Length: 3.0\r\n" END),
    S(400, LINE HOST "Content-Length: 3 4\r\n" END),
    S(400, LINE HOST "Content-Length: three\r\n" END),
    S(400, LINE HOST "Content-Length: \r\n" END),
    S(400, LINE HOST "Content-Length:\r\n" END),
    S(400, LINE HOST "Content-Length: 9999999999999999999\r\n" END),
    S(400, LINE HOST "Content-Length: 18446744073709551616\r\n" END),
    S(400, LINE HOST "Content-Length: 00000000000000000000003\r\n" END),
    S(400, LINE HOST "Content-Length: \xd9\xa3\r\n" END),
    /* Transfer-Encoding */
    S(400, LINE HOST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n" END),
    S(400, LINE HOST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: gzip, chunked\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: chunked, gzip\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: chunked, chunked\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: chunked,\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: ,chunked\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: gzip\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: identity\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: xchunked\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: chunkedx\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: \"chunked\"\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: chunked;q=1\r\n" END),
    S(400, LINE HOST "Transfer-Encoding:\r\n" END),
    S(400, LINE HOST "Transfer-Encoding: \x0b"
                     "chunked\r\n" END),
    S(400, "POST /v1/x HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n" END),
    S(417, LINE HOST "Expect: 200-ok\r\n" END),
    S(417, LINE HOST "Expect: 100-continue, x\r\n" END),
};

static const sample right[] = {
    S(200, LINE HOST END),
    S(200, "GET / HTTP/1.1\r\n" HOST END),
    S(200, "GET /v1/x?a=b&c=%20 HTTP/1.1\r\n" HOST END),
    S(200, "DELETE /v1/requests/r1 HTTP/1.1\r\n" HOST END),
    S(200, "GET / HTTP/1.0\r\n" END),
    S(200, "HEAD / HTTP/1.0\r\n" HOST "Content-Length: 0\r\n" END),
    S(200, LINE "host:localhost:8080\r\nCONTENT-LENGTH:12\r\n" END),
    S(200, LINE "Host: [::1]:8080\r\ntransfer-encoding: Chunked\r\n" END),
    S(200, LINE "Host: 127.0.0.1 \t\r\nA:\r\nB: \r\nC: d\te \xc3\xa9\r\n" END),
    S(200, LINE HOST "Expect: 100-continue\r\nContent-Length: 8388608\r\n" END),
    S(200, LINE HOST "X!#$%&'*+-.^_`|~9: ok\r\n" END),
};

enum { N_REFUSED = sizeof refused / sizeof *refused, N_RIGHT = sizeof right / sizeof *right };

#endif
