/* What a server tells of itself: /ready, /props, and the requests that it has, which may be cancelled.
 * SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>

#include "serve/fixture.h"
#include "support/scratch.h"

#define FIRST_KEY  "first-key-0123456789"
#define SECOND_KEY "second-key-987654321"

static answer_text ask(int port, const char *method, const char *path, const char *header) {
    int fd = client_begin(port, method, path, header);
    answer_text a = client_read(fd);
    close(fd);
    return a;
}

/* ---- /props ---- */

static void props_are_the_models(void **state) {
    (void)state;
    const mn_cache_options cache = {.size = sizeof cache, .implementation = "quantized", .config = "nbits=4"};
    const serve_options options = {.name = "ti\"ny", .cache = &cache, .max_num_seqs = 3, .memory_limit = 64 << 20};
    fixture w = serve_embedded(NULL, options);
    mn_model_info info = {.size = sizeof info};
    assert_ok(mn_model_get_info(w.model, &info));
    answer_text a = client_get(w.port, "/props");
    assert_int_equal(a.status, 200);
    json_doc *doc = client_json(&a);
    const json *root = json_root(doc), *limits = json_get(root, "limits");
    assert_string_equal(json_get(root, "model")->string, "ti\"ny");
    assert_string_equal(json_get(root, "version")->string, mn_version());
    assert_string_equal(json_get(root, "model_type")->string, "llama");
    assert_int_equal(json_get(root, "vocab_size")->integer, 512);
    assert_int_equal(json_get(root, "max_position_embeddings")->integer, info.max_position_embeddings);
    assert_int_equal(json_get(root, "has_tokenizer")->boolean, true);
    assert_int_equal(json_get(root, "has_chat_template")->boolean, info.has_chat_template);
    assert_string_equal(json_get(root, "cache_implementation")->string, "quantized");
    assert_string_equal(json_get(root, "cache_config")->string, "nbits=4");
    assert_int_equal(json_get(limits, "max_num_seqs")->integer, 3);
    assert_int_equal(json_get(limits, "memory_limit")->integer, 64 << 20);
    assert_int_equal(json_get(limits, "max_queue")->integer, 256);
    assert_int_equal(json_get(limits, "body_bytes")->integer, 8388608);
    assert_int_equal(json_get(limits, "max_cache_len")->kind, JSON_NULL);
    json_close(&doc);
    client_clear(&a);
    close_fixture(&w);
}

/* A cache that the checkpoint's generation_config.json asks for is the one that is shown, as it is the one that is
 * used; options name another. */
static void props_have_the_checkpoints_cache(void **state) {
    (void)state;
    static const char settings[] =
        "{\"cache_implementation\": \"SinkCache\", \"cache_config\": {\"window_length\": 24, \"num_sink_tokens\": 2}}";
    static const char *const files[] = {"config.json", "model.safetensors"};
    const mn_cache_options cache = {.size = sizeof cache, .implementation = "offloaded"};
    const mn_cache_options *const given[] = {NULL, &cache};
    char folder[1024];
    bytes file = {0};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[64];
        snprintf(name, sizeof name, "golden/llama/%s", files[i]);
        assert_ok(file_read(&file, data_path(name), 1 << 26));
        scratch_file(files[i], file.data, file.n);
        bytes_clear(&file);
    }
    scratch_file("generation_config.json", settings, strlen(settings));
    snprintf(folder, sizeof folder, "%s", scratch_path(""));
    for (int i = 0; i < 2; i++) {
        int64_t live = mem_count().live;
        mn_model *model = engine_model(folder, "auto", "auto", 2);
        fixture w = serve_model(model, live, (serve_options){.name = "own", .cache = given[i]});
        answer_text a = client_get(w.port, "/props");
        json_doc *doc = client_json(&a);
        const char *name = json_get(json_root(doc), "cache_implementation")->string;
        const char *config = json_get(json_root(doc), "cache_config")->string;
        assert_string_equal(name, i ? "offloaded" : "SinkCache");
        if (i)
            assert_string_equal(config, "");
        else
            assert_non_null(strstr(config, "24"));
        json_close(&doc);
        client_clear(&a);
        close_fixture(&w);
    }
}

/* ---- requests ---- */

enum { N_STREAMS = 12 };

/* An answer that does not end by itself. The prompt has a word that nothing else says. */
static int begin_stream(int port, const char *header) {
    static const char body[] = "{\"prompt\":\"Once upon a Zanzibar\",\"stream\":true," CLIENT_ENDLESS "}";
    bytes b = {0};
    int fd = client_connect(port);
    bytes_printf(&b,
                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%s"
                 "Content-Length: %zu\r\n\r\n%s",
                 header, sizeof body - 1, body);
    client_send(fd, b.data, b.n);
    bytes_clear(&b);
    return fd;
}

