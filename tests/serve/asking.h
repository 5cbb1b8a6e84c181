/* Questions to a server's /v1/caches, and answers as JSON.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SERVE_ASKING_H
#define TESTS_SERVE_ASKING_H

#include <unistd.h>

#include "serve/fixture.h"

typedef struct answered {
    json_doc *doc;
    int status;
} answered;

static inline answered ask(const fixture *w, const char *method, const char *path, const char *key, const char *body) {
    bytes request = {0};
    bytes_printf(&request, "%s %s HTTP/1.1\r\nHost: localhost\r\n", method, path);
    if (key) bytes_printf(&request, "Authorization: Bearer %s\r\n", key);
    if (body) bytes_printf(&request, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    bytes_printf(&request, "\r\n%s", body ? body : "");
    int fd = client_connect(w->port);
    client_send(fd, request.data, request.n);
    answer_text a = client_read(fd);
    close(fd);
    answered s = {client_json(&a), a.status};
    client_clear(&a);
    bytes_clear(&request);
    return s;
}

static inline const json *member(const answered *s, const char *name) {
    const json *value = json_get(json_root(s->doc), name);
    if (!value) fail_msg("no member %s", name);
    return value;
}

static inline void refused(const fixture *w, const char *method, const char *path, const char *body, int status,
                           const char *code) {
    answered s = ask(w, method, path, NULL, body);
    assert_int_equal(s.status, status);
    assert_string_equal(json_get(member(&s, "error"), "code")->string, code);
    json_close(&s.doc);
}

/* Makes a text; its id. */
static inline int64_t create(const fixture *w, const char *key, const char *body) {
    answered s = ask(w, "POST", "/v1/caches", key, body);
    if (s.status != 200) fail_msg("%s", mn_last_error());
    assert_true(member(&s, "kept")->boolean);
    const int64_t id = member(&s, "id")->integer;
    json_close(&s.doc);
    return id;
}

static inline const char *path_of(int64_t id) {
    static char path[64];
    snprintf(path, sizeof path, "/v1/caches/%lld", (long long)id);
    return path;
}

static inline int64_t cached(const fixture *w, const char *prompt) {
    char body[512];
    snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"max_tokens\":2,\"temperature\":0}", prompt);
    answered s = ask(w, "POST", "/v1/completions", NULL, body);
    assert_int_equal(s.status, 200);
    const int64_t n = json_get(json_get(member(&s, "usage"), "prompt_tokens_details"), "cached_tokens")->integer;
    json_close(&s.doc);
    return n;
}

#endif
