/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/utf8.h"
#include "output.h"
#include "terminal.h"

static struct {
    bool asked, able, coloured;
    double last;
} line;

bool progress_shown(void) {
    if (!line.asked) {
        const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
        line.asked = true;
        line.able = isatty(STDERR_FILENO) && term && *term && strcmp(term, "dumb") != 0;
        line.coloured = !(no_color && *no_color);
    }
    return line.able;
}

static int terminal_width(void) {
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

void progress_line(const char *format, ...) {
    if (!progress_shown() || (has_replaceable() && clock_ms() - line.last < 100)) return;
    char text[512], shown[512];
    size_t used;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    int width = terminal_width() - 1;
    if (n > (int)sizeof text - 1) n = (int)sizeof text - 1;
    /* Cleaned before it is cut: the replacement of a control character is wider. */
    n = (int)terminal_clean(shown, sizeof shown, text, (size_t)(n < 0 ? 0 : n), &used);
    if (n > width) n = width;
    while (n > 0 && utf8_valid_prefix(shown, (size_t)n) < (size_t)n) n--;
    put_control(stderr, line.coloured ? "\r\x1b[2m" : "\r");
    print_error_text("%.*s", n, shown);
    put_control(stderr, line.coloured ? "\x1b[0m\x1b[K" : "\x1b[K");
    make_replaceable();
    line.last = clock_ms();
}

void progress_clear(void) {
    remove_replaceable();
}

void progress_loading(void *user, uint64_t done, uint64_t total) {
    (void)user;
    double mib = 1.0 / (1 << 20);
    progress_line("loading %.0f of %.0f MiB", (double)done * mib, (double)total * mib);
}

void progress_prefill(void *user, size_t done, size_t total) {
    (void)user;
    progress_line("prompt %zu of %zu tokens", done, total);
}
