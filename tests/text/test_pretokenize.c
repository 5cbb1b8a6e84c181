/* The hand-written scanners against the patterns that they implement, run by PCRE2; Unicode classes; split behaviours.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include "text/tokenizer/pretokenize.h"

typedef struct word_list {
    bytes ends; /* uint32_t: the end of each word in the concatenated text */
    bytes text;
} word_list;

static mn_status collect(void *arg, const char *word, size_t n) {
    word_list *list = arg;
    bytes_append(&list->text, word, n);
    uint32_t end = (uint32_t)list->text.n;
    bytes_append(&list->ends, &end, sizeof end);
    return MN_OK;
}

static void words_clear(word_list *list) {
    bytes_clear(&list->ends);
    bytes_clear(&list->text);
}

/* Pieces that the patterns treat differently: letters, digits, spaces and other characters of one to four bytes. */
static const char *const pieces[] = {"a",
                                     "Z",
                                     "e\xCC\x81",
                                     "\xC3\x9F",
                                     "\xE6\x97\xA5",
                                     "\xF0\x9D\x94\xB8",
                                     "1",
                                     "23",
                                     "\xC2\xBD",
                                     "\xE2\x85\xA3",
                                     "\xD9\xA3",
                                     " ",
                                     "  ",
                                     "\t",
                                     "\n",
                                     "\r\n",
                                     "\n\n",
                                     "\xC2\xA0",
                                     "\xE3\x80\x80",
                                     "\xC2\x85",
                                     "\xE1\xA0\x8E",
                                     "'s",
                                     "'S",
                                     "'\xC5\xBF",
                                     "'ll",
                                     "'Ll",
                                     "'re",
                                     "'v",
                                     "'",
                                     "\"",
                                     ".",
                                     "!!",
                                     "\xE2\x80\x99",
                                     "\xF0\x9F\x98\x80",
                                     "\xE2\x80\x8D",
                                     "_",
                                     "$",
                                     "\x7F",
                                     "\x01",
                                     "-"};

/* A random character that PCRE2's Unicode tables (older than utf8proc's) know. */
static void append_random(bytes *text, uint64_t *seed, const regex *unassigned, regex_state *state) {
    uint32_t code = (uint32_t)(test_random(seed) % (test_random(seed) % 2 ? 0x3000 : 0x1F000));
    if (code >= 0xD800 && code < 0xE000) return;
    char sequence[4];
    size_t n = utf8_encode(sequence, code), start, end;
    bool found;
    assert_ok(regex_find(unassigned, state, sequence, n, 0, &found, &start, &end));
    if (!found) bytes_append(text, sequence, n);
}

static void compare(const pretokenizer *scanned, const pretokenizer *general, const unicode_table *classes,
                    const bytes *text) {
    pre_state state = {.n_text = text->n};
    word_list a = {{0}, {0}}, b = {{0}, {0}};
    assert_ok(pretokenize(scanned, classes, &state, text->data, text->n, true, collect, &a));
    assert_ok(pretokenize(general, classes, &state, text->data, text->n, true, collect, &b));
    assert_int_equal(a.text.n, text->n);
    bool same = a.ends.n == b.ends.n && memcmp(a.ends.data, b.ends.data, a.ends.n) == 0;
    if (!same) fail_msg("the scanner and the pattern split '%.*s' differently", (int)text->n, text->data);
    words_clear(&a);
    words_clear(&b);
    pre_state_clear(&state);
}

