/* Finds a model by name on this machine. Never downloads.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_LOCATE_H
#define MN_MODEL_LOCATE_H

#include "base/json.h"
#include "base/mem.h"

typedef enum model_use { MODEL_FOR_TEXT, MODEL_FOR_SPEECH } model_use;

/* As mn_model_find; *path is filled and zero-terminated. `use` counts where no name is given: the most recently
 * installed model of that use, for text else the embedded one. With a name `use` is ignored. */
mn_status model_locate(bytes *path, const char *name, model_use use);

/* As mn_models_describe; *out is filled and zero-terminated. */
mn_status models_describe(bytes *out);

/* The JSON file `name` of a Hugging Face folder, or of the embedded model (path "embedded"). MN_E_NOT_FOUND,
 * MN_E_FORMAT. */
mn_status checkpoint_json(json_doc **out, const char *path, const char *name);

#endif
