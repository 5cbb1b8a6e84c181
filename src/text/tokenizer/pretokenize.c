/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/pretokenize.h"

#include <string.h>

/* ---- scanners ---- */

typedef struct scan {
    const unicode_table *classes;
    const char *text;
    size_t n;
} scan;

static inline unsigned class_at(const scan *s, size_t i, size_t *length) {
    return unicode_class_at(s->classes, s->text + i, length);
}

/* Class of the character at i, 0 at the end; *length is 0 there. */
static inline unsigned class_or_end(const scan *s, size_t i, size_t *length) {
    *length = 0;
    return i < s->n ? class_at(s, i, length) : 0;
}

static inline size_t run_of(const scan *s, size_t i, unsigned classes) {
    size_t length;
    while (i < s->n && (class_at(s, i, &length) & classes)) i += length;
    return i;
}

/* Neither space nor letter nor number. */
static inline size_t run_of_others(const scan *s, size_t i) {
    size_t length;
    while (i < s->n && !(class_at(s, i, &length) & (UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SPACE))) i += length;
    return i;
}

/* 's 't 'm 'd 're 've 'll at i: its length or 0. In either case, when asked: then U+017F (c5 bf) counts as s too. */
static inline size_t contraction(const scan *s, size_t i, bool any_case) {
    if (s->text[i] != '\'' || i + 1 >= s->n) return 0;
    char fold = any_case ? 0x20 : 0;
    char a = (char)(s->text[i + 1] | fold), b = i + 2 < s->n ? s->text[i + 2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (any_case && s->text[i + 1] == '\xC5' && b == '\xBF') return 3;
    b = (char)(b | fold);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return 0;
}

/* A run of spaces from i leaves its last one to the word that follows, unless it is alone or ends the piece. Where
 * `digits_end`, a number ends the piece. */
static size_t scan_spaces(const scan *s, size_t i, bool digits_end) {
    size_t end = i, last = i, length;
    unsigned c = 0;
    while (end < s->n && ((c = class_at(s, end, &length)) & UNICODE_SPACE)) {
        last = end;
        end += length;
    }
    bool at_end = end >= s->n || (digits_end && (c & UNICODE_NUMBER));
    return at_end || last == i ? end : last;
}

static inline size_t scan_gpt2(const scan *s, size_t i, bool lone_digits) {
    size_t length, start = i;
    unsigned c = class_at(s, i, &length);
    if (c & UNICODE_LETTER) return run_of(s, i + length, UNICODE_LETTER);
    if (lone_digits && (c & UNICODE_NUMBER)) return i + length;
    size_t short_form = contraction(s, i, false);
    if (short_form) return i + short_form;
    if (s->text[i] == ' ') {
        size_t next_length;
        unsigned next = class_or_end(s, i + 1, &next_length);
        bool usable = next_length && !(next & UNICODE_SPACE) && !(lone_digits && (next & UNICODE_NUMBER));
        if (usable) {
            start = i + 1;
            c = next;
            length = next_length;
        }
    }
    if (c & UNICODE_LETTER) return run_of(s, start + length, UNICODE_LETTER);
    if (c & UNICODE_NUMBER) return run_of(s, start + length, UNICODE_NUMBER);
    if (!(c & UNICODE_SPACE)) return run_of_others(s, start + length);
    return scan_spaces(s, i, lone_digits);
}

static inline bool is_newline(char c) {
    return c == '\n' || c == '\r';
}

/* \s*[\r\n]+ from i: behind the last line break of the run of spaces; i when it holds none. */
static size_t scan_line_breaks(const scan *s, size_t i) {
    size_t end = i, length;
    for (size_t at = i; at < s->n && (class_at(s, at, &length) & UNICODE_SPACE); at += length) {
        if (is_newline(s->text[at])) end = at + 1;
    }
    return end;
}

static inline size_t scan_llama3(const scan *s, size_t i, int max_digits) {
    size_t length, next_length;
    unsigned c = class_at(s, i, &length);
    if (c & UNICODE_LETTER) return run_of(s, i + length, UNICODE_LETTER);
    size_t short_form = contraction(s, i, true);
    if (short_form) return i + short_form;
    if (c & UNICODE_NUMBER) {
        size_t end = i + length;
        for (int k = 1; k < max_digits && (class_or_end(s, end, &length) & UNICODE_NUMBER); k++) end += length;
        return end;
    }
    unsigned next = class_or_end(s, i + length, &next_length);
    if (!is_newline(s->text[i]) && (next & UNICODE_LETTER)) return run_of(s, i + length + next_length, UNICODE_LETTER);
    bool spaced = s->text[i] == ' ' && next_length && !(next & (UNICODE_NUMBER | UNICODE_SPACE));
    if (spaced || !(c & UNICODE_SPACE)) {
        size_t end = run_of_others(s, i + length);
        while (end < s->n && is_newline(s->text[end])) end++;
        return end;
    }
    size_t end = scan_line_breaks(s, i);
    return end > i ? end : scan_spaces(s, i, false);
}

size_t pre_scan(pre_scanner scanner, const unicode_table *classes, const char *text, size_t n, size_t i) {
    scan s = {classes, text, n};
    switch (scanner) {
    case SCAN_DIGITS_GPT2: return scan_gpt2(&s, i, true);
    case SCAN_LLAMA3: return scan_llama3(&s, i, 3);
    case SCAN_QWEN2: return scan_llama3(&s, i, 1);
    default: return scan_gpt2(&s, i, false);
    }
}

/* ---- the list of steps ---- */

mn_status pretokenizer_add(pretokenizer *p, const pre_step *step, const char *what) {
    if (p->n == PRE_STEPS) {
        regex *pattern = step->pattern;
        regex_close(&pattern);
        MN_FAIL(MN_E_FORMAT, "%s: more than %d pre-tokenizers in sequence", what, PRE_STEPS);
    }
    p->steps[p->n++] = *step;
    return MN_OK;
}

mn_status pretokenizer_add_regex(pretokenizer *p, const char *pattern, split_behavior behavior, const char *what) {
    pre_step step = {.kind = PRE_REGEX, .behavior = behavior};
    MN_TRY(regex_open(&step.pattern, pattern, strlen(pattern), what));
    return pretokenizer_add(p, &step, what);
}

mn_status pretokenizer_add_scan(pretokenizer *p, pre_scanner scanner, const char *what) {
    return pretokenizer_add(p, &(pre_step){.kind = PRE_SCAN, .scanner = scanner}, what);
}

void pretokenizer_clear(pretokenizer *p) {
    for (size_t i = 0; i < p->n; i++) regex_close(&p->steps[i].pattern);
    p->n = 0;
}

void pre_state_clear(pre_state *state) {
    regex_state_close(&state->regex);
    for (size_t i = 0; i < PRE_STEPS; i++) bytes_clear(&state->buffer[i]);
}

/* ---- running ---- */

typedef struct run {
    const pretokenizer *p;
    const unicode_table *classes;
    pre_state *state;
    pre_sink sink;
    void *arg;
} run;

static mn_status run_step(const run *r, size_t i, const char *text, size_t n, bool at_start);

static mn_status pass_on(const run *r, size_t i, const char *text, size_t n, bool at_start) {
    if (n == 0) return MN_OK;
    if (i + 1 == r->p->n) return r->sink(r->arg, text, n);
    return run_step(r, i + 1, text, n, at_start);
}

static mn_status run_scan(const run *r, size_t i, const char *text, size_t n, bool at_start) {
    pre_scanner scanner = r->p->steps[i].scanner;
    for (size_t at = 0, end; at < n; at = end) {
        end = pre_scan(scanner, r->classes, text, n, at);
        MN_TRY(pass_on(r, i, text + at, end - at, at_start && at == 0));
    }
    return MN_OK;
}

/* Joins alternating matches and gaps according to the behaviour and passes the pieces on. */
typedef struct splitter {
    const run *r;
    size_t step;
    const char *text;
    bool at_start;
    size_t start, end; /* the pending piece */
    bool pending, matched, previous;
} splitter;

static mn_status splitter_flush(splitter *s) {
    if (!s->pending) return MN_OK;
    s->pending = false;
    return pass_on(s->r, s->step, s->text + s->start, s->end - s->start, s->at_start && s->start == 0);
}

static mn_status splitter_put(splitter *s, size_t start, size_t end, bool match) {
    bool join = false;
    switch (s->r->p->steps[s->step].behavior) {
    case SPLIT_REMOVED:
        if (match) return MN_OK;
        break;
    case SPLIT_ISOLATED: break;
    case SPLIT_MERGED_WITH_PREVIOUS: join = match && !s->previous; break;
    case SPLIT_MERGED_WITH_NEXT: join = !match && s->matched; break;
    case SPLIT_CONTIGUOUS: join = match == s->matched; break;
    }
    s->previous = match;
    if (join && s->pending) {
        s->end = end;
        s->matched = match && s->matched;
        return MN_OK;
    }
    MN_TRY(splitter_flush(s));
    s->start = start;
    s->end = end;
    s->pending = true;
    s->matched = match;
    return MN_OK;
}

static mn_status run_regex(const run *r, size_t i, const char *text, size_t n, bool at_start) {
    const pre_step *step = &r->p->steps[i];
    if (!r->state->regex) MN_TRY(regex_state_open(&r->state->regex, r->state->n_text));
    splitter s = {.r = r, .step = i, .text = text, .at_start = at_start};
    size_t previous = 0, from = 0;
    bool has_match = false;
    while (from <= n) {
        bool found;
        size_t start = 0, end = 0;
        MN_TRY(regex_find(step->pattern, r->state->regex, text, n, from, &found, &start, &end));
        if (!found) break;
        /* An empty match separates what is beside it; none counts where the last match ended. */
        if (end > start || !has_match || start > previous) {
            if (start > previous) MN_TRY(splitter_put(&s, previous, start, step->invert));
            MN_TRY(splitter_put(&s, start, end, !step->invert));
            previous = end;
            has_match = true;
        }
        from = end > start ? end : end < n ? end + utf8_length((unsigned char)text[end]) : n + 1;
    }
    if (previous < n) MN_TRY(splitter_put(&s, previous, n, step->invert));
    return splitter_flush(&s);
}

/* The same, cut before each mark; the text starts a word in any case. */
static mn_status pass_on_marked(const run *r, size_t i, const char *text, size_t n, bool at_start) {
    const pre_step *step = &r->p->steps[i];
    if (!step->split) return pass_on(r, i, text, n, at_start);
    size_t start = 0;
    while (start < n) {
        const char *from = text + start + 1;
        const char *mark = memmem(from, n - start - 1, step->mark, step->n_mark);
        size_t end = mark ? (size_t)(mark - text) : n;
        MN_TRY(pass_on(r, i, text + start, end - start, at_start && start == 0));
        start = end;
    }
    return MN_OK;
}

static mn_status run_metaspace(const run *r, size_t i, const char *text, size_t n, bool at_start) {
    const pre_step *step = &r->p->steps[i];
    bytes *buffer = &r->state->buffer[i];
    buffer->n = 0;
    bool starts_marked = text[0] == ' ' || (n >= step->n_mark && memcmp(text, step->mark, step->n_mark) == 0);
    bool prepends = step->prefix == PREFIX_ALWAYS || (step->prefix == PREFIX_FIRST && at_start);
    prepends = (prepends && !starts_marked) || (step->prefix == PREFIX_FORCED && at_start);
    if (prepends) bytes_append(buffer, step->mark, step->n_mark);
    for (size_t at = 0; at < n;) {
        const char *space = memchr(text + at, ' ', n - at);
        size_t end = space ? (size_t)(space - text) : n;
        bytes_append(buffer, text + at, end - at);
        if (space) bytes_append(buffer, step->mark, step->n_mark);
        at = end + 1;
    }
    MN_TRY(bytes_status(buffer));
    return pass_on_marked(r, i, buffer->data, buffer->n, at_start);
}

static mn_status run_space(const run *r, size_t i, const char *text, size_t n, bool at_start) {
    if (text[0] == ' ') return pass_on(r, i, text, n, at_start);
    bytes *buffer = &r->state->buffer[i];
    buffer->n = 0;
    bytes_append(buffer, " ", 1);
    bytes_append(buffer, text, n);
    MN_TRY(bytes_status(buffer));
    return pass_on(r, i, buffer->data, buffer->n, at_start);
}

static mn_status run_step(const run *r, size_t i, const char *text, size_t n, bool at_start) {
    switch (r->p->steps[i].kind) {
    case PRE_SCAN: return run_scan(r, i, text, n, at_start);
    case PRE_REGEX: return run_regex(r, i, text, n, at_start);
    case PRE_SPACE: return run_space(r, i, text, n, at_start);
    case PRE_METASPACE: return run_metaspace(r, i, text, n, at_start);
    }
    return MN_OK;
}

mn_status pretokenize(const pretokenizer *p, const unicode_table *classes, pre_state *state, const char *text, size_t n,
                      bool at_start, pre_sink sink, void *arg) {
    if (n == 0) return MN_OK;
    if (p->n == 0) return sink(arg, text, n);
    return run_step(&(run){p, classes, state, sink, arg}, 0, text, n, at_start);
}
