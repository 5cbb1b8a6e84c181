/* English names of the languages that speech models know, beside their codes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_LANGUAGES_H
#define MN_SPEECH_LANGUAGES_H

#include "speech/tokens.h"

/* The English name of a language's code, "English" of "en"; NULL for a code without one. */
const char *speech_language_name(const char *code);

/* What the model calls the language that `text` names by code or English name, in any case. *language is NULL for models of English
 * alone, which take "en" only. MN_E_ARG for others, with the nearest one and examples. */
mn_status speech_language_read(const speech_language **language, const speech_tokens *tokens, const char *text);

#endif
