/* Mixtures of experts: of each token, the MLPs of the few experts that its router chooses.
 *
 * Shazeer and others 2017; routing as Mixtral's (Jiang and others 2024) and Jamba's; Qwen2's also has a shared expert.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_EXPERTS_H
#define MN_MODEL_EXPERTS_H

#include "model/batch.h"

/* x += the sum over the chosen experts, in their order, of weight * MLP(normed), from the workspace's normed rows,
 * which its `rows` hold in the router's form. Only the weights of chosen experts are read, once for all their tokens.
 */
void experts_mlp(const batch *b, const packed_layer *layer);

#endif
