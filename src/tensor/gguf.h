/* GGUF v2 and v3: container, metadata, tensors (names as in the file; split files are followed).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TENSOR_GGUF_H
#define MN_TENSOR_GGUF_H

#include <stdbool.h>

#include "base/mem.h"
#include "tensor/tensor.h"

typedef enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
} gguf_type;

/* A string as it lies in the file; UTF-8 intended, not promised. */
typedef struct gguf_text {
    const char *text; /* into the mapping: not zero-terminated */
    size_t n;
} gguf_text;

typedef struct gguf gguf;

/* Maps the file (and, for "-00001-of-0000N.gguf", its siblings) and checks every count, length, offset and name before
 * anything is trusted. MN_E_NOT_FOUND names a missing part, MN_E_FORMAT reports what is wrong and where. */
mn_status gguf_open(gguf **out, const char *path);

/* The same for a file of n bytes in memory, which must outlive the result; `what` names it in messages. */
mn_status gguf_open_memory(gguf **out, const void *data, size_t n, const char *what);
void gguf_close(gguf **file);
const tensor_set *gguf_tensors(const gguf *file);
const char *gguf_path(const gguf *file);

bool gguf_has(const gguf *file, const char *key);

/* Typed getters, as those of base/json.h: an absent key leaves *out and gives MN_OK, a wrong type or a value out of
 * range is MN_E_FORMAT. gguf_int takes every integer type, gguf_real every number. */
mn_status gguf_int(const gguf *file, const char *key, int64_t lo, int64_t hi, int64_t *out);
mn_status gguf_real(const gguf *file, const char *key, double lo, double hi, double *out);
mn_status gguf_bool(const gguf *file, const char *key, bool *out);
mn_status gguf_string(const gguf *file, const char *key, gguf_text *out);

/* Arrays: one lookup, then by index (below gguf_array_n). */
typedef struct gguf_array gguf_array;
const gguf_array *gguf_array_find(const gguf *file, const char *key); /* NULL when absent or no array */
size_t gguf_array_n(const gguf_array *array);
bool gguf_array_is_text(const gguf_array *array);
gguf_text gguf_array_text_at(const gguf_array *array, size_t i); /* empty when the items are no strings */
double gguf_array_number_at(const gguf_array *array, size_t i);  /* NaN when they are; bools are 0 and 1 */

/* For listings: the i-th metadata key, in file order, and its value as JSON (an array as "[49152 string]"). */
size_t gguf_key_count(const gguf *file);
const char *gguf_key(const gguf *file, size_t i);
void gguf_put_value(bytes *out, const gguf *file, size_t i);

/* Appends the i-th key and its value as they lie in files. */
void gguf_put_pair(bytes *out, const gguf *file, size_t i);

#endif
