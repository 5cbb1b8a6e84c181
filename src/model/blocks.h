/* The blocks that forward passes are written with: each does one step of the residual stream for a whole batch. Sizes and switches come
 * from the configuration, biases from the weights.
 *
 * x, the residual stream [m][hidden_size], is the workspace's; a block adds to it, or leaves what it would have added in `branch`
 * where the architecture goes on with that. Nothing here can fail: blocks_prepare makes everything ready.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_BLOCKS_H
#define MN_MODEL_BLOCKS_H

#include "model/model.h"

/* A pass: the new tokens of n_rows sequences, m in all, one after the other. */
typedef struct batch {
    model_core *model;
    const forward_row *rows;
    int n_rows, m;
} batch;

/* Everything of a pass that can fail, after the caches have reserved and the workspace has room: angles, attention space. */
mn_status blocks_prepare(model_core *model, const forward_row *rows, int n_rows);

/* x = embeddings, with those of learned positions; also what early exits want of them. */
void block_embed(const batch *b);

/* Attention of layer i over its normed input. `branch`: the result replaces b's branch instead of being added to x. */
void block_attention(const batch *b, int i, bool branch);

/* x += cross attention of layer i: queries of the normed input over the entry num_hidden_layers + i. */
void block_cross(const batch *b, int i);

/* The MLP of layer i, dense or of experts, over its normed input. */
void block_mlp(const batch *b, int i, bool branch);

/* x += branch, through a norm with this weight first unless it is NULL. */
void block_add_branch(const batch *b, const float *scale);

/* Early exits behind layer i. */
void block_exits(const batch *b, int i);

/* Final norm, logits, final states: what the rows want. */
void block_finish(const batch *b);

/* The norms of this model with a weight and a bias (NULL: none). */
row_norm block_norm(const batch *b, const float *scale, const float *bias);

#endif
