/* SPDX-License-Identifier: Apache-2.0 */
#include "block_codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv/group.h"
#include "checkpoint/quantize.h"

enum { UNIT = 64, MOST_CACHES = 64, MOST_DIM = 256, BLOCK = 32 };

bool block_codec_read(block_codec *out, const char *name) {
    *out = (block_codec){.type = strncmp(name, "q4_0", 4) == 0 ? DTYPE_Q4_0 : DTYPE_Q8_0,
                         .rotates = strstr(name, "+rotated"),
                         .residual = strstr(name, "+residual") ? UNIT : 0};
    return strncmp(name, "q4_0", 4) == 0 || strncmp(name, "q8_0", 4) == 0;
}

uint64_t block_codec_token_bytes(const block_codec *codec, const mn_model_info *model) {
    uint64_t blocks = (uint64_t)(model->num_hidden_layers * model->num_key_value_heads * model->head_dim / BLOCK);
    return 2 * blocks * (uint64_t)dtype_table[codec->type].bytes;
}

static void round_trip(const block_codec *codec, const kernel_table *kernels, float *row, int dim) {
    uint8_t blocks[MOST_DIM / BLOCK * 64];
    if (codec->rotates) kernels->hadamard(row, 1, dim);
    if (quantize_from_f32(codec->type, blocks, row, dim) != MN_OK) abort(); /* a dim that is not a multiple of 32 */
    dtype_table[codec->type].to_f32(row, blocks, (size_t)dim);
    if (codec->rotates) kernels->hadamard(row, 1, dim);
}

/* ---- without a residual: every row is quantized when it is appended ---- */

static struct {
    const kv_cache *cache;
    block_codec codec;
} coded[MOST_CACHES];
static int n_coded;

void block_codec_use(const block_codec *codec, const mn_session *session) {
    if (codec->residual) return;
    if (n_coded == MOST_CACHES) abort();
    coded[n_coded].cache = session->cache;
    coded[n_coded++].codec = *codec;
}

/* The linker redirects calls of kv_append to the first of these (option --wrap), which calls the second. */
void __wrap_kv_append(kv_cache *cache, const kernel_table *kernels, int entry, int head, int token_begin, int token_end,
                      const float *k, const float *v, ptrdiff_t k_stride, ptrdiff_t v_stride);
void __real_kv_append(kv_cache *cache, const kernel_table *kernels, int entry, int head, int token_begin, int token_end,
                      const float *k, const float *v, ptrdiff_t k_stride, ptrdiff_t v_stride);

void __wrap_kv_append(kv_cache *cache, const kernel_table *kernels, int entry, int head, int token_begin, int token_end,
                      const float *k, const float *v, ptrdiff_t k_stride, ptrdiff_t v_stride) {
    int i = 0;
    while (i < n_coded && coded[i].cache != cache) i++;
    if (i == n_coded) {
        __real_kv_append(cache, kernels, entry, head, token_begin, token_end, k, v, k_stride, v_stride);
        return;
    }
    const kv_spec *spec = kv_entry_spec(cache, entry);
    for (int t = token_begin; t < token_end; t++) {
        float key[MOST_DIM], value[MOST_DIM];
        memcpy(key, k + t * k_stride, (size_t)spec->k_dim * sizeof *key);
        memcpy(value, v + t * v_stride, (size_t)spec->v_dim * sizeof *value);
        round_trip(&coded[i].codec, kernels, key, spec->k_dim);
        round_trip(&coded[i].codec, kernels, value, spec->v_dim);
        __real_kv_append(cache, kernels, entry, head, t, t + 1, key - t * k_stride, value - t * v_stride, k_stride,
                         v_stride);
    }
}

/* ---- with a residual: whole pages, when mneme would quantize them ---- */

static void apply_to_page(const block_codec *codec, const kernel_table *kernels, kv_cache *cache, int i_entry,
                          int64_t page) {
    kv_entry *entry = &cache->entries[i_entry];
    kv_group *group = &cache->groups[entry->group];
    const int n = group->page_tokens, dim = group->spec.k_dim, n_heads = group->spec.n_heads;
    const size_t rows = (size_t)n_heads * (size_t)n;
    float *both = mem_alloc(2 * rows * (size_t)dim, sizeof *both), *parts[2] = {both, both + rows * (size_t)dim};
    if (!both) abort();
    for (int part = 0; part < 2; part++) {
        if (kv_read(cache, kernels, i_entry, part == 0, page * n, n, parts[part]) != MN_OK) abort();
        for (size_t row = 0; row < rows; row++) round_trip(codec, kernels, parts[part] + row * (size_t)dim, dim);
    }
    for (int head = 0; head < n_heads; head++) {
        const size_t first = (size_t)head * (size_t)n * (size_t)dim;
        store_job job = {.n = n, .k = parts[0] + first, .v = parts[1] + first, .k_stride = dim, .v_stride = dim};
        group_store(kernels, group, entry, head, PAGE_EXACT, group->pages[PAGE_EXACT][group_slot(group, page)], job);
    }
    mem_free(both);
}

void block_codec_apply(const block_codec *codec, mn_session *session) {
    const int page = session->cache->options.page_tokens;
    const int64_t n = kv_length(session->cache), until = quantize_until(n, codec->residual, page);
    const int64_t before = quantize_until(n > UNIT ? n - UNIT : 0, codec->residual, page);
    if (!codec->residual || n % UNIT) return;
    for (int64_t p = before / page; p < until / page; p++) {
        for (int i = 0; i < kv_entries(session->cache); i++)
            apply_to_page(codec, &session->model->compute.kernels, session->cache, i, p);
    }
}
