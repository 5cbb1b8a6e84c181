/* A folder of the test program for files that it writes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <stddef.h>

/* "<folder>/<name>". The first call makes the folder; it is removed with all its files when the program ends.
 * Valid until the fourth call after it. */
const char *scratch_path(const char *name);

/* Writes a file there and returns its path. */
const char *scratch_file(const char *name, const void *data, size_t n);

/* An empty folder there of that name. */
const char *scratch_empty(const char *name);

/* The number of files in any folder, without those whose names begin with a dot. */
/* The descriptor of the one regular file without a name that this process has open, as an offload file is; -1: there is
 * none, or more than one. */
int scratch_unnamed_file(void);

int scratch_count(const char *folder);

#endif
