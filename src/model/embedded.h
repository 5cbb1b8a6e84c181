/* The model that is linked into the program: the files of one Hugging Face folder, chosen by the build option
 * MNEME_EMBEDDED_MODEL.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_EMBEDDED_H
#define MN_MODEL_EMBEDDED_H

#include <stddef.h>
#include <string.h>

typedef struct embedded_file {
    const char *name;          /* "config.json" */
    const unsigned char *data; /* 64-byte aligned */
    size_t n;                  /* bytes */
} embedded_file;

extern const embedded_file embedded_files[];
extern const size_t n_embedded_files; /* 0: the program has no embedded model */

/* NULL when there is no such file. */
static inline const embedded_file *embedded_find(const char *name) {
    for (size_t i = 0; i < n_embedded_files; i++) {
        if (strcmp(embedded_files[i].name, name) == 0) return &embedded_files[i];
    }
    return NULL;
}

#endif
