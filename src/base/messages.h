/* Messages as clients of OpenAI's interface send them, written as chat templates take them: content is a string (parts
 * of text are joined), the arguments of calls are objects, the role developer is system.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_BASE_MESSAGES_H
#define MNEME_BASE_MESSAGES_H

#include "base/json.h"

/* Appends the list as JSON. fill: a message without content gets an empty one, for templates that fail without.
 * MN_E_ARG for an item that is no message, and for a part that is no text. */
mn_status messages_put(bytes *out, const json *list, bool fill);

#endif
