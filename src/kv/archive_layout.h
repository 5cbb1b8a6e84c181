/* What the reader and the writer of archives share; the layout itself is described in archive.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_ARCHIVE_LAYOUT_H
#define MN_KV_ARCHIVE_LAYOUT_H

#include "base/hash.h"

#define ARCHIVE_SUM_KEY      "mneme.sum"
#define ARCHIVE_VERSION_KEY  "mneme.version"
#define ARCHIVE_VERSION_TEXT "1"
#define ARCHIVE_FILL_PREFIX  "mneme.fill."
#define ARCHIVE_SUM_PREFIX   "sum."
#define ARCHIVE_RAW_PREFIX   "raw."
#define ARCHIVE_HEAD         "{\"__metadata__\":{\"" ARCHIVE_SUM_KEY "\":\"" /* how the header begins */

enum {
    ARCHIVE_HEAD_AT = 8,                                      /* behind the header's length */
    ARCHIVE_SUM_AT = ARCHIVE_HEAD_AT + sizeof ARCHIVE_HEAD - 1, /* of the 16 digits in the file */
};

/* The checksum of the n first bytes of a file, its own digits taken as zeros. n reaches beyond the digits. */
mn_status archive_head_sum(uint64_t *out, const void *head, size_t n);

#endif
