/* What clients with different keys learn of each other: nothing by time, nothing by what is counted. How long a key is
 * compared says nothing about it. The short tier counts what is computed, the long one measures times, except under
 * a sanitizer.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdatomic.h>

#include "http/keys.h"
#include "model/network.h"
#include "serve/fixture.h"
#include "support/budget.h"

#define FIRST_KEY  "first-key-0123456789"
#define SECOND_KEY "second-key-987654321"

static const char first[] = "x-api-key: " FIRST_KEY "\r\n", second[] = "x-api-key: " SECOND_KEY "\r\n";

static fixture open_keyed(serve_options options) {
    static const char text[] = FIRST_KEY "\n" SECOND_KEY "\n";
    char path[512]; /* scratch_file's is valid for four calls */
    snprintf(path, sizeof path, "%s", scratch_file("keys", text, sizeof text - 1));
    options.api_key_file = path;
    return serve_embedded(PLAIN_TEMPLATE, options);
}

/* ---- what is computed ---- */

static atomic_llong n_passes, n_tokens; /* of the model */

mn_status __wrap_model_forward(model_core *model, const forward_row *rows, int n_rows);
mn_status __real_model_forward(model_core *model, const forward_row *rows, int n_rows);

mn_status __wrap_model_forward(model_core *model, const forward_row *rows, int n_rows) {
    atomic_fetch_add(&n_passes, 1);
    for (int i = 0; i < n_rows; i++) atomic_fetch_add(&n_tokens, rows[i].n);
    return __real_model_forward(model, rows, n_rows);
}

/* ---- times ---- */

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The area under the curve of the best guess which of two is the smaller one: the share of pairs in which a is. */
static double area(double *a, double *b, size_t n) {
    double wins = 0;
    qsort(a, n, sizeof *a, compare);
    qsort(b, n, sizeof *b, compare);
    for (size_t i = 0, below = 0, upto = 0; i < n; i++) {
        while (below < n && a[below] < b[i]) below++;
        while (upto < n && a[upto] <= b[i]) upto++;
        wins += 0.5 * (double)(below + upto);
    }
    return wins / ((double)n * (double)n);
}

/* Standard deviation of the area when both are the same. */
static double deviation(size_t n) {
    return sqrt((2 * (double)n + 1) / (12 * (double)n * (double)n));
}

enum { PROMPT = 400, MOST_PAIRS = 800 };

/* A sanitizer's own work is most of a time, so there is nothing to learn from it. */
static bool is_timed(void) {
    return test_is_long() && !TEST_IS_SANITIZED;
}

static uint64_t last_prompt = 1; /* its seed */

typedef struct cost {
    double ms; /* when is_timed() */
    long long n_passes, n_tokens;
} cost;

static cost ask(const fixture *w, const char *header, const char *salt, uint64_t seed) {
    bytes b = {0};
    bytes_append_text(&b, "{\"max_tokens\":1,\"temperature\":0,\"prompt\":[1");
    bytes_printf(&b, ",%d", (int)(20 + seed % 450)); /* no two of the short tier share more than the first token */
    for (int i = 2; i < PROMPT; i++) bytes_printf(&b, ",%d", (int)(20 + test_random(&seed) % 450));
    bytes_printf(&b, "]%s}", salt);
    const double begin = is_timed() ? wall_ms() : 0;
    atomic_store(&n_passes, 0);
    atomic_store(&n_tokens, 0);
    answer_text a = client_ask_with(w->port, "POST", "/v1/completions", header, bytes_text(&b));
    const cost c = {is_timed() ? wall_ms() - begin : 0, atomic_load(&n_passes), atomic_load(&n_tokens)};
    assert_int_equal(a.status, 200);
    client_clear(&a);
    bytes_clear(&b);
    return c;
}

typedef struct people {
    const char *header, *salt;
} people;

/* How well times tell prompts that `one` has asked for from prompts that nobody has, both asked for by `other`. A time
 * is the least one of a few prompts, so that other programs of the machine do not hide it. */
