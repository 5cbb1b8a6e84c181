/* Keyed checksums: HMAC-SHA256 (RFC 2104), by libcrypto. Unlike those of hash.h they cannot be made without the key.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_MAC_H
#define MN_BASE_MAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    MAC_HEX = 65,       /* characters, the terminating zero included */
    MAC_KEY_LEAST = 16, /* bytes of a key file */
    MAC_KEY_MOST = 4096
};

/* As HMAC takes it: a key of more than 64 bytes is its SHA-256. */
typedef struct mac_key {
    uint8_t data[64];
    size_t n; /* 0: no key */
} mac_key;

/* Of an open file with keys: MN_E_ARG when others than its owner, who is this user or root, may read or write it. */
mn_status mac_check_private(int fd, const char *path);

/* All bytes of a file that is private. MN_E_ARG also when it has fewer than MAC_KEY_LEAST or more than MAC_KEY_MOST;
 * MN_E_NOT_FOUND, MN_E_IO, MN_E_NOMEM. */
mn_status mac_key_read(mac_key *out, const char *path);
void mac_key_wipe(mac_key *key);

/* Of a stream of pieces. */
typedef struct mac mac;

mn_status mac_open(mac **out, const mac_key *key);
void mac_close(mac **m);
void mac_add(mac *m, const void *data, size_t n);
/* What was added as 64 hexadecimal digits; nothing is added after. MN_E_NOMEM when something went wrong on the way. */
mn_status mac_put(char out[MAC_HEX], mac *m);

/* Whether the n first characters are equal, in a time that does not depend on where they differ. */
bool mac_equal(const char *a, const char *b, size_t n);

#endif
