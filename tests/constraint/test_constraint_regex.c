/* Regular expressions as constraints, without tokens: a prefix of a random text is accepted exactly when PCRE2 matches
 * the whole prefix, every reachable state can be completed, and unsupported syntax is refused with its position.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "constraint/run.h"
#include "support/support.h"
#include "text/tokenizer/regex.h"

enum { LONGEST = 24 };

typedef struct machine {
    net g;
    run r;
} machine;

static void machine_open(machine *m, const char *pattern) {
    assert_ok(net_open(&m->g));
    uint32_t root = net_regex(&m->g, pattern, strlen(pattern), &(net_pattern){.max = NET_MANY}, NET_END);
    assert_ok(net_finish(&m->g, root));
    assert_ok(run_open(&m->r, &m->g));
}

static void machine_close(machine *m) {
    run_clear(&m->r);
    net_clear(&m->g);
}

/* The state after a text. */
static uint32_t after(machine *m, const char *text, size_t n) {
    uint32_t state = m->r.start;
    m->r.steps = 0;
    for (size_t i = 0; i < n && state != RUN_DEAD; i++) assert_ok(run_step(&m->r, state, (uint8_t)text[i], &state));
    return state;
}

static bool takes(machine *m, const char *text, size_t n) {
    uint32_t state = after(m, text, n);
    return m->r.states[state].accepts;
}

/* Engines differ: \d and \w are ASCII here, "{," and "&&" plain text. */
static void oracle_pattern(bytes *out, const char *pattern) {
    bool in_class = false;
    bytes_append_text(out, "\\A(?:");
    for (size_t i = 0; pattern[i]; i++) {
        const char *set = NULL;
        if (pattern[i] == '\\') {
            char c = pattern[i + 1];
            set = c == 'd' ? "0-9" : c == 'w' ? "A-Za-z0-9_" : c == 'D' ? "^0-9" : c == 'W' ? "^A-Za-z0-9_" : NULL;
            if (set)
                bytes_printf(out, in_class ? "%s" : "[%s]", set);
            else
                bytes_append(out, pattern + i, 2);
            i++;
            continue;
        }
        if (pattern[i] == '[') in_class = true;
        if (pattern[i] == ']') in_class = false;
        if (pattern[i] == '&' || (pattern[i] == '{' && pattern[i + 1] == ',')) bytes_append_text(out, "\\");
        bytes_append(out, pattern + i, 1);
    }
    bytes_append_text(out, ")\\z");
}

static const char *const patterns[] = {
    "",
    "a",
    "abc",
    "a|b",
    "a|",
    "|a",
    "(a|b)*abb",
    "a*",
    "a+",
    "a?",
    "a{3}",
    "a{2,4}",
    "a{2,}",
    "a{0,2}b",
    "(ab){2,3}",
    "(a|ab)(c|bcd)(d*)",
    "(a*)*",
    "(a*)+b",
    "(a?){3}",
    "(a?b?){2,3}",
    "((a|b){2}){2}",
    "(a{2}){3}",
    "(a{1,2}){2,3}",
    "(a|aa)+",
    "(a|aa)+b",
    "((a?)?)?",
    "(|a)+",
    "(a{0,2}b{0,2}){2}",
    "(a*b*){2,}",
    "((ab?)+c?){2}",
    "(?:a{2,}b){1,2}",
    "(a{2,3}){2,}c",
    "((a{0,1}){2}){2}b",
    "(b|(a{2})*){3}",
    "[abc]",
    "[^abc]",
    "[a-c]+",
    "[^a-c]+",
    "[a\\-c]+",
    "[-a]+",
    "[a-]+",
    "[\\]a]+",
    "[\\d_]+x",
    "\\d+",
    "\\D",
    "\\w+",
    "\\W+",
    "\\s+a",
    "\\S+",
    ".",
    ".*",
    ".*b",
    "a.c",
    "a.{2}c",
    ".{3}",
    "[^\\n]*",
    "\\n",
    "a\\tb",
    "\\x41+",
    "\\u00e9",
    "[\\u00e0-\\u00ff]+",
    "é",
    "[éß]+",
    "[^é]",
    "é*a",
    "(é|b){2}",
    "[a-é]+",
    "[\\u0430-\\u044f]{1,3}",
    "€|a",
    "[€-₿]",
    "😀+",
    "[😀-😂]|b",
    "[^\\x00-\\x7f]+",
    ".b",
    "\\.",
    "\\*a\\+",
    "a\\|b",
    "\\(\\)",
    "\\{a\\}",
    "a{b",
    "a{,2}",
    "a{1",
    "{",
    "}",
    "]",
    "a{2}{",
    "^a$",
    "^(a|b)$",
    "(^a|b)c?",
    "^a|b$",
    "^^a$$",
    "(?:^a)b",
    "(a|b(c|d(e|f)*)+)?",
    "(?<name>a)b",
    "(?P<n>a|b)+",
    "a*?b",
    "a+?",
    "a??b",
    "a{1,3}?c",
    "[\\w.]+@[a-c]+\\.(com|de)",
    "-?(0|[1-9]\\d*)(\\.\\d+)?",
    "(a|b)*a(a|b){3}",
    "x*(a{1,3}b?){0,2}y*",
    "(a(b(c)?)?)?d",
    "[\\s\\S]{2}",
    "[a-c&&b]+",
    "\\/a",
    "[/]",
    "\\\\",
    "[\\\\a]+",
    "\\$",
    "\\^a",
    "a-b",
};

