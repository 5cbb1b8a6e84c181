/* Tokens that end an answer beside those of the model, by name or id: --stop-token.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_STOP_TOKENS_H
#define MNEME_CLI_STOP_TOKENS_H

#include "options.h"

/* Adds the tokens of the options to eos_token_id. With ignore_eos they take the place of the model's own, which then go
 * unnoticed as before. MN_E_ARG names what is no token. */
mn_status stop_tokens_apply(mn_generation_config *config, const options *o, const mn_model *model);

#endif
