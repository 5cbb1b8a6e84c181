/* SPDX-License-Identifier: Apache-2.0 */
#include "model/arch.h"

arch_forward *const arch_forwards[N_MODEL_TYPES] = {
    [MODEL_LLAMA] = llama_forward,       [MODEL_MISTRAL] = llama_forward,   [MODEL_MIXTRAL] = llama_forward,
    [MODEL_QWEN2] = llama_forward,       [MODEL_QWEN3] = llama_forward,     [MODEL_QWEN2_MOE] = llama_forward,
    [MODEL_QWEN3_MOE] = llama_forward,   [MODEL_SMOLLM3] = llama_forward,   [MODEL_OLMO2] = gemma_forward,
    [MODEL_STABLELM] = llama_forward,    [MODEL_COHERE] = gpt_neox_forward, [MODEL_PHI] = gpt_neox_forward,
    [MODEL_PHI3] = llama_forward,        [MODEL_GRANITE] = llama_forward,   [MODEL_GEMMA] = llama_forward,
    [MODEL_GEMMA2] = gemma_forward,      [MODEL_GEMMA3] = gemma_forward,    [MODEL_GPT2] = llama_forward,
    [MODEL_GPT_NEOX] = gpt_neox_forward, [MODEL_MAMBA] = mamba_forward,     [MODEL_JAMBA] = mamba_forward,
    [MODEL_WHISPER] = whisper_forward,
};
