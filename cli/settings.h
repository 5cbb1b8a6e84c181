/* What a run works with, whether it has one prompt or a batch of them, and what it settles for each prompt.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_SETTINGS_H
#define MNEME_CLI_SETTINGS_H

#include "engine.h"
#include "input.h"

typedef struct run_settings {
    const options *o;
    json_doc *file; /* --generation-config, or NULL */
    mn_cache_options cache; /* as the options say */
    engine e, draft;        /* the latter: of --assistant-model */
    prompt negative;        /* --negative-prompt */
    bytes prefix;           /* --prefix-file */
} run_settings;

/* What the library is told besides the configuration; its callbacks are the caller's to set. */
mn_generate_options settings_options(const run_settings *s);

/* Says which settings have no effect (*said as for generation_warn), then settles the cache, whose texts are the configuration's, how much is
 * generated, and whether it fits; a cache that is allocated at once gets room for it. row: the line of a batch, or NULL. */
mn_status settings_settle(const run_settings *s, mn_generation_config *config, const prompt *p,
                          const json *row, bytes *said, mn_cache_options *cache, mn_cache_summary *kind);

void settings_clear(run_settings *s);

#endif
