/* Files of the model that is linked into the program (CMake: MNEME_EMBEDDED_MODEL).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_EMBEDDED_H
#define MN_MODEL_EMBEDDED_H

#include <stddef.h>

typedef struct embedded_file {
    const char *name; /* "config.json" */
    const unsigned char *data;
    size_t n;
} embedded_file;

extern const embedded_file embedded_files[];
extern const size_t n_embedded_files;

/* NULL when there is no such file. */
const embedded_file *embedded_find(const char *name);

#endif
