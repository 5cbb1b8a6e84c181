/* SPDX-License-Identifier: Apache-2.0 */
#include "support/hostile/hostile.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/num.h"
#include "tensor/gguf.h"
#include "tensor/safetensors.h"

/* ---- damage ---- */

typedef struct damaged {
    uint8_t *data;
    size_t n, capacity;
    uint64_t *seed;
} damaged;

static uint64_t next_random(uint64_t *seed) {
    return random_bits(0x686F7374u, 0, (*seed)++);
}

static size_t below(damaged *d, size_t limit) {
    return limit ? (size_t)(next_random(d->seed) % limit) : 0;
}

static void flip_bit(damaged *d) {
    d->data[below(d, d->n)] ^= (uint8_t)(1u << below(d, 8));
}

static void set_byte(damaged *d) {
    d->data[below(d, d->n)] = (uint8_t)next_random(d->seed);
}

static void cut(damaged *d) {
    d->n = below(d, d->n);
}

static void copy_piece(damaged *d) {
    size_t length = 1 + below(d, d->n < 64 ? d->n : 64);
    memmove(d->data + below(d, d->n - length + 1), d->data + below(d, d->n - length + 1), length);
}

static void insert_piece(damaged *d) {
    size_t room = d->capacity - d->n, most = d->n < 64 ? d->n : 64, length = 1 + below(d, most), at = below(d, d->n);
    uint8_t piece[64];
    if (length > room) return;
    memcpy(piece, d->data + below(d, d->n - length + 1), length);
    memmove(d->data + at + length, d->data + at, d->n - at);
    memcpy(d->data + at, piece, length);
    d->n += length;
}

static void remove_piece(damaged *d) {
    size_t length = 1 + below(d, d->n < 64 ? d->n : 64), at = below(d, d->n - length + 1);
    memmove(d->data + at, d->data + at + length, d->n - at - length);
    d->n -= length;
}

/* Overwrites a length, count or offset field: small, huge or off by one. Half of the time near the start, where most of
 * them are. */
static void overwrite_number(damaged *d) {
    static const uint64_t numbers[] = {0,
                                       1,
                                       2,
                                       7,
                                       8,
                                       31,
                                       32,
                                       33,
                                       255,
                                       0x7FFFFFFF,
                                       0x80000000,
                                       0xFFFFFFFF,
                                       0x100000000,
                                       100000000,
                                       100000001,
                                       INT64_MAX,
                                       (uint64_t)1 << 63,
                                       UINT64_MAX,
                                       UINT64_MAX - 7,
                                       UINT64_MAX / 2};
    size_t width = below(d, 2) ? 8 : 4;
    if (d->n < width) return;
    size_t span = d->n - width + 1, at = below(d, below(d, 2) && span > 64 ? 64 : span);
    uint64_t number = numbers[below(d, sizeof numbers / sizeof *numbers)], old = 0;
    memcpy(&old, d->data + at, width);
    if (below(d, 3) == 0) number = old + (below(d, 2) ? 1 : UINT64_MAX);
    memcpy(d->data + at, &number, width);
}

static void change_digit(damaged *d) {
    for (int tries = 0; tries < 64; tries++) {
        size_t at = below(d, d->n);
        if (d->data[at] < '0' || d->data[at] > '9') continue;
        d->data[at] = (uint8_t)('0' + below(d, 10));
        return;
    }
}

size_t hostile_mutate(uint8_t *data, size_t n, size_t capacity, uint64_t *seed) {
    static void (*const ways[])(damaged *) = {flip_bit,         set_byte,         cut,
                                              copy_piece,       insert_piece,     remove_piece,
                                              overwrite_number, overwrite_number, change_digit};
    damaged d = {data, n, capacity, seed};
    size_t times = 1 + below(&d, 4);
    for (size_t i = 0; i < times && d.n > 0; i++) ways[below(&d, sizeof ways / sizeof *ways)](&d);
    return d.n;
}

/* ---- checks ---- */

/* A copy of exact size, so that the address sanitizer detects the first byte beyond it. */
static uint8_t *exact_copy(const uint8_t *data, size_t n) {
    uint8_t *copy = malloc(n ? n : 1);
    MUST_HOLD(copy);
    if (n) memcpy(copy, data, n);
    return copy;
}

/* Reads the bytes, so that a sanitizer checks their addresses. */
static void touch(const void *data, size_t n) {
    static volatile uint8_t sink;
    if (n) sink = (uint8_t)(((const uint8_t *)data)[0] ^ ((const uint8_t *)data)[n - 1]);
    (void)sink;
}