static void scanners_equal_their_patterns(void **test_state) {
    (void)test_state;
    static const char *const patterns[N_SCANNERS][2] = {[SCAN_GPT2] = {PATTERN_GPT2, NULL},
                                                        [SCAN_DIGITS_GPT2] = {"\\p{N}", PATTERN_GPT2},
                                                        [SCAN_LLAMA3] = {PATTERN_LLAMA3, NULL},
                                                        [SCAN_QWEN2] = {PATTERN_QWEN2, NULL}};
    unicode_table *classes;
    regex *unassigned;
    regex_state *state;
    assert_ok(unicode_table_open(&classes));
    assert_ok(regex_open(&unassigned, "\\p{Cn}", 6, "test"));
    assert_ok(regex_state_open(&state, 1 << 20));
    uint64_t seed = 1;
    for (int scanner = 0; scanner < N_SCANNERS; scanner++) {
        pretokenizer scanned = {.n = 0}, general = {.n = 0};
        assert_ok(pretokenizer_add_scan(&scanned, (pre_scanner)scanner, "test"));
        for (int i = 0; i < 2 && patterns[scanner][i]; i++) {
            assert_ok(pretokenizer_add_regex(&general, patterns[scanner][i], SPLIT_ISOLATED, "test"));
        }
        for (int i = 0; i < 3000; i++) {
            bytes text = {0};
            bytes_append_text(&text, "x");
            for (uint64_t n = test_random(&seed) % 24; n > 0; n--) {
                const char *piece = pieces[test_random(&seed) % (sizeof pieces / sizeof *pieces)];
                size_t times =
                    i % 32 ? 1 : 1 + test_random(&seed) % 200; /* words longer than the scanner's fast path covers */
                if (test_random(&seed) % 4 == 0) append_random(&text, &seed, unassigned, state);
                while (times-- > 0) bytes_append_text(&text, piece);
            }
            compare(&scanned, &general, classes, &text);
            bytes_clear(&text);
        }
        pretokenizer_clear(&scanned);
        pretokenizer_clear(&general);
    }
    regex_state_close(&state);
    regex_close(&unassigned);
    unicode_table_close(&classes);
}

/* Every code point against PCRE2's properties, where PCRE2 knows it. */
static void classes_equal_properties(void **test_state) {
    (void)test_state;
    static const struct {
        const char *pattern;
        unsigned bit;
    } rows[] = {
        {"\\p{L}", UNICODE_LETTER}, {"\\p{N}", UNICODE_NUMBER}, {"\\p{M}", UNICODE_MARK}, {"\\s", UNICODE_SPACE}};
    unicode_table *classes;
    regex *unassigned, *patterns[4];
    regex_state *state;
    assert_ok(unicode_table_open(&classes));
    assert_ok(regex_state_open(&state, 1 << 20));
    assert_ok(regex_open(&unassigned, "\\p{Cn}", 6, "test"));
    for (int i = 0; i < 4; i++) assert_ok(regex_open(&patterns[i], rows[i].pattern, strlen(rows[i].pattern), "test"));
    for (uint32_t code = 0; code < 0x110000; code += code < 0x40000 ? 1 : 97) {
        if (code >= 0xD800 && code < 0xE000) continue;
        char sequence[4];
        size_t n = utf8_encode(sequence, code), start, end;
        bool found;
        assert_ok(regex_find(unassigned, state, sequence, n, 0, &found, &start, &end));
        for (int i = 0; i < 4 && !found; i++) {
            bool has;
            assert_ok(regex_find(patterns[i], state, sequence, n, 0, &has, &start, &end));
            if (has != !!(unicode_class(classes, code) & rows[i].bit)) fail_msg("U+%04X and %s", code, rows[i].pattern);
        }
    }
    for (int i = 0; i < 4; i++) regex_close(&patterns[i]);
    regex_close(&unassigned);
    regex_state_close(&state);
    unicode_table_close(&classes);
}

