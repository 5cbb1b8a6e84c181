/* Weights by role: the names and shapes that each model type gives them in Hugging Face checkpoints and in GGUF files,
 * and the binding of a checkpoint's tensors to roles.
 *
 * A role is one matrix or vector of the forward pass. Its weight may be some rows of a larger stored tensor (fused
 * projections), and its rows may be stored in another order (GGUF files of type llama): a weight_source holds both, and
 * packing restores the order.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_NAMES_H
#define MN_MODEL_NAMES_H

#include "model/config.h"
#include "tensor/tensor.h"

/* Matrices are [out][in]; with D = head_dim, Hq and H heads of queries and of keys and values, d = hidden_size, f =
 * intermediate_size, V = vocab_size, E experts; of Mamba layers I = mamba_size, N = state_size, R = time_step_rank, k =
 * conv_kernel. */
typedef enum weight_role {
    WEIGHT_Q,       /* [Hq D][d] */
    WEIGHT_K,       /* [H D][d] */
    WEIGHT_V,       /* [H D][d] */
    WEIGHT_O,       /* [d][Hq D] */
    WEIGHT_CROSS_Q, /* as those above, of cross attention */
    WEIGHT_CROSS_K,
    WEIGHT_CROSS_V,
    WEIGHT_CROSS_O,
    WEIGHT_MAMBA_IN,      /* [2 I][d] */
    WEIGHT_MAMBA_X,       /* [R + 2 N][I] */
    WEIGHT_MAMBA_DT,      /* [I][R] */
    WEIGHT_MAMBA_OUT,     /* [d][I] */
    WEIGHT_ROUTER,        /* [E][d] */
    WEIGHT_SHARED_ROUTER, /* [1][d], of the expert for all tokens, whose width is g */
    WEIGHT_SHARED_GATE,   /* [g][d] */
    WEIGHT_SHARED_UP,     /* [g][d] */
    WEIGHT_SHARED_DOWN,   /* [d][g] */
    WEIGHT_GATE,          /* [f][d]; of an expert in layers with experts, as are UP and DOWN */
    WEIGHT_UP,            /* [f][d] */
    WEIGHT_DOWN,          /* [d][f] */
    N_LAYER_MATRICES,

    /* The biases of the matrices, in the same order: vectors of as many values as they have rows. */
    WEIGHT_Q_BIAS = N_LAYER_MATRICES,
    WEIGHT_K_BIAS,
    WEIGHT_V_BIAS,
    WEIGHT_O_BIAS,
    WEIGHT_CROSS_Q_BIAS,
    WEIGHT_CROSS_K_BIAS,
    WEIGHT_CROSS_V_BIAS,
    WEIGHT_CROSS_O_BIAS,
    WEIGHT_MAMBA_IN_BIAS,
    WEIGHT_MAMBA_X_BIAS,
    WEIGHT_MAMBA_DT_BIAS,
    WEIGHT_MAMBA_OUT_BIAS,
    WEIGHT_ROUTER_BIAS,
    WEIGHT_SHARED_ROUTER_BIAS,
    WEIGHT_SHARED_GATE_BIAS,
    WEIGHT_SHARED_UP_BIAS,
    WEIGHT_SHARED_DOWN_BIAS,
    WEIGHT_GATE_BIAS,
    WEIGHT_UP_BIAS,
    WEIGHT_DOWN_BIAS,

    FIRST_LAYER_VECTOR,
    WEIGHT_ATTENTION_NORM = FIRST_LAYER_VECTOR, /* [d], before attention or the Mamba mixer */
    WEIGHT_ATTENTION_NORM_BIAS,                 /* [d] */
    WEIGHT_ATTENTION_POST_NORM,                 /* [d], of the output of attention */
    WEIGHT_CROSS_NORM,                          /* [d], before cross attention */
    WEIGHT_CROSS_NORM_BIAS,                     /* [d] */
    WEIGHT_MLP_NORM,                            /* [d], before the MLP */
    WEIGHT_MLP_NORM_BIAS,                       /* [d] */
    WEIGHT_MLP_POST_NORM,                       /* [d], of the output of the MLP */
    WEIGHT_Q_NORM,                              /* [D], of each head, or [Hq D] */
    WEIGHT_K_NORM,                              /* [D] or [H D] */
    WEIGHT_CONV,                                /* [I][1][k] */
    WEIGHT_CONV_BIAS,                           /* [I] */
    WEIGHT_A,                                   /* [I][N]: A_log, or A itself in GGUF files */
    WEIGHT_D,                                   /* [I] */
    WEIGHT_DT_NORM,                             /* [R] */
    WEIGHT_B_NORM,                              /* [N] */
    WEIGHT_C_NORM,                              /* [N] */
    N_LAYER_WEIGHTS,

    WEIGHT_CONV1 = N_LAYER_WEIGHTS, /* [d][num_mel_bins][3] */
    WEIGHT_CONV1_BIAS,              /* [d] */
    WEIGHT_CONV2,                   /* [d][d][3] */
    WEIGHT_CONV2_BIAS,              /* [d] */
    WEIGHT_EMBED,                   /* [V][d] */
    WEIGHT_POSITIONS,               /* [max_position_embeddings][d] */
    WEIGHT_FINAL_NORM,              /* [d] */
    WEIGHT_FINAL_NORM_BIAS,         /* [d] */
    WEIGHT_HEAD,                    /* [V][d] */
    WEIGHT_HEAD_BIAS,               /* [V] */
    N_WEIGHTS
} weight_role;

