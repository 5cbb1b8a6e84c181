/* Attention of a layer for a batch of sequences, over whatever forms their caches hold tokens in.
 *
 * Cut into tasks by shape alone, like everything in compute.h: over tiles of queries, or, when all sequences have few,
 * over segments of the caches, whose partial results are merged in order. Nothing here allocates but
 * attend_space_reserve.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_ATTENTION_H
#define MN_MODEL_ATTENTION_H

#include "kv/visible.h"
#include "model/compute.h"

/* Scratch that compute_attention needs for each thread. */
size_t attention_scratch_bytes(int group, int k_dim, int v_dim, int page_tokens);

/* The new tokens of one sequence in an attention layer. */
typedef struct attend_rows {
    kv_cache *cache;
    int entry;
    int n;            /* new tokens */
    int64_t position; /* of the first */
    int64_t seen;     /* 0: a query sees the tokens up to its own; else each sees the first `seen` of the entry */
    bool is_cross;    /* keys and values are already stored: only queries are new */
    float *qkv;       /* [n][stride]: query heads, key heads, value heads; queries and keys are rotated in place */
    float *out;       /* [n][n_heads * v_dim] */
    const float *cos, *sin;           /* [n][rotary / 2] */
    bool has_slots;                   /* the cache has sinks: */
    const float *slot_cos, *slot_sin; /* the angles of queries at the positions from which they attend to sinks */
    float *slot_q;                    /* [n][n_heads * head_dim] queries rotated by these */
    kv_calibrator *calibrator;        /* NULL: none */
    float *q_for_quantized;           /* [n][n_heads * head_dim] queries for quantized keys; NULL: none are quantized */
} attend_rows;

typedef struct attend_shape {
    int n_heads, n_kv_heads, head_dim,
        rotary;       /* rotary: leading dimensions that are rotated; the others are unchanged */
    ptrdiff_t stride; /* floats between tokens of qkv */
    float scale, softcap;
    const float *q_norm, *k_norm; /* [head_dim] or NULL: RMS norm of each head before the rotation */
    float norm_eps;
} attend_shape;

/* Partial results of attention over segments, and their counters; allocated before the layers run. */
typedef struct attend_space {
    float *parts;          /* per sequence, KV head and segment: m, l, acc of its query rows */
    size_t parts_capacity; /* floats */
    _Atomic int *pending;  /* per sequence and KV head: segments not done yet */
    size_t pending_capacity;
    int *first_tasks; /* tasks before each sequence, of storing and of attention */
    size_t first_tasks_capacity;
    float *queries; /* slot_q and q_for_quantized of the rows */
    size_t queries_capacity;
    char *quantize; /* [threads][quantize_bytes]: memory in which tokens are quantized */
    size_t quantize_bytes;
} attend_space;

/* Also gives the rows their slot_q (with has_slots) and q_for_quantized. */
mn_status attend_space_reserve(attend_space *space, const attend_shape *shape, attend_rows *rows, int n_rows);
void attend_space_clear(attend_space *space);

/* Rotates queries and keys, stores keys and values, attends: the attention of one layer for a batch of sequences. */
void compute_attention(compute *c, const attend_shape *shape, const attend_rows *rows, int n_rows, attend_space *space);

/* Does tasks [first, first + n) of those that the cache lists to be quantized. */
void compute_quantize(compute *c, kv_cache *cache, int first, int n, const attend_space *space);

#endif
