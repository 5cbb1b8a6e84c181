/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "progress.h"

static int write_error; /* errno of the first failed write to stdout */

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
    progress_clear();
    fprintf(stderr, "mneme: %s\n", mn_last_error());
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

void say(const char *format, ...) {
    progress_clear();
    va_list args;
    va_start(args, format);
    fputs("mneme: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

bool put(const char *text, size_t n) {
    if (write_error || n == 0) return !write_error;
    errno = 0;
    if (fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0) write_error = errno ? errno : EIO;
    return !write_error;
}

bool put_bytes(bytes *b) {
    bool done = !b->failed && put(b->data, b->n);
    if (b->failed && !write_error) write_error = ENOMEM;
    bytes_clear(b);
    return done;
}

int finish(int code) {
    errno = 0;
    if (!write_error && (fflush(stdout) != 0 || ferror(stdout))) write_error = errno ? errno : EIO;
    bool is_gone = code == EXIT_CANCELLED && write_error == EIO; /* the terminal, and with it what was to be shown */
    if (!write_error || is_gone) return code;
    if (write_error != EPIPE) say("cannot write to the standard output: %s", strerror(write_error));
    return EXIT_FAILED;
}

bool stdout_is_terminal(void) {
    return isatty(STDOUT_FILENO);
}
