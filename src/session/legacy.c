/* Transformers' legacy form of a cache: for every layer a tensor of keys and one of values, all rows and tokens side by
 * side. It cannot represent dropped tokens, recurrent states and quantized tokens; the first two are refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "base/options.h"
#include "session/session.h"
#include "model/rope.h"
#include "tensor/safetensors.h"

enum { NAME = 24, STEP = 512 /* tokens imported together */ };

/* ---- keys and values of a layer ---- */

static mn_status check_layer(const mn_session *s, int layer) {
    if (layer >= 0 && layer < kv_entries(s->cache)) return MN_OK;
    MN_FAIL(MN_E_ARG, "layer is %d, allowed: 0 to %d", layer, kv_entries(s->cache) - 1);
}

mn_status mn_session_layer(const mn_session *s, int layer, mn_layer_info *info) {
    MN_TRY(check_layer(s, layer));
    const kv_spec *spec = kv_entry_spec(s->cache, layer);
    bool is_state = spec->kind == KV_STATE;
    mn_layer_info full = {
        .kind = is_state           ? "state"
                : spec->write_once ? "cross"
                                   : "self",
        .num_key_value_heads = spec->n_heads,
        .k_head_dim = spec->k_dim,
        .v_head_dim = spec->v_dim,
        .tokens = !s->plan.self.keeps ? 0
                  : spec->write_once  ? kv_filled(s->cache, layer)
                                      : kv_length(s->cache),
        .first_held = is_state ? 0 : kv_first_held(s->cache, layer),
        .first_exact = is_state ? 0 : kv_head_tokens(s->cache, layer),
        .quantized_tokens = is_state ? 0 : kv_quantized(s->cache, layer),
        .key_codec = kv_codec_name(spec->key.codec),
        .value_codec = kv_codec_name(spec->value.codec),
        .key_bits = spec->key.bits,
        .value_bits = spec->value.bits,
        .window_length = spec->window ? spec->window + spec->sinks : 0,
    };
    return options_give(info, &full, sizeof full, "mn_layer_info");
}

/* Keys [n][dim] from the order of this library to that of Transformers, or back, for models published with interleaved
 * rotary pairs. */
static void reorder_keys(const model_config *c, float *keys, size_t n, size_t dim, bool is_back) {
    enum { MOST = 1024 };
    size_t rotary = (size_t)c->rotary_dim, half = rotary / 2;
    float reordered[MOST];
    if (!c->rotates_neighbours) return;
    for (size_t r = 0; r < n; r++, keys += dim) {
        for (size_t i = 0; i < rotary; i++) {
            size_t ours = i % 2 * half + i / 2;
            reordered[is_back ? ours : i] = keys[is_back ? i : ours];
        }
        memcpy(keys, reordered, rotary * sizeof *keys);
    }
}

mn_status mn_session_read(const mn_session *s, int layer, bool keys, int64_t begin, int64_t n, float *rows) {
    MN_TRY(check_layer(s, layer));
    if (kv_entry_spec(s->cache, layer)->kind == KV_STATE)
        MN_FAIL(MN_E_UNSUPPORTED, "layer %d holds a state, not keys and values", layer);
    if (!s->plan.self.keeps) MN_FAIL(MN_E_UNSUPPORTED, "a session without a cache holds no keys and values");
    if (n < 0 || n > INT32_MAX) MN_FAIL(MN_E_ARG, "%lld tokens were requested", (long long)n);
    MN_TRY(session_read_rows(s, layer, keys, begin, (int)n, rows));
    const kv_spec *spec = kv_entry_spec(s->cache, layer);
    if (keys) reorder_keys(&s->model->net.config, rows, (size_t)spec->n_heads * (size_t)n, (size_t)spec->k_dim, false);
    return MN_OK;
}

mn_status mn_session_kv_shape(const mn_session *s, int layer, int64_t shape[4]) {
    MN_TRY(check_layer(s, layer));
    const kv_spec *spec = kv_entry_spec(s->cache, layer);
    int64_t most = session_entry_limit(s, spec),
            length = spec->write_once ? kv_filled(s->cache, layer) : kv_length(s->cache);
    if (most && length > most) length = most;
    if (s->plan.options.reserve && !spec->write_once) length = most;
    shape[0] = 1;
    shape[1] = spec->n_heads;
    shape[2] = s->plan.self.keeps ? length : 0;
    shape[3] = spec->k_dim;
    return MN_OK;
}

