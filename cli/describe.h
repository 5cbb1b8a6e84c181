/* A JSON description for human eyes: one fact a line, bytes as MiB.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_DESCRIBE_H
#define MNEME_CLI_DESCRIBE_H

#include "base/json.h"

/* Appends the members of an object, nested ones indented. Objects of a list become the rows of a table. */
void describe_put(bytes *b, const json *object, int indent);

#endif
