/* Lines that a person types or a pipe brings. On a terminal, and where libedit was there at build time, with editing, a history
 * of lines, and pasted blocks taken whole; otherwise line by line as the terminal or the pipe gives them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_LINE_H
#define MNEME_CLI_LINE_H

#include "base/mem.h"

typedef enum line_end {
    LINE_READ,    /* a line, perhaps an empty one */
    LINE_CLOSED,  /* Ctrl-D, or the input has ended; what stood before the end counts as a line first */
    LINE_STOPPED, /* Ctrl-C; `line` is what had been typed */
    LINE_LEAVE,   /* SIGTERM or SIGHUP came, or the terminal is gone */
    LINE_FAILED,  /* mn_last_error() says why; the next line can be read */
} line_end;

typedef struct line_reader line_reader;

/* Reads the standard input. keeps_history: lines of former talks can be called back, and those of this one are kept: in
 * $XDG_STATE_HOME/mneme/history, else ~/.local/state/mneme/history, for nobody else to read. */
mn_status line_reader_open(line_reader **reader, bool keeps_history);
void line_reader_close(line_reader **reader);

bool line_is_terminal(const line_reader *reader);

/* One line without its newline into *line (cleared first); a pasted block may hold newlines. The prompt is shown on terminals only.
 * initial: text to begin editing with, or NULL; without an editor it is not used. */
line_end line_read(line_reader *reader, const char *prompt, const char *initial, bytes *line);

/* Whether `initial` above is used. */
bool line_can_edit(const line_reader *reader);

/* Puts a message (one or several lines) into the history. */
void line_remember(line_reader *reader, const char *text, size_t n);

#endif
