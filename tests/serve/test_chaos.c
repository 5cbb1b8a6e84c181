/* Random requests to every dialect, in every mode and several caches, by several clients at once, with little memory:
 * some leave in the head, in the body, while they wait or in a stream, some are cancelled, some are malformed. Every
 * answer is the one that the library gives alone; afterwards there are no more pages, threads, descriptors than before,
 * and, of 2,000 requests, no more memory than after the first tenth. MNEME_LONG=1: those 2,000, otherwise 60 (under the
 * thread sanitizer 24); MNEME_SEED=n: another sequence.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <pthread.h>

#include "routes.h"
#include "serve.h"
#include "serve/oracle.h"
#include "serve/steps.h"
#include "session/session.h"
#include "support/engine.h"
#include "support/scratch.h"

#if defined(__SANITIZE_THREAD__)
enum { N_SHORT = 24, MEASURES_MEMORY = 0 };
#elif defined(__SANITIZE_ADDRESS__)
enum { N_SHORT = 40, MEASURES_MEMORY = 0 }; /* what is freed stays resident for a while */
#else
enum { N_SHORT = 60, MEASURES_MEMORY = 1 };
#endif
enum { N_LONG = 2000, N_CLIENTS = 6 };

/* ---- requests ---- */

static const char *const modes[] = {
    "\"do_sample\":false",
    "\"do_sample\":true,\"seed\":7,\"temperature\":0.8",
    "\"num_beams\":3,\"num_return_sequences\":2,\"do_sample\":false",
    "\"num_beams\":4,\"num_beam_groups\":2,\"diversity_penalty\":0.5,\"do_sample\":false",
    "\"penalty_alpha\":0.6,\"top_k\":4,\"do_sample\":false",
    "\"prompt_lookup_num_tokens\":4,\"do_sample\":false",
    "\"do_sample\":true,\"seed\":3,\"top_p\":0.9,\"num_return_sequences\":3",
    "\"do_sample\":false,\"repetition_penalty\":1.3,\"no_repeat_ngram_size\":3",
};
static const char *const caches[] = {
    "",
    ",\"cache_implementation\":\"sink\",\"cache_config\":{\"window_length\":24,\"num_sink_tokens\":4}",
    ",\"cache_implementation\":\"sink+offloaded\",\"cache_config\":{\"window_length\":16}",
    ",\"cache_implementation\":\"sliding_window\",\"cache_config\":{\"window_length\":32}",
    ",\"cache_implementation\":\"offloaded\"",
    ",\"cache_implementation\":\"hybrid\"",
};
static const char *const prompts[] = {"Once upon a time", "Once upon a time there was a little girl named Lily",
                                      "Tom and his dog went", "One day"};
#define MANY(list) (sizeof list / sizeof *list)

enum {
    GENERATE,
    GENERATE_STREAM,
    COMPLETION,
    COMPLETION_STREAM,
    N_CHECKED,
    LEAVES_IN_HEAD = N_CHECKED,
    LEAVES_IN_BODY,
    LEAVES_AT_ONCE,
    LEAVES_IN_STREAM,
    CANCELS,
    MALFORMED,
    ASKS,
    N_KINDS
};

typedef struct request {
    int kind;
    size_t mode, cache, prompt;
    int n_new;
    uint64_t random;
} request;

static request make_request(uint64_t *seed) {
    return (request){.kind = (int)(test_random(seed) % (N_KINDS + N_CHECKED)) % N_KINDS,
                     .mode = test_random(seed) % MANY(modes),
                     .cache = test_random(seed) % MANY(caches),
                     .prompt = test_random(seed) % MANY(prompts),
                     .n_new = 1 + (int)(test_random(seed) % 60),
                     .random = test_random(seed)};
}

static bool is_completion(const request *r) {
    return r->kind == COMPLETION || r->kind == COMPLETION_STREAM || r->kind == CANCELS;
}

/* What the library is asked: of completions the modes that they have. */
static void put_fields(bytes *out, const request *r) {
    if (is_completion(r))
        bytes_printf(out, "{\"max_new_tokens\":%d,%s}", r->n_new, modes[r->mode % 2]);
    else
        bytes_printf(out, "{\"max_new_tokens\":%d,%s%s}", r->n_new, modes[r->mode], caches[r->cache]);
}

