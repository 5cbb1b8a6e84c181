/* The blocks that forward passes are written with: each does one step of the residual stream for a whole batch. Sizes
 * and switches are read from the configuration, biases from the weights.
 *
 * x, the residual stream [m][hidden_size], is the workspace's; a block adds to it, or writes its result to `branch`
 * where the architecture needs it. Blocks cannot fail: blocks_prepare allocates everything.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_BLOCKS_H
#define MN_MODEL_BLOCKS_H

#include "model/batch.h"

/* Everything of a pass that can fail, after the caches have reserved and the workspace has room: angles, attention
 * space. */
mn_status blocks_prepare(network *net, const forward_row *rows, int n_rows);

/* x = embeddings, with those of learned positions; also early exits from them. */
void block_embed(const batch *b);

/* Attention of layer i over its normed input. `branch`: the result replaces b's branch instead of being added to x. */
void block_attention(const batch *b, int i, bool branch);

/* x += cross attention of layer i: queries of the normed input over the entry num_hidden_layers + i. */
void block_cross(const batch *b, int i);

/* The MLP of layer i, dense or of experts, over its normed input. */
void block_mlp(const batch *b, int i, bool branch);

/* x += norm(branch), with this weight; NULL: without the norm. */
void block_add_branch(const batch *b, const float *scale);

/* Early exits after layer i. */
void block_exits(const batch *b, int i);

/* Final norm, logits, final states, as the rows request. */
void block_finish(const batch *b);

/* The norms of this model with a weight and a bias (NULL: none). */
row_norm block_norm(const batch *b, const float *scale, const float *bias);

#endif
