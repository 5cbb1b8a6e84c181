/* The proxy, where the test is the HTTP library: what it gets of a connection, and when a connection is ended. Times
 * are far below those of a server.
 * SPDX-License-Identifier: Apache-2.0 */
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "http/proxy.h"
#include "serve/client.h"
#include "support/budget.h"

#define HOST "Host: localhost\r\n"
#define GET  "GET / HTTP/1.1\r\n" HOST "\r\n"

static const double head_ms = 250, body_ms = 250, idle_ms = 250, stall_ms = 250;
/* How late the proxy may be: it looks ten times a second, and machines are busy. */
static const double late_ms = 300;

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
    for (double end = clock_ms() + 10000;; sched_yield()) {
        const int fd = atomic_exchange(&l->entered, 0);
        if (fd) return fd;
        assert_true(clock_ms() < end);
    }
}

/* The library gets these bytes, and no more for now. */
static void expect_bytes(int fd, const char *text) {
    char got[4096];
    size_t n = 0;
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    while (n < strlen(text) && poll(&ready, 1, 5000) == 1) {
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
        assert_int_equal(poll(&ready, 1, 5000), 1);
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

static void expect_time(double begin, double ms) {
    const double passed = clock_ms() - begin;
    if (passed < ms || passed > ms + late_ms * build_slowness()) fail_msg("%.0f ms, not %.0f", passed, ms);
}

static void wait_ms(double ms) {
    const struct timespec pause = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)((size_t)ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
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

/* Sends a text byte by byte, the last one after ms, unless the proxy has answered by then. The time it took. */
static double drip(int fd, const char *text, double ms) {
    const double begin = clock_ms();
    const size_t n = strlen(text);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    for (size_t i = 0; i < n; i++) {
        const double left = begin + ms * (double)i / (double)(n - 1) - clock_ms();
        if (poll(&ready, 1, left > 0 ? (int)left : 0) != 0) break;
        client_send(fd, text + i, 1);
    }
    return clock_ms() - begin;
}

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

/* What comes within the time is let in; a machine that stops for a while may need another try. */
static void expect_in_time(library *l, int n_requests, const char *before, const char *text, double limit) {
    for (int i = 0; i < 8; i++) {
        int client = connect_after(l, n_requests);
        send_text(client, before);
        if (*before) wait_ms(20);
        const double took = drip(client, text, limit * 0.7);
        if (took < limit * 0.95) {
            answer(l, entered(l));
            expect_answer(client, 200);
            close(client);
            return;
        }
        close(client);
        const int fd = atomic_exchange(&l->entered, 0);
        if (fd) end_request(l, fd, false);
    }
    fail_msg("%s", "the machine is too slow for this test");
}

/* R27: a head that drips for 0.7 of its time is let in, one that drips on is refused when the time is over: of the
 * first request of a connection and of the third. */
static void R27_heads_have_their_time(void **state) {
    (void)state;
    library l;
    open_library(&l, 8);
    for (int n = 0; n <= 2; n += 2) {
        expect_in_time(&l, n, "", GET, head_ms);
        double begin = clock_ms();
        int client = connect_after(&l, n);
        if (n) { /* the time of a later head begins with it */
            wait_ms(idle_ms * 0.5);
            begin = clock_ms();
        }
        drip(client, GET, head_ms * 3);
        expect_time(begin, head_ms);
        expect_answer(client, 408);
        expect_end(client);
        assert_int_equal(atomic_load(&l.entered), 0);
    }
    const double begin = clock_ms();
    int silent = client_connect(proxy_port(l.proxy));
    expect_answer(silent, 408);
    expect_time(begin, head_ms);
    expect_end(silent);
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
    for (int i = 0; i < 2; i++) {
        expect_in_time(&l, i, heads[i], bodies[i], body_ms);
        int client = connect_after(&l, i);
        const double begin = clock_ms();
        send_text(client, heads[i]);
        const int fd = entered(&l);
        drip(client, bodies[i], body_ms * 2);
        expect_time(begin, body_ms);
        expect_answer(client, 408);
        expect_end(client);
        end_request(&l, fd, false);
    }
    proxy_close(&l.proxy);
}

/* R27: between requests a connection waits for its time and is closed without a word. */
static void R27_idle_connections_have_their_time(void **state) {
    (void)state;
    library l;
    open_library(&l, 8);
    int client = connect_after(&l, 1);
    const double begin = clock_ms();
    wait_ms(idle_ms * 0.6);
    send_text(client, GET);
    const double again = clock_ms();
    answer(&l, entered(&l));
    expect_answer(client, 200);
    expect_end(client);
    expect_time(again, idle_ms);
    assert_true(clock_ms() - begin > idle_ms);
    assert_int_equal(proxy_n_connections(l.proxy), 0);
    proxy_close(&l.proxy);
}

/* R27: a client that reads nothing is cut off, one that reads now and then is not. */
static void R27_answers_wait_for_readers_for_their_time(void **state) {
    (void)state;
    static char block[1 << 16];
    library l;
    for (int reads = 0; reads < 2; reads++) {
        open_library(&l, 8);
        int client = client_connect(proxy_port(l.proxy));
        send_text(client, GET);
        const int fd = entered(&l);
        client_connection *c = proxy_connection(l.proxy, fd);
        proxy_take(l.proxy, c, &l);
        const double begin = clock_ms();
        double cut = 0;
        for (double last = begin; cut == 0 && clock_ms() - begin < (reads ? 2 * stall_ms : 10000);) {
            const ssize_t n = send(fd, block, sizeof block, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0 && errno != EAGAIN) cut = clock_ms() - last;
            if (n > 0 && !reads) last = clock_ms();
            for (int i = 0; reads && i < 4; i++) recv(client, block, sizeof block, MSG_DONTWAIT);
            wait_ms(n < 0 ? 10 : 0);
        }
        assert_int_equal(atomic_load(&l.n_left), !reads);
        if (reads)
            assert_true(cut == 0);
        else if (clock_ms() - begin < stall_ms || cut > stall_ms + late_ms * build_slowness())
            fail_msg("cut off after %.0f ms", cut);
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
    wait_ms(20);
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
    const double begin = clock_ms();
    proxy_drain(l.proxy);
    expect_end(idle);
    expect_time(begin, 0);
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
    return cmocka_run_group_tests(tests, NULL, NULL);
}