static const char *const letters[] = {"a",   "b",  "c", "d", "A", "_",  "0", "1", "9", "-", ".", " ", "\n", "\t",
                                      "é",   "ß",  "€", "😀", "а", "x",  "y", "{", "}", "(", ")", "]", "[",  "@",
                                      "com", "de", "*", "+", "|", "\\", "/", "$", "^", ",", "2", "e", "f",  "&"};

static size_t random_text(uint64_t *seed, char *out) {
    size_t n = 0, count = (size_t)(test_random(seed) % 8), kinds = sizeof letters / sizeof *letters;
    if (test_random(seed) % 3) kinds = 2 + (size_t)(test_random(seed) % 4); /* mostly few letters, so that many match */
    for (size_t i = 0; i < count; i++) {
        const char *letter = letters[test_random(seed) % kinds];
        memcpy(out + n, letter, strlen(letter));
        n += strlen(letter);
    }
    return n;
}

/* A random text that the automaton accepts; whole characters. */
static size_t walk_text(machine *m, uint64_t *seed, char *out) {
    size_t n = 0, whole = 0;
    uint32_t state = m->r.start, next;
    m->r.steps = 0;
    while (n < LONGEST) {
        uint8_t choices[256];
        size_t k = 0;
        for (unsigned b = 0; b < 256; b++) {
            assert_ok(run_step(&m->r, state, (uint8_t)b, &next));
            bool usual = b < 0x80 ? strchr("abcde01 _-.\n", (int)b) != NULL : true;
            if (next != RUN_DEAD && (usual || test_random(seed) % 8 == 0)) choices[k++] = (uint8_t)b;
        }
        if (k == 0) break;
        out[n] = (char)choices[test_random(seed) % k];
        assert_ok(run_step(&m->r, state, (uint8_t)out[n++], &state));
        if (utf8_valid_prefix(out, n) == n) whole = n;
    }
    return whole;
}

static bool matches(const regex *oracle, regex_state *state, const char *text, size_t n) {
    bool found;
    size_t start, end;
    assert_ok(regex_find(oracle, state, text, n, 0, &found, &start, &end));
    return found;
}

/* Cases in which PCRE2 and ECMAScript differ are not compared. */
static bool is_common_ground(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\r' || c == 0xC2 || c == 0xE2 || c == 0xEF || c == 0xE1 || c == 0xE3 || c == '\v' || c == '\f')
            return c == 0xE2 && memcmp(text + i, "€", 3) == 0;
    }
    return true;
}

static void matches_equal_those_of_pcre2(void **state) {
    (void)state;
    uint64_t seed = 1;
    size_t matched = 0, compared = 0;
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        machine m;
        bytes text = {0};
        regex *oracle = NULL;
        regex_state *scratch = NULL;
        char sample[256];
        machine_open(&m, patterns[p]);
        oracle_pattern(&text, patterns[p]);
        assert_ok(regex_open(&oracle, text.data, text.n, "oracle"));
        assert_ok(regex_state_open(&scratch, 1 << 20));
        for (int i = 0; i < 120; i++) {
            size_t n = i % 3 ? random_text(&seed, sample) : walk_text(&m, &seed, sample);
            if (!is_common_ground(sample, n)) continue;
            uint32_t s = m.r.start;
            m.r.steps = 0;
            for (size_t k = 0; k <= n; k++) {
                if (utf8_valid_prefix(sample, k) == k) {
                    bool expected = matches(oracle, scratch, sample, k);
                    if (expected != m.r.states[s].accepts)
                        fail_msg("/%s/ on '%.*s': %d expected", patterns[p], (int)k, sample, expected);
                    matched += expected;
                    compared++;
                } else {
                    assert_false(m.r.states[s].accepts);
                }
                if (k < n) assert_ok(run_step(&m.r, s, (uint8_t)sample[k], &s));
            }
        }
        regex_close(&oracle);
        regex_state_close(&scratch);
        bytes_clear(&text);
        machine_close(&m);
    }
    assert_true(compared > 20000 && matched > 3000 && matched < compared / 2);
}

