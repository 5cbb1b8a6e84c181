/* Whisper's decoder: learned positions, LayerNorm, a plain MLP, and cross attention to the output of the encoder
 * (encoder.h).
 *
 *   x = embedding(ids) + positions
 *   for each layer:  x += o(attend(q, k, v))                  q, k, v of norm(x)
 *                    x += o(attend(q, encoder's k and v))     q of norm(x)
 *                    x += down(gelu(up(norm(x))))
 *   logits = head(norm(x))
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/arch.h"

void whisper_forward(const batch *b) {
    block_embed(b);
    for (int i = 0; i < (int)b->net->config.num_hidden_layers; i++) {
        block_attention(b, i, false);
        block_cross(b, i);
        block_mlp(b, i, false);
        block_exits(b, i);
    }
    block_finish(b);
}
