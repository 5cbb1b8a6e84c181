/* /v1/caches/saved: kept texts as files with names, which a server that starts later loads.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "serve/asking.h"
#include "support/scratch.h"

#define TEXT "Once upon a time there was a girl"
#define MORE TEXT " who had"

/* Fewer tokens than are written to the folder by themselves. */
static const char keep[] = "{\"prompt\":\"" TEXT "\"}";

static const char first_key[] = "first-key-0123456789", second_key[] = "second-key-0123456789";

/* The options of a server with an empty folder of caches. */
static serve_options with_folder(const char *name) {
    static char folder[512];
    snprintf(folder, sizeof folder, "%s", scratch_empty(name));
    return (serve_options){.cache_dir = folder};
}

static answered save(const fixture *w, const char *key, int64_t id, const char *name) {
    char path[96], body[256];
    snprintf(path, sizeof path, "/v1/caches/%lld/save", (long long)id);
    snprintf(body, sizeof body, "{\"name\":\"%s\"}", name);
    return ask(w, "POST", path, key, body);
}

static answered load(const fixture *w, const char *key, const char *name, const char *body) {
    char path[256];
    snprintf(path, sizeof path, "/v1/caches/saved/%s", name);
    return ask(w, "POST", path, key, body);
}

static void is_refused(answered s, int status, const char *code) {
    const json *error = member(&s, "error");
    if (s.status != status || !json_is_string(json_get(error, "code"), code))
        fail_msg("%d %s", s.status, json_get(error, "message")->string);
    if (strstr(json_get(error, "message")->string, "saved/")) fail_msg("%s", json_get(error, "message")->string);
    json_close(&s.doc);
}

static int64_t is_done(answered s, const char *number) {
    if (s.status != 200) fail_msg("%d %s", s.status, json_get(member(&s, "error"), "message")->string);
    const json *value = json_get(json_root(s.doc), number);
    const int64_t n = value && value->kind == JSON_INT ? value->integer : -1;
    json_close(&s.doc);
    return n;
}

static size_t n_saved(const fixture *w, const char *key) {
    answered s = ask(w, "GET", "/v1/caches/saved", key, NULL);
    assert_int_equal(s.status, 200);
    const size_t n = member(&s, "data")->n;
    json_close(&s.doc);
    return n;
}

/* What the tree keeps in memory, and its bytes. */
static void kept(const fixture *w, int64_t *n, int64_t *n_bytes) {
    answered s = ask(w, "GET", "/v1/caches", NULL, NULL);
    const json *memory = json_get(member(&s, "tiers"), "memory");
    *n = json_get(memory, "texts")->integer;
    *n_bytes = json_get(memory, "bytes")->integer;
    json_close(&s.doc);
}

static char *text_of(const fixture *w, int64_t *n_cached) {
    answered s =
        ask(w, "POST", "/v1/completions", NULL, "{\"prompt\":\"" MORE "\",\"max_tokens\":8,\"temperature\":0}");
    assert_int_equal(s.status, 200);
    const json *text = json_get(&member(&s, "choices")->items[0], "text");
    char *copy = strdup(text->string); /* not of the memory that a fixture counts */
    *n_cached = json_get(json_get(member(&s, "usage"), "prompt_tokens_details"), "cached_tokens")->integer;
    json_close(&s.doc);
    return copy;
}

/* R13: what was saved is found after a restart, all of it, and the answer is the same. */
static void r13_a_saved_text_is_loaded_after_a_restart(void **state) {
    (void)state;
    const serve_options options = with_folder("caches");
    int64_t n_cached = 0;
    fixture w = serve_embedded(PLAIN_TEMPLATE, options);
    char *wanted = text_of(&w, &n_cached);
    assert_int_equal(n_cached, 0);
    const int64_t id = create(&w, NULL, keep);
    const int64_t n = is_done(save(&w, NULL, id, "girl"), "tokens");
    assert_true(n > 4);
    assert_int_equal(is_done(save(&w, NULL, id, "girl"), "tokens"), n); /* replaces it */
    assert_int_equal(n_saved(&w, NULL), 1);
    close_fixture(&w);

    w = serve_embedded(PLAIN_TEMPLATE, options);
    int64_t texts, n_bytes;
    kept(&w, &texts, &n_bytes);
    assert_int_equal(texts, 0);
    answered s = load(&w, NULL, "girl", "{\"pin\":true,\"ttl\":60}");
    assert_int_equal(s.status, 200);
    assert_int_equal(member(&s, "total_tokens")->integer, n);
    assert_true(member(&s, "pinned")->boolean && member(&s, "kept")->boolean);
    assert_true(member(&s, "ttl_left_ms")->real > 0);
    json_close(&s.doc);
    char *got = text_of(&w, &n_cached);
    assert_int_equal(n_cached, n);
    assert_string_equal(got, wanted);

    s = ask(&w, "DELETE", "/v1/caches/saved/girl", NULL, NULL);
    assert_int_equal(s.status, 200);
    json_close(&s.doc);
    assert_int_equal(n_saved(&w, NULL), 0);
    is_refused(load(&w, NULL, "girl", "{}"), 404, "saved_cache_not_found");
    free(got);
    free(wanted);
    close_fixture(&w);
}

