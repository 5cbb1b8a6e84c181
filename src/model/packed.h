/* Files of packed weights: what weights_pack makes of a checkpoint, mapped when the model is opened again.
 *
 * A file belongs to the weights (sampled, as in the model's fingerprint), the sizes and times of the checkpoint's
 * files, the configuration and the layouts of the panels.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_PACKED_H
#define MN_MODEL_PACKED_H

#include "model/model.h"

/* Maps the panels of a network of the model, laid out by weights_plan, from a file in `folder`; every byte is verified.
 * net->weights.mapped stays NULL where there is none: a damaged file, and one that others may write, are passed over.
 * folder NULL: none. MN_E_NOMEM. */
mn_status packed_map(network *net, const model_core *model, const char *folder);

/* Of model_packed_bytes, those that are mapped. */
size_t packed_mapped_bytes(const model_core *model);

/* Writes the files of an open model, and makes the folder. *n_bytes: of their panels. MN_E_UNSUPPORTED where weights
 * are packed for each use; MN_E_IO. */
mn_status packed_save(model_core *model, const char *folder, uint64_t *n_bytes);

#endif
