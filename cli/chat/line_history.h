/* The file that keeps what was typed: one message a line, with \n and \\ for newline and backslash, mode 0600.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_LINE_HISTORY_H
#define MNEME_CLI_LINE_HISTORY_H

#include "base/mem.h"

enum { HISTORY_LINES = 1000 }; /* that are kept and called back */

/* Its path; empty when neither $XDG_STATE_HOME nor $HOME is set. */
mn_status history_path(bytes *path);

/* Calls `each` for the last HISTORY_LINES messages, oldest first; no file: none. A file that has grown long is cut to
 * those. */
mn_status history_load(const char *path, void (*each)(void *user, const char *text), void *user);

/* Appends one; makes the file and its folders when they are missing. MN_E_IO. */
mn_status history_append(const char *path, const char *text, size_t n);

#endif
