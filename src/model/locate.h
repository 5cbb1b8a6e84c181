/* Where a model's name leads on this machine. Looks only; never fetches.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_MODEL_LOCATE_H
#define MN_MODEL_LOCATE_H

#include "base/mem.h"

/* As mn_model_find; *path is filled and zero-terminated. */
mn_status model_locate(bytes *path, const char *name);

#endif
