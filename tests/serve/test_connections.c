/* Connections of a server: they carry many requests, each held to the same rules as the first; limits hold at their
 * edges; many idle or slow clients cost little and keep nobody waiting; what waits for a client is limited, and without
 * an end where something is missing.
 * SPDX-License-Identifier: Apache-2.0 */
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/un.h>

#include "base/file.h"
#include "http/head.h"
#include "reply.h"
#include "serve.h"
#include "serve/client.h"
#include "serve/heads.h"
#include "serve/steps.h"
#include "server.h"
#include "session/session.h"
#include "support/budget.h"
#include "support/engine.h"
#include "support/hostile/moved_clock.h"
#include "support/scratch.h"

typedef struct fixture {
    mn_model *model;
    server *server;
    int port;
} fixture;

static fixture open_fixture(serve_options options) {
    fixture w = {.model = engine_model("embedded", "auto", "auto", 1)};
    options.name = "tiny";
    assert_ok(serve_open(&w.server, w.model, &options));
    w.port = serve_port(w.server);
    return w;
}

static void close_fixture(fixture *w) {
    serve_close(&w->server, 2000);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
}

#define HEALTH "GET /health HTTP/1.1\r\n" HOST END

static void send_text(int fd, const char *text) {
    client_send(fd, text, strlen(text));
}

/* The next answer of a connection; it has to have this status. *closes: whether it says that it is the last. */
static void expect(int fd, bytes *rest, int status, bool *closes) {
    answer_text a = client_read_next(fd, rest);
    if (a.status != status) fail_msg("%d, not %d: %s", a.status, status, bytes_text(&a.body));
    if (closes) *closes = strstr(bytes_text(&a.head), "Connection: close");
    client_clear(&a);
}

/* The server has closed the connection, and nothing more came. */
static void expect_end(int fd, bytes *rest) {
    char byte;
    assert_int_equal(rest->n, 0);
    assert_int_equal(client_recv(fd, &byte, 1), 0);
    close(fd);
}

/* ---- many requests ---- */

