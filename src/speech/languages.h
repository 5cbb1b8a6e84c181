/* Codes and English names of the languages of speech models.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_LANGUAGES_H
#define MN_SPEECH_LANGUAGES_H

#include "speech/tokens.h"

/* The English name of a language's code, "English" of "en"; NULL for a code without one. */
const char *speech_language_name(const char *code);

/* The model's code of the language that `text` names by code or English name, in any case. *language is NULL for
 * English-only models, which accept "en" only. MN_E_ARG for others, with the nearest one and examples. */
mn_status speech_language_read(const speech_language **language, const speech_tokens *tokens, const char *text);

#endif