static void put_body(bytes *out, const request *r) {
    const bool streams =
        r->kind == GENERATE_STREAM || r->kind == COMPLETION_STREAM || r->kind == LEAVES_IN_STREAM || r->kind == CANCELS;
    bytes_printf(out, "{\"prompt\":\"%s\",\"stream\":%s,\"cache_salt\":\"%d\",", prompts[r->prompt],
                 streams ? "true" : "false", (int)(r->random % 2));
    if (is_completion(r)) {
        bytes_printf(out, "\"max_tokens\":%d,%s}", r->n_new,
                     r->mode % 2 ? "\"temperature\":0.8,\"seed\":7" : "\"temperature\":0");
        return;
    }
    bytes_printf(out, "\"priority\":%d,\"generation_config\":", (int)(r->random / 2 % 5) - 2);
    put_fields(out, r);
    bytes_append_text(out, "}");
}

/* ---- clients ---- */

typedef struct chaos {
    server *server;
    mn_generation **wanted; /* [n] */
    const request *requests;
    size_t n, next; /* the first that no client has taken */
    pthread_mutex_t lock;
    int n_wrong;
    atomic_int n_silent; /* streams that were closed without an answer */
    char wrong[512];
} chaos;

static void tell(chaos *c, const request *r, const char *what, const answer_text *a) {
    pthread_mutex_lock(&c->lock);
    if (c->n_wrong++ == 0)
        snprintf(c->wrong, sizeof c->wrong, "request %zu, kind %d, mode %zu, cache %zu: %s: %d %.300s",
                 (size_t)(r - c->requests), r->kind, r->mode, r->cache, what, a->status,
                 a->body.n > 300 ? a->body.data + a->body.n - 300
                 : a->body.n     ? a->body.data
                                 : "");
    pthread_mutex_unlock(&c->lock);
}

static bool same_ids(const json *sequences, const mn_generation *g) {
    if (!sequences || sequences->n != g->n_sequences) return false;
    for (size_t k = 0; k < g->n_sequences; k++) {
        const json *ids = json_get(&sequences->items[k], "ids");
        if (!ids || ids->n != g->sequences[k]->n_ids) return false;
        for (size_t i = 0; i < ids->n; i++)
            if (ids->items[i].integer != g->sequences[k]->ids[i]) return false;
    }
    return true;
}

/* The last event but [DONE] has the whole answer of /v1/generate. */
static const char *last_event(const answer_text *a) {
    const char *found = a->body.data ? a->body.data : "", *at = found;
    for (; (at = strstr(at, "data: {")); at += 6) found = at + 6;
    return found;
}

static bool is_wanted(const request *r, const answer_text *a, const mn_generation *g) {
    bytes text = {0};
    json_doc *doc = NULL;
    bool is_same = false;
    if (r->kind == COMPLETION_STREAM) {
        for (const char *at = a->body.data; (at = strstr(at, "data: {")); at += 6) {
            const size_t n = (size_t)(strstr(at, "\n\n") - at) - 6;
            if (json_parse(&doc, at + 6, n, JSON_STRICT, "event") != MN_OK) return false;
            const json *choices = json_get(json_root(doc), "choices");
            const json *piece = choices && choices->n ? json_get(&choices->items[0], "text") : NULL;
            if (piece) bytes_append(&text, piece->string, piece->n);
            json_close(&doc);
        }
        is_same = strcmp(bytes_text(&text), g->sequences[0]->text) == 0 && strstr(a->body.data, "data: [DONE]");
        bytes_clear(&text);
        return is_same;
    }
    const char *whole = r->kind == GENERATE_STREAM ? last_event(a) : a->body.data;
    const char *end = r->kind == GENERATE_STREAM ? strstr(whole, "\n\n") : whole + a->body.n;
    if (!end || json_parse(&doc, whole, (size_t)(end - whole), JSON_STRICT, "answer") != MN_OK) return false;
    if (r->kind == COMPLETION) {
        const json *choices = json_get(json_root(doc), "choices");
        is_same = choices && strcmp(json_get(&choices->items[0], "text")->string, g->sequences[0]->text) == 0;
    } else {
        is_same = same_ids(json_get(json_root(doc), "sequences"), g);
    }
    json_close(&doc);
    return is_same;
}

