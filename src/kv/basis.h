/* The calibrated bases of coded keys: per layer and KV head a linear map under which few components carry
 * most of what the queries see, so that bits can be given where they count.
 *
 *   C = covariance of the keys inside their page of 128, averaged over pages
 *       (the page of the first token left out)
 *   S = E[q q^T] over the queries of the heads that share the KV head
 *   W = S + 2 (tr S / d) I
 *   W^1/2 C W^1/2 = U diag(lambda) U^T, lambda falling
 *   A = U^T W^1/2
 *
 * W is then divided by the mean of its eigenvalues, which changes no score and leaves y of the size of k.
 *
 * A key k is stored as y = A k; a query q meets it as A^-T q, so that <A^-T q, A k> = <q, k>. Keys and
 * queries are taken after the rotary embedding. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KV_BASIS_H
#define MN_KV_BASIS_H

#include "base/status.h"

typedef struct kv_basis {
    int dim;
    const float *key;    /* A [dim][dim] */
    const float *query;  /* A^-T [dim][dim] */
    const float *lambda; /* [dim], falling */
    const float *turn;   /* A^-1 [dim][dim]: a row q times it is A^-T q */
} kv_basis;

/* The bases of all layers and heads of a model. */
typedef struct kv_basis_set {
    int n_layers, n_heads, dim;
    kv_basis *bases; /* [n_layers * n_heads]; point into memory of the set */
    float *memory;   /* owned */
    struct kv_basis_set *older; /* sets that it takes the place of while they are still used, owned; or NULL */
} kv_basis_set;

static inline const kv_basis *kv_basis_of(const kv_basis_set *set, int layer, int head) {
    return &set->bases[layer * set->n_heads + head];
}
void kv_basis_set_close(kv_basis_set **set);

/* What calibration gathers while text runs through the model: sums in double for each layer and head. */
typedef struct kv_calibration kv_calibration;
mn_status kv_calibration_open(kv_calibration **out, int n_layers, int n_heads, int dim);
void kv_calibration_close(kv_calibration **calibration);
/* keys: f32 [n][dim] of consecutive tokens that lie in one page; queries: f32 [n_queries][dim]. Different
 * heads may be fed from different threads at once. */
void kv_calibration_add_keys(kv_calibration *c, int layer, int head, const float *keys, ptrdiff_t stride,
                             int n);
void kv_calibration_add_queries(kv_calibration *c, int layer, int head, const float *queries, int n_queries);
/* A layer without keys: its bases, which no one reads, are those of keys and queries that are spread evenly. */
void kv_calibration_leave_out(kv_calibration *c, int layer);
mn_status kv_calibration_finish(kv_basis_set **out, const kv_calibration *c);

/* One safetensors file: key, query, lambda as f32 [n_layers][n_heads]..., and in its metadata `fingerprint` (of the model) and
 * `sum`, a checksum. Loading verifies sizes, finiteness, checksum and fingerprint: MN_E_REFUSED, MN_E_FORMAT. */
mn_status kv_basis_set_save(const kv_basis_set *set, const char *path, const char *fingerprint);
mn_status kv_basis_set_load(kv_basis_set **out, const char *path, const char *fingerprint, int n_layers,
                            int n_heads, int dim);

#endif