static double area_between(const fixture *w, size_t n, people one, people other) {
    enum { N_TRIES = 3 };
    double known[MOST_PAIRS], unknown[MOST_PAIRS];
    for (size_t i = 0; i < n; i++) {
        known[i] = unknown[i] = INFINITY;
        for (int k = 0; k < N_TRIES; k++) {
            const uint64_t prompt = ++last_prompt * 2, never = prompt + 1;
            const bool is_first = test_random(&(uint64_t){prompt * 7919}) & 1;
            ask(w, one.header, one.salt, prompt);
            if (!is_first) unknown[i] = fmin(unknown[i], ask(w, other.header, other.salt, never).ms);
            known[i] = fmin(known[i], ask(w, other.header, other.salt, prompt).ms);
            if (is_first) unknown[i] = fmin(unknown[i], ask(w, other.header, other.salt, never).ms);
        }
    }
    return area(known, unknown, n);
}

/* Where nothing is shared, the same is computed for a prompt that `one` has asked for as for one that nobody has; where
 * prompts are shared, only what comes after them. */
static void check_work(const fixture *w, people one, people other, bool shares) {
    ask(w, other.header, other.salt, 0); /* all prompts begin with the same token */
    for (int i = 0; i < 6; i++) {
        const uint64_t prompt = ++last_prompt * 2, never = prompt + 1;
        ask(w, one.header, one.salt, prompt);
        const cost known = ask(w, other.header, other.salt, prompt), unknown = ask(w, other.header, other.salt, never);
        assert_int_equal(unknown.n_tokens, PROMPT - 1);
        assert_int_equal(known.n_tokens, shares ? 1 : PROMPT - 1);
        if (!shares) assert_int_equal(known.n_passes, unknown.n_passes);
    }
}

/* The goal's 0.45 to 0.55 is 3.5 deviations of 800 pairs; one in 2,000 is beyond it by chance, so there is a second
 * try.
 */
static void check_times(const fixture *w, people one, people other, bool shares) {
    check_work(w, one, other, shares);
    if (!is_timed()) return;
    double found = area_between(w, MOST_PAIRS, one, other);
    if (shares ? found < 0.95 : fabs(found - 0.5) > 0.05) found = area_between(w, MOST_PAIRS, one, other);
    print_message("area %.3f of %d pairs, %s\n", found, MOST_PAIRS, shares ? "shared" : "apart");
    if (shares ? found < 0.95 : fabs(found - 0.5) > 0.05) fail_msg("the area is %.3f", found);
}

static const serve_options timed = {.max_num_seqs = 4, .memory_limit = 64 << 20};

static void R22_times_do_not_tell_what_another_key_has_asked(void **state) {
    (void)state;
    for (int shares = 0; shares < 2; shares++) {
        serve_options options = timed;
        options.share_prefixes = shares;
        fixture w = open_keyed(options);
        check_times(&w, (people){first, ""}, (people){second, ""}, shares);
        close_fixture(&w);
    }
}

static void R22_times_do_not_tell_what_another_salt_has_asked(void **state) {
    (void)state;
    fixture w = serve_embedded(PLAIN_TEMPLATE, timed);
    const people one = {"", ",\"cache_salt\":\"one\""}, two = {"", ",\"cache_salt\":\"two\""};
    check_times(&w, one, two, false);
    check_times(&w, one, one, true);
    close_fixture(&w);
}

/* ---- counts ---- */

/* Values that no two requests have in common: times, and ids of what was just made. */
static void mask(char *text) {
    static const char *const before[] = {"\"id\":",
                                         "\"created\":",
                                         "\"created_at\":",
                                         "\"age_ms\":",
                                         "\"seed\":",
                                         "\"unused_ms\":",
                                         "\"queue_ms\":",
                                         "\"prompt_ms\":",
                                         "\"predicted_ms\":",
                                         "\"prompt_per_second\":",
                                         "\"parent\":",
                                         "\"ttl_left_ms\":",
                                         "\"predicted_per_second\":",
                                         "Content-Length: ",
                                         "\"completed_at\":",
                                         "\"previous_response_id\":",
                                         "Date: ",
                                         "no cached prefix has the id '",
                                         "no request '",
                                         "'previous_response_id' is '"};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        for (char *at = text; (at = strstr(at, before[i]));) {
            at += strlen(before[i]);
            const char last = before[i][strlen(before[i]) - 1];
            const size_t n = strcspn(at, last == '\'' ? "'" : last == ':' ? ",}]" : "\r\n");
            memmove(at, at + n, strlen(at + n) + 1);
        }
    }
}

