/* Named tensors over mapped files. Nothing here owns or copies tensor data: a tensor is a view into a mapping that its
 * tensor_set keeps. A file that another process shortens while it is mapped raises SIGBUS when the lost part is
 * touched.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TENSOR_TENSOR_H
#define MN_TENSOR_TENSOR_H

#include "tensor/dtype.h"

enum { TENSOR_DIMS = 8 };

typedef struct tensor {
    const char *name; /* as in the file; owned by the set */
    dtype type;
    int n_dims;                 /* 0..TENSOR_DIMS */
    int64_t shape[TENSOR_DIMS]; /* outermost first, as PyTorch prints it: [out][in]; rows are contiguous */
    const uint8_t *data;        /* no alignment promised */
    size_t bytes;
} tensor;

/* All tensors of a checkpoint, from one file or several shards. */
typedef struct tensor_set tensor_set;

void tensor_set_close(tensor_set **set); /* unmaps the files */
size_t tensor_set_count(const tensor_set *set);
const tensor *tensor_set_at(const tensor_set *set, size_t i);           /* in file order */
const tensor *tensor_set_find(const tensor_set *set, const char *name); /* NULL when absent; O(log n) */
size_t tensor_set_file_bytes(const tensor_set *set);                    /* of all files together */

/* Tells the system that the mapped pages need not stay in memory (after packing); they are read again when touched.
 * Nothing happens to files opened from memory. */
void tensor_set_release_pages(const tensor_set *set);

#endif
