/* What the reader and the writer of archives share; the layout itself is described in archive.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_ARCHIVE_LAYOUT_H
#define MN_KV_ARCHIVE_LAYOUT_H

#include "base/file.h"
#include "base/hash.h"
#include "base/mac.h"

#define ARCHIVE_SUM_KEY      "mneme.sum"
#define ARCHIVE_VERSION_KEY  "mneme.version"
#define ARCHIVE_VERSION_TEXT "1"
#define ARCHIVE_MAC_KEY      "mneme.mac"
#define ARCHIVE_FILL_PREFIX  "mneme.fill."
#define ARCHIVE_SUM_PREFIX   "sum."
#define ARCHIVE_RAW_PREFIX   "raw."
#define ARCHIVE_HEAD         "{\"__metadata__\":{\"" ARCHIVE_SUM_KEY "\":\"" /* how the header begins */

#define ARCHIVE_MAC_HEAD                                                                                               \
    "\",\"" ARCHIVE_VERSION_KEY "\":\"" ARCHIVE_VERSION_TEXT "\",\"" ARCHIVE_MAC_KEY                                   \
    "\":\"" /* between sum and keyed sum */

enum {
    ARCHIVE_HEAD_AT = 8,                                        /* behind the header's length */
    ARCHIVE_SUM_AT = ARCHIVE_HEAD_AT + sizeof ARCHIVE_HEAD - 1, /* of the 16 digits in the file */
    ARCHIVE_MAC_HEAD_AT = ARCHIVE_SUM_AT + HASH_HEX - 1,
    ARCHIVE_MAC_AT = ARCHIVE_MAC_HEAD_AT + sizeof ARCHIVE_MAC_HEAD - 1, /* of the 64 digits, where there are any */
};

/* The checksum of the n first bytes of a file, its own digits taken as zeros. n reaches beyond the digits. */
mn_status archive_head_sum(uint64_t *out, const void *head, size_t n);

/* The keyed checksum of a file: its head, n bytes that reach beyond the digits, both sums taken as zeros, and what
 * follows. */
mn_status archive_mac(char out[MAC_HEX], const mac_key *key, const void *head, size_t n, const file_part *rest,
                      size_t n_rest);

#endif