static void put_answer(bytes *out, const char *what, answer_text *a) {
    bytes_printf(out, "%s\n%s\n%s\n\n", what, bytes_text(&a->head), bytes_text(&a->body));
    client_clear(a);
}

static void get_id(char *out, size_t n, answer_text *a) {
    json_doc *doc = client_json(a);
    const json *id = json_get(json_root(doc), "id");
    if (a->status != 200) fail_msg("%d %s", a->status, a->body.data);
    if (id->kind == JSON_INT)
        snprintf(out, n, "%lld", (long long)id->integer);
    else
        snprintf(out, n, "%s", id->string);
    json_close(&doc);
    client_clear(a);
}

typedef struct neighbour {
    int running; /* an answer that does not end; -1: none */
    char request[64], response[64], text[64];
} neighbour;

#define HELLO "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"

/* Somebody who has computed, kept and stored things, and whose request runs. */
static neighbour make_neighbour(const fixture *w) {
    neighbour a = {.running = client_post_with(w->port, "/v1/completions", first,
                                               "{\"prompt\":\"Once\",\"stream\":true," CLIENT_ENDLESS "}")};
    answer_text got = client_ask_with(w->port, "POST", "/v1/responses", first,
                                      "{\"input\":\"Hello\",\"max_output_tokens\":4,\"temperature\":0}");
    get_id(a.response, sizeof a.response, &got);
    for (int i = 0; i < 5; i++) {
        char body[128];
        snprintf(body, sizeof body, "{\"prompt\":\"Once upon a time there were %d girls\",\"pin\":true}", i);
        got = client_ask_with(w->port, "POST", "/v1/caches", first, body);
        get_id(a.text, sizeof a.text, &got);
    }
    got = client_ask_with(w->port, "POST", "/v1/chat/completions", first, "{" HELLO ",\"top_p\":7}");
    assert_int_equal(got.status, 400);
    client_clear(&got);
    int fd = client_begin(w->port, "GET", "/v1/requests", first);
    got = client_read(fd);
    close(fd);
    json_doc *doc = client_json(&got);
    const json *data = json_get(json_root(doc), "data");
    assert_int_equal(data->n, 1);
    snprintf(a.request, sizeof a.request, "%s", json_get(&data->items[0], "id")->string);
    json_close(&doc);
    client_clear(&got);
    return a;
}

/* Everything that the second key gets to see, with these ids of the first one's. */
static char *see_all(const fixture *w, const neighbour *a) {
    static const char *const bodies[][2] = {
        {"/v1/completions",
         "{\"prompt\":\"Once upon a time there were 3 girls and\",\"max_tokens\":6,\"temperature\":0,"
         "\"cache\":{\"explain\":true}}"},
        {"/v1/chat/completions", "{" HELLO ",\"max_tokens\":4,\"temperature\":0,\"cache\":{\"explain\":true}}"},
        {"/v1/messages", "{" HELLO ",\"max_tokens\":4,\"temperature\":0}"},
        {"/v1/messages", "{" HELLO "}"},
        {"/v1/generate",
         "{\"prompt\":\"Once\",\"generation_config\":{\"max_new_tokens\":4,\"do_sample\":false},\"cache\":{\"explain\":true}}"},
        {"/v1/responses", "{\"input\":\"Hello\",\"max_output_tokens\":4,\"temperature\":0}"},
        {"/v1/caches", "{\"prompt\":\"Once upon a time there were 2 girls\"}"},
        {"/v1/caches", "{\"prompt\":\"Once upon a time there were 2 girls\",\"pin\":true,\"ttl\":60}"},
        {"/v1/messages/count_tokens", "{" HELLO "}"},
        {"/apply-template", "{" HELLO "}"},
        {"/tokenize", "{\"content\":\"Hello\"}"},
        {"/detokenize", "{\"tokens\":[5]}"},
        {"/v1/nothing", "{}"}};
    static const char *const gets[] = {"/",          "/v1/models",   "/health",      "/ready", "/props", "/v1/requests",
                                       "/v1/caches", "/v1/requests", "/openapi.json"};
    const struct {
        const char *method, *folder, *id, *body;
    } of_others[] = {{"DELETE", "/v1/requests/", a->request, ""},
                     {"GET", "/v1/caches/", a->text, ""},
                     {"POST", "/v1/caches/", a->text, "{\"pin\":false}"},
                     {"DELETE", "/v1/caches/", a->text, ""}};
    bytes all = {0};
    char text[256];
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        answer_text got = client_ask_with(w->port, "POST", bodies[i][0], second, bodies[i][1]);
        put_answer(&all, bodies[i][0], &got);
    }
    for (size_t i = 0; i < sizeof gets / sizeof *gets; i++) {
        int fd = client_begin(w->port, "GET", gets[i], second);
        answer_text got = client_read(fd);
        close(fd);
        put_answer(&all, gets[i], &got);
    }
    for (size_t i = 0; i < sizeof of_others / sizeof *of_others; i++) {
        snprintf(text, sizeof text, "%s%s", of_others[i].folder, of_others[i].id);
        answer_text got = client_ask_with(w->port, of_others[i].method, text, second, of_others[i].body);
        assert_int_equal(got.status, 404);
        put_answer(&all, of_others[i].folder, &got);
    }
    snprintf(text, sizeof text, "{\"input\":\"Go on\",\"previous_response_id\":\"%s\"}", a->response);
    answer_text got = client_ask_with(w->port, "POST", "/v1/responses", second, text);
    assert_true(got.status >= 400);
    put_answer(&all, "/v1/responses of the other", &got);
    mask(bytes_text(&all) ? all.data : NULL);
    char *seen = strdup(bytes_text(&all)); /* not of the memory that a fixture counts */
    bytes_clear(&all);
    return seen;
}

