/* The same ids through the server as from the library alone, which computes everything: a request alone, in a batch, on
 * a hit, after it was preempted, after a restart; in every strategy whose tokens can be shared. 40 prompts in
 * dynamic, 6 in the others; with MNEME_LONG=1 500 and 40.
 * SPDX-License-Identifier: Apache-2.0 */
#include "serve.h"
#include "serve/oracle.h"
#include "serve/steps.h"
#include "session/session.h"
#include "support/scratch.h"
#include "support/strategies.h"

enum { MOST_TEXTS = 500, MOST_IDS = 200, N_NEW = 24, AT_ONCE = 40 };

typedef struct text {
    int32_t ids[MOST_IDS];
    size_t n;
    char fields[160]; /* of GenerationConfig */
    mn_generation *wanted;
} text;

typedef struct laws {
    mn_model *model, *other; /* other: of the expected answers */
    server *server;
    serve_options options;
    mn_cache_options cache;
    const char *name;
    uint64_t seed;
    size_t n;
    text texts[MOST_TEXTS];
} laws;

/* Texts that begin like an earlier one, up to any token of it; every other one is sampled. */
static void make_texts(laws *w) {
    mn_session *session = NULL;
    for (size_t i = 0; i < w->n; i++) {
        text *t = &w->texts[i];
        t->n = i == 0 ? MOST_IDS : 2 + test_random(&w->seed) % (MOST_IDS - 2);
        engine_ids(&w->seed, t->ids, t->n, engine_vocab(w->other));
        if (i > 0) {
            const text *from = &w->texts[test_random(&w->seed) % i];
            size_t same = test_random(&w->seed) % (from->n + 1);
            memcpy(t->ids, from->ids, (same < t->n ? same : t->n) * sizeof *t->ids);
        }
        snprintf(t->fields, sizeof t->fields,
                 "{\"max_new_tokens\":%d,\"do_sample\":%s,\"seed\":%zu,\"eos_token_id\":[]}", N_NEW,
                 i % 2 ? "true" : "false", i);
        mn_generation_config *config = NULL;
        assert_ok(mn_generation_config_open(&config, w->other));
        assert_ok(mn_generation_config_load(config, t->fields, strlen(t->fields)));
        assert_ok(mn_session_open(&session, w->other, &w->cache));
        assert_ok(mn_generate(session, t->ids, t->n, config, NULL, &t->wanted));
        mn_session_close(&session);
        mn_generation_config_close(&config);
    }
}

static void open_server(laws *w, uint64_t memory_limit, const char *cache_dir) {
    w->options = (serve_options){
        .name = "tiny", .cache = &w->cache, .max_num_seqs = 16, .memory_limit = memory_limit, .cache_dir = cache_dir};
    assert_ok(serve_open(&w->server, w->model, &w->options));
}

static void close_server(laws *w) {
    serve_close(&w->server, 20000);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
}

static int post(const laws *w, const text *t, const char *salt, int priority) {
    bytes body = {0};
    bytes_append_text(&body, "{\"ids\":[");
    for (size_t i = 0; i < t->n; i++) bytes_printf(&body, i ? ",%d" : "%d", t->ids[i]);
    bytes_printf(&body, "],\"priority\":%d,\"generation_config\":%s", priority, t->fields);
    if (salt) bytes_printf(&body, ",\"cache_salt\":\"%s\"", salt);
    bytes_append_text(&body, "}");
    int fd = client_post(serve_port(w->server), "/v1/generate", bytes_text(&body));
    bytes_clear(&body);
    return fd;
}

/* Checks the answer; the tokens that were found. */
static size_t take(const laws *w, const text *t, int fd, const char *when) {
    char what[96];
    answer_text a = client_read(fd);
    close(fd);
    snprintf(what, sizeof what, "%s, %s, text %zu", w->name, when, (size_t)(t - w->texts));
    if (a.status != 200) fail_msg("%s: %d %s", what, a.status, a.body.data);
    json_doc *doc = client_json(&a);
    oracle_same(json_get(json_root(doc), "sequences"), 0, t->wanted, what);
    const size_t cached = (size_t)json_get(json_get(json_root(doc), "usage"), "cached_tokens")->integer;
    json_close(&doc);
    client_clear(&a);
    return cached;
}

/* Each has a salt of its own, so that it finds nothing. */
static void alone(laws *w) {
    open_server(w, 0, NULL);
    for (size_t i = 0; i < w->n; i++) {
        char salt[32];
        snprintf(salt, sizeof salt, "alone-%zu", i);
        assert_int_equal(take(w, &w->texts[i], post(w, &w->texts[i], salt, 0), "alone"), 0);
    }
    close_server(w);
}

