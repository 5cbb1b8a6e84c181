/* A server in TLS: what holds for a connection holds inside of TLS, too, and a certificate that cannot be used ends in
 * one sentence.
 * SPDX-License-Identifier: Apache-2.0 */
#include <gnutls/x509.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "base/file.h"
#include "serve.h"
#include "serve/client.h"
#include "serve/heads.h"
#include "server.h"
#include "session/session.h"
#include "support/budget.h"
#include "support/engine.h"
#include "support/scratch.h"

/* ---- a certificate ---- */

static void must(int result) {
    if (result < 0) fail_msg("%s", gnutls_strerror(result));
}

/* A certificate for localhost that signs itself, and its key, in files of the scratch folder. */
static void make_pair(const char *certificate_name, const char *key_name) {
    gnutls_x509_privkey_t key;
    gnutls_x509_crt_t c;
    gnutls_datum_t text;
    must(gnutls_x509_privkey_init(&key));
    must(gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0));
    must(gnutls_x509_crt_init(&c));
    must(gnutls_x509_crt_set_version(c, 3));
    must(gnutls_x509_crt_set_serial(c, "\1", 1));
    must(gnutls_x509_crt_set_dn(c, "CN=localhost", NULL));
    must(gnutls_x509_crt_set_subject_alt_name(c, GNUTLS_SAN_DNSNAME, "localhost", 9, GNUTLS_FSAN_SET));
    must(gnutls_x509_crt_set_activation_time(c, 946684800));
    must(gnutls_x509_crt_set_expiration_time(c, 4102444800));
    must(gnutls_x509_crt_set_key(c, key));
    must(gnutls_x509_crt_sign2(c, c, key, GNUTLS_DIG_SHA256, 0));
    must(gnutls_x509_crt_export2(c, GNUTLS_X509_FMT_PEM, &text));
    scratch_file(certificate_name, (const char *)text.data, text.size);
    gnutls_free(text.data);
    must(gnutls_x509_privkey_export2(key, GNUTLS_X509_FMT_PEM, &text));
    scratch_file(key_name, (const char *)text.data, text.size);
    gnutls_free(text.data);
    gnutls_x509_crt_deinit(c);
    gnutls_x509_privkey_deinit(key);
}

typedef struct fixture {
    mn_model *model;
    server *server;
    char certificate[512], key[512];
    gnutls_certificate_credentials_t trusted;
} fixture;

static fixture open_fixture(serve_options options) {
    fixture w = {.model = engine_model("embedded", "auto", "auto", 1)};
    make_pair("certificate", "key");
    snprintf(w.certificate, sizeof w.certificate, "%s", scratch_path("certificate"));
    snprintf(w.key, sizeof w.key, "%s", scratch_path("key"));
    options.name = "tiny";
    options.ssl_cert_file = w.certificate;
    options.ssl_key_file = w.key;
    assert_ok(serve_open(&w.server, w.model, &options));
    must(gnutls_certificate_allocate_credentials(&w.trusted));
    must(gnutls_certificate_set_x509_trust_file(w.trusted, w.certificate, GNUTLS_X509_FMT_PEM));
    return w;
}

static void close_fixture(fixture *w) {
    serve_close(&w->server, 2000);
    gnutls_certificate_free_credentials(w->trusted);
    assert_int_equal(kv_pool_used(w->model->core->pool), 0);
    mn_model_close(&w->model);
}

/* ---- a client ---- */

typedef struct client {
    int fd;
    gnutls_session_t tls;
    bytes rest;
} client;

/* versions: as GnuTLS writes them. What the handshake returned. */
static int try_handshake(client *c, const fixture *w, const char *versions) {
    *c = (client){.fd = client_connect(serve_port(w->server))};
    must(gnutls_init(&c->tls, GNUTLS_CLIENT | GNUTLS_NO_SIGNAL));
    must(gnutls_priority_set_direct(c->tls, versions, NULL));
    must(gnutls_credentials_set(c->tls, GNUTLS_CRD_CERTIFICATE, w->trusted));
    must(gnutls_server_name_set(c->tls, GNUTLS_NAME_DNS, "localhost", 9));
    gnutls_session_set_verify_cert(c->tls, "localhost", 0);
    gnutls_transport_set_int(c->tls, c->fd);
    int result;
    do result = gnutls_handshake(c->tls);
    while (result < 0 && !gnutls_error_is_fatal(result));
    return result;
}

static client connect_tls(const fixture *w) {
    client c;
    must(try_handshake(&c, w, "NORMAL"));
    return c;
}