/* What one key sees is the same whether another one has nothing or is busy. /metrics is left out: it is the operator's,
 * and counts what all do. */
static void R23_counts_do_not_tell_what_another_key_does(void **state) {
    (void)state;
    char *seen[2];
    for (int is_busy = 0; is_busy < 2; is_busy++) {
        fixture w = open_keyed((serve_options){.max_num_seqs = 16, .cache = &client_endless_cache});
        neighbour a = {-1, "cmpl-0123456789abcdefghijklmn", "resp_0123456789abcdefghijklmn", "1"};
        if (is_busy) a = make_neighbour(&w);
        seen[is_busy] = see_all(&w, &a);
        if (a.running >= 0) close(a.running);
        close_fixture(&w);
    }
    for (size_t i = 0; seen[0][i] || seen[1][i]; i++) {
        if (seen[0][i] == seen[1][i]) continue;
        const size_t from = i > 60 ? i - 60 : 0;
        fail_msg("with nobody beside it: %.200s\nbeside another key: %.200s", seen[0] + from, seen[1] + from);
    }
    if (strlen(seen[0]) < 4000) fail_msg("%s", seen[0]);
    free(seen[0]);
    free(seen[1]);
}

static long long make_text(const fixture *w, const char *header, int i) {
    char body[128], id[64];
    snprintf(body, sizeof body, "{\"prompt\":\"%d girls\"}", i);
    answer_text got = client_ask_with(w->port, "POST", "/v1/caches", header, body);
    get_id(id, sizeof id, &got);
    return atoll(id);
}

/* Ids of texts are no count of those that were made. */
static void R23_ids_do_not_count(void **state) {
    (void)state;
    fixture w = open_keyed((serve_options){.max_num_seqs = 16});
    const long long before = make_text(&w, second, 1);
    make_text(&w, first, 2);
    const long long after = make_text(&w, second, 3);
    assert_true(before > 0 && after > 0 && before < 1LL << 53 && after < 1LL << 53);
    assert_true(llabs(after - before) > 1000); /* of 2^52 */
    close_fixture(&w);
}

/* ---- the comparison of keys ---- */

enum { KEY = sizeof FIRST_KEY - 1, MOST_TRIES = 20000, N_TEXTS = 1 << 15 };

static int n_compared;
static size_t n_bytes;

int __wrap_CRYPTO_memcmp(const void *a, const void *b, size_t n);
int __real_CRYPTO_memcmp(const void *a, const void *b, size_t n);

/* The only comparison whose time does not depend on what it compares. */
int __wrap_CRYPTO_memcmp(const void *a, const void *b, size_t n) {
    n_compared++;
    n_bytes += n;
    return __real_CRYPTO_memcmp(a, b, n);
}

