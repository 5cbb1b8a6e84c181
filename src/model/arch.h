/* Architectures: each is one file of plain code over compute.h, chosen by model_type.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_ARCH_H
#define MN_MODEL_ARCH_H

#include "model/model.h"

/* Everything of a pass that can fail, after the caches have reserved and the workspace has room: angles, attention space. */
mn_status llama_prepare(model_core *model, const forward_row *rows, int n_rows);
/* The pass itself; cannot fail. */
void llama_forward(model_core *model, const forward_row *rows, int n_rows);

#endif
