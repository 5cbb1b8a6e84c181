/* A server and its clients: answers are those of the library, what is malformed is refused with a sentence, a client
 * that leaves frees its pages, and what was computed once is not computed again.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "request/fields.h"
#include "routes.h"
#include "serve.h"
#include "serve/client.h"
#include "serve/heads.h"
#include "session/session.h"
#include "support/engine.h"
#include "support/hostile/moved_clock.h"
#include "support/scratch.h"

typedef struct fixture {
    mn_model *model;
    server *server;
    int port;
} fixture;

static fixture open_fixture(size_t max_queue, const mn_cache_options *cache) {
    fixture w = {.model = engine_model("embedded", "auto", "auto", 2)};
    const serve_options options = {.name = "tiny", .cache = cache, .max_queue = max_queue, .max_num_seqs = 16};
    assert_ok(serve_open(&w.server, w.model, &options));
    w.port = serve_port(w.server);
    return w;
}

static void close_fixture(fixture *w) {
    serve_close(&w->server, 2000);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
}

/* What the library says. */
static char *alone(const fixture *w, const char *prompt, const char *max_new_tokens) {
    mn_generation_config *config = NULL;
    mn_generation *g = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    assert_ok(mn_generation_config_open(&config, w->model));
    assert_ok(mn_generation_config_set(config, "do_sample", "false"));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", max_new_tokens));
    assert_ok(mn_tokenize(mn_model_tokenizer(w->model), prompt, strlen(prompt), MN_ADD_SPECIAL, &ids, &n));
    mn_session *session = engine_session(w->model, (engine_cache){.implementation = "dynamic"});
    assert_ok(mn_generate(session, ids, n, config, NULL, &g));
    char *text = mem_copy_text(g->sequences[0]->text, g->sequences[0]->n_text);
    mn_generation_close(&g);
    mn_session_close(&session);
    mn_generation_config_close(&config);
    mn_free(ids);
    return text;
}

/* ---- answers ---- */

static int64_t cached_tokens(const json *root) {
    const json *details = json_get(json_get(root, "usage"), "prompt_tokens_details");
    return json_get(details, "cached_tokens")->integer;
}

static void answers_are_the_librarys(void **state) {
    (void)state;
    fixture w = open_fixture(0, NULL);
    char *wanted = alone(&w, "Once upon a time", "24");
    for (int i = 0; i < 2; i++) {
        answer_text a = client_ask(w.port, "/v1/completions",
                                   "{\"prompt\":\"Once upon a time\",\"max_tokens\":24,\"temperature\":0}");
        assert_int_equal(a.status, 200);
        json_doc *doc = client_json(&a);
        const json *root = json_root(doc), *choice = &json_get(root, "choices")->items[0];
        assert_string_equal(json_get(choice, "text")->string, wanted);
        assert_string_equal(json_get(choice, "finish_reason")->string, "length");
        int64_t n_prompt = json_get(json_get(root, "usage"), "prompt_tokens")->integer;
        assert_int_equal(cached_tokens(root), i == 0 ? 0 : n_prompt - 1);
        assert_int_equal(json_get(json_get(root, "usage"), "completion_tokens")->integer, 24);
        json_close(&doc);
        client_clear(&a);
    }
    mem_free(wanted);
    close_fixture(&w);
}

/* The pieces of a stream, joined; *n_events: how many objects came. */
static char *join_stream(const answer_text *a, int *n_events, bool *is_done, int64_t *cached) {
    bytes text = {0};
    *is_done = false;
    *cached = -1;
    *n_events = 0;
    for (const char *at = a->body.data; at && *at;) {
        const char *end = strstr(at, "\n\n");
        assert_non_null(end);
        assert_false(*is_done);
        assert_memory_equal(at, "data: ", 6);
        if (strncmp(at + 6, "[DONE]", 6) == 0) {
            *is_done = true;
        } else {
            json_doc *doc = NULL;
            assert_ok(json_parse(&doc, at + 6, (size_t)(end - at) - 6, JSON_STRICT, "event"));
            const json *choices = json_get(json_root(doc), "choices");
            if (choices->n) {
                const json *delta = json_get(&choices->items[0], "delta"), *piece = json_get(delta, "content");
                if (!delta) piece = json_get(&choices->items[0], "text");
                if (piece) bytes_append(&text, piece->string, piece->n);
            } else {
                *cached = cached_tokens(json_root(doc));
            }
            ++*n_events;
            json_close(&doc);
        }
        at = end + 2;
    }
    char *joined = mem_copy_text(text.data ? text.data : "", text.n);
    bytes_clear(&text);
    return joined;
}

