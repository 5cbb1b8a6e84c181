/* Regular expressions as Oniguruma reads them (Ruby's syntax, which tokenizer.json has), written for PCRE2.
 *
 * What differs: \w and \b have the Unicode standard's word characters (UTS 18), with marks; \s and \S the property
 * White_Space; \h is a hexadecimal digit; \uHHHH a character; ^ and $ match at every line; (?m) lets . match an end of
 * line; {,n} begins at 0; sets may stand inside sets.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_TEXT_TOKENIZER_REGEX_DIALECT_H
#define MN_TEXT_TOKENIZER_REGEX_DIALECT_H

#include "base/mem.h"

/* Appends the pattern for PCRE2 with the options UTF, UCP and MULTILINE. MN_E_UNSUPPORTED, with `what`, for sets that
 * are intersected (&&) and for negated sets inside others. */
mn_status regex_translate(bytes *out, const char *pattern, size_t n, const char *what);

#endif
