/* Files: read-only mappings, whole-file reads, atomic writes, path helpers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_FILE_H
#define MN_BASE_FILE_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/mem.h"

/* Descriptors of the library have a number of 3 or more, so that what a program writes to a standard stream that it has
 * closed goes into none of its files, and are closed in programs that are started. Every file is opened by these; -1
 * with errno. */
int file_descriptor(const char *path, int flags, mode_t mode); /* open(2); an interrupted one goes on */
int file_above_standard(int fd);         /* the same file under such a number; fd is closed when it had another */
DIR *file_open_folder(const char *path); /* opendir; NULL with errno */

/* For programs, at their start: a closed descriptor of 0 to 2 gets a placeholder, so that no file gets its
 * number. Reading the standard input still fails; what is written to the others goes nowhere, as to /dev/null. */
void file_hold_standard(void);

/* For reading, a regular file: a folder, pipe, socket or device ends at once. MN_E_NOT_FOUND when there is no such
 * file, MN_E_IO otherwise; the message names the path. */
mn_status file_open(int *fd, const char *path);
/* The same, and pipes, for texts and recordings named by the user. A pipe without a writer is empty. */
mn_status file_open_input(int *fd, const char *path);

/* A whole regular file mapped read-only. */
typedef struct file_map {
    const uint8_t *data; /* NULL for an empty file */
    size_t n;            /* bytes */
    int64_t changed_ns;  /* when the file was last changed, since 1970; 0 for an empty one */
} file_map;

/* As file_open; MN_E_NOMEM where the address space has no room. */
mn_status file_map_open(file_map *out, const char *path);
void file_map_close(file_map *map); /* accepts a zeroed map */

/* Reads a whole regular file into *out; refuses more than `limit` bytes (MN_E_IO). */
mn_status file_read(bytes *out, const char *path, size_t limit);
/* As file_open_input; "-" is the standard input. */
mn_status file_read_input(bytes *out, const char *path, size_t limit);
/* What is left of an open file, under the same limit. */
mn_status file_read_rest(bytes *out, int fd, const char *path, size_t limit);
/* The first n bytes of a regular file, fewer where it has fewer, without allocating; 0 when it cannot be read. */
size_t file_head(void *out, size_t n, const char *path);

/* What is left of an open file, at most n bytes of it. MN_E_IO names `path`. */
mn_status file_read_some(void *out, size_t n, size_t *n_read, int fd, const char *path);

/* Whether a regular file or a folder, no symbolic link, belongs to this user and no other user may write it. */
bool file_is_own(const char *path);

/* Who may read a new file or folder: the owner alone (0600, folders 0700), or whom the process's umask leaves. */
typedef enum file_access { FILE_PRIVATE, FILE_BY_UMASK } file_access;

/* Writes to a temporary name beside `path`, syncs, renames, syncs the folder: the old file or the new one, never a
 * partial one. Where `path` is a symbolic link, the file it leads to is replaced and the link stays. A file that is
 * replaced keeps its mode. MN_E_IO names path and reason; then the old file is as before and no temporary is left, but
 * for one case, named in the message: the new file is written and only its folder could not be synced.
 *
 * The temporary is the file's name with FILE_PART_SUFFIX, locked while it is written. Writers of one path take turns,
 * each waiting 10 s at most; the file that a killed one left is removed by the next. */
#define FILE_PART_SUFFIX ".mneme-part"
mn_status file_write_atomic(const char *path, const void *data, size_t n); /* FILE_PRIVATE */

/* The same from several parts, written one after the other. */
typedef struct file_part {
    const void *data;
    size_t n;
} file_part;
mn_status file_write_parts(const char *path, const file_part *parts, size_t n_parts, file_access access);

/* Whether file_write_parts would get as far as writing: for a check before a long computation. */
mn_status file_check_target(const char *path);

/* Appends, where the system does not cut it in one write, to a regular file, which is made, private, when it is
 * missing. */
mn_status file_append(const char *path, const void *data, size_t n);

/* Creates a folder and its missing parents; an existing folder is left unchanged. */
mn_status file_make_folders(const char *path, file_access access);

/* The default folder of temporary files: $TMPDIR, else /var/tmp, which is on a disk. */
const char *file_scratch_folder(void);
/* A file without a name in a folder, open for reading and writing; the system removes it when *fd is closed, also by
 * the end of the process. MN_E_IO, MN_E_NOMEM. */
mn_status file_open_unnamed(int *fd, const char *folder);

/* All n bytes to where fd stands; MN_E_IO names `path`. */
mn_status file_write_all(int fd, const char *path, const void *data, size_t n);

bool file_exists(const char *path); /* a regular file or a link to one */
/* The same for whatever is no folder: opening what is no regular file says so, and looking past it would not. */
bool file_is_there(const char *path);
bool file_is_directory(const char *path);

/* "folder/name" into *out (cleared first). */
mn_status path_join(bytes *out, const char *folder, const char *name);

#endif
