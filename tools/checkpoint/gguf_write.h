/* Writes the part of a GGUF file before the data: metadata and the descriptions of tensors. The caller writes the data:
 * after the header and padding to the alignment, each tensor at the offset of its description.
 *
 *     gguf_writer w = {0};
 *     gguf_writer_text(&w, "general.architecture", "llama");
 *     uint32_t type = (uint32_t)dtype_table[DTYPE_BF16].gguf_id;
 *     gguf_writer_info(&w, "token_embd.weight", 2, (uint64_t[]){64, 260}, type, 0);
 *     mn_status status = gguf_writer_header(&w, &out);
 *     gguf_writer_clear(&w);
 *
 * The status of the header reports failed allocations of the calls before it. The format: u32 and u64 little-endian; a
 * string is its u64 length and its bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef CHECKPOINT_GGUF_WRITE_H
#define CHECKPOINT_GGUF_WRITE_H

#include "base/mem.h"
#include "tensor/gguf.h"

typedef struct gguf_writer {
    uint32_t version;   /* 0: 3 */
    uint32_t alignment; /* 0: 32; other values are written as general.alignment */
    uint64_t n_pairs, n_tensors;
    bytes pairs, infos;
    bytes data; /* for files made in memory; not written by the functions here */
} gguf_writer;

/* Metadata. The integer is truncated to the type's width. */
void gguf_writer_int(gguf_writer *w, const char *key, gguf_type type, int64_t value);
void gguf_writer_real(gguf_writer *w, const char *key, gguf_type type, double value); /* GGUF_F32 or GGUF_F64 */
void gguf_writer_bool(gguf_writer *w, const char *key, bool value);
void gguf_writer_text(gguf_writer *w, const char *key, const char *value);
void gguf_writer_texts(gguf_writer *w, const char *key, const char *const *values, size_t n);
void gguf_writer_array(gguf_writer *w, const char *key, gguf_type item, size_t item_bytes, const void *values,
                       size_t n);
void gguf_writer_copy(gguf_writer *w, const gguf *file, size_t i); /* the i-th pair of a file */

/* The description of a tensor, without validation: dimensions as in the file (fastest first), the type's number in
 * GGUF files, the offset from the first byte of the data. */
void gguf_writer_info(gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                      uint64_t offset);

uint32_t gguf_writer_alignment(const gguf_writer *w); /* of the data and of every tensor in it */
mn_status gguf_writer_header(const gguf_writer *w,
                             bytes *out); /* writes the header without padding; out is cleared first */
void gguf_writer_clear(gguf_writer *w);

/* Primitives, for files that the functions above cannot write. */
void gguf_put_u32(bytes *out, uint32_t value);
void gguf_put_u64(bytes *out, uint64_t value);
void gguf_put_text(bytes *out, const char *text, size_t n);
void gguf_put_padding(bytes *out, uint32_t alignment);

#endif
