/* safetensors: single files, sharded checkpoints, and a writer. The header is hostile input and read strictly. Format:
 * u64 little-endian header length, JSON header, data; offsets are relative to the data.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TENSOR_SAFETENSORS_H
#define MN_TENSOR_SAFETENSORS_H

#include "base/json.h"
#include "tensor/tensor.h"

/* Opens one .safetensors file. Everything in the header is checked against the file before this returns: the data of
 * the tensors fill the file without holes or overlaps. MN_E_NOT_FOUND, MN_E_IO; MN_E_FORMAT says what is wrong and
 * where. */
mn_status safetensors_open(tensor_set **out, const char *path);

/* The same for a file of n bytes in memory, which must outlive the set; `what` names it in messages. */
mn_status safetensors_open_memory(tensor_set **out, const void *data, size_t n, const char *what);

/* Opens a Hugging Face folder: model.safetensors, or every shard that model.safetensors.index.json names (each tensor
 * must be in the shard the index says). MN_E_NOT_FOUND names the missing file; all files are looked for before one is
 * read. */
mn_status safetensors_open_folder(tensor_set **out, const char *folder);

/* The "__metadata__" object (string values) of a set that is one file, or NULL. */
const json *safetensors_metadata(const tensor_set *set);

/* The head of such a file, for callers that write the data themselves: header length and header, padded with spaces so
 * that the data begin at a multiple of `alignment` (a multiple of 8). The tensors' data are to follow in the given
 * order; of each, name, type, shape and bytes count. metadata: an object of strings as JSON text, or NULL; it comes
 * first. `out` is cleared. MN_E_ARG as for safetensors_write; `what` names the file. */
mn_status safetensors_head(bytes *out, const char *what, const tensor *tensors, size_t n, const char *metadata,
                           size_t alignment);

/* Writes tensors (name, type, shape, data, bytes filled) and optional metadata pairs (key, value, key, value, ...,
 * NULL) to `path` atomically. The data begin at a multiple of 8 bytes and the widest elements come first, so that every
 * tensor is aligned to its elements; among equals the given order stays. MN_E_ARG when a tensor's type has no name in
 * this format, its bytes are not those of its shape, or a name is repeated or unfit. */
mn_status safetensors_write(const char *path, const tensor *tensors, size_t n, const char *const *metadata);

#endif
