/* The proxy, where the test is the HTTP library: what it gets of a connection, and when a connection is ended. The
 * clock stands still, and the tests move it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <stdatomic.h>

#include "http/proxy.h"
#include "serve/client.h"
#include "support/hostile/moved_clock.h"

#define HOST "Host: localhost\r\n"
#define GET  "GET / HTTP/1.1\r\n" HOST "\r\n"

static const double head_ms = 3000, body_ms = 5000, idle_ms = 7000, stall_ms = 11000;
static const double sweep_ms = 100; /* so late the proxy may be: it looks ten times a second */

typedef struct library {
    proxy *proxy;
    atomic_int entered; /* the socket of the newest request; 0: taken */
    atomic_int n_left;
} library;

static bool take_socket(void *user, int fd) {
    library *l = user;
    atomic_store(&l->entered, fd);
    return true;
}

static void count_left(void *user, void *request) {
    library *l = user;
    (void)request;
    atomic_fetch_add(&l->n_left, 1);
}

static void open_library(library *l, size_t max_connections) {
    const proxy_options options = {.max_connections = max_connections,
                                   .head_ms = head_ms,
                                   .body_ms = body_ms,
                                   .idle_ms = idle_ms,
                                   .stall_ms = stall_ms,
                                   .user = l,
                                   .enter = take_socket,
                                   .left = count_left};
    *l = (library){0};
    assert_ok(proxy_open(&l->proxy, &options));
    assert_ok(proxy_start(l->proxy));
}

/* The socket of the next request. */
static int entered(library *l) {
    int fd;
    wait_until((fd = atomic_exchange(&l->entered, 0)) != 0);
    return fd;
}

/* The library gets these bytes, and no more for now. */
static void expect_bytes(int fd, const char *text) {
    char got[4096];
    size_t n = 0;
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    while (n < strlen(text) && poll(&ready, 1, PATIENCE_MS) == 1) {
        const ssize_t some = client_recv(fd, got + n, sizeof got - n);
        assert_true(some > 0);
        n += (size_t)some;
    }
    got[n] = 0;
    assert_string_equal(got, text);
    assert_int_equal(poll(&ready, 1, 20), 0);
}

