/* Whether text is sampled: what do_sample says, else whether the user gave an option that only sampling uses. What a
 * checkpoint's own file has turns nothing on. A temperature of 0 is greedy search.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_SAMPLING_H
#define MNEME_CLI_SAMPLING_H

#include "options.h"

/* What the user gave, the strongest first; each may be NULL. */
typedef struct given_settings {
    const json *row; /* a line of a batch */
    const options *o;
    const json *file; /* of --generation-config */
} given_settings;

/* The value of a field for the configuration, which has no temperature of 0. */
const char *sampling_value(const char *name, const char *value);

/* Whether do_sample was given by name. */
bool sampling_is_named(const given_settings *given);

/* Sets do_sample of a configuration to which these settings are applied. */
mn_status sampling_choose(mn_generation_config *config, const given_settings *given);

/* Where the option comes from that decides do_sample in its place; ORIGIN_DEFAULT: there is none. */
option_origin sampling_origin(const mn_generation_config *config, const given_settings *given);

/* Sets a field of a conversation. *is_named: do_sample was set by name. */
mn_status sampling_set(mn_generation_config *config, const char *name, const char *value, bool *is_named);

#endif
