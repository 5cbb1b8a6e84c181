/* SPDX-License-Identifier: Apache-2.0 */
#include "text/regex.h"

#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum { MAX_PATTERN = 1 << 16, MATCH_BASE = 20000, MATCH_PER_BYTE = 32, HEAP_KIB = 64 * 1024, SHOWN = 80 };

#define WHITE_SPACE                                                                                          \
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

struct regex {
    pcre2_code *code;
    char *source; /* for messages, cut to SHOWN bytes */
};

struct regex_state {
    pcre2_general_context *general;
    pcre2_match_context *context;
    pcre2_match_data *data;
};

static void *take(size_t n, void *tag) {
    (void)tag;
    return mem_alloc_raw(n, 1);
}

static void give(void *block, void *tag) {
    (void)tag;
    mem_free(block);
}

/* Rewrites \s and \S outside of brackets, and \s inside. */
static void rewrite(const char *pattern, size_t n, bytes *out) {
    bool in_class = false;
    size_t class_start = 0;
    for (size_t i = 0; i < n; i++) {
        char c = pattern[i], next = i + 1 < n ? pattern[i + 1] : 0;
        if (c == '\\' && next == 's') {
            bytes_append_text(out, in_class ? WHITE_SPACE : "[" WHITE_SPACE "]");
            i++;
        } else if (c == '\\' && next == 'S' && !in_class) {
            bytes_append_text(out, "[^" WHITE_SPACE "]");
            i++;
        } else if (c == '\\' && i + 1 < n) {
            bytes_append(out, pattern + i, 2);
            i++;
        } else {
            bool first =
                in_class && (i == class_start + 1 || (i == class_start + 2 && pattern[i - 1] == '^'));
            if (!in_class && c == '[') {
                in_class = true;
                class_start = i;
            } else if (in_class && c == ']' && !first) {
                in_class = false;
            }
            bytes_append(out, &c, 1);
        }
    }
}

static mn_status compile(regex *r, pcre2_general_context *general, const bytes *text, const char *what) {
    pcre2_compile_context *context = pcre2_compile_context_create(general);
    if (!context) return mem_no_memory();
    pcre2_set_parens_nest_limit(context, 100);
    int code = 0;
    PCRE2_SIZE at = 0;
    r->code = pcre2_compile((PCRE2_SPTR)(text->data ? text->data : ""), text->n,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!r->code) {
        if (code == PCRE2_ERROR_HEAP_FAILED) return mem_no_memory();
        PCRE2_UCHAR reason[160] = {0};
        pcre2_get_error_message(code, reason, sizeof reason);
        MN_FAIL(MN_E_FORMAT, "%s: bad regular expression '%s': %s", what, r->source, (const char *)reason);
    }
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* without it the interpreter does the same more slowly */
    return MN_OK;
}

static mn_status open_rewritten(regex **out, const bytes *text, const char *shown, size_t n_shown,
                                const char *what) {
    *out = NULL;
    MN_TRY(bytes_status(text));
    regex *r = mem_alloc(1, sizeof *r);
    pcre2_general_context *general = r ? pcre2_general_context_create(take, give, NULL) : NULL;
    if (general)
        r->source = mem_copy_text(shown, utf8_valid_prefix(shown, n_shown < SHOWN ? n_shown : SHOWN));
    mn_status status = general && r->source ? compile(r, general, text, what) : mem_no_memory();
    if (general) pcre2_general_context_free(general);
    if (status != MN_OK) {
        regex_close(&r);
    } else {
        *out = r;
    }
    return status;
}

mn_status regex_open(regex **out, const char *pattern, size_t n, const char *what) {
    *out = NULL;
    if (n > MAX_PATTERN)
        MN_FAIL(MN_E_FORMAT, "%s: a regular expression of %zu bytes, at most %d are allowed", what, n,
                MAX_PATTERN);
    bytes text = {0};
    rewrite(pattern, n, &text);
    mn_status status = open_rewritten(out, &text, pattern, n, what);
    bytes_clear(&text);
    return status;
}

mn_status regex_open_literal(regex **out, const char *text, size_t n, const char *what) {
    *out = NULL;
    if (n > MAX_PATTERN)
        MN_FAIL(MN_E_FORMAT, "%s: a pattern of %zu bytes, at most %d are allowed", what, n, MAX_PATTERN);
    bytes escaped = {0};
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        bool plain = c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (c < 0x20) {
            bytes_printf(&escaped, "\\x{%X}", c);
        } else {
            if (!plain) bytes_append(&escaped, "\\", 1);
            bytes_append(&escaped, &text[i], 1);
        }
    }
    mn_status status = open_rewritten(out, &escaped, text, n, what);
    bytes_clear(&escaped);
    return status;
}

void regex_close(regex **pattern) {
    if (!*pattern) return;
    pcre2_code_free((*pattern)->code);
    mem_free((*pattern)->source);
    mem_free(*pattern);
    *pattern = NULL;
}

mn_status regex_state_open(regex_state **out) {
    *out = NULL;
    regex_state *state = mem_alloc(1, sizeof *state);
    if (!state) return MN_E_NOMEM;
    state->general = pcre2_general_context_create(take, give, NULL);
    if (state->general) state->context = pcre2_match_context_create(state->general);
    if (state->context) state->data = pcre2_match_data_create(1, state->general);
    if (!state->data) {
        regex_state_close(&state);
        return mem_no_memory();
    }
    pcre2_set_heap_limit(state->context, HEAP_KIB);
    *out = state;
    return MN_OK;
}

void regex_state_close(regex_state **state) {
    if (!*state) return;
    pcre2_match_data_free((*state)->data);
    pcre2_match_context_free((*state)->context);
    pcre2_general_context_free((*state)->general);
    mem_free(*state);
    *state = NULL;
}

mn_status regex_find(const regex *pattern, regex_state *state, const char *text, size_t n, size_t from,
                     bool *found, size_t *start, size_t *end) {
    size_t limit = MATCH_BASE + MATCH_PER_BYTE * (n - from);
    pcre2_set_match_limit(state->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    pcre2_set_depth_limit(state->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    int count = pcre2_match(pattern->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, state->data,
                            state->context);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
        count = pcre2_match(pattern->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                            state->data, state->context);
    }
    *found = count >= 0;
    if (count >= 0) {
        const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(state->data);
        *start = pair[0] < from ? from : pair[0]; /* \K can move the start to either side */
        *end = pair[1] < *start ? *start : pair[1];
        return MN_OK;
    }
    if (count == PCRE2_ERROR_NOMATCH) return MN_OK;
    if (count == PCRE2_ERROR_NOMEMORY) return mem_no_memory();
    PCRE2_UCHAR reason[160] = {0};
    pcre2_get_error_message(count, reason, sizeof reason);
    MN_FAIL(MN_E_FORMAT, "the regular expression '%s' cannot be applied to this text of %zu bytes: %s",
            pattern->source, n, (const char *)reason);
}
