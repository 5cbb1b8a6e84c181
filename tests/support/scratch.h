/* A folder of the test program for files that it writes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

/* "<folder>/<name>". The first call makes the folder; it is removed with all its files when the program ends.
 * Valid until the fourth call after it. */
const char *scratch_path(const char *name);

/* Writes a file there and returns its path. */
const char *scratch_file(const char *name, const void *data, size_t n);

/* An empty folder there of that name. */
const char *scratch_empty(const char *name);

/* Makes user and group 12345 the owners; false: this user cannot, as all but root, and root where that user is unknown
 * (a user namespace). */
bool scratch_give_away(const char *path);

/* The descriptor of the one regular file without a name that this process has open, as an offload file is; -1: there is
 * none, or more than one. */
int scratch_unnamed_file(void);

/* The number of files in any folder, without those whose names begin with a dot. */
int scratch_count(const char *folder);

#endif
