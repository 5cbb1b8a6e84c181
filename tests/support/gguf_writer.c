/* SPDX-License-Identifier: Apache-2.0 */
#include "support/gguf_writer.h"

#include "support/support.h"
#include "checkpoint/quantize.h"

void gguf_writer_tensor(gguf_writer *w, const char *name, dtype type, int n_dims, const int64_t *shape,
                        const void *data) {
    uint64_t ne[TENSOR_DIMS];
    int64_t n = 1;
    size_t size;
    for (int i = 0; i < n_dims; i++) {
        ne[n_dims - 1 - i] = (uint64_t)shape[i];
        n *= shape[i];
    }
    assert_ok(dtype_bytes(type, n, &size));
    gguf_writer_info(w, name, (uint32_t)n_dims, ne, (uint32_t)dtype_table[type].gguf_id, w->data.n);
    bytes_append(&w->data, data, size);
    gguf_put_padding(&w->data, gguf_writer_alignment(w));
}

void gguf_writer_tensor_f32(gguf_writer *w, const char *name, dtype type, int n_dims, const int64_t *shape,
                            const float *values) {
    int64_t n = 1;
    size_t size;
    for (int i = 0; i < n_dims; i++) n *= shape[i];
    assert_ok(dtype_bytes(type, n, &size));
    void *stored = mem_alloc_raw(size, 1);
    assert_non_null(stored);
    assert_ok(quantize_from_f32(type, stored, values, n));
    gguf_writer_tensor(w, name, type, n_dims, shape, stored);
    mem_free(stored);
}

void gguf_writer_finish(const gguf_writer *w, bytes *out) {
    assert_ok(gguf_writer_header(w, out));
    if (w->data.n) gguf_put_padding(out, gguf_writer_alignment(w));
    bytes_append(out, w->data.data, w->data.n);
    assert_ok(bytes_status(&w->data));
    assert_ok(bytes_status(out));
}

void gguf_writer_save(const gguf_writer *w, const char *path) {
    bytes out = {0};
    gguf_writer_finish(w, &out);
    assert_ok(file_write_atomic(path, out.data, out.n));
    bytes_clear(&out);
}