static void streams_join_to_the_answer(void **state) {
    (void)state;
    fixture w = open_fixture(0, NULL);
    char *wanted = alone(&w, "Once upon a time", "24");
    answer_text a = client_ask(w.port, "/v1/completions",
                               "{\"prompt\":\"Once upon a time\",\"max_tokens\":24,\"temperature\":0,\"stream\":true,"
                               "\"stream_options\":{\"include_usage\":true}}");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(bytes_text(&a.head), "Content-Type: text/event-stream"));
    int n_events;
    bool is_done;
    int64_t cached;
    char *text = join_stream(&a, &n_events, &is_done, &cached);
    assert_string_equal(text, wanted);
    assert_true(is_done && n_events > 10);
    assert_int_equal(cached, 0);
    client_clear(&a);
    mem_free(text);
    mem_free(wanted);
    close_fixture(&w);
}

/* ---- many at once ---- */

enum { N_CLIENTS = 24, N_PROMPTS = 6 };

static const char *const prompts[N_PROMPTS] = {"Once upon a time", "Once upon a hill",  "Tom and Lily went",
                                               "The dog",          "Tom and Lily were", "One day, a girl named"};

typedef struct crowd {
    const fixture *w;
    char *wanted[N_PROMPTS];
    int i;
    int n_wrong;
} crowd;

static void *ask_some(void *arg) {
    crowd *c = arg;
    for (int k = 0; k < 4; k++) {
        int which = (c->i + k) % N_PROMPTS;
        char body[256];
        snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"max_tokens\":16,\"temperature\":0}", prompts[which]);
        answer_text a = client_ask(c->w->port, "/v1/completions", body);
        json_doc *doc = NULL;
        if (a.status != 200 || json_parse(&doc, a.body.data, a.body.n, JSON_STRICT, "answer") != MN_OK ||
            strcmp(json_get(&json_get(json_root(doc), "choices")->items[0], "text")->string, c->wanted[which]) != 0)
            c->n_wrong++;
        json_close(&doc);
        client_clear(&a);
    }
    return NULL;
}

static void many_clients_get_what_one_gets(void **state) {
    (void)state;
    fixture w = open_fixture(0, NULL);
    pthread_t threads[N_CLIENTS];
    crowd crowds[N_CLIENTS], first = {.w = &w};
    for (int i = 0; i < N_PROMPTS; i++) first.wanted[i] = alone(&w, prompts[i], "16");
    for (int i = 0; i < N_CLIENTS; i++) {
        crowds[i] = first;
        crowds[i].i = i;
        assert_int_equal(pthread_create(&threads[i], NULL, ask_some, &crowds[i]), 0);
    }
    for (int i = 0; i < N_CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(crowds[i].n_wrong, 0);
    }
    for (int i = 0; i < N_PROMPTS; i++) mem_free(first.wanted[i]);
    close_fixture(&w);
}

/* ---- leaving ---- */

