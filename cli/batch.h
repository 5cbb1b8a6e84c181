/* The lines of --batch, each a prompt with its own settings: they are read as rows get free, computed side by side, and answered as
 * they end. SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_BATCH_H
#define MNEME_CLI_BATCH_H

#include "lines.h"
#include "settings.h"

/* Reads lines to their end and prints an answer a line, in the order of the lines unless --unordered; an exit code, everything has been
 * reported. A line that is no prompt, or that fails, ends the reading: those in work are finished and printed, then the failure is
 * told. When it is among the first, before anything was computed, nothing is. */
int batch_run(const run_settings *settings, lines *in);

#endif
