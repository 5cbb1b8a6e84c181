/* Files: read-only mappings, whole-file reads, atomic writes, path helpers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_FILE_H
#define MN_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

/* For reading. MN_E_NOT_FOUND when there is no such file, MN_E_IO otherwise; the message names the path. */
mn_status file_open(int *fd, const char *path);

/* A whole regular file mapped read-only. */
typedef struct file_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t n;            /* bytes */
} file_map;

/* As file_open, and MN_E_IO for what is not a regular file. */
mn_status file_map_open(file_map *out, const char *path);
void file_map_close(file_map *map); /* accepts a zeroed map */

/* Reads a whole file (or stdin for "-") into *out; refuses more than `limit` bytes (MN_E_IO). */
mn_status file_read(bytes *out, const char *path, size_t limit);

/* Writes to a temporary name beside `path`, syncs, renames, syncs the folder: the old file or the new one, never a part.
 * MN_E_IO names path and reason; then the old file is as before and no temporary is left, but for one case, which the message
 * tells: the new file is there and only its folder could not be synced.
 *
 * The temporary is `path` with FILE_PART_SUFFIX, locked while it is written. Writers of one path take turns; what a killed one
 * left is removed by the next. */
#define FILE_PART_SUFFIX ".mneme-part"
mn_status file_write_atomic(const char *path, const void *data, size_t n);

/* The same from several parts, written one after the other. */
typedef struct file_part {
    const void *data;
    size_t n;
} file_part;
mn_status file_write_parts(const char *path, const file_part *parts, size_t n_parts);

/* Where temporary files go when nobody says: $TMPDIR, else /var/tmp, which is on a disk. */
const char *file_scratch_folder(void);
/* A file without a name in a folder, open for reading and writing; it is gone when *fd is closed, also by the death of the
 * process. plain: made with a name that is removed at once, as on systems that know no other way. MN_E_IO, MN_E_NOMEM. */
mn_status file_open_unnamed(int *fd, const char *folder, bool plain);

/* All n bytes to where fd stands; MN_E_IO names `path`. */
mn_status file_write_all(int fd, const char *path, const void *data, size_t n);

bool file_exists(const char *path);      /* a regular file or a link to one */
bool file_is_directory(const char *path);

/* "folder/name" into *out (cleared first). */
mn_status path_join(bytes *out, const char *folder, const char *name);

#endif
