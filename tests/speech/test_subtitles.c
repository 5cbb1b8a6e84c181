/* Subtitle files: exact texts, times at their limits, and a parser that finds the same cues for any text.
 * SPDX-License-Identifier: Apache-2.0 */
#include "speech/subtitles.h"

#include <math.h>

#include "support/support.h"

static void put(speech_subtitles *s, bytes *out, double start, double end, const char *text) {
    speech_subtitles_put(s, start, end, text, strlen(text), out);
}

static void expect(speech_format format, const char *wanted) {
    bytes out = {0};
    speech_subtitles s;
    speech_subtitles_begin(&s, format, &out);
    put(&s, &out, 0.0, 1.5, " And so.");
    put(&s, &out, 1.5, 2.0, " \n ");
    put(&s, &out, 59.9996, 3600.25, "Über <b> & \"--> 2\"\r\n\r\nmore");
    put(&s, &out, 360000.0, 360000.0, "--->");
    assert_ok(bytes_status(&out));
    assert_string_equal(bytes_text(&out), wanted);
    bytes_clear(&out);
}

static void files_equal_the_expected_texts(void **state) {
    (void)state;
    expect(SPEECH_TXT, "And so.\n"
                       "Über <b> & \"--> 2\"    more\n"
                       "--->\n");
    expect(SPEECH_SRT, "1\n00:00:00,000 --> 00:00:01,500\nAnd so.\n\n"
                       "2\n00:01:00,000 --> 01:00:00,250\nÜber <b> & \"-- > 2\"    more\n\n"
                       "3\n100:00:00,000 --> 100:00:00,001\n--- >\n\n");
    expect(SPEECH_VTT, "WEBVTT\n\n"
                       "00:00:00.000 --> 00:00:01.500\nAnd so.\n\n"
                       "00:01:00.000 --> 01:00:00.250\nÜber &lt;b&gt; &amp; \"--&gt; 2\"    more\n\n"
                       "100:00:00.000 --> 100:00:00.001\n---&gt;\n\n");
}

static void times_at_their_limits_are_written(void **state) {
    (void)state;
    static const struct {
        double start, end;
        const char *wanted;
    } cases[] = {
        {0.9994, 0.9996, "00:00:00,999 --> 00:00:01,000"},    {59.9995, 60.0, "00:01:00,000 --> 00:01:00,001"},
        {3599.9999, 3600.5, "01:00:00,000 --> 01:00:00,500"}, {-1.0, -0.5, "00:00:00,000 --> 00:00:00,001"},
        {5.0, 4.0, "00:00:05,000 --> 00:00:05,001"},          {NAN, NAN, "00:00:00,000 --> 00:00:00,001"},
        {0.0, INFINITY, "00:00:00,000 --> 277777:46:40,000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes out = {0};
        speech_subtitles s;
        speech_subtitles_begin(&s, SPEECH_SRT, &out);
        put(&s, &out, cases[i].start, cases[i].end, "x");
        const char *line = strchr(bytes_text(&out), '\n') + 1;
        if (strncmp(line, cases[i].wanted, strlen(cases[i].wanted)) != 0)
            fail_msg("case %zu: %s, expected %s", i, line, cases[i].wanted);
        bytes_clear(&out);
    }
}

/* Parses as a player does: a line with an arrow begins a cue, whose text ends at the next empty line. Returns the
 * number of cues. */
static int read_cues(const char *file, char last_text[256]) {
    int n = 0;
    bool in_text = false;
    while (*file) {
        const char *stop = strpbrk(file, "\r\n");
        size_t length = stop ? (size_t)(stop - file) : strlen(file);
        char line[256] = {0};
        assert_true(length < sizeof line);
        memcpy(line, file, length);
        if (strstr(line, "-->")) {
            n++;
            in_text = true;
            last_text[0] = 0;
        } else if (length == 0) {
            in_text = false;
        } else if (in_text) {
            assert_true(strlen(last_text) + length < 256);
            memcpy(last_text + strlen(last_text), line, length + 1);
        }
        file = stop ? stop + 1 : file + length;
    }
    return n;
}

static void no_text_breaks_the_format(void **state) {
    (void)state;
    static const char letters[] = "-->\n\r <&;a1:.\t-";
    uint64_t seed = 6;
    for (int round = 0; round < 5000; round++) {
        speech_format format = round % 2 ? SPEECH_SRT : SPEECH_VTT;
        bytes out = {0};
        speech_subtitles s;
        speech_subtitles_begin(&s, format, &out);
        for (int k = 0; k < 3; k++) {
            char text[24] = {0};
            size_t n = test_random(&seed) % (sizeof text - 1);
            for (size_t i = 0; i < n; i++) text[i] = letters[test_random(&seed) % (sizeof letters - 1)];
            put(&s, &out, k, k + 1, text);
        }
        put(&s, &out, 7, 8, "the end");
        char last[256] = {0};
        assert_int_equal(read_cues(bytes_text(&out), last), s.n_cues);
        assert_string_equal(last, "the end");
        bytes_clear(&out);
    }
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    bytes out = {0};
    speech_subtitles s;
    mem_fail_after(1);
    speech_subtitles_begin(&s, SPEECH_VTT, &out);
    put(&s, &out, 0.0, 1.0, "x");
    mem_fail_after(0);
    assert_int_equal(bytes_status(&out), MN_E_NOMEM);
    bytes_clear(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_equal_the_expected_texts),
        cmocka_unit_test(times_at_their_limits_are_written),
        cmocka_unit_test(no_text_breaks_the_format),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