/* A request that waits for its answer. */
static void ask(chaos *c, const request *r, int fd) {
    answer_text a = client_read(fd);
    const mn_generation *g = c->wanted[r - c->requests];
    if (a.status != 200 || !is_wanted(r, &a, g)) tell(c, r, "another answer", &a);
    client_clear(&a);
}

/* One that does not; n: bytes of it that are sent. */
static void send_part(const chaos *c, const request *r, const char *body, int *fd) {
    bytes all = {0};
    bytes_printf(&all,
                 "POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                 "%zu\r\n\r\n",
                 strlen(body));
    size_t n = r->kind == LEAVES_IN_HEAD ? r->random / 16 % all.n : all.n + r->random / 16 % strlen(body);
    bytes_append_text(&all, body);
    *fd = client_connect(serve_port(c->server));
    client_send(*fd, all.data, n);
    bytes_clear(&all);
}

static const char *const malformed[] = {"{",
                                        "[]",
                                        "{\"prompt\":",
                                        "{\"prompt\":\"a\",\"generation_config\":{\"num_beams\":-1}}",
                                        "{\"prompt\":\"a\",\"cache_salt\":\"\"}",
                                        "{\"prompt\":\"a\",\"nothing\":1}",
                                        "{\"ids\":[100000]}",
                                        "{\"prompt\":\"a\",\"priority\":1e400}"};

static void expect_status(chaos *c, const request *r, answer_text a, int least, int most) {
    if (a.status < least || a.status > most) tell(c, r, "another status", &a);
    client_clear(&a);
}

/* A stream whose request is cancelled by the id in its first event, unless it has ended by then. */
static void cancel(chaos *c, const request *r, int fd) {
    char part[1024], path[128];
    const ssize_t n = client_recv(fd, part, sizeof part - 1);
    part[n > 0 ? n : 0] = 0;
    const char *id = strstr(part, "\"id\":\"");
    snprintf(path, sizeof path, "/v1/requests/%.*s", id ? (int)strcspn(id + 6, "\"") : 4, id ? id + 6 : "none");
    int other = client_begin(serve_port(c->server), "DELETE", path, "");
    answer_text a = client_read(other);
    if (a.status != 200 && a.status != 404) tell(c, r, "not cancelled", &a);
    client_clear(&a);
    close(other);
}

static void run_request(chaos *c, const request *r) {
    static const char *const questions[] = {"/health", "/metrics",   "/v1/caches", "/v1/requests",
                                            "/props",  "/v1/models", "/nothing"};
    const int port = serve_port(c->server);
    bytes body = {0};
    int fd = -1;
    put_body(&body, r);
    switch (r->kind) {
    case LEAVES_IN_HEAD:
    case LEAVES_IN_BODY: send_part(c, r, bytes_text(&body), &fd); break;
    case LEAVES_AT_ONCE: fd = client_post(port, "/v1/generate", bytes_text(&body)); break;
    case LEAVES_IN_STREAM: {
        char part[512];
        fd = client_post(port, "/v1/generate", bytes_text(&body));
        if (client_recv(fd, part, sizeof part) == 0) c->n_silent++;
        break;
    }
    case CANCELS:
        fd = client_post(port, "/v1/completions", bytes_text(&body));
        cancel(c, r, fd);
        break;
    case MALFORMED:
        fd = client_post(port, "/v1/generate", malformed[r->random % MANY(malformed)]);
        expect_status(c, r, client_read(fd), 400, 400);
        break;
    case ASKS: expect_status(c, r, client_get(port, questions[r->random % MANY(questions)]), 200, 404); break;
    default:
        fd = client_post(port, is_completion(r) ? "/v1/completions" : "/v1/generate", bytes_text(&body));
        ask(c, r, fd);
    }
    if (fd >= 0 && r->random / 8 % 3 == 0) {
        const struct linger now = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    if (fd >= 0) close(fd);
    bytes_clear(&body);
}

static void *run_client(void *arg) {
    chaos *c = arg;
    for (;;) {
        pthread_mutex_lock(&c->lock);
        const size_t i = c->next < c->n ? c->next++ : c->n;
        pthread_mutex_unlock(&c->lock);
        if (i == c->n) return NULL;
        run_request(c, &c->requests[i]);
    }
}

static void run_clients(chaos *c, size_t until) {
    pthread_t threads[N_CLIENTS];
    const size_t n = c->n;
    c->n = until;
    for (int i = 0; i < N_CLIENTS; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_client, c), 0);
    for (int i = 0; i < N_CLIENTS; i++) pthread_join(threads[i], NULL);
    c->n = n;
    assert_int_equal(c->n_silent, 0);
    if (c->n_wrong) fail_msg("%d answers are wrong; %s", c->n_wrong, c->wrong);
}

