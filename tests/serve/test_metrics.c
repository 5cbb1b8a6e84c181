/* What /metrics says: a strict reader takes it, its numbers are those of the answers, counters never fall, and the
 * documents and the dashboard name what there is.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"
#include "serve/fixture.h"
#include "serve/prometheus.h"
#include "serve/steps.h"
#include "support/hostile/moved_clock.h"
#include "support/scratch.h"

static fixture open_fixture(const char *name) {
    return serve_embedded(NULL, (serve_options){.name = name, .memory_limit = 64 << 20});
}

static void read_metrics(scrape *s, int port) {
    answer_text a = client_get(port, "/metrics");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(bytes_text(&a.head), "Content-Type: text/plain; version=0.0.4"));
    scrape_read(s, bytes_text(&a.body));
    client_clear(&a);
}

typedef struct totals {
    int64_t prompt, cached, generated;
} totals;

static void add_usage(totals *t, const json *root) {
    const json *usage = json_get(root, "usage");
    t->prompt += json_get(usage, "prompt_tokens")->integer;
    t->generated += json_get(usage, "completion_tokens")->integer;
    t->cached += json_get(json_get(usage, "prompt_tokens_details"), "cached_tokens")->integer;
}

static void complete(totals *t, int port, const char *prompt, int max_tokens) {
    char body[256];
    snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true}", prompt,
             max_tokens);
    answer_text a = client_ask(port, "/v1/completions", body);
    assert_int_equal(a.status, 200);
    json_doc *doc = client_json(&a);
    add_usage(t, json_root(doc));
    json_close(&doc);
    client_clear(&a);
}

static void refused(int port, const char *path, const char *body) {
    answer_text a = client_ask(port, path, body);
    assert_true(a.status >= 400);
    client_clear(&a);
}

static void assert_totals(const scrape *s, totals t, int n_answers) {
    assert_true(value_of(s, "mneme_prompt_tokens_total", "") == (double)t.prompt);
    assert_true(value_of(s, "mneme_generation_tokens_total", "") == (double)t.generated);
    assert_true(value_of(s, "mneme_prefix_cache_queries_total", "") == (double)t.prompt);
    assert_true(value_of(s, "mneme_prefix_cache_hits_total", "") == (double)t.cached);
    assert_true(value_of(s, "mneme_request_success_total", "\"length\"") == n_answers);
    assert_true(value_of(s, "mneme_time_to_first_token_seconds_count", "") == n_answers);
    assert_true(value_of(s, "mneme_e2e_request_latency_seconds_count", "") == n_answers);
    assert_true(value_of(s, "mneme_request_queue_time_seconds_count", "") == n_answers);
    assert_true(value_of(s, "mneme_inter_token_latency_seconds_count", "") == (double)t.generated - n_answers);
}

static void numbers_are_those_of_the_answers(void **state) {
    (void)state;
    static const char *const prompts[] = {"Once upon a time", "Once upon a hill", "Once upon a time there was", "Tom"};
    static scrape before, now;
    fixture w = open_fixture("tiny");
    totals t = {0};
    read_metrics(&before, w.port);
    assert_totals(&before, t, 0);
    assert_true(value_of(&before, "mneme_prefix_cache_bytes", "") == 0);
    for (int i = 0; i < 4; i++) {
        complete(&t, w.port, prompts[i], 6 + i);
        read_metrics(&now, w.port);
        scrape_follows(&now, &before);
        assert_totals(&now, t, i + 1);
        before = now;
    }
    assert_true(t.cached > 0);
    double used = value_of(&now, "mneme_kv_cache_bytes", ""), limit = value_of(&now, "mneme_kv_cache_limit_bytes", "");
    assert_true(used > 0 && limit > 0 && limit <= 64 << 20);
    assert_true(fabs(value_of(&now, "mneme_kv_cache_usage_ratio", "") - used / limit) < 1e-9);
    /* Nothing runs: what is held is what is kept, each page counted once. */
    assert_true(value_of(&now, "mneme_prefix_cache_bytes", "") == used);
    assert_true(value_of(&now, "mneme_prefix_cache_entries", "") >= 3);
    assert_true(value_of(&now, "process_resident_memory_bytes", "") > 1 << 20);
    close_fixture(&w);
}

