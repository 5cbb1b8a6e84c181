/* How the readers of checkpoint formats fill a tensor_set. Users of a set need tensor.h only.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TENSOR_TENSOR_SET_H
#define MN_TENSOR_TENSOR_SET_H

#include "base/file.h"
#include "base/json.h"
#include "tensor/tensor.h"

enum { TENSOR_NAME_BYTES = 4096 }; /* the longest name of a tensor or metadata key that is read */

typedef struct tensor_file {
    file_map map;
    bool borrowed;    /* the bytes are the caller's, not a mapping */
    json_doc *header; /* safetensors: parsed header, which holds the names */
    char *names;      /* GGUF: names with terminating zeros */
} tensor_file;

struct tensor_set {
    tensor_file *files;
    size_t n_files, files_capacity;
    tensor *tensors;
    size_t n, capacity;
    const void **by_name; /* the tensors, sorted by name */
};

mn_status tensor_set_new(tensor_set **out);

/* Adds a file to the set: mapped, or the n bytes at `data`, which must outlive the set. */
mn_status tensor_set_map(tensor_set *set, const char *path);
mn_status tensor_set_borrow(tensor_set *set, const void *data, size_t n);

mn_status tensor_set_add(tensor_set *set, const tensor *t);

/* Moves all files and tensors of `other` to the end of the set; `other` is left without any. */
mn_status tensor_set_merge(tensor_set *set, tensor_set *other);

/* Sorts the tensors by where their data lie. */
mn_status tensor_set_order(tensor_set *set);

/* Builds the index by name once all tensors are there. MN_E_FORMAT when a name appears twice; `what` begins the
 * message. */
mn_status tensor_set_finish(tensor_set *set, const char *what);

/* Bytes that the shape and type require; MN_E_FORMAT when a dimension is negative, the product exceeds 63 bits, or rows
 * do not fill blocks. */
mn_status tensor_needs(const char *what, const tensor *t, size_t *out);

/* A name must be 1..TENSOR_NAME_BYTES bytes of UTF-8 without control characters, so that it can be shown and compared.
 * `kind` is what it names: "tensor" or "key". */
mn_status tensor_check_name(const char *what, const char *kind, const char *name, size_t n);

#endif