/* ---- names and sizes ---- */

/* "key.3" of a layer's self attention, "cross_value.3" of its cross attention. */
static void put_name(char out[NAME], const kv_cache *cache, int entry, bool keys) {
    bool is_cross = kv_entry_spec(cache, entry)->write_once;
    int first = 0;
    while (is_cross && !kv_entry_spec(cache, first)->write_once) first++;
    snprintf(out, NAME, "%s%s.%d", is_cross ? "cross_" : "", keys ? "key" : "value", entry - first);
}

/* Tokens of an entry of a session of n: cross attention has the encoder's positions. */
static int64_t tokens_of(const mn_session *s, int entry, int64_t n) {
    return kv_entry_spec(s->cache, entry)->write_once ? s->model->net.config.encoder->max_position_embeddings : n;
}

/* ---- export ---- */

/* Checks that the cache holds every token of every layer and nothing else. */
static mn_status check_exportable(const mn_session *s) {
    if (!s->plan.self.keeps) MN_FAIL(MN_E_UNSUPPORTED, "a session without a cache has nothing to export");
    if (kv_length(s->cache) != (int64_t)s->n_ids || s->n_ids == 0) {
        MN_FAIL(MN_E_ARG, "%zu tokens are to be exported and %lld of them are computed", s->n_ids,
                (long long)kv_length(s->cache));
    }
    for (int i = 0; i < kv_entries(s->cache); i++) {
        const kv_spec *spec = kv_entry_spec(s->cache, i);
        if (spec->kind == KV_STATE) MN_FAIL(MN_E_UNSUPPORTED, "layer %d has no legacy form: it holds a state", i);
        if (kv_first_held(s->cache, i) > 0) {
            MN_FAIL(MN_E_UNSUPPORTED,
                    "layer %d has dropped the tokens before %lld; the legacy form holds all tokens of a layer", i,
                    (long long)kv_first_held(s->cache, i));
        }
    }
    return MN_OK;
}

static mn_status check_rows(mn_session *const *rows, size_t n_rows) {
    if (n_rows == 0) MN_FAIL(MN_E_ARG, "no row was given to export");
    for (size_t r = 0; r < n_rows; r++) {
        MN_TRY(check_exportable(rows[r]));
        if (rows[r]->model != rows[0]->model) MN_FAIL(MN_E_ARG, "row %zu is of another model than row 0", r);
    }
    return MN_OK;
}

static void to_bf16(uint8_t *out, const float *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bf16 rounded = bf16_from_f32(values[i]);
        memcpy(out + i * sizeof rounded, &rounded, sizeof rounded);
    }
}

/* One stream of one layer, all rows, of `length` tokens each: shorter rows are padded with zeros before their
 * tokens. */
static mn_status read_stream(uint8_t *out, mn_session *const *rows, size_t n_rows, int layer, bool keys, dtype type,
                             size_t length, float *scratch) {
    const kv_spec *spec = kv_entry_spec(rows[0]->cache, layer);
    size_t dim = (size_t)(keys ? spec->k_dim : spec->v_dim), each = dim * (size_t)dtype_table[type].bytes;
    for (size_t r = 0; r < n_rows; r++) {
        size_t n = (size_t)tokens_of(rows[r], layer, (int64_t)rows[r]->n_ids), padding = (length - n) * each;
        MN_TRY(mn_session_read(rows[r], layer, keys, 0, (int64_t)n, scratch));
        for (size_t h = 0; h < (size_t)spec->n_heads; h++, out += length * each) {
            memset(out, 0, padding);
            if (type == DTYPE_F32) {
                memcpy(out + padding, scratch + h * n * dim, n * each);
            } else {
                to_bf16(out + padding, scratch + h * n * dim, n * dim);
            }
        }
    }
    return MN_OK;
}

typedef struct export {
    tensor *tensors;
    char(*names)[NAME];
    size_t n;
    uint8_t *data;
    float *scratch;
}
export;

static size_t stream_count(const kv_spec *spec, bool keys, size_t n_rows, size_t n_tokens) {
    return n_rows * (size_t)spec->n_heads * n_tokens * (size_t)(keys ? spec->k_dim : spec->v_dim);
}

