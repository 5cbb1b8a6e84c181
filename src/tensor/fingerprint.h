/* The fingerprint of a model's weights: 32 hexadecimal digits over the tensors in the order of their names, so
 * that sharding and order in the file do not matter.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TENSOR_FINGERPRINT_H
#define MN_TENSOR_FINGERPRINT_H

#include "base/hash.h"
#include "tensor/tensor.h"

/* Name, type, shape and every byte of every tensor: reads the whole file. */
mn_status tensor_set_fingerprint(char out[FINGERPRINT_HEX], const tensor_set *set);

enum {
    FINGERPRINT_WHOLE = 64 << 10, /* smaller tensors are read entirely */
    FINGERPRINT_BLOCK = 4 << 10,
    FINGERPRINT_BLOCKS = 4 /* of every larger tensor, evenly from its first byte to its last */
};

/* Name, type and shape of every tensor, the bytes of small ones, and samples of the large ones: at most 64 KiB of each
 * tensor whatever its size, some 10 ms for a model of 1 GB that is in the page cache, a disk access for each block when
 * it is not. Another model, another quantisation, a fine-tuning that touched a layer as a whole: all differ. A few
 * weights changed by hand between the samples of a large tensor go unnoticed; where that matters, use the other
 * function. */
mn_status tensor_set_fingerprint_sampled(char out[FINGERPRINT_HEX], const tensor_set *set);

/* Adds the size of every file and when it was last changed: with the samples, any change of a file is noticed, and a
 * copy counts as another file unless it keeps the time. */
void tensor_set_add_files(fingerprint *f, const tensor_set *set);

#endif
