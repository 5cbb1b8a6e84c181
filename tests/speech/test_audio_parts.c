/* Recordings of which parts are kept: their samples are those parts joined, and their times those of the whole one.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>

#include "base/num.h"
#include "speech/audio.h"
#include "support/speech/sound.h"

enum { HOP = 160, MOST_FRAMES = 4000, N_LISTS = 200 };

/* Random parts of n frames, and the frame that each kept one was. Returns how many frames are kept. */
static int random_parts(audio_parts *parts, int *kept, int n, uint64_t *seed) {
    int at = (int)(test_random(seed) % 40), n_kept = 0;
    while (at < n) {
        int length = 1 + (int)(test_random(seed) % (test_random(seed) % 4 ? 300 : 3)), end = at + length;
        if (end > n) end = n;
        assert_ok(audio_parts_add(parts, (int64_t)at * HOP, (int64_t)end * HOP));
        for (int i = at; i < end; i++) kept[n_kept++] = i;
        at = end + 1 + (int)(test_random(seed) % 500);
    }
    return n_kept;
}

/* Every moment in steps of 10 ms, against the list of the frames that are kept. */
static void times_map_back_exactly(void **state) {
    static int kept[MOST_FRAMES];
    uint64_t seed = 7;
    (void)state;
    for (int list = 0; list < N_LISTS; list++) {
        audio_parts parts = {0};
        int n = random_parts(&parts, kept, 1 + (int)(test_random(&seed) % MOST_FRAMES), &seed);
        assert_int_equal(audio_parts_length(&parts), (int64_t)n * HOP);
        for (int i = 0; i < n; i++) {
            assert_true(audio_parts_start(&parts, i / 100.0) == kept[i] / 100.0);
            assert_true(audio_parts_end(&parts, (i + 1) / 100.0) == (kept[i] + 1) / 100.0);
        }
        if (n) {
            assert_true(audio_parts_start(&parts, n / 100.0) == (kept[n - 1] + 1) / 100.0);
            assert_true(audio_parts_end(&parts, 0) == kept[0] / 100.0);
        }
        audio_parts_clear(&parts);
    }
}

/* A word of frames [from, to) keeps those of them that are in the part of the frame in its middle. */
static void words_are_cut_off_at_the_ends_of_parts(void **state) {
    static int kept[MOST_FRAMES];
    uint64_t seed = 8;
    int n_cut = 0, n_whole = 0;
    (void)state;
    for (int list = 0; list < N_LISTS; list++) {
        audio_parts parts = {0};
        int n = random_parts(&parts, kept, 50 + (int)(test_random(&seed) % MOST_FRAMES) * 9 / 10, &seed);
        for (int k = 0; k < 50 && n > 50; k++) {
            int from = (int)(test_random(&seed) % (uint64_t)(n - 50)), to = from + 1 + (int)(test_random(&seed) % 50);
            int first = (from + to) / 2, last = first;
            while (first > from && kept[first - 1] + 1 == kept[first]) first--;
            while (last + 1 < to && kept[last] + 1 == kept[last + 1]) last++;
            double start = from / 100.0, end = to / 100.0;
            audio_parts_word(&parts, &start, &end);
            assert_true(start == kept[first] / 100.0 && end == (kept[last] + 1) / 100.0);
            n_whole += first == from && last + 1 == to;
            n_cut += first > from || last + 1 < to;
        }
        audio_parts_clear(&parts);
    }
    assert_true(n_cut > 500 && n_whole > 500);
}

static void recordings_kept_whole_have_their_times(void **state) {
    audio_parts none = {0};
    double start = 1.5, end = 2.25;
    (void)state;
    assert_true(audio_parts_start(NULL, 1.234567) == 1.234567 && audio_parts_end(NULL, 1.234567) == 1.234567);
    assert_true(audio_parts_start(&none, 3) == 3 && audio_parts_end(&none, 3) == 3);
    assert_int_equal(audio_parts_length(&none), 0);
    audio_parts_word(NULL, &start, &end);
    audio_parts_word(&none, &start, &end);
    assert_true(start == 1.5 && end == 2.25);
}