/* The file of a model that others do not have. */
static void save_of_another_model(const char *path) {
    const int32_t ids[] = {1, 2, 3, 4};
    mn_model *other = engine_model("golden/llama", "f32", "auto", 1);
    mn_session *session = engine_session(other, (engine_cache){.implementation = "dynamic"});
    assert_ok(mn_session_step(session, ids, 4, NULL));
    assert_ok(mn_session_save(session, path, false));
    mn_session_close(&session);
    mn_model_close(&other);
}

/* R12: a file that is damaged or foreign is refused with a sentence, and nothing has changed. */
static void r12_bad_files_are_refused_and_change_nothing(void **state) {
    (void)state;
    enum { ROUNDS = 24 };
    char path[1024];
    bytes good = {0};
    const serve_options options = with_folder("damaged");
    snprintf(path, sizeof path, "%s/saved/girl.safetensors", options.cache_dir);
    fixture w = serve_embedded(PLAIN_TEMPLATE, options);
    const int64_t id = create(&w, NULL, keep);
    is_done(save(&w, NULL, id, "girl"), "tokens");
    assert_ok(file_read(&good, path, 1 << 24));
    int64_t before, bytes_before, after, bytes_after;
    kept(&w, &before, &bytes_before);
    for (uint64_t i = 0; i < ROUNDS + 4; i++) {
        bytes bad = {0};
        bytes_append(&bad, good.data, good.n);
        if (i < ROUNDS) bad.data[i * good.n / ROUNDS + i % 8] ^= (char)(1 << i % 8);
        if (i == ROUNDS) bad.n /= 2;
        if (i == ROUNDS + 1) bad.n = 0;
        if (i == ROUNDS + 2) bytes_append(&bad, "more", 4);
        assert_ok(file_write_atomic(path, bad.data, bad.n));
        if (i == ROUNDS + 3) save_of_another_model(path);
        is_refused(load(&w, NULL, "girl", "{\"pin\":true}"), 409, "saved_cache_refused");
        kept(&w, &after, &bytes_after);
        assert_true(after == before && bytes_after == bytes_before);
        bytes_clear(&bad);
    }
    assert_ok(file_write_atomic(path, good.data, good.n));
    chmod(path, 0666); /* others may have written it */
    is_refused(load(&w, NULL, "girl", "{}"), 404, "saved_cache_not_found");
    chmod(path, 0600);
    is_done(load(&w, NULL, "girl", "{}"), "id");
    bytes_clear(&good);
    close_fixture(&w);
}

static const char *const no_names[] = {
    "",
    ".",
    "..",
    "../x",
    "../../x",
    "/etc/passwd",
    "/",
    "a/b",
    "a/../b",
    "./a",
    ".a",
    "..a",
    "-a",
    "--help",
    "a b",
    " a",
    "a ",
    "a\\\\b",
    "a\\nb",
    "a\\tb",
    "a\\u0000b",
    "a\\u0000",
    "a\\u001b",
    "a\\u007f",
    "a*",
    "a?",
    "a[b]",
    "$HOME",
    "`id`",
    "a;b",
    "a|b",
    "a&b",
    "a<b",
    "a>b",
    "a'b",
    "a\\\"b",
    "~",
    "~root",
    "a:b",
    "C:\\\\a",
    "a%2fb",
    "%2e%2e",
    "%00",
    "a\\u2215b",
    "a\\u202eb",
    "\\u00e9",
    "\\ud83d\\ude00",
    "a=b",
    "a,b",
    "a@b",
    "a#b",
    "a!b",
    "(a)",
    "{a}",
};

