/* Attention in plain C, the reference of the vector kernels.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/attend/attend_tile.h"
#include "kernels/attend/codes_tile.h"
#include "kernels/kernels.h"

/* Exact streams need a row of queries and a row of scores. Quantized ones also need CODE_ROW_WORDS for each step in
 * every row of the job (keys) and of a block, and once the levels of a page and the side data of some lanes. */
size_t attend_scratch_bytes(int n_rows, int k_dim, int v_dim, int page_tokens) {
    const size_t keys = scratch_stride(k_dim), tokens = scratch_stride(page_tokens);
    const size_t steps = keys > tokens ? keys : tokens;
    size_t queries = (size_t)n_rows * CODE_ROW_WORDS * keys;
    size_t block = ATTEND_BLOCK_ROWS * (tokens + CODE_ROW_WORDS * steps);
    size_t levels = (keys + scratch_stride(v_dim)) * tokens / sizeof(float), sides = 4 * (steps + CODE_CHUNK_LANES);
    return (queries + block + levels + sides) * sizeof(float);
}

/* The operations in which the stored forms differ: reading key dimension d and value dimension d of the token in a
 * slot, and rounding the other factor of the product. */
typedef struct page_form {
    float (*key)(const char *keys, int page_tokens, int slot, int d);
    float (*value)(const char *values, int v_dim, int slot, int d);
    float (*rounded)(float x);
} page_form;

static float f32_key(const char *keys, int page_tokens, int slot, int d) {
    return ((const float *)(const void *)keys)[(size_t)d * (size_t)page_tokens + (size_t)slot];
}

static float f32_value(const char *values, int v_dim, int slot, int d) {
    return ((const float *)(const void *)values)[(size_t)slot * (size_t)v_dim + (size_t)d];
}

static float f32_rounded(float x) {
    return x;
}

static float bf16_key(const char *keys, int page_tokens, int slot, int d) {
    size_t pair = (size_t)(d / 2) * (size_t)page_tokens + (size_t)slot;
    return f32_from_bf16(((const bf16 *)(const void *)keys)[2 * pair + (size_t)(d % 2)]);
}

static float bf16_value(const char *values, int v_dim, int slot, int d) {
    size_t pair = (size_t)(slot / 2) * (size_t)v_dim + (size_t)d;
    return f32_from_bf16(((const bf16 *)(const void *)values)[2 * pair + (size_t)(slot % 2)]);
}

static float bf16_rounded(float x) {
    return f32_from_bf16(bf16_from_f32(x));
}

static const page_form f32_form = {f32_key, f32_value, f32_rounded}, bf16_form = {bf16_key, bf16_value, bf16_rounded};

/* A page: the first byte of its quantized streams, and the parts of its exact ones. */
typedef struct page_place {
    const char *data;
    const attend_part *parts;
} page_place;

static const attend_part *part_of(const page_place *page, int slot) {
    const attend_part *part = page->parts;
    while (slot >= part->end) part++;
    return part;
}

/* s[slot] = the row's score of the token in that slot, before the softcap. */
static void exact_scores(const attend_job *job, const page_form *form, int row, const page_place *page, slot_range seen,
                         float *s) {
    const float *q = job->q + (size_t)row * (size_t)job->k_dim;
    for (int t = seen.lo; t < seen.hi; t++) {
        const attend_part *part = part_of(page, t);
        s[t] = 0;
        for (int d = 0; d < job->k_dim; d++) {
            s[t] += form->rounded(q[d]) * form->key(part->keys, part->tokens, t - part->first, d);
        }
    }
}

static void exact_add(const attend_job *job, const page_form *form, const page_place *page, slot_range seen,
                      const float *p, float *acc) {
    for (int t = seen.lo; t < seen.hi; t++) {
        const attend_part *part = part_of(page, t);
        for (int d = 0; d < job->v_dim; d++) acc[d] += p[t] * form->value(part->values, job->v_dim, t - part->first, d);
    }
}

static void coded_scores(const attend_job *job, int row, const char *page, slot_range seen, float *s) {
    code_product product = {.layout = job->key_codes,
                            .stream = page + job->k_offset,
                            .a = job->q + (size_t)row * (size_t)job->k_dim,
                            .steps = {0, job->k_dim},
                            .lanes = seen,
                            .y = s,
                            .rounded = (int32_t *)(void *)(s + scratch_stride(job->page_tokens))};
    float mean = 0;
    for (int d = 0; d < job->k_dim; d++) mean += product.a[d] * code_mean_at(product.layout, product.stream, d);
    for (int t = seen.lo; t < seen.hi; t++) s[t] = mean;
    code_product_ref(&product);
}

static void coded_add(const attend_job *job, const char *page, slot_range seen, float *p, float *acc) {
    code_product product = {.layout = job->value_codes,
                            .stream = page + job->v_offset,
                            .a = p,
                            .steps = seen,
                            .lanes = {0, job->v_dim},
                            .y = acc,
                            .rounded = (int32_t *)(void *)(p + scratch_stride(job->page_tokens))};
    code_product_ref(&product);
}

