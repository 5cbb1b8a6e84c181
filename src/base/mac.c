/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { MAC_BYTES = 32 };

struct mac {
    EVP_MAC_CTX *context;
    bool failed;
};

/* ---- keys ---- */

static mn_status take_key(mac_key *out, const uint8_t *data, size_t n) {
    unsigned size = 0;
    out->n = n;
    if (n <= sizeof out->data) {
        memcpy(out->data, data, n);
        return MN_OK;
    }
    if (EVP_Digest(data, n, out->data, &size, EVP_sha256(), NULL) != 1) return mem_no_memory();
    out->n = size;
    return MN_OK;
}

mn_status mac_check_private(int fd, const char *path) {
    struct stat info;
    if (fstat(fd, &info) != 0) MN_FAIL(MN_E_IO, "cannot stat '%s'", path);
    if (info.st_mode & 077)
        MN_FAIL(MN_E_ARG, "the key file '%s' has mode %04o: others may use it; allowed: 0600 or 0400", path,
                (unsigned)info.st_mode & 07777);
    if (info.st_uid != geteuid() && info.st_uid != 0)
        MN_FAIL(MN_E_ARG, "the key file '%s' belongs to user %u, allowed: this user (%u) and root", path,
                (unsigned)info.st_uid, (unsigned)geteuid());
    return MN_OK;
}

mn_status mac_key_read(mac_key *out, const char *path) {
    uint8_t data[MAC_KEY_MOST + 1];
    size_t n = 0;
    int fd;
    *out = (mac_key){.n = 0};
    MN_TRY(file_open(&fd, path));
    mn_status status = mac_check_private(fd, path);
    if (status == MN_OK) status = file_read_some(data, sizeof data, &n, fd, path);
    close(fd);
    if (status == MN_OK && (n < MAC_KEY_LEAST || n > MAC_KEY_MOST)) {
        status = status_fail(MN_E_ARG, "the key file '%s' has %s%zu bytes, allowed: %d to %d", path,
                             n > MAC_KEY_MOST ? "at least " : "", n, MAC_KEY_LEAST, MAC_KEY_MOST);
    }
    if (status == MN_OK) status = take_key(out, data, n);
    OPENSSL_cleanse(data, sizeof data);
    return status;
}

void mac_key_wipe(mac_key *key) {
    OPENSSL_cleanse(key, sizeof *key);
}

/* ---- checksums ---- */

mn_status mac_open(mac **out, const mac_key *key) {
    char digest[] = "SHA256";
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0), OSSL_PARAM_construct_end()};
    mac *m = mem_alloc(1, sizeof *m);
    *out = m;
    if (!m) return MN_E_NOMEM;
    EVP_MAC *hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    m->context = hmac ? EVP_MAC_CTX_new(hmac) : NULL;
    EVP_MAC_free(hmac); /* the context has its own reference */
    if (m->context && EVP_MAC_init(m->context, key->data, key->n, params) == 1) return MN_OK;
    mac_close(out);
    return mem_no_memory();
}

void mac_close(mac **m) {
    if (!*m) return;
    EVP_MAC_CTX_free((*m)->context);
    mem_free(*m);
    *m = NULL;
}

void mac_add(mac *m, const void *data, size_t n) {
    if (n > 0 && EVP_MAC_update(m->context, data, n) != 1) m->failed = true;
}

mn_status mac_put(char out[MAC_HEX], mac *m) {
    static const char digits[] = "0123456789abcdef"; /* snprintf's time depends on the number */
    uint8_t sum[MAC_BYTES];
    size_t n = 0;
    if (m->failed || EVP_MAC_final(m->context, sum, &n, sizeof sum) != 1 || n != sizeof sum) return mem_no_memory();
    mem_written(sum, sizeof sum);
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[sum[i] >> 4];
        out[2 * i + 1] = digits[sum[i] & 15];
    }
    out[2 * n] = 0;
    return MN_OK;
}

bool mac_equal(const char *a, const char *b, size_t n) {
    return CRYPTO_memcmp(a, b, n) == 0;
}
