/* Weights by role: the names and shapes that each model type gives them in Hugging Face checkpoints and in
 * GGUF files, and the binding of a checkpoint's tensors to roles.
 *
 * A role is one matrix or vector of the forward pass. Its weight may be some rows of a larger stored tensor
 * (fused projections), and its rows may be stored in another order (GGUF files of type llama): a
 * weight_source says both, and whoever packs the weight undoes them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_NAMES_H
#define MN_MODEL_NAMES_H

#include "model/config.h"
#include "tensor/tensor.h"

/* Matrices are [out][in]; with D = head_dim, Hq and H heads of queries and of keys and values, d =
 * hidden_size, f = intermediate_size, V = vocab_size. */
typedef enum weight_role {
    WEIGHT_ATTENTION_NORM, /* [d], before attention */
    WEIGHT_Q,              /* [Hq D][d] */
    WEIGHT_K,              /* [H D][d] */
    WEIGHT_V,              /* [H D][d] */
    WEIGHT_O,              /* [d][Hq D] */
    WEIGHT_Q_BIAS,         /* [Hq D] */
    WEIGHT_K_BIAS,         /* [H D] */
    WEIGHT_V_BIAS,         /* [H D] */
    WEIGHT_O_BIAS,         /* [d] */
    WEIGHT_Q_NORM,         /* [D], of each head */
    WEIGHT_K_NORM,         /* [D] */
    WEIGHT_MLP_NORM,       /* [d], before the MLP */
    WEIGHT_GATE,           /* [f][d] */
    WEIGHT_UP,             /* [f][d] */
    WEIGHT_DOWN,           /* [d][f] */
    WEIGHT_GATE_BIAS,      /* [f] */
    WEIGHT_UP_BIAS,        /* [f] */
    WEIGHT_DOWN_BIAS,      /* [d] */
    N_LAYER_WEIGHTS,
    WEIGHT_EMBED = N_LAYER_WEIGHTS, /* [V][d] */
    WEIGHT_FINAL_NORM,              /* [d] */
    WEIGHT_HEAD,                    /* [V][d] */
    N_WEIGHTS
} weight_role;

/* Rows first_row .. first_row + n_rows - 1 of a tensor; the rows of a vector are its values. */
typedef struct weight_source {
    const tensor *tensor; /* NULL: the model has no such weight */
    int64_t first_row, n_rows;
    int permute_head_dim; /* 0, or D: within each D rows, rows 2i and 2i + 1 are stored for rows i and i + D/2
                           */
} weight_source;

/* The row of the stored tensor that holds row `row` (0 .. n_rows - 1) of the weight. */
int64_t weight_source_row(const weight_source *source, int64_t row);

/* Where a weight lies and how its tensor must look. */
typedef struct weight_place {
    char name[64];
    int n_dims;       /* 1 or 2 */
    int64_t shape[2]; /* of the whole tensor */
    int64_t first_row, n_rows;
    int permute_head_dim;
} weight_place;

/* False when this model has no tensor for the role: a bias or norm that is switched off, a head that is the
 * embedding. `layer` is ignored for the roles from WEIGHT_EMBED on. */
bool weight_find_place(const model_config *config, bool is_gguf, weight_role role, int64_t layer,
                       weight_place *out);

typedef struct model_weights {
    weight_source embed, final_norm, head;    /* head: that of embed when the two are tied */
    weight_source (*layers)[N_LAYER_WEIGHTS]; /* [num_hidden_layers], owned */
} model_weights;

/* Finds every weight of the configuration in `tensors` (which must outlive *out) and checks shape and type.
 * On failure *out is empty. MN_E_FORMAT: a tensor is missing, has another shape, or is there although the
 * configuration has no such weight; MN_E_UNSUPPORTED: its type cannot be computed with; MN_E_NOMEM. The
 * sentence names the tensor. */
mn_status model_bind(model_weights *out, const model_config *config, const tensor_set *tensors, bool is_gguf);
void model_weights_clear(model_weights *weights);

#endif