/* Expected as the package tokenizers splits them; words are shown with bars between. */
static void split_behaviours_equal_tokenizers(void **test_state) {
    (void)test_state;
    static const struct {
        const char *pattern;
        split_behavior behavior;
        bool invert;
        const char *text, *expected;
    } rows[] = {
        {"b", SPLIT_MERGED_WITH_PREVIOUS, false, "abbbcb", "ab|b|b|cb|"},
        {"b", SPLIT_MERGED_WITH_NEXT, false, "abbbcb", "a|b|b|bc|b|"},
        {"b", SPLIT_CONTIGUOUS, false, "abbbcb", "a|bbb|c|b|"},
        {"b", SPLIT_REMOVED, false, "abbbcb", "a|c|"},
        {"b", SPLIT_REMOVED, true, "abbbcb", "b|b|b|b|"},
        {"x*", SPLIT_ISOLATED, false, "abxxc", "a|b|xx|c|"},
        {"a*", SPLIT_MERGED_WITH_NEXT, false, "abc aab", "ab|c| |aab|"}, /* no empty match behind another match */
        {"\\b", SPLIT_CONTIGUOUS, false, "abc aab", "abc| |aab|"},
        {PATTERN_WHITESPACE, SPLIT_REMOVED, true, "a.b ,c_d e", "a|.|b|,|c_d|e|"},
        {PATTERN_WHITESPACE, SPLIT_REMOVED, true, "a\u200Db\u00B2x e\u0301!", "a\u200Db|\u00B2|x|e\u0301|!|"},
    };
    unicode_table *classes;
    assert_ok(unicode_table_open(&classes));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pretokenizer p = {.n = 0};
        assert_ok(pretokenizer_add_regex(&p, rows[i].pattern, rows[i].behavior, "test"));
        p.steps[0].invert = rows[i].invert;
        pre_state state = {0};
        word_list words = {{0}, {0}};
        assert_ok(pretokenize(&p, classes, &state, rows[i].text, strlen(rows[i].text), true, collect, &words));
        bytes shown = {0};
        for (size_t k = 0, from = 0; k < words.ends.n; k += 4) {
            uint32_t end;
            memcpy(&end, words.ends.data + k, 4);
            bytes_printf(&shown, "%.*s|", (int)(end - from), words.text.data + from);
            from = end;
        }
        assert_string_equal(bytes_text(&shown), rows[i].expected);
        bytes_clear(&shown);
        words_clear(&words);
        pre_state_clear(&state);
        pretokenizer_clear(&p);
    }
    unicode_table_close(&classes);
}

static void normalization_forms_are_applied(void **test_state) {
    (void)test_state;
    static const struct {
        unicode_form form;
        const char *text, *expected;
    } rows[] = {
        {UNICODE_NFC, "xe\xCC\x81y", "x\xC3\xA9y"},
        {UNICODE_NFC, "\xC3\xA9\xCC\xA3", "\xE1\xBA\xB9\xCC\x81"},               /* marks are reordered */
        {UNICODE_NFC, "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB.", "\xED\x95\x9C."}, /* Hangul */
        {UNICODE_NFD, "\xC3\xA9", "e\xCC\x81"},
        {UNICODE_NFKC, "\xEF\xAC\x81 \xC2\xBD",
         "fi 1\xE2\x81\x84"
         "2"},
        {UNICODE_NFKD, "\xC3\xA9\xEF\xAC\x81",
         "e\xCC\x81"
         "fi"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bytes out = {0};
        assert_ok(unicode_normalize(rows[i].form, rows[i].text, strlen(rows[i].text), &out));
        assert_string_equal(bytes_text(&out), rows[i].expected);
        bytes_clear(&out);
    }
    bytes out = {0};
    unicode_lower("\xC4\xB0X\xCE\xA3", 5, &out);
    assert_string_equal(bytes_text(&out), "i\xCC\x87x\xCF\x83");
    bytes_clear(&out);
}

static void catastrophic_patterns_are_stopped(void **test_state) {
    (void)test_state;
    static const char *const patterns[] = {"(a+)+$", "(?:a|a)*b", "(a*)*\\1c"};
    char text[64];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'x';
    regex_state *state;
    assert_ok(regex_state_open(&state, 1 << 20));
    for (size_t i = 0; i < 3; i++) {
        regex *r;
        bool found;
        size_t start, end;
        assert_ok(regex_open(&r, patterns[i], strlen(patterns[i]), "test"));
        mn_status status = regex_find(r, state, text, sizeof text, 0, &found, &start, &end);
        if (status != MN_OK) assert_fails(MN_E_FORMAT, "too costly", status);
        if (i == 0) assert_int_equal(status, MN_E_FORMAT);
        regex_close(&r);
    }
    regex *r = NULL;
    assert_fails(MN_E_FORMAT, "bad regular expression '(a'", regex_open(&r, "(a", 2, "test"));
    assert_fails(MN_E_FORMAT, "at most", regex_open(&r, text, 1 << 20, "test"));
    regex_state_close(&state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scanners_equal_their_patterns),     cmocka_unit_test(classes_equal_properties),
        cmocka_unit_test(split_behaviours_equal_tokenizers), cmocka_unit_test(normalization_forms_are_applied),
        cmocka_unit_test(catastrophic_patterns_are_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