/* "attention_mask" and "ids", before the streams. */
enum { MASK, IDS, N_LEADING };

static void put_leading(export *e, mn_session *const *rows, size_t n_rows, size_t length) {
    int64_t *mask = (int64_t *)(void *)e->data;
    int32_t *ids = (int32_t *)(void *)(mask + n_rows * length);
    int64_t pad = rows[0]->owner->pad_token_id;
    for (size_t r = 0; r < n_rows; r++) {
        size_t padding = length - rows[r]->n_ids;
        for (size_t i = 0; i < length; i++) {
            *mask++ = i >= padding;
            *ids++ = i >= padding ? rows[r]->ids[i - padding] : pad > 0 ? (int32_t)pad : 0;
        }
    }
}

static void put_shape(tensor *t, dtype type, int n_dims, const int64_t *shape, size_t count) {
    t->type = type;
    t->n_dims = n_dims;
    memcpy(t->shape, shape, (size_t)n_dims * sizeof *shape);
    t->bytes = count * (size_t)dtype_table[type].bytes;
}

/* Sizes and names; the data of larger types come first, so that every tensor is aligned. */
static mn_status lay_out(export *e, const mn_session *s, size_t n_rows, size_t length, dtype type) {
    size_t entries = (size_t)kv_entries(s->cache), size = (size_t)dtype_table[type].bytes;
    size_t total = n_rows * length * (sizeof(int64_t) + sizeof(int32_t)), largest = 0;
    for (size_t i = 0; i < 2 * entries; i++) {
        size_t n = (size_t)tokens_of(s, (int)(i / 2), (int64_t)length);
        size_t count = stream_count(kv_entry_spec(s->cache, (int)(i / 2)), i % 2 == 0, n_rows, n);
        total += count * size;
        if (count / n_rows > largest) largest = count / n_rows;
    }
    e->n = N_LEADING + 2 * entries;
    e->tensors = mem_alloc(e->n, sizeof *e->tensors);
    e->names = mem_alloc(e->n, sizeof *e->names);
    e->data = mem_alloc_raw(total, 1);
    e->scratch = mem_alloc_raw(largest, sizeof *e->scratch);
    if (!e->tensors || !e->names || !e->data || !e->scratch) return MN_E_NOMEM;
    uint8_t *at = e->data;
    for (size_t i = 0; i < e->n; i++) {
        tensor *t = &e->tensors[i];
        t->name = e->names[i];
        t->data = at;
        if (i < N_LEADING) {
            const int64_t shape[2] = {(int64_t)n_rows, (int64_t)length};
            snprintf(e->names[i], NAME, "%s", i == MASK ? "attention_mask" : "ids");
            put_shape(t, i == MASK ? DTYPE_I64 : DTYPE_I32, 2, shape, n_rows * length);
        } else {
            int layer = (int)((i - N_LEADING) / 2);
            bool keys = (i - N_LEADING) % 2 == 0;
            const kv_spec *spec = kv_entry_spec(s->cache, layer);
            int64_t n = tokens_of(s, layer, (int64_t)length);
            const int64_t shape[4] = {(int64_t)n_rows, spec->n_heads, n, keys ? spec->k_dim : spec->v_dim};
            put_name(e->names[i], s->cache, layer, keys);
            put_shape(t, type, 4, shape, stream_count(spec, keys, n_rows, (size_t)n));
        }
        at += t->bytes;
    }
    return MN_OK;
}

static mn_status export_type(dtype *type, const mn_session *s, const char *name) {
    bool plain = !s->plan.self.is_quantized && s->plan.exact == KV_BF16; /* decoded codes are no bf16 numbers */
    if (!name || strcmp(name, "auto") == 0) {
        *type = plain ? DTYPE_BF16 : DTYPE_F32;
    } else if (strcmp(name, "f32") == 0) {
        *type = DTYPE_F32;
    } else if (strcmp(name, "bf16") == 0) {
        *type = DTYPE_BF16;
    } else {
        MN_FAIL(MN_E_ARG, "dtype is '%.40s', allowed: auto, f32, bf16", name);
    }
    return MN_OK;
}

