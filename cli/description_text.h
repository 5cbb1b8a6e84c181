/* A JSON description as text for people: one fact per line, bytes as MiB.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_DESCRIPTION_TEXT_H
#define MNEME_CLI_DESCRIPTION_TEXT_H

#include "base/json.h"

/* Appends the members of an object, nested ones indented. Objects of a list become the rows of a table. */
void description_text_put(bytes *b, const json *object, int indent);

#endif