/* ---- what is left ---- */

static size_t count_entries(const char *folder) {
    DIR *dir = opendir(folder);
    size_t n = 0;
    assert_non_null(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static void *do_nothing(void *arg) {
    return arg;
}

static double resident_mib(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

/* Nothing is computed, and pages are only held for texts that are kept. */
static void expect_idle(server *s) {
    wait_until(proxy_n_busy(s->proxy) == 0);
    steps_until(s, 0, 0);
    steps_begin(s);
    const mn_engine_info info = steps_info(s);
    steps_end();
    assert_int_equal(info.num_requests_running + info.num_requests_waiting, 0);
    if (info.cache_bytes != info.kept_bytes)
        fail_msg("%llu bytes are held, %llu kept", (unsigned long long)info.cache_bytes,
                 (unsigned long long)info.kept_bytes);
    if (info.cache_bytes > info.memory_limit) fail_msg("more is held than the limit");
}

static void R20_R34_chaos_changes_no_answer_and_leaves_nothing(void **state) {
    (void)state;
    const char *given = getenv("MNEME_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 15;
    const size_t n = test_is_long() ? N_LONG : N_SHORT;
    pthread_t first; /* with it the thread sanitizer starts one of its own */
    assert_int_equal(pthread_create(&first, NULL, do_nothing, NULL), 0);
    pthread_join(first, NULL);
    const size_t n_threads = count_entries("/proc/self/task"), n_files = count_entries("/proc/self/fd");
    request *requests = mem_alloc(n, sizeof *requests);
    mn_model *model = engine_model("embedded", "auto", "auto", 1), *other = engine_model("embedded", "auto", "auto", 1);
    chaos c = {.requests = requests, .n = n, .wanted = mem_alloc(n, sizeof *c.wanted)};
    uint64_t largest = 0, all = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    pthread_mutex_init(&c.lock, NULL);
    for (size_t i = 0; i < n; i++) {
        requests[i] = make_request(&seed);
        bytes fields = {0};
        if (requests[i].kind >= N_CHECKED) continue;
        put_fields(&fields, &requests[i]);
        c.wanted[i] = oracle_text(other, prompts[requests[i].prompt], bytes_text(&fields));
        const uint64_t peak = c.wanted[i]->cache->peak_bytes;
        if (peak > largest) largest = peak;
        all += peak;
        bytes_clear(&fields);
    }
    /* No more than a tenth of what they would hold if nothing had to go; one alone must fit. */
    const uint64_t limit = largest * 5 / 4;
    print_message("%.2f MiB of caches are allowed, all together have %.2f MiB\n", (double)limit / (1 << 20),
                  (double)all / (1 << 20));
    if (!given && n >= 60) assert_true(limit <= all / 10);
    const serve_options options = {.name = "tiny", .max_num_seqs = 16, .memory_limit = limit};
    assert_ok(serve_open(&c.server, model, &options));
    run_clients(&c, n / 10);
    expect_idle(c.server);
    const double before = resident_mib();
    run_clients(&c, n);
    expect_idle(c.server);
    const double after = resident_mib();
    print_message("%zu requests: resident %.1f MiB after a tenth, %.1f MiB after all\n", n, before, after);
    if (MEASURES_MEMORY && test_is_long() && after > 1.1 * before) fail_msg("resident memory grew");
    serve_close(&c.server, 5000);
    assert_int_equal(kv_pool_used(model->core->pool), 0);
    for (size_t i = 0; i < n; i++) mn_generation_close(&c.wanted[i]);
    mem_free(c.wanted);
    mem_free(requests);
    mn_model_close(&model);
    mn_model_close(&other);
    assert_int_equal(count_entries("/proc/self/task"), n_threads);
    assert_int_equal(count_entries("/proc/self/fd"), n_files);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(R20_R34_chaos_changes_no_answer_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
