/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/detokenize.h"

#include <string.h>

#include "base/utf8.h"

enum { BATCH_BYTES = 4096 };

#define REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */

static void stage_clear(dec_stage *stage) {
    bytes_clear(&stage->from);
    bytes_clear(&stage->content);
}

mn_status detokenizer_add(detokenizer *list, dec_stage *stage, const char *what) {
    mn_status status = stage->from.failed || stage->content.failed ? mem_no_memory() : MN_OK;
    if (status == MN_OK && list->n == DEC_STAGES) {
        status = status_fail(MN_E_FORMAT, "%s: more than %d decoders in sequence", what, DEC_STAGES);
    } else if (status == MN_OK && (stage->from.n > DEC_REPLACE_BYTES || stage->content.n > DEC_REPLACE_BYTES)) {
        status = status_fail(MN_E_FORMAT, "%s: a decoder replaces %zu bytes by %zu, allowed: up to %d", what,
                             stage->from.n, stage->content.n, DEC_REPLACE_BYTES);
    }
    if (status != MN_OK) {
        stage_clear(stage);
        return status;
    }
    stage->joined = list->joined;
    if (stage->kind == DEC_BYTE_LEVEL || stage->kind == DEC_BYTES || stage->kind == DEC_JOIN) list->joined = true;
    list->stages[list->n++] = *stage;
    return MN_OK;
}

mn_status detokenizer_add_clean_up(detokenizer *list, const char *what) {
    static const char *const pairs[][2] = {{" .", "."},     {" ?", "?"},     {" !", "!"},   {" ,", ","},
                                           {" ' ", "'"},    {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"},
                                           {" 've", "'ve"}, {" 're", "'re"}};
    list->joined = true;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        dec_stage stage = {.kind = DEC_REPLACE};
        bytes_append_text(&stage.from, pairs[i][0]);
        bytes_append_text(&stage.content, pairs[i][1]);
        MN_TRY(detokenizer_add(list, &stage, what));
    }
    return MN_OK;
}

void detokenizer_clear(detokenizer *list) {
    for (size_t i = 0; i < list->n; i++) stage_clear(&list->stages[i]);
    *list = (detokenizer){0};
}

/* ---- stages ---- */

static void emit(dec_run *run, size_t i, const char *text, size_t n, bool added);

/* Emits the valid sequences of held + data, each invalid part as U+FFFD, and holds back an incomplete end. */
static void emit_lossy(dec_run *run, size_t i, const char *data, size_t n, bool finish) {
    dec_state *state = &run->states[i];
    bytes_append(&state->held, data, n);
    if (state->held.n == 0) return;
    const char *text = state->held.data;
    size_t at = 0, end = state->held.n;
    state->scratch.n = 0;
    while (at < end) {
        size_t valid = utf8_valid_prefix(text + at, end - at);
        bytes_append(&state->scratch, text + at, valid);
        at += valid;
        if (at == end) break;
        size_t part = utf8_prefix(text + at, end - at);
        if (part && at + part == end && !finish) break; /* more may come */
        bytes_append_text(&state->scratch, REPLACEMENT);
        at += part ? part : 1;
    }
    if (at) memmove(state->held.data, text + at, end - at);
    state->held.n = end - at;
    emit(run, i + 1, state->scratch.data, state->scratch.n, false);
}

/* Appends the bytes of a token in letters; false (and nothing) when a character is no letter. */
static bool append_letters(bytes *out, const char *token, size_t n) {
    size_t before = out->n;
    for (size_t at = 0; at < n;) {
        size_t length = utf8_sequence(token + at, n - at);
        int byte = length ? byte_of_letter(utf8_decode(token + at, length)) : -1;
        if (byte < 0) {
            out->n = before;
            return false;
        }
        char c = (char)byte;
        bytes_append(out, &c, 1);
        at += length;
    }
    return true;
}

static void push_byte_level(dec_run *run, size_t i, const char *token, size_t n, bool added) {
    bool plain = added || !append_letters(&run->states[i].held, token, n);
    emit_lossy(run, i, token, plain ? n : 0, false);
}

