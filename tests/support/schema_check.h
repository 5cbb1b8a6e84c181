/* A validator of JSON schemas for tests: reads the value and the schema side by side and knows nothing of automata.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SCHEMA_CHECK_H
#define TESTS_SCHEMA_CHECK_H

#include "base/json.h"

/* Whether the value is valid under the schema; root is where "#/..." begins. Knows the keywords that constraints know, and
 * fails the test for others that would restrict. */
bool schema_check(const json *root, const json *schema, const json *value);

/* The same for a text, which must be JSON. */
bool schema_check_text(const json *schema, const char *text, size_t n);

#endif
