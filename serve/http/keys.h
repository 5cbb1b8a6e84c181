/* The API keys of a server: kept as keyed checksums, compared in a time that does not depend on the text.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_KEYS_H
#define MNEME_SERVE_KEYS_H

#include "base/mac.h"

typedef struct keys keys;

/* A private file with a key in each line, each of 16 to 256 visible ASCII characters. MN_E_ARG names the line, or says
 * who else may use the file; MN_E_NOT_FOUND, MN_E_IO, MN_E_NOMEM. secret_path: a file with the secret of the checksums,
 * created when it is missing, so that they are the same in the next process; NULL: a secret of this process. */
mn_status keys_open(keys **out, const char *path, const char *secret_path);
void keys_close(keys **k);

/* The checksum of the key `text`, which names its owner; NULL: not a key. text may be NULL. */
const char *keys_find(const keys *k, const char *text);

#endif
