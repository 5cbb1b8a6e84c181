/* Mamba's mixer: a short convolution and a selective scan over states of constant size.
 *
 * Gu and Dao 2023. An entry's state is float32: the last conv_kernel - 1 inputs [conv_kernel - 1][mamba_size], then the
 * scan's [state_size][mamba_size].
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_MIXER_H
#define MN_MODEL_MIXER_H

#include "model/blocks.h"

/* Bytes of one layer's state. */
size_t mixer_state_bytes(const model_config *config);

/* x += mixer of layer i over its normed input:
 *
 *   u, g = in(norm(x)); u = silu(conv(u)); r, B, C = x_proj(u), each through a norm in Jamba; dt = dt_proj(r)
 *   x += out(scan(u, dt, A, B, C, D) * silu(g)) */
void block_mixer(const batch *b, int i);

#endif
