/* What a request found in the prefix cache and why no more: each reason once, beside the ids that the tokenizer gives.
 * SPDX-License-Identifier: Apache-2.0 */
#include "serve/fixture.h"
#include "support/scratch.h"

#define GIRL "Once upon a time there was a little girl"
#define DOG  "Once upon a time there was a little dog"

typedef struct found {
    json_doc *doc;
    const json *cache; /* the member of the answer */
    int64_t n_prompt, cached;
    const char *why;
} found;

/* more: members of the body, or "". */
static found explain(const fixture *w, const char *path, const char *prompt, const char *more) {
    bytes body = {0};
    found f = {0};
    bytes_printf(&body, "{\"prompt\":\"%s\",\"cache\":{\"explain\":true}%s}", prompt, more);
    answer_text a = client_ask(w->port, path, bytes_text(&body));
    if (a.status != 200) fail_msg("%s: %s", bytes_text(&body), a.body.data);
    f.doc = client_json(&a);
    const json *usage = json_get(json_root(f.doc), "usage"), *details = json_get(usage, "prompt_tokens_details");
    f.cache = json_get(json_root(f.doc), "cache");
    assert_non_null(f.cache);
    f.n_prompt = json_get(usage, "prompt_tokens")->integer;
    f.cached = json_get(details ? details : usage, "cached_tokens")->integer;
    f.why = json_get(f.cache, "ended_by")->string;
    assert_int_equal(json_get(f.cache, "matched_tokens")->integer, f.cached);
    const json *tiers = json_get(f.cache, "tiers");
    assert_int_equal(json_get(tiers, "memory")->integer + json_get(tiers, "disk")->integer, f.cached);
    assert_int_equal(json_get(f.cache, "at")->integer, f.cached);
    bytes_clear(&body);
    client_clear(&a);
    return f;
}

static void completion_ends_by(const fixture *w, const char *prompt, const char *more, const char *why) {
    bytes all = {0};
    bytes_printf(&all, ",\"max_tokens\":2,\"temperature\":0%s", more);
    found f = explain(w, "/v1/completions", prompt, bytes_text(&all));
    assert_string_equal(f.why, why);
    json_close(&f.doc);
    bytes_clear(&all);
}

static int32_t *ids_of(const fixture *w, const char *text, size_t *n) {
    int32_t *ids = NULL;
    assert_ok(mn_tokenize(mn_model_tokenizer(w->model), text, strlen(text), MN_ADD_SPECIAL, &ids, n));
    return ids;
}

static void reasons_are_told(void **state) {
    (void)state;
    const serve_options options = {.name = "tiny"};
    static const char plain[] = ",\"max_tokens\":2,\"temperature\":0";
    fixture w = serve_embedded(NULL, options);
    size_t n_girl, n_dog;
    int64_t at = 0;
    int32_t *girl = ids_of(&w, GIRL, &n_girl), *dog = ids_of(&w, DOG, &n_dog);
    while (girl[at] == dog[at]) at++;

    found f = explain(&w, "/v1/completions", GIRL, plain);
    assert_string_equal(f.why, "nothing_cached");
    assert_int_equal(f.cached, 0);
    assert_int_equal(json_get(f.cache, "token")->integer, girl[0]);
    json_close(&f.doc);

    f = explain(&w, "/v1/completions", GIRL, plain);
    assert_string_equal(f.why, "end_of_prompt");
    assert_int_equal(f.cached, (int64_t)n_girl - 1);
    assert_null(json_get(f.cache, "token"));
    json_close(&f.doc);

    f = explain(&w, "/v1/completions", DOG, plain);
    assert_string_equal(f.why, "different_token");
    assert_int_equal(f.cached, at);
    assert_int_equal(json_get(f.cache, "token")->integer, dog[at]);
    assert_int_equal(json_get(f.cache, "other_token")->integer, girl[at]);
    char *text = NULL, *other = NULL;
    size_t n;
    assert_ok(mn_detokenize(mn_model_tokenizer(w.model), dog + at, 1, 0, &text, &n));
    assert_ok(mn_detokenize(mn_model_tokenizer(w.model), girl + at, 1, 0, &other, &n));
    assert_string_equal(json_get(f.cache, "text")->string, text);
    assert_string_equal(json_get(f.cache, "other_text")->string, other);
    json_close(&f.doc);

    static const char *const caches[] = {
        "\"sliding_window\",\"cache_config\":{\"window_length\":64}", /* it may share, but not with another cache */
        "\"static\"",                                                 /* it shares nothing */
    };
    for (int i = 0; i < 2; i++) {
        char more[256];
        snprintf(more, sizeof more, ",\"generation_config\":{\"max_new_tokens\":2},\"cache_implementation\":%s",
                 caches[i]);
        f = explain(&w, "/v1/generate", GIRL, more);
        assert_string_equal(f.why, "strategy");
        assert_int_equal(f.cached, 0);
        assert_non_null(json_get(f.cache, "implementation"));
        json_close(&f.doc);
    }

    completion_ends_by(&w, GIRL, ",\"cache_salt\":\"one\"", "salt");
    /* Without the word nothing is said. */
    answer_text a = client_ask(w.port, "/v1/completions", "{\"prompt\":\"" GIRL "\",\"max_tokens\":2}");
    assert_null(strstr(a.body.data, "ended_by"));
    client_clear(&a);
    mn_free(text);
    mn_free(other);
    mn_free(girl);
    mn_free(dog);
    close_fixture(&w);
}

