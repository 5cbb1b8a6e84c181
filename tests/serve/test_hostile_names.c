/* Names in requests are names: none of them leads to a file, whatever it looks like and wherever it stands.
 * SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <dirent.h>

#include "serve/fixture.h"

static const struct {
    const char *bytes;
    size_t n;
} names[] = {
#define NAME(text)                                                                                                     \
    { text, sizeof text - 1 }
    NAME("../secret"),
    NAME("../../etc/passwd"),
    NAME("/etc/passwd"),
    NAME("./../secret"),
    NAME("..\\secret"),
    NAME("C:\\Windows\\win.ini"),
    NAME("\\\\host\\share\\file"),
    NAME("//host/share"),
    NAME("."),
    NAME(".."),
    NAME("/"),
    NAME("~"),
    NAME("~/.ssh/id_rsa"),
    NAME("$HOME/secret"),
    NAME("${HOME}"),
    NAME("%2e%2e%2fsecret"),
    NAME("%252e%252e%252fsecret"),
    NAME("..%00/secret"),
    NAME("..;/secret"),
    NAME("....//secret"),
    NAME("..\xc0\xaf"
         "secret"),
    NAME("\xe2\x80\xae"
         "terces"),
    NAME("\xef\xbc\x8e\xef\xbc\x8e/secret"),
    NAME("file:///etc/passwd"),
    NAME("http://127.0.0.1/secret"),
    NAME("unix:/run/secret.sock"),
    NAME("/proc/self/mem"),
    NAME("/proc/self/environ"),
    NAME("/dev/zero"),
    NAME("/dev/stdin"),
    NAME("CON"),
    NAME("NUL.txt"),
    NAME("-rf"),
    NAME("--help"),
    NAME("*"),
    NAME("secret*"),
    NAME("; rm -rf /"),
    NAME("| id"),
    NAME("`id`"),
    NAME("$(id)"),
    NAME("embedded"),
    NAME("org/name"),
    NAME("org/name@main"),
    NAME("tiny/"),
    NAME("tiny\0"),
    NAME("tiny\0/../secret"),
    NAME("\0"),
    NAME("a\nb"),
    NAME("a\r\nX-Evil: 1"),
    NAME(" tiny"),
    NAME("TINY"),
    NAME("{id}"),
    NAME("18446744073709551617"),
    NAME("-1"),
    NAME("1e3"),
    NAME("0x10"),
    NAME("0123456789012345678901234567890123456789012345678901234567890123456789"),
};

enum { N_NAMES = sizeof names / sizeof *names };

#define CANARY "a text that is in no answer"

/* ---- where names stand: %s is the name as JSON ---- */

#define HELLO "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"
#define SHORT "\"max_tokens\":1,\"temperature\":0"

static const struct {
    const char *path, *body;
} places[] = {
    {"/v1/chat/completions", "{" HELLO "," SHORT ",\"model\":%s}"},
    {"/v1/completions", "{\"prompt\":\"Once\"," SHORT ",\"model\":%s}"},
    {"/v1/responses", "{\"input\":\"Hello\",\"max_output_tokens\":1,\"model\":%s}"},
    {"/v1/responses", "{\"input\":\"Hello\",\"max_output_tokens\":1,\"previous_response_id\":%s}"},
    {"/v1/messages", "{" HELLO "," SHORT ",\"model\":%s}"},
    {"/v1/messages/count_tokens", "{" HELLO ",\"model\":%s}"},
    {"/v1/generate", "{\"prompt\":\"Once\",\"model\":%s}"},
    {"/v1/generate", "{\"prompt\":\"Once\",\"cache_implementation\":%s}"},
    {"/v1/generate", "{\"prompt\":\"Once\",\"cache_implementation\":\"offloaded\",\"cache_config\":{\"path\":%s}}"},
    {"/v1/generate", "{\"prompt\":\"Once\",\"generation_config\":{\"cache_implementation\":%s}}"},
    {"/v1/generate", "{\"prompt\":\"Once\",\"generation_config\":{\"cache_implementation\":\"offloaded\","
                     "\"cache_config\":{\"path\":%s}}}"},
    {"/v1/generate", "{\"prompt\":\"Once\",\"cache_implementation\":\"quantized\",\"cache_config\":{\"backend\":%s}}"},
    {"/v1/caches", "{\"prompt\":\"Once\",\"model\":%s}"},
};

