/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/regex.h"

#include <string.h>

#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/tokenizer/regex_dialect.h"

enum {
    MAX_PATTERN = 1 << 12,
    MAX_NEST = 24,       /* groups inside each other: twice as many fit a stack of 64 KiB */
    WORK_BASE = 1 << 18, /* items tried and bytes scanned, and as many for each byte of the text */
    WORK_PER_BYTE = 512,
    HEAP_KIB = 64 * 1024,
    QUICK_BYTES = 128, /* bytes of the text that a quick search may read, */
    QUICK_LIMIT = 32,  /* its backtracks at one position, */
    QUICK_CODE = 1024, /* and the largest size of its compiled pattern */
    SHOWN = 80
};

/* PCRE2 counts backtracks, but not the bytes that it scans, and reports neither. So each pattern has two forms. The
 * metered form has a callout before every item, which counts the work, and takes twice the time. Most words are found
 * by the quick form, whose work is bounded because it searches a short part of the text with a low backtracking limit;
 * where it reaches that limit, the metered form is used. */
struct regex {
    pcre2_code *quick; /* NULL for a large pattern */
    pcre2_code *metered;
    char *source; /* for messages, cut to SHOWN bytes */
};

struct regex_state {
    pcre2_general_context *general;
    pcre2_match_context *context;
    pcre2_match_data *data;
    uint32_t limit; /* backtracks of a search, as set in the context */
    uint64_t room;  /* work that is left */
    size_t at;      /* the position that the metered search has reached */
};

static void *take(size_t n, void *tag) {
    (void)tag;
    void *block = mem_alloc_raw(n, 1);
    if (block) mem_written(block, n); /* by PCRE2, which alone uses it */
    return block;
}

static void give(void *block, void *tag) {
    (void)tag;
    mem_free(block);
}

static mn_status compile(pcre2_code **out, uint32_t more_options, const bytes *text, const char *source,
                         pcre2_general_context *general, const char *what) {
    pcre2_compile_context *context = pcre2_compile_context_create(general);
    if (!context) return mem_no_memory();
    pcre2_set_parens_nest_limit(context, MAX_NEST);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE at = 0;
    *out = pcre2_compile((PCRE2_SPTR)(text->data ? text->data : ""), text->n,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | more_options, &code, &at,
                         context);
    pcre2_compile_context_free(context);
    if (*out) return MN_OK;
    if (code == PCRE2_ERROR_HEAP_FAILED) return mem_no_memory();
    PCRE2_UCHAR reason[160] = {0};
    pcre2_get_error_message(code, reason, sizeof reason);
    MN_FAIL(MN_E_FORMAT, "%s: bad regular expression '%s': %s", what, source, (const char *)reason);
}