static void what_another_salt_holds_is_not_told(void **state) {
    (void)state;
    const serve_options options = {.name = "tiny"};
    fixture w = serve_embedded(NULL, options);
    completion_ends_by(&w, GIRL, ",\"cache_salt\":\"one\"", "nothing_cached");
    completion_ends_by(&w, GIRL, ",\"cache_salt\":\"two\"", "nothing_cached");
    completion_ends_by(&w, GIRL, "", "nothing_cached");
    completion_ends_by(&w, GIRL, ",\"cache_salt\":\"one\"", "end_of_prompt");
    close_fixture(&w);
}

/* In a stream, with the usage. */
static void streams_tell_it_with_the_usage(void **state) {
    (void)state;
    const serve_options options = {.name = "tiny"};
    fixture w = serve_embedded(NULL, options);
    answer_text a = client_ask(w.port, "/v1/completions",
                               "{\"prompt\":\"" GIRL "\",\"max_tokens\":2,\"stream\":true,"
                               "\"stream_options\":{\"include_usage\":true},\"cache\":{\"explain\":true}}");
    assert_non_null(strstr(a.body.data, "\"ended_by\":\"nothing_cached\""));
    client_clear(&a);
    close_fixture(&w);
}

/* Long prompts under a small limit: the first ones are dropped. */
static void evicted_texts_are_told(void **state) {
    (void)state;
    const serve_options options = {.name = "tiny", .memory_limit = 1 << 20};
    static const char *const names[] = {"Tom", "Lily", "Max", "Anna", "Sam", "Ben", "Mia", "Tim"};
    fixture w = serve_embedded(NULL, options);
    bytes prompts[8] = {{0}};
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 40; k++) bytes_printf(&prompts[i], "%s had %d toys. ", names[i], k);
        found f = explain(&w, "/v1/completions", bytes_text(&prompts[i]), ",\"max_tokens\":2");
        json_close(&f.doc);
    }
    completion_ends_by(&w, bytes_text(&prompts[0]), "", "evicted");
    completion_ends_by(&w, bytes_text(&prompts[0]), "", "end_of_prompt");
    for (int i = 0; i < 8; i++) bytes_clear(&prompts[i]);
    close_fixture(&w);
}