static void leave(client *c) {
    gnutls_deinit(c->tls);
    close(c->fd);
    bytes_clear(&c->rest);
}

static void send_all(client *c, const char *text, size_t n) {
    for (size_t at = 0; at < n;) {
        const ssize_t sent = gnutls_record_send(c->tls, text + at, n - at);
        if (sent < 0 && sent != GNUTLS_E_INTERRUPTED) return; /* refused already: the answer says so */
        at += sent > 0 ? (size_t)sent : 0;
    }
}

static ssize_t receive(client *c, char *to, size_t most) {
    ssize_t n;
    do n = gnutls_record_recv(c->tls, to, most);
    while (n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED);
    return n;
}

static answer_text read_next(client *c) {
    answer_text a = {0};
    char part[4096];
    size_t n_answer = client_parse(&a, &c->rest);
    for (ssize_t n; n_answer == 0 && (n = receive(c, part, sizeof part)) > 0;) {
        bytes_append(&c->rest, part, (size_t)n);
        n_answer = client_parse(&a, &c->rest);
    }
    bytes left = {0};
    if (n_answer) bytes_append(&left, c->rest.data + n_answer, c->rest.n - n_answer);
    bytes_clear(&c->rest);
    c->rest = left;
    bytes_text(&a.head);
    bytes_text(&a.body);
    return a;
}

static void expect(client *c, int status, const char *part) {
    answer_text a = read_next(c);
    if (a.status != status || (part && !strstr(bytes_text(&a.body), part)))
        fail_msg("%d, not %d: %.200s", a.status, status, bytes_text(&a.body));
    client_clear(&a);
}

#define HEALTH "GET /health HTTP/1.1\r\n" HOST END

static void send_text(client *c, const char *text) {
    send_all(c, text, strlen(text));
}

