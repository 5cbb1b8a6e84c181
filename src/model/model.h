/* An open model: configuration, packed weights, tokenizer, memory plan, and the forward pass over batches of sequences.
 *
 * Immutable after opening but for the workspace of the pass in progress, which a lock guards: one uncontended lock a step,
 * none inside it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_MODEL_H
#define MN_MODEL_MODEL_H

#include "base/hash.h"
#include <pthread.h>

#include "model/compute.h"
#include "model/config.h"

typedef struct packed_layer {
    float *input_norm, *post_norm; /* [hidden_size], owned */
    float *q_norm, *k_norm;        /* [head_dim] or NULL, owned */
    weight q, k, v, o;
    weight gate, up, down;
} packed_layer;

typedef struct packed_weights {
    const tensor *embedding; /* [vocab_size][hidden_size], read row by row from the file */
    packed_layer *layers;   /* [num_hidden_layers] */
    float *final_norm;       /* [hidden_size] */
    weight head;             /* [vocab_size] outputs */
    char *arena;             /* all packed panels */
    size_t packed_bytes;
} packed_weights;

/* Buffers of a pass over m tokens; grown between passes, never inside. */
typedef struct workspace {
    int m;             /* tokens they have room for */
    int n_last;        /* rows of `last` */
    float *x;          /* [m][hidden_size] residual stream */
    float *normed;     /* [m][hidden_size] */
    float *qkv;        /* [m][(heads + 2 kv heads) * head_dim] */
    float *attended;   /* [m][heads * head_dim] */
    float *inner;      /* [m][intermediate_size] */
    float *cos, *sin;  /* [m][rotary_dim / 2] */
    float *slot_cos, *slot_sin; /* the same, of queries that look at sinks */
    float *last;       /* [n_last][hidden_size] rows whose logits are wanted */
    attend_rows *attend; /* [attend_capacity] one a sequence */
    size_t attend_capacity;
    double *frequencies; /* [rotary_dim / 2] */
    act_rows rows;
    attend_space space;
} workspace;

typedef struct model_core {
    model_config config;
    char *what;                /* path, for messages */
    tensor_set *tensors;       /* of a folder or the embedded model; NULL for GGUF */
    gguf *file;                /* of a GGUF file, else NULL */
    weight_form form;          /* what "auto" or the option became; plain and block types may still differ by tensor */
    bool reference;            /* float32 computation: keys and values default to float32 as well */
    compute compute;
    packed_weights weights;
    workspace workspace;
    pthread_mutex_t lock;      /* of workspace and thread pool */
    kv_pool *pool;
    kv_basis_set *bases;       /* calibrated, of coded keys; NULL: none loaded */
    size_t available_bytes;    /* memory limit, or what was free at opening */
    const char *compute_name;  /* "f32", "bf16", "int8" */
} model_core;

/* path: a Hugging Face folder, a .gguf file, or "embedded"; as mn_model_open. */
mn_status model_open(model_core **out, const char *path, const mn_model_options *options);
void model_close(model_core **model);

/* Bytes this process may still take, by the system and its control group. */
size_t memory_available(void);

/* The set of the checkpoint's tensors, whatever its container. */
const tensor_set *model_tensors(const model_core *model);

/* 32 hexadecimal digits: weights (sampled, tensor/fingerprint.h) and the configuration that keys and values depend on. */
mn_status model_fingerprint(char out[FINGERPRINT_HEX], const model_core *model);

enum { HEAD_ROWS = 64 }; /* rows of logits that are computed together, at most */
typedef enum forward_want { WANT_NOTHING, WANT_LAST, WANT_ALL } forward_want;

/* New tokens of one sequence. */
typedef struct forward_row {
    kv_cache *cache;
    const int32_t *ids;      /* [n], or NULL when embeddings are given */
    const float *embeddings; /* f32 [n][hidden_size] */
    int n;
    int64_t total_length;    /* of the sequence when the whole call is done: decides length-dependent rotary angles */
    forward_want want;
    float *logits;           /* [1 or n][vocab_size], filled */
    float *states;           /* NULL, or [n][hidden_size], filled: final hidden states, after the last norm */
    const int *exits;        /* [n_exits], ascending: layers after which the last token's state goes through the head as it is;
                                0: the embedding; NULL: none */
    int n_exits;
    float *exit_logits;      /* [n_exits][vocab_size], filled */
} forward_row;

/* Rows of logits that are computed together with those of other sequences; all of a long one are computed in place. */
static inline int forward_gathered(const forward_row *row) {
    return row->want == WANT_ALL ? (row->n > HEAD_ROWS ? 0 : row->n) : row->want == WANT_LAST;
}

/* Computes a batch: reserves, runs every layer, commits. On failure every cache is as before: MN_E_FULL, MN_E_NOMEM. */
mn_status model_forward(model_core *model, const forward_row *rows, int n_rows);

/* The cache entries of this model with its own windows, exact in `codec`. *out is owned by the caller, n =
 * num_hidden_layers. */
mn_status model_cache_specs(kv_spec **out, int *n, const model_core *model, kv_codec codec);

#endif
