/* Writes GGUF files for tests: good ones, and the pieces of bad ones. The format: u32 and u64 little-endian,
 * a string is its u64 length and its bytes; header, pairs, tensor descriptions, padding, data.
 *
 *     gguf_writer w = {0};
 *     gguf_writer_text(&w, "general.architecture", "llama");
 *     gguf_writer_tensor_f32(&w, "token_embd.weight", DTYPE_Q8_0, 2, (int64_t[]){260, 64}, values);
 *     gguf_writer_save(&w, path);
 *     gguf_writer_clear(&w);
 *
 * Failures (no memory, a type that cannot be written) fail the test.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GGUF_WRITER_H
#define TESTS_GGUF_WRITER_H

#include "base/mem.h"
#include "tensor/gguf.h"

typedef struct gguf_writer {
    uint32_t version;   /* 0: 3 */
    uint32_t alignment; /* 0: 32; another one is written as general.alignment too */
    uint64_t n_pairs, n_tensors;
    bytes pairs, infos, data;
} gguf_writer;

/* Metadata. The integer is cut to the type's width. */
void gguf_writer_int(gguf_writer *w, const char *key, gguf_type type, int64_t value);
void gguf_writer_real(gguf_writer *w, const char *key, gguf_type type,
                      double value); /* GGUF_F32 or GGUF_F64 */
void gguf_writer_bool(gguf_writer *w, const char *key, bool value);
void gguf_writer_text(gguf_writer *w, const char *key, const char *value);
void gguf_writer_texts(gguf_writer *w, const char *key, const char *const *values, size_t n);
void gguf_writer_array(gguf_writer *w, const char *key, gguf_type item, size_t item_bytes, const void *values,
                       size_t n);

/* A tensor, shape outermost first as everywhere in the library; data as they are to lie in the file, or
 * float32 values to be stored as `type` (a type of quantize_from_f32). */
void gguf_writer_tensor(gguf_writer *w, const char *name, dtype type, int n_dims, const int64_t *shape,
                        const void *data);
void gguf_writer_tensor_f32(gguf_writer *w, const char *name, dtype type, int n_dims, const int64_t *shape,
                            const float *values);

/* The description of a tensor alone, whatever its numbers: dimensions as in the file (fastest first). */
void gguf_writer_info(gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                      uint64_t offset);

void gguf_writer_finish(const gguf_writer *w, bytes *out); /* the file's bytes; out is cleared first */
void gguf_writer_save(const gguf_writer *w, const char *path);
void gguf_writer_clear(gguf_writer *w);

/* Pieces, for files that the functions above would not write. */
void gguf_put_u32(bytes *out, uint32_t value);
void gguf_put_u64(bytes *out, uint64_t value);
void gguf_put_text(bytes *out, const char *text, size_t n);

#endif
