/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char message[MESSAGE_BYTES];

/* Cuts an unfinished UTF-8 sequence off the end of a text that filled its buffer. */
static void trim_utf8(char *text, size_t size) {
    size_t n = strlen(text);
    if (n + 1 < size) return;
    while (n > 0 && ((unsigned char)text[n - 1] & 0xC0) == 0x80) n--;
    if (n > 0 && (unsigned char)text[n - 1] >= 0xC0) n--;
    text[n] = 0;
}

mn_status status_fail(mn_status code, const char *format, ...) {
    char line[MESSAGE_BYTES]; /* the arguments may point into the old message */
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    trim_utf8(line, sizeof line);
    memcpy(message, line, sizeof message);
    return code;
}

mn_status status_context(mn_status code, const char *format, ...) {
    if (code == MN_OK) return code;
    char line[MESSAGE_BYTES], context[MESSAGE_BYTES / 2]; /* paths are long */
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    trim_utf8(context, sizeof context);
    int n = snprintf(line, sizeof line, "%s: ", context);
    snprintf(line + n, sizeof line - (size_t)n, "%.*s", (int)sizeof line - n - 1, message);
    trim_utf8(line, sizeof line);
    memcpy(message, line, sizeof message);
    return code;
}

static bool names_path(const char *text, const char *path) {
    size_t n = strlen(path);
    if (strncmp(text, path, n) == 0 && text[n] == ':') return true;
    for (const char *at = text; (at = strchr(at, '\'')); at++) {
        if (strncmp(at + 1, path, n) == 0 && at[n + 1] == '\'') return true;
    }
    return false;
}

mn_status status_in_file(mn_status code, const char *path) {
    return names_path(message, path) ? code : status_context(code, "%s", path);
}

const char *mn_last_error(void) {
    return message;
}

const char *mn_status_text(mn_status code) {
    switch (code) {
#define MN_STATUS_CASE(name, value, text)                                                                              \
    case MN_##name: return text;
        MN_STATUS_LIST(MN_STATUS_CASE)
#undef MN_STATUS_CASE
    }
    return "unknown status";
}
