/* An open model: configuration, packed weights, tokenizer, memory plan, and the forward pass over batches of sequences.
 *
 * Immutable after opening but for the workspace of the pass in progress, which a lock guards: one uncontended lock a step,
 * none inside it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_MODEL_H
#define MN_MODEL_MODEL_H

#include "base/hash.h"
#include <pthread.h>

#include "model/attention.h"
#include "model/config.h"

typedef struct packed_layer {
    weight matrices[N_LAYER_MATRICES];    /* by role; those that the layer does not have are zeros */
    float *vectors[N_LAYER_VECTORS];      /* by role - FIRST_LAYER_VECTOR, or NULL; owned. Convolutions are [k][I], A is [N][I] */
    weight (*experts)[N_EXPERT_MATRICES]; /* [num_local_experts], or NULL; owned */
} packed_layer;

static inline const float *layer_vector(const packed_layer *layer, weight_role role) {
    return layer->vectors[role - FIRST_LAYER_VECTOR];
}

/* A stored matrix with rows and columns exchanged, until it is packed. */
typedef struct transposed_tensor {
    const tensor *from;
    tensor turned; /* owns its data */
} transposed_tensor;

enum { N_CONVOLUTIONS = 2 };

typedef struct packed_weights {
    const tensor *embedding;     /* [vocab_size][hidden_size], read row by row from the file */
    float *positions;            /* [max_position_embeddings][hidden_size], learned ones, or NULL */
    packed_layer *layers;        /* [num_hidden_layers] */
    float *final_norm;           /* [hidden_size] */
    float *final_norm_bias;      /* [hidden_size] or NULL */
    weight head;                 /* [vocab_size] outputs */
    weight convolutions[N_CONVOLUTIONS]; /* of an encoder's front: [hidden_size] outputs */
    char *arena;                 /* all packed panels */
    size_t packed_bytes;
    transposed_tensor *transposed; /* [n_transposed] */
    size_t n_transposed;
} packed_weights;

/* Rotary angles of a pass's tokens. */
typedef struct angle_set {
    float *cos, *sin;           /* [m][rotary_dim / 2] */
    float *slot_cos, *slot_sin; /* the same, of queries that look at sinks */
} angle_set;
enum { ANGLES_GLOBAL, ANGLES_LOCAL, N_ANGLES };

/* An expert that a token goes to, and which of all gathered rows is the token's there. */
typedef struct expert_route {
    int expert, row;
    float weight;
} expert_route;

/* Buffers of a pass over m tokens; grown between passes, never inside. Those that the architecture has no use for are NULL. */
typedef struct workspace {
    int m;             /* tokens they have room for */
    int n_last;        /* rows of `last` */
    float *x;          /* [m][hidden_size] residual stream */
    float *normed;     /* [m][hidden_size] */
    float *branch;     /* [m][hidden_size] what a sub-layer gives, where that is not added at once; with experts [m k][hidden_size] */
    float *qkv;        /* [m][(heads + 2 kv heads) * head_dim] */
    float *attended;   /* [m][heads * head_dim] */
    float *inner;      /* [m][intermediate_size], with experts [m k] */
    float *gathered;   /* [m k][hidden_size] tokens by expert, of which each has k */
    float *routing;    /* [m][num_local_experts] */
    expert_route *routes; /* [m][num_experts_per_tok], k of them, by expert */
    float *channels;   /* [m][2 * mamba_size] inputs of states and their gates */
    float *convolved;  /* [m][mamba_size] */
    float *projected;  /* [m][time_step_rank + 2 * state_size] */
    float *ranks;      /* [m][time_step_rank] */
    float *steps;      /* [m][mamba_size] time steps */
    float *last;       /* [n_last][hidden_size] rows whose logits are wanted */
    angle_set angles[N_ANGLES];
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
    struct encoder *encoder;   /* of encoder-decoder models, else NULL */
    pthread_mutex_t lock;      /* of workspace and thread pool */
    kv_pool *pool;
    kv_basis_set *bases;       /* calibrated, of coded keys; NULL: none loaded */
    size_t available_bytes;    /* memory limit, or what was free at opening */
    const char *compute_name;  /* "f32", "bf16", "int8" */
} model_core;

/* path: a Hugging Face folder, a .gguf file, or "embedded"; as mn_model_open. */
mn_status model_open(model_core **out, const char *path, const mn_model_options *options);
void model_close(model_core **model);

/* Buffers for a pass of m tokens in n_rows sequences, n_last of whose states have logits computed together. MN_E_NOMEM. */
mn_status model_grow(model_core *model, int m, int n_rows, int n_last);
/* Memory in which tokens of a cache are sealed, for each thread. */
mn_status model_grow_seal(model_core *model, const kv_cache *cache);
void model_clear_buffers(model_core *model);

/* Bytes this process may still take, by the system and its control group. */
size_t memory_available(void);

/* The set of the checkpoint's tensors, whatever its container. */
const tensor_set *model_tensors(const model_core *model);

/* 32 hexadecimal digits: weights (sampled, tensor/fingerprint.h) and the configuration that keys and values depend on. */
mn_status model_fingerprint(char out[FINGERPRINT_HEX], const model_core *model);

enum { HEAD_ROWS = 64 }; /* rows of logits that are computed together, at most */
typedef enum forward_want { WANT_NOTHING, WANT_LAST, WANT_ALL } forward_want;

/* A head of the decoder's cross attention. */
typedef struct cross_head {
    int32_t layer, head;
} cross_head;

/* New tokens of one sequence. */
typedef struct forward_row {
    kv_cache *cache;
    const int32_t *ids;      /* [n], or NULL when embeddings are given */
    const float *embeddings; /* f32 [n][hidden_size] */
    int n;
    int64_t total_length;    /* of the sequence when the whole call is done: decides length-dependent rotary angles */
    bool sees_all;           /* an encoder's: each token sees all n, and one entry of the cache serves every layer in turn */
    forward_want want;
    float *logits;           /* [1 or n][vocab_size], filled */
    float *states;           /* NULL, or [n][hidden_size], filled: final hidden states, after the last norm */
    const int *exits;        /* [n_exits], ascending: layers after which the last token's state goes through the head as it is;
                                0: the embedding; NULL: none */
    int n_exits;
    float *exit_logits;      /* [n_exits][vocab_size], filled */
    const cross_head *cross_heads; /* [n_cross_heads] whose attention over the encoder's positions is wanted; NULL: none */
    int n_cross_heads;
    float *cross_weights;    /* token t of head h at (h * cross_rows + t) * positions, filled */
    int cross_rows;          /* at least n */
} forward_row;

/* Rows of logits that are computed together with those of other sequences; all of a long one are computed in place. */
static inline int forward_gathered(const forward_row *row) {
    return row->want == WANT_ALL ? (row->n > HEAD_ROWS ? 0 : row->n) : row->want == WANT_LAST;
}

/* Computes a batch: reserves, runs every layer, commits. No text may outgrow learned positions; an encoder-decoder's caches must have
 * been encoded (MN_E_ARG). On failure every cache is as before: MN_E_FULL, MN_E_NOMEM. */
mn_status model_forward(model_core *model, const forward_row *rows, int n_rows);

/* Bytes of packed weights, an encoder's included. */
size_t model_packed_bytes(const model_core *model);

/* The cache entries of this model with its own windows, exact in `codec`. *out is owned by the caller; n is num_hidden_layers, and with
 * an encoder as many again, the cross entries. */
mn_status model_cache_specs(kv_spec **out, int *n, const model_core *model, kv_codec codec);

#endif
