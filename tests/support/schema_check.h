/* A validator of JSON schemas for tests: it walks the value and the schema in parallel, without automata.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SCHEMA_CHECK_H
#define TESTS_SCHEMA_CHECK_H

#include "base/json.h"

/* Whether the value is valid under the schema; root is where "#/..." begins. Supports the keywords of constraints, and
 * fails the test for other keywords that restrict values. */
bool schema_check(const json *root, const json *schema, const json *value);

/* The schema that a $ref means: "#/..." or "#anchor". */
const json *schema_check_target(const json *root, const char *ref);

/* The same as schema_check for a text, which must be JSON. */
bool schema_check_text(const json *schema, const char *text, size_t n);

#endif
