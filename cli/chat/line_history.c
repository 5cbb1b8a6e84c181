/* SPDX-License-Identifier: Apache-2.0 */
#include "chat/line_history.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

enum { FILE_LIMIT = 1 << 24, FILE_LONG = 1 << 20 };

mn_status history_path(bytes *path) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    path->n = 0;
    if (state && *state == '/') {
        bytes_printf(path, "%s/mneme/history", state);
    } else if (home && *home == '/') {
        bytes_printf(path, "%s/.local/state/mneme/history", home);
    }
    return bytes_status(path);
}

static void put_escaped(bytes *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\n') {
            bytes_append_text(out, "\\n");
        } else if (text[i] == '\\') {
            bytes_append_text(out, "\\\\");
        } else if (text[i]) {
            bytes_append(out, &text[i], 1);
        }
    }
    bytes_append_text(out, "\n");
}

static void put_plain(bytes *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool escaped = text[i] == '\\' && i + 1 < n && (text[i + 1] == 'n' || text[i + 1] == '\\');
        char c = escaped ? (text[++i] == 'n' ? '\n' : '\\') : text[i];
        bytes_append(out, &c, 1);
    }
}

/* Where the last HISTORY_LINES lines begin. */
static size_t find_begin(const bytes *file) {
    size_t lines = 0;
    for (size_t i = file->n; i > 0; i--) {
        if (file->data[i - 1] == '\n' && i < file->n && ++lines == HISTORY_LINES) return i;
    }
    return 0;
}

mn_status history_load(const char *path, void (*each)(void *user, const char *text), void *user) {
    bytes file = {0}, text = {0};
    if (!file_exists(path)) return MN_OK;
    mn_status status = file_read(&file, path, FILE_LIMIT);
    size_t at = status == MN_OK ? find_begin(&file) : 0;
    if (status == MN_OK && file.n > FILE_LONG && at > 0) file_write_atomic(path, file.data + at, file.n - at);
    while (status == MN_OK && at < file.n) {
        const char *line = file.data + at, *newline = memchr(line, '\n', file.n - at);
        size_t n = newline ? (size_t)(newline - line) : file.n - at;
        text.n = 0;
        put_plain(&text, line, n);
        if (n) each(user, bytes_text(&text));
        status = bytes_status(&text);
        at += n + 1;
    }
    bytes_clear(&text);
    bytes_clear(&file);
    return status;
}

mn_status history_append(const char *path, const char *text, size_t n) {
    bytes line = {0}, folder = {0};
    const char *slash = strrchr(path, '/');
    put_escaped(&line, text, n);
    if (slash) bytes_append(&folder, path, (size_t)(slash - path));
    bytes_text(&folder);
    mn_status status = bytes_status(&line);
    if (status == MN_OK) status = bytes_status(&folder);
    if (status == MN_OK && folder.n > 0) status = file_make_folders(folder.data, FILE_PRIVATE);
    if (status == MN_OK) status = file_append(path, line.data, line.n); /* two conversations at once do not mix lines */
    bytes_clear(&folder);
    bytes_clear(&line);
    return status_context(status, "the history of lines is not kept");
}
