/* How the reading of a line ends.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_LINE_END_H
#define MNEME_CLI_LINE_END_H

typedef enum line_end {
    LINE_READ,    /* a line, perhaps an empty one */
    LINE_CLOSED,  /* Ctrl-D, or the input has ended; what stood before the end counts as a line first */
    LINE_STOPPED, /* Ctrl-C; `line` is what had been typed */
    LINE_LEAVE,   /* SIGTERM or SIGHUP came, or the terminal was closed */
    LINE_FAILED,  /* mn_last_error() has the reason; the next line can be read */
} line_end;

#endif
