/* Gemma 2 and Gemma 3: the output of a sub-layer is normed before it is added; layers with a window between those
 * without, which in Gemma 3 have other rotary angles; capped scores and logits in Gemma 2. OLMo 2, without norms before
 * sub-layers; queries and keys are normed over all heads at once.
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
    for (int i = 0; i < (int)b->net->config.num_hidden_layers; i++) {
        const packed_layer *layer = &b->net->weights.layers[i];
        block_attention(b, i, true);
        block_add_branch(b, layer_vector(layer, WEIGHT_ATTENTION_POST_NORM));
        block_mlp(b, i, true);
        block_add_branch(b, layer_vector(layer, WEIGHT_MLP_POST_NORM));
        block_exits(b, i);
    }
    block_finish(b);
}
