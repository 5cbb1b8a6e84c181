/* The models that `mneme pull` and scripts/get-model fetch by name: the rows of scripts/models.tsv, made into a table
 * by cmake/packages.cmake.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BASE_PACKAGES_H
#define MN_BASE_PACKAGES_H

#include <stddef.h>

/* The columns of that file, in their order. */
typedef struct model_package {
    const char *name;
    const char *use;    /* "text" or "speech" */
    const char *file;   /* in the models folder; or a folder */
    const char *sha256; /* of the file; of a folder that of the list of its files' checksums */
    const char *megabytes;
    const char *title, *licence;
    const char *packages; /* of the Python package index, space between */
} model_package;

extern const model_package model_packages[];
extern const size_t n_model_packages;

#endif
