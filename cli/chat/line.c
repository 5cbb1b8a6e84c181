/* SPDX-License-Identifier: Apache-2.0 */
#include "chat/line.h"

#include <errno.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "interrupt.h"
#include "chat/line_editor.h"
#include "chat/line_history.h"
#include "output.h"

enum { LINE_LIMIT = 1 << 26 };

struct line_reader {
    bool is_terminal, has_ended;
    FILE *screen; /* where prompts go; NULL: nowhere */
    line_editor *editor;
    bytes history; /* path of the file; empty: none is kept */
    bytes input;   /* read and not given out yet */
};

static void call_back(void *user, const char *text) {
    line_editor_remember(user, text);
}

static mn_status open_history(line_reader *r) {
    MN_TRY(history_path(&r->history));
    if (!r->history.n) return MN_OK;
    mn_status status = history_load(bytes_text(&r->history), call_back, r->editor);
    if (status != MN_OK) print_message("warning: there is no history of lines: %s", mn_last_error());
    return MN_OK;
}

mn_status line_reader_open(line_reader **reader, bool keeps_history) {
    line_reader *r = *reader = mem_alloc(1, sizeof *r);
    if (!r) return mem_no_memory();
    r->is_terminal = isatty(STDIN_FILENO);
    if (r->is_terminal) r->screen = terminal_stream();
    mn_status status = r->screen ? line_editor_open(&r->editor, r->screen) : MN_OK;
    if (status == MN_OK && r->editor && keeps_history) status = open_history(r);
    if (status != MN_OK) line_reader_close(reader);
    return status;
}

void line_reader_close(line_reader **reader) {
    line_reader *r = *reader;
    if (!r) return;
    line_editor_close(&r->editor);
    bytes_clear(&r->history);
    bytes_clear(&r->input);
    mem_free(r);
    *reader = NULL;
}

bool line_is_terminal(const line_reader *r) {
    return r->is_terminal;
}

bool line_can_edit(const line_reader *r) {
    return r->editor != NULL;
}

void line_remember(line_reader *r, const char *text, size_t n) {
    bytes copy = {0};
    if (!r->editor || n == 0) return;
    bytes_append(&copy, text, n);
    line_editor_remember(r->editor, bytes_text(&copy));
    bytes_clear(&copy);
    if (!r->history.n || history_append(bytes_text(&r->history), text, n) == MN_OK) return;
    print_message("warning: %s", mn_last_error());
    r->history.n = 0;
}

/* ---- without an editor ---- */

/* Takes the first line of what was read; at the end of the input also one without a newline. */
static bool take_line(line_reader *r, bytes *line) {
    const char *data = r->input.data, *newline = r->input.n ? memchr(data, '\n', r->input.n) : NULL;
    if (!newline && !(r->has_ended && r->input.n)) return false;
    size_t n = newline ? (size_t)(newline - data) : r->input.n, used = n + (newline != NULL);
    bytes_append(line, data, n);
    if (line->n && line->data[line->n - 1] == '\r') line->n--;
    memmove(r->input.data, data + used, r->input.n - used);
    r->input.n -= used;
    return true;
}

/* One read of the descriptor. A line without end is dropped as it comes, so that it cannot take all memory. */
static line_end read_more(line_reader *r, bool *is_dropped) {
    char block[65536];
    if (!interrupt_wait(STDIN_FILENO)) {
        interrupt_events events = interrupt_take();
        return events.leave ? LINE_LEAVE : events.stop ? LINE_STOPPED : LINE_READ;
    }
    ssize_t n = read(STDIN_FILENO, block, sizeof block);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return LINE_READ;
    if (n <= 0) {
        struct termios settings;
        r->has_ended = true;
        bool is_gone = r->is_terminal && tcgetattr(STDIN_FILENO, &settings) != 0; /* otherwise it was Ctrl-D */
        return is_gone ? LINE_LEAVE : LINE_READ;
    }
    if (r->input.n + (size_t)n > LINE_LIMIT) {
        *is_dropped = true;
        r->input.n = 0;
    }
    const char *newline = *is_dropped ? memchr(block, '\n', (size_t)n) : NULL;
    size_t from = !*is_dropped ? 0 : newline ? (size_t)(newline - block) : (size_t)n;
    bytes_append(&r->input, block + from, (size_t)n - from);
    return r->input.failed ? LINE_FAILED : LINE_READ;
}

static line_end read_plain(line_reader *r, const char *prompt, bytes *line) {
    bool is_dropped = false;
    if (r->screen) put_control(r->screen, prompt);
    while (!take_line(r, line)) {
        line_end end = r->has_ended ? LINE_CLOSED : read_more(r, &is_dropped);
        if (end == LINE_READ) continue;
        if (end == LINE_FAILED) mem_no_memory();
        if (r->screen) put_control(r->screen, "\n"); /* what comes next is not part of the prompt's line */
        return end;
    }
    if (is_dropped) {
        status_fail(MN_E_ARG, "a line of the input is longer than %d MiB and was left out", LINE_LIMIT >> 20);
        return LINE_FAILED;
    }
    if (line->failed) mem_no_memory();
    return line->failed ? LINE_FAILED : LINE_READ;
}

line_end line_read(line_reader *r, const char *prompt, const char *initial, bytes *line) {
    bytes_clear(line);
    if (r->has_ended && !r->input.n) return LINE_CLOSED;
    return r->editor ? line_editor_read(r->editor, prompt, initial, line) : read_plain(r, prompt, line);
}