static const char small[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

/* As the HTTP library does, which reads on and closes when the proxy has. */
static void end_request(library *l, int fd, bool is_whole) {
    char drop[4096];
    ssize_t n;
    client_connection *c = proxy_connection(l->proxy, fd);
    assert_non_null(c);
    proxy_answered(l->proxy, c, is_whole);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    do {
        assert_int_equal(poll(&ready, 1, PATIENCE_MS), 1);
        n = client_recv(fd, drop, sizeof drop);
    } while (n > 0);
    proxy_release(l->proxy, c, fd);
    close(fd);
}

static void answer(library *l, int fd) {
    client_send(fd, small, sizeof small - 1);
    end_request(l, fd, true);
}

static void expect_answer(int fd, int status) {
    bytes rest = {0};
    answer_text a = client_read_next(fd, &rest);
    if (a.status != status) fail_msg("%d, not %d", a.status, status);
    assert_int_equal(rest.n, 0);
    client_clear(&a);
}

static void send_text(int fd, const char *text) {
    client_send(fd, text, strlen(text));
}

static void expect_end(int fd) {
    char byte;
    assert_true(client_recv(fd, &byte, 1) <= 0);
    close(fd);
}

/* ---- what the library gets ---- */

/* Each request has a socket of its own, with its bytes alone, when the one before it is answered. */
static void requests_are_apart(void **state) {
    (void)state;
    static const char posted[] = "POST /a HTTP/1.1\r\n" HOST "Content-Length: 42\r\n\r\nGET /hidden HTTP/1.1\r\nHost: "
                                 "localhost\r\n\r\n.",
                      chunks[] = "POST /b HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    library l;
    open_library(&l, 8);
    int client = client_connect(proxy_port(l.proxy));
    bytes all = {0};
    bytes_printf(&all, "%s%s%s%s", posted, chunks, "GET /c?d=e HTTP/1.1\r\nCookie: f\r\n" HOST "\r\n", GET);
    client_send(client, all.data, all.n);
    bytes_clear(&all);
    static const char *const wanted[] = {posted, chunks, "GET /c HTTP/1.1\r\n" HOST "\r\n", GET};
    for (int i = 0; i < 4; i++) {
        const int fd = entered(&l);
        expect_bytes(fd, wanted[i]);
        assert_int_equal(atomic_load(&l.entered), 0);
        assert_false(proxy_closes(l.proxy, proxy_connection(l.proxy, fd)));
        answer(&l, fd);
        expect_answer(client, 200);
    }
    assert_int_equal(proxy_n_busy(l.proxy), 0);
    assert_int_equal(proxy_n_connections(l.proxy), 1);
    close(client);
    proxy_close(&l.proxy);
}

/* An answer that comes before the body has, or is not whole, is the connection's last one: what is left of the body is
 * no request. */
static void answers_without_the_body_end_connections(void **state) {
    (void)state;
    library l;
    open_library(&l, 8);
    for (int i = 0; i < 3; i++) {
        int client = client_connect(proxy_port(l.proxy));
        send_text(client, i == 2 ? GET GET : "POST / HTTP/1.1\r\n" HOST "Content-Length: 90\r\n\r\nabc");
        const int fd = entered(&l);
        if (i < 2) client_send(fd, small, sizeof small - 1);
        if (i == 1) shutdown(fd, SHUT_RDWR);
        end_request(&l, fd, i < 2);
        if (i < 2) expect_answer(client, 200);
        send_text(client, GET);
        expect_end(client);
        assert_int_equal(atomic_load(&l.entered), 0);
    }
    proxy_close(&l.proxy);
}

/* ---- time ---- */

/* A connection that has had so many requests. */
static int connect_after(library *l, int n_requests) {
    int client = client_connect(proxy_port(l->proxy));
    for (int i = 0; i < n_requests; i++) {
        send_text(client, GET);
        answer(l, entered(l));
        expect_answer(client, 200);
    }
    return client;
}

/* A whole request of another connection: what was sent before it has been seen by the proxy then, and times that were
 * over before it have ended. */
static void look(library *l) {
    close(connect_after(l, 1));
}

static void pass(library *l, double ms) {
    look(l);
    clock_move(ms);
    look(l);
}

static bool has_heard(int client) {
    return poll(&(struct pollfd){.fd = client, .events = POLLIN}, 1, 0) != 0;
}

/* Sends a text byte by byte but its last one, which would be due when so much time has passed. */
static void drip(library *l, int client, const char *text, double ms) {
    const size_t n = strlen(text);
    for (size_t i = 0; i + 1 < n; i++) {
        assert_false(has_heard(client));
        client_send(client, text + i, 1);
        pass(l, ms / (double)(n - 1));
    }
}

/* The time of what drips was over a moment ago: the client hears it as soon as the proxy looks, with no request begun.
 */
static void expect_late(library *l, int client) {
    assert_false(has_heard(client));
    pass(l, 1 + sweep_ms);
    expect_answer(client, 408);
    expect_end(client);
}

/* R27: a head whose last byte comes before its time is over is let in, also when it drips; without that byte it is
 * refused when the time is over: of the first request of a connection and of the third. */
static void R27_heads_have_their_time(void **state) {
    (void)state;
    library l;
    open_library(&l, 8);
    for (int n = 0; n <= 2; n += 2) {
        for (int is_late = 0; is_late < 2; is_late++) {
            int client = connect_after(&l, n);
            if (n) pass(&l, idle_ms - 1); /* the time of a later head begins with it */
            drip(&l, client, GET, head_ms - 1);
            if (is_late) {
                expect_late(&l, client);
                assert_int_equal(atomic_load(&l.entered), 0);
                continue;
            }
            send_text(client, "\n");
            answer(&l, entered(&l));
            expect_answer(client, 200);
            close(client);
        }
    }
    int silent = connect_after(&l, 0);
    pass(&l, head_ms - 1);
    expect_late(&l, silent);
    proxy_close(&l.proxy);
}

/* R27: the same of a body. */
static void R27_bodies_have_their_time(void **state) {
    (void)state;
    static const char *const heads[] = {"POST / HTTP/1.1\r\n" HOST "Content-Length: 20\r\n\r\n",
                                        "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"},
                             *const bodies[] = {"aaaaaaaaaaaaaaaaaaaa", "8;abc\r\naaaaaaaa\r\n0\r\n\r\n"};
    library l;
    open_library(&l, 8);
    for (int i = 0; i < 4; i++) {
        const char *body = bodies[i / 2];
        int client = connect_after(&l, i);
        send_text(client, heads[i / 2]);
        const int fd = entered(&l);
        drip(&l, client, body, body_ms - 1);
        if (i % 2) {
            expect_late(&l, client);
            end_request(&l, fd, false);
            continue;
        }
        send_text(client, body + strlen(body) - 1);
        answer(&l, fd);
        expect_answer(client, 200);
        close(client);
    }
    proxy_close(&l.proxy);
}

/* R27: between requests a connection waits for its time, which begins again with each, and is closed without a word. */
static void R27_idle_connections_have_their_time(void **state) {
    (void)state;
    library l;
    open_library(&l, 8);
    int client = connect_after(&l, 1);
    for (int i = 0; i < 3; i++) {
        pass(&l, idle_ms - 1);
        assert_false(has_heard(client));
        send_text(client, GET);
        answer(&l, entered(&l));
        expect_answer(client, 200);
    }
    pass(&l, idle_ms - 1);
    assert_false(has_heard(client));
    pass(&l, 1 + sweep_ms);
    expect_end(client);
    wait_until(proxy_n_connections(l.proxy) == 0);
    proxy_close(&l.proxy);
}

/* Writes until nobody has room for more. */
static void fill(library *l, int fd) {
    static char block[1 << 16];
    for (int is_full = 0; !is_full;) {
        is_full = send(fd, block, sizeof block, MSG_NOSIGNAL | MSG_DONTWAIT) < 0;
        if (is_full) assert_int_equal(errno, EAGAIN);
        look(l);
    }
}

/* The client reads what has come; whether the library can write again, because the proxy has passed on what waited. */
static bool makes_room(int client, int fd) {
    static char block[1 << 16];
    while (recv(client, block, sizeof block, MSG_DONTWAIT) > 0) {}
    return poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 0) == 1;
}

