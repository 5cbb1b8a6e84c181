/* SPDX-License-Identifier: Apache-2.0 */
#include "http/wire.h"

#include <errno.h>
#include <gnutls/x509.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"

enum { MOST_PEM = 1 << 20, TLS_HANDSHAKE = 0x16 /* the first byte of TLS */ };

struct wire_identity {
    gnutls_certificate_credentials_t credentials;
    gnutls_priority_t versions;
};

/* ---- a certificate and its key ---- */

/* For "%.*s": the sentence of an error without its full stop. */
#define REASON(error) (int)strcspn(gnutls_strerror(error), "."), gnutls_strerror(error)

static mn_status set_pair(wire_identity *identity, const char *certificate_file, const bytes *certificate,
                          const char *key_file, const bytes *key) {
    const gnutls_datum_t c = {(unsigned char *)certificate->data, (unsigned)certificate->n};
    const gnutls_datum_t k = {(unsigned char *)key->data, (unsigned)key->n};
    gnutls_x509_crt_t *chain = NULL;
    unsigned n_chain = 0;
    int error = gnutls_x509_crt_list_import2(&chain, &n_chain, &c, GNUTLS_X509_FMT_PEM, 0);
    if (error < 0) MN_FAIL(MN_E_ARG, "'%s' is no certificate: %.*s; allowed: PEM", certificate_file, REASON(error));
    for (unsigned i = 0; i < n_chain; i++) gnutls_x509_crt_deinit(chain[i]);
    gnutls_free(chain);
    error = gnutls_certificate_set_x509_key_mem2(identity->credentials, &c, &k, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (error == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
        MN_FAIL(MN_E_ARG, "the key in '%s' is not that of the certificate in '%s'", key_file, certificate_file);
    if (error < 0)
        MN_FAIL(MN_E_ARG, "'%s' is no private key: %.*s; allowed: PEM without a password", key_file, REASON(error));
    return MN_OK;
}

static mn_status read_pair(wire_identity *identity, const char *certificate_file, const char *key_file) {
    bytes certificate = {0}, key = {0};
    mn_status status = file_read(&certificate, certificate_file, MOST_PEM);
    if (status == MN_OK) status = file_read(&key, key_file, MOST_PEM);
    if (status == MN_OK) status = set_pair(identity, certificate_file, &certificate, key_file, &key);
    if (key.n) gnutls_memset(key.data, 0, key.n);
    bytes_clear(&key);
    bytes_clear(&certificate);
    return status;
}

mn_status wire_identity_open(wire_identity **out, const char *certificate_file, const char *key_file) {
    wire_identity *identity = mem_alloc(1, sizeof *identity);
    *out = identity;
    if (!identity) return MN_E_NOMEM;
    mn_status status = MN_OK;
    if (gnutls_certificate_allocate_credentials(&identity->credentials) < 0 ||
        gnutls_priority_init(&identity->versions, "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2", NULL) < 0)
        status = mem_no_memory();
    if (status == MN_OK) status = read_pair(identity, certificate_file, key_file);
    if (status != MN_OK) wire_identity_close(out);
    return status;
}

void wire_identity_close(wire_identity **out) {
    wire_identity *identity = *out;
    *out = NULL;
    if (!identity) return;
    if (identity->credentials) gnutls_certificate_free_credentials(identity->credentials);
    if (identity->versions) gnutls_priority_deinit(identity->versions);
    mem_free(identity);
}

/* ---- bytes ---- */

bool wire_open(wire *w, int fd, const wire_identity *identity) {
    *w = (wire){.fd = fd, .is_ready = !identity};
    if (!identity) return true;
    if (gnutls_init(&w->tls, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) < 0) return false;
    gnutls_transport_set_int(w->tls, fd);
    if (gnutls_priority_set(w->tls, identity->versions) >= 0 &&
        gnutls_credentials_set(w->tls, GNUTLS_CRD_CERTIFICATE, identity->credentials) >= 0)
        return true;
    gnutls_deinit(w->tls);
    w->tls = NULL;
    return false;
}

static ssize_t result_of(ssize_t n) {
    if (n >= 0) return n;
    return errno == EAGAIN || errno == EINTR ? WIRE_LATER : WIRE_FAILED;
}

static ssize_t tls_result_of(ssize_t n) {
    if (n >= 0) return n;
    return n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED ? WIRE_LATER : WIRE_FAILED;
}

/* 0: the handshake is done. */
static ssize_t shake_hands(wire *w) {
    const int one = 1;
    unsigned char first = 0;
    if (!w->has_begun) {
        ssize_t n = recv(w->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n <= 0) return n < 0 ? result_of(n) : WIRE_FAILED;
        if (first != TLS_HANDSHAKE) {
            gnutls_deinit(w->tls);
            w->tls = NULL;
            w->is_ready = true;
            return WIRE_PLAIN;
        }
        w->has_begun = true;
    }
    int error;
    do error = gnutls_handshake(w->tls);
    while (error < 0 && error != GNUTLS_E_AGAIN && !gnutls_error_is_fatal(error));
    w->is_ready = error == 0;
    /* Many clients send their request when the end of the handshake is acknowledged: 40 ms later, unless at once. */
    if (w->is_ready) setsockopt(w->fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof one);
    return tls_result_of(error);
}

ssize_t wire_receive(wire *w, char *to, size_t most) {
    if (!w->tls) return result_of(recv(w->fd, to, most, MSG_DONTWAIT));
    ssize_t n = w->is_ready ? 0 : shake_hands(w);
    return n < 0 ? n : tls_result_of(gnutls_record_recv(w->tls, to, most));
}

/* GnuTLS keeps what it was offered, and wants to be asked for it without being given it again. */
ssize_t wire_send(wire *w, const char *from, size_t n) {
    if (!w->tls) return result_of(send(w->fd, from, n, MSG_NOSIGNAL | MSG_DONTWAIT));
    if (!w->is_ready) return WIRE_FAILED;
    ssize_t sent =
        tls_result_of(w->has_waiting ? gnutls_record_send(w->tls, NULL, 0) : gnutls_record_send(w->tls, from, n));
    w->has_waiting = sent == WIRE_LATER;
    return sent;
}

void wire_finish(wire *w) {
    if (w->tls && w->is_ready && !w->has_waiting) gnutls_bye(w->tls, GNUTLS_SHUT_WR);
    shutdown(w->fd, SHUT_WR);
}

void wire_close(wire *w) {
    if (w->tls) gnutls_deinit(w->tls);
    if (w->fd >= 0) close(w->fd);
    *w = (wire){.fd = -1};
}
