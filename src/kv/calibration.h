/* The calibration of quantized keys: per layer and KV head a linear map that concentrates what determines the scores in
 * few components, which then get more bits.
 *
 *   C = covariance of the keys inside their page of 128, averaged over pages
 *       (the page of the first token left out)
 *   S = E[q q^T] over the queries of the heads that share the KV head
 *   W = S + 2 (tr S / d) I
 *   W^1/2 C W^1/2 = U diag(lambda) U^T, lambda falling
 *   A = U^T W^1/2
 *
 * W is then divided by the mean of its eigenvalues, which changes no score and gives y the magnitude of k.
 *
 * A key k is stored as y = A k and a query q is mapped to A^-T q, so that <A^-T q, A k> = <q, k>. Keys and queries are
 * those after the rotary embedding.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_CALIBRATION_H
#define MN_KV_CALIBRATION_H

#include "base/status.h"

typedef struct kv_head_calibration {
    int dim;
    const float *key;    /* A [dim][dim] */
    const float *query;  /* A^-T [dim][dim] */
    const float *lambda; /* [dim], falling */
    const float *turn;   /* A^-1 [dim][dim]: a row q times it is A^-T q */
} kv_head_calibration;

/* The calibration of all layers and heads of a model. */
typedef struct kv_calibration {
    int n_layers, n_heads, dim;
    kv_head_calibration *calibration; /* [n_layers * n_heads]; point into memory of the set */
    float *memory;                    /* owned */
    struct kv_calibration *older;     /* sets of the same model that were loaded before, owned; or NULL */
} kv_calibration;

static inline const kv_head_calibration *kv_calibration_of(const kv_calibration *set, int layer, int head) {
    return &set->calibration[layer * set->n_heads + head];
}
void kv_calibration_close(kv_calibration **set);

/* Statistics collected while the calibration text is computed: sums in double for each layer and head. */
typedef struct kv_calibrator kv_calibrator;
mn_status kv_calibrator_open(kv_calibrator **out, int n_layers, int n_heads, int dim);
void kv_calibrator_close(kv_calibrator **calibration);
/* keys: f32 [n][dim] of consecutive tokens that lie in one page; queries: f32 [n_queries][dim]. Different heads may be
 * fed from different threads at once. */
void kv_calibration_add_keys(kv_calibrator *c, int layer, int head, const float *keys, ptrdiff_t stride, int n);
void kv_calibration_add_queries(kv_calibrator *c, int layer, int head, const float *queries, int n_queries);
/* A layer without keys: its calibration, which is never used, is that of isotropic keys and queries. */
void kv_calibration_leave_out(kv_calibrator *c, int layer);
mn_status kv_calibrator_finish(kv_calibration **out, const kv_calibrator *c);

/* One safetensors file: key, query, lambda as f32 [n_layers][n_heads]..., and in its metadata `fingerprint` (of the
 * model) and `sum`, a checksum. Loading verifies sizes, finiteness, checksum and fingerprint: MN_E_REFUSED,
 * MN_E_FORMAT. */
mn_status kv_calibration_save(const kv_calibration *set, const char *path, const char *fingerprint);
mn_status kv_calibration_load(kv_calibration **out, const char *path, const char *fingerprint, int n_layers,
                              int n_heads, int dim);

#endif