static void push_bytes(dec_run *run, size_t i, const char *token, size_t n, bool added) {
    int byte = added ? -1 : vocab_byte_of(token, n);
    char c = (char)byte;
    if (byte >= 0) {
        emit_lossy(run, i, &c, 1, false);
    } else {
        emit_lossy(run, i, "", 0, true);
        emit(run, i + 1, token, n, added);
    }
}

/* Ends the run of byte tokens in held. */
static void end_byte_run(dec_run *run, size_t i) {
    dec_state *state = &run->states[i];
    size_t n = state->held.n;
    if (n == 0) return;
    if (utf8_valid_prefix(state->held.data, n) == n) {
        emit(run, i + 1, state->held.data, n, false);
    } else {
        for (size_t k = 0; k < n; k++) emit(run, i + 1, REPLACEMENT, 3, false);
    }
    state->held.n = 0;
}

static void push_byte_fallback(dec_run *run, size_t i, const char *token, size_t n, bool added) {
    int byte = added ? -1 : vocab_byte_of(token, n);
    char c = (char)byte;
    if (byte >= 0) {
        bytes_append(&run->states[i].held, &c, 1);
    } else {
        end_byte_run(run, i);
        emit(run, i + 1, token, n, added);
    }
}

/* Length of the longest end of text that is a proper prefix of the pattern. */
static size_t partial_match(const char *text, size_t n, const bytes *pattern) {
    size_t k = pattern->n - 1 < n ? pattern->n - 1 : n;
    while (k > 0 && memcmp(text + n - k, pattern->data, k) != 0) k--;
    return k;
}

static void push_replace(dec_run *run, size_t i, const char *text, size_t n, bool added, bool finish) {
    const dec_stage *stage = &run->list->stages[i];
    dec_state *state = &run->states[i];
    if (stage->from.n == 0) {
        emit(run, i + 1, text, n, added);
        return;
    }
    if (stage->joined) {
        bytes_append(&state->held, text, n);
        text = state->held.data;
        n = state->held.n;
    }
    if (n == 0) { /* nothing held and nothing new; but an empty token is a token */
        if (!stage->joined) emit(run, i + 1, "", 0, added);
        return;
    }
    const char *end = text + n, *found;
    size_t longer = stage->content.n > stage->from.n ? stage->content.n - stage->from.n : 0,
           limit = DEC_GROWTH_BASE + DEC_GROWTH * run->pushed;
    state->scratch.n = 0;
    while ((found = memmem(text, (size_t)(end - text), stage->from.data, stage->from.n))) {
        run->too_long |= longer > limit - run->grown;
        if (run->too_long) return;
        run->grown += longer;
        bytes_append(&state->scratch, text, (size_t)(found - text));
        bytes_append(&state->scratch, stage->content.data, stage->content.n);
        text = found + stage->from.n;
    }
    size_t rest = (size_t)(end - text), keep = stage->joined && !finish ? partial_match(text, rest, &stage->from) : 0;
    bytes_append(&state->scratch, text, rest - keep);
    if (stage->joined) {
        if (keep) memmove(state->held.data, end - keep, keep);
        state->held.n = keep;
    }
    emit(run, i + 1, state->scratch.data, state->scratch.n, added);
}

static bool starts_with(const char *text, size_t n, const bytes *part) {
    return part->n && n >= part->n && memcmp(text, part->data, part->n) == 0;
}

/* Where the last up to `stop` characters `content` at the end of text begin. */
static size_t strip_end(const dec_stage *stage, const char *text, size_t n) {
    for (uint32_t k = 0; k < stage->stop && n >= stage->content.n &&
                         starts_with(text + n - stage->content.n, stage->content.n, &stage->content);
         k++) {
        n -= stage->content.n;
    }
    return n;
}

