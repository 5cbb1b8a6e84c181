/* The parallel operations that forward passes are written with: rows, linear layers, attention.
 *
 * Each operation is one job of the thread pool, cut by shape alone, so results have the same bits for any
 * number of threads and any batch. Nothing here allocates: buffers belong to the workspace, sized before a
 * pass begins.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_COMPUTE_H
#define MN_MODEL_COMPUTE_H

#include "base/thread.h"
#include "kernels/kernels.h"
#include "kv/kv.h"
#include "kv/visible.h"
#include "model/names.h"

/* A matrix ready for use: packed panels, or the stored rows when they are packed anew for every use (float32
 * computation over weights whose float32 copy would not fit). */
typedef struct weight {
    weight_layout layout;
    const char *packed;   /* n_panels * panel_bytes; NULL: packed on the fly */
    weight_source source; /* rows in the file */
    float *bias;          /* [n] or NULL; owned */
} weight;

/* Bytes between stored rows of a weight. */
static inline size_t weight_row_bytes(const weight_source *source) {
    const dtype_info *info = &dtype_table[source->tensor->type];
    return (size_t)source->columns / (size_t)info->block * (size_t)info->bytes;
}
/* The stored row of an output, as weight_pack asks for it; user: a weight_source. */
int weight_row_of(const void *user, int output);

typedef struct compute {
    kernel_table kernels;
    thread_pool *pool;
    int n_threads;
    char **scratch; /* [n_threads] private memory of each */
    size_t scratch_bytes;
    kv_calibration *calibration; /* gathers keys and queries as they are stored; NULL: does not */
} compute;

/* Scratch that the operations below need for weights up to `max_k` inputs (lazily packed ones: `lazy`) and
 * attention with these sizes. */
size_t compute_scratch_bytes(int max_k, bool lazy, int group, int k_dim, int v_dim, int page_tokens);

/* Rows of activations in every form that some weight wants. */
typedef struct act_rows {
    int m, k;
    const float *f32; /* [m][k] */
    bf16 *rounded;    /* [m][act_bf16_stride(k)] */
    int8_t *codes;    /* [m][2][k] */
    float *scale;     /* [m][k / 32] */
    int32_t *sum;     /* [m][k / 16] */
} act_rows;

typedef unsigned form_set; /* bit i: weight_form i is wanted */
static inline form_set form_of(const weight *w) {
    return 1u << w->layout.form;
}

/* A norm of rows: RMS, or LayerNorm where it centers. */
typedef struct row_norm {
    const float *weight, *bias; /* bias may be NULL; RMS has none */
    float eps;
    bool centers;
} row_norm;

/* y = norm(x), n values; y may be x. */
static inline void row_norm_run(const kernel_table *kernels, const row_norm *norm, float *y, const float *x,
                                int n) {
    if (norm->centers) {
        kernels->layer_norm(y, x, norm->weight, norm->bias, n, norm->eps);
    } else {
        kernels->rms_norm(y, x, norm->weight, n, norm->eps);
    }
}

/* Makes `rows` the activations x[m][k], through a norm first unless it is NULL (norm_out [m][k] then holds the float32 result
 * and may be x). */
void compute_rows(compute *c, act_rows *rows, const float *x, int m, int k, const row_norm *norm, float *norm_out,
                  form_set forms);

/* Row by row over [m][k]: x += y, through a norm first unless it is NULL (y then holds its result); x *= factor; x = f(x). */
void compute_add(compute *c, float *x, float *y, int m, int k, const row_norm *norm);
void compute_scale(compute *c, float *x, int m, int k, float factor);
void compute_activate(compute *c, float *x, int m, int k, activation act);

/* y [n] *= factor, then y = cap * tanh(y / cap) unless cap is 0. */
void compute_cap(compute *c, float *y, size_t n, float factor, float cap);

/* y = x W^T (+ bias) or y += ...; several matrices over the same rows in one job. */
typedef struct linear_part {
    const weight *w;
    float *y;         /* row r at y + r * stride */
    ptrdiff_t stride; /* floats */
    bool add;
    float *const *rows; /* NULL, or where each row goes instead; nothing is added then */
} linear_part;

enum { MAX_LINEAR_PARTS = 4 };
void compute_linear(compute *c, const act_rows *rows, const linear_part *parts, int n_parts);

/* y[m][n] = act(x G^T) * (x U^T). */
void compute_gated(compute *c, const act_rows *rows, const weight *gate, const weight *up, activation act,
                   float *y);

/* The new tokens of one sequence in an attention layer. */
typedef struct attend_rows {
    kv_cache *cache;
    int entry;
    int n;            /* new tokens */
    int64_t position; /* of the first */
    int64_t seen;     /* 0: a query sees the tokens up to its own; else each sees the first `seen` of the entry */
    bool is_cross;    /* keys and values are there already: only queries are new */
    float *qkv; /* [n][stride]: query heads, key heads, value heads; queries and keys are rotated in place */
    float *out; /* [n][n_heads * v_dim] */
    const float *cos, *sin; /* [n][rotary / 2] */
    bool has_slots;         /* the cache has sinks: */
    const float *slot_cos, *slot_sin; /* the same where queries stand when they look at them */
    float *slot_q;          /* [n][n_heads * head_dim] queries rotated so */
    float *coded_q; /* [n][n_heads * head_dim] queries as coded keys want them; NULL: no coded keys */
} attend_rows;

typedef struct attend_shape {
    int n_heads, n_kv_heads, head_dim,
        rotary;       /* rotary: leading dimensions that are rotated; the rest stay */
    ptrdiff_t stride; /* floats between tokens of qkv */
    float scale, softcap;
    const float *q_norm, *k_norm; /* [head_dim] or NULL: RMS norm of each head before the rotation */
    float norm_eps;
} attend_shape;

/* Partial results of attention over segments, and their counters; grown outside the layers. */
typedef struct attend_space {
    float *parts;          /* per sequence, KV head and segment: m, l, acc of its query rows */
    size_t parts_capacity; /* floats */
    _Atomic int *pending;  /* per sequence and KV head: segments not done yet */
    size_t pending_capacity;
    int *first_tasks; /* tasks before each sequence, of storing and of attention */
    size_t first_tasks_capacity;
    float *queries; /* slot_q and coded_q of the rows */
    size_t queries_capacity;
    char *seal; /* [threads][seal_bytes]: memory in which tokens are sealed */
    size_t seal_bytes;
} attend_space;

/* Also gives the rows their slot_q (with has_slots) and coded_q. */
mn_status attend_space_reserve(attend_space *space, const attend_shape *shape, attend_rows *rows, int n_rows);
void attend_space_clear(attend_space *space);

/* Rotates queries and keys, stores keys and values, attends: the attention of one layer for a batch of
 * sequences. */
void compute_attention(compute *c, const attend_shape *shape, const attend_rows *rows, int n_rows,
                       attend_space *space);

/* Does tasks [first, first + n) of those that the cache lists to be sealed. */
void compute_seal(compute *c, kv_cache *cache, int first, int n, const attend_space *space);

#endif
