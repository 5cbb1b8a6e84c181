/* Complete GGUF files for tests, data included, on top of checkpoint/gguf_write.h.
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

#include "checkpoint/gguf_write.h"

/* A tensor, shape outermost first as everywhere in the library; data as stored in the file, or float32 values that are
 * converted to `type` (a type of quantize_from_f32). */
void gguf_writer_tensor(gguf_writer *w, const char *name, dtype type, int n_dims, const int64_t *shape,
                        const void *data);
void gguf_writer_tensor_f32(gguf_writer *w, const char *name, dtype type, int n_dims, const int64_t *shape,
                            const float *values);

void gguf_writer_finish(const gguf_writer *w, bytes *out); /* writes the file's bytes; out is cleared first */
void gguf_writer_save(const gguf_writer *w, const char *path);

#endif