/* Between keys that share, what the other's text has is not told. */
static void another_keys_text_is_not_told(void **state) {
    (void)state;
    static const char keys[] = "first-key-0123456789\nsecond-key-987654321";
    const serve_options options = {
        .name = "tiny", .api_key_file = scratch_file("keys", keys, sizeof keys - 1), .share_prefixes = true};
    fixture w = serve_embedded(NULL, options);
    static const char *const asked[][2] = {{"first-key-0123456789", GIRL}, {"second-key-987654321", DOG}};
    for (int i = 0; i < 2; i++) {
        bytes b = {0}, body = {0};
        bytes_printf(&body, "{\"prompt\":\"%s\",\"max_tokens\":2,\"cache\":{\"explain\":true}}", asked[i][1]);
        bytes_printf(&b,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     "x-api-key: %s\r\nContent-Length: %zu\r\n\r\n%s",
                     asked[i][0], body.n, bytes_text(&body));
        int fd = client_connect(w.port);
        client_send(fd, b.data, b.n);
        answer_text a = client_read(fd);
        assert_int_equal(a.status, 200);
        assert_non_null(strstr(a.body.data, i ? "\"different_token\"" : "\"nothing_cached\""));
        assert_null(strstr(a.body.data, "\"other_t"));
        client_clear(&a);
        close(fd);
        bytes_clear(&b);
        bytes_clear(&body);
    }
    close_fixture(&w);
}

/* Two requests of one step: the second finds a text that nobody has computed yet. */
static void a_text_being_computed_is_told(void **state) {
    (void)state;
    mn_model *model = engine_model("embedded", "auto", "auto", 2);
    const fixture w = {.model = model};
    mn_engine *engine = NULL;
    mn_engine_options options;
    size_t n;
    int32_t *ids = ids_of(&w, GIRL, &n);
    int numbers[2], n_steps = 0;
    const char *why[2] = {NULL, NULL};
    mn_engine_options_init(&options, sizeof options);
    options.enable_prefix_caching = true;
    assert_ok(mn_engine_open(&engine, model, &options));
    mn_generation_config *config = NULL;
    assert_ok(mn_generation_config_open(&config, model));
    assert_ok(mn_generation_config_set(config, "max_new_tokens", "2"));
    for (int i = 0; i < 2; i++) {
        mn_request request;
        mn_request_init(&request, sizeof request);
        request.prompt = ids;
        request.n_prompt = n;
        request.config = config;
        assert_ok(mn_engine_add(engine, &request, &numbers[i]));
    }
    for (int n_done = 0; n_done < 2;) {
        mn_generation *g = NULL;
        int number;
        assert_ok(mn_engine_step(engine, NULL));
        assert_true(++n_steps < 100);
        while (mn_engine_take(engine, &number, &g), number >= 0) {
            why[number == numbers[1]] = g->sequences[0]->match_ended;
            assert_int_equal(g->sequences[0]->match_other, -1);
            mn_generation_close(&g);
            n_done++;
        }
    }
    assert_string_equal(why[0], "nothing_cached");
    assert_string_equal(why[1], "not_in_memory");
    mn_free(ids);
    mn_generation_config_close(&config);
    mn_engine_close(&engine);
    mn_model_close(&model);
}

/* What the server before has written is read for the first request, and is in memory for the second. */
static void the_tier_is_told(void **state) {
    (void)state;
    char folder[512];
    bytes prompt = {0};
    snprintf(folder, sizeof folder, "%s", scratch_empty("tiers"));
    const serve_options options = {.name = "tiny", .cache_dir = folder};
    for (int i = 0; i < 24; i++) bytes_append_text(&prompt, GIRL ". ");
    for (int restart = 0; restart < 2; restart++) {
        fixture w = serve_embedded(NULL, options);
        for (int again = 0; again < 2; again++) {
            found f = explain(&w, "/v1/completions", bytes_text(&prompt), ",\"max_tokens\":1,\"temperature\":0");
            const bool is_found = restart || again, is_read = restart && !again;
            assert_int_equal(f.cached, is_found ? f.n_prompt - 1 : 0);
            assert_int_equal(json_get(json_get(f.cache, "tiers"), "disk")->integer, is_read ? f.cached : 0);
            json_close(&f.doc);
        }
        close_fixture(&w);
    }
    bytes_clear(&prompt);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasons_are_told),
        cmocka_unit_test(what_another_salt_holds_is_not_told),
        cmocka_unit_test(streams_tell_it_with_the_usage),
        cmocka_unit_test(evicted_texts_are_told),
        cmocka_unit_test(another_keys_text_is_not_told),
        cmocka_unit_test(a_text_being_computed_is_told),
        cmocka_unit_test(the_tier_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