typedef struct listing {
    json_doc *doc;
    const json *data;
    const json *queued, *decoding; /* one of each; NULL: none */
} listing;

static listing list_requests(int port, const char *header) {
    listing l = {0};
    answer_text a = ask(port, "GET", "/v1/requests", header);
    assert_int_equal(a.status, 200);
    assert_null(strstr(bytes_text(&a.body), "Zanzibar"));
    l.doc = client_json(&a);
    l.data = json_get(json_root(l.doc), "data");
    client_clear(&a);
    for (size_t i = 0; i < l.data->n; i++) {
        const json *r = &l.data->items[i];
        const char *state = json_get(r, "state")->string;
        assert_string_equal(json_get(r, "object")->string, "request");
        assert_true(json_get(r, "age_ms")->real >= 0 && json_get(r, "age_ms")->real < 60000);
        if (strcmp(state, "queued") == 0 && !l.queued) l.queued = r;
        if (strcmp(state, "decode") == 0) l.decoding = r;
    }
    return l;
}

static int delete_request(int port, const char *header, const char *id) {
    char path[128];
    snprintf(path, sizeof path, "/v1/requests/%s", id);
    answer_text a = ask(port, "DELETE", path, header);
    json_doc *doc = client_json(&a);
    if (a.status == 200)
        assert_string_equal(json_get(json_root(doc), "id")->string, id);
    else
        assert_string_equal(json_get(json_get(json_root(doc), "error"), "code")->string, "request_not_found");
    int status = a.status;
    json_close(&doc);
    client_clear(&a);
    return status;
}

/* Cancels those that are there; returns how many these were. */
static size_t cancel_listed(int port, const char *header) {
    listing l = list_requests(port, header);
    size_t n = l.data->n;
    for (size_t i = 0; i < n; i++) delete_request(port, header, json_get(&l.data->items[i], "id")->string);
    json_close(&l.doc);
    return n;
}

/* The same until there are none; a stream of a request that was cancelled ends as any other. */
static void cancel_all(int port, const char *header) {
    wait_until(cancel_listed(port, header) == 0);
}

static int count(const char *text, const char *part) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++) n++;
    return n;
}

static void requests_are_listed_and_cancelled(void **state) {
    (void)state;
    const serve_options options = {.name = "tiny", .cache = &client_endless_cache, .max_num_seqs = 1};
    fixture w = serve_embedded(NULL, options);
    int fds[N_STREAMS], n_ended = 0;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    char queued[64] = "";
    assert_ok(mn_tokenize(mn_model_tokenizer(w.model), "Once upon a Zanzibar", 20, MN_ADD_SPECIAL, &ids, &n_ids));
    for (int i = 0; i < N_STREAMS; i++) fds[i] = begin_stream(w.port, "");
    wait_until(*queued) {
        listing l = list_requests(w.port, "");
        if (l.queued && l.decoding) {
            assert_true(json_get(l.decoding, "generated_tokens")->integer <= 1048576);
            assert_int_equal(json_get(l.decoding, "prompt_tokens")->integer, (int64_t)n_ids);
            assert_int_equal(json_get(l.decoding, "prompt_done")->integer, (int64_t)n_ids);
            assert_string_equal(json_get(l.decoding, "cache")->string, "sink");
            assert_int_equal(json_get(l.queued, "generated_tokens")->integer, 0);
            assert_int_equal(json_get(l.queued, "prompt_tokens")->integer, (int64_t)n_ids);
            snprintf(queued, sizeof queued, "%s", json_get(l.queued, "id")->string);
        }
        json_close(&l.doc);
    }
    assert_int_equal(delete_request(w.port, "", queued), 200);
    assert_int_equal(delete_request(w.port, "", "cmpl-0"), 404);
    cancel_all(w.port, "");
    assert_int_equal(delete_request(w.port, "", queued), 404);
    for (int i = 0; i < N_STREAMS; i++) {
        answer_text a = client_read(fds[i]);
        assert_int_equal(a.status, 200);
        assert_int_equal(count(a.body.data, "data: [DONE]"), 1);
        if (count(a.body.data, "\"finish_reason\":\"length\"") != 1) fail_msg("%.600s", a.body.data);
        n_ended += strstr(a.body.data, queued) != NULL;
        if (strstr(a.body.data, queued)) assert_true(count(a.body.data, "data: ") < 100);
        client_clear(&a);
        close(fds[i]);
    }
    assert_int_equal(n_ended, 1);
    mn_free(ids);
    close_fixture(&w);
}

