/* Saved caches as files: named byte entries in one safetensors file, each with a checksum, written whole or
 * not at all.
 *
 * Layout: a safetensors file whose tensors are U8 [bytes], or F32/BF16 with a shape, and whose metadata holds
 * "mneme.version", the caller's members (JSON text), and for every entry "sum.<name>": XXH3 64 of its bytes
 * as they stand in the file, as 16 hex digits; "raw.<name>": its size before compression when it is
 * compressed (zstd; such an entry is U8). Any reader of safetensors reads the uncompressed ones.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_ARCHIVE_H
#define MN_KV_ARCHIVE_H

#include "base/file.h"
#include "tensor/tensor.h"

enum { ARCHIVE_VERSION = 1 };

typedef struct archive_entry {
    const char *name;
    dtype type; /* DTYPE_U8 for opaque bytes */
    int n_dims;
    int64_t shape[4];
    const void *data; /* for one-dimensional U8: shape[0] bytes */
    size_t n_bytes;
    bool compress; /* try zstd; kept as it is when that saves less than a tenth */
} archive_entry;

typedef struct archive_member {
    const char *key, *value; /* text */
} archive_member;

/* The temporary file is synced, renamed over `path`, and the folder synced. MN_E_IO names the path and the
 * reason; then the old file, if there was one, is as before and nothing is left beside it. */
mn_status archive_write(const char *path, const archive_entry *entries, size_t n_entries,
                        const archive_member *members, size_t n_members);

typedef struct archive archive;

/* Maps and parses; sizes, names, overlap and the version are checked, checksums are not yet. MN_E_REFUSED
 * says what is wrong with the file; MN_E_NOT_FOUND, MN_E_IO. */
mn_status archive_open(archive **out, const char *path);
void archive_close(archive **a);

const char *archive_member_of(const archive *a, const char *key); /* NULL: none */
size_t archive_entries(const archive *a);
/* Size is that of the uncompressed bytes. */
typedef struct archive_view {
    const char *name;
    dtype type;
    int n_dims;
    int64_t shape[4];
    size_t n_bytes;      /* uncompressed */
    size_t stored_bytes; /* in the file */
    bool compressed;
    const uint8_t *stored; /* in the mapping */
} archive_view;
archive_view archive_entry_at(const archive *a, size_t i);
const archive_view *archive_find(const archive *a, const char *name); /* NULL: none */

/* Verifies the checksum and gives the bytes: *data points into the mapping, or, for a compressed entry, into
 * `buffer` (at least n_bytes, 64-byte aligned). MN_E_REFUSED names the damaged entry. */
mn_status archive_bytes(const archive *a, const archive_view *view, void *buffer, const uint8_t **data);
mn_status archive_verify(const archive *a); /* all entries */

#endif