static void post(client *c, const char *path, const char *body) {
    bytes b = {0};
    bytes_printf(&b, "POST %s HTTP/1.1\r\n" HOST "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                 path, strlen(body), body);
    send_all(c, b.data, b.n);
    bytes_clear(&b);
}

/* ---- tests ---- */

/* In both versions: plain answers, streams, large bodies in both directions, on one connection. */
static void answers_come_through_tls(void **state) {
    (void)state;
    fixture w = open_fixture((serve_options){0});
    static const char *const versions[] = {"NORMAL:-VERS-ALL:+VERS-TLS1.2", "NORMAL:-VERS-ALL:+VERS-TLS1.3"};
    bytes large = {0};
    bytes_append_text(&large, "{\"tokens\":[300");
    for (int i = 0; i < 80000; i++) bytes_append_text(&large, ",300");
    bytes_append_text(&large, "]}");
    for (int i = 0; i < 2; i++) {
        client c;
        must(try_handshake(&c, &w, versions[i]));
        for (int k = 0; k < 3; k++) {
            send_text(&c, HEALTH HEALTH);
            expect(&c, 200, "ok");
            expect(&c, 200, "ok");
            post(&c, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":4,\"stream\":true}");
            expect(&c, 200, "data: [DONE]\n\n");
            post(&c, "/detokenize", bytes_text(&large));
            answer_text a = read_next(&c);
            assert_int_equal(a.status, 200);
            assert_true(a.body.n > 80000);
            json_doc *doc = client_json(&a);
            json_close(&doc);
            client_clear(&a);
        }
        send_text(&c, "GET /health HTTP/1.1\r\n" HOST "Connection: close\r\n" END);
        expect(&c, 200, "ok");
        char byte;
        assert_int_equal(receive(&c, &byte, 1), 0); /* an end that TLS knows of, not a cut */
        leave(&c);
    }
    client c;
    if (try_handshake(&c, &w, "NORMAL:-VERS-ALL:+VERS-TLS1.1:%COMPAT") >= 0) fail_msg("%s", "TLS 1.1 is accepted");
    leave(&c);
    bytes_clear(&large);
    close_fixture(&w);
}

/* R28, inside of TLS: as a first request and behind another one. */
static void R28_malformed_heads_are_refused_in_tls(void **state) {
    (void)state;
    fixture w = open_fixture((serve_options){0});
    const int step = test_is_long() ? 1 : 9;
    for (int i = 0; i < 2 * N_REFUSED; i += step) {
        client c = connect_tls(&w);
        const sample *s = &refused[i / 2];
        if (i % 2) {
            send_text(&c, HEALTH);
            expect(&c, 200, "ok");
        }
        send_all(&c, s->text, s->n);
        send_text(&c, HEALTH);
        expect(&c, s->status, "\"message\"");
        char byte;
        assert_true(receive(&c, &byte, 1) <= 0);
        assert_int_equal(c.rest.n, 0);
        leave(&c);
    }
    close_fixture(&w);
}

/* R17, inside of TLS: a client that leaves, with a word or without, ends its request. */
static void R17_a_client_that_leaves_in_tls_ends_its_request(void **state) {
    (void)state;
    fixture w = open_fixture((serve_options){.cache = &client_endless_cache});
    for (int i = 0; i < 6; i++) {
        client c = connect_tls(&w);
        post(&c, "/v1/completions",
             i % 2 ? "{\"prompt\":\"Once\",\"stream\":true," CLIENT_ENDLESS "}"
                   : "{\"prompt\":\"Once\"," CLIENT_ENDLESS "}");
        wait_until(scheduler_jobs(w.server->scheduler) > 0);
        if (i % 3 == 0) gnutls_bye(c.tls, GNUTLS_SHUT_WR);
        leave(&c);
        wait_until(scheduler_jobs(w.server->scheduler) == 0);
    }
    close_fixture(&w);
}

/* What is no TLS: HTTP gets a sentence, other bytes get nothing; others are served meanwhile. */
static void what_is_no_tls_is_refused(void **state) {
    (void)state;
    fixture w = open_fixture((serve_options){0});
    int fd = client_connect(serve_port(w.server));
    client_send(fd, HEALTH, sizeof HEALTH - 1);
    answer_text a = client_read(fd);
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(bytes_text(&a.body), "https://"));
    client_clear(&a);
    close(fd);
    int silent[8];
    for (int i = 0; i < 8; i++) {
        silent[i] = client_connect(serve_port(w.server));
        client_send(silent[i], "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (size_t)i);
    }
    fd = client_connect(serve_port(w.server));
    client_send(fd, "\x16\x03\x01\xff\xff garbage garbage garbage", 30);
    char part[256];
    for (ssize_t n; (n = client_recv(fd, part, sizeof part)) > 0;) assert_null(memchr(part, 'H', (size_t)n));
    close(fd);
    client c = connect_tls(&w);
    send_text(&c, HEALTH);
    expect(&c, 200, "ok");
    leave(&c);
    for (int i = 0; i < 8; i++) close(silent[i]);
    close_fixture(&w);
}

static void bad_certificates_are_refused(void **state) {
    (void)state;
    static const char text[] = "no PEM at all\n";
    char certificate[512], key[512], other[512], none[512], absent[512];
    make_pair("certificate", "key");
    make_pair("other-certificate", "other-key");
    snprintf(certificate, sizeof certificate, "%s", scratch_path("certificate"));
    snprintf(key, sizeof key, "%s", scratch_path("key"));
    snprintf(other, sizeof other, "%s", scratch_path("other-key"));
    snprintf(none, sizeof none, "%s", scratch_file("none", text, sizeof text - 1));
    snprintf(absent, sizeof absent, "%s", scratch_path("absent"));
    const struct {
        const char *certificate, *key, *part;
        mn_status status;
    } of[] = {{certificate, NULL, "is given without --ssl-key-file", MN_E_ARG},
              {NULL, key, "is given without --ssl-cert-file", MN_E_ARG},
              {absent, key, "absent", MN_E_NOT_FOUND},
              {certificate, absent, "absent", MN_E_NOT_FOUND},
              {none, key, "none' is no certificate", MN_E_ARG},
              {key, key, "key' is no certificate", MN_E_ARG},
              {certificate, none, "none' is no private key", MN_E_ARG},
              {certificate, certificate, "certificate' is no private key", MN_E_ARG},
              {certificate, other, "is not that of the certificate in", MN_E_ARG}};
    mn_model *model = engine_model("embedded", "auto", "auto", 1);
    server *s = NULL;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const serve_options options = {.name = "tiny", .ssl_cert_file = of[i].certificate, .ssl_key_file = of[i].key};
        assert_fails(of[i].status, of[i].part, serve_open(&s, model, &options));
        assert_null(s);
    }
    mn_model_close(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_come_through_tls),
        cmocka_unit_test(R28_malformed_heads_are_refused_in_tls),
        cmocka_unit_test(R17_a_client_that_leaves_in_tls_ends_its_request),
        cmocka_unit_test(what_is_no_tls_is_refused),
        cmocka_unit_test(bad_certificates_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
