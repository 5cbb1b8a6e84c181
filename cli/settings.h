/* The settings of a run with one prompt or a batch, and those resolved for each prompt.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_SETTINGS_H
#define MNEME_CLI_SETTINGS_H

#include "loaded_model.h"
#include "input.h"

typedef struct run_settings {
    const options *o;
    json_doc *file;         /* --generation-config, or NULL */
    mn_cache_options cache; /* from the options */
    loaded_model e, draft;  /* the latter: of --assistant-model */
    prompt negative;        /* --negative-prompt */
    bytes prefix;           /* --prefix-file */
    template_input template;
} run_settings;

/* Parameters of a generation besides the configuration; the caller sets the callbacks. */
mn_generate_options settings_options(const run_settings *s);

/* Warns of settings without effect (*warned as for generation_warn), then resolves the cache, whose strings belong to
 * the configuration, and the number of new tokens, and checks that they fit; a preallocated cache gets the capacity for
 * them. row: the line of a batch, or NULL. *answer_limit: as generation_limit leaves it. */
mn_status settings_resolve(const run_settings *s, mn_generation_config *config, const prompt *p, const json *row,
                           bytes *warned, mn_cache_options *cache, mn_cache_summary *kind, int64_t *answer_limit);

void settings_clear(run_settings *s);

#endif
