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

/* Two positional arguments are MODEL and TEXT; of fewer, both are NULL. MN_E_ARG when --model says a model too. */
mn_status positional_pair(const char **model, const char **text, const options *o);

/* An exit code; a failure has been reported. threads: 0 takes --threads. `name` as for model_path. */
int engine_open(engine *e, const options *o, const char *name, int threads);
void engine_close(engine *e);

/* What a text that passes the model's context is told, behind a sentence: nothing where learned positions end there, as no option
 * helps then. */
const char *engine_beyond(const engine *e);
/* The same for what a cache says of itself: no window makes a text endless then. */
void engine_bound(const engine *e, mn_cache_summary *summary);

/* The cache options that are said. Texts point into `o`. */
mn_status cache_options_read(const options *o, mn_cache_options *cache);

/* Verifies the options as far as that goes without a model and sets the numbers that their config text says.
 * summary->reserves: max_cache_len is allocated at once, and the caller gives one where it is 0. */
mn_status cache_settle(mn_cache_options *cache, mn_cache_summary *summary);

/* Verifies the options where a cache is named, as cache_settle; else what else they say waits for the cache that the model's files name. */
mn_status cache_check_named(const mn_cache_options *cache);

/* A session of these options, or the one that --load-cache names; then a strategy that was said must be the file's. */
mn_status session_open(mn_session **session, const options *o, mn_model *model, const mn_cache_options *cache);
/* The folder of --cache-dir; NULL without one, and where others than this user could put files into it. */
const char *cache_folder(const options *o);
/* What --save-cache and --cache-dir ask for, at the end of a run. */
mn_status session_save(const engine *e, const mn_session *session, const options *o);

#endif