/* R27: a client that reads nothing is cut off, one that reads now and then is not. */
static void R27_answers_wait_for_readers_for_their_time(void **state) {
    (void)state;
    library l;
    for (int reads = 0; reads < 2; reads++) {
        open_library(&l, 8);
        int client = client_connect(proxy_port(l.proxy));
        send_text(client, GET);
        const int fd = entered(&l);
        client_connection *c = proxy_connection(l.proxy, fd);
        proxy_take(l.proxy, c, &l);
        for (int i = 0; i < 3; i++) {
            fill(&l, fd);
            pass(&l, stall_ms - 1);
            assert_int_equal(atomic_load(&l.n_left), 0);
            if (!reads) break;
            wait_until(makes_room(client, fd));
        }
        pass(&l, 1 + sweep_ms);
        assert_int_equal(atomic_load(&l.n_left), !reads);
        proxy_answered(l.proxy, c, true);
        close(client);
        proxy_release(l.proxy, c, fd);
        close(fd);
        proxy_close(&l.proxy);
    }
}

/* ---- room ---- */

/* Where all connections are taken, the one that is idle for the longest time ends; those with a request do not. */
static void idle_connections_make_room(void **state) {
    (void)state;
    library l;
    open_library(&l, 3);
    int busy = client_connect(proxy_port(l.proxy));
    send_text(busy, GET);
    const int fd = entered(&l);
    int first = connect_after(&l, 1);
    clock_move(1);
    int second = connect_after(&l, 1);
    int third = client_connect(proxy_port(l.proxy)); /* instead of the first */
    expect_end(first);
    int fourth = client_connect(proxy_port(l.proxy)); /* instead of the second */
    expect_end(second);
    int fifth = client_connect(proxy_port(l.proxy)); /* nobody is idle */
    expect_answer(fifth, 503);
    expect_end(fifth);
    answer(&l, fd);
    expect_answer(busy, 200);
    close(busy);
    close(third);
    close(fourth);
    proxy_close(&l.proxy);
}

/* A proxy that drains ends idle connections, and others with their answer. */
static void draining_ends_connections(void **state) {
    (void)state;
    library l;
    open_library(&l, 8);
    int idle = connect_after(&l, 1), busy = connect_after(&l, 1);
    send_text(busy, GET);
    const int fd = entered(&l);
    proxy_drain(l.proxy); /* no time passes */
    expect_end(idle);
    assert_true(proxy_closes(l.proxy, proxy_connection(l.proxy, fd)));
    assert_int_equal(proxy_n_busy(l.proxy), 1);
    answer(&l, fd);
    expect_answer(busy, 200);
    expect_end(busy);
    assert_int_equal(proxy_n_busy(l.proxy), 0);
    proxy_close(&l.proxy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_apart),
        cmocka_unit_test(answers_without_the_body_end_connections),
        cmocka_unit_test(R27_heads_have_their_time),
        cmocka_unit_test(R27_bodies_have_their_time),
        cmocka_unit_test(R27_idle_connections_have_their_time),
        cmocka_unit_test(R27_answers_wait_for_readers_for_their_time),
        cmocka_unit_test(idle_connections_make_room),
        cmocka_unit_test(draining_ends_connections),
    };
    clock_hold();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