/* Without machine code the interpreter does the same more slowly. */
static mn_status compile_both(regex *r, const bytes *text, pcre2_general_context *general, const char *what) {
    size_t size = SIZE_MAX;
    MN_TRY(compile(&r->metered, PCRE2_AUTO_CALLOUT | PCRE2_NO_START_OPTIMIZE, text, r->source, general, what));
    pcre2_jit_compile(r->metered, PCRE2_JIT_COMPLETE);
    MN_TRY(compile(&r->quick, 0, text, r->source, general, what));
    pcre2_pattern_info(r->quick, PCRE2_INFO_SIZE, &size);
    if (size <= QUICK_CODE && !(text->n && memmem(text->data, text->n, "\\G", 2))) { /* \G: where the search begins */
        pcre2_jit_compile(r->quick, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    } else {
        pcre2_code_free(r->quick);
        r->quick = NULL;
    }
    return MN_OK;
}

static mn_status open_translated(regex **out, const bytes *text, const char *shown, size_t n_shown, const char *what) {
    *out = NULL;
    MN_TRY(bytes_status(text));
    regex *r = mem_alloc(1, sizeof *r);
    pcre2_general_context *general = r ? pcre2_general_context_create(take, give, NULL) : NULL;
    if (general) r->source = mem_copy_text(shown, utf8_valid_prefix(shown, n_shown < SHOWN ? n_shown : SHOWN));
    mn_status status = general && r->source ? compile_both(r, text, general, what) : mem_no_memory();
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
        MN_FAIL(MN_E_FORMAT, "%s: a regular expression of %zu bytes, at most %d are allowed", what, n, MAX_PATTERN);
    bytes text = {0};
    mn_status status = regex_translate(&text, pattern, n, what);
    if (status == MN_OK) status = open_translated(out, &text, pattern, n, what);
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
    mn_status status = open_translated(out, &escaped, text, n, what);
    bytes_clear(&escaped);
    return status;
}

void regex_close(regex **pattern) {
    if (!*pattern) return;
    pcre2_code_free((*pattern)->quick);
    pcre2_code_free((*pattern)->metered);
    mem_free((*pattern)->source);
    mem_free(*pattern);
    *pattern = NULL;
}

/* Called before each item of a metered pattern. */
static int charge(pcre2_callout_block *block, void *arg) {
    regex_state *state = arg;
    mem_written(block, sizeof *block);
    size_t at = block->current_position, work = at > state->at ? at - state->at + 1 : 1;
    state->at = at;
    if (work > state->room) return PCRE2_ERROR_MATCHLIMIT;
    state->room -= work;
    return 0;
}

mn_status regex_state_open(regex_state **out, size_t n) {
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
    state->room = WORK_BASE + (uint64_t)WORK_PER_BYTE * n;
    pcre2_set_heap_limit(state->context, HEAP_KIB);
    pcre2_set_callout(state->context, charge, state);
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

/* Only where it changes: most searches are quick ones. */
static void set_limit(regex_state *state, uint64_t most) {
    uint32_t limit = most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
    if (state->limit == limit) return;
    state->limit = limit;
    pcre2_set_match_limit(state->context, limit);
    pcre2_set_depth_limit(state->context, limit);
}

/* Searches text[from..*end), the next QUICK_BYTES or what is left. PCRE2_ERROR_PARTIAL: what follows matters. */
static int search_quick(const regex *pattern, regex_state *state, const char *text, size_t n, size_t from,
                        size_t *end) {
    uint32_t options = PCRE2_NO_UTF_CHECK;
    *end = n;
    if (n - from > QUICK_BYTES) {
        *end = from + QUICK_BYTES;
        while (((unsigned char)text[*end] & 0xC0) == 0x80) --*end;
        options |= PCRE2_PARTIAL_HARD;
    }
    set_limit(state, QUICK_LIMIT);
    return pcre2_match(pattern->quick, (PCRE2_SPTR)text, *end, from, options, state->data, state->context);
}

static int search_metered(const regex *pattern, regex_state *state, const char *text, size_t n, size_t from) {
    int count = PCRE2_ERROR_JIT_STACKLIMIT;
    set_limit(state, state->room);
    for (uint32_t more = 0; count == PCRE2_ERROR_JIT_STACKLIMIT; more = PCRE2_NO_JIT) {
        state->at = from;
        count = pcre2_match(pattern->metered, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | more, state->data,
                            state->context);
    }
    return count;
}

static bool is_limit(int count) {
    return count == PCRE2_ERROR_MATCHLIMIT || count == PCRE2_ERROR_DEPTHLIMIT || count == PCRE2_ERROR_HEAPLIMIT ||
           count == PCRE2_ERROR_JIT_STACKLIMIT;
}

mn_status regex_find(const regex *pattern, regex_state *state, const char *text, size_t n, size_t from, bool *found,
                     size_t *start, size_t *end) {
    int count = PCRE2_ERROR_PARTIAL;
    for (size_t at = from, seen = from;; at = seen) {
        if (pattern->quick) count = search_quick(pattern, state, text, n, at, &seen);
        if (count == PCRE2_ERROR_NOMATCH && seen < n) continue;
        if (count == PCRE2_ERROR_PARTIAL || is_limit(count)) count = search_metered(pattern, state, text, n, at);
        break;
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
    if (is_limit(count)) {
        MN_FAIL(
            MN_E_FORMAT,
            "the regular expression '%s' is too costly for this text of %zu bytes, at most %d steps for each are allowed",
            pattern->source, n, WORK_PER_BYTE);
    }
    PCRE2_UCHAR reason[160] = {0};
    pcre2_get_error_message(count, reason, sizeof reason);
    MN_FAIL(MN_E_FORMAT, "the regular expression '%s' cannot be applied to this text of %zu bytes: %s", pattern->source,
            n, (const char *)reason);
}
