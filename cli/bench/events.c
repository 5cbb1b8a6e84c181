/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/events.h"

#include <string.h>

static mn_status end_event(event_reader *r, event_taker take, void *user) {
    const char *data = bytes_text(&r->data);
    mn_status status = bytes_status(&r->data);
    if (status == MN_OK && r->has_data) status = take(user, data, r->data.n);
    r->has_data = false;
    r->data.n = 0;
    return status;
}

static mn_status end_line(event_reader *r, event_taker take, void *user) {
    const char *text = bytes_text(&r->line);
    size_t n = r->line.n;
    MN_TRY(bytes_status(&r->line));
    r->line.n = 0; /* the bytes stay until the next line */
    if (r->n_lines++ == 0 && n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) text += 3, n -= 3;
    if (n == 0) return end_event(r, take, user);
    const char *colon = memchr(text, ':', n);
    size_t name = colon ? (size_t)(colon - text) : n, value = colon ? name + 1 : n;
    if (name != 4 || memcmp(text, "data", 4) != 0) return MN_OK;
    if (value < n && text[value] == ' ') value++;
    if (r->has_data) bytes_append_text(&r->data, "\n");
    bytes_append(&r->data, text + value, n - value);
    r->has_data = true;
    return bytes_status(&r->data);
}

mn_status events_feed(event_reader *r, const char *text, size_t n, event_taker take, void *user) {
    for (size_t at = 0; at < n;) {
        size_t length = 0;
        if (r->after_return && text[at] == '\n') at++; /* the second half of "\r\n" */
        r->after_return = false;
        while (at + length < n && text[at + length] != '\n' && text[at + length] != '\r') length++;
        if (r->line.n + r->data.n + length > EVENTS_MOST_BYTES)
            MN_FAIL(MN_E_FORMAT, "an event of more than %d bytes", (int)EVENTS_MOST_BYTES);
        bytes_append(&r->line, text + at, length);
        MN_TRY(bytes_status(&r->line));
        at += length;
        if (at == n) break;
        r->after_return = text[at++] == '\r';
        MN_TRY(end_line(r, take, user));
    }
    return MN_OK;
}

void events_clear(event_reader *r) {
    bytes_clear(&r->line);
    bytes_clear(&r->data);
    *r = (event_reader){0};
}