/* On a stream, `count` is how many characters were stripped, or past `start` once another one was seen. */
static void push_strip(dec_run *run, size_t i, const char *text, size_t n, bool added, bool finish) {
    const dec_stage *stage = &run->list->stages[i];
    dec_state *state = &run->states[i];
    if (!stage->joined) state->count = 0;
    while (state->count < stage->start && starts_with(text, n, &stage->content)) {
        text += stage->content.n;
        n -= stage->content.n;
        state->count++;
    }
    if (n) state->count = stage->start;
    if (!stage->joined) {
        emit(run, i + 1, text, strip_end(stage, text, n), added);
        return;
    }
    bytes_append(&state->held, text, n);
    if (state->held.n == 0) return;
    size_t keep = strip_end(stage, state->held.data, state->held.n);
    state->scratch.n = 0;
    bytes_append(&state->scratch, state->held.data, keep);
    if (keep) memmove(state->held.data, state->held.data + keep, state->held.n - keep);
    state->held.n = finish ? 0 : state->held.n - keep;
    emit(run, i + 1, state->scratch.data, state->scratch.n, added);
}

static void push_metaspace(dec_run *run, size_t i, const char *text, size_t n, bool added) {
    const dec_stage *stage = &run->list->stages[i];
    dec_state *state = &run->states[i];
    bool drop = state->count == 0 && stage->start;
    state->count = 1;
    const char *end = text + n, *found;
    state->scratch.n = 0;
    while (stage->from.n && n && (found = memmem(text, (size_t)(end - text), stage->from.data, stage->from.n))) {
        bytes_append(&state->scratch, text, (size_t)(found - text));
        if (!drop) bytes_append(&state->scratch, " ", 1);
        text = found + stage->from.n;
    }
    bytes_append(&state->scratch, text, n ? (size_t)(end - text) : 0);
    emit(run, i + 1, state->scratch.data, state->scratch.n, added);
}

static void push_join(dec_run *run, size_t i, const char *text, size_t n, bool added) {
    if (run->states[i].count) emit(run, i + 1, " ", 1, false);
    run->states[i].count = 1;
    emit(run, i + 1, text, n, added);
}

static void push_stage(dec_run *run, size_t i, const char *text, size_t n, bool added) {
    if (i == run->list->n) {
        bytes_append(run->out, text, n);
        return;
    }
    switch (run->list->stages[i].kind) {
    case DEC_BYTE_LEVEL: push_byte_level(run, i, text, n, added); break;
    case DEC_BYTES: push_bytes(run, i, text, n, added); break;
    case DEC_BYTE_FALLBACK: push_byte_fallback(run, i, text, n, added); break;
    case DEC_REPLACE: push_replace(run, i, text, n, added, false); break;
    case DEC_STRIP: push_strip(run, i, text, n, added, false); break;
    case DEC_METASPACE: push_metaspace(run, i, text, n, added); break;
    case DEC_JOIN: push_join(run, i, text, n, added); break;
    }
}

static void flush_batch(dec_run *run, size_t i) {
    if (run->batch.n) push_stage(run, i, run->batch.data, run->batch.n, false);
    run->batch.n = 0;
}

static bool begins_stream(const dec_run *run, size_t i) {
    return i > 0 && i < run->list->n && run->list->stages[i].joined && !run->list->stages[i - 1].joined;
}

static void emit(dec_run *run, size_t i, const char *text, size_t n, bool added) {
    if (run->too_long) return;
    if (!run->whole || !begins_stream(run, i)) {
        push_stage(run, i, text, n, added);
        return;
    }
    bytes_append(&run->batch, text, n);
    if (run->batch.n >= BATCH_BYTES) flush_batch(run, i);
}

/* ---- one token alone ---- */

static mn_status too_long(void) {
    MN_FAIL(MN_E_FORMAT, "the tokenizer's decoders lengthen a text by more than %d bytes for each byte of its tokens",
            DEC_GROWTH);
}

/* Appends text[0..n) with the stage's replacements, until the output has more than `most` bytes. */
static void append_replaced(bytes *out, const dec_stage *stage, const char *text, size_t n, size_t most) {
    const char *end = text + n, *found;
    while (n && stage->from.n && (found = memmem(text, (size_t)(end - text), stage->from.data, stage->from.n)) &&
           out->n <= most) {
        bytes_append(out, text, (size_t)(found - text));
        bytes_append(out, stage->content.data, stage->content.n);
        text = found + stage->from.n;
    }
    bytes_append(out, text, (size_t)(end - text));
}