/* R17: a client that leaves while its answer is computed, or waits, ends it. */
static void R17_a_client_that_leaves_ends_its_request(void **state) {
    (void)state;
    fixture w = open_fixture(2, NULL);
    const char *endless =
        "{\"prompt\":\"Once\",\"max_tokens\":500,\"ignore_eos\":true,\"temperature\":0,\"stream\":%s}";
    for (int i = 0; i < 12; i++) {
        char body[256], part[512];
        snprintf(body, sizeof body, endless, i % 2 ? "true" : "false");
        int fd = client_post(w.port, "/v1/completions", body);
        if (i % 2) assert_true(client_recv(fd, part, sizeof part) > 0);
        if (i % 3 == 0) {
            const struct linger now = {.l_onoff = 1};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now); /* a reset */
        }
        close(fd);
    }
    /* The queue takes two: each of these gets in only when those before them are gone. */
    int done = 0;
    wait_until(done == 3) {
        answer_text a = client_ask(w.port, "/v1/completions", "{\"prompt\":\"The\",\"max_tokens\":2}");
        assert_true(a.status == 200 || a.status == 429);
        done += a.status == 200;
        client_clear(&a);
    }
    close_fixture(&w);
}

/* R17: what is left of a head is not waited for: no time passes. */
static void R17_a_client_that_leaves_in_its_head_is_gone(void **state) {
    (void)state;
    fixture w = open_fixture(0, NULL);
    clock_hold();
    for (int i = 0; i < 40; i++) {
        int fd = client_connect(w.port);
        client_send(fd, "POST /v1/completions HTTP/1.1\r\nHost", (size_t)(4 + i % 30));
        close(fd);
    }
    answer_text a = client_get(w.port, "/health"); /* those before it have come, then */
    client_clear(&a);
    wait_until(proxy_n_busy(w.server->proxy) == 0);
    clock_run();
    close_fixture(&w);
}

static void a_full_queue_says_so_at_once(void **state) {
    (void)state;
    fixture w = open_fixture(1, &client_endless_cache);
    int fd = client_post(w.port, "/v1/completions", "{\"prompt\":\"Once\",\"stream\":true," CLIENT_ENDLESS "}");
    wait_until(scheduler_jobs(w.server->scheduler) > 0);
    answer_text a = client_ask(w.port, "/v1/completions", "{\"prompt\":\"The\",\"max_tokens\":2}");
    assert_int_equal(a.status, 429);
    assert_non_null(strstr(bytes_text(&a.head), "Retry-After: 1"));
    assert_non_null(strstr(a.body.data, "queue_full"));
    client_clear(&a);
    close(fd);
    close_fixture(&w);
}

/* ---- what is malformed ---- */

static void R28_malformed_heads_are_refused(void **state) {
    (void)state;
    fixture w = open_fixture(0, NULL);
    assert_true(N_REFUSED >= 120);
    for (int i = 0; i < N_REFUSED; i++) {
        int fd = client_connect(w.port);
        client_send(fd, refused[i].text, refused[i].n);
        answer_text a = client_read(fd);
        close(fd);
        if (a.status != refused[i].status) fail_msg("head %d: %d, not %d", i, a.status, refused[i].status);
        json_doc *doc = client_json(&a);
        assert_non_null(json_get(json_get(json_root(doc), "error"), "message"));
        json_close(&doc);
        client_clear(&a);
    }
    close_fixture(&w);
}

static const struct {
    int status;
    const char *path, *body, *param, *code;
} bad_bodies[] = {
    {400, "/v1/completions", "", NULL, "invalid_json"},
    {400, "/v1/completions", "{", NULL, "invalid_json"},
    {400, "/v1/completions", "[]", NULL, "invalid_json"},
    {400, "/v1/completions", "{\"a\":1,\"a\":2}", NULL, "invalid_json"},
    {400, "/v1/completions", "{}", "prompt", "missing_field"},
    {400, "/v1/completions", "{\"prompt\":3}", "prompt", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1.5}", "max_tokens", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1048577}", "max_tokens", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"temperature\":-1}", "temperature", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"temperature\":\"hot\"}", "temperature", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"top_p\":2}", "top_p", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"top_k\":-1}", "top_k", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"n\":0}", "n", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"n\":9}", "n", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"stop\":\"\"}", "stop", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"stop\":[1]}", "stop", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"stream\":1}", "stream", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"cache_salt\":\"\"}", "cache_salt", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"cache_salt\":\"a b\"}", "cache_salt", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", "logit_bias", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"1\":101}}", "logit_bias", "value_out_of_range"},
    {400, "/v1/completions", "{\"prompt\":\"a\",\"response_format\":{\"type\":\"xml\"}}", "response_format",
     "value_out_of_range"},
    {404, "/v1/completions", "{\"prompt\":\"a\",\"model\":\"other\"}", "model", "model_not_found"},
    {400, "/v1/chat/completions", "{}", "messages", "missing_field"},
    {400, "/v1/chat/completions", "{\"messages\":[]}", "messages", "value_out_of_range"},
    {400, "/detokenize", "{\"tokens\":[99999]}", "tokens", "invalid_value"},
    {404, "/v1/nothing", "{}", NULL, "route_not_found"},
    {405, "/v1/models", "{}", NULL, "wrong_method"},
};