static void walk_tensors(const tensor_set *set, const uint8_t *data, size_t n) {
    MUST_HOLD(tensor_set_file_bytes(set) == n);
    for (size_t i = 0; i < tensor_set_count(set); i++) {
        const tensor *t = tensor_set_at(set, i);
        int64_t elements = 1;
        size_t needed;
        MUST_HOLD(tensor_set_find(set, t->name) == t);
        MUST_HOLD(t->n_dims >= 0 && t->n_dims <= TENSOR_DIMS);
        for (int k = 0; k < t->n_dims; k++) MUST_HOLD(!__builtin_mul_overflow(elements, t->shape[k], &elements));
        MUST_HOLD(dtype_bytes(t->type, elements, &needed) == MN_OK && needed == t->bytes);
        MUST_HOLD(t->data >= data && t->bytes <= n && (size_t)(t->data - data) <= n - t->bytes);
        if (i > 0) MUST_HOLD(tensor_set_at(set, i - 1)->data + tensor_set_at(set, i - 1)->bytes <= t->data);
        touch(t->data, t->bytes);
    }
    MUST_HOLD(tensor_set_find(set, "no tensor has this name") == NULL);
}

mn_status hostile_safetensors(const uint8_t *data, size_t n) {
    int64_t live = mem_count().live;
    uint8_t *copy = exact_copy(data, n);
    tensor_set *set = NULL;
    mn_status status = safetensors_open_memory(&set, copy, n, "hostile");
    MUST_HOLD(status == MN_OK || status == MN_E_FORMAT);
    MUST_HOLD((status == MN_OK) == (set != NULL));
    if (set) {
        const json *metadata = safetensors_metadata(set);
        for (size_t i = 0; metadata && i < metadata->n; i++) MUST_HOLD(metadata->members[i].value.kind == JSON_STRING);
        walk_tensors(set, copy, n);
    }
    tensor_set_close(&set);
    free(copy);
    MUST_HOLD(mem_count().live == live);
    return status;
}

static void walk_array(const gguf_array *array) {
    for (size_t i = 0; i < gguf_array_n(array); i++) {
        gguf_text text = gguf_array_text_at(array, i);
        double number = gguf_array_number_at(array, i);
        touch(text.text, text.n);
        if (gguf_array_is_text(array)) MUST_HOLD(isnan(number));
    }
}

static void walk_pairs(const gguf *file) {
    for (size_t i = 0; i < gguf_key_count(file); i++) {
        const char *key = gguf_key(file, i);
        const gguf_array *array = gguf_array_find(file, key);
        int64_t whole = 0;
        double real = 0;
        bool truth = false;
        gguf_text text = {0};
        bytes shown = {0};
        int answers = (gguf_int(file, key, INT64_MIN, INT64_MAX, &whole) == MN_OK) +
                      (gguf_bool(file, key, &truth) == MN_OK) + (gguf_real(file, key, -1e308, 1e308, &real) == MN_OK) +
                      (gguf_string(file, key, &text) == MN_OK);
        MUST_HOLD(gguf_has(file, key));
        MUST_HOLD(answers <= 2 && (!array || answers == 0)); /* an integer is also a number */
        if (array) walk_array(array);
        gguf_put_value(&shown, file, i);
        json_doc *doc = NULL;
        MUST_HOLD(json_parse(&doc, shown.data, shown.n, JSON_STRICT, "value") == MN_OK);
        json_close(&doc);
        bytes_clear(&shown);
    }
}

mn_status hostile_gguf(const uint8_t *data, size_t n) {
    int64_t live = mem_count().live;
    uint8_t *copy = exact_copy(data, n);
    gguf *file = NULL;
    mn_status status = gguf_open_memory(&file, copy, n, "hostile");
    MUST_HOLD(status == MN_OK || status == MN_E_FORMAT);
    MUST_HOLD((status == MN_OK) == (file != NULL));
    if (file) {
        walk_tensors(gguf_tensors(file), copy, n);
        walk_pairs(file);
    }
    gguf_close(&file);
    free(copy);
    MUST_HOLD(mem_count().live == live);
    return status;
}

static void check_round_trip(const json_doc *doc, json_mode mode) {
    bytes first = {0}, second = {0};
    json_doc *again = NULL;
    json_put(&first, json_root(doc));
    MUST_HOLD(json_parse(&again, first.data, first.n, mode, "written") == MN_OK);
    json_put(&second, json_root(again));
    MUST_HOLD(first.n == second.n && memcmp(first.data, second.data, first.n) == 0);
    json_close(&again);
    bytes_clear(&first);
    bytes_clear(&second);
}

mn_status hostile_json(const uint8_t *data, size_t n) {
    int64_t live = mem_count().live;
    char *copy = (char *)exact_copy(data, n);
    json_doc *strict = NULL, *python = NULL;
    mn_status status = json_parse(&strict, copy, n, JSON_STRICT, "hostile");
    mn_status lax = json_parse(&python, copy, n, JSON_PYTHON, "hostile");
    MUST_HOLD(status == MN_OK || status == MN_E_FORMAT);
    MUST_HOLD(lax == MN_OK || (lax == MN_E_FORMAT && status == MN_E_FORMAT));
    if (strict) check_round_trip(strict, JSON_STRICT);
    if (python) check_round_trip(python, JSON_PYTHON);
    json_close(&strict);
    json_close(&python);
    free(copy);
    MUST_HOLD(mem_count().live == live);
    return status;
}