static void a_key_sees_its_own_requests(void **state) {
    (void)state;
    static const char text[] = FIRST_KEY "\n" SECOND_KEY, first[] = "Authorization: Bearer " FIRST_KEY "\r\n",
                      second[] = "Authorization: Bearer " SECOND_KEY "\r\n";
    const serve_options options = {.name = "tiny",
                                   .cache = &client_endless_cache,
                                   .max_num_seqs = 1,
                                   .api_key_file = scratch_file("keys", text, sizeof text - 1)};
    fixture w = serve_embedded(NULL, options);
    int fds[N_STREAMS];
    char id[64] = "";
    for (int i = 0; i < N_STREAMS; i++) fds[i] = begin_stream(w.port, first);
    wait_until(*id) {
        listing l = list_requests(w.port, first);
        if (l.queued) snprintf(id, sizeof id, "%s", json_get(l.queued, "id")->string);
        json_close(&l.doc);
    }
    assert_int_equal(delete_request(w.port, second, id), 404);
    listing l = list_requests(w.port, second);
    assert_int_equal(l.data->n, 0);
    json_close(&l.doc);
    assert_int_equal(delete_request(w.port, first, id), 200);
    cancel_all(w.port, first);
    for (int i = 0; i < 2; i++) {
        answer_text a = ask(w.port, "GET", "/v1/caches", i ? second : first);
        assert_int_equal(a.status, 200);
        assert_int_equal(strstr(a.body.data, "Zanzibar") != NULL, i == 0);
        if (i) assert_non_null(strstr(a.body.data, "\"data\":[]"));
        client_clear(&a);
    }
    for (int i = 0; i < N_STREAMS; i++) close(fds[i]);
    close_fixture(&w);
}

/* ---- /ready ---- */

static void *end_server(void *arg) {
    serve_close(&((fixture *)arg)->server, 20000);
    return NULL;
}

/* While the server ends, it says so, takes no work, and what was begun may still be cancelled. */
static void a_server_that_ends_is_not_ready(void **state) {
    (void)state;
    const serve_options options = {.name = "tiny", .cache = &client_endless_cache, .max_num_seqs = 1};
    fixture w = serve_embedded(NULL, options);
    pthread_t thread;
    int fds[N_STREAMS], status = 200;
    answer_text a = client_get(w.port, "/ready");
    assert_int_equal(a.status, 200);
    client_clear(&a);
    for (int i = 0; i < N_STREAMS; i++) fds[i] = begin_stream(w.port, "");
    size_t n = 0;
    wait_until(n == N_STREAMS) {
        listing l = list_requests(w.port, "");
        n = l.data->n;
        json_close(&l.doc);
    }
    assert_int_equal(pthread_create(&thread, NULL, end_server, &w), 0);
    wait_until(status != 200) {
        a = client_get(w.port, "/ready");
        status = a.status;
        client_clear(&a);
    }
    assert_int_equal(status, 503);
    a = client_get(w.port, "/health");
    assert_int_equal(a.status, 200);
    client_clear(&a);
    a = client_ask(w.port, "/v1/completions", "{\"prompt\":\"Once\"}");
    assert_int_equal(a.status, 503);
    assert_non_null(strstr(bytes_text(&a.head), "Retry-After: 1"));
    client_clear(&a);
    assert_int_equal(cancel_listed(w.port, ""), N_STREAMS); /* then the server may be gone at once */
    for (int i = 0; i < N_STREAMS; i++) {
        a = client_read(fds[i]);
        assert_int_equal(count(a.body.data, "data: [DONE]"), 1);
        client_clear(&a);
        close(fds[i]);
    }
    pthread_join(thread, NULL);
    mn_model_close(&w.model);
}

/* ---- /v1/caches ---- */

static const json *node_with(const json *data, const char *text) {
    for (size_t i = 0; i < data->n; i++) {
        if (strstr(json_get(&data->items[i], "text")->string, text)) return &data->items[i];
    }
    return NULL;
}

