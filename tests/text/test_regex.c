/* Regular expressions of tokenizers against Oniguruma: texts without their matches, by the Python package tokenizers
 * 0.22.2.
 * SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/regex.h"

#include "support/support.h"

static const struct {
    const char *pattern, *text, *rest;
} cases[] = {
    {"\\w+", "e\u0301a \u0939\u093F\u0928\u094D\u0926\u0940 \u0663\u0664 a_b a\u203Fb \u00B2 \u2460 \u24B6 \u200D",
     "      \u2460  \u200D"},
    {"\\W+", "e\u0301a-\u00B2\u2460", "e\u0301a\u00B2"},
    {"[\\w']+", "it's \u0939\u093F \u00B2x", "  \u00B2"},
    {"[^\\w]+", "e\u0301a, \u00B2", "e\u0301a"},
    {"[\\W]+", "e\u0301a, \u00B2b", "e\u0301ab"},
    {"[\\W_]+", "a_b, \u00E9!", "ab\u00E9"},
    {"[^\\W\\d_]+", "ab1_\u00DFe\u0301", "1_"},
    {"\\b.", "ab e\u0301f \u0939\u093F", "b\u0301f\u093F"},
    {".\\b", "ab e\u0301f \u0939\u093F", "ae\u0301\u0939"},
    {"\\B.", "ab e\u0301f", "a e"},
    {"\\h+", "0aFg\tx \u00E9", "g\tx \u00E9"},
    {"\\H+", "0aFg\tx", "0aF"},
    {"[\\hx]+", "0aFgx", "g"},
    {"\\u4e00", "\u4E00\u4E01u4e00", "\u4E01u4e00"},
    {"[\\u4e00-\\u9fff]+", "a\u4F60\u597Db", "ab"},
    {"^a", "a\naa\n", "\na\n"},
    {"a$", "aa\na\nb", "a\n\nb"},
    {"^.", "ab\ncd\n", "b\nd\n"},
    {".+", "a\nb", "\n"},
    {"(?m).+", "a\nb", ""},
    {"(?m:a.)b", "a\nb a b", " "},
    {"(?i)A", "aA", ""},
    {"(?mi)A.", "a\nb", "b"},
    {"(?-m)a.", "a\nab", "a\n"},
    {"a{,2}b", "aaab b", "a "},
    {"a{,2", "a{,2 aa", " aa"},
    {"[a[bc]d]+", "abcde", "e"},
    {"[^a[bc]]+", "abcde", "abc"},
    {" ?[^(\\s|[.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C])]+", " ab, (c) d\u3002e", ", ()\u3002"},
    {"[[:digit:]x]+", "12x3a", "a"},
    {"[]a]+", "]ab", "b"},
    {"\\Q.\\E", "Q.E a.b QxE", " a.b "},
    {"\\s+", "a\302\205\u00A0\u180E\u2028 b", "a\u180Eb"},
    {"[^\\s]+", "a\302\205b c", "\302\205 "},
    {"(?#[a)b", "ab[a", "a[a"},
    {"\\p{N}{1,3}(?=(?:\\p{N}{3})*\\b)", "1234567 12345e\u0301", " 12345e\u0301"},
};

static void matches_are_those_of_oniguruma(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text;
        size_t n = strlen(text), at = 0, start, end;
        regex *pattern = NULL;
        regex_state *search = NULL;
        bytes rest = {0};
        bool found = true;
        assert_ok(regex_open(&pattern, cases[i].pattern, strlen(cases[i].pattern), "test"));
        assert_ok(regex_state_open(&search, n));
        while (at < n) {
            assert_ok(regex_find(pattern, search, text, n, at, &found, &start, &end));
            if (!found) break;
            assert_true(end > start);
            bytes_append(&rest, text + at, start - at);
            at = end;
        }
        bytes_append(&rest, text + at, n - at);
        bytes_append(&rest, "", 1);
        assert_ok(bytes_status(&rest));
        if (strcmp(rest.data, cases[i].rest) != 0)
            fail_msg("%s leaves '%s' of '%s', Oniguruma '%s'", cases[i].pattern, rest.data, text, cases[i].rest);
        bytes_clear(&rest);
        regex_state_close(&search);
        regex_close(&pattern);
    }
}

static void what_is_not_read_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *problem;
        mn_status code;
    } refused[] = {
        {"[a-z&&[aeiou]]", "m.json: the regular expression '[a-z&&[aeiou]]' has sets joined by &&", MN_E_UNSUPPORTED},
        {"[a[^b]]", "has a negated set inside another", MN_E_UNSUPPORTED},
        {"[[[[[[[[[[a]]]]]]]]]]", "has sets that are too deep inside each other", MN_E_UNSUPPORTED},
        {"[a", "bad regular expression '[a'", MN_E_FORMAT},
        {"[\\W", "bad regular expression '[\\W'", MN_E_FORMAT},
        {"a[b[c]", "bad regular expression 'a[b[c]'", MN_E_FORMAT},
        {"\\u12", "bad regular expression '\\u12'", MN_E_FORMAT},
        {"(?mi", "bad regular expression '(?mi'", MN_E_FORMAT},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        regex *pattern = NULL;
        const char *text = refused[i].pattern;
        assert_fails(refused[i].code, refused[i].problem, regex_open(&pattern, text, strlen(text), "m.json"));
        assert_null(pattern);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_are_those_of_oniguruma),
        cmocka_unit_test(what_is_not_read_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