/* Ends where texts differ, as the comparison of a key must not. */
static bool ends_early(const char *a, const char *b) {
    volatile int spent = 0;
    for (size_t i = 0; a[i] == b[i]; i++) {
        if (!a[i]) return true;
        spent++;
    }
    return false;
}

/* They begin with 0 to KEY - 1 characters of the right one, and go on with letters that it does not have. */
static void make_wrong_keys(char texts[N_TEXTS][32], uint64_t *seed) {
    for (size_t i = 0; i < N_TEXTS; i++) {
        memcpy(texts[i], FIRST_KEY, KEY + 1);
        for (size_t at = test_random(seed) % KEY; at < KEY; at++) texts[i][at] = (char)('A' + test_random(seed) % 26);
    }
}

/* How many characters it begins with as the right one does. */
static size_t n_right(const char *text) {
    return strcspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
}

/* Standard deviations by which the times of keys that begin with half of the right one or more lie above those of keys
 * that begin with less; n tries of each length. */
static double trend(const keys *k, size_t n, bool early) {
    static double times[2][MOST_TRIES * KEY];
    static char texts[N_TEXTS][32]; /* made before the clock runs: reading what was just written takes its time */
    size_t counts[2] = {0};
    static uint64_t seed = 5;
    for (size_t i = 0; i < n * KEY * 2; i++) {
        const size_t which = i % N_TEXTS;
        if (which == 0) make_wrong_keys(texts, &seed);
        const double begin = wall_ms();
        const bool is_key = keys_find(k, texts[which]) != NULL, is_equal = early && ends_early(texts[which], FIRST_KEY);
        const double ms = wall_ms() - begin;
        const size_t half = n_right(texts[which]) >= KEY / 2;
        assert_false(is_key || is_equal);
        if (counts[half] < n * KEY) times[half][counts[half]++] = ms;
    }
    const size_t both = counts[0] < counts[1] ? counts[0] : counts[1];
    return (area(times[0], times[1], both) - 0.5) / deviation(both);
}

/* Whatever is right of it, the sum of a text is compared with those of all keys, to their ends, and the text itself
 * with none. */
static void compare_to_the_ends(void) {
    static const char both[] = FIRST_KEY "\n" SECOND_KEY "\n";
    char wrong[KEY + 1];
    keys *k = NULL;
    assert_ok(keys_open(&k, scratch_file("keys", both, sizeof both - 1), NULL));
    for (int i = 0; i <= KEY + 1; i++) { /* i characters are right; then the second key */
        snprintf(wrong, sizeof wrong, "%.*s%s", i, FIRST_KEY,
                 &"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[26 - KEY + (i < KEY ? i : KEY)]);
        n_compared = 0;
        n_bytes = 0;
        assert_int_equal(keys_find(k, i > KEY ? SECOND_KEY : wrong) != NULL, i >= KEY);
        assert_int_equal(n_compared, 2);
        assert_int_equal(n_bytes, 2 * (MAC_HEX - 1));
    }
    keys_close(&k);
}

static void R30_comparing_a_key_takes_the_same_time(void **state) {
    (void)state;
    static const char text[] = FIRST_KEY "\n";
    const double most = 2.58; /* alpha 0.01, both sides */
    const size_t n = MOST_TRIES;
    compare_to_the_ends();
    if (!test_is_long()) return;
    keys *k = NULL;
    assert_ok(keys_open(&k, scratch_file("keys", text, sizeof text - 1), NULL));
    assert_non_null(keys_find(k, FIRST_KEY));
    int n_trends = 0;
    for (int i = 0; i < 3; i++) {
        const double found = trend(k, n, false);
        print_message("%.2f deviations\n", found);
        n_trends += fabs(found) > most;
    }
    assert_true(n_trends < 3);
    /* What a comparison costs that ends early is seen. */
    const double found = trend(k, n, true);
    print_message("%.2f deviations of one that ends early\n", found);
    assert_true(found > most);
    keys_close(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(R22_times_do_not_tell_what_another_key_has_asked),
        cmocka_unit_test(R22_times_do_not_tell_what_another_salt_has_asked),
        cmocka_unit_test(R23_counts_do_not_tell_what_another_key_does),
        cmocka_unit_test(R23_ids_do_not_count),
        cmocka_unit_test(R30_comparing_a_key_takes_the_same_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
