/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/stop.h"

#include <string.h>

mn_status stop_text_reserve(stop_text *s, size_t n) {
    if (s->stops->n == 0) return MN_OK;
    for (size_t i = 0; i < s->stops->n; i++) n += strlen(s->stops->texts[i]);
    MN_TRY(mem_grow(&s->held.data, &s->held.capacity, n, 1));
    return mem_grow(&s->seen.data, &s->seen.capacity, n, 1);
}

/* Compares the stop string with what is held from `at` on, with the names of special tokens or as if they were not
 * there. 0: other bytes; else where it ends, or held.n + 1 when what is held only begins it. */
static size_t match_end(const stop_text *s, size_t at, const char *stop, bool with_names) {
    for (; at < s->held.n; at++) {
        if (!with_names && !s->seen.data[at]) continue;
        if (s->held.data[at] != *stop) return 0;
        if (!*++stop) return at + 1;
    }
    return at + 1;
}

typedef struct stop_match {
    size_t at, end; /* of the stop string that is complete first; held.n, SIZE_MAX: none */
    size_t begun;   /* where the longest one begins that may still become complete; held.n: none */
} stop_match;

static void match_from(stop_text *s, size_t at, bool with_names, stop_match *m) {
    for (size_t i = 0; i < s->stops->n; i++) {
        size_t end = match_end(s, at, s->stops->texts[i], with_names);
        if (end > s->held.n && at < m->begun) m->begun = at;
        if (end == 0 || end > s->held.n || end >= m->end) continue; /* of two that end together the first is longer */
        m->at = at;
        m->end = end;
        s->found = i;
    }
}

/* Shows the first n bytes of what is held, but for special tokens. */
static void release(stop_text *s, size_t n) {
    for (size_t at = 0, end; at < n; at = end) {
        const char *change = memchr(s->seen.data + at, s->seen.data[at] ? 0 : 1, n - at);
        end = change ? (size_t)(change - s->seen.data) : n;
        if (s->seen.data[at]) bytes_append(&s->text, s->held.data + at, end - at);
    }
    if (n == 0) return;
    s->held.n = s->seen.n = s->held.n - n;
    memmove(s->held.data, s->held.data + n, s->held.n);
    memmove(s->seen.data, s->seen.data + n, s->seen.n);
}

static void hold(stop_text *s, const char *text, size_t n, bool is_text) {
    const char mark = is_text;
    bytes_append(&s->held, text, n);
    for (size_t i = 0; i < n; i++) bytes_append(&s->seen, &mark, 1);
    s->text.failed |= s->held.failed || s->seen.failed;
}

void stop_text_push(stop_text *s, const char *text, size_t n, bool is_text) {
    if (s->stopped || n == 0) return;
    if (s->stops->n == 0) {
        if (is_text) bytes_append(&s->text, text, n);
        return;
    }
    hold(s, text, n, is_text);
    if (s->text.failed) return;
    bool has_names = memchr(s->seen.data, 0, s->seen.n);
    stop_match m = {s->held.n, SIZE_MAX, s->held.n};
    for (size_t at = 0; at < s->held.n && at < m.end; at++) {
        if (s->seen.data[at]) match_from(s, at, false, &m);
        if (has_names) match_from(s, at, true, &m);
    }
    s->stopped = m.end <= s->held.n;
    release(s, s->stopped ? m.at : m.begun);
    if (s->stopped) s->held.n = s->seen.n = 0;
}

mn_status stop_text_push_token(stop_text *s, const tokenizer *t, tokenizer_stream *stream, int32_t id, bytes *piece) {
    /* Models may have more rows than the tokenizer has tokens (padded embeddings): those ids have no text. */
    if ((size_t)id >= tokenizer_size(t)) return MN_OK;
    size_t n;
    const char *name = tokenizer_is_special(t, id) ? tokenizer_piece(t, id, &n) : NULL;
    piece->n = 0;
    if (name) {
        stop_text_push(s, name, n, false);
    } else {
        MN_TRY(tokenizer_stream_push(stream, id, piece));
        stop_text_push(s, piece->data, piece->n, true);
    }
    return bytes_status(&s->text);
}

void stop_text_finish(stop_text *s) {
    release(s, s->held.n);
}

void stop_text_restart(stop_text *s) {
    s->text.n = s->held.n = s->seen.n = 0;
    s->stopped = false;
}

void stop_text_clear(stop_text *s) {
    bytes_clear(&s->text);
    bytes_clear(&s->held);
    bytes_clear(&s->seen);
}