static void bad_bodies_are_refused_by_field(void **state) {
    (void)state;
    fixture w = open_fixture(0, NULL);
    for (size_t i = 0; i < sizeof bad_bodies / sizeof *bad_bodies; i++) {
        answer_text a = client_ask(w.port, bad_bodies[i].path, bad_bodies[i].body);
        if (a.status != bad_bodies[i].status) fail_msg("body %zu: %d: %s", i, a.status, bytes_text(&a.body));
        json_doc *doc = client_json(&a);
        const json *error = json_get(json_root(doc), "error"), *param = json_get(error, "param");
        if (!json_is_string(json_get(error, "code"), bad_bodies[i].code)) fail_msg("body %zu: %s", i, a.body.data);
        if (bad_bodies[i].param)
            assert_true(json_is_string(param, bad_bodies[i].param));
        else
            assert_int_equal(param->kind, JSON_NULL);
        assert_true(json_get(error, "message")->n > 10);
        json_close(&doc);
        client_clear(&a);
    }
    close_fixture(&w);
}

/* R32: pages of others reach nothing: another host, a form, another type. */
static void R32_browsers_are_kept_apart(void **state) {
    (void)state;
    static const struct {
        int status;
        const char *text;
    } of[] = {
        {403, "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n"},
        {403, "GET /v1/models HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n"},
        {200, "GET /v1/models HTTP/1.1\r\nHost: localhost:1\r\n\r\n"},
        {200, "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"},
        {400, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{\"content\":\"a\"}"},
        {400, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 15\r\n\r\n"
              "{\"content\":\"a\"}"},
        {400, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
              "Content-Length: 15\r\n\r\n{\"content\":\"a\"}"},
        {200, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; charset=utf-8\r\n"
              "Content-Length: 15\r\n\r\n{\"content\":\"a\"}"},
    };
    fixture w = open_fixture(0, NULL);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        int fd = client_connect(w.port);
        client_send(fd, of[i].text, strlen(of[i].text));
        answer_text a = client_read(fd);
        close(fd);
        if (a.status != of[i].status) fail_msg("request %zu: %d", i, a.status);
        assert_null(strstr(bytes_text(&a.head), "Access-Control"));
        client_clear(&a);
    }
    close_fixture(&w);
}

/* Every route with a body, from the table: what a form of another page may send is refused before it is read. */
static void R32_bodies_of_forms_are_refused(void **state) {
    (void)state;
    static const char *const types[] = {"", "Content-Type: text/plain\r\n",
                                        "Content-Type: application/x-www-form-urlencoded\r\n",
                                        "Content-Type: multipart/form-data; boundary=b\r\n"};
    fixture w = open_fixture(0, NULL);
    const route *r;
    for (size_t i = 0; (r = route_at(i)); i++) {
        if (!r->form) continue;
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            char header[256];
            snprintf(header, sizeof header, "%sOrigin: http://evil.example\r\nContent-Length: 2\r\n", types[k]);
            int fd = client_begin(w.port, "POST", r->path, header);
            client_send(fd, "{}", 2);
            answer_text a = client_read(fd);
            close(fd);
            if (a.status != 400 && a.status != 403) fail_msg("%s with '%s': %d", r->path, types[k], a.status);
            if (r->form != BODY_MESSAGES && r->form != BODY_COUNT_TOKENS)
                assert_true(strstr(a.body.data, "wrong_content_type") || a.status == 403);
            client_clear(&a);
        }
        int fd = client_begin(w.port, "OPTIONS", r->path,
                              "Origin: http://evil.example\r\n"
                              "Access-Control-Request-Method: POST\r\n");
        answer_text a = client_read(fd);
        close(fd);
        assert_int_equal(a.status, 405);
        assert_null(strstr(bytes_text(&a.head), "Access-Control"));
        client_clear(&a);
    }
    close_fixture(&w);
}