mn_status mn_sessions_export(mn_session *const *rows, size_t n_rows, const char *path, const char *dtype_name) {
    export e = {0};
    dtype type = DTYPE_F32;
    if (!path || !*path) MN_FAIL(MN_E_ARG, "no file was named to export the cache to");
    MN_TRY(check_rows(rows, n_rows));
    MN_TRY(export_type(&type, rows[0], dtype_name));
    size_t length = 0;
    for (size_t r = 0; r < n_rows; r++) {
        if (rows[r]->n_ids > length) length = rows[r]->n_ids;
    }
    mn_status status = lay_out(&e, rows[0], n_rows, length, type);
    if (status == MN_OK) put_leading(&e, rows, n_rows, length);
    for (size_t i = N_LEADING; status == MN_OK && i < e.n; i++) {
        uint8_t *out = e.data + (e.tensors[i].data - e.data);
        int layer = (int)((i - N_LEADING) / 2);
        size_t n = (size_t)tokens_of(rows[0], layer, (int64_t)length);
        status = read_stream(out, rows, n_rows, layer, (i - N_LEADING) % 2 == 0, type, n, e.scratch);
    }
    if (status == MN_OK) status = safetensors_write(path, e.tensors, e.n, NULL);
    mem_free(e.tensors);
    mem_free(e.names);
    mem_free(e.data);
    mem_free(e.scratch);
    return status;
}

/* ---- import ---- */

typedef struct import {
    tensor_set *file;
    tensor *own;              /* [2 * entries], of arrays in the place of a file */
    const tensor **streams;   /* [2 * entries]: key.N, value.N */
    int64_t n_rows, n_padded; /* tokens of a row, padding included */
    int64_t first, n_tokens;  /* of this row: the first token and their number, without padding */
    size_t row;
    float *rows; /* [heads][STEP][dim] of keys, then of values; of cross attention all tokens */
} import;

static mn_status find_stream(import *in, const mn_session *s, int layer, bool keys) {
    char name[NAME];
    put_name(name, s->cache, layer, keys);
    const kv_spec *spec = kv_entry_spec(s->cache, layer);
    const tensor *t = tensor_set_find(in->file, name);
    if (!t) MN_FAIL(MN_E_REFUSED, "the file has no tensor %s; the model has %d layers", name, kv_entries(s->cache));
    if (t->type != DTYPE_F32 && t->type != DTYPE_BF16 && t->type != DTYPE_F16)
        MN_FAIL(MN_E_REFUSED, "%s is of type %s, allowed: F32, BF16, F16", name, dtype_table[t->type].name);
    if (layer == 0 && keys && t->n_dims == 4) {
        in->n_rows = t->shape[0];
        in->n_padded = t->shape[2];
    }
    int64_t dim = keys ? spec->k_dim : spec->v_dim, n_tokens = tokens_of(s, layer, in->n_padded);
    if (t->n_dims != 4 || t->shape[0] != in->n_rows || t->shape[1] != spec->n_heads || t->shape[2] != n_tokens ||
        t->shape[3] != dim) {
        MN_FAIL(MN_E_REFUSED, "%s has another shape than [rows][%d][tokens][%lld] with %lld rows and %lld tokens", name,
                spec->n_heads, (long long)dim, (long long)in->n_rows, (long long)n_tokens);
    }
    in->streams[2 * layer + !keys] = t;
    return MN_OK;
}

static bool is_masked(const tensor *mask, size_t i) {
    size_t each = (size_t)dtype_table[mask->type].bytes;
    for (size_t k = 0; k < each; k++) {
        if (mask->data[i * each + k]) return false;
    }
    return true;
}

/* The range of the row's tokens within the padding, from "attention_mask" [rows][tokens]; without one there is no
 * padding. */
static mn_status find_tokens(import *in) {
    const tensor *mask = tensor_set_find(in->file, "attention_mask");
    size_t n = (size_t)in->n_padded, begin = in->row * n, first = 0;
    in->n_tokens = in->n_padded;
    if (!mask) return MN_OK;
    bool is_whole =
        mask->type == DTYPE_I64 || mask->type == DTYPE_I32 || mask->type == DTYPE_U8 || mask->type == DTYPE_BOOL;
    if (!is_whole || mask->n_dims != 2 || mask->shape[0] != in->n_rows || mask->shape[1] != in->n_padded)
        MN_FAIL(MN_E_REFUSED,
                "attention_mask is %s of another shape or type than I64, I32, U8 or BOOL [%lld rows][%lld tokens]",
                dtype_table[mask->type].name, (long long)in->n_rows, (long long)in->n_padded);
    while (first < n && is_masked(mask, begin + first)) first++;
    size_t end = first;
    while (end < n && !is_masked(mask, begin + end)) end++;
    in->first = (int64_t)first;
    in->n_tokens = (int64_t)(end - first);
    if (first == n) MN_FAIL(MN_E_REFUSED, "attention_mask masks every token of row %zu", in->row);
    while (end < n && is_masked(mask, begin + end)) end++;
    if (end == n) return MN_OK;
    MN_FAIL(MN_E_REFUSED,
            "attention_mask of row %zu has tokens on both sides of padding, at %zu; allowed: before or after it",
            in->row, end);
}

