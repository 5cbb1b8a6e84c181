/* Checksums and fingerprints: XXH3 (xxHash), 64 and 128 bits. They find damage and mix-ups, not forgery: anyone who can
 * write a file can write its checksum too.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_HASH_H
#define MN_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { HASH_HEX = 17, FINGERPRINT_HEX = 33 }; /* characters, the terminating zero included */

uint64_t hash_of(const void *data, size_t n); /* XXH3 64 without a seed */

/* The bits of a hash that tables use: all, except in the build that tests that collisions cost time only. */
#ifndef MN_HASH_MASK
#define MN_HASH_MASK UINT64_MAX
#endif

/* For hash tables with keys from files: without the seed nobody can choose keys that collide. */
uint64_t hash_seeded(const void *data, size_t n, uint64_t seed); /* XXH3 64 & MN_HASH_MASK */
uint64_t hash_seed(void);                                        /* from the system's random numbers */

/* The number as 16 hexadecimal digits in lower case, as `xxhsum -H3` prints it, and back; false when `text` is anything
 * else. */
void hash_put(char out[HASH_HEX], uint64_t hash);
bool hash_read(uint64_t *out, const char *text);

/* XXH3 128 of a stream of pieces. */
typedef struct fingerprint fingerprint;

mn_status fingerprint_open(fingerprint **out);
void fingerprint_close(fingerprint **f);
void fingerprint_add(fingerprint *f, const void *data, size_t n);
/* The size and then the bytes, so that pieces cannot be confused with each other's ends. */
void fingerprint_add_sized(fingerprint *f, const void *data, size_t n);
/* What was added so far as 32 hexadecimal digits; more may be added after. */
void fingerprint_put(char out[FINGERPRINT_HEX], const fingerprint *f);

#endif