static const char *const routes_with_ids[][2] = {
    {"GET", "/v1/caches/"}, {"POST", "/v1/caches/"}, {"DELETE", "/v1/caches/"}, {"DELETE", "/v1/requests/"}};

static void check(answer_text *a, size_t name, const char *place, bool is_taken) {
    const bool is_right = is_taken ? a->status == 200 : a->status == 400 || a->status == 403 || a->status == 404;
    if (!is_right) fail_msg("name %zu: %s: %d %.300s", name, place, a->status, a->body.data);
    assert_null(strstr(bytes_text(&a->body), CANARY));
    assert_null(strstr(bytes_text(&a->head), "\nX-Evil"));
    client_clear(a);
}

static void ask_in_bodies(const fixture *w, size_t i) {
    bytes text = {0};
    json_put_string(&text, names[i].bytes, names[i].n);
    for (size_t k = 0; k < sizeof places / sizeof *places; k++) {
        char body[1024];
        snprintf(body, sizeof body, places[k].body, bytes_text(&text));
        answer_text a = client_ask(w->port, places[k].path, body);
        check(&a, i, places[k].body, false);
    }
    bytes_clear(&text);
}

/* Every byte but letters and digits as %XX. */
static void ask_in_paths(const fixture *w, size_t i) {
    bytes id = {0};
    for (size_t k = 0; k < names[i].n; k++) {
        const unsigned char c = (unsigned char)names[i].bytes[k];
        bytes_printf(&id, isalnum(c) ? "%c" : "%%%02X", c);
    }
    for (size_t k = 0; k < sizeof routes_with_ids / sizeof *routes_with_ids; k++) {
        char path[1024];
        snprintf(path, sizeof path, "%s%s", routes_with_ids[k][1], bytes_text(&id));
        const bool is_post = strcmp(routes_with_ids[k][0], "POST") == 0;
        answer_text a = client_ask_with(w->port, routes_with_ids[k][0], path, "", is_post ? "{\"pin\":true}" : "");
        check(&a, i, path, false);
    }
    bytes_clear(&id);
}

/* A salt may be any visible ASCII characters: it names no file. */
static void ask_as_salt(const fixture *w, size_t i) {
    bytes body = {0};
    bool is_visible = names[i].n > 0;
    for (size_t k = 0; k < names[i].n; k++)
        is_visible = is_visible && names[i].bytes[k] > ' ' && names[i].bytes[k] < 127;
    bytes_append_text(&body, "{\"prompt\":\"");
    for (int k = 0; k < 12; k++)
        bytes_printf(&body, "Once upon a time there were %d little girls. ", k); /* worth a file */
    bytes_append_text(&body, "\"," SHORT ",\"cache_salt\":");
    json_put_string(&body, names[i].bytes, names[i].n);
    bytes_append_text(&body, "}");
    answer_text a = client_ask(w->port, "/v1/completions", bytes_text(&body));
    check(&a, i, "cache_salt", is_visible);
    bytes_clear(&body);
}

/* The server's folder has files named by hashes, and its parent nothing but it and the secret. */
static void check_folders(const char *parent, const char *folder) {
    int n_files = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        const size_t n = strspn(e->d_name, "0123456789abcdef-");
        if (n != 33 || strcmp(e->d_name + n, ".safetensors") != 0) fail_msg("a file '%s'", e->d_name);
        n_files++;
    }
    closedir(dir);
    assert_true(n_files > 1);
    assert_int_equal(scratch_count(parent), 2);
}

static void R25_names_are_not_paths(void **state) {
    (void)state;
    char parent[512], folder[512];
    snprintf(parent, sizeof parent, "%s", scratch_empty("names"));
    snprintf(folder, sizeof folder, "%s", scratch_empty("names/kept"));
    scratch_file("names/secret", CANARY, sizeof CANARY - 1);
    assert_true(N_NAMES >= 50);
    fixture w = serve_embedded(PLAIN_TEMPLATE, (serve_options){.cache_dir = folder});
    for (size_t i = 0; i < N_NAMES; i++) {
        ask_in_bodies(&w, i);
        ask_in_paths(&w, i);
        ask_as_salt(&w, i);
    }
    close_fixture(&w);
    check_folders(parent, folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(R25_names_are_not_paths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