/* The tokens' ids: given, or the file's own. */
static mn_status take_ids(mn_session *s, const import *in, const int32_t *ids, size_t n) {
    size_t count = (size_t)in->n_tokens;
    MN_TRY(mem_grow(&s->ids, &s->ids_capacity, count, sizeof *s->ids));
    if (ids && n != count) MN_FAIL(MN_E_ARG, "%zu ids were given for %zu tokens of keys and values", n, count);
    const tensor *own = ids ? NULL : tensor_set_find(in->file, "ids");
    if (ids) {
        memcpy(s->ids, ids, n * sizeof *ids);
    } else if (own && own->type == DTYPE_I32 && own->n_dims == 2 && own->shape[0] == in->n_rows &&
               own->shape[1] == in->n_padded) {
        size_t from = in->row * (size_t)in->n_padded + (size_t)in->first;
        memcpy(s->ids, own->data + from * sizeof *s->ids, count * sizeof *s->ids);
    } else {
        MN_FAIL(MN_E_ARG, "the file has no ids of its tokens; give them");
    }
    for (size_t i = 0; i < count; i++) {
        if (s->ids[i] >= 0 && s->ids[i] < s->model->net.config.vocab_size) continue;
        MN_FAIL(MN_E_REFUSED, "token %zu is %d, allowed: 0 to %lld", i, s->ids[i],
                (long long)s->model->net.config.vocab_size - 1);
    }
    s->n_ids = count;
    return MN_OK;
}

/* Room for the streams, and for those of a step. */
static mn_status alloc_streams(import *in, const mn_session *s) {
    size_t largest = 0;
    int entries = kv_entries(s->cache);
    if (!s->plan.self.keeps) MN_FAIL(MN_E_UNSUPPORTED, "a session without a cache holds no keys and values");
    for (int i = 0; i < entries; i++) {
        const kv_spec *spec = kv_entry_spec(s->cache, i);
        if (spec->kind == KV_STATE) MN_FAIL(MN_E_UNSUPPORTED, "layer %d has no legacy form: it holds a state", i);
        size_t n = spec->write_once ? (size_t)tokens_of(s, i, 0) : STEP;
        size_t need = (size_t)spec->n_heads * n * (size_t)(spec->k_dim + spec->v_dim);
        if (need > largest) largest = need;
    }
    in->streams = mem_alloc(2 * (size_t)entries, sizeof *in->streams);
    in->own = mem_alloc(2 * (size_t)entries, sizeof *in->own);
    in->rows = mem_alloc_raw(largest, sizeof *in->rows);
    return in->streams && in->own && in->rows ? MN_OK : mem_no_memory();
}

static mn_status find_all(import *in, mn_session *s, size_t row) {
    in->row = row;
    for (int i = 0; i < 2 * kv_entries(s->cache); i++) MN_TRY(find_stream(in, s, i / 2, i % 2 == 0));
    if ((int64_t)row >= in->n_rows) MN_FAIL(MN_E_ARG, "row is %zu, the file has %lld", row, (long long)in->n_rows);
    return find_tokens(in);
}

/* Tokens [begin, begin + n) of one stream as f32 [heads][n][dim]. */
static mn_status read_tokens(float *out, const import *in, const tensor *t, int64_t begin, int n) {
    const dtype_info *type = &dtype_table[t->type];
    size_t dim = (size_t)t->shape[3], heads = (size_t)t->shape[1], count = (size_t)n * dim;
    for (size_t h = 0; h < heads; h++) {
        size_t from = ((in->row * heads + h) * (size_t)t->shape[2] + (size_t)begin) * dim;
        type->to_f32(out + h * count, t->data + from * (size_t)type->bytes, count);
    }
    for (size_t i = 0; i < heads * count; i++) {
        if (!isfinite(out[i])) MN_FAIL(MN_E_REFUSED, "%s holds a value that is not finite", t->name);
    }
    return MN_OK;
}

