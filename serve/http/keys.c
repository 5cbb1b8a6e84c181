/* SPDX-License-Identifier: Apache-2.0 */
#include "http/keys.h"

#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { LEAST = 16, MOST = 256, MOST_FILE = 1 << 20 };

struct keys {
    mac_key secret;
    char (*sums)[MAC_HEX]; /* [n] */
    size_t n, capacity;
};

static mn_status sum_of(char out[MAC_HEX], const keys *k, const char *text, size_t n) {
    mac *m = NULL;
    MN_TRY(mac_open(&m, &k->secret));
    mac_add(m, text, n);
    mn_status status = mac_put(out, m);
    mac_close(&m);
    return status;
}

static mn_status add(keys *k, const char *path, size_t line, const char *text, size_t n) {
    bool is_visible = true;
    for (size_t i = 0; i < n; i++) is_visible = is_visible && text[i] > ' ' && text[i] < 127;
    if (n < LEAST || n > MOST || !is_visible)
        MN_FAIL(MN_E_ARG, "%s: line %zu is no key; allowed: %d to %d visible ASCII characters", path, line, LEAST,
                MOST);
    MN_TRY(mem_grow(&k->sums, &k->capacity, k->n + 1, sizeof *k->sums));
    MN_TRY(sum_of(k->sums[k->n], k, text, n));
    k->n++;
    return MN_OK;
}

static mn_status read_lines(keys *k, const char *path, const char *text, size_t n) {
    size_t line = 1;
    for (size_t at = 0; at < n; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t length = end ? (size_t)(end - text) - at : n - at;
        if (length > 0) MN_TRY(add(k, path, line, text + at, length));
        at += length + 1;
    }
    if (k->n == 0) MN_FAIL(MN_E_ARG, "%s has no key; allowed: one in each line", path);
    return MN_OK;
}

static mn_status open_secret(mac_key *secret, const char *path) {
    if (path) {
        mn_status status = mac_key_read(secret, path);
        if (status != MN_E_NOT_FOUND) return status;
    }
    secret->n = 32;
    if (getrandom(secret->data, secret->n, 0) != (ssize_t)secret->n)
        MN_FAIL(MN_E_IO, "the system gives no random numbers");
    return path ? file_write_atomic(path, secret->data, secret->n) : MN_OK;
}

static mn_status read_private(bytes *text, const char *path) {
    int fd;
    MN_TRY(file_open(&fd, path));
    mn_status status = mac_check_private(fd, path);
    if (status == MN_OK) status = file_read_rest(text, fd, path, MOST_FILE);
    close(fd);
    return status;
}

mn_status keys_open(keys **out, const char *path, const char *secret_path) {
    bytes text = {0};
    keys *k = mem_alloc(1, sizeof *k);
    *out = k;
    if (!k) return MN_E_NOMEM;
    mn_status status = open_secret(&k->secret, secret_path);
    if (status == MN_OK) status = read_private(&text, path);
    if (status == MN_OK) status = read_lines(k, path, text.data, text.n);
    bytes_clear(&text);
    if (status != MN_OK) keys_close(out);
    return status;
}

void keys_close(keys **out) {
    keys *k = *out;
    *out = NULL;
    if (!k) return;
    mac_key_wipe(&k->secret);
    mem_free(k->sums);
    mem_free(k);
}

const char *keys_find(const keys *k, const char *text) {
    char sum[MAC_HEX];
    const char *found = NULL;
    if (!text || sum_of(sum, k, text, strlen(text)) != MN_OK) return NULL;
    for (size_t i = 0; i < k->n; i++) {
        if (mac_equal(sum, k->sums[i], MAC_HEX - 1)) found = k->sums[i];
    }
    return found;
}
