/* Token ids as text.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TOKENS_H
#define TESTS_TOKENS_H

#include "support/support.h"
#include "text/tokenizer/tokenizer.h"

/* The ids of the text are `expected`, numbers with a space between. */
void assert_token_ids(const tokenizer *t, const char *text, unsigned flags, const char *expected);

#endif