/* n tokens of the file from `begin` on to the step's tokens of one entry. */
static mn_status store_entry(mn_session *s, const import *in, int entry, int64_t begin, int n) {
    const kernel_table *kernels = &s->model->compute.kernels;
    const kv_spec *spec = kv_entry_spec(s->cache, entry);
    float *k = in->rows, *v = k + (size_t)spec->n_heads * (size_t)n * (size_t)spec->k_dim;
    MN_TRY(read_tokens(k, in, in->streams[2 * entry], begin, n));
    MN_TRY(read_tokens(v, in, in->streams[2 * entry + 1], begin, n));
    reorder_keys(&s->model->net.config, k, (size_t)spec->n_heads * (size_t)n, (size_t)spec->k_dim, true);
    for (int h = 0; h < spec->n_heads; h++) {
        kv_append(s->cache, kernels, entry, h, 0, n, k + (ptrdiff_t)h * n * spec->k_dim,
                  v + (ptrdiff_t)h * n * spec->v_dim, spec->k_dim, spec->v_dim);
    }
    return MN_OK;
}

/* All entries of self attention, or all of cross attention. */
static mn_status store_step(mn_session *s, const import *in, bool is_cross, int n) {
    int64_t begin = is_cross ? 0 : in->first + kv_length(s->cache);
    for (int i = 0; i < kv_entries(s->cache); i++) {
        if (kv_entry_spec(s->cache, i)->write_once == is_cross) MN_TRY(store_entry(s, in, i, begin, n));
    }
    return MN_OK;
}

/* Fills the cross attention with the file's keys and values, in place of the encoder's output. */
static mn_status fill_cross(mn_session *s, const import *in) {
    const kernel_table *kernels = &s->model->compute.kernels;
    if (!s->model->net.config.encoder) return MN_OK;
    int64_t n = s->model->net.config.encoder->max_position_embeddings;
    MN_TRY(kv_fill(s->cache, n));
    void *scratch = mem_alloc_raw(kv_quantize_scratch(s->cache) + 1, 1);
    mn_status status = scratch ? store_step(s, in, true, (int)n) : MN_E_NOMEM;
    if (status == MN_OK) {
        int n_tasks = kv_fill_commit(s->cache);
        for (int i = 0; i < n_tasks; i++) kv_quantize(s->cache, kernels, i, scratch);
        kv_finish_step(s->cache);
    }
    mem_free(scratch);
    return status;
}

/* The tokens are appended like the prompt of a run: in one call, quantized by the same schedule. */
static mn_status fill(mn_session *s, const import *in) {
    const kernel_table *kernels = &s->model->compute.kernels;
    kv_call_begin(s->cache);
    while (kv_length(s->cache) < in->n_tokens) {
        int64_t begin = kv_length(s->cache), limit = kv_step_limit(s->cache, begin);
        int n = (int)min_i64(min_i64(limit, in->n_tokens) - begin, STEP);
        kv_call_ends(s->cache, begin + n == in->n_tokens);
        MN_TRY(kv_reserve(s->cache, n));
        void *scratch = mem_alloc_raw(kv_quantize_scratch(s->cache) + 1, 1);
        mn_status status = scratch ? store_step(s, in, false, n) : MN_E_NOMEM;
        if (status != MN_OK) {
            kv_abandon(s->cache);
        } else {
            int n_tasks = kv_commit(s->cache);
            for (int i = 0; i < n_tasks; i++) kv_quantize(s->cache, kernels, i, scratch);
            kv_finish_step(s->cache);
        }
        mem_free(scratch);
        MN_TRY(status);
    }
    return MN_OK;
}

/* Fills the session, whose streams are known. Takes it: *session on success. */
static mn_status finish_import(mn_session **session, mn_session *s, import *in, mn_status status) {
    if (status == MN_OK) {
        s->regime = rope_regime(&s->model->net.config, session_angle_length(s, in->n_tokens));
        status = fill_cross(s, in);
        if (status == MN_OK) status = fill(s, in);
    }
    tensor_set_close(&in->file);
    mem_free(in->own);
    mem_free(in->streams);
    mem_free(in->rows);
    if (status != MN_OK) mn_session_close(&s);
    *session = s;
    return status;
}