/* ---- keys ---- */

#define FIRST_KEY  "first-key-0123456789"
#define SECOND_KEY "second-key-987654321"

static fixture open_keyed(bool share_prefixes) {
    static const char text[] = FIRST_KEY "\n\n" SECOND_KEY;
    fixture w = {.model = engine_model("embedded", "auto", "auto", 2)};
    const serve_options options = {
        .name = "tiny", .api_key_file = scratch_file("keys", text, sizeof text - 1), .share_prefixes = share_prefixes};
    assert_ok(serve_open(&w.server, w.model, &options));
    w.port = serve_port(w.server);
    return w;
}

static int64_t complete(const server *s, const char *header, char **text) {
    bytes body = {0};
    bytes_append_text(&body, "{\"prompt\":\"");
    for (int i = 0; i < 20; i++) bytes_printf(&body, "Once upon a time there were %d little girls. ", i);
    bytes_append_text(&body, "\",\"max_tokens\":8,\"temperature\":0}");
    answer_text a = client_ask_with(serve_port(s), "POST", "/v1/completions", header, bytes_text(&body));
    bytes_clear(&body);
    json_doc *doc = NULL;
    assert_int_equal(a.status, 200);
    assert_ok(json_parse(&doc, a.body.data, a.body.n, JSON_STRICT, "the answer"));
    const char *completion = json_get(&json_get(json_root(doc), "choices")->items[0], "text")->string;
    int64_t cached = cached_tokens(json_root(doc));
    *text = mem_copy_text(completion, strlen(completion));
    json_close(&doc);
    client_clear(&a);
    return cached;
}

/* The next server has what the last one computed, for the key that it was computed for. */
static void R13_a_restart_finds_what_was_computed(void **state) {
    (void)state;
    static const char text[] = FIRST_KEY "\n" SECOND_KEY, first[] = "Authorization: Bearer " FIRST_KEY "\r\n",
                      second[] = "Authorization: Bearer " SECOND_KEY "\r\n";
    char *texts[3];
    server *s = NULL;
    mn_model *model = engine_model("embedded", "auto", "auto", 2);
    const serve_options options = {.name = "tiny",
                                   .api_key_file = scratch_file("keys", text, sizeof text - 1),
                                   .cache_dir = scratch_empty("served")};
    assert_ok(serve_open(&s, model, &options));
    assert_int_equal(complete(s, first, &texts[0]), 0);
    serve_close(&s, 2000);
    assert_ok(serve_open(&s, model, &options));
    assert_int_equal(complete(s, second, &texts[1]), 0);
    int64_t cached = complete(s, first, &texts[2]);
    if (cached < 128) fail_msg("%lld tokens were found", (long long)cached);
    serve_close(&s, 2000);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(texts[i], texts[0]);
        if (i > 0) mem_free(texts[i]);
    }
    mem_free(texts[0]);
    mn_model_close(&model);
}

