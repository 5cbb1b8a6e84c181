/* Words against those of Transformers for the same ids, times against the rule by hand, and random bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#include "speech/words.h"

#include <math.h>

#include "support/support.h"

enum { MOST = 600 };

static int64_t begins[MOST + 1]; /* id i begins at 10 i: no word is unusually long */

static int set_up(void **state) {
    (void)state;
    for (int i = 0; i <= MOST; i++) begins[i] = 10 * i;
    return 0;
}

static void append_hex(bytes *text, const json *piece) {
    for (size_t i = 0; i + 1 < piece->n; i += 2) {
        const char digits[] = {piece->string[i], piece->string[i + 1], 0};
        char c = (char)strtoul(digits, NULL, 16);
        bytes_append(text, &c, 1);
    }
}

static void check_case(const json *test) {
    bytes text = {0};
    size_t ends[MOST];
    speech_word words[MOST];
    const char *name = json_get(test, "name")->string;
    const json *pieces = json_get(test, "pieces"), *wanted = json_get(test, "words"),
               *counts = json_get(test, "tokens");
    assert_true(pieces->n <= MOST);
    for (size_t i = 0; i < pieces->n; i++) {
        append_hex(&text, &pieces->items[i]);
        ends[i] = text.n;
    }
    bool has_spaces = speech_language_has_spaces(json_get(test, "language")->string);
    size_t n = speech_words(words, text.data, ends, pieces->n, begins, has_spaces), token = 0;
    if (n != wanted->n) fail_msg("%s: %zu words, expected %zu", name, n, wanted->n);
    for (size_t i = 0; i < n; i++) {
        const json *word = &wanted->items[i];
        size_t n_text = words[i].text_end - words[i].text_begin;
        if (n_text != word->n || memcmp(text.data + words[i].text_begin, word->string, n_text) != 0)
            fail_msg("%s: word %zu is '%.*s', expected '%s'", name, i, (int)n_text, text.data + words[i].text_begin,
                     word->string);
        assert_int_equal(words[i].token_begin, token);
        token += (size_t)counts->items[i].integer;
        assert_int_equal(words[i].token_end, token);
    }
    bytes_clear(&text);
}

static void words_equal_those_of_transformers(void **state) {
    (void)state;
    json_doc *doc = open_json(data_path("golden/whisper-words/cases.json"));
    const json *cases = json_get(json_root(doc), "cases");
    assert_true(cases->n > 25);
    for (size_t i = 0; i < cases->n; i++) check_case(&cases->items[i]);
    json_close(&doc);
}

/* ---- times ---- */

/* Pieces one id each; n_begins = pieces + 1 positions. */
static size_t words_of(speech_word *words, const char *const *pieces, size_t n, const int64_t *at) {
    static bytes text;
    size_t ends[32];
    text.n = 0;
    for (size_t i = 0; i < n; i++) {
        bytes_append_text(&text, pieces[i]);
        ends[i] = text.n;
    }
    size_t n_words = speech_words(words, text.data, ends, n, at, true);
    bytes_clear(&text);
    return n_words;
}

static void expect_times(const speech_word *word, double start, double end) {
    assert_true(fabs(word->start - start) < 1e-9 && fabs(word->end - end) < 1e-9);
}

static void times_follow_the_rule(void **state) {
    (void)state;
    static const char *const pieces[] = {" -", " The", " o", "wl", ",", " gone", ".", " Now", " what", "?\""};
    const int64_t at[] = {0, 5, 20, 30, 40, 60, 80, 81, 101, 121, 125};
    speech_word words[16];
    assert_int_equal(words_of(words, pieces, 10, at), 5);
    expect_times(&words[0], 0.10, 0.40); /* punctuation does not change times */
    expect_times(&words[1], 0.40, 0.80);
    expect_times(&words[2], 1.20, 1.60);
    expect_times(&words[3], 1.62, 2.02);
    expect_times(&words[4], 2.02,
                 2.50); /* "?\"" is not in the list of closing marks: it belongs to the word before it */
    assert_int_equal(words[0].token_begin, 0);
    assert_int_equal(words[2].token_end, 7);
    static const char *const apart[] = {" Now ", "!", " then", "!"}; /* not after a space */
    assert_int_equal(words_of(words, apart, 4, at), 3);
}

static void pauses_belong_to_no_word(void **state) {
    (void)state;
    static const char *const pieces[] = {" One", " two", " three", ".", " Four", " five"};
    /* Durations 10, 10, 12, 300, 200, 20: the median is 16 positions, 0.32 s. */
    const int64_t at[] = {0, 10, 20, 32, 332, 532, 552};
    speech_word words[16];
    assert_int_equal(words_of(words, pieces, 6, at), 5);
    expect_times(&words[2], 0.40, 0.64);
    expect_times(&words[3], 10.64 - 0.64, 10.64); /* after a full stop: its end is moved */
    expect_times(&words[4], 10.64, 11.04);
    /* Elsewhere a long word is unchanged; the usual length is at most 0.7 s. */
    const int64_t slow[] = {0, 100, 200, 300, 310, 500, 600};
    assert_int_equal(words_of(words, pieces, 6, slow), 5);
    expect_times(&words[0], 0.0, 2.0);
    expect_times(&words[1], 2.0, 4.0);
    expect_times(&words[3], 10.0 - 1.4, 10.0);
    const int64_t nothing[] = {7, 7, 7, 7, 7, 7, 7};
    assert_int_equal(words_of(words, pieces, 6, nothing), 5);
    expect_times(&words[4], 0.14, 0.14);
}

/* Random bytes, divided anywhere: the words are in order and cover every id with text, and none ends inside a
 * character. */
static void any_bytes_give_ordered_words(void **state) {
    (void)state;
    static const char *const parts[] = {" ",        "a",    ".",    "\"", " \"",  "\xE4", "\xB8", "\xAD",
                                        "\xF0\x9F", "\x91", "\xA9", "",   "\xFF", "(",    " -",   "\n"};
    uint64_t seed = 8;
    for (int round = 0; round < 5000; round++) {
        speech_word words[40];
        size_t ends[40], n = test_random(&seed) % 40;
        bytes text = {0};
        for (size_t i = 0; i < n; i++) {
            bytes_append_text(&text, parts[test_random(&seed) % 16]);
            ends[i] = text.n;
        }
        size_t n_words = speech_words(words, text.data, ends, n, begins, round % 2 == 0), at = 0;
        for (size_t i = 0; i < n_words; i++) {
            assert_true(words[i].text_begin == at && words[i].text_end > at);
            assert_true(words[i].token_begin < words[i].token_end && words[i].token_end <= n);
            assert_int_equal(words[i].text_end, ends[words[i].token_end - 1]);
            assert_true(words[i].end >= words[i].start);
            at = words[i].text_end;
        }
        assert_int_equal(at, text.n);
        bytes_clear(&text);
    }
    assert_int_equal(speech_words(NULL, NULL, NULL, 0, begins, true), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_equal_those_of_transformers),
        cmocka_unit_test(times_follow_the_rule),
        cmocka_unit_test(pauses_belong_to_no_word),
        cmocka_unit_test(any_bytes_give_ordered_words),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