enum { N_LAYER_VECTORS = N_LAYER_WEIGHTS - FIRST_LAYER_VECTOR, N_GLOBAL_WEIGHTS = N_WEIGHTS - N_LAYER_WEIGHTS };

/* Rows of a tensor; the rows of a vector are its values. They are consecutive from first_row on, or, with `block`, in
 * blocks of that many rows, `stride` rows apart. */
typedef struct weight_source {
    const tensor *tensor; /* NULL: the model has no such weight */
    int64_t first_row, n_rows;
    int64_t columns; /* values of a row */
    int64_t block, stride;
    int permute_head_dim; /* 0, or D: within each D rows, rows 2i and 2i + 1 are stored for rows i and i + D/2
                           */
    bool is_transposed;   /* the rows are columns of the tensor, a matrix */
    const tensor *scales; /* NULL, or of each block of the tensor, a matrix */
    int64_t scale_rows, scale_columns; /* of a block */
} weight_source;

/* The row of the stored tensor that holds row `row` (0 .. n_rows - 1) of the weight. */
int64_t weight_source_row(const weight_source *source, int64_t row);

/* The place of a weight, and the expected name and shape of its tensor. */
typedef struct weight_place {
    char name[96];
    int n_dims;           /* 1 to 3 */
    int64_t shape[3];     /* of the whole tensor */
    weight_source source; /* but for the tensor */
} weight_place;

/* False when this model has no tensor for the role: a disabled bias or norm, a tied head, a weight of another kind of
 * layer. `layer` is ignored for the roles from N_LAYER_WEIGHTS on, `expert` (0 .. E - 1) but for the MLP of layers with
 * experts. */
bool weight_find_place(const model_config *config, bool is_gguf, weight_role role, int64_t layer, int64_t expert,
                       weight_place *out);

enum { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, N_EXPERT_MATRICES };

typedef struct model_weights {
    weight_source
        globals[N_GLOBAL_WEIGHTS]; /* at role - N_LAYER_WEIGHTS; the head is the embedding when the two are tied */
    weight_source (*layers)[N_LAYER_WEIGHTS];    /* [num_hidden_layers], owned */
    weight_source (*experts)[N_EXPERT_MATRICES]; /* [num_hidden_layers][E], owned; NULL without experts */
    size_t n_left_out; /* tensors of other parts than the text half of a model for pictures or sound */
} model_weights;

static inline const weight_source *model_weights_global(const model_weights *weights, weight_role role) {
    return &weights->globals[role - N_LAYER_WEIGHTS];
}

/* Finds every weight of the configuration in `tensors` (which must outlive *out) and checks shape and type. On failure
 * *out is empty. MN_E_FORMAT: a tensor is missing, has another shape, or exists although the configuration has no such
 * weight; MN_E_UNSUPPORTED: its type is not supported; MN_E_NOMEM. The message names the tensor. */
mn_status model_bind(model_weights *out, const model_config *config, const tensor_set *tensors, bool is_gguf);
void model_weights_clear(model_weights *weights);

#endif
