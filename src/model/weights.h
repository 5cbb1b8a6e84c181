/* Packing: the checkpoint's tensors into the panels that kernels read, once, at opening.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_WEIGHTS_H
#define MN_MODEL_WEIGHTS_H

#include "model/model.h"

typedef struct weights_progress {
    void (*report)(void *user, uint64_t bytes_done, uint64_t bytes_total);
    void *user;
} weights_progress;

/* The form in which a stored type is computed with when the model computes in `wanted`. is_auto: plain types keep to the
 * form that loses nothing (float32 for F32, bf16 for F16 and BF16) and block types go to WEIGHT_INT. */
weight_form weight_form_for(dtype type, weight_form wanted, bool is_auto);

/* Lays out every weight (sizes only; nothing is packed) and sums model->weights.packed_bytes. */
mn_status weights_plan(model_core *model, const model_weights *bound, weight_form wanted, bool is_auto);

/* Allocates the arena and packs all panels with the model's threads. Weights are left to be packed on the fly when `lazy`
 * (float32 computation only). */
mn_status weights_pack(model_core *model, bool lazy, weights_progress progress);
void weights_clear(packed_weights *weights, int64_t n_layers);

#endif