/* A second passes before each step: so long are the waiting, and each token. */
static void durations_are_those_that_passed(void **state) {
    (void)state;
    enum { N_NEW = 5 };
    static scrape s;
    totals t = {0};
    int n_steps = 0;
    fixture w = open_fixture("tiny");
    clock_hold();
    steps_begin(w.server);
    int fd = client_post(w.port, "/v1/completions",
                         "{\"prompt\":\"Once upon a time\",\"max_tokens\":5,\"temperature\":0,\"ignore_eos\":true}");
    steps_until(w.server, 1, 0);
    for (mn_request_info info; n_steps == 0 || steps_request(w.server, 0, &info); n_steps++) {
        clock_move(1000);
        steps_one(w.server);
    }
    steps_end();
    answer_text a = client_read(fd);
    close(fd);
    json_doc *doc = client_json(&a);
    add_usage(&t, json_root(doc));
    json_close(&doc);
    client_clear(&a);
    read_metrics(&s, w.port);
    assert_totals(&s, t, 1);
    assert_int_equal(t.generated, N_NEW);
    assert_true(value_of(&s, "mneme_request_queue_time_seconds_sum", "") == 1);
    assert_true(value_of(&s, "mneme_time_to_first_token_seconds_sum", "") == n_steps - (N_NEW - 1));
    assert_true(value_of(&s, "mneme_inter_token_latency_seconds_sum", "") == N_NEW - 1);
    assert_true(value_of(&s, "mneme_e2e_request_latency_seconds_sum", "") == n_steps);
    clock_run();
    close_fixture(&w);
}

static void refusals_are_counted_by_type(void **state) {
    (void)state;
    static scrape s;
    fixture w = open_fixture("tiny");
    refused(w.port, "/v1/completions", "{");
    refused(w.port, "/v1/completions", "{}");
    refused(w.port, "/v1/nothing", "{}");
    read_metrics(&s, w.port);
    assert_true(value_of(&s, "mneme_request_failures_total", "\"invalid_request_error\"") == 2);
    assert_true(value_of(&s, "mneme_request_failures_total", "\"not_found_error\"") == 1);
    assert_true(value_of(&s, "mneme_request_failures_total", "\"server_error\"") == 0);
    close_fixture(&w);
}

/* Of 303 tokens the offloading cache holds two full pages in its file, and the third in memory. */
static void pages_are_counted_where_they_are(void **state) {
    (void)state;
    enum { N_PROMPT = 300, N_NEW = 4, PAGE = 128, LAYERS = 5, HEADS = 4, HEAD_SIZE = 8 };
    const mn_cache_options offloaded =
        engine_cache_options((engine_cache){.implementation = "offloaded", .dtype = "f32"});
    static scrape s;
    for (int offloads = 0; offloads < 2; offloads++) {
        bytes body = {0};
        fixture w = serve_embedded(NULL, (serve_options){.cache = offloads ? &offloaded : NULL});
        read_metrics(&s, w.port);
        assert_true(value_of(&s, "mneme_kv_cache_pages", "state=\"resident\"") == 0);
        assert_true(value_of(&s, "mneme_kv_cache_pages", "state=\"offloaded\"") == 0);
        bytes_append_text(&body, "{\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":4,\"prompt\":[1");
        for (int i = 1; i < N_PROMPT; i++) bytes_printf(&body, ",%d", 5 + i);
        bytes_append_text(&body, "]}");
        answer_text a = client_ask(w.port, "/v1/completions", bytes_text(&body));
        assert_int_equal(a.status, 200);
        read_metrics(&s, w.port);
        assert_true(value_of(&s, "mneme_kv_cache_pages", "state=\"resident\"") == (offloads ? 1 : 3));
        assert_true(value_of(&s, "mneme_kv_cache_pages", "state=\"offloaded\"") == (offloads ? 2 : 0));
        assert_true(value_of(&s, "mneme_kv_cache_offloaded_bytes", "") ==
                    (offloads ? 2 * PAGE * LAYERS * HEADS * HEAD_SIZE * 2 * sizeof(float) : 0));
        client_clear(&a);
        bytes_clear(&body);
        close_fixture(&w);
    }
}

/* While an endless answer is computed, another waits because max_num_seqs has no room: gauges follow. */
static void gauges_follow_requests(void **state) {
    (void)state;
    static const char endless[] = "{\"prompt\":\"Once\",\"max_tokens\":500,\"ignore_eos\":true,\"stream\":true}";
    static scrape s;
    fixture w = {.model = engine_model("embedded", "auto", "auto", 2)};
    const serve_options options = {.name = "tiny", .max_num_seqs = 1};
    char part[256];
    assert_ok(serve_open(&w.server, w.model, &options));
    w.port = serve_port(w.server);
    int first = client_post(w.port, "/v1/completions", endless);
    assert_true(client_recv(first, part, sizeof part) > 0);
    int second = client_post(w.port, "/v1/completions", endless);
    bool seen = false;
    for (int i = 0; i < 100 && !seen; i++) {
        read_metrics(&s, w.port);
        seen =
            value_of(&s, "mneme_num_requests_running", "") == 1 && value_of(&s, "mneme_num_requests_waiting", "") == 1;
    }
    assert_true(seen);
    close(second);
    close(first);
    wait_until(value_of(&s, "mneme_request_success_total", "\"abort\"") == 2) read_metrics(&s, w.port);
    assert_true(value_of(&s, "mneme_num_requests_running", "") == 0);
    assert_true(value_of(&s, "mneme_num_requests_waiting", "") == 0);
    close_fixture(&w);
}

