/* Compression ratios against Python's zlib; which results are accepted, retried or treated as silence.
 * SPDX-License-Identifier: Apache-2.0 */
#include "speech/fallback.h"

#include <math.h>

#include "support/speech/transcripts.h"

/* len(b) / len(zlib.compress(b)) of Python 3.11 for the ids of recorded runs, two bytes an id. */
static const struct {
    const char *file, *run;
    double ratio;
} recorded[] = {
    {"whisper-base.1272-141231-0002", "greedy", 0.9090909090909091},
    {"whisper-base.89s_ill_come_back_down_as_soon_as", "plain", 1.1822784810126583},
    {"whisper-base.es_test_clip", "greedy", 0.9818181818181818},
    {"whisper-base.jfk", "greedy", 1.0204081632653061},
    {"whisper-base.joined-a", "plain", 1.2386058981233243},
    {"whisper-tiny.en.89s_ill_come_back_down_as_soon_as", "plain", 1.1714643304130163},
    {"whisper-tiny.en.joined-a", "plain", 1.302439024390244},
    {"whisper-tiny.en.test_speech", "greedy", 0.8333333333333334},
};

static void ratios_of_recorded_runs_equal_zlib(void **state) {
    (void)state;
    static int32_t ids[MOST_IDS];
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        bytes name = {0};
        bytes_printf(&name, "golden/whisper-real/%s.json", recorded[i].file);
        json_doc *doc = open_json(data_path(bytes_text(&name)));
        size_t n = transcript_ids(json_get(json_get(json_root(doc), recorded[i].run), "tokens"), ids);
        double ratio;
        assert_ok(speech_compression_ratio(&ratio, ids, n, 51865));
        assert_true(fabs(ratio - recorded[i].ratio) < 1e-12);
        json_close(&doc);
        bytes_clear(&name);
    }
}

static double ratio_of(const int32_t *pattern, size_t n_pattern, size_t n, int32_t vocab_size) {
    int32_t *ids = test_malloc((n + 1) * sizeof *ids);
    double ratio;
    for (size_t i = 0; i < n; i++) ids[i] = pattern[i % n_pattern];
    assert_ok(speech_compression_ratio(&ratio, ids, n, vocab_size));
    test_free(ids);
    return ratio;
}

static void ratios_of_patterns_equal_zlib(void **state) {
    (void)state;
    const int32_t one[] = {11}, seven[] = {7}, three[] = {11, 12, 13};
    assert_true(fabs(ratio_of(one, 1, 100, 51865) - 15.384615384615385) < 1e-12);
    assert_true(fabs(ratio_of(one, 1, 100, 200) - 8.333333333333334) < 1e-12);
    assert_true(fabs(ratio_of(three, 3, 2100, 1 << 24) - 178.72340425531914) < 1e-12);
    /* Bytes of an id: one more at each power of 256. */
    assert_true(fabs(ratio_of(seven, 1, 1, 65535) - 0.2) < 1e-12);
    assert_true(fabs(ratio_of(seven, 1, 1, 65536) - 0.2727272727272727) < 1e-12);
    assert_true(fabs(ratio_of(seven, 1, 3, 256) - 0.5) < 1e-12);
    assert_true(fabs(ratio_of(seven, 1, 3, 255) - 0.2727272727272727) < 1e-12);
    assert_true(ratio_of(one, 1, 0, 51865) == 0.0);
    int32_t noise[5000];
    uint32_t x = 12345;
    for (int i = 0; i < 5000; i++) {
        x = (x * 1103515245u + 12345u) & 0x7FFFFFFFu;
        noise[i] = (int32_t)(x >> 15 & 0x7FFF);
    }
    assert_true(fabs(ratio_of(noise, 5000, 5000, 51865) - 1.012965964343598) < 1e-12);
}

static void thresholds_accept_retry_or_skip(void **state) {
    (void)state;
    speech_limits limits = speech_limits_default();
    static const struct {
        double ratio, average, silence;
        bool is_last;
        speech_decision wanted;
    } cases[] = {
        {1.2, -0.3, 0.1, false, SPEECH_KEEP},   {1.2, -0.3, 0.9, false, SPEECH_KEEP}, /* accepted: treated as speech */
        {1.35, -1.0, 0.6, false, SPEECH_KEEP}, /* values equal to the limits are accepted */
        {1.36, -0.3, 0.1, false, SPEECH_RETRY}, {1.36, -0.3, 0.9, false, SPEECH_RETRY},
        {1.2, -1.01, 0.1, false, SPEECH_RETRY}, {1.2, -1.01, 0.6, false, SPEECH_RETRY},
        {1.2, -1.01, 0.61, false, SPEECH_SKIP}, {9.9, -1.01, 0.61, false, SPEECH_SKIP},
        {1.36, -0.3, 0.1, true, SPEECH_KEEP},   {1.2, -1.01, 0.1, true, SPEECH_KEEP},
        {1.2, -1.01, 0.61, true, SPEECH_SKIP},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        speech_decision decision =
            speech_decide(&limits, cases[i].ratio, cases[i].average, cases[i].silence, cases[i].is_last);
        if (decision != cases[i].wanted) fail_msg("case %zu: %d, expected %d", i, decision, cases[i].wanted);
    }
    const speech_limits off = {INFINITY, -INFINITY, INFINITY};
    assert_int_equal(speech_decide(&off, 1e9, -1e9, 1.0, false), SPEECH_KEEP);
    assert_true(speech_average_log_probability(-6.0, 5) == -1.0);
    assert_true(speech_average_log_probability(-2.0, 0) == -2.0);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    const int32_t ids[] = {1, 2, 3};
    int64_t live = mem_count().live;
    double ratio;
    int64_t k = 1;
    for (;; k++) {
        mem_fail_after(k);
        mn_status status = speech_compression_ratio(&ratio, ids, 3, 51865);
        mem_fail_after(0);
        if (status == MN_OK) break;
        assert_int_equal(status, MN_E_NOMEM);
        assert_int_equal(mem_count().live, live);
    }
    assert_true(k > 2);
    assert_int_equal(mem_count().live, live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ratios_of_recorded_runs_equal_zlib),
        cmocka_unit_test(ratios_of_patterns_equal_zlib),
        cmocka_unit_test(thresholds_accept_retry_or_skip),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