static void R31_routes_need_a_key(void **state) {
    (void)state;
    static const char *const wrong[] = {"",
                                        "Authorization: Bearer\r\n",
                                        "Authorization: Bearer x\r\n",
                                        "Authorization: Basic " FIRST_KEY "\r\n",
                                        "Authorization: Bearer " FIRST_KEY "x\r\n",
                                        "Authorization: Bearer first-key-012345678\r\n",
                                        "x-api-key: " SECOND_KEY "0\r\n"};
    fixture w = open_keyed(false);
    const route nothing = {.method = "GET", .path = "/nothing"};
    for (size_t i = 0; i == 0 || route_at(i - 1); i++) {
        const route *r = i == 0 ? &nothing : route_at(i - 1);
        /* For supervisors; the page has nothing of this server. These three alone are public. */
        if (strcmp(r->path, "/health") == 0 || strcmp(r->path, "/ready") == 0 || strcmp(r->path, "/") == 0) continue;
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            answer_text a = client_ask_with(w.port, r->method, r->path, wrong[k], "{}");
            if (a.status != 401) fail_msg("%s with header %zu: %d", r->path, k, a.status);
            assert_non_null(strstr(a.body.data, "authentication_error"));
            client_clear(&a);
        }
    }
    static const char *const allowed[][2] = {{"/health", ""},
                                             {"/ready", ""},
                                             {"/", ""},
                                             {"/v1/models", "Authorization: bearer " FIRST_KEY "\r\n"},
                                             {"/v1/models", "x-api-key: " SECOND_KEY "\r\n"}};
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        answer_text a = client_ask_with(w.port, "GET", allowed[i][0], allowed[i][1], "");
        assert_int_equal(a.status, 200);
        client_clear(&a);
    }
    close_fixture(&w);
}

static int64_t cached_with(int port, const char *header) {
    answer_text a = client_ask_with(port, "POST", "/v1/completions", header,
                                    "{\"prompt\":\"Once upon a time there was\",\"max_tokens\":2}");
    assert_int_equal(a.status, 200);
    json_doc *doc = client_json(&a);
    int64_t n = cached_tokens(json_root(doc));
    json_close(&doc);
    client_clear(&a);
    return n;
}

static void keys_share_prefixes_only_on_request(void **state) {
    (void)state;
    static const char first[] = "x-api-key: " FIRST_KEY "\r\n", second[] = "x-api-key: " SECOND_KEY "\r\n";
    for (int shares = 0; shares < 2; shares++) {
        fixture w = open_keyed(shares);
        assert_int_equal(cached_with(w.port, first), 0);
        assert_true(cached_with(w.port, first) > 3);
        assert_int_equal(cached_with(w.port, second) > 3, shares);
        assert_true(cached_with(w.port, second) > 3);
        close_fixture(&w);
    }
}

static void bad_key_files_and_hosts_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } of[] = {{"", "has no key"},
              {"\n\n", "has no key"},
              {"short\n", "line 1 is no key; allowed: 16 to 256"},
              {FIRST_KEY "\nwith a space in the middle\n", "line 2 is no key"}};
    mn_model *model = engine_model("embedded", "auto", "auto", 1);
    server *s = NULL;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const serve_options options = {.name = "tiny",
                                       .api_key_file = scratch_file("bad-keys", of[i].text, strlen(of[i].text))};
        assert_fails(MN_E_ARG, of[i].part, serve_open(&s, model, &options));
        assert_null(s);
    }
    const serve_options options = {.name = "tiny", .host = "0.0.0.0"};
    assert_fails(MN_E_ARG, "host is '0.0.0.0'", serve_open(&s, model, &options));
    mn_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_librarys),
        cmocka_unit_test(streams_join_to_the_answer),
        cmocka_unit_test(many_clients_get_what_one_gets),
        cmocka_unit_test(R17_a_client_that_leaves_ends_its_request),
        cmocka_unit_test(R17_a_client_that_leaves_in_its_head_is_gone),
        cmocka_unit_test(a_full_queue_says_so_at_once),
        cmocka_unit_test(R28_malformed_heads_are_refused),
        cmocka_unit_test(bad_bodies_are_refused_by_field),
        cmocka_unit_test(R32_browsers_are_kept_apart),
        cmocka_unit_test(R32_bodies_of_forms_are_refused),
        cmocka_unit_test(R13_a_restart_finds_what_was_computed),
        cmocka_unit_test(R31_routes_need_a_key),
        cmocka_unit_test(keys_share_prefixes_only_on_request),
        cmocka_unit_test(bad_key_files_and_hosts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
