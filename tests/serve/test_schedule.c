/* Who is computed when: clients that leave free their pages within one step and disturb nobody, higher priorities and
 * owners who were served less start first, the oldest request is never preempted.
 * SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "serve.h"
#include "serve/oracle.h"
#include "serve/steps.h"
#include "session/session.h"
#include "support/engine.h"
#include "support/scratch.h"

typedef struct fixture {
    mn_model *model, *other; /* other: computes the answers that are expected */
    server *server;
    int port;
} fixture;

static fixture open_fixture(serve_options options) {
    fixture w = {.model = engine_model("embedded", "auto", "auto", 1),
                 .other = engine_model("embedded", "auto", "auto", 1)};
    options.name = "tiny";
    assert_ok(serve_open(&w.server, w.model, &options));
    w.port = serve_port(w.server);
    steps_begin(w.server);
    return w;
}

static void close_fixture(fixture *w) {
    steps_end();
    serve_close(&w->server, 20000);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
    mn_model_close(&w->other);
}

/* ids of a prompt of n tokens that begins as no other seed's, as a list. */
static void put_ids(bytes *out, int seed, int n) {
    bytes_printf(out, "[1,%d", 20 + seed % 400);
    for (int i = 2; i < n; i++) bytes_printf(out, ",%d", 20 + (seed * 131 + i * i * 17 + i) % 450);
    bytes_append_text(out, "]");
}

static int post(const fixture *w, const char *header, int seed, int n, const char *more) {
    bytes body = {0};
    bytes_append_text(&body, "{\"ids\":");
    put_ids(&body, seed, n);
    bytes_printf(&body, "%s}", more);
    int fd = client_post_with(w->port, "/v1/generate", header, bytes_text(&body));
    bytes_clear(&body);
    return fd;
}

/* The answer has the ids that the library gives alone. */
static void check(const fixture *w, int fd, int seed, int n, const char *fields) {
    bytes list = {0};
    int32_t ids[512];
    json_doc *doc = NULL, *prompt = NULL;
    answer_text a = client_read(fd);
    close(fd);
    if (a.status != 200) fail_msg("%d %s", a.status, a.body.data);
    put_ids(&list, seed, n);
    assert_ok(json_parse(&prompt, list.data, list.n, JSON_STRICT, "ids"));
    size_t n_ids = engine_read_ids(json_root(prompt), ids, 512);
    mn_generation *g = oracle_ids(w->other, ids, n_ids, fields);
    doc = client_json(&a);
    oracle_same(json_get(json_root(doc), "sequences"), 0, g, "the answer");
    mn_generation_close(&g);
    json_close(&doc);
    json_close(&prompt);
    bytes_clear(&list);
    client_clear(&a);
}

