/* SPDX-License-Identifier: Apache-2.0 */
#include "lines.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum { MOST_BYTES = 1 << 30 /* of a line */, CHUNK = 65536 };

void lines_close(lines *l) {
    if (l->fd > STDERR_FILENO) close(l->fd);
    bytes_clear(&l->data);
    *l = (lines){.fd = -1};
}

/* Drops the lines given out and reads the next chunk; *is_later: there is none yet. */
static mn_status read_more(lines *l, bool *is_later) {
    char chunk[CHUNK];
    ssize_t n;
    if (l->at > 0) {
        memmove(l->data.data, l->data.data + l->at, l->data.n - l->at);
        l->data.n -= l->at;
        l->seen -= l->at;
        l->at = 0;
    }
    do { n = read(l->fd, chunk, sizeof chunk); } while (n < 0 && errno == EINTR);
    *is_later = n < 0 && l->is_pipe && errno == EAGAIN;
    if (*is_later) return MN_OK;
    if (n < 0) MN_FAIL(MN_E_IO, "cannot read '%s': %s", l->what, strerror(errno));
    l->has_ended = n == 0;
    if (l->data.n + (size_t)n > MOST_BYTES)
        MN_FAIL(MN_E_IO, "%.90s line %d is larger than the %d bytes allowed here", l->what, l->number + 1, MOST_BYTES);
    bytes_append(&l->data, chunk, (size_t)n);
    return bytes_status(&l->data);
}

/* A pipe that was opened by its name is read without waiting: poll() does not tell that nobody has written it since it
 * was opened. A read does, and when it has nothing yet there is a writer, whose end poll() notices. */
static mn_status open_pipe(lines *l) {
    bool is_later = false;
    l->is_pipe = true;
    if (fcntl(l->fd, F_SETFL, O_NONBLOCK) != 0) MN_FAIL(MN_E_IO, "cannot read '%s': %s", l->what, strerror(errno));
    MN_TRY(read_more(l, &is_later));
    if (l->has_ended) MN_FAIL(MN_E_ARG, "'%s' is a pipe that is empty and that no program writes to", l->what);
    return MN_OK;
}

mn_status lines_open(lines *l, const char *path) {
    struct stat info;
    *l = (lines){.fd = STDIN_FILENO, .what = path};
    if (strcmp(path, "-") == 0) return MN_OK;
    l->fd = -1;
    MN_TRY(file_open_input(&l->fd, path));
    return fstat(l->fd, &info) == 0 && S_ISFIFO(info.st_mode) ? open_pipe(l) : MN_OK;
}

/* The next line, blank or not; false when it is not complete yet. */
static bool take_line(lines *l, const char **text, size_t *n) {
    size_t left = l->data.n - l->at;
    if (left == 0) return false;
    const char *begin = l->data.data + l->at, *newline = NULL;
    if (l->data.n > l->seen) newline = memchr(l->data.data + l->seen, '\n', l->data.n - l->seen);
    l->seen = l->data.n;
    if (!newline && !l->has_ended) return false;
    *text = begin;
    *n = newline ? (size_t)(newline - begin) : left;
    l->at += *n + (newline != NULL);
    l->seen = l->at;
    l->number++;
    return true;
}

static bool is_blank(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') return false;
    }
    return true;
}

static bool can_read(const lines *l, int timeout_ms) {
    struct pollfd one = {.fd = l->fd, .events = POLLIN};
    return poll(&one, 1, timeout_ms) != 0; /* the next read reports a failure */
}

mn_status lines_next(lines *l, lines_state *state, const char **text, size_t *n) {
    for (;;) {
        while (take_line(l, text, n)) {
            *state = LINES_ONE;
            if (!is_blank(*text, *n)) return MN_OK;
        }
        *state = l->has_ended ? LINES_END : LINES_LATER;
        bool is_later = !l->has_ended && !l->is_pipe && !can_read(l, 0);
        if (!l->has_ended && !is_later) MN_TRY(read_more(l, &is_later));
        if (*state == LINES_END || is_later) return MN_OK;
    }
}

void lines_wait(const lines *l) {
    can_read(l, -1);
}
