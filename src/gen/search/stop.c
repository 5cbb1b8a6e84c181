/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/stop.h"

#include <string.h>

/* First offset of `stop` in text at or after `from`, or n. */
static size_t find_text(const bytes *text, size_t from, const char *stop) {
    size_t n = strlen(stop);
    if (text->n <= from || text->n - from < n) return text->n;
    const char *found = memmem(text->data + from, text->n - from, stop, n);
    return found ? (size_t)(found - text->data) : text->n;
}

/* Bytes at the end of the text that begin the stop string. */
static size_t tail_match(const bytes *text, size_t from, const char *stop) {
    size_t longest = strlen(stop) - 1;
    if (longest > text->n - from) longest = text->n - from;
    for (size_t n = longest; n > 0; n--) {
        if (memcmp(text->data + text->n - n, stop, n) == 0) return n;
    }
    return 0;
}

size_t stop_text_push(stop_text *s, const char *text, size_t n) {
    if (s->stopped) return s->text.n;
    bytes_append(&s->text, text, n);
    /* Nothing before `shown` can begin a stop string: it would have been held back. */
    size_t first = s->text.n, first_end = SIZE_MAX, held = 0;
    for (size_t i = 0; i < s->stops->n; i++) {
        size_t at = find_text(&s->text, s->shown, s->stops->texts[i]), end = at + strlen(s->stops->texts[i]);
        if (at == s->text.n || end > first_end || (end == first_end && at >= first)) continue;
        first = at;
        first_end = end;
        s->found = i;
    }
    if (first < s->text.n) {
        s->text.n = first;
        s->stopped = true;
        return first;
    }
    for (size_t i = 0; i < s->stops->n; i++) {
        size_t tail = tail_match(&s->text, s->shown, s->stops->texts[i]);
        if (tail > held) held = tail;
    }
    return s->text.n - held;
}