static void parts_that_touch_are_one(void **state) {
    audio_parts parts = {0};
    (void)state;
    assert_ok(audio_parts_add(&parts, 10, 20));
    assert_ok(audio_parts_add(&parts, 20, 30));
    assert_ok(audio_parts_add(&parts, 25, 28));
    assert_ok(audio_parts_add(&parts, 31, 40));
    assert_int_equal(parts.n, 2);
    assert_true(parts.list[0].begin == 10 && parts.list[0].end == 30 && parts.list[1].joined == 20);
    assert_int_equal(audio_parts_length(&parts), 29);
    audio_parts_clear(&parts);
}

/* ---- samples ---- */

static void check_joined(const char *path, uint64_t *seed) {
    size_t n = 0;
    float *whole = sound_read(path, &n), *wanted = malloc(n * sizeof *wanted), *got = malloc(n * sizeof *got);
    audio *a = NULL;
    audio_parts parts = {0};
    int64_t at = (int64_t)(test_random(seed) % 3000), n_read, n_wanted = 0;
    while (at < (int64_t)n) {
        int64_t end = min_i64(at + 1 + (int64_t)(test_random(seed) % 40000), (int64_t)n);
        assert_ok(audio_parts_add(&parts, at, end));
        memcpy(wanted + n_wanted, whole + at, (size_t)(end - at) * sizeof *wanted);
        n_wanted += end - at;
        at = end + 1 + (int64_t)(test_random(seed) % 40000);
    }
    assert_ok(audio_open(&a, path));
    if (test_random(seed) % 2) assert_ok(audio_read(a, 0, (int64_t)n, got, &n_read));
    audio_keep(a, &parts);
    assert_ok(audio_read(a, 0, (int64_t)n, got, &n_read));
    assert_int_equal(n_read, n_wanted);
    assert_int_equal(audio_length(a), n_wanted);
    assert_memory_equal(got, wanted, (size_t)n_wanted * sizeof *got);
    for (int i = 0; i < 20; i++) {
        int64_t from = (int64_t)(test_random(seed) % (uint64_t)n_wanted),
                most = 1 + (int64_t)(test_random(seed) % 50000);
        assert_ok(audio_read(a, from, most, got, &n_read));
        assert_int_equal(n_read, min_i64(most, n_wanted - from));
        assert_memory_equal(got, wanted + from, (size_t)n_read * sizeof *got);
    }
    audio_close(&a);
    audio_parts_clear(&parts);
    free(whole);
    free(wanted);
    free(got);
}

static void samples_are_the_parts_joined(void **state) {
    uint64_t seed = 9;
    (void)state;
    for (int i = 0; i < 10; i++) {
        check_joined(data_path("audio/jfk.wav"), &seed);
        check_joined(data_path("audio/1272-141231-0002.mp3"), &seed);
        check_joined(data_path("audio/1272-141231-0002.flac"), &seed);
    }
    float *sine = sound_sine(0.5, 300, 44100, 5 * 44100);
    char path[4096];
    snprintf(path, sizeof path, "%s",
             sound_file("fast.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 44100, 1, sine, 5 * 44100));
    for (int i = 0; i < 10; i++) check_joined(path, &seed);
    free(sine);
}

static void a_recording_without_a_part_has_no_sample(void **state) {
    audio *a = NULL;
    audio_parts none = {0};
    float sample;
    int64_t n_read;
    (void)state;
    assert_ok(audio_open(&a, data_path("audio/jfk.wav")));
    audio_keep(a, &none);
    assert_ok(audio_read(a, 0, 1, &sample, &n_read));
    assert_int_equal(n_read, 0);
    assert_int_equal(audio_length(a), 0);
    audio_close(&a);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    audio_parts parts = {0};
    int64_t live = mem_count().live;
    mem_fail_after(1);
    mn_status status = audio_parts_add(&parts, 0, 1);
    mem_fail_after(0);
    assert_int_equal(status, MN_E_NOMEM);
    assert_int_equal(parts.n, 0);
    audio_parts_clear(&parts);
    assert_int_equal(mem_count().live, live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_map_back_exactly),
        cmocka_unit_test(words_are_cut_off_at_the_ends_of_parts),
        cmocka_unit_test(recordings_kept_whole_have_their_times),
        cmocka_unit_test(parts_that_touch_are_one),
        cmocka_unit_test(samples_are_the_parts_joined),
        cmocka_unit_test(a_recording_without_a_part_has_no_sample),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
