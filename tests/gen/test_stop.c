/* Stop strings: released text does not depend on the pieces in which the text arrives.
 *
 * The rule, byte by byte: the text ends at the first stop string that is complete; of several complete at the same byte
 * the longest counts. Everything before it is released, and no part of it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/stop.h"

#include "support/support.h"

enum { MOST_TEXT = 200, MOST_STOPS = 4 };

/* Length of the text before the stop string, or n. */
static size_t cut(const char *text, size_t n, char *const *stops, size_t n_stops, bool *stopped) {
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (size_t i = 0; i < n_stops; i++) {
            size_t size = strlen(stops[i]);
            if (size <= end && memcmp(text + end - size, stops[i], size) == 0 && size > longest) longest = size;
        }
        if (longest) {
            *stopped = true;
            return end - longest;
        }
    }
    *stopped = false;
    return n;
}

/* Whether the n bytes may be released: no suffix of them begins a stop string. */
static bool may_be_shown(const char *text, size_t n, size_t known, char *const *stops, size_t n_stops) {
    for (size_t i = 0; i < n_stops; i++) {
        size_t size = strlen(stops[i]);
        for (size_t begin = known >= size ? known - size + 1 : 0; begin < n; begin++) {
            if (memcmp(text + begin, stops[i], known - begin) == 0) return false;
        }
    }
    return true;
}

/* Passes the text in random pieces and checks every release; returns the number of released bytes. */
static void check_pieces(const char *text, size_t n, char *const *stops, size_t n_stops, uint64_t *seed) {
    text_list list = {(char **)(uintptr_t)stops, n_stops};
    stop_text s = {.stops = &list};
    bool stopped;
    size_t wanted = cut(text, n, stops, n_stops, &stopped), given = 0, shown = 0;
    while (given < n && !s.stopped) {
        size_t piece = (size_t)(test_random(seed) % 8);
        if (piece > n - given) piece = n - given;
        stop_text_push(&s, text + given, piece, true);
        size_t until = s.text.n;
        given += piece;
        if (until < shown) fail_msg("'%.*s': released text was taken back", (int)n, text);
        if (until > wanted)
            fail_msg("'%.*s': %zu bytes released, a stop string begins at %zu", (int)n, text, until, wanted);
        if (!s.stopped && !may_be_shown(text, until, given, stops, n_stops))
            fail_msg("'%.*s' released %zu bytes of %zu: they may end in a stop string", (int)n, text, until, given);
        if (until && memcmp(s.text.data, text, until) != 0) fail_msg("'%.*s': other text was released", (int)n, text);
        shown = until;
    }
    if (!s.stopped) stop_text_finish(&s);
    /* No more than a stop string's length is held back. */
    if (s.stopped != stopped) fail_msg("'%.*s': stopped %d, expected %d", (int)n, text, s.stopped, stopped);
    if (s.text.n != wanted) fail_msg("'%.*s': %zu bytes are left, expected %zu", (int)n, text, s.text.n, wanted);
    if (s.stopped) {
        assert_int_equal(shown, wanted);
        stop_text_push(&s, "more", 4, true);
        stop_text_finish(&s);
        assert_int_equal(s.text.n, wanted);
    }
    stop_text_clear(&s);
}

/* Few letters, so that stop strings overlap themselves and each other. */
static void random_text(uint64_t *seed, char *text, size_t n, int n_letters) {
    for (size_t i = 0; i < n; i++) text[i] = (char)('a' + (int)(test_random(seed) % (uint64_t)n_letters));
    text[n] = 0;
}

/* The text in two pieces, cut at every place. */
static void check_cuts(const char *text, size_t n, char *const *stops, size_t n_stops) {
    text_list list = {(char **)(uintptr_t)stops, n_stops};
    bool stopped;
    size_t wanted = cut(text, n, stops, n_stops, &stopped);
    for (size_t at = 0; at <= n; at++) {
        stop_text s = {.stops = &list};
        stop_text_push(&s, text, at, true);
        if (s.text.n > wanted || (!s.stopped && !may_be_shown(text, s.text.n, at, stops, n_stops)))
            fail_msg("'%.*s' cut at %zu: %zu bytes released", (int)n, text, at, s.text.n);
        stop_text_push(&s, text + at, n - at, true);
        stop_text_finish(&s);
        if (s.text.n != wanted || s.stopped != stopped)
            fail_msg("'%.*s' cut at %zu: %zu bytes are left, expected %zu", (int)n, text, at, s.text.n, wanted);
        stop_text_clear(&s);
    }
}

static void released_text_does_not_depend_on_the_pieces(void **state) {
    (void)state;
    uint64_t seed = 31;
    for (int round = 0; round < 10000; round++) {
        char text[MOST_TEXT + 1], storage[MOST_STOPS][16], *stops[MOST_STOPS];
        size_t n_stops = 1 + (size_t)(test_random(&seed) % MOST_STOPS), n = (size_t)(test_random(&seed) % MOST_TEXT);
        int n_letters = 2 + (int)(test_random(&seed) % 3);
        for (size_t i = 0; i < n_stops; i++) {
            stops[i] = storage[i];
            random_text(&seed, storage[i], 1 + (size_t)(test_random(&seed) % 9), n_letters);
            /* Some are parts of others. */
            if (i > 0 && test_random(&seed) % 3 == 0) stops[i] = storage[0] + test_random(&seed) % strlen(storage[0]);
        }
        random_text(&seed, text, n, n_letters);
        for (int split = 0; split < 3; split++) check_pieces(text, n, stops, n_stops, &seed);
        check_cuts(text, n < 60 ? n : 60, stops, n_stops);
    }
}

