/* safetensors: single files, sharded checkpoints, and a writer. The header is hostile input and read strictly.
 * Format: u64 little-endian header length, JSON header, data; offsets are relative to the data.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TENSOR_SAFETENSORS_H
#define MN_TENSOR_SAFETENSORS_H

#include "base/json.h"
#include "tensor/tensor.h"

/* Opens one .safetensors file. */
mn_status safetensors_open(tensor_set **out, const char *path);

/* Opens a Hugging Face folder: model.safetensors, or every shard that model.safetensors.index.json names (each tensor must
 * be in the shard the index says). MN_E_NOT_FOUND names the missing file. */
mn_status safetensors_open_folder(tensor_set **out, const char *folder);

/* The "__metadata__" object (string values) of a single file opened by safetensors_open, or NULL. */
const json *safetensors_metadata(const tensor_set *set);

/* Writes tensors (name, type, shape, data, bytes filled) and optional metadata pairs (key, value, key, value, ..., NULL)
 * to `path` atomically. Data are aligned to 8 bytes. */
mn_status safetensors_write(const char *path, const tensor *tensors, size_t n, const char *const *metadata);

#endif
