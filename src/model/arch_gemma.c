/* Gemma 2 and Gemma 3: what a sub-layer gives is normed before it is added; layers with a window between those without, which in
 * Gemma 3 rotate by angles of their own; capped scores and logits in Gemma 2. OLMo 2, where nothing is normed before a
 * sub-layer, and queries and keys are, over all heads at once.
 *
 *   x = embedding(ids) * sqrt(hidden_size)
 *   for each layer:  x += norm(o(attend(rope(q), rope(k), v)))      q, k, v of norm(x)
 *                    x += norm(down(gelu(gate(h)) * up(h)))         h = norm(x)
 *   logits = cap(head(norm(x)))
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/arch.h"

void gemma_forward(const batch *b) {
    block_embed(b);
    for (int i = 0; i < (int)b->model->config.num_hidden_layers; i++) {
        const packed_layer *layer = &b->model->weights.layers[i];
        block_attention(b, i, true);
        block_add_branch(b, layer_vector(layer, WEIGHT_ATTENTION_POST_NORM));
        block_mlp(b, i, true);
        block_add_branch(b, layer_vector(layer, WEIGHT_MLP_POST_NORM));
        block_exits(b, i);
    }
    block_finish(b);
}
