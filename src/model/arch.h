/* Architectures: each is one file of plain code over blocks.h, chosen by model_type.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_ARCH_H
#define MN_MODEL_ARCH_H

#include "model/blocks.h"

/* The pass itself; cannot fail. */
typedef void arch_forward(const batch *b);

arch_forward llama_forward, gemma_forward, gpt_neox_forward, mamba_forward, whisper_forward;

extern arch_forward *const arch_forwards[N_MODEL_TYPES];

#endif