static void leave(int fd, bool resets) {
    const struct linger now = {.l_onoff = 1};
    if (resets) setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

/* ---- leaving ---- */

/* Pages that no kept text has are those of requests that are computed. */
static void expect_idle(const fixture *w) {
    const mn_engine_info info = steps_info(w->server);
    bool has_work = true;
    assert_int_equal(info.num_requests_running, 0);
    assert_int_equal(info.num_requests_waiting, 0);
    if (info.cache_bytes != info.kept_bytes)
        fail_msg("%llu bytes are held, %llu kept", (unsigned long long)info.cache_bytes,
                 (unsigned long long)info.kept_bytes);
    assert_ok(mn_engine_wait(scheduler_engine(w->server->scheduler), 0, &has_work));
    assert_false(has_work);
}

#define LEAVER ",\"generation_config\":{\"max_new_tokens\":300,\"do_sample\":false%s},\"stream\":%s"

/* In each stage: waiting, in the middle of its prompt, decoding, and in caches whose texts are kept or are not. */
static void R17_pages_are_free_one_step_after_a_client_left(void **state) {
    (void)state;
    static const char *const modes[] = {"", ",\"penalty_alpha\":0.6,\"top_k\":4", ",\"num_beams\":3"};
    static const char *const stages[] = {"queued", "prompt", "decode", "decode"};
    enum { N_STAGES = 4 };
    const int rounds = test_is_long() ? (TEST_IS_SANITIZED ? 200 : 1000) : 48;
    fixture w = open_fixture((serve_options){.max_num_seqs = 4});
    for (int i = 0; i < rounds; i++) {
        const int stage = i % N_STAGES;
        char more[256];
        snprintf(more, sizeof more, LEAVER, modes[i / N_STAGES % 3], i % 2 ? "true" : "false");
        int fd = post(&w, "", i, stage == 1 ? 400 : 40, more);
        steps_until(w.server, 1, 0);
        for (int k = 0; k < stage * stage; k++) steps_one(w.server); /* 0: it waits; 1: its prompt; 4, 9: it decodes */
        mn_request_info info;
        assert_true(steps_request(w.server, i, &info));
        if (strcmp(info.state, stages[stage]) != 0) fail_msg("request %d: %s, not %s", i, info.state, stages[stage]);
        leave(fd, i % 5 == 0);
        steps_until(w.server, 1, 1);
        steps_one(w.server);
        steps_until(w.server, 0, 0);
        expect_idle(&w);
    }
    close_fixture(&w);
}

/* Eight are computed or wait; some leave or are cancelled at any step, the others' answers are those of single runs. */
static void R19_cancelling_disturbs_nobody(void **state) {
    (void)state;
    enum { N = 8, MOST = 24 };
    static const char fields[] = "{\"max_new_tokens\":24,\"do_sample\":true,\"seed\":5}";
    const int rounds = test_is_long() ? (TEST_IS_SANITIZED ? 500 : 2500) : 8;
    uint64_t seed = 19;
    fixture w = open_fixture((serve_options){.max_num_seqs = 5});
    for (int round = 0; round < rounds; round++) {
        int fds[N], n_left = 0;
        bool has_left[N] = {false};
        char more[128];
        snprintf(more, sizeof more, ",\"generation_config\":%s", fields);
        for (int i = 0; i < N; i++) {
            fds[i] = post(&w, "", round % 7 * N + i / 2, 20 + 9 * i, more);
            steps_until(w.server, (size_t)i + 1, 0);
        }
        while (n_left < N / 2) {
            const int i = (int)(test_random(&seed) % N);
            for (uint64_t k = test_random(&seed) % 3; k > 0; k--) steps_one(w.server);
            if (has_left[i]) continue;
            has_left[i] = true;
            n_left++;
            leave(fds[i], test_random(&seed) % 2);
        }
        for (int k = 0; k < 3 * MOST; k++) steps_one(w.server);
        for (int i = 0; i < N; i++)
            if (!has_left[i]) check(&w, fds[i], round % 7 * N + i / 2, 20 + 9 * i, fields);
        steps_until(w.server, 0, 0);
        expect_idle(&w);
    }
    close_fixture(&w);
}

/* Processor time, so that other programs do not count. */
static void R18_nothing_is_computed_for_nobody(void **state) {
    (void)state;
    const struct timespec pause = {.tv_nsec = 100000000};
    char more[128];
    fixture w = open_fixture((serve_options){.max_num_seqs = 4});
    steps_end();
    snprintf(more, sizeof more, LEAVER, "", "true");
    for (int i = 0; i < 8; i++) leave(post(&w, "", i, 300, more), i % 2);
    nanosleep(&pause, NULL);
    steps_until(w.server, 0, 0);
    const clock_t before = clock();
    for (int i = 0; i < 3; i++) nanosleep(&pause, NULL);
    const double ms = (double)(clock() - before) * 1000 / CLOCKS_PER_SEC;
    if (ms > 30) fail_msg("%.1f ms of processor time in 300 ms", ms);
    steps_begin(w.server);
    expect_idle(&w);
    close_fixture(&w);
}

/* ---- order ---- */

/* Steps until the n requests have ended; order [n]: their numbers as they began. */
static void note_order(const fixture *w, int n, int *order) {
    bool has_begun[64] = {false};
    for (int n_begun = 0, steps = 0; n_begun < n; steps++) {
        assert_true(steps < 2000);
        steps_one(w->server);
        for (int i = 0; i < n; i++) {
            mn_request_info info;
            if (has_begun[i] || !steps_request(w->server, i, &info) || strcmp(info.state, "queued") == 0) continue;
            has_begun[i] = true;
            order[n_begun++] = i;
        }
    }
    for (int i = 0; i < 40; i++) steps_one(w->server);
}

static void higher_priorities_start_first(void **state) {
    (void)state;
    static const int priorities[] = {0, -100, 3, 100, 3, 0}, wanted[] = {3, 2, 4, 0, 5, 1};
    enum { N = 6 };
    int fds[N], order[N];
    static const char fields[] = "{\"max_new_tokens\":6,\"do_sample\":false}";
    fixture w = open_fixture((serve_options){.max_num_seqs = 1});
    for (int i = 0; i < N; i++) {
        char more[128];
        snprintf(more, sizeof more, ",\"priority\":%d,\"generation_config\":%s", priorities[i], fields);
        fds[i] = post(&w, "", i, 30, more);
        steps_until(w.server, (size_t)i + 1, 0);
    }
    note_order(&w, N, order);
    for (int i = 0; i < N; i++) assert_int_equal(order[i], wanted[i]);
    for (int i = 0; i < N; i++) check(&w, fds[i], i, 30, fields);
    close_fixture(&w);
}

#define FIRST_KEY  "first-key-0123456789"
#define SECOND_KEY "second-key-987654321"

/* 20 requests of one key wait when the other's three come: these take turns with them, and start among the first. */
static void R24_a_key_that_floods_keeps_no_other_waiting(void **state) {
    (void)state;
    static const char text[] = FIRST_KEY "\n" SECOND_KEY, first[] = "x-api-key: " FIRST_KEY "\r\n",
                      second[] = "x-api-key: " SECOND_KEY "\r\n";
    static const char fields[] = "{\"max_new_tokens\":6,\"do_sample\":false}";
    enum { FLOOD = 20, N = FLOOD + 3 };
    int fds[N], order[N], last = 0;
    char more[128];
    fixture w = open_fixture(
        (serve_options){.max_num_seqs = 1, .api_key_file = scratch_file("flood-keys", text, sizeof text - 1)});
    snprintf(more, sizeof more, ",\"generation_config\":%s", fields);
    for (int i = 0; i < N; i++) {
        fds[i] = post(&w, i < FLOOD ? first : second, i, 30, more);
        steps_until(w.server, (size_t)i + 1, 0);
    }
    note_order(&w, N, order);
    for (int i = 0; i < N; i++)
        if (order[i] >= FLOOD) last = i;
    if (last > 6) fail_msg("the last one of the other key is the %dth", last + 1);
    for (int i = 0; i < N; i++) check(&w, fds[i], i, 30, fields);
    close_fixture(&w);
}

/* ---- memory ---- */

/* Bytes of a text of so many tokens. */
static uint64_t text_bytes(int n_prompt, const char *more, int n_steps) {
    fixture w = open_fixture((serve_options){.max_num_seqs = 1});
    int fd = post(&w, "", 0, n_prompt, more);
    steps_until(w.server, 1, 0);
    for (int i = 0; i < n_steps; i++) steps_one(w.server);
    const uint64_t held = steps_info(w.server).kept_bytes;
    leave(fd, false);
    close_fixture(&w);
    return held;
}

/* Six requests that want four times the memory there is: those that came last are preempted, and each answer is as if
 * it were alone. */
static void the_oldest_is_never_preempted(void **state) {
    (void)state;
    enum { N = 6, PROMPT = 40, NEW = 200 };
    static const char fields[] = "{\"max_new_tokens\":200,\"do_sample\":true,\"seed\":9,\"eos_token_id\":[]}";
    int fds[N];
    char more[192];
    snprintf(more, sizeof more, ",\"generation_config\":%s", fields);
    const uint64_t limit = text_bytes(PROMPT, more, NEW + 20) * 3 / 2;
    fixture w = open_fixture((serve_options){.max_num_seqs = N, .memory_limit = limit});
    for (int i = 0; i < N; i++) {
        fds[i] = post(&w, "", i, PROMPT, more);
        steps_until(w.server, (size_t)i + 1, 0);
    }
    for (int oldest = 0, steps = 0; oldest < N; steps++) {
        mn_request_info info;
        assert_true(steps < 20 * N * NEW);
        steps_one(w.server);
        while (oldest < N && !steps_request(w.server, oldest, &info)) oldest++;
        if (oldest == 0) assert_int_equal(info.n_preemptions, 0);
        if (oldest < N) assert_string_not_equal(info.state, "queued");
        if (steps_info(w.server).cache_bytes > limit) fail_msg("step %d: over the limit", steps);
    }
    assert_true(steps_info(w.server).n_preemptions > 0);
    for (int i = 0; i < N; i++) check(&w, fds[i], i, PROMPT, fields);
    close_fixture(&w);
}

/* ---- the end ---- */

/* Streams and whole answers are being computed when the server ends: those that fit into the time are finished, the
 * others end as cancelled ones, and no body is cut off. */
static void R42_a_server_that_ends_cuts_no_body_off(void **state) {
    (void)state;
    enum { N = 6 };
    const int rounds = test_is_long() ? 200 : 8;
    for (int round = 0; round < rounds; round++) {
        int fds[N];
        fixture w = open_fixture((serve_options){.max_num_seqs = 4});
        for (int i = 0; i < N; i++) {
            char more[256];
            snprintf(more, sizeof more, LEAVER, "", i % 2 ? "true" : "false");
            fds[i] = post(&w, "", i, 30 + i, more);
            steps_until(w.server, (size_t)i + 1, 0);
        }
        for (int i = 0; i < 1 + round % 7 * 5; i++) steps_one(w.server);
        steps_end();
        serve_close(&w.server, round % 2 ? 20000 : 0);
        for (int i = 0; i < N; i++) {
            answer_text a = client_read(fds[i]);
            close(fds[i]);
            const char *body = a.body.data ? a.body.data : "";
            if (i % 2 && (a.status != 200 || !strstr(body, "data: [DONE]\n\n"))) fail_msg("%d %s", a.status, body);
            if (i % 2 == 0) {
                json_doc *doc = client_json(&a);
                json_close(&doc);
            }
            client_clear(&a);
        }
        assert_int_equal(kv_pool_used(w.model->core->pool), 0);
        mn_model_close(&w.model);
        mn_model_close(&w.other);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(R17_pages_are_free_one_step_after_a_client_left),
        cmocka_unit_test(R18_nothing_is_computed_for_nobody),
        cmocka_unit_test(R19_cancelling_disturbs_nobody),
        cmocka_unit_test(higher_priorities_start_first),
        cmocka_unit_test(R24_a_key_that_floods_keeps_no_other_waiting),
        cmocka_unit_test(the_oldest_is_never_preempted),
        cmocka_unit_test(R42_a_server_that_ends_cuts_no_body_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
