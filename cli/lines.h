/* Lines of a file, a pipe or the standard input, as they arrive, without blocking.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_LINES_H
#define MNEME_CLI_LINES_H

#include "base/mem.h"

typedef struct lines {
    int fd; /* -1: not open */
    const char *what;
    bytes data; /* read, of which lines before `at` were given out, and those before `seen` hold no newline */
    size_t at, seen;
    int number; /* of the last line given out, from 1 */
    bool has_ended;
    bool is_pipe; /* opened by its name, reads do not wait */
} lines;

typedef enum lines_state {
    LINES_ONE,   /* a line */
    LINES_LATER, /* none yet */
    LINES_END,
} lines_state;

/* path: "-" is the standard input; it must stay. MN_E_NOT_FOUND, MN_E_IO, MN_E_ARG for an empty pipe that nobody
 * writes to. */
mn_status lines_open(lines *l, const char *path);
void lines_close(lines *l);

/* The next line that is not blank, without its newline, if it has arrived: *text [n] is valid until the next call.
 * Never waits. MN_E_IO. */
mn_status lines_next(lines *l, lines_state *state, const char **text, size_t *n);

/* Waits until data can be read. */
void lines_wait(const lines *l);

#endif