/* A form of NULL: the stream is quantized. */
static void attend_row_page(const attend_job *job, const page_form *keys, const page_form *values, int row,
                            const page_place *page, slot_range seen) {
    float *p = job->scratch, *acc = job->state.acc + (size_t)row * (size_t)job->v_dim;
    if (keys) {
        exact_scores(job, keys, row, page, seen, p);
    } else {
        coded_scores(job, row, page->data, seen, p);
    }
    float largest = fmaxf(job->state.m[row], ATTEND_LOWEST);
    for (int t = seen.lo; t < seen.hi; t++) {
        if (job->softcap != 0) p[t] = job->softcap * tanhf(p[t] / job->softcap);
        largest = fmaxf(largest, p[t]);
    }
    float carry = expf(job->state.m[row] - largest), sum = 0;
    for (int t = seen.lo; t < seen.hi; t++) {
        p[t] = expf(p[t] - largest);
        if (values) p[t] = values->rounded(p[t]);
        sum += p[t];
    }
    for (int d = 0; d < job->v_dim; d++) acc[d] *= carry;
    if (values) {
        exact_add(job, values, page, seen, p, acc);
    } else {
        coded_add(job, page->data, seen, p, acc);
    }
    for (int d = 0; d < job->v_dim; d++) acc[d] += 0.0f;
    job->state.m[row] = largest;
    job->state.l[row] = job->state.l[row] * carry + sum;
}

static void attend(const attend_job *job, const page_form *keys, const page_form *values) {
    for (int page = 0; page < job->n_pages; page++) {
        int64_t base = job->position + (int64_t)page * job->page_tokens;
        attend_part whole;
        int n_parts;
        const page_place place = {job->pages[page], page_parts(job, page, &whole, &n_parts)};
        for (int row = 0; row < job->n_rows; row++) {
            slot_range seen = visible_slots(job, row, base);
            if (seen.lo < seen.hi) attend_row_page(job, keys, values, row, &place, seen);
        }
    }
}

static void attend_f32_ref(const attend_job *job) {
    attend(job, &f32_form, &f32_form);
}

static void attend_bf16_ref(const attend_job *job) {
    attend(job, &bf16_form, &bf16_form);
}

static void attend_codes_ref(const attend_job *job) {
    const page_form *exact = job->exact_bf16 ? &bf16_form : &f32_form;
    attend(job, job->key_codes ? NULL : exact, job->value_codes ? NULL : exact);
}

static void attend_merge_ref(attend_state *total, const attend_state *part, int n_rows, int v_dim) {
    for (int row = 0; row < n_rows; row++) {
        if (part->m[row] == -INFINITY) continue;
        float m = fmaxf(total->m[row], part->m[row]);
        float a = expf(total->m[row] - m), b = expf(part->m[row] - m);
        total->m[row] = m;
        total->l[row] = total->l[row] * a + part->l[row] * b;
        float *sum = total->acc + (size_t)row * (size_t)v_dim;
        const float *added = part->acc + (size_t)row * (size_t)v_dim;
        for (int d = 0; d < v_dim; d++) sum[d] = sum[d] * a + added[d] * b;
    }
}

static void attend_finish_ref(float *out, const attend_state *total, int n_rows, int v_dim) {
    for (int row = 0; row < n_rows; row++) {
        float inverse = total->l[row] > 0 ? 1.0f / total->l[row] : 0.0f;
        for (int d = 0; d < v_dim; d++) {
            size_t i = (size_t)row * (size_t)v_dim + (size_t)d;
            out[i] = total->acc[i] * inverse;
        }
    }
}

/* Tokens are innermost, so that keys are written to adjacent slots. */
static void store_f32_ref(const store_job *job) {
    float *keys = (float *)(void *)job->keys, *values = (float *)(void *)job->values;
    for (int d = 0; d < job->k_dim; d++) {
        float *row = keys + (size_t)d * (size_t)job->page_tokens + job->slot;
        for (int t = 0; t < job->n; t++) row[t] = job->k[t * job->k_stride + d];
    }
    for (int t = 0; t < job->n; t++) {
        float *row = values + (size_t)(job->slot + t) * (size_t)job->v_dim;
        for (int d = 0; d < job->v_dim; d++) row[d] = job->v[t * job->v_stride + d];
    }
}

static void store_bf16_ref(const store_job *job) {
    bf16 *keys = (bf16 *)(void *)job->keys, *values = (bf16 *)(void *)job->values;
    for (int d = 0; d < job->k_dim; d += 2) {
        bf16 *row = keys + 2 * ((size_t)(d / 2) * (size_t)job->page_tokens + (size_t)job->slot);
        for (int t = 0; t < job->n; t++) {
            row[2 * t] = bf16_from_f32(job->k[t * job->k_stride + d]);
            row[2 * t + 1] = bf16_from_f32(job->k[t * job->k_stride + d + 1]);
        }
    }
    for (int t = 0; t < job->n; t++) {
        int slot = job->slot + t;
        bf16 *row = values + 2 * (size_t)(slot / 2) * (size_t)job->v_dim + slot % 2;
        for (int d = 0; d < job->v_dim; d++) row[2 * d] = bf16_from_f32(job->v[t * job->v_stride + d]);
    }
}

void attend_ref_fill(kernel_table *table) {
    table->attend_f32 = attend_f32_ref;
    table->attend_bf16 = attend_bf16_ref;
    table->attend_codes = attend_codes_ref;
    table->attend_merge = attend_merge_ref;
    table->attend_finish = attend_finish_ref;
    table->store_f32 = store_f32_ref;
    table->store_bf16 = store_bf16_ref;
}