/* R25: names are not paths. */
static void r25_names_are_not_paths(void **state) {
    (void)state;
    const serve_options options = with_folder("names");
    fixture w = serve_embedded(PLAIN_TEMPLATE, options);
    const int64_t id = create(&w, NULL, keep);
    assert_true(sizeof no_names / sizeof *no_names >= 50);
    for (size_t i = 0; i < sizeof no_names / sizeof *no_names; i++) {
        answered s = save(&w, NULL, id, no_names[i]);
        if (s.status != 400) fail_msg("'%s': %d", no_names[i], s.status);
        json_close(&s.doc);
    }
    char longest[80];
    memset(longest, 'a', sizeof longest);
    longest[63] = 0;
    is_done(save(&w, NULL, id, longest), "tokens");
    longest[63] = 'a';
    longest[64] = 0;
    answered s = save(&w, NULL, id, longest);
    assert_int_equal(s.status, 400);
    json_close(&s.doc);
    static const char *const paths[] = {"..", "%2e%2e", ".a", "..%2fapi-keys.secret", "%2fetc%2fpasswd", "a%00b", "-a"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char path[128];
        s = load(&w, NULL, paths[i], "{}");
        if (s.status != 404 && s.status != 400) fail_msg("'%s': %d", paths[i], s.status);
        json_close(&s.doc);
        snprintf(path, sizeof path, "/v1/caches/saved/%s", paths[i]);
        s = ask(&w, "DELETE", path, NULL, NULL);
        if (s.status != 404 && s.status != 400) fail_msg("'%s': %d", paths[i], s.status);
        json_close(&s.doc);
    }
    assert_int_equal(n_saved(&w, NULL), 1);
    assert_int_equal(scratch_count(options.cache_dir), 1); /* the folder of saved ones */
    close_fixture(&w);
}

/* R20: a key's saved texts are its own, also where names are the same; texts with a salt have no id to be saved by. */
static void r20_saved_texts_of_other_keys_are_not_there(void **state) {
    (void)state;
    static const char text[] = "first-key-0123456789\nsecond-key-0123456789\n";
    char file[512];
    snprintf(file, sizeof file, "%s", scratch_file("keys", text, sizeof text - 1));
    serve_options options = with_folder("keyed");
    options.api_key_file = file;
    fixture w = serve_embedded(PLAIN_TEMPLATE, options);
    const int64_t id = create(&w, first_key, keep);
    const int64_t salted = create(&w, first_key, "{\"prompt\":\"" TEXT "\",\"cache_salt\":\"mine\"}");
    is_refused(save(&w, second_key, id, "girl"), 404, "cache_not_found");
    is_refused(save(&w, first_key, salted, "girl"), 404, "cache_not_found");
    const int64_t n = is_done(save(&w, first_key, id, "girl"), "tokens");
    close_fixture(&w);

    w = serve_embedded(PLAIN_TEMPLATE, options);
    assert_int_equal(n_saved(&w, first_key), 1);
    assert_int_equal(n_saved(&w, second_key), 0);
    is_refused(load(&w, second_key, "girl", "{}"), 404, "saved_cache_not_found");
    is_refused(ask(&w, "DELETE", "/v1/caches/saved/girl", second_key, NULL), 404, "saved_cache_not_found");
    answered s = load(&w, first_key, "girl", "{}");
    assert_int_equal(s.status, 200);
    assert_int_equal(member(&s, "total_tokens")->integer, n);
    json_close(&s.doc);
    const char *const keys[] = {second_key, first_key};
    for (int i = 0; i < 2; i++) { /* what was loaded is for its key */
        s = ask(&w, "POST", "/v1/completions", keys[i], "{\"prompt\":\"" MORE "\",\"max_tokens\":1}");
        const json *details = json_get(member(&s, "usage"), "prompt_tokens_details");
        assert_int_equal(json_get(details, "cached_tokens")->integer, i * n);
        json_close(&s.doc);
    }
    close_fixture(&w);
}

static void saved_texts_have_limits(void **state) {
    (void)state;
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){0});
    is_refused(save(&w, NULL, create(&w, NULL, keep), "girl"), 501, "not_supported");
    is_refused(load(&w, NULL, "girl", "{}"), 501, "not_supported");
    close_fixture(&w);
    for (int i = 0; i < 2; i++) {
        serve_options options = with_folder("limited");
        w = serve_embedded(PLAIN_TEMPLATE, options);
        const int64_t id = create(&w, NULL, keep), one = is_done(save(&w, NULL, id, "a"), "bytes");
        close_fixture(&w);
        options.cache_dir_limit = i == 0 ? (uint64_t)(5 * one / 2) : 0;
        options.cache_quota = i == 1 ? (uint64_t)(5 * one / 2) : 0;
        w = serve_embedded(PLAIN_TEMPLATE, options);
        const int64_t again = create(&w, NULL, keep);
        is_done(save(&w, NULL, again, "b"), "bytes");
        is_refused(save(&w, NULL, again, "c"), 429, "save_limit");
        is_done(save(&w, NULL, again, "a"), "bytes"); /* it takes the place of the one before */
        assert_int_equal(n_saved(&w, NULL), 2);
        close_fixture(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(r13_a_saved_text_is_loaded_after_a_restart),
        cmocka_unit_test(r12_bad_files_are_refused_and_change_nothing),
        cmocka_unit_test(r25_names_are_not_paths),
        cmocka_unit_test(r20_saved_texts_of_other_keys_are_not_there),
        cmocka_unit_test(saved_texts_have_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
