/* A progress line on stderr, if that is a terminal.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_PROGRESS_H
#define MNEME_CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True when stderr is a terminal that can rewrite a line. */
bool progress_shown(void);

/* Replaces the line, at most ten times a second; cut to the terminal's width. */
void progress_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Removes the line, so that other text can be printed. */
void progress_clear(void);

/* Callbacks for the library: loading and prefill. */
void progress_loading(void *user, uint64_t done, uint64_t total);
void progress_prefill(void *user, size_t done, size_t total);

#endif
