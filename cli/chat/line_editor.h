/* The editor behind line.h: libedit, or nothing where the program was built without it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_LINE_EDITOR_H
#define MNEME_CLI_LINE_EDITOR_H

#include <stdio.h>

#include "base/mem.h"
#include "chat/line_end.h"

typedef struct line_editor line_editor;

/* *editor is NULL, with MN_OK, where there is none: not built in, or a terminal that cannot do it. Draws on
 * `screen`. */
mn_status line_editor_open(line_editor **editor, FILE *screen);
void line_editor_close(line_editor **editor);

line_end line_editor_read(line_editor *editor, const char *prompt, const char *initial, bytes *line);
void line_editor_remember(line_editor *editor, const char *text);

#endif
