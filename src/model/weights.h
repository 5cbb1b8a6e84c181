/* Packing: the checkpoint's tensors into the panels that kernels read, once, at opening.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_WEIGHTS_H
#define MN_MODEL_WEIGHTS_H

#include "model/network.h"

typedef struct weights_progress {
    void (*report)(void *user, uint64_t bytes_done, uint64_t bytes_total);
    void *user;
} weights_progress;

/* The form in which a stored type is computed when the model computes in `model_form`. is_auto: plain types use the
 * usual form (float32 for F32 and F64, bf16 for those of 16 and 8 bits) and block types go to WEIGHT_INT. */
weight_form weight_form_for(dtype type, weight_form model_form, bool is_auto);

/* Lays out every weight in net->form (sizes only; nothing is packed) and sums net->weights.packed_bytes. is_gguf: the
 * file holds A of state-space layers, not its logarithm. */
mn_status weights_plan(network *net, const model_weights *bound, bool is_auto, bool is_gguf);

/* Allocates the arena and packs all panels with the model's threads, unless they are mapped. The pages of the files,
 * which hold the tensors, are given back on the way. Weights are left to be packed on the fly when `lazy` (float32
 * computation only). */
mn_status weights_pack(network *net, const tensor_set *files, bool lazy, weights_progress progress);

/* Lists all matrices in the order in which a pass reads them; the list is owned by the caller. */
mn_status weights_list(weight ***out, int *n, network *net);
/* The panels of all matrices are one block, in that order: sets where they are. */
mn_status weights_place(network *net, const char *panels);
void weights_clear(packed_weights *weights, int64_t n_layers);

#endif
