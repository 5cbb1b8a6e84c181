/* A folder of a test program's own for files that it writes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <stddef.h>

/* "<folder>/<name>", the folder being made on the first call and removed with all its files when the program
 * ends. Valid until the fourth call after it. */
const char *scratch_path(const char *name);

/* Writes a file there and gives its path. */
const char *scratch_file(const char *name, const void *data, size_t n);

#endif
