/* The parallel operations that forward passes are written with: rows and linear layers; attention.h has attention.
 *
 * Each operation is one job of the thread pool, divided by shape alone, so results have the same bits for any number of
 * threads and any batch. Nothing allocates: buffers belong to the workspace, sized before a pass begins.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_COMPUTE_H
#define MN_MODEL_COMPUTE_H

#include <stdatomic.h>

#include "base/thread.h"
#include "kernels/kernels.h"
#include "kv/kv.h"
#include "model/names.h"

/* A matrix ready for computation: packed panels, or the stored rows when they are packed for every use (float32
 * computation over weights whose float32 copy would not fit). */
typedef struct weight {
    weight_layout layout;
    const char *packed;   /* n_panels * panel_bytes; NULL: packed on the fly */
    weight_source source; /* rows in the file */
    float *bias;          /* [n] or NULL; owned */
} weight;

/* The stored matrix of a weight; it borrows the source. */
stored_matrix weight_stored(const weight_source *source);

/* A range of a job's parts, which one thread does in order; other threads take from it when they have finished their
 * own. */
typedef struct work_range {
    _Alignas(64) _Atomic int next;
    int end;
} work_range;

typedef struct compute {
    kernel_table kernels;
    thread_pool *pool;
    int n_threads;
    work_range *ranges; /* [n_threads] of the job in progress */
    char **scratch;     /* [n_threads] private memory of each thread */
    size_t scratch_bytes;
} compute;

/* Scratch that the operations below need for weights up to `max_k` inputs (lazily packed ones: `lazy`). */
size_t compute_scratch_bytes(int max_k, bool lazy);

/* Runs tasks 0 .. n_tasks - 1: as a job, or on the calling thread if there are few values. */
void compute_tasks(compute *c, int n_tasks, int64_t n_values, thread_task run, void *arg);

/* Rows of activations in every form that some weight needs. */
typedef struct act_rows {
    int m, k;
    const float *f32; /* [m][k] */
    bf16 *rounded;    /* [m][act_bf16_stride(k)] */
    void *codes;      /* int16, int8 with a8; both are in spans, as activations has them */
    act_span *spans;
    bool a8; /* codes have 8 bits */
} act_rows;

typedef unsigned form_set; /* bit i: weight_form i is needed */
static inline form_set form_of(const weight *w) {
    return 1u << w->layout.form;
}

/* A norm of rows: RMSNorm, or LayerNorm where `center` is set. */
typedef struct row_norm {
    const float *weight, *bias; /* bias may be NULL; RMS has none */
    float eps;
    bool centers;
} row_norm;

/* y = norm(x), n values; y may be x. */
static inline void row_norm_run(const kernel_table *kernels, const row_norm *norm, float *y, const float *x, int n) {
    if (norm->centers) {
        kernels->layer_norm(y, x, norm->weight, norm->bias, n, norm->eps);
    } else {
        kernels->rms_norm(y, x, norm->weight, n, norm->eps);
    }
}

/* Makes `rows` the activations x[m][k], through a norm first unless it is NULL (norm_out [m][k] then holds the float32
 * result and may be x). */
void compute_rows(compute *c, act_rows *rows, const float *x, int m, int k, const row_norm *norm, float *norm_out,
                  form_set forms);

/* Row by row over [m][k]: x += y, through a norm first unless it is NULL (y then holds its result); x *= factor; x =
 * f(x). */
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
    float *const *rows;    /* NULL, or separate destinations of the rows, which are overwritten */
    int first_row, n_rows; /* its rows of activations, the first of which goes to y; n_rows 0: all */
    const weight *up;      /* of compute_gated: the second matrix, of the same shape as w */
} linear_part;

enum { MAX_LINEAR_PARTS = 8 };
void compute_linear(compute *c, const act_rows *rows, const linear_part *parts, int n_parts);

/* The outputs begin .. end - 1 of all rows, by a task of `thread` in a job of its own; begin is a multiple of PANEL,
 * and end is, or the last. */
void compute_linear_piece(compute *c, const act_rows *rows, const linear_part *part, int begin, int end, int thread);

/* y = act(x W^T) * (x U^T), U being the part's second matrix. */
void compute_gated(compute *c, const act_rows *rows, const linear_part *parts, int n_parts, activation act);

#endif
