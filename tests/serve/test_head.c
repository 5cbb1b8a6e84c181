/* Heads of requests: what RFC 9112 forbids is refused, however it arrives; what it allows is let in.
 * SPDX-License-Identifier: Apache-2.0 */
#include "http/body.h"
#include "http/head.h"
#include "serve/heads.h"
#include "support/support.h"

/* Whole, and with every number of bytes that may have come: it is refused once and stays so. */
static void what_is_forbidden_is_refused(void **state) {
    (void)state;
    assert_true(N_REFUSED >= 120);
    for (size_t i = 0; i < N_REFUSED; i++) {
        const sample *s = &refused[i];
        int before = 0;
        for (size_t n = 0; n <= s->n; n++) {
            http_head h = head_check(s->text, n);
            if (h.status != 0 && h.status != s->status) fail_msg("refusal %zu: %d for %zu bytes", i, h.status, n);
            if (before != 0) assert_int_equal(h.status, before);
            before = h.status;
            if (h.status != 0) assert_true(h.problem && strlen(h.problem) > 10);
        }
        if (before != s->status) fail_msg("refusal %zu: %d, not %d", i, before, s->status);
    }
}

static void what_is_allowed_is_let_in(void **state) {
    (void)state;
    for (size_t i = 0; i < N_RIGHT; i++) {
        const sample *s = &right[i];
        for (size_t n = 0; n < s->n; n++) assert_int_equal(head_check(s->text, n).status, 0);
        http_head h = head_check(s->text, s->n);
        if (h.status != 200) fail_msg("head %zu: %d, %s", i, h.status, h.problem);
        assert_int_equal(h.n, s->n);
        char more[512]; /* the body belongs to it no longer */
        memcpy(more, s->text, s->n);
        memcpy(more + s->n, "\n\0\r", 3);
        h = head_check(more, s->n + 3);
        assert_int_equal(h.status, 200);
        assert_int_equal(h.n, s->n);
    }
    static const char text[] = LINE HOST "Content-Length: 1234\r\n" END;
    http_head h = head_check(text, sizeof text - 1);
    assert_true(h.has_length && !h.is_chunked);
    assert_int_equal(h.length, 1234);
}

/* Each limit, and one beyond. */
static void limits(void **state) {
    (void)state;
    bytes b = {0};
    for (int over = 0; over < 2; over++) {
        bytes_append_text(&b, "GET /");
        for (int i = 0; i < HEAD_MOST_LINE - 5 - 9 + over; i++) bytes_append_text(&b, "a");
        bytes_append_text(&b, " HTTP/1.1\r\n" HOST END);
        assert_int_equal(head_check(b.data, b.n).status, over ? 414 : 200);
        bytes_clear(&b);
        bytes_append_text(&b, LINE HOST "A: ");
        while (b.n < (size_t)HEAD_MOST_BYTES - 4 + (size_t)over) bytes_append_text(&b, "a");
        bytes_append_text(&b, "\r\n" END);
        assert_int_equal(head_check(b.data, b.n).status, over ? 431 : 200);
        bytes_clear(&b);
        bytes_append_text(&b, LINE HOST);
        for (int i = 0; i < HEAD_MOST_FIELDS - 1 + over; i++) bytes_append_text(&b, "A: b\r\n");
        bytes_append_text(&b, END);
        assert_int_equal(head_check(b.data, b.n).status, over ? 431 : 200);
        bytes_clear(&b);
    }
    /* Without an end, too. */
    for (int i = 0; i < HEAD_MOST_LINE + 1; i++) bytes_append_text(&b, "G");
    assert_int_equal(head_check(b.data, b.n).status, 414);
    bytes_clear(&b);
}

/* Whether the request is the connection's last one. */
static void connections_are_kept_or_closed(void **state) {
    (void)state;
    static const struct {
        bool closes;
        const char *text;
    } of[] = {{false, "GET / HTTP/1.1\r\n" HOST END},
              {false, "GET / HTTP/1.1\r\n" HOST "Connection: keep-alive\r\n" END},
              {false, "GET / HTTP/1.1\r\n" HOST "Connection: closed, a close\r\nClose: close\r\n" END},
              {true, "GET / HTTP/1.1\r\n" HOST "Connection: close\r\n" END},
              {true, "GET / HTTP/1.1\r\n" HOST "connection: Keep-Alive,\t CLOSE \r\n" END},
              {true, "GET / HTTP/1.1\r\n" HOST "Connection: close\r\nConnection: keep-alive\r\n" END},
              {true, "GET / HTTP/1.0\r\n" HOST "Connection: keep-alive\r\n" END}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        http_head h = head_check(of[i].text, strlen(of[i].text));
        assert_int_equal(h.status, 200);
        if (h.closes != of[i].closes) fail_msg("head %zu: %d", i, h.closes);
    }
}