static void odd_model_names_are_escaped(void **state) {
    (void)state;
    static scrape s;
    fixture w = open_fixture("a\"b\\c\nd");
    read_metrics(&s, w.port);
    assert_non_null(strstr(s.samples[0].labels, "model_name=\"a\\\"b\\\\c\\nd\""));
    close_fixture(&w);
}

/* ---- documents ---- */

static bool is_family(const scrape *s, const char *name, size_t n) {
    for (int i = 0; i < s->n_families; i++) {
        if (strlen(s->families[i].name) == n && memcmp(s->families[i].name, name, n) == 0) return true;
    }
    return false;
}

/* Every word of the text that is a metric's name is one of ours; marks them. */
static int check_names(const scrape *s, const char *text, bool *named) {
    int n_names = 0;
    for (const char *at = text; *at;) {
        size_t n = name_length(at);
        bool is_metric = strncmp(at, "mneme_", 6) == 0 || strncmp(at, "process_", 8) == 0;
        if (is_metric && n > 8) {
            n_names++;
            bool is_known = false;
            for (int i = 0; i < s->n_families; i++) {
                char word[128];
                snprintf(word, sizeof word, "%.*s", (int)n, at);
                if (strcmp(word, s->families[i].name) != 0 && !is_of(&s->families[i], word)) continue;
                is_known = named[i] = true;
            }
            if (!is_known) fail_msg("there is no metric %.*s", (int)n, at);
        }
        at += n ? n : 1;
    }
    return n_names;
}

static void documents_name_what_there_is(void **state) {
    (void)state;
    static scrape s;
    bytes text = {0};
    bool in_document[MOST_FAMILIES] = {false}, in_dashboard[MOST_FAMILIES] = {false};
    fixture w = open_fixture("tiny");
    read_metrics(&s, w.port);
    close_fixture(&w);
    assert_ok(file_read(&text, TESTS_DIR "/../docs/serve.md", 1 << 20));
    const char *table = strstr(bytes_text(&text), "## Metrics");
    assert_non_null(table);
    check_names(&s, table, in_document);
    for (int i = 0; i < s.n_families; i++) {
        if (!in_document[i]) fail_msg("docs/serve.md does not have %s", s.families[i].name);
        char row[160];
        snprintf(row, sizeof row, "| `%s`", s.families[i].name);
        const char *at = strstr(table, row), *end = at ? strchr(at, '\n') : NULL;
        if (!end) fail_msg("docs/serve.md has no row for %s", s.families[i].name);
        char type[32];
        snprintf(type, sizeof type, "| %s |", s.families[i].type);
        const char *found = strstr(at, type);
        if (!found || found > end) fail_msg("docs/serve.md: %s is a %s", s.families[i].name, s.families[i].type);
    }
    bytes_clear(&text);
    json_doc *doc = NULL;
    assert_ok(json_open(&doc, TESTS_DIR "/../share/grafana/mneme.json", JSON_STRICT, 1 << 20));
    const json *panels = json_get(json_root(doc), "panels");
    for (size_t i = 0; i < panels->n; i++) {
        const json *targets = json_get(&panels->items[i], "targets");
        for (size_t k = 0; k < targets->n; k++)
            assert_true(check_names(&s, json_get(&targets->items[k], "expr")->string, in_dashboard) > 0);
    }
    json_close(&doc);
    static const char *const elsewhere[] = {"mneme_build_info", "process_start_time_seconds"};
    for (int i = 0; i < s.n_families; i++) {
        const char *name = s.families[i].name;
        bool is_shown = in_dashboard[i] || strcmp(name, elsewhere[0]) == 0 || strcmp(name, elsewhere[1]) == 0;
        if (!is_shown) fail_msg("the dashboard does not show %s", name);
    }
    assert_true(is_family(&s, "mneme_build_info", strlen("mneme_build_info")));
}

static void promtool_takes_them(void **state) {
    (void)state;
    char command[1024];
    if (system("command -v promtool >/dev/null 2>&1") != 0) skip();
    fixture w = open_fixture("tiny");
    answer_text a = client_get(w.port, "/metrics");
    close_fixture(&w);
    snprintf(command, sizeof command, "promtool check metrics <%s", scratch_file("metrics", a.body.data, a.body.n));
    client_clear(&a);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_the_answers), cmocka_unit_test(durations_are_those_that_passed),
        cmocka_unit_test(refusals_are_counted_by_type),     cmocka_unit_test(pages_are_counted_where_they_are),
        cmocka_unit_test(gauges_follow_requests),           cmocka_unit_test(odd_model_names_are_escaped),
        cmocka_unit_test(documents_name_what_there_is),     cmocka_unit_test(promtool_takes_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
