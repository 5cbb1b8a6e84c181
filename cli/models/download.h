/* One file from a URL, by libcurl. What has come stays when a transfer is cut off, and the next call goes on from
 * there.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_PULL_DOWNLOAD_H
#define MNEME_CLI_PULL_DOWNLOAD_H

#include <stdbool.h>

#include "mneme.h"

typedef struct download {
    const char *url;  /* http, https or file */
    const char *path; /* where the bytes go; PATH.from says of which version of which URL they are */
    const char *name; /* in the progress line */
    /* The caller compares a checksum, so that bytes of a server that names no version may be gone on with. */
    bool is_checked;
    bool (*stop)(void);
} download;

/* The whole file is at `path` afterwards. MN_E_CANCELLED when `stop` returned true, MN_E_NOT_FOUND where the server has
 * no such file, MN_E_IO for every other failure, MN_E_UNSUPPORTED without libcurl. */
mn_status download_file(const download *d);

/* Removes what download_file keeps at `path` beside the file itself. */
void download_forget(const char *path);

#endif