static void parameters_and_cookies_are_left_out(void **state) {
    (void)state;
    static const char *const of[][2] = {
        {"GET /a HTTP/1.1\r\n" HOST END, "GET /a HTTP/1.1\r\n" HOST END},
        {"GET /a? HTTP/1.1\r\n" HOST END, "GET /a HTTP/1.1\r\n" HOST END},
        {"GET /a?b=c?d&e HTTP/1.1\r\n" HOST "A: b?c d\r\n" END, "GET /a HTTP/1.1\r\n" HOST "A: b?c d\r\n" END},
        {"GET / HTTP/1.1\r\ncookie:a\r\n" HOST "Cookie: b; c\r\nCookies: d\r\nA: Cookie: e\r\n" END,
         "GET / HTTP/1.1\r\n" HOST "Cookies: d\r\nA: Cookie: e\r\n" END},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char text[256];
        snprintf(text, sizeof text, "%s", of[i][0]);
        text[head_shorten(text, strlen(text))] = 0;
        assert_string_equal(text, of[i][1]);
    }
}

/* In pieces of any size, and with other bytes behind it. */
static void bodies_end_where_they_say(void **state) {
    (void)state;
    static const struct {
        const char *head, *text;
    } of[] = {{"Content-Length: 0\r\n", ""},
              {"", ""},
              {"Content-Length: 5\r\n", "0\r\n\r\n"},
              {"Transfer-Encoding: chunked\r\n", "0\r\n\r\n"},
              {"Transfer-Encoding: chunked\r\n", "00000000;a=b\r\nA: b\r\nC:\r\n\r\n"},
              {"Transfer-Encoding: chunked\r\n", "5\r\n0\r\n\r\n\r\n0a;;\t\"\xc3\xa9\"\r\n0123456789\r\n0\r\n\r\n"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char text[256];
        snprintf(text, sizeof text, "POST / HTTP/1.1\r\n" HOST "%s\r\n", of[i].head);
        const http_head h = head_check(text, strlen(text));
        assert_int_equal(h.status, 200);
        const size_t n = strlen(of[i].text);
        snprintf(text, sizeof text, "%s0\r\n\r\n", of[i].text);
        for (size_t piece = 1; piece <= n + 5; piece++) {
            body b = body_begin(&h);
            size_t taken = 0;
            for (size_t at = 0; at < n + 5; at += piece)
                taken += body_take(&b, text + at, n + 5 - at < piece ? n + 5 - at : piece);
            assert_true(b.is_over && !b.problem);
            assert_int_equal(taken, n);
        }
    }
}

static void limits_of_bodies(void **state) {
    (void)state;
    static const struct {
        const char *before, *behind;
        int most;
        const char *problem;
    } of[] = {{"", "\r\n\r\n", BODY_MOST_DIGITS, "more than 8 digits"},
              {"0;", "\r\n\r\n", BODY_MOST_EXTENSION, "longer than 256 bytes"},
              {"0\r\nA:", "\r\n\r\n", BODY_MOST_TRAILER - 4, "longer than 1024 bytes"}};
    const http_head h = {.is_chunked = true};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        for (int over = 0; over < 2; over++) {
            bytes text = {0};
            body b = body_begin(&h);
            bytes_append_text(&text, of[i].before);
            for (int k = 0; k < of[i].most + over; k++) bytes_append_text(&text, "0");
            bytes_append_text(&text, of[i].behind);
            const size_t taken = body_take(&b, text.data, text.n);
            if (over)
                assert_non_null(strstr(b.problem, of[i].problem));
            else
                assert_true(b.is_over && !b.problem && taken == text.n);
            bytes_clear(&text);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_forbidden_is_refused),
        cmocka_unit_test(what_is_allowed_is_let_in),
        cmocka_unit_test(limits),
        cmocka_unit_test(connections_are_kept_or_closed),
        cmocka_unit_test(parameters_and_cookies_are_left_out),
        cmocka_unit_test(bodies_end_where_they_say),
        cmocka_unit_test(limits_of_bodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
