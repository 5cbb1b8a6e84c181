/* SPDX-License-Identifier: Apache-2.0 */
#include "terminal.h"

#include <stdbool.h>
#include <stdio.h>

#include "base/utf8.h"

enum { LONGEST = 8 }; /* bytes that one character becomes, with a terminating zero */

static bool is_control(uint32_t code) {
    return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0);
}

size_t terminal_clean(char *out, size_t room, const char *text, size_t n, size_t *used) {
    size_t at = 0, made = 0;
    while (at < n && made + LONGEST <= room) {
        size_t length = utf8_prefix(text + at, n - at), whole = utf8_length((unsigned char)text[at]);
        if (length < whole && length == n - at) break;
        uint32_t code = length && length == whole ? utf8_decode(text + at, length) : 0xFFFD;
        if (is_control(code)) {
            made += (size_t)snprintf(out + made, LONGEST, "\\u%04x", (unsigned)code);
        } else {
            made += utf8_encode(out + made, code);
        }
        at += length ? length : 1;
    }
    *used = at;
    return made;
}