static void known_cases_end_at_the_expected_byte(void **state) {
    (void)state;
    static const struct {
        const char *text, *stops[2], *left;
    } cases[] = {
        {"one, two", {"\n\n", NULL}, "one, two"},
        {"one\n\ntwo", {"\n\n", NULL}, "one"},
        {"aaab", {"aab", NULL}, "a"},
        {"xabcd", {"abcd", "bc"}, "xa"}, /* the inner one is complete first */
        {"xabcd", {"bcd", "abcd"}, "x"}, /* both at once: the longer */
        {"abab", {"abab", "b"}, "a"},
        {"stop", {"stop", NULL}, ""},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char *stops[2] = {(char *)(uintptr_t)cases[c].stops[0], (char *)(uintptr_t)cases[c].stops[1]};
        text_list list = {stops, cases[c].stops[1] ? 2 : 1};
        for (int whole = 0; whole < 2; whole++) {
            stop_text s = {.stops = &list};
            size_t n = strlen(cases[c].text);
            for (size_t i = 0; i < n; i += whole ? n : 1) stop_text_push(&s, cases[c].text + i, whole ? n : 1, true);
            stop_text_finish(&s);
            assert_int_equal(s.text.n, strlen(cases[c].left));
            assert_memory_equal(s.text.n ? s.text.data : "", cases[c].left, s.text.n);
            stop_text_clear(&s);
        }
    }
}

/* Letters in capitals are those of special tokens: stop strings may hold them, nobody sees them. Cut at every place. */
static void special_tokens_are_matched_and_not_shown(void **state) {
    (void)state;
    static const struct {
        const char *text, *stops[2], *left;
        bool stopped;
    } cases[] = {
        {"one XX two", {"XX", NULL}, "one ", true},
        {"one XX two", {"XX t", NULL}, "one ", true},
        {"one XX two", {"ne XX", NULL}, "o", true},
        {"one XX two", {"neX", "e X"}, "on", true},
        {"one XX two", {"X", NULL}, "one ", true},   /* within the token */
        {"one XX two", {"e  t", "XXZ"}, "on", true}, /* in the text that is seen */
        {"one XX two", {"eX", "XXZ"}, "one  two", false},
        {"oXXneXX", {"ne X", "onX"}, "one", false},
        {"one XXYY", {"XY", NULL}, "one ", true}, /* the first X is before it and hidden too */
        {"XXone", {"one", NULL}, "", true},
        {"oneXX", {"neXXY", NULL}, "one", false},
        {"abXXab", {"bXXa", "bX"}, "a", true},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        char *stops[2] = {(char *)(uintptr_t)cases[c].stops[0], (char *)(uintptr_t)cases[c].stops[1]};
        text_list list = {stops, cases[c].stops[1] ? 2 : 1};
        size_t n = strlen(cases[c].text), n_left = strlen(cases[c].left);
        for (size_t cut_at = 0; cut_at <= n; cut_at++) {
            stop_text s = {.stops = &list};
            for (size_t i = 0, end; i < n;
                 i = end) { /* pieces end where text and special tokens meet, and at the cut */
                bool is_text = cases[c].text[i] < 'A' || cases[c].text[i] > 'Z';
                for (end = i + 1; end < n && end != cut_at; end++) {
                    if ((cases[c].text[end] < 'A' || cases[c].text[end] > 'Z') != is_text) break;
                }
                stop_text_push(&s, cases[c].text + i, end - i, is_text);
                if (s.text.n > n_left || (s.text.n && memcmp(s.text.data, cases[c].left, s.text.n) != 0))
                    fail_msg("'%s': '%.*s' was shown", cases[c].text, (int)s.text.n, s.text.data);
            }
            stop_text_finish(&s);
            assert_int_equal(s.stopped, cases[c].stopped);
            assert_int_equal(s.text.n, n_left);
            stop_text_clear(&s);
        }
    }
}

static void without_stop_strings_everything_is_released(void **state) {
    (void)state;
    text_list none = {0};
    stop_text s = {.stops = &none};
    static const char *const pieces[] = {"abc", "", "d"};
    for (int i = 0; i < 3; i++) {
        stop_text_push(&s, pieces[i], strlen(pieces[i]), true);
        stop_text_push(&s, "<x>", 3, false);
        assert_int_equal(s.text.n, i < 2 ? 3 : 4);
    }
    assert_false(s.stopped);
    stop_text_clear(&s);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    char *stops[] = {(char *)(uintptr_t) "end"};
    text_list list = {stops, 1};
    for (int64_t k = 1; k <= 2; k++) {
        stop_text s = {.stops = &list};
        mem_fail_after(k);
        stop_text_push(&s, "some text", 9, true);
        mem_fail_after(0);
        assert_int_equal(bytes_status(&s.text), MN_E_NOMEM);
        stop_text_clear(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_text_does_not_depend_on_the_pieces),
        cmocka_unit_test(known_cases_end_at_the_expected_byte),
        cmocka_unit_test(special_tokens_are_matched_and_not_shown),
        cmocka_unit_test(without_stop_strings_everything_is_released),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
