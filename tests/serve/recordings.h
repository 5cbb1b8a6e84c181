/* A server with the tiny speech model beside the embedded one, forms with recordings, and what the library says to
 * them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SERVE_RECORDINGS_H
#define TESTS_SERVE_RECORDINGS_H

#include "base/clock.h"
#include "base/file.h"
#include "serve.h"
#include "serve/client.h"
#include "support/engine.h"
#include "support/scratch.h"
#include "support/speech/spelled.h"

#define ROUTE     "/v1/audio/transcriptions"
#define TRANSLATE "/v1/audio/translations"
#define BOUNDARY  "a-boundary-of-ours"

typedef struct fixture {
    mn_model *text, *speech;
    server *server;
    int port;
} fixture;

static inline fixture open_with(serve_options options) {
    fixture w = {.text = engine_model("embedded", "auto", "auto", 2), .speech = spelled_model()};
    options.name = "tiny";
    options.speech_model = w.speech;
    options.speech_name = "spelled";
    assert_ok(serve_open(&w.server, w.text, &options));
    w.port = serve_port(w.server);
    return w;
}

static inline fixture open_fixture(void) {
    return open_with((serve_options){0});
}

static inline void close_fixture(fixture *w) {
    serve_close(&w->server, 2000);
    mn_model_close(&w->text);
    mn_model_close(&w->speech);
}

/* ---- recordings and forms ---- */

static inline bytes read_data(const char *name) {
    char path[128];
    bytes b = {0};
    snprintf(path, sizeof path, "audio/%s", name);
    assert_ok(file_read(&b, data_path(path), 1 << 22));
    return b;
}

/* Noise of so many seconds, 8-bit samples at 8 kHz. */
static inline bytes make_noise(int seconds) {
    bytes b = {0};
    uint64_t seed = 7;
    uint32_t n = (uint32_t)seconds * 8000, riff = n + 36, head[7] = {16, 1 | 1 << 16, 8000, 8000, 1 | 8 << 16};
    bytes_append_text(&b, "RIFF");
    bytes_append(&b, &riff, 4);
    bytes_append_text(&b, "WAVEfmt ");
    bytes_append(&b, head, 20);
    bytes_append_text(&b, "data");
    bytes_append(&b, &n, 4);
    for (uint32_t i = 0; i < n; i++) {
        char level = (char)test_random(&seed);
        bytes_append(&b, &level, 1);
    }
    return b;
}

static inline void put_field(bytes *form, const char *name, const char *value) {
    bytes_printf(form, "--" BOUNDARY "\r\nContent-Disposition: form-data; name=\"%s\"\r\n\r\n%s\r\n", name, value);
}

static inline void put_file(bytes *form, const bytes *recording) {
    bytes_append_text(form, "--" BOUNDARY "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n"
                            "Content-Type: audio/wav\r\n\r\n");
    if (recording->n) bytes_append(form, recording->data, recording->n);
    bytes_append_text(form, "\r\n");
}

static inline void end_form(bytes *form) {
    bytes_append_text(form, "--" BOUNDARY "--\r\n");
}

/* header: whole lines, or "". */
static inline int post_bytes(int port, const char *path, const char *type, const char *header, const bytes *body) {
    bytes head = {0};
    int fd = client_connect(port);
    bytes_printf(&head, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n%sContent-Length: %zu\r\n\r\n",
                 path, type, header, body->n);
    client_send(fd, head.data, head.n);
    client_send(fd, body->data, body->n);
    bytes_clear(&head);
    return fd;
}

/* fields: names and values [NULL at the end]. */
static inline int post(int port, const char *path, const bytes *recording, const char *const *fields) {
    bytes form = {0};
    for (; *fields; fields += 2) put_field(&form, fields[0], fields[1]);
    if (recording) put_file(&form, recording);
    end_form(&form);
    int fd = post_bytes(port, path, "multipart/form-data; boundary=" BOUNDARY, "", &form);
    bytes_clear(&form);
    return fd;
}

static inline answer_text finish(int fd) {
    answer_text a = client_read(fd);
    close(fd);
    return a;
}

static inline answer_text ask(int port, const char *path, const bytes *recording, const char *const *fields) {
    return finish(post(port, path, recording, fields));
}

#define FIELDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NOTHING     ((const char *const[]){NULL})

/* ---- what the library says ---- */

static inline mn_transcribe_options defaults(void) {
    mn_transcribe_options o;
    mn_transcribe_options_init(&o, sizeof o);
    return o;
}

/* Of a file of the test data, read from its path. */
static inline mn_transcription *alone(mn_model *model, const char *name, mn_transcribe_options o) {
    char path[128];
    mn_transcription *t = NULL;
    snprintf(path, sizeof path, "audio/%s", name);
    const char *from = data_path(path);
    assert_ok(mn_transcribe(model, &from, 1, &o, &t));
    assert_ok(t->files[0]->status);
    return t;
}

static inline const char *without_space(const char *text) {
    return text + strspn(text, " ");
}

static inline void assert_text(const answer_text *a, const mn_transcription *t) {
    if (a->status != 200) fail_msg("%d: %s", a->status, bytes_text((bytes *)(uintptr_t)&a->body));
    json_doc *doc = client_json(a);
    assert_string_equal(json_get(json_root(doc), "text")->string, without_space(t->files[0]->text));
    json_close(&doc);
}

static inline void same_text(fixture *w, const char *path, const char *name, mn_transcribe_options o,
                             const char *const *fields) {
    bytes recording = read_data(name);
    mn_transcription *t = alone(w->speech, name, o);
    answer_text a = ask(w->port, path, &recording, fields);
    assert_true(strlen(t->files[0]->text) > 10);
    assert_text(&a, t);
    mn_transcription_close(&t);
    client_clear(&a);
    bytes_clear(&recording);
}

static inline void assert_refused(answer_text *a, int status, const char *code, const char *param, const char *part) {
    json_doc *doc = client_json(a);
    const json *error = json_get(json_root(doc), "error"), *named = json_get(error, "param");
    if (a->status != status || !json_is_string(json_get(error, "code"), code))
        fail_msg("%d %s, not %d %s", a->status, a->body.data, status, code);
    if (param ? !json_is_string(named, param) : named->kind != JSON_NULL) fail_msg("%s", a->body.data);
    if (!strstr(json_get(error, "message")->string, part)) fail_msg("%s lacks '%s'", a->body.data, part);
    assert_null(strstr(a->body.data, "/tmp"));
    json_close(&doc);
    client_clear(a);
}

#endif
