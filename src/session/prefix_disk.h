/* The files of kept prefixes: a folder of saved sessions (mn_session_save), each with the ids, the salt and the
 * strategy of its prefix. A second thread reads and writes them; the tree of prefixes has an entry for each file.
 *
 * What is kept in memory is written when it has not been used for a second, and when the folder is closed, so what is
 * evicted later is still in a file. A prefix of which files have nearly all is not written. A longer prefix replaces
 * the files of its beginnings where it can be truncated to them; over the limit of bytes the file goes that was used
 * longest ago.
 *
 * But for the second thread, used by the thread of the tree.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SESSION_PREFIX_DISK_H
#define MN_SESSION_PREFIX_DISK_H

#include "session/prefix.h"

typedef struct prefix_disk prefix_disk;

/* Makes the folder if it is missing and lists its files: those of other models, of another user or that others may
 * write are ignored. limit: bytes of the files; 0: no limit. key_file: as mn_cache_options has it; NULL: none. MN_E_IO,
 * MN_E_REFUSED when the folder can be written by others, MN_E_NOMEM. */
mn_status prefix_disk_open(prefix_disk **out, prefix_tree *tree, mn_model *model, const char *folder, size_t limit,
                           const char *key_file);
/* Writes what has not been written, for ten seconds at most, and takes the files out of the tree. */
void prefix_disk_close(prefix_disk **disk);

/* Puts what was read and written into the tree, and begins to write. */
void prefix_disk_turn(prefix_disk *disk);

/* Whether the file of a match is being read: what it holds is soon kept. may_begin: begins to read it where that is
 * faster than computing its tokens, at token_ms each (0: not known), for the owner of this name. */
bool prefix_disk_reads(prefix_disk *disk, const prefix_match *match, double token_ms, bool may_begin,
                       const char *owner);

/* Returns when something was read, or nothing is being read. */
void prefix_disk_wait(prefix_disk *disk);

/* Returns when nothing is being read or written, and what was is in the tree. */
void prefix_disk_wait_all(prefix_disk *disk);
/* Removes the file of an entry that is not being read. */
void prefix_disk_remove(prefix_disk *disk, prefix_entry *file);

typedef struct prefix_disk_info {
    size_t n_files, bytes;
    uint64_t n_read, n_written, n_failed; /* since the folder was opened; failures of both */
} prefix_disk_info;

prefix_disk_info prefix_disk_get_info(const prefix_disk *disk);

#endif
