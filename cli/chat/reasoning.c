/* SPDX-License-Identifier: Apache-2.0 */
#include "chat/reasoning.h"

#include <string.h>

#include "base/json.h"

/* The first is the one of templates that name none: their models may be trained to write it all the same. */
static const char *const markers[][2] = {
    {"<think>", "</think>"}, {"<thinking>", "</thinking>"}, {"<seed:think>", "</seed:think>"}, {"[THINK]", "[/THINK]"}};

static size_t skip_blanks(const char *text, size_t n, size_t i) {
    while (i < n && text[i] && strchr(" \t\r\n", text[i])) i++;
    return i;
}

static bool begins_with(const char *text, size_t n, const char *begin) {
    return n >= strlen(begin) && memcmp(text, begin, strlen(begin)) == 0;
}

reasoning reasoning_of(const char *template, const char *text, size_t n) {
    size_t chosen = 0, count = sizeof markers / sizeof *markers;
    while (chosen < count && !strstr(template, markers[chosen][0]) && !strstr(template, markers[chosen][1])) chosen++;
    reasoning r = {.begin = markers[chosen % count][0], .end = markers[chosen % count][1]};
    while (n && strchr(" \t\r\n", text[n - 1])) n--;
    size_t length = strlen(r.begin);
    r.is_open = n >= length && memcmp(text + n - length, r.begin, length) == 0;
    return r;
}

/* Where the reasoning's text begins; 0 and *is_there false: there is none. */
static size_t find_begin(const reasoning *r, const char *text, size_t n, bool *is_there) {
    size_t i = skip_blanks(text, n, 0);
    bool is_marked = r->begin && begins_with(text + i, n - i, r->begin);
    *is_there = is_marked || r->is_open;
    return is_marked ? i + strlen(r->begin) : 0;
}

static size_t find_end(const reasoning *r, const char *text, size_t n, size_t from) {
    const char *end = memmem(text + from, n - from, r->end, strlen(r->end));
    return end ? (size_t)(end - text) : n;
}

size_t reasoning_length(const reasoning *r, const char *text, size_t n) {
    bool is_there = false;
    size_t begin = find_begin(r, text, n, &is_there);
    if (!is_there) return 0;
    size_t end = find_end(r, text, n, begin);
    return end == n ? n : skip_blanks(text, n, end + strlen(r->end));
}

void reasoning_put(bytes *out, const reasoning *r, const char *text, size_t n) {
    bool is_there = false;
    size_t begin = find_begin(r, text, n, &is_there), end = find_end(r, text, n, begin);
    begin = skip_blanks(text, end, begin);
    while (end > begin && strchr(" \t\r\n", text[end - 1])) end--;
    json_put_string(out, text + begin, end - begin);
}

/* ---- a text that comes in pieces ---- */

/* How much of the text so far may be given; sets is_over when the answer has begun. */
static size_t find_known(reasoning_stream *s, const reasoning *r) {
    const char *text = s->text.data;
    size_t n = s->text.n, blank = skip_blanks(text, n, 0);
    bool is_there = false;
    find_begin(r, text, n, &is_there);
    bool may_begin = n - blank < strlen(r->begin) && memcmp(text + blank, r->begin, n - blank) == 0;
    if (!is_there && may_begin) return 0;
    s->n = reasoning_length(r, text, n);
    s->is_over = !is_there || s->n < n;
    return n; /* the marker at its end belongs to the reasoning */
}

static bool give(reasoning_stream *s, size_t to, reasoning_taker *take, void *user) {
    size_t from = s->n_given, border = s->is_over && s->n < to ? s->n : to;
    s->n_given = to;
    if (!s->is_over) return to == from || take(user, true, s->text.data + from, to - from);
    if (border > from && !take(user, true, s->text.data + from, border - from)) return false;
    if (border < from) border = from;
    return to == border || take(user, false, s->text.data + border, to - border);
}

bool reasoning_push(reasoning_stream *s, const reasoning *r, const char *piece, size_t n, reasoning_taker *take,
                    void *user) {
    if (s->is_over || !r->begin) return n == 0 || take(user, false, piece, n);
    bytes_append(&s->text, piece, n);
    if (s->text.failed) return take(user, true, piece, n);
    return give(s, find_known(s, r), take, user);
}

bool reasoning_finish(reasoning_stream *s, const reasoning *r, reasoning_taker *take, void *user) {
    bool goes_on = true;
    if (!s->is_over && s->text.n > s->n_given) {
        s->n = reasoning_length(r, s->text.data, s->text.n);
        s->is_over = true;
        goes_on = give(s, s->text.n, take, user);
    }
    bytes_clear(&s->text);
    *s = (reasoning_stream){0};
    return goes_on;
}
