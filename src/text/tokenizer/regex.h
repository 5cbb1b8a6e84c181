/* Regular expressions over UTF-8 by PCRE2: the general path of splitting and replacing.
 *
 * Patterns are written for Oniguruma, whose syntax is translated (regex_dialect.h). The work of all searches together
 * is limited in proportion to the text, so a catastrophic pattern ends with an error.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_TOKENIZER_REGEX_H
#define MN_TEXT_TOKENIZER_REGEX_H

#include "base/mem.h"

typedef struct regex regex; /* immutable: may be used by several threads, each with its own state */
typedef struct regex_state regex_state;

/* MN_E_FORMAT (with `what`) for a pattern that is none, MN_E_UNSUPPORTED for one that is not read here. */
mn_status regex_open(regex **out, const char *pattern, size_t n, const char *what);
/* Matches exactly `text`. */
mn_status regex_open_literal(regex **out, const char *text, size_t n, const char *what);
void regex_close(regex **pattern);

/* n: bytes of all texts together that will be searched with it, by which the work is limited. */
mn_status regex_state_open(regex_state **out, size_t n);
void regex_state_close(regex_state **state);

/* The first match at or after `from` in text[0..n) (valid UTF-8): *found, *start, *end. An empty match counts.
 * MN_E_FORMAT when the work exceeds its limit. */
mn_status regex_find(const regex *pattern, regex_state *state, const char *text, size_t n, size_t from, bool *found,
                     size_t *start, size_t *end);

#endif
