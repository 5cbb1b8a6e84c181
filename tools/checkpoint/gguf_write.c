/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/gguf_write.h"

#include <string.h>

void gguf_put_u32(bytes *out, uint32_t value) {
    bytes_append(out, &value, sizeof value);
}

void gguf_put_u64(bytes *out, uint64_t value) {
    bytes_append(out, &value, sizeof value);
}

void gguf_put_text(bytes *out, const char *text, size_t n) {
    gguf_put_u64(out, n);
    bytes_append(out, text, n);
}

static void begin_pair(gguf_writer *w, const char *key, gguf_type type) {
    gguf_put_text(&w->pairs, key, strlen(key));
    gguf_put_u32(&w->pairs, (uint32_t)type);
    w->n_pairs++;
}

void gguf_writer_int(gguf_writer *w, const char *key, gguf_type type, int64_t value) {
    static const size_t widths[] = {[GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
                                    [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_U64] = 8, [GGUF_I64] = 8};
    begin_pair(w, key, type);
    bytes_append(&w->pairs, &value, widths[type]);
}

void gguf_writer_real(gguf_writer *w, const char *key, gguf_type type, double value) {
    float narrow = (float)value;
    begin_pair(w, key, type);
    if (type == GGUF_F32) {
        bytes_append(&w->pairs, &narrow, sizeof narrow);
    } else {
        bytes_append(&w->pairs, &value, sizeof value);
    }
}

void gguf_writer_bool(gguf_writer *w, const char *key, bool value) {
    begin_pair(w, key, GGUF_BOOL);
    bytes_append(&w->pairs, value ? "\1" : "\0", 1);
}

void gguf_writer_text(gguf_writer *w, const char *key, const char *value) {
    begin_pair(w, key, GGUF_STRING);
    gguf_put_text(&w->pairs, value, strlen(value));
}

void gguf_writer_texts(gguf_writer *w, const char *key, const char *const *values, size_t n) {
    begin_pair(w, key, GGUF_ARRAY);
    gguf_put_u32(&w->pairs, GGUF_STRING);
    gguf_put_u64(&w->pairs, n);
    for (size_t i = 0; i < n; i++) gguf_put_text(&w->pairs, values[i], strlen(values[i]));
}

void gguf_writer_array(gguf_writer *w, const char *key, gguf_type item, size_t item_bytes, const void *values,
                       size_t n) {
    begin_pair(w, key, GGUF_ARRAY);
    gguf_put_u32(&w->pairs, (uint32_t)item);
    gguf_put_u64(&w->pairs, n);
    bytes_append(&w->pairs, values, n * item_bytes);
}

void gguf_writer_copy(gguf_writer *w, const gguf *file, size_t i) {
    gguf_put_pair(&w->pairs, file, i);
    w->n_pairs++;
}

uint32_t gguf_writer_alignment(const gguf_writer *w) {
    return w->alignment ? w->alignment : 32;
}

void gguf_put_padding(bytes *out, uint32_t alignment) {
    while (out->n % alignment != 0 && !out->failed) bytes_append(out, "", 1);
}

void gguf_writer_info(gguf_writer *w, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                      uint64_t offset) {
    gguf_put_text(&w->infos, name, strlen(name));
    gguf_put_u32(&w->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) gguf_put_u64(&w->infos, ne[i]);
    gguf_put_u32(&w->infos, type);
    gguf_put_u64(&w->infos, offset);
    w->n_tensors++;
}

mn_status gguf_writer_header(const gguf_writer *w, bytes *out) {
    gguf_writer extra = {0};
    if (w->alignment) gguf_writer_int(&extra, "general.alignment", GGUF_U32, w->alignment);
    out->n = 0;
    bytes_append_text(out, "GGUF");
    gguf_put_u32(out, w->version ? w->version : 3);
    gguf_put_u64(out, w->n_tensors);
    gguf_put_u64(out, w->n_pairs + extra.n_pairs);
    const bytes *parts[] = {&extra.pairs, &w->pairs, &w->infos};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        out->failed = out->failed || parts[i]->failed;
        bytes_append(out, parts[i]->data, parts[i]->n);
    }
    gguf_writer_clear(&extra);
    return bytes_status(out);
}

void gguf_writer_clear(gguf_writer *w) {
    bytes_clear(&w->pairs);
    bytes_clear(&w->infos);
    bytes_clear(&w->data);
    *w = (gguf_writer){0};
}
