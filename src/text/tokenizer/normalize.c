/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/normalize.h"

#include <string.h>

static void step_clear(norm_step *step) {
    regex_close(&step->pattern);
    bytes_clear(&step->from);
    bytes_clear(&step->content);
}

mn_status normalizer_add(normalizer *list, norm_step *step, const char *what) {
    mn_status status = step->from.failed || step->content.failed ? mem_no_memory() : MN_OK;
    if (status == MN_OK && list->n == NORM_STEPS) {
        status = status_fail(MN_E_FORMAT, "%s: more than %d normalizers in sequence", what, NORM_STEPS);
    }
    if (status != MN_OK) {
        step_clear(step);
        return status;
    }
    list->steps[list->n++] = *step;
    return MN_OK;
}

void normalizer_clear(normalizer *list) {
    for (size_t i = 0; i < list->n; i++) step_clear(&list->steps[i]);
    list->n = 0;
}

void norm_state_clear(norm_state *state) {
    regex_state_close(&state->regex);
    bytes_clear(&state->buffer[0]);
    bytes_clear(&state->buffer[1]);
}

static void strip(const norm_step *step, const unicode_table *classes, const char *text, size_t n, bytes *out) {
    size_t start = 0, end = n, length;
    while (step->left && start < end && (unicode_class_at(classes, text + start, &length) & UNICODE_SPACE))
        start += length;
    while (step->right && end > start) {
        size_t last = end - 1;
        while (last > start && ((unsigned char)text[last] & 0xC0) == 0x80) last--;
        if (!(unicode_class_at(classes, text + last, &length) & UNICODE_SPACE)) break;
        end = last;
    }
    bytes_append(out, text + start, end - start);
}

static void strip_accents(const unicode_table *classes, const char *text, size_t n, bytes *out) {
    size_t length;
    for (size_t i = 0; i < n; i += length) {
        if (!(unicode_class_at(classes, text + i, &length) & UNICODE_MARK)) bytes_append(out, text + i, length);
    }
}

static mn_status too_long(const norm_state *state) {
    MN_FAIL(MN_E_FORMAT,
            "the tokenizer's normalizers lengthen a text of %zu bytes by more than %d for each and %d besides",
            state->n_text, NORM_GROWTH, NORM_GROWTH_BASE);
}

/* Appends text[0..n) and the replacement of the match behind it, unless the output would have more than `most` bytes.
 */
static bool put_match(const norm_step *step, const char *text, size_t n, size_t most, bytes *out) {
    if (out->n > most || n > most - out->n || step->content.n > most - out->n - n) return false;
    bytes_append(out, text, n);
    bytes_append(out, step->content.data, step->content.n);
    return true;
}

static mn_status replace_literal(const norm_step *step, const norm_state *state, const char *text, size_t n,
                                 size_t most, bytes *out) {
    const char *end = text + n, *found;
    while (step->from.n && (found = memmem(text, (size_t)(end - text), step->from.data, step->from.n))) {
        if (!put_match(step, text, (size_t)(found - text), most, out)) return too_long(state);
        text = found + step->from.n;
    }
    bytes_append(out, text, (size_t)(end - text));
    return MN_OK;
}

static mn_status replace_pattern(const norm_step *step, norm_state *state, const char *text, size_t n, size_t most,
                                 bytes *out) {
    if (!state->regex) MN_TRY(regex_state_open(&state->regex, state->n_text));
    size_t copied = 0;
    for (size_t from = 0; from <= n;) {
        bool found;
        size_t start = 0, end = 0;
        MN_TRY(regex_find(step->pattern, state->regex, text, n, from, &found, &start, &end));
        if (!found) break;
        if (!put_match(step, text + copied, start - copied, most, out)) return too_long(state);
        copied = end;
        from = end > start ? end : end < n ? end + utf8_length((unsigned char)text[end]) : n + 1;
    }
    bytes_append(out, text + copied, n - copied);
    return MN_OK;
}

static mn_status apply(const norm_step *step, const unicode_table *classes, norm_state *state, const char *text,
                       size_t n, size_t most, bytes *out) {
    switch (step->kind) {
    case NORM_FORM: return unicode_normalize(step->form, text, n, out);
    case NORM_LOWERCASE: unicode_lower(text, n, out); break;
    case NORM_STRIP: strip(step, classes, text, n, out); break;
    case NORM_STRIP_ACCENTS: strip_accents(classes, text, n, out); break;
    case NORM_PREPEND:
        if (n && !put_match(step, "", 0, most, out)) return too_long(state);
        bytes_append(out, text, n);
        break;
    case NORM_REPLACE:
        return step->pattern ? replace_pattern(step, state, text, n, most, out)
                             : replace_literal(step, state, text, n, most, out);
    }
    return MN_OK;
}

mn_status normalize(const normalizer *list, const unicode_table *classes, norm_state *state, const char *text, size_t n,
                    const char **out, size_t *n_out) {
    const size_t limit = NORM_GROWTH_BASE + NORM_GROWTH * state->n_text;
    for (size_t i = 0; i < list->n; i++) {
        bytes *buffer = &state->buffer[i & 1];
        size_t most = n + (limit - state->grown);
        buffer->n = 0;
        MN_TRY(apply(&list->steps[i], classes, state, text, n, most, buffer));
        MN_TRY(bytes_status(buffer));
        if (buffer->n > most) return too_long(state);
        if (buffer->n > n) state->grown += buffer->n - n;
        text = buffer->data ? buffer->data : "";
        n = buffer->n;
    }
    *out = text;
    *n_out = n;
    return MN_OK;
}
