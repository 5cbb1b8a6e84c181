/* Where a model's name leads on this machine. Looks only; never fetches.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_LOCATE_H
#define MN_MODEL_LOCATE_H

#include "base/mem.h"

typedef enum model_use { MODEL_FOR_TEXT, MODEL_FOR_SPEECH } model_use;

/* As mn_model_find; *path is filled and zero-terminated. `use` counts where no name is given: the model of that use installed
 * last, for text else the embedded one. A name leads to whatever goes by it. */
mn_status model_locate(bytes *path, const char *name, model_use use);

#endif
