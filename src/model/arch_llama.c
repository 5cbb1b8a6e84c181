/* The Llama family, and models that differ from it in sizes and switches only: Llama 1 to 3, TinyLlama, SmolLM2,
 * Mistral, Mixtral, Qwen2, Qwen3 (dense or with experts), Phi-3, Granite, Gemma 1; SmolLM3, with layers without rotary
 * embeddings; StableLM, with LayerNorm; GPT-2, with learned positions, LayerNorm and a plain MLP.
 *
 *   x = embedding(ids)
 *   for each layer:  x += o(attend(rope(q), rope(k), v))       q, k, v of norm(x)
 *                    x += down(act(gate(h)) * up(h))            h = norm(x)
 *   logits = head(norm(x))
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "model/arch.h"

void llama_forward(const batch *b) {
    block_embed(b);
    for (int i = 0; i < (int)b->net->config.num_hidden_layers; i++) {
        block_attention(b, i, false);
        block_mlp(b, i, false);
        block_exits(b, i);
    }
    block_finish(b);
}