static void append_stripped(bytes *out, const dec_stage *stage, const char *text, size_t n, bool first) {
    uint32_t start = stage->joined && !first ? 0 : stage->start;
    for (uint32_t k = 0; k < start && starts_with(text, n, &stage->content); k++) {
        text += stage->content.n;
        n -= stage->content.n;
    }
    bytes_append(out, text, stage->joined ? n : strip_end(stage, text, n));
}

/* Appends the output of a stage for text[0..n). */
static void append_stage(bytes *out, const dec_stage *stage, const char *text, size_t n, bool added, bool first,
                         size_t most) {
    static const bytes space = {.data = (char *)" ", .n = 1};
    int byte = -1;
    char c;
    switch (stage->kind) {
    case DEC_BYTE_LEVEL:
        if (added || !append_letters(out, text, n)) bytes_append(out, text, n);
        break;
    case DEC_BYTES:
    case DEC_BYTE_FALLBACK:
        if (!added) byte = vocab_byte_of(text, n);
        c = (char)byte;
        bytes_append(out, byte < 0 ? text : &c, byte < 0 ? n : 1);
        break;
    case DEC_REPLACE: append_replaced(out, stage, text, n, most); break;
    case DEC_STRIP: append_stripped(out, stage, text, n, first); break;
    case DEC_METASPACE: {
        dec_stage marks = {.from = stage->from, .content = first && stage->start ? (bytes){0} : space};
        append_replaced(out, &marks, text, n, most);
        break;
    }
    case DEC_JOIN:
        if (!first) bytes_append(out, " ", 1);
        bytes_append(out, text, n);
        break;
    }
}

mn_status detokenizer_token(const detokenizer *list, const char *token, size_t n, bool added, bool first,
                            bytes *scratch, bytes *out) {
    size_t begin = out->n, most = DEC_GROWTH_TOKEN + (1 + DEC_GROWTH) * n;
    bytes_append(out, token, n);
    for (size_t i = 0; i < list->n && !out->failed; i++) {
        scratch->n = 0;
        append_stage(scratch, &list->stages[i], out->data ? out->data + begin : "", out->n - begin, added, first, most);
        out->n = begin;
        if (scratch->n > most) return too_long();
        bytes_append(out, scratch->data, scratch->n);
        out->failed |= scratch->failed;
    }
    return bytes_status(out);
}

mn_status dec_run_reserve(dec_run *run, size_t n) {
    for (size_t i = 0; i < run->list->n; i++) {
        dec_state *state = &run->states[i];
        MN_TRY(mem_grow(&state->held.data, &state->held.capacity, n, 1));
        MN_TRY(mem_grow(&state->scratch.data, &state->scratch.capacity, n, 1));
    }
    return MN_OK;
}

void dec_run_push(dec_run *run, const char *token, size_t n, bool added) {
    run->pushed += n;
    emit(run, 0, token, n, added);
}

void dec_run_finish(dec_run *run) {
    for (size_t i = 0; i < run->list->n; i++) {
        const dec_stage *stage = &run->list->stages[i];
        if (begins_stream(run, i)) flush_batch(run, i);
        switch (stage->kind) {
        case DEC_BYTE_LEVEL:
        case DEC_BYTES: emit_lossy(run, i, "", 0, true); break;
        case DEC_BYTE_FALLBACK: end_byte_run(run, i); break;
        case DEC_REPLACE:
            if (stage->joined) push_replace(run, i, "", 0, false, true);
            break;
        case DEC_STRIP:
            if (stage->joined) push_strip(run, i, "", 0, false, true);
            break;
        case DEC_METASPACE:
        case DEC_JOIN: break;
        }
        run->states[i].count = 0;
        run->states[i].held.n = 0;
    }
    run->pushed = run->grown = 0;
}

void dec_run_clear(dec_run *run) {
    bytes_clear(&run->batch);
    for (size_t i = 0; i < DEC_STAGES; i++) {
        bytes_clear(&run->states[i].held);
        bytes_clear(&run->states[i].scratch);
    }
}

mn_status dec_run_status(const dec_run *run) {
    if (run->too_long) return too_long();
    if (run->batch.failed) return mem_no_memory();
    for (size_t i = 0; i < DEC_STAGES; i++) {
        if (run->states[i].held.failed || run->states[i].scratch.failed) return mem_no_memory();
    }
    return bytes_status(run->out);
}
