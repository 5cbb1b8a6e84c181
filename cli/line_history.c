/* SPDX-License-Identifier: Apache-2.0 */
#include "line_history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* The folders above `path`, which may be there already. */
static void make_folders(char *path) {
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
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

/* The old file or the new one, whoever else appends meanwhile. */
static void cut_file(const char *path, const char *data, size_t n) {
    bytes part = {0};
    bytes_printf(&part, "%s.%ld", path, (long)getpid());
    int fd = part.failed ? -1 : open(bytes_text(&part), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool written = fd >= 0 && write(fd, data, n) == (ssize_t)n;
    if (fd >= 0) close(fd);
    if (fd >= 0 && (!written || rename(bytes_text(&part), path) != 0)) unlink(bytes_text(&part));
    bytes_clear(&part);
}

mn_status history_load(const char *path, void (*each)(void *user, const char *text), void *user) {
    bytes file = {0}, text = {0};
    if (!file_exists(path)) return MN_OK;
    mn_status status = file_read(&file, path, FILE_LIMIT);
    size_t at = status == MN_OK ? find_begin(&file) : 0;
    if (status == MN_OK && file.n > FILE_LONG && at > 0) cut_file(path, file.data + at, file.n - at);
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
    bytes line = {0}, folders = {0};
    put_escaped(&line, text, n);
    bytes_append_text(&folders, path);
    bytes_text(&folders);
    mn_status status = bytes_status(&line);
    if (status == MN_OK) status = bytes_status(&folders);
    if (status == MN_OK) {
        make_folders(folders.data);
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600);
        /* One write, so that two talks at once do not mix their lines. */
        bool done = fd >= 0 && fchmod(fd, 0600) == 0 && write(fd, line.data, line.n) == (ssize_t)line.n;
        if (!done)
            status =
                status_fail(MN_E_IO, "cannot keep the history of lines in '%s': %s", path, strerror(errno));
        if (fd >= 0) close(fd);
    }
    bytes_clear(&folders);
    bytes_clear(&line);
    return status;
}
