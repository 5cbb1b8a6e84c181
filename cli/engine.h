/* Opening what the options name: model and cache.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_ENGINE_H
#define MNEME_CLI_ENGINE_H

#include "options.h"

typedef struct engine {
    char *path; /* owned; what mn_model_find found */
    mn_model *model;
    mn_model_info info;
    double load_ms;
} engine;

/* The model's path, owned by the caller, for the name that --model, a positional argument or nothing gives.
 */
mn_status model_path(char **path, const options *o, const char *name);

/* An exit code; a failure has been reported. threads: 0 takes --threads. `name` as for model_path. */
int engine_open(engine *e, const options *o, const char *name, int threads);
void engine_close(engine *e);

/* The cache options that are said. MN_E_ARG for what is not there, or not yet. Texts point into `o`. */
mn_status cache_options_read(const options *o, mn_cache_options *cache);

/* A name and a key=value list (or JSON object) from elsewhere, as --cache and --cache-config. */
mn_status cache_name_apply(mn_cache_options *cache, const char *name);
mn_status cache_config_apply(mn_cache_options *cache, const char *text);

#endif