mn_status mn_session_import(mn_session **session, mn_model *model, const mn_cache_options *options, const char *path,
                            size_t row, const int32_t *ids, size_t n_ids) {
    *session = NULL;
import in = {0 };
    mn_session *s = NULL;
    if (!path || !*path) MN_FAIL(MN_E_ARG, "no file was named to import the cache from");
    MN_TRY(mn_session_open(&s, model, options));
    mn_status status = alloc_streams(&in, s);
    if (status == MN_OK) status = safetensors_open(&in.file, path);
    if (status == MN_OK) status = find_all(&in, s, row);
    if (status == MN_OK) status = take_ids(s, &in, ids, n_ids);
    status = finish_import(session, s, &in, status);
    return status == MN_E_FORMAT ? status_fail(MN_E_REFUSED, "%s", mn_last_error()) : status_in_file(status, path);
}

mn_status mn_session_import_layers(mn_session **session, mn_model *model, const mn_cache_options *options,
                                   const int32_t *ids, size_t n_ids, const float *const *keys,
                                   const float *const *values, size_t n_layers) {
    *session = NULL;
import in = {.n_rows = 1, .n_padded =(int64_t) n_ids, .n_tokens =(int64_t) n_ids };
    mn_session *s = NULL;
    if (n_ids == 0 || n_ids > INT32_MAX) MN_FAIL(MN_E_ARG, "%zu tokens, allowed: 1 to %d", n_ids, INT32_MAX);
    MN_TRY(mn_session_open(&s, model, options));
    mn_status status = alloc_streams(&in, s);
    if (status == MN_OK && n_layers != (size_t)kv_entries(s->cache))
        status = status_fail(MN_E_ARG, "%zu layers, the model has %d", n_layers, kv_entries(s->cache));
    for (int i = 0; status == MN_OK && i < 2 * (int)n_layers; i++) {
        const kv_spec *spec = kv_entry_spec(s->cache, i / 2);
        const float *data = i % 2 ? values[i / 2] : keys[i / 2];
        if (!data) status = status_fail(MN_E_ARG, "layer %d: %s is NULL", i / 2, i % 2 ? "values" : "keys");
        in.own[i] =
            (tensor){.name = i % 2 ? "an array of values" : "an array of keys",
                     .type = DTYPE_F32,
                     .n_dims = 4,
                     .shape = {1, spec->n_heads, tokens_of(s, i / 2, in.n_tokens), i % 2 ? spec->v_dim : spec->k_dim},
                     .data = (const uint8_t *)data};
        in.streams[i] = &in.own[i];
    }
    if (status == MN_OK) status = take_ids(s, &in, ids, n_ids);
    return finish_import(session, s, &in, status);
}

mn_status mn_session_import_rows(const char *path, size_t *n_rows) {
    tensor_set *file = NULL;
    mn_status status = safetensors_open(&file, path);
    if (status == MN_E_FORMAT) return status_fail(MN_E_REFUSED, "%s", mn_last_error());
    MN_TRY(status);
    const tensor *key = tensor_set_find(file, "key.0");
    *n_rows = key && key->n_dims == 4 ? (size_t)key->shape[0] : 1;
    tensor_set_close(&file);
    return MN_OK;
}

mn_status mn_tensor_save(const char *path, const char *name, const int64_t *shape, int n_dims, const float *values) {
    tensor file = {
        .name = (char *)(uintptr_t)name, .type = DTYPE_F32, .n_dims = n_dims, .data = (const uint8_t *)values};
    size_t n = 1;
    if (n_dims < 1 || n_dims > 4) MN_FAIL(MN_E_ARG, "a tensor of %d dimensions, allowed: 1 to 4", n_dims);
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] < 0 || !size_mul(n, (size_t)shape[i], &n))
            MN_FAIL(MN_E_ARG, "dimension %d of tensor %.40s is %lld", i, name, (long long)shape[i]);
        file.shape[i] = shape[i];
    }
    if (!size_mul(n, sizeof *values, &file.bytes)) return mem_no_memory();
    return safetensors_write(path, &file, 1, NULL);
}
