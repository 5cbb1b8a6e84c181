/* What computes: packed weights, the buffers of a pass, and the rows of a batch.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_NETWORK_H
#define MN_MODEL_NETWORK_H

#include "model/attention.h"
#include "model/config.h"

typedef struct packed_layer {
    weight matrices[N_LAYER_MATRICES];    /* by role; zeros where the layer has none */
    float *vectors[N_LAYER_VECTORS];      /* by role - FIRST_LAYER_VECTOR, or NULL; owned. Convolutions are [k][I], A is
                                             [N][I] */
    weight (*experts)[N_EXPERT_MATRICES]; /* [num_local_experts], or NULL; owned */
} packed_layer;

static inline const float *layer_vector(const packed_layer *layer, weight_role role) {
    return layer->vectors[role - FIRST_LAYER_VECTOR];
}

enum { N_CONVOLUTIONS = 2 };

typedef struct packed_weights {
    const tensor *embedding;             /* [vocab_size][hidden_size], read row by row from the file */
    float *positions;                    /* [max_position_embeddings][hidden_size], learned ones, or NULL */
    packed_layer *layers;                /* [num_hidden_layers] */
    float *final_norm;                   /* [hidden_size] */
    float *final_norm_bias;              /* [hidden_size] or NULL */
    weight head;                         /* [vocab_size] outputs */
    weight convolutions[N_CONVOLUTIONS]; /* of an encoder's convolutions: [hidden_size] outputs */
    char *arena;                         /* all packed panels, or NULL: */
    struct archive *mapped;              /* the file that holds them (model/packed.h) */
    size_t packed_bytes;
} packed_weights;

/* Rotary angles of a pass's tokens. */
typedef struct angle_set {
    float *cos, *sin;           /* [m][rotary_dim / 2] */
    float *slot_cos, *slot_sin; /* the same, of queries that attend to sinks */
} angle_set;
enum { ANGLES_GLOBAL, ANGLES_LOCAL, N_ANGLES };

/* An expert chosen by a token, and the token's row among the gathered ones. */
typedef struct expert_route {
    int expert, row;
    float weight;
} expert_route;

/* Buffers of a pass over m tokens; grown between passes, never inside. Those that the architecture does not use are
 * NULL. */
typedef struct workspace {
    int m;                /* tokens they have room for */
    int n_last;           /* rows of `last` */
    float *x;             /* [m][hidden_size] residual stream */
    float *normed;        /* [m][hidden_size] */
    float *branch;        /* [m][hidden_size] output of a sub-layer, where it is not added directly; with experts [m
                             k][hidden_size] */
    float *qkv;           /* [m][(heads + 2 kv heads) * head_dim] */
    float *attended;      /* [m][heads * head_dim] */
    float *inner;         /* [m][intermediate_size], with experts [m k] */
    float *gathered;      /* [m k][hidden_size] tokens by expert, of which each has k */
    float *routing;       /* [m][num_local_experts] */
    expert_route *routes; /* [m][num_experts_per_tok], k of them, by expert */
    float *channels;      /* [m][2 * mamba_size] inputs of states and their gates */
    float *convolved;     /* [m][mamba_size] */
    float *projected;     /* [m][time_step_rank + 2 * state_size] */
    float *ranks;         /* [m][time_step_rank] */
    float *steps;         /* [m][mamba_size] time steps */
    float *last;          /* [n_last][hidden_size] rows whose logits are requested */
    float *cross_keys;    /* borrowed from the encoder, idle then: [max_source_positions][hidden_size] keys of one head
                             whose weights are requested */
    angle_set angles[N_ANGLES];
    attend_rows *attend; /* [attend_capacity] one per sequence */
    size_t attend_capacity;
    double *frequencies; /* [rotary_dim / 2] */
    act_rows rows;
    attend_space space;
} workspace;

/* A network: a configuration, its packed weights, the buffers of a pass. The decoder is one, the encoder another. */
typedef struct network {
    model_config config;
    weight_form form; /* compute type, with "auto" resolved; tensors of plain and block types may still differ */
    packed_weights weights;
    workspace workspace;
    compute *compute; /* the model's */
} network;

/* Buffers for a pass of m tokens in n_rows sequences, n_last of whose states have logits computed together.
 * MN_E_NOMEM. */
mn_status network_grow(network *net, int m, int n_rows, int n_last);
/* Bytes that network_grow allocates for each token of a pass. */
size_t network_token_bytes(const network *net);
void network_clear(network *net); /* weights and buffers */

/* The most inputs of a matrix. */
size_t model_widest_input(const model_config *config);

enum { HEAD_ROWS = 64 }; /* the most rows of logits computed together */
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
    int64_t total_length; /* of the sequence after the whole call: decides length-dependent rotary angles */
    bool sees_all; /* an encoder's: each token sees all n, and one entry of the cache serves every layer in turn */
    forward_want want;
    float *logits;    /* [1 or n][vocab_size], filled */
    float *states;    /* NULL, or [n][hidden_size], filled: final hidden states, after the last norm */
    const int *exits; /* [n_exits], ascending: layers after which the last token's state goes through the head as it is;
                         0: the embedding; NULL: none */
    int n_exits;
    float *exit_logits;            /* [n_exits][vocab_size], filled */
    const cross_head *cross_heads; /* [n_cross_heads] whose attention weights over the encoder's positions are
                                      requested; NULL: none */
    int n_cross_heads;
    float *cross_weights;      /* token t of head h at (h * cross_rows + t) * positions, filled */
    int cross_rows;            /* at least n */
    kv_calibrator *calibrator; /* gathers the keys and queries of the row as they are stored; NULL: none does */
} forward_row;

/* Rows of logits that are computed together with those of other sequences; all of a long one are computed in place. */
static inline int forward_gathered(const forward_row *row) {
    return row->want == WANT_ALL ? (row->n > HEAD_ROWS ? 0 : row->n) : row->want == WANT_LAST;
}

#endif
