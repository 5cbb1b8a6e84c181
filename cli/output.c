/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "terminal.h"

static int write_error; /* errno of the first failed write to stdout */
static bool is_replaceable;

/* A character of which the rest has not come yet, on its way to a terminal at the standard output. */
static struct {
    char text[4];
    size_t n;
} held;

int exit_of(mn_status status) {
    switch (status) {
    case MN_OK: return EXIT_DONE;
    case MN_E_ARG:
    case MN_E_FORMAT:
    case MN_E_UNSUPPORTED: return EXIT_USAGE;
    case MN_E_NOMEM:
    case MN_E_FULL: return EXIT_MEMORY;
    case MN_E_NOT_FOUND:
    case MN_E_IO: return EXIT_FAILED;
    case MN_E_CANCELLED: return EXIT_CANCELLED;
    case MN_E_REFUSED: return EXIT_CACHE;
    }
    return EXIT_FAILED;
}

int exit_of_model(mn_status status) {
    bool about_model =
        status == MN_E_FORMAT || status == MN_E_UNSUPPORTED || status == MN_E_NOT_FOUND || status == MN_E_IO;
    return about_model ? EXIT_MODEL : exit_of(status);
}

/* ---- leaving ---- */

static bool is_terminal(FILE *stream) {
    return isatty(fileno(stream));
}

/* Returns how many bytes were taken: all but those of an unfinished character at the end. */
static size_t show(FILE *stream, const char *text, size_t n) {
    char block[1024];
    size_t at = 0, used = 1;
    while (at < n && used) {
        size_t made = terminal_clean(block, sizeof block, text + at, n - at, &used);
        fwrite(block, 1, made, stream);
        at += used;
    }
    return at;
}

/* A piece of a text that may go on. */
static void show_piece(const char *text, size_t n) {
    while (held.n && n) {
        held.text[held.n++] = *text++;
        n--;
        size_t used = show(stdout, held.text, held.n);
        held.n -= used;
        memmove(held.text, held.text + used, held.n);
    }
    if (n == 0) return;
    size_t used = show(stdout, text, n);
    held.n = n - used;
    memcpy(held.text, text + used, held.n);
}

/* A text that ends here, to the standard error. */
static void show_whole(const char *text, size_t n) {
    if (!is_terminal(stderr)) {
        fwrite(text, 1, n, stderr);
    } else if (show(stderr, text, n) < n) {
        fputs("\xEF\xBF\xBD", stderr);
    }
}

static void show_list(const char *format, va_list args) {
    char text[2048];
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(text, sizeof text, format, args);
    size_t need = n > 0 ? (size_t)n : 0, most = sizeof text - 1;
    char *all = need > most ? mem_alloc_raw(need + 1, 1) : NULL;
    if (all) vsnprintf(all, need + 1, format, again);
    show_whole(all ? all : text, all || need < most ? need : most); /* without memory the beginning must do */
    mem_free(all);
    va_end(again);
}

void print_error_text(const char *format, ...) {
    va_list args;
    va_start(args, format);
    show_list(format, args);
    va_end(args);
}

void put_control(FILE *screen, const char *sequence) {
    fputs(sequence, screen);
    fflush(screen);
}

FILE *terminal_stream(void) {
    return is_terminal(stderr) ? stderr : is_terminal(stdout) ? stdout : NULL;
}

int report_json(bool json_wanted, int code, const char *param) {
    static const struct {
        const char *type, *code;
    } kinds[] = {
        [EXIT_FAILED] = {"server_error", "failed"},
        [EXIT_USAGE] = {"invalid_request_error", "invalid_value"},
        [EXIT_MODEL] = {"not_found_error", "model_not_found"},
        [EXIT_MEMORY] = {"server_error", "out_of_memory"},
        [EXIT_CANCELLED] = {"cancelled_error", "cancelled"},
        [EXIT_CACHE] = {"invalid_request_error", "cache_refused"},
    };
    print_message("%s", mn_last_error());
    if (json_wanted) {
        bytes b = {0};
        bytes_append_text(&b, "{\"error\":{\"message\":");
        json_put_string(&b, mn_last_error(), strlen(mn_last_error()));
        bytes_printf(&b, ",\"type\":\"%s\",\"param\":", kinds[code].type);
        if (param) {
            param += strspn(param, "-");
            json_put_string(&b, param, strcspn(param, "="));
        } else {
            bytes_append_text(&b, "null");
        }
        bytes_printf(&b, ",\"code\":\"%s\"}}\n", kinds[code].code);
        put_bytes(&b);
    }
    return code;
}

int report(const options *o, int code, const char *param) {
    return report_json(option_on(o, OPT_JSON), code, param);
}

void make_replaceable(void) {
    is_replaceable = true;
}

bool has_replaceable(void) {
    return is_replaceable;
}

void remove_replaceable(void) {
    if (is_replaceable) put_control(stderr, "\r\x1b[K");
    is_replaceable = false;
}

void print_message(const char *format, ...) {
    remove_replaceable();
    va_list args;
    va_start(args, format);
    print_error_text("mneme: ");
    show_list(format, args);
    print_error_text("\n");
    va_end(args);
}

bool put(const char *text, size_t n) {
    if (write_error || n == 0) return !write_error;
    errno = 0;
    if (stdout_is_terminal()) {
        show_piece(text, n);
    } else {
        fwrite(text, 1, n, stdout);
    }
    if (ferror(stdout) || fflush(stdout) != 0) write_error = errno ? errno : EIO;
    return !write_error;
}

static bool has_colours(void) {
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    return term && *term && strcmp(term, "dumb") != 0 && !(no_color && *no_color);
}

bool put_faint(const char *text, size_t n) {
    bool is_faint = n && !write_error && stdout_is_terminal() && has_colours();
    if (is_faint) put_control(stdout, "\x1b[2m");
    bool done = put(text, n);
    if (is_faint) put_control(stdout, "\x1b[0m");
    return done;
}

bool put_bytes(bytes *b) {
    bool done = !b->failed && put(b->data, b->n);
    if (b->failed && !write_error) write_error = ENOMEM;
    bytes_clear(b);
    return done;
}

int finish(int code) {
    errno = 0;
    if (held.n) fputs("\xEF\xBF\xBD", stdout); /* the text broke off inside a character */
    held.n = 0;
    if (!write_error && (fflush(stdout) != 0 || ferror(stdout))) write_error = errno ? errno : EIO;
    bool is_gone = code == EXIT_CANCELLED && write_error == EIO; /* the terminal, and with it what was to be shown */
    if (!write_error || is_gone) return code;
    if (write_error != EPIPE) print_message("cannot write to the standard output: %s", strerror(write_error));
    return EXIT_FAILED;
}

bool stdout_is_terminal(void) {
    return is_terminal(stdout);
}
