/* The generation configuration of a run: the model's, the file of --generation-config, the options, a batch row's own
 * fields; and the listing of --print-config.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_CONFIG_H
#define MNEME_CLI_CONFIG_H

#include "loaded_model.h"

/* Reads the file of --generation-config; *doc stays NULL without one. MN_E_ARG for one that is no JSON object. */
mn_status generation_file_read(json_doc **doc, const options *o);

/* A configuration with everything applied, the strongest last: the model's own, `file` (may be NULL), the options,
 * `row` (the fields of a batch line, may be NULL). Options of sampling turn it on. */
mn_status generation_build(mn_generation_config **config, const options *o, const mn_model *model, const json_doc *file,
                           const json *row);

/* Sets a field by any name of its flag, from text as the flag takes it: "temp" "0", "n" "20", "stop" "END". An option
 * of sampling turns it on, unless do_sample was set by name (*sampling_is_named, which is kept up to date). */
mn_status generation_set(mn_generation_config *config, const char *name, const char *text, bool *sampling_is_named);

/* A field as a number; `absent` when it is null or unknown. */
int64_t generation_integer(const mn_generation_config *config, const char *name, int64_t absent);

/* The resolved cache options of a configuration, to which the options are applied. Strings belong to the
 * configuration. */
mn_status generation_cache(mn_cache_options *cache, mn_cache_summary *kind, const mn_generation_config *config);

/* The same for a command that takes no generation fields: from the options and the model's own configuration, with
 * warnings. *config owns the strings and is owned by the caller. */
mn_status options_cache(mn_generation_config **config, mn_cache_options *cache, mn_cache_summary *kind,
                        const options *o, const loaded_model *e);

enum { ANSWER_LIMIT = 256 }; /* new tokens of an answer of `mneme run`, where no limit is given */

/* Sets max_new_tokens to `room`, at most to *answer_limit unless that is 0, where neither it nor max_length is set.
 * *answer_limit becomes 0 where it does not limit the text. */
mn_status generation_limit(mn_generation_config *config, const options *o, const json_doc *file, const json *row,
                           int64_t *answer_limit, int64_t room);

/* Tells that a text ended at that limit, when one did. */
bool generation_report_limit(const mn_generation *generation, int64_t answer_limit);

/* Prints every option of the command with its value and origin, and the generation fields where the command takes them.
 * config: NULL without a model. answer_limit: max_new_tokens where no limit is given; 0: as many as the context holds.
 */
void config_print(const options *o, const mn_generation_config *config, const json_doc *file, int64_t answer_limit);

/* The same for a command that takes no generation fields, with the cache that the model's own configuration names. An
 * exit code. */
int options_print_config(const options *o, const loaded_model *e);

/* Warns of settings without effect, except for lines already in `warned`. MN_E_ARG when two contradict each other. how:
 * NULL for the defaults. */
mn_status generation_warn(const mn_generation_config *config, const mn_generate_options *how, bytes *warned);

/* The same for cache options that have no effect on a session of the model. */
mn_status cache_warn(const mn_model *model, const mn_cache_options *cache, bytes *warned);

#endif
