/* /v1/caches: texts that are made, shown, pinned and dropped by ids that stay.
 * SPDX-License-Identifier: Apache-2.0 */
#include "serve/asking.h"
#include "support/hostile/moved_clock.h"
#include "support/scratch.h"

static void texts_are_made_shown_and_dropped(void **state) {
    (void)state;
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){0});
    const int64_t id = create(&w, NULL, "{\"prompt\":\"Once upon a time there was a girl\",\"pin\":true,\"ttl\":60}");
    answered s = ask(&w, "GET", path_of(id), NULL, NULL);
    assert_int_equal(s.status, 200);
    const int64_t n = member(&s, "total_tokens")->integer;
    assert_int_equal(member(&s, "id")->integer, id);
    assert_true(member(&s, "pinned")->boolean);
    assert_true(member(&s, "ttl_left_ms")->real > 0 && member(&s, "ttl_left_ms")->real <= 60000);
    assert_true(member(&s, "unique_bytes")->integer > 0);
    assert_int_equal(member(&s, "unique_bytes")->integer, member(&s, "bytes")->integer);
    json_close(&s.doc);

    /* A prompt that goes on from it finds all of it, and the id stays. */
    assert_int_equal(cached(&w, "Once upon a time there was a girl who had"), n);
    s = ask(&w, "POST", path_of(id), NULL, "{\"pin\":false}");
    assert_int_equal(s.status, 200);
    assert_false(member(&s, "pinned")->boolean);
    assert_true(member(&s, "ttl_left_ms")->real > 0);
    assert_int_equal(member(&s, "hits")->integer, 1);
    json_close(&s.doc);
    s = ask(&w, "POST", path_of(id), NULL, "{\"ttl\":0}");
    assert_int_equal(member(&s, "ttl_left_ms")->kind, JSON_NULL);
    json_close(&s.doc);

    s = ask(&w, "DELETE", path_of(id), NULL, NULL);
    assert_int_equal(s.status, 200);
    assert_true(member(&s, "deleted")->boolean);
    json_close(&s.doc);
    refused(&w, "DELETE", path_of(id), NULL, 404, "cache_not_found");
    refused(&w, "GET", path_of(id), NULL, 404, "cache_not_found");
    refused(&w, "POST", path_of(id), "{\"pin\":true}", 404, "cache_not_found");
    assert_int_equal(cached(&w, "Once upon a time there was a girl who had"), 0);
    close_fixture(&w);
}

static void messages_are_kept_as_the_chat_begins(void **state) {
    (void)state;
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){0});
    create(&w, NULL, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}");
    answered s = ask(&w, "POST", "/v1/chat/completions", NULL,
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":2}");
    const json *usage = member(&s, "usage");
    assert_int_equal(json_get(json_get(usage, "prompt_tokens_details"), "cached_tokens")->integer,
                     json_get(usage, "prompt_tokens")->integer - 1);
    json_close(&s.doc);
    close_fixture(&w);
}

static void what_is_wrong_is_refused(void **state) {
    (void)state;
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){0});
    static const char *const ids[] = {
        "0", "-1", "x", "1x", "%2e", "18446744073709551616", "99999999999999999999999999"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char path[128];
        snprintf(path, sizeof path, "/v1/caches/%s", ids[i]);
        refused(&w, "GET", path, NULL, 404, "cache_not_found");
        refused(&w, "DELETE", path, NULL, 404, "cache_not_found");
    }
    refused(&w, "POST", "/v1/caches", "{}", 400, "missing_field");
    refused(&w, "POST", "/v1/caches", "{\"prompt\":\"a\",\"ids\":[1]}", 400, "invalid_value");
    refused(&w, "POST", "/v1/caches", "{\"prompt\":[\"a\",\"b\"]}", 400, "value_out_of_range");
    refused(&w, "POST", "/v1/caches", "{\"prompt\":\"a\",\"ttl\":-1}", 400, "value_out_of_range");
    close_fixture(&w);
}

/* R20: a key sees, pins and drops its own texts only; of a text with a salt nothing is shown by its id. */
static void r20_texts_of_other_keys_are_not_there(void **state) {
    (void)state;
    static const char first[] = "first-key-0123456789", second[] = "second-key-0123456789";
    static const char text[] = "first-key-0123456789\nsecond-key-0123456789\n";
    char file[512];
    snprintf(file, sizeof file, "%s", scratch_file("keys", text, sizeof text - 1));
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){.api_key_file = file});
    const int64_t id = create(&w, first, "{\"prompt\":\"Once upon a time\"}");
    const int64_t salted = create(&w, first, "{\"prompt\":\"Once upon a time\",\"cache_salt\":\"mine\"}");
    static const struct {
        const char *method, *body;
    } of[] = {{"GET", NULL}, {"POST", "{\"pin\":true}"}, {"DELETE", NULL}};
    for (int i = 0; i < 3; i++) {
        answered s = ask(&w, of[i].method, path_of(id), second, of[i].body);
        assert_int_equal(s.status, 404);
        json_close(&s.doc);
        s = ask(&w, of[i].method, path_of(salted), first, of[i].body);
        assert_int_equal(s.status, 404);
        json_close(&s.doc);
        s = ask(&w, of[i].method, path_of(id), first, of[i].body);
        assert_int_equal(s.status, 200);
        json_close(&s.doc);
    }
    close_fixture(&w);
}

static void texts_go_when_their_time_ends(void **state) {
    (void)state;
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){.cache_ttl = 20});
    clock_hold();
    const int64_t own = create(&w, NULL, "{\"prompt\":\"Once upon a time\",\"ttl\":100}");
    const int64_t other = create(&w, NULL, "{\"prompt\":\"There was a dog\"}");
    for (int kept = 2; kept > 0; kept--) {
        clock_move(kept == 2 ? 19000 : 1000);
        for (int i = 0; i < kept; i++) {
            answered s = ask(&w, "GET", path_of(i ? other : own), NULL, NULL);
            assert_int_equal(s.status, 200);
            json_close(&s.doc);
        }
    }
    clock_run();
    refused(&w, "GET", path_of(other), NULL, 404, "cache_not_found");
    close_fixture(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_made_shown_and_dropped), cmocka_unit_test(messages_are_kept_as_the_chat_begins),
        cmocka_unit_test(what_is_wrong_is_refused),         cmocka_unit_test(r20_texts_of_other_keys_are_not_there),
        cmocka_unit_test(texts_go_when_their_time_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
