/* Subcommands of `mneme cache` that open a model.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_CACHE_MODEL_H
#define MNEME_CLI_CACHE_MODEL_H

#include "options.h"

/* A saved cache or a legacy form from one file to another, in another strategy or as the legacy form. */
int cache_convert(const options *o, const char *const *files, int n);
int cache_calibrate(const options *o, const char *const *files, int n);

#endif