/* Fewest bytes to an accepting state, breadth first; false when there is none within reach. */
static bool completes(machine *m, uint32_t from) {
    enum { MOST = 4000 };
    static uint32_t queue[MOST];
    size_t head = 0, tail = 0;
    queue[tail++] = from;
    while (head < tail) {
        uint32_t s = queue[head++], next;
        if (m->r.states[s].accepts) return true;
        for (unsigned c = 0; c < m->g.n_classes; c++) {
            assert_ok(run_step(&m->r, s, m->g.sample[c], &next));
            size_t k = 0;
            while (k < tail && queue[k] != next) k++;
            if (next != RUN_DEAD && k == tail && tail < MOST) queue[tail++] = next;
        }
    }
    return false;
}

static void every_reachable_state_can_be_completed(void **state) {
    (void)state;
    static const char *const more[] = {"a([^\\s\\S]|b)", "(a|b[^\\s\\S])*", "(a|[^\\s\\S]){2,3}",
                                       "([^\\s\\S])?a",  "([^\\s\\S])*",    "a{3}(b|c[^\\s\\S])"};
    uint64_t seed = 5;
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns + sizeof more / sizeof *more; p++) {
        machine m;
        char sample[256];
        machine_open(&m, p < sizeof more / sizeof *more ? more[p] : patterns[p - sizeof more / sizeof *more]);
        for (int i = 0; i < 10; i++) {
            size_t n = i ? walk_text(&m, &seed, sample) : 0;
            m.r.steps = 0;
            assert_true(completes(&m, after(&m, sample, n)));
        }
        machine_close(&m);
    }
}