static void the_tree_of_texts_is_told(void **state) {
    (void)state;
    static const char *const prompts[] = {"Once upon a time there was a girl", "Once upon a time there was a dog",
                                          "Once upon a time there was a dog"};
    const serve_options options = {.name = "tiny"};
    fixture w = serve_embedded(NULL, options);
    for (int i = 0; i < 4; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"max_tokens\":2,\"temperature\":0%s}", prompts[i % 3],
                 i == 3 ? ",\"cache_salt\":\"hidden\"" : "");
        answer_text a = client_ask(w.port, "/v1/completions", body);
        assert_int_equal(a.status, 200);
        client_clear(&a);
    }
    answer_text a = client_get(w.port, "/v1/caches");
    json_doc *doc = client_json(&a);
    const json *root = json_root(doc), *data = json_get(root, "data");
    const json *memory = json_get(json_get(root, "tiers"), "memory");
    assert_false(json_get(root, "truncated")->boolean);
    assert_int_equal(json_get(memory, "texts")->integer, 3); /* the one of the salt, too */
    assert_true(json_get(memory, "bytes")->integer > 0);
    /* What the prompts begin with, and two ways on. */
    assert_int_equal(data->n, 3);
    const json *common = node_with(data, "Once upon"), *girl = node_with(data, "irl"), *dog = node_with(data, "og");
    assert_true(common && girl && dog && girl != dog);
    assert_int_equal(json_get(common, "parent")->kind, JSON_NULL);
    assert_false(json_get(common, "kept")->boolean);
    int64_t n_common = json_get(common, "tokens")->integer;
    assert_int_equal(json_get(common, "total_tokens")->integer, n_common);
    for (int i = 0; i < 2; i++) {
        const json *v = i ? dog : girl;
        assert_int_equal(json_get(v, "parent")->integer, json_get(common, "id")->integer);
        assert_true(json_get(v, "kept")->boolean && !json_get(v, "running")->boolean);
        assert_int_equal(json_get(v, "total_tokens")->integer, n_common + json_get(v, "tokens")->integer);
        assert_int_equal(json_get(v, "hits")->integer, 1); /* the second prompt's on the first text, the third's */
        assert_true(json_get(v, "bytes")->integer > 0);
    }
    json_close(&doc);
    client_clear(&a);
    close_fixture(&w);
}

/* ---- the log ---- */

typedef struct log_lines {
    pthread_mutex_t lock;
    bytes text;
    int n;
} log_lines;

static void take_line(void *user, const char *line) {
    log_lines *log = user;
    pthread_mutex_lock(&log->lock);
    bytes_printf(&log->text, "%s\n", line);
    log->n++;
    pthread_mutex_unlock(&log->lock);
}

static void a_line_for_each_request_without_its_text(void **state) {
    (void)state;
    log_lines log = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const serve_options options = {.name = "tiny", .log = take_line, .log_user = &log};
    static const char body[] = "{\"prompt\":\"Once upon a Zanzibar\",\"max_tokens\":5,\"ignore_eos\":true%s}";
    static const char *const more[] = {"", ",\"stream\":true", ",\"max_tokens\":\"Zanzibar\""};
    bytes_append_text(&log.text, "\n"); /* its block is not one of the server's */
    fixture w = serve_embedded(NULL, options);
    int32_t *ids = NULL;
    size_t n_ids = 0;
    assert_ok(mn_tokenize(mn_model_tokenizer(w.model), "Once upon a Zanzibar", 20, MN_ADD_SPECIAL, &ids, &n_ids));
    mn_free(ids);
    for (int i = 0; i < 3; i++) {
        char text[256];
        snprintf(text, sizeof text, body, more[i]);
        answer_text a = client_ask(w.port, "/v1/completions", text);
        assert_int_equal(a.status, i == 2 ? 400 : 200);
        client_clear(&a);
    }
    answer_text a = client_get(w.port, "/Zanzibar");
    client_clear(&a);
    assert_int_equal(delete_request(w.port, "", "Zanzibar"), 404);
    a = client_get(w.port, "/health");
    client_clear(&a);
    close_fixture(&w);
    char wanted[128];
    const char *text = bytes_text(&log.text);
    if (log.n != 6 || strstr(text, "Zanzibar")) fail_msg("%d lines: %s", log.n, text);
    assert_int_equal(count(text, " POST /v1/completions status=200 ms="), 2);
    assert_int_equal(count(text, " POST /v1/completions status=400 ms="), 1);
    assert_int_equal(count(text, " - - status=404 ms="), 1);
    assert_int_equal(count(text, " DELETE /v1/requests/{id} status=404 ms="), 1);
    assert_int_equal(count(text, " GET /health status=200 ms="), 1);
    for (int i = 0; i < 2; i++) {
        snprintf(wanted, sizeof wanted, " prompt_tokens=%zu cached_tokens=%zu completion_tokens=5\n", n_ids,
                 i ? n_ids - 1 : 0);
        if (count(text, wanted) != 1) fail_msg("no line with%sin: %s", wanted, text);
    }
    assert_int_equal(count(text, " id=cmpl-"), 2);
    bytes_clear(&log.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(props_are_the_models),
        cmocka_unit_test(props_have_the_checkpoints_cache),
        cmocka_unit_test(requests_are_listed_and_cancelled),
        cmocka_unit_test(a_key_sees_its_own_requests),
        cmocka_unit_test(a_server_that_ends_is_not_ready),
        cmocka_unit_test(the_tree_of_texts_is_told),
        cmocka_unit_test(a_line_for_each_request_without_its_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
