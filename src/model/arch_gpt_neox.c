/* GPT-NeoX and Pythia: LayerNorm, partial rotary embeddings, a plain MLP, and parallel sub-layers. Phi-1 to 2, with one
 * norm for both and a bias of the head; Cohere, the same with a gated MLP and norms without bias.
 *
 *   x = embedding(ids)
 *   for each layer:  x += o(attend(rope(q), rope(k), v)) + down(act(up(h)))     q, k, v of norm1(x), h = norm2(x)
 *   logits = head(norm(x))
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/arch.h"

void gpt_neox_forward(const batch *b) {
    bool parallel = b->net->config.parallel_residual;
    block_embed(b);
    for (int i = 0; i < (int)b->net->config.num_hidden_layers; i++) {
        block_attention(b, i, parallel);
        block_mlp(b, i, false);
        if (parallel) block_add_branch(b, NULL);
        block_exits(b, i);
    }
    block_finish(b);
}