/* All begin in the same step, as far as there is room; the returned number of tokens was found. */
static size_t together(laws *w, bool has_salts, const char *when) {
    size_t cached = 0;
    for (size_t first = 0; first < w->n; first += AT_ONCE) {
        int fds[AT_ONCE];
        const size_t left = w->n - first, n = left < AT_ONCE ? left : AT_ONCE;
        steps_begin(w->server);
        for (size_t i = 0; i < n; i++) {
            char salt[32];
            snprintf(salt, sizeof salt, "%s-%zu", when, first + i);
            fds[i] = post(w, &w->texts[first + i], has_salts ? salt : NULL, 0);
        }
        steps_until(w->server, n, 0);
        steps_end();
        for (size_t i = 0; i < n; i++) cached += take(w, &w->texts[first + i], fds[i], when);
    }
    return cached;
}

static void in_batches(laws *w) {
    open_server(w, 0, NULL);
    assert_int_equal(together(w, true, "batch"), 0);
    close_server(w);
}

static void on_hits(laws *w) {
    size_t cached = 0, n = 0;
    open_server(w, 0, NULL);
    together(w, false, "computed beside others");
    for (size_t i = 0; i < w->n; i++) {
        cached += take(w, &w->texts[i], post(w, &w->texts[i], NULL, 0), "hit");
        n += w->texts[i].n - 1;
    }
    if (strcmp(w->name, "dynamic") == 0) assert_int_equal(cached, n);
    if (cached == 0) fail_msg("%s: no token was found", w->name);
    close_server(w);
}

/* Memory for the longest text in the strategy that needs most: half of the requests preempt the others. */
static uint64_t preempted(laws *w) {
    const uint64_t per_token = 2 * 3 * 32 * sizeof(float); /* keys and values, layers, numbers in a head */
    open_server(w, per_token * (MOST_IDS + N_NEW) * 9 / 8, NULL);
    steps_begin(w->server);
    for (size_t first = 0; first < w->n; first += AT_ONCE) {
        int fds[AT_ONCE];
        const size_t left = w->n - first, n = left < AT_ONCE ? left : AT_ONCE;
        for (size_t i = 0; i < n; i++) {
            fds[i] = post(w, &w->texts[first + i], NULL, i >= n / 2);
            steps_until(w->server, i + 1, 0);
            if (i + 1 == n / 2) steps_one(w->server);
        }
        while (steps_info(w->server).num_requests_running + steps_info(w->server).num_requests_waiting > 0)
            steps_one(w->server);
        for (size_t i = 0; i < n; i++) take(w, &w->texts[first + i], fds[i], "preempted");
    }
    const uint64_t n_preemptions = steps_info(w->server).n_preemptions;
    steps_end();
    close_server(w);
    return n_preemptions;
}

/* The first text, the longest, is read from a file, because nothing is known yet of what computing takes; asked of the
 * strategies that store tokens exactly. */
static void after_restarts(laws *w, bool is_lossy) {
    const char *folder = scratch_empty("laws-served");
    open_server(w, 0, folder);
    together(w, false, "before a restart");
    close_server(w);
    open_server(w, 0, folder);
    for (size_t i = 0; i < w->n; i++) {
        const size_t cached = take(w, &w->texts[i], post(w, &w->texts[i], NULL, 0), "restarted");
        if (i == 0 && cached == 0 && !is_lossy) fail_msg("%s: a restart finds nothing", w->name);
    }
    close_server(w);
}

static bool can_be_shared(const engine_strategy *s) {
    return !s->flushes && !strstr(s->cache.implementation, "static");
}

static void R40_answers_through_the_server_are_the_librarys(void **state) {
    (void)state;
    uint64_t n_preempted = 0;
    laws *w = mem_alloc(1, sizeof *w);
    assert_non_null(w);
    w->seed = 40;
    w->model = engine_model("golden/llama", "f32", "auto", 1);
    w->other = engine_model("golden/llama", "f32", "auto", 1);
    for (int s = 0; s < N_ENGINE_STRATEGIES; s++) {
        if (!can_be_shared(&engine_strategies[s]) || !test_samples(s, 6)) continue;
        w->cache = engine_cache_options(strategy_cache(s, "f32"));
        w->name = engine_strategies[s].cache.implementation;
        w->n = s == 0 ? (test_is_long() ? MOST_TEXTS : 40 / (size_t)test_stride(2)) : test_is_long() ? 40 : 6;
        make_texts(w);
        alone(w);
        in_batches(w);
        on_hits(w);
        const uint64_t n = preempted(w);
        if (s == 0) assert_true(n > 0);
        n_preempted += n;
        after_restarts(w, engine_strategies[s].is_lossy);
        for (size_t i = 0; i < w->n; i++) mn_generation_close(&w->texts[i].wanted);
    }
    print_message("%llu preemptions\n", (unsigned long long)n_preempted);
    mn_model_close(&w->model);
    mn_model_close(&w->other);
    mem_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(R40_answers_through_the_server_are_the_librarys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
