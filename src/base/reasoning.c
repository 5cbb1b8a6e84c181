/* SPDX-License-Identifier: Apache-2.0 */
#include "base/reasoning.h"

#include <string.h>

/* The first is the one of templates that name none: their models may be trained to write it all the same. */
static const char *const markers[][2] = {
    {"<think>", "</think>"}, {"<thinking>", "</thinking>"}, {"<seed:think>", "</seed:think>"}, {"[THINK]", "[/THINK]"}};

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static size_t blanks_at_begin(const char *text, size_t n) {
    size_t i = 0;
    while (i < n && is_blank(text[i])) i++;
    return i;
}

static size_t without_blanks_at_end(const char *text, size_t n) {
    while (n && is_blank(text[n - 1])) n--;
    return n;
}

static bool begins_with(const char *text, size_t n, const char *begin) {
    return n >= strlen(begin) && memcmp(text, begin, strlen(begin)) == 0;
}

/* Bytes at the end that may be the beginning of the marker. */
static size_t begun_at_end(const char *text, size_t n, const char *marker) {
    size_t most = strlen(marker) - 1 < n ? strlen(marker) - 1 : n;
    while (most > 0 && memcmp(text + n - most, marker, most) != 0) most--;
    return most;
}

reasoning reasoning_of(const char *template, const char *text, size_t n) {
    size_t chosen = 0, count = sizeof markers / sizeof *markers;
    while (chosen < count && !strstr(template, markers[chosen][0]) && !strstr(template, markers[chosen][1])) chosen++;
    reasoning r = {.begin = markers[chosen % count][0], .end = markers[chosen % count][1]};
    size_t length = strlen(r.begin);
    n = without_blanks_at_end(text, n);
    r.is_open = n >= length && memcmp(text + n - length, r.begin, length) == 0;
    return r;
}

/* Of REASONING_INSIDE, as next_part. */
static size_t next_inside(reasoning_state *state, const reasoning *r, const char *text, size_t n, bool is_last,
                          reasoning_part *part) {
    const char *end = memmem(text, n, r->end, strlen(r->end));
    size_t n_known = end ? (size_t)(end - text) : is_last ? n : n - begun_at_end(text, n, r->end);
    size_t n_text = without_blanks_at_end(text, n_known);
    *part = n_text ? REASONING_TEXT : REASONING_MARKER;
    if (n_text) return n_text;
    if (!end) return is_last ? n : 0;
    *state = REASONING_TRAILING;
    return n_known + strlen(r->end);
}

/* The first part of a text, n > 0: its bytes; 0: they depend on what comes behind it. *state becomes that of the rest.
 */
static size_t next_part(reasoning_state *state, const reasoning *r, const char *text, size_t n, bool is_last,
                        reasoning_part *part) {
    size_t n_blanks = blanks_at_begin(text, n);
    const char *behind = text + n_blanks;
    *part = REASONING_MARKER;
    if (*state == REASONING_BEFORE) {
        bool is_marked = begins_with(behind, n - n_blanks, r->begin);
        if (!is_marked && !is_last && begun_at_end(behind, n - n_blanks, r->begin) == n - n_blanks) return 0;
        *state = is_marked || r->is_open ? REASONING_LEADING : REASONING_OVER;
        if (is_marked) return n_blanks + strlen(r->begin);
    }
    if (*state == REASONING_LEADING || *state == REASONING_TRAILING) {
        if (n_blanks < n) *state = *state == REASONING_LEADING ? REASONING_INSIDE : REASONING_OVER;
        if (n_blanks) return n_blanks;
    }
    if (*state == REASONING_INSIDE) return next_inside(state, r, text, n, is_last, part);
    *part = REASONING_ANSWER;
    return n;
}

reasoning_place reasoning_find(const reasoning *r, const char *text, size_t n) {
    reasoning_place place = {0};
    reasoning_state state = r->begin ? REASONING_BEFORE : REASONING_OVER;
    while (place.answer < n) {
        reasoning_part part;
        size_t at = place.answer, length = next_part(&state, r, text + at, n - at, true, &part);
        if (part == REASONING_ANSWER) break;
        place.answer = at + length;
        if (part != REASONING_TEXT) continue;
        place.begin = at;
        place.end = at + length;
    }
    return place;
}

/* ---- a text that comes in pieces ---- */

static bool give(reasoning_stream *s, const reasoning *r, bool is_last, reasoning_taker *take, void *user) {
    bool goes_on = true;
    size_t at = 0, length = 1;
    while (goes_on && at < s->held.n) {
        reasoning_part part;
        length = next_part(&s->state, r, s->held.data + at, s->held.n - at, is_last, &part);
        if (length == 0) break;
        goes_on = take(user, part, s->held.data + at, length);
        at += length;
    }
    s->held.n -= at;
    if (at && s->held.n) memmove(s->held.data, s->held.data + at, s->held.n);
    return goes_on;
}

bool reasoning_push(reasoning_stream *s, const reasoning *r, const char *piece, size_t n, reasoning_taker *take,
                    void *user) {
    if (n == 0) return true;
    if (s->state == REASONING_OVER || !r->begin) return take(user, REASONING_ANSWER, piece, n);
    bytes_append(&s->held, piece, n);
    if (s->held.failed) return take(user, REASONING_TEXT, piece, n);
    return give(s, r, false, take, user);
}

bool reasoning_finish(reasoning_stream *s, const reasoning *r, reasoning_taker *take, void *user) {
    bool goes_on = give(s, r, true, take, user);
    bytes_clear(&s->held);
    *s = (reasoning_stream){0};
    return goes_on;
}
