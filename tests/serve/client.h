/* A client of a server in this process: sockets, requests byte by byte, answers whole.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SERVE_CLIENT_H
#define TESTS_SERVE_CLIENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"
#include "support/patience.h"
#include "support/support.h"

typedef struct answer_text {
    int status; /* 0: the connection was closed without an answer */
    bytes head, body;
} answer_text;

/* Members of a body of /v1/completions, and the server's cache, for an answer that ends only when it is cancelled. Its
 * tokens have no text, so a stream has no events. */
#define CLIENT_ENDLESS "\"max_tokens\":1048576,\"ignore_eos\":true,\"logit_bias\":{\"2\":100}"
static const mn_cache_options client_endless_cache = {
    .size = sizeof client_endless_cache, .implementation = "sink", .config = "window_length=64"};

static inline int client_connect(int port) {
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval wait = {.tv_sec = PATIENCE_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static inline void client_send(int fd, const char *text, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(fd, text + at, n - at, MSG_NOSIGNAL);
        if (sent <= 0) return; /* refused already: the answer says so */
        at += (size_t)sent;
    }
}

/* A socket with a time limit reports interruptions even of handlers that restart calls. */
static inline ssize_t client_recv(int fd, char *to, size_t most) {
    ssize_t n;
    do n = recv(fd, to, most, 0);
    while (n < 0 && errno == EINTR);
    return n;
}

/* Where the chunks of a body end that begins at `from`; 0: they have not come to their end. *joined gets them. */
static inline size_t client_join_chunks(bytes *joined, const bytes *all, size_t from) {
    bytes_clear(joined);
    for (size_t at = from;;) {
        const char *line = at < all->n ? memchr(all->data + at, '\n', all->n - at) : NULL;
        if (!line) return 0;
        const size_t n = strtoul(all->data + at, NULL, 16);
        at = (size_t)(line - all->data) + 1;
        if (all->n - at < n + 2) return 0;
        bytes_append(joined, all->data + at, n);
        at += n + 2;
        if (n == 0) return at;
    }
}

/* The answer at the beginning of what has come: how many bytes it has; 0: it is not whole. */
static inline size_t client_parse(answer_text *a, bytes *all) {
    const char *text = bytes_text(all), *end = strstr(text, "\r\n\r\n");
    if (!end) return 0;
    const size_t n_head = (size_t)(end - text);
    bytes_clear(&a->head);
    bytes_append(&a->head, text, n_head);
    assert_int_equal(sscanf(text, "HTTP/1.1 %d", &a->status), 1);
    if (strstr(bytes_text(&a->head), "Transfer-Encoding: chunked"))
        return client_join_chunks(&a->body, all, n_head + 4);
    const char *length = strstr(bytes_text(&a->head), "Content-Length: ");
    const size_t n = length ? strtoul(length + 16, NULL, 10) : SIZE_MAX / 2;
    bytes_clear(&a->body);
    bytes_append(&a->body, end + 4, all->n - n_head - 4 < n ? all->n - n_head - 4 : n);
    return all->n >= n_head + 4 + n ? n_head + 4 + n : 0;
}

/* Reads an answer, or until the server closes the connection. *rest: what has come of it, before; then what came
 * behind it. */
static inline answer_text client_read_next(int fd, bytes *rest) {
    answer_text a = {0};
    char part[4096];
    size_t n_answer = client_parse(&a, rest);
    for (ssize_t n; n_answer == 0 && (n = client_recv(fd, part, sizeof part)) > 0;) {
        bytes_append(rest, part, (size_t)n);
        n_answer = client_parse(&a, rest);
    }
    bytes left = {0};
    if (n_answer) bytes_append(&left, rest->data + n_answer, rest->n - n_answer);
    bytes_clear(rest);
    *rest = left;
    bytes_text(&a.head);
    bytes_text(&a.body);
    return a;
}

/* The same, of a connection that has no other request. */
static inline answer_text client_read(int fd) {
    bytes rest = {0};
    answer_text a = client_read_next(fd, &rest);
    if (rest.n) fail_msg("%zu bytes behind the answer", rest.n);
    bytes_clear(&rest);
    return a;
}

static inline void client_clear(answer_text *a) {
    bytes_clear(&a->head);
    bytes_clear(&a->body);
}

/* header: whole lines, or "". */
static inline int client_post_with(int port, const char *path, const char *header, const char *body) {
    bytes b = {0};
    int fd = client_connect(port);
    bytes_printf(&b,
                 "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%sContent-Length: "
                 "%zu\r\n\r\n",
                 path, header, strlen(body));
    bytes_append_text(&b, body);
    client_send(fd, b.data, b.n);
    bytes_clear(&b);
    return fd;
}

static inline int client_post(int port, const char *path, const char *body) {
    return client_post_with(port, path, "", body);
}

/* method: "GET", "DELETE", ...; header: whole lines, or "". */
static inline int client_begin(int port, const char *method, const char *path, const char *header) {
    bytes b = {0};
    int fd = client_connect(port);
    bytes_printf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", method, path, header);
    client_send(fd, b.data, b.n);
    bytes_clear(&b);
    return fd;
}

static inline answer_text client_get(int port, const char *path) {
    int fd = client_begin(port, "GET", path, "");
    answer_text a = client_read(fd);
    close(fd);
    return a;
}

static inline answer_text client_ask(int port, const char *path, const char *body) {
    int fd = client_post(port, path, body);
    answer_text a = client_read(fd);
    close(fd);
    return a;
}

/* A request with a body; header: whole lines, or "". */
static inline answer_text client_ask_with(int port, const char *method, const char *path, const char *header,
                                          const char *body) {
    bytes b = {0};
    int fd = client_connect(port);
    bytes_printf(
        &b, "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%sContent-Length: %zu\r\n\r\n%s",
        method, path, header, strlen(body), body);
    client_send(fd, b.data, b.n);
    bytes_clear(&b);
    answer_text a = client_read(fd);
    close(fd);
    return a;
}

/* What a body is, as JSON. */
static inline json_doc *client_json(const answer_text *a) {
    json_doc *doc = NULL;
    assert_ok(json_parse(&doc, a->body.data ? a->body.data : "", a->body.n, JSON_STRICT, "answer"));
    return doc;
}

#endif
