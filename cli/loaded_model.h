/* Opening what the options name: model and cache.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_LOADED_MODEL_H
#define MNEME_CLI_LOADED_MODEL_H

#include "base/mem.h"
#include "options.h"

typedef struct loaded_model {
    char *path; /* owned; what mn_model_find found */
    mn_model *model;
    mn_model_info info;
    double load_ms;
} loaded_model;

/* The path, owned by the caller, of the model named by --model, a positional argument or the default. */
mn_status model_path(char **path, const options *o, const char *name);

/* Two positional arguments are MODEL and TEXT; with fewer, both are NULL. MN_E_ARG when --model is given too. */
mn_status positional_pair(const char **model, const char **text, const options *o);

/* An exit code; a failure has been reported. threads: 0 takes --threads. `name` as for model_path. */
int loaded_model_open(loaded_model *e, const options *o, const char *name, int threads);
/* The same for the model that the option names, beside another one: --memory-limit and --calibration are the other's.
 */
int loaded_model_open_beside(loaded_model *e, const options *o, option_id named);
void loaded_model_close(loaded_model *e);

/* The advice after an error about a text longer than the model's context; empty for learned positions, where no option
 * helps. */
const char *loaded_model_beyond(const loaded_model *e);
/* The same for a cache's summary: with learned positions no window gives an unbounded context. */
void loaded_model_bound(const loaded_model *e, mn_cache_summary *summary);

/* A folder of the user's data: $VARIABLE, else $XDG_DATA_HOME/mneme/NAME, else ~/.local/share/mneme/NAME. */
mn_status data_folder(bytes *path, const char *variable, const char *name);
/* The folder of packed weights: --packed-dir, else $MNEME_PACKED, else $XDG_CACHE_HOME/mneme/packed, else
 * ~/.cache/mneme/packed. Empty: --packed-dir none. */
mn_status packed_folder(bytes *path, const options *o);
/* The folder of calibrations: $MNEME_CALIBRATIONS, else $XDG_DATA_HOME/mneme/calibrations, else
 * ~/.local/share/mneme/calibrations. */
mn_status calibration_folder(bytes *path);
/* The calibration file of this model in it. */
mn_status calibration_path(bytes *path, const mn_model *model);

/* The cache options that are set. Strings point into `o`. */
mn_status cache_options_read(const options *o, mn_cache_options *cache);

/* Verifies the options as far as that is possible without a model and sets the numbers of their config text.
 * summary->preallocates: max_cache_len is allocated at once, and the caller sets it where it is 0. */
mn_status cache_resolve(mn_cache_options *cache, mn_cache_summary *summary);

/* Verifies the options as cache_resolve does, if they name a cache; if not, they are verified with the cache that the
 * model's files name. */
mn_status cache_check_named(const mn_cache_options *cache);

/* A session of these options, or the one that --load-cache names; then a strategy that is set must be the file's. */
mn_status session_open(mn_session **session, const options *o, mn_model *model, const mn_cache_options *cache);
/* The folder of --cache-dir; NULL without one, and where others than this user could put files into it. */
const char *cache_folder(const options *o);
/* Saves for --save-cache and --cache-dir at the end of a run. */
mn_status session_save(const loaded_model *e, const mn_session *session, const options *o);

#endif
