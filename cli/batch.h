/* The lines of --batch, each a prompt with its own settings: they are read as rows get free, computed together, and
 * answered as they end.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_BATCH_H
#define MNEME_CLI_BATCH_H

#include "lines.h"
#include "settings.h"

/* Reads all lines and prints one answer for each, in their order unless --unordered. Returns an exit code; everything
 * has been reported. An invalid or failing line ends the reading: the running ones are finished and printed, then the
 * failure is reported. A line that fails before anything was computed leaves nothing printed. */
int batch_run(const run_settings *settings, lines *in);

#endif
