/* Lines that a person types or a pipe brings. On a terminal, and where libedit was there at build time, with editing, a
 * history of lines, and pasted blocks taken whole; otherwise line by line as the terminal or the pipe gives them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_LINE_H
#define MNEME_CLI_LINE_H

#include "base/mem.h"
#include "chat/line_end.h"

typedef struct line_reader line_reader;

/* Reads the standard input. keeps_history: lines of former conversations can be called back, and those of this one are
 * kept: in $XDG_STATE_HOME/mneme/history, else ~/.local/state/mneme/history, readable for their owner only. */
mn_status line_reader_open(line_reader **reader, bool keeps_history);
void line_reader_close(line_reader **reader);

bool line_is_terminal(const line_reader *reader);

/* One line without its newline into *line (cleared first); a pasted block may hold newlines. The prompt is shown on
 * terminals only. initial: text to begin editing with, or NULL; without an editor it is not used. */
line_end line_read(line_reader *reader, const char *prompt, const char *initial, bytes *line);

/* Whether `initial` above is used. */
bool line_can_edit(const line_reader *reader);

/* Puts a message (one or several lines) into the history. */
void line_remember(line_reader *reader, const char *text, size_t n);

#endif
