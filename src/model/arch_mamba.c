/* Mamba, and Jamba, which adds attention layers without positions, and experts.
 *
 *   x = embedding(ids)
 *   for each layer:  x += mixer(norm(x)), or in Jamba's other layers x += o(attend(q, k, v))    q, k, v of norm(x)
 *                    Jamba: x += mlp(norm(x)), dense or of experts
 *   logits = head(norm(x))
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/arch.h"
#include "model/mixer.h"

void mamba_forward(const batch *b) {
    const model_config *config = &b->net->config;
    block_embed(b);
    for (int i = 0; i < (int)config->num_hidden_layers; i++) {
        if (config->layer_types[i] == LAYER_MAMBA) {
            block_mixer(b, i);
        } else {
            block_attention(b, i, false);
        }
        if (config->intermediate_size > 0) block_mlp(b, i, false);
        block_exits(b, i);
    }
    block_finish(b);
}