static void unsupported_syntax_is_refused_with_its_position(void **state) {
    (void)state;
    static const struct {
        const char *pattern;
        mn_status code;
        const char *part;
    } rows[] = {
        {"a(?=b)", MN_E_UNSUPPORTED, "looking ahead is not supported (at byte 1)"},
        {"a(?!b)", MN_E_UNSUPPORTED, "looking ahead"},
        {"(?<=a)b", MN_E_UNSUPPORTED, "looking behind is not supported (at byte 0)"},
        {"(?<!a)b", MN_E_UNSUPPORTED, "looking behind"},
        {"(a)\\1", MN_E_UNSUPPORTED, "references back to a group are not supported (at byte 3)"},
        {"(?<n>a)\\k<n>", MN_E_UNSUPPORTED, "references back"},
        {"a\\b", MN_E_UNSUPPORTED, "word borders are not supported (at byte 1)"},
        {"(?i)a", MN_E_UNSUPPORTED, "flags"},
        {"(?>a)", MN_E_UNSUPPORTED, "atomic"},
        {"a*+", MN_E_UNSUPPORTED, "possessive"},
        {"\\p{L}", MN_E_UNSUPPORTED, "Unicode properties"},
        {"[[:alpha:]]", MN_E_UNSUPPORTED, "POSIX"},
        {"a^b", MN_E_UNSUPPORTED, "^ may only stand at the beginning (at byte 1)"},
        {"a$b", MN_E_UNSUPPORTED, "$ may only stand at the end (at byte 1)"},
        {"(a$)?b", MN_E_UNSUPPORTED, "$ may only"},
        {"(^a)*", MN_E_UNSUPPORTED, "^ may only"},
        {"\\01", MN_E_UNSUPPORTED, "octal"},
        {"*a", MN_E_ARG, "nothing to repeat (at byte 0)"},
        {"a**", MN_E_ARG, "nothing to repeat"},
        {"a{2}{3}", MN_E_ARG, "nothing to repeat (at byte 4)"},
        {"^*", MN_E_ARG, "nothing to repeat"},
        {"a$?", MN_E_ARG, "nothing to repeat (at byte 2)"},
        {"(a", MN_E_ARG, "the group has no end (at byte 0)"},
        {"a)", MN_E_ARG, "closing parenthesis"},
        {"[a", MN_E_ARG, "the class has no end"},
        {"[]a]", MN_E_ARG, "empty class"},
        {"[z-a]", MN_E_ARG, "out of order"},
        {"[\\d-z]", MN_E_ARG, "both ends"},
        {"a{3,2}", MN_E_ARG, "out of order"},
        {"a{99999999999}", MN_E_ARG, "a count"},
        {"a\\", MN_E_ARG, "a backslash ends"},
        {"\\q", MN_E_ARG, "no such escape"},
        {"\\ud800", MN_E_ARG, "no character"},
        {"\\x{110000}", MN_E_ARG, "no character"},
        {"\xff", MN_E_ARG, "not UTF-8 at byte 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        net g;
        assert_ok(net_open(&g));
        uint32_t root =
            net_regex(&g, rows[i].pattern, strlen(rows[i].pattern), &(net_pattern){.max = NET_MANY}, NET_END);
        assert_fails(rows[i].code, rows[i].part, net_finish(&g, root));
        net_clear(&g);
    }
}

/* Patterns may hold any bytes, and zeros are characters. */
static void patterns_may_hold_any_bytes(void **state) {
    (void)state;
    machine m;
    net g;
    assert_ok(net_open(&g));
    assert_ok(net_finish(&g, net_regex(&g, "a\0b\\\0", 5, &(net_pattern){.max = NET_MANY}, NET_END)));
    run r;
    assert_ok(run_open(&r, &g));
    m = (machine){g, r};
    m.r.g = &m.g;
    assert_true(takes(&m, "a\0b\0", 4));
    machine_close(&m);
    machine_open(&m, "\\ud83d\\ude00|\\u{1F601}");
    assert_true(takes(&m, "😀", 4) && takes(&m, "😁", 4));
    machine_close(&m);
}

/* A schema's pattern may match anywhere in the text; length limits apply as well. */
static void patterns_of_schemas_match_anywhere(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text;
        uint32_t min, max;
        bool expected;
    } rows[] = {{"b", "abc", 0, NET_MANY, true},
                {"^b", "abc", 0, NET_MANY, false},
                {"^a", "abc", 0, NET_MANY, true},
                {"c$", "abc", 0, NET_MANY, true},
                {"b$", "abc", 0, NET_MANY, false},
                {"^a|x$", "zzx", 0, NET_MANY, true},
                {"^a|x$", "xza", 0, NET_MANY, false},
                {"(^a|x$)|m", "bmb", 0, NET_MANY, true},
                {"(^a|x$)|m", "bxb", 0, NET_MANY, false},
                {"", "abc", 0, NET_MANY, true},
                {"^$", "", 0, NET_MANY, true},
                {"^$", "a", 0, NET_MANY, false},
                {"^[a-c]*$", "abc", 2, 3, true},
                {"^[a-c]*$", "abca", 2, 3, false},
                {"^[a-c]*$", "a", 2, 3, false},
                {"^[a-c]{3}$", "abc", 1, 5, true},
                {"^a{2,8}$", "aaa", 3, 4, true},
                {"^a{2,8}$", "aa", 3, 4, false},
                {"abc", "xabc", 3, NET_MANY, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        machine m;
        net_pattern how = {.search = true, .min = rows[i].min, .max = rows[i].max};
        assert_ok(net_open(&m.g));
        assert_ok(net_finish(&m.g, net_regex(&m.g, rows[i].pattern, strlen(rows[i].pattern), &how, NET_END)));
        assert_ok(run_open(&m.r, &m.g));
        bool accepts = takes(&m, rows[i].text, strlen(rows[i].text));
        if (accepts != rows[i].expected) fail_msg("/%s/ in '%s'", rows[i].pattern, rows[i].text);
        machine_close(&m);
    }
    net g;
    assert_ok(net_open(&g));
    net_regex(&g, "^(ab)*$", 7, &(net_pattern){.search = true, .min = 3, .max = 9}, NET_END);
    assert_fails(MN_E_UNSUPPORTED, "limits of the length", net_finish(&g, NET_END));
    net_clear(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_equal_those_of_pcre2),
        cmocka_unit_test(every_reachable_state_can_be_completed),
        cmocka_unit_test(unsupported_syntax_is_refused_with_its_position),
        cmocka_unit_test(patterns_may_hold_any_bytes),
        cmocka_unit_test(patterns_of_schemas_match_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