static void a_connection_carries_many_requests(void **state) {
    (void)state;
    static const char post[] =
        "POST /v1/completions HTTP/1.1\r\n" HOST "Content-Type: application/json\r\nContent-Length: 52\r\n\r\n"
        "{\"prompt\":\"Once upon\",\"max_tokens\":3,\"stream\":%s}";
    fixture w = open_fixture((serve_options){0});
    int fd = client_connect(w.port);
    bytes rest = {0};
    bool closes;
    for (int i = 0; i < 40; i++) {
        char text[512];
        snprintf(text, sizeof text, post, i % 4 == 0 ? "true " : "false");
        static const char *const others[] = {HEALTH, "GET /metrics HTTP/1.1\r\n" HOST END,
                                             "GET /nothing HTTP/1.1\r\n" HOST END,
                                             "GET /v1/models?beta=true HTTP/1.1\r\n" HOST "Cookie: a=b; c=d\r\n" END};
        static const int statuses[] = {200, 200, 404, 200};
        send_text(fd, i % 2 ? others[i / 2 % 4] : text);
        expect(fd, &rest, i % 2 ? statuses[i / 2 % 4] : 200, &closes);
        assert_false(closes);
    }
    assert_int_equal(proxy_n_connections(w.server->proxy), 1);
    send_text(fd, "GET /health HTTP/1.1\r\n" HOST "Connection: a, Close\r\n" END);
    expect(fd, &rest, 200, &closes);
    assert_true(closes);
    expect_end(fd, &rest);
    fd = client_connect(w.port);
    send_text(fd, "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    expect(fd, &rest, 200, &closes);
    assert_true(closes);
    expect_end(fd, &rest);
    close_fixture(&w);
}

/* What is sent at once is answered one after the other, in order, with bodies of both kinds between. */
static void pipelined_requests_are_answered_in_order(void **state) {
    (void)state;
    fixture w = open_fixture((serve_options){0});
    bytes all = {0}, rest = {0};
    enum { N = 60 };
    for (int i = 0; i < N; i++) {
        char content[64], body[96];
        snprintf(content, sizeof content, "%.*s", i, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
        snprintf(body, sizeof body, "{\"tokens\":[%d]}", 20 + i);
        bytes_append_text(&all, "POST /detokenize HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n");
        if (i % 3)
            bytes_printf(&all, "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
        else
            bytes_printf(&all, "Transfer-Encoding: chunked\r\n\r\n4;a=\"b\"\r\n%.4s\r\n%zx\r\n%s\r\n0\r\nT: v\r\n\r\n",
                         body, strlen(body) - 4, body + 4);
    }
    int fd = client_connect(w.port);
    client_send(fd, all.data, all.n);
    for (int i = 0; i < N; i++) {
        int32_t id = 20 + i;
        char *text = NULL;
        size_t n = 0;
        assert_ok(mn_detokenize(mn_model_tokenizer(w.model), &id, 1, 0, &text, &n));
        answer_text a = client_read_next(fd, &rest);
        assert_int_equal(a.status, 200);
        json_doc *doc = client_json(&a);
        assert_string_equal(json_get(json_root(doc), "content")->string, text);
        json_close(&doc);
        client_clear(&a);
        mn_free(text);
    }
    assert_int_equal(rest.n, 0);
    close(fd);
    bytes_clear(&all);
    close_fixture(&w);
}

/* A client that leaves while its second answer is computed ends that one, too. */
static void a_client_that_leaves_ends_its_second_request(void **state) {
    (void)state;
    static const char body[] = "{\"prompt\":\"Once\"," CLIENT_ENDLESS "}";
    fixture w = open_fixture((serve_options){.cache = &client_endless_cache});
    bytes rest = {0}, b = {0};
    int fd = client_connect(w.port);
    send_text(fd, HEALTH);
    expect(fd, &rest, 200, NULL);
    bytes_printf(
        &b, "POST /v1/completions HTTP/1.1\r\n" HOST "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
        sizeof body - 1, body);
    client_send(fd, b.data, b.n);
    wait_until(scheduler_jobs(w.server->scheduler) > 0);
    close(fd);
    wait_until(scheduler_jobs(w.server->scheduler) == 0);
    bytes_clear(&b);
    close_fixture(&w);
}

/* ---- what is malformed ---- */

/* R28: also behind a request that was answered, and in one piece with it. */
static void R28_malformed_heads_are_refused_behind_others(void **state) {
    (void)state;
    fixture w = open_fixture((serve_options){0});
    for (int i = 0; i < 2 * N_REFUSED; i++) {
        const sample *s = &refused[i / 2];
        bytes all = {0}, rest = {0};
        bool closes = false;
        int fd = client_connect(w.port);
        bytes_append_text(&all, HEALTH);
        if (i % 2) {
            client_send(fd, all.data, all.n);
            expect(fd, &rest, 200, &closes);
            bytes_clear(&all);
        }
        bytes_append(&all, s->text, s->n);
        bytes_append_text(&all, HEALTH); /* never answered */
        client_send(fd, all.data, all.n);
        if (i % 2 == 0) expect(fd, &rest, 200, &closes);
        assert_false(closes);
        answer_text a = client_read_next(fd, &rest);
        if (a.status != s->status) fail_msg("head %d: %d, not %d", i / 2, a.status, s->status);
        assert_non_null(strstr(bytes_text(&a.head), "Connection: close"));
        json_doc *doc = client_json(&a);
        assert_non_null(json_get(json_get(json_root(doc), "error"), "message"));
        json_close(&doc);
        client_clear(&a);
        expect_end(fd, &rest);
        bytes_clear(&all);
    }
    close_fixture(&w);
}

#define CHUNKED                                                                                                        \
    "POST /tokenize HTTP/1.1\r\n" HOST "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"

/* Bodies in chunks that are none; whatever they hide is no request. */
static const char *const bad_chunks[] = {"FFFFFFFFFFFFFFFF\r\n" HEALTH,
                                         "100000002\r\n{}\r\n0\r\n\r\n",
                                         "\r\n{}\r\n0\r\n\r\n",
                                         "-2\r\n{}\r\n0\r\n\r\n",
                                         "+2\r\n{}\r\n0\r\n\r\n",
                                         "0x2\r\n{}\r\n0\r\n\r\n",
                                         " 2\r\n{}\r\n0\r\n\r\n",
                                         "2 \r\n{}\r\n0\r\n\r\n",
                                         "2\n{}\r\n0\r\n\r\n",
                                         "2\r{}\r\n0\r\n\r\n",
                                         "2\r\n{}0\r\n\r\n",
                                         "2\r\n{}\n0\r\n\r\n",
                                         "2\r\n{} \r\n0\r\n\r\n",
                                         "3\r\n{}\r\n0\r\n\r\n",
                                         "2;\001\r\n{}\r\n0\r\n\r\n",
                                         "2;a\n{}\r\n0\r\n\r\n",
                                         "2\r\n{}\r\n0\r\n" HEALTH "x",
                                         "2\r\n{}\r\n0\r\nA : b\r\n\r\n",
                                         "2\r\n{}\r\n0\r\n b\r\n\r\n",
                                         "2\r\n{}\r\n0\r\nA: b\n\r\n",
                                         "2\r\n{}\r\n0\r\nA: \177\r\n\r\n",
                                         "2\r\n{}\r\n0\r\n\r" HEALTH,
                                         "2\r\n{}\r\ng\r\n\r\n",
                                         "2\r\n{}\r\n0\n\r\n"};

static void R28_malformed_chunks_are_refused(void **state) {
    (void)state;
    fixture w = open_fixture((serve_options){0});
    for (size_t i = 0; i < 2 * sizeof bad_chunks / sizeof *bad_chunks; i++) {
        bytes rest = {0};
        int fd = client_connect(w.port);
        send_text(fd, HEALTH CHUNKED);
        if (i % 2) expect(fd, &rest, 200, NULL);
        send_text(fd, bad_chunks[i / 2]);
        send_text(fd, HEALTH);
        if (i % 2 == 0) expect(fd, &rest, 200, NULL);
        answer_text a = client_read_next(fd, &rest);
        if (a.status != 400) fail_msg("chunks %zu: %d", i / 2, a.status);
        json_doc *doc = client_json(&a);
        assert_non_null(json_get(json_get(json_root(doc), "error"), "message"));
        json_close(&doc);
        client_clear(&a);
        expect_end(fd, &rest);
    }
    close_fixture(&w);
}

/* What the HTTP library cannot hold, or would answer in a form of its own. */
static void the_librarys_limits_are_not_reached(void **state) {
    (void)state;
    fixture w = open_fixture((serve_options){0});
    for (int i = 0; i < 4; i++) {
        bytes b = {0};
        bytes_append_text(&b, "GET /health");
        if (i != 1) bytes_append_text(&b, "?");
        while (i != 1 && b.n < HEAD_MOST_LINE - 10) bytes_append_text(&b, "&");
        bytes_append_text(&b, " HTTP/1.1\r\n" HOST);
        for (int k = 0; i == 2 && k < HEAD_MOST_FIELDS - 2; k++) bytes_printf(&b, "A%d: %0200d\r\n", k, 0);
        bytes_append_text(&b, "Cookie: ");
        while (i > 0 && b.n < HEAD_MOST_BYTES - 10) bytes_append_text(&b, i == 1 ? ";" : "a=b;");
        bytes_append_text(&b, "\r\n\r\n");
        answer_text a = {0};
        int fd = client_connect(w.port);
        client_send(fd, b.data, b.n);
        a = client_read(fd);
        if (a.status != 200) fail_msg("head %d: %d", i, a.status);
        close(fd);
        client_clear(&a);
        bytes_clear(&b);
    }
    close_fixture(&w);
}

/* ---- limits ---- */

static int status_of(int port, const bytes *request) {
    int fd = client_connect(port);
    client_send(fd, request->data, request->n);
    answer_text a = client_read(fd);
    close(fd);
    json_doc *doc = client_json(&a);
    if (a.status >= 400) assert_true(json_get(json_get(json_root(doc), "error"), "message")->n > 10);
    json_close(&doc);
    client_clear(&a);
    return a.status;
}

static void fill(bytes *b, size_t n) {
    static char block[1 << 16];
    memset(block, 'a', sizeof block);
    while (b->n < n) bytes_append(b, block, n - b->n < sizeof block ? n - b->n : sizeof block);
}

/* R27: each limit of sizes at its edge and one byte, or field, beyond. */
static void R27_sizes_are_limited(void **state) {
    (void)state;
    fixture w = open_fixture((serve_options){0});
    for (int over = 0; over < 2; over++) {
        bytes b = {0};
        bytes_append_text(&b, "GET /health?");
        fill(&b, (size_t)(HEAD_MOST_LINE - 9 + over));
        bytes_append_text(&b, " HTTP/1.1\r\n" HOST END);
        assert_int_equal(status_of(w.port, &b), over ? 414 : 200);
        bytes_clear(&b);
        bytes_append_text(&b, "GET /");
        fill(&b, (size_t)(HEAD_MOST_LINE - 9 + over));
        bytes_append_text(&b, " HTTP/1.1\r\n" HOST END);
        assert_int_equal(status_of(w.port, &b), over ? 414 : 404);
        bytes_clear(&b);
        bytes_append_text(&b, "GET /health HTTP/1.1\r\n" HOST "A: ");
        fill(&b, (size_t)(HEAD_MOST_BYTES - 4 + over));
        bytes_append_text(&b, "\r\n" END);
        assert_int_equal(status_of(w.port, &b), over ? 431 : 200);
        bytes_clear(&b);
        bytes_append_text(&b, "GET /health HTTP/1.1\r\n" HOST);
        for (int i = 0; i < HEAD_MOST_FIELDS - 1 + over; i++) bytes_append_text(&b, "A: b\r\n");
        bytes_append_text(&b, END);
        assert_int_equal(status_of(w.port, &b), over ? 431 : 200);
        bytes_clear(&b);
        for (int chunked = 0; chunked < 2; chunked++) {
            bytes body = {0};
            bytes_append_text(&body, "{\"model\":1,\"x\":\"");
            fill(&body, (size_t)(MOST_BODY - 2 + over));
            bytes_append_text(&body, "\"}");
            bytes_append_text(&b, "POST /v1/completions HTTP/1.1\r\n" HOST "Content-Type: application/json\r\n");
            if (chunked)
                bytes_printf(&b, "Transfer-Encoding: chunked\r\n\r\n%zx\r\n", body.n);
            else
                bytes_printf(&b, "Content-Length: %zu\r\n\r\n", body.n);
            bytes_append(&b, body.data, body.n);
            if (chunked) bytes_append_text(&b, "\r\n0\r\n\r\n");
            assert_int_equal(status_of(w.port, &b), over ? 413 : 400); /* 400: read, and 'model' is no string */
            bytes_clear(&b);
            bytes_clear(&body);
        }
    }
    close_fixture(&w);
}

/* ---- many clients ---- */

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { N_TIMES = 41 };

static double median(double times[N_TIMES]) {
    qsort(times, N_TIMES, sizeof *times, by_size);
    return times[N_TIMES / 2];
}

static atomic_int n_blocked; /* calls of health_answer that are to wait for health_goes */
static sem_t health_waits, health_goes;

mn_status __real_health_answer(bytes *out, server *s, const json *body, refusal *why);
mn_status __wrap_health_answer(bytes *out, server *s, const json *body, refusal *why);

mn_status __wrap_health_answer(bytes *out, server *s, const json *body, refusal *why) {
    if (atomic_exchange(&n_blocked, 0)) {
        sem_post(&health_waits);
        sem_wait(&health_goes);
    }
    return __real_health_answer(out, s, body, why);
}

/* However many requests come while the library's thread is busy, all of them are answered. With epoll, libmicrohttpd
 * reads 128 events at a time; after exactly so many it waits for others before it looks at them. */
static void bursts_are_answered(void **state) {
    (void)state;
    enum { READS = 128, MOST = READS + 3 };
    static int fds[MOST];
    assert_int_equal(sem_init(&health_waits, 0, 0) | sem_init(&health_goes, 0, 0), 0);
    fixture w = open_fixture((serve_options){0});
    for (int n = READS - 3; n <= MOST; n++) {
        atomic_store(&n_blocked, 1);
        int first = client_begin(w.port, "GET", "/health", "");
        while (sem_wait(&health_waits) != 0) {}
        for (int i = 0; i < n; i++) fds[i] = client_begin(w.port, "GET", "/health", "");
        wait_until(proxy_n_busy(w.server->proxy) == (size_t)n + 1);
        sem_post(&health_goes);
        for (int i = -1; i < n; i++) {
            const int fd = i < 0 ? first : fds[i];
            answer_text a = client_read(fd);
            if (a.status != 200) fail_msg("request %d of %d beside one: %d", i + 1, n, a.status);
            client_clear(&a);
            close(fd);
        }
        wait_until(proxy_n_connections(w.server->proxy) == 0);
    }
    close_fixture(&w);
    sem_destroy(&health_waits);
    sem_destroy(&health_goes);
}

/* What answers cost while others are connected: processor time of the whole process, client included, in the median;
 * in the long tier also wall time. */
typedef struct costs {
    double busy[N_TIMES], wall[N_TIMES], begun[2];
} costs;

static void cost_begin(costs *c) {
    c->begun[0] = process_seconds();
    c->begun[1] = test_is_long() ? wall_ms() : 0;
}

static void cost_end(costs *c, int i) {
    c->busy[i] = process_seconds() - c->begun[0];
    c->wall[i] = test_is_long() ? wall_ms() - c->begun[1] : 0;
}

static void check_costs(costs *c, double needed_seconds, double most_wall_ms, const char *what) {
    const double busy = median(c->busy), wall = median(c->wall);
    if (test_is_long()) print_message("%s: %.3f ms of the processor, %.3f ms\n", what, 1e3 * busy, wall);
    if (busy > seconds_allowed(needed_seconds)) fail_msg("%s takes %.3f ms of the processor", what, 1e3 * busy);
    if (wall > most_wall_ms * build_slowness()) fail_msg("%s takes %.3f ms", what, wall);
}

/* Answers to GET /health, each of a new connection. */
static void check_health(int port) {
    costs c;
    for (int i = 0; i < N_TIMES; i++) {
        cost_begin(&c);
        answer_text a = client_get(port, "/health");
        cost_end(&c, i);
        assert_int_equal(a.status, 200);
        client_clear(&a);
    }
    check_costs(&c, 0.0002, 50, "an answer");
}

static double resident_bytes(void) {
    bytes text = {0};
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    bytes_clear(&text);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

/* Descriptors: of clients in this process, and of the server. */
static void allow_descriptors(size_t n) {
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_cur >= n) return;
    files.rlim_cur = n;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
}

/* R29: clients whose heads and bodies drip are cut off on time, and others are answered meanwhile, while no time
 * passes: they do not wait for the others' time to end. */
static void R29_slow_clients_keep_nobody_waiting(void **state) {
    (void)state;
    enum { N = 500, ROUNDS = 8, SWEEP_MS = 100 };
    static const char start[] =
        "POST /tokenize HTTP/1.1\r\n" HOST "Content-Type: application/json\r\nContent-Length: 999\r\n\r\n";
    static const int limits[] = {HEAD_MS, BODY_MS};
    int fds[N];
    allow_descriptors(6000);
    fixture w = open_fixture((serve_options){0});
    clock_hold();
    for (int i = 0; i < N; i++) {
        fds[i] = client_connect(w.port);
        if (i % 2) send_text(fds[i], start);
    }
    for (int k = 0; k < ROUNDS; k++) {
        for (int i = 0; i < N; i++) client_send(fds[i], i % 2 ? " " : start + k, 1);
        check_health(w.port);
        clock_move(k ? 1000 : 0);
    }
    for (int kind = 0, passed = 1000 * (ROUNDS - 1); kind < 2; passed = limits[kind++] + SWEEP_MS) {
        clock_move(limits[kind] - 1 - passed);
        check_health(w.port);
        struct pollfd ended = {.fd = fds[kind], .events = POLLIN};
        assert_int_equal(poll(&ended, 1, 0), 0);
        clock_move(1 + SWEEP_MS);
        for (int i = kind; i < N; i += 2) {
            answer_text a = client_read(fds[i]);
            if (a.status != 408) fail_msg("client %d: %d", i, a.status);
            client_clear(&a);
        }
    }
    clock_run();
    for (int i = 0; i < N; i++) close(fds[i]);
    close_fixture(&w);
}

/* R33: what a connection costs while it waits for its next request, and who else is answered. When all connections are
 * taken, idle ones make room. */
static void R33_idle_connections_are_small(void **state) {
    (void)state;
    enum { N = MAX_CONNECTIONS, MANY = 1000 };
    static int fds[N];
    allow_descriptors(8000);
    fixture w = open_fixture((serve_options){0});
    check_health(w.port); /* what the first requests take */
    bytes rest = {0};
    const double before = resident_bytes();
    for (int i = 0; i < MANY; i++) {
        fds[i] = client_connect(w.port);
        send_text(fds[i], HEALTH);
        expect(fds[i], &rest, 200, NULL);
    }
    const double each = (resident_bytes() - before) / MANY;
    if (build_slowness() == 1 && each > 4096) fail_msg("an idle connection takes %.0f bytes", each);
    assert_true(proxy_n_connections(w.server->proxy) >= MANY);
    check_health(w.port);
    for (int i = 0; i < MANY; i += 9) {
        send_text(fds[i], HEALTH);
        expect(fds[i], &rest, 200, NULL);
    }
    for (int i = MANY; i < N; i++) {
        fds[i] = client_connect(w.port);
        send_text(fds[i], HEALTH);
        expect(fds[i], &rest, 200, NULL);
    }
    answer_text a = client_get(w.port, "/health");
    assert_int_equal(a.status, 200);
    client_clear(&a);
    struct pollfd oldest = {.fd = fds[1], .events = POLLIN};
    assert_int_equal(poll(&oldest, 1, PATIENCE_MS), 1);
    for (int i = 0; i < N; i++) close(fds[i]);
    close_fixture(&w);
}

/* R33: streams of a thousand clients, all there at once, are whole and right. */
static void R33_a_thousand_streams_are_right(void **state) {
    (void)state;
    const int n = test_is_long() ? 1000 : 100;
    static const char body[] = "{\"prompt\":\"Once upon a time\",\"max_tokens\":8,\"temperature\":0,\"stream\":true}";
    static int fds[1000];
    static double heads[1000];
    allow_descriptors(8000);
    fixture w = open_fixture((serve_options){.max_queue = 1000, .max_num_seqs = 64});
    bytes wanted = {0};
    for (int i = 0; i < n; i++) {
        fds[i] = client_post(w.port, "/v1/completions", body);
        const double begin = test_is_long() ? wall_ms() : 0;
        struct pollfd head = {.fd = fds[i], .events = POLLIN};
        assert_int_equal(poll(&head, 1, PATIENCE_MS), 1);
        heads[i] = test_is_long() ? wall_ms() - begin : 0;
    }
    for (int i = 0; i < n; i++) {
        answer_text a = client_read(fds[i]);
        close(fds[i]);
        assert_int_equal(a.status, 200);
        bytes text = {0};
        for (const char *at = bytes_text(&a.body); (at = strstr(at, "\"text\":\"")); at += 8)
            bytes_append(&text, at + 8, strcspn(at + 8, "\""));
        assert_non_null(strstr(bytes_text(&a.body), "data: [DONE]\n\n"));
        if (i == 0) bytes_append(&wanted, text.data, text.n);
        assert_string_equal(bytes_text(&text), bytes_text(&wanted));
        bytes_clear(&text);
        client_clear(&a);
    }
    assert_true(wanted.n > 8);
    qsort(heads, (size_t)n, sizeof *heads, by_size);
    const double p99 = heads[n * 99 / 100 - 1];
    if (p99 > 100 * build_slowness()) fail_msg("the 99th percentile to the head is %.1f ms", p99);
    bytes_clear(&wanted);
    close_fixture(&w);
}

/* A full queue is said at once, between two steps: on a new connection, and on one that is kept. */
static void R33_a_full_queue_is_reported_within_5_ms(void **state) {
    (void)state;
    static const char body[] = "{\"prompt\":\"The\",\"max_tokens\":2}";
    costs c;
    bytes rest = {0}, b = {0};
    fixture w = open_fixture((serve_options){.max_queue = 1, .cache = &client_endless_cache});
    steps_begin(w.server);
    int busy = client_post(w.port, "/v1/completions", "{\"prompt\":\"Once\"," CLIENT_ENDLESS "}");
    steps_until(w.server, 1, 0);
    bytes_printf(
        &b, "POST /v1/completions HTTP/1.1\r\n" HOST "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
        sizeof body - 1, body);
    for (int kept = 0; kept < 2; kept++) {
        int fd = client_connect(w.port);
        for (int i = 0; i < N_TIMES; i++) {
            cost_begin(&c);
            if (!kept) {
                close(fd);
                fd = client_connect(w.port);
            }
            client_send(fd, b.data, b.n);
            answer_text a = client_read_next(fd, &rest);
            cost_end(&c, i);
            assert_int_equal(a.status, 429);
            assert_non_null(strstr(bytes_text(&a.head), "Retry-After: 1"));
            client_clear(&a);
        }
        check_costs(&c, 0.0002, 5, "a refusal");
        close(fd);
    }
    close(busy);
    steps_end();
    bytes_clear(&b);
    close_fixture(&w);
}

/* ---- addresses ---- */

/* Other machines may connect with a key, or when that is said; then by an address, which no name of a page can be
 * pointed to. */
static void other_addresses_have_to_be_allowed(void **state) {
    (void)state;
    static const struct {
        const char *host;
        int status;
    } of[] = {{"localhost", 200},    {"127.0.0.1:80", 200},   {"192.168.1.5:8080", 200},        {"[fe80::1]:8080", 200},
              {"evil.example", 403}, {"1.evil.example", 403}, {"192.168.1.5.evil.example", 403}};
    server *s = NULL;
    mn_model *model = engine_model("embedded", "auto", "auto", 1);
    serve_options options = {.name = "tiny", .host = "0.0.0.0"};
    assert_fails(MN_E_ARG, "with --allow-remote any", serve_open(&s, model, &options));
    options.allow_remote = true;
    assert_ok(serve_open(&s, model, &options));
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        bytes b = {0};
        bytes_printf(&b, "GET /health HTTP/1.1\r\nHost: %s\r\n\r\n", of[i].host);
        const int status = status_of(serve_port(s), &b);
        if (status != of[i].status) fail_msg("%s: %d", of[i].host, status);
        bytes_clear(&b);
    }
    serve_close(&s, 0);
    mn_model_close(&model);
}

/* The socket of a server that was killed is replaced, that of one that runs is not, nor is a file. */
static void sockets_of_others_stay(void **state) {
    (void)state;
    char path[1024];
    snprintf(path, sizeof path, "%s", scratch_path("socket"));
    const serve_options options = {.name = "tiny", .unix_path = path};
    fixture w = open_fixture(options);
    server *other = NULL;
    assert_fails(MN_E_ARG, "another program does", serve_open(&other, w.model, &options));
    assert_null(other);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strnlen(path, sizeof address.sun_path - 1));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    close_fixture(&w);

    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    w = open_fixture(options);
    close_fixture(&w);

    scratch_file("socket", "text", 4);
    w.model = engine_model("embedded", "auto", "auto", 1);
    assert_int_equal(serve_open(&other, w.model, &options), MN_E_ARG);
    mn_model_close(&w.model);
    assert_int_equal(unlink(path), 0);
}

/* ---- the bytes of an answer that wait for its client ---- */

static bool put_zeros(reply *r, size_t n) {
    bytes text = {0};
    char *zeros = mem_alloc(n, 1);
    bytes_append(&text, zeros, n);
    mem_free(zeros);
    bool fits = reply_put(r, &text);
    assert_int_equal(text.n, 0);
    return fits;
}

static void end_reply(reply *r) {
    bytes text = {0};
    bytes_append_text(&text, "end");
    reply_end(r, 200, &text);
    assert_int_equal(text.n, 0);
}

static void what_fits_has_its_end(void **state) {
    (void)state;
    reply *r = reply_open(true, NULL, NULL);
    assert_true(put_zeros(r, MOST_WAITING - 1));
    assert_true(put_zeros(r, 1));
    r->sent = 1; /* the client has read a byte */
    assert_true(put_zeros(r, 1));
    end_reply(r);
    assert_true(r->is_ended && !r->is_cut);
    assert_memory_equal(r->out.data + r->out.n - 3, "end", 3);
    reply_release(r);
}

static void behind_a_gap_nothing_comes(void **state) {
    (void)state;
    reply *r = reply_open(true, NULL, NULL);
    assert_true(put_zeros(r, MOST_WAITING));
    assert_false(put_zeros(r, 1));
    r->sent = MOST_WAITING; /* the client has read all there is */
    assert_false(put_zeros(r, 1));
    end_reply(r);
    assert_true(r->is_ended && r->is_cut);
    assert_int_equal(r->out.n, MOST_WAITING);
    reply_release(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_carries_many_requests),
        cmocka_unit_test(pipelined_requests_are_answered_in_order),
        cmocka_unit_test(a_client_that_leaves_ends_its_second_request),
        cmocka_unit_test(R28_malformed_heads_are_refused_behind_others),
        cmocka_unit_test(R28_malformed_chunks_are_refused),
        cmocka_unit_test(the_librarys_limits_are_not_reached),
        cmocka_unit_test(R27_sizes_are_limited),
        cmocka_unit_test(bursts_are_answered),
        cmocka_unit_test(R29_slow_clients_keep_nobody_waiting),
        cmocka_unit_test(R33_idle_connections_are_small),
        cmocka_unit_test(R33_a_thousand_streams_are_right),
        cmocka_unit_test(R33_a_full_queue_is_reported_within_5_ms),
        cmocka_unit_test(other_addresses_have_to_be_allowed),
        cmocka_unit_test(sockets_of_others_stay),
        cmocka_unit_test(what_fits_has_its_end),
        cmocka_unit_test(behind_a_gap_nothing_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
