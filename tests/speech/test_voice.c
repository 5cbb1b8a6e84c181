/* The detector of speech: recordings whose speech lies where the test put it, in silence and in noise; its limits
 * against bursts of known lengths; any portions; hostile samples.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>

#include "speech/voice.h"
#include "support/speech/sound.h"

enum { SECOND = 16000, HOP = VOICE_HOP };

/* What is found in n samples given in portions of up to `most`. */
static audio_parts found_in(const float *samples, size_t n, const voice_limits *limits, size_t most, uint64_t *seed) {
    audio_parts parts = {0};
    voice *v = NULL;
    assert_ok(voice_open(&v, limits, &parts));
    for (size_t at = 0; at < n;) {
        size_t portion = most < n ? 1 + test_random(seed) % most : n;
        if (portion > n - at) portion = n - at;
        assert_ok(voice_take(v, samples + at, portion));
        at += portion;
    }
    assert_ok(voice_finish(v));
    voice_close(&v);
    for (size_t i = 0; i < parts.n; i++) {
        const audio_part *part = &parts.list[i];
        assert_true(part->begin % HOP == 0 && part->begin < part->end && part->end <= (int64_t)n);
        assert_true(part->end % HOP == 0 || (i + 1 == parts.n && part->end == (int64_t)n));
        assert_true(i == 0 || part->begin > parts.list[i - 1].end);
    }
    return parts;
}

static audio_parts found(const float *samples, size_t n) {
    voice_limits limits = voice_limits_default();
    uint64_t seed = 1;
    return found_in(samples, n, &limits, n, &seed);
}

static bool is_kept(const audio_parts *parts, int64_t at) {
    for (size_t i = 0; i < parts->n; i++) {
        if (at >= parts->list[i].begin && at < parts->list[i].end) return true;
    }
    return false;
}

/* ---- speech ---- */

static double power(const float *samples, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)samples[i] * (double)samples[i];
    return sum / (double)n;
}

typedef struct place {
    const char *file;
    double gain, noise; /* dB: of all, and of the noise beside the speech */
    bool is_low;        /* noise below 500 Hz */
    double most_lost;   /* share of loud frames */
} place;

/* The file between 4 s and 3 s of noise. Loud frames, those within 30 dB of the loudest one, are kept up to the share
 * allowed; noise further from the speech than what is kept around it, and 0.3 s, is left out. */
static void check_place(const place *p) {
    size_t n_speech = 0, begin = 4 * SECOND, n;
    float *speech = sound_read(data_path(p->file), &n_speech);
    double noise = sqrt(3 * power(speech, n_speech)) * pow(10, p->noise / 20), low = 0, loudest = 0;
    uint64_t seed = 5;
    n = begin + n_speech + 3 * SECOND;
    float *samples = malloc(n * sizeof *samples);
    for (size_t i = 0; i < n; i++) {
        double value = noise * test_uniform(&seed, -1, 1);
        low = 0.82 * low + 0.18 * value;
        if (p->is_low) value = low / 0.315; /* of as much power */
        if (i >= begin && i < begin + n_speech) value += (double)speech[i - begin];
        samples[i] = (float)(value * pow(10, p->gain / 20));
    }
    audio_parts parts = found(samples, n);
    int n_loud = 0, n_lost = 0;
    for (size_t i = 0; i + HOP <= n_speech; i += HOP) loudest = fmax(loudest, power(speech + i, HOP));
    for (size_t i = 0; i + HOP <= n_speech; i += HOP) {
        if (power(speech + i, HOP) < loudest / 1000) continue;
        n_loud++;
        n_lost += !is_kept(&parts, (int64_t)(begin + i));
    }
    if (n_lost > p->most_lost * n_loud)
        fail_msg("%s, noise %g dB: %d of %d frames are lost", p->file, p->noise, n_lost, n_loud);
    int64_t around = voice_limits_default().pad * HOP + 3 * SECOND / 10;
    for (int64_t i = 0; i < (int64_t)n; i += HOP) {
        bool is_far = i < (int64_t)begin - around || i >= (int64_t)(begin + n_speech) + around;
        if (is_far && is_kept(&parts, i))
            fail_msg("%s, noise %g dB: %g s is kept", p->file, p->noise, (double)i / SECOND);
    }
    audio_parts_clear(&parts);
    free(samples);
    free(speech);
}

static void speech_is_found_where_it_is(void **state) {
    static const char *const files[] = {"audio/jfk.wav", "audio/1272-141231-0002.flac", "audio/es_test_clip.wav",
                                        "audio/test_speech.wav", "audio/5s_dont_worry_about_him.wav"};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        for (int is_low = 0; is_low < 2; is_low++) {
            check_place(&(place){files[i], 0, -200, is_low, 0});
            check_place(&(place){files[i], 0, -50, is_low, 0});
            check_place(&(place){files[i], -40, -50, is_low, 0});
            check_place(&(place){files[i], 0, -20, is_low, 0.02});
            check_place(&(place){files[i], 0, -10, is_low, 0.05});
        }
    }
}

/* ---- limits ---- */

/* A burst of frames [begin, end). */
typedef struct burst {
    int64_t begin, end;
} burst;

/* What has to be kept of n frames with these bursts, by the definition: marks[i] whether frame i is. */
static void expect_kept(bool *marks, int64_t n, const burst *bursts, int n_bursts, const voice_limits *limits) {
    memset(marks, 0, (size_t)n * sizeof *marks);
    for (int first = 0, next; first < n_bursts; first = next) {
        int64_t voiced = bursts[first].end - bursts[first].begin;
        for (next = first + 1; next < n_bursts; next++) {
            if (bursts[next].begin - bursts[next - 1].end >= limits->min_silence) break;
            voiced += bursts[next].end - bursts[next].begin;
        }
        int64_t begin = bursts[first].begin - limits->pad, end = bursts[next - 1].end + limits->pad;
        for (int64_t i = begin < 0 ? 0 : begin; voiced >= limits->min_speech && i < end && i < n; i++) marks[i] = true;
    }
}

/* Bursts of noise, 40 dB above the rest, at multiples of 20 frames, limits at odd ones: the filter rings for less than
 * a frame. */
static void limits_decide_what_is_kept(void **state) {
    enum { FRAMES = 3000, MOST = 100 };
    static float samples[FRAMES * HOP];
    static bool marks[FRAMES];
    uint64_t seed = 6;
    int n_tried = 0;
    (void)state;
    for (int round = 0; round < 60; round++) {
        burst bursts[MOST];
        int n_bursts = 0;
        voice_limits limits = {.threshold = 6,
                               .min_silence = 10 + 20 * (int64_t)(test_random(&seed) % 12),
                               .min_speech = 10 + 20 * (int64_t)(test_random(&seed) % 5),
                               .pad = 10 * (int64_t)(test_random(&seed) % 8) * (round % 10 ? 1 : 30)};
        for (int64_t at = 20 * (int64_t)(test_random(&seed) % 10); at < FRAMES - 300 && n_bursts < MOST;) {
            int64_t end = at + 20 * (1 + (int64_t)(test_random(&seed) % 5));
            bursts[n_bursts++] = (burst){at, end};
            at = end + 20 * (1 + (int64_t)(test_random(&seed) % 15));
        }
        for (int i = 0, k = 0; i < FRAMES * HOP; i++) {
            while (k < n_bursts && i >= bursts[k].end * HOP) k++;
            bool is_loud = k < n_bursts && i >= bursts[k].begin * HOP;
            samples[i] = (float)test_uniform(&seed, -1, 1) * (is_loud ? 0.5f : 0.005f);
        }
        audio_parts parts = found_in(samples, FRAMES * HOP, &limits, 1 + test_random(&seed) % 5000, &seed);
        expect_kept(marks, FRAMES, bursts, n_bursts, &limits);
        for (int64_t i = 0; i < FRAMES; i++) {
            bool is_border = (i > 0 && marks[i] != marks[i - 1]) || (i + 1 < FRAMES && marks[i] != marks[i + 1]);
            if (!is_border && is_kept(&parts, i * HOP) != marks[i])
                fail_msg("round %d, frame %d: kept %d, expected %d", round, (int)i, !marks[i], marks[i]);
            n_tried += !is_border;
        }
        audio_parts_clear(&parts);
    }
    assert_true(n_tried > 100000);
}

/* ---- portions, length ---- */

static void portions_do_not_matter(void **state) {
    static const size_t most[] = {1, 7, 159, 160, 161, 4000, 100000};
    voice_limits limits = voice_limits_default();
    uint64_t seed = 3;
    size_t n = 0;
    (void)state;
    float *speech = sound_read(data_path("audio/jfk.wav"), &n), *samples = calloc(3 * n, sizeof *samples);
    memcpy(samples, speech, n * sizeof *samples);
    memcpy(samples + 2 * n, speech, n * sizeof *samples);
    audio_parts whole = found(samples, 3 * n);
    assert_int_equal(whole.n, 2);
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        audio_parts parts = found_in(samples, 3 * n, &limits, most[i], &seed);
        assert_int_equal(parts.n, whole.n);
        assert_memory_equal(parts.list, whole.list, whole.n * sizeof *whole.list);
        audio_parts_clear(&parts);
    }
    audio_parts_clear(&whole);
    free(samples);
    free(speech);
}

/* An hour in which somebody speaks once a minute: one block of memory, and what the list takes. */
static void memory_does_not_grow_with_the_length(void **state) {
    voice_limits limits = voice_limits_default();
    audio_parts parts = {0};
    voice *v = NULL;
    uint64_t seed = 4;
    static float second[2][SECOND];
    (void)state;
    for (int i = 0; i < SECOND; i++) {
        second[0][i] = (float)test_uniform(&seed, -0.001, 0.001);
        second[1][i] = (float)test_uniform(&seed, -0.1, 0.1);
    }
    mem_counters before = mem_count();
    assert_ok(voice_open(&v, &limits, &parts));
    for (int i = 0; i < 3600; i++) assert_ok(voice_take(v, second[i % 60 == 30], SECOND));
    assert_ok(voice_finish(v));
    assert_int_equal(parts.n, 60);
    assert_int_equal(mem_count().live, before.live + 2);
    assert_true(mem_count().allocations - before.allocations < 10);
    for (int i = 0; i < 60; i++) {
        double begin = (double)parts.list[i].begin / SECOND, end = (double)parts.list[i].end / SECOND;
        assert_true(fabs(begin - (60 * i + 30 - 0.4)) < 0.02 && fabs(end - (60 * i + 31 + 0.4)) < 0.02);
    }
    voice_close(&v);
    audio_parts_clear(&parts);
}

/* ---- hostile samples ---- */

static void expect_nothing(const float *samples, size_t n) {
    audio_parts parts = found(samples, n);
    assert_int_equal(parts.n, 0);
    audio_parts_clear(&parts);
}

static void what_does_not_change_is_no_speech(void **state) {
    enum { N = 20 * SECOND };
    static float samples[N];
    uint64_t seed = 2;
    (void)state;
    expect_nothing(samples, 0);
    expect_nothing(samples, 1);
    expect_nothing(samples, N);
    for (int i = 0; i < N; i++) samples[i] = 0.7f;
    expect_nothing(samples, 1);
    expect_nothing(samples, N);
    for (int i = 0; i < N; i++) samples[i] = i % 2 ? 4294967296.0f : -4294967296.0f;
    expect_nothing(samples, N);
    for (int i = 0; i < N; i++) samples[i] = i % 100 < 50 ? 1.0f : -1.0f; /* a clipped tone */
    expect_nothing(samples, N);
    for (int i = 0; i < N; i++) samples[i] = (float)test_uniform(&seed, -0.3, 0.3);
    expect_nothing(samples, N);
    for (int i = 0; i < N; i++) samples[i] = (float)test_uniform(&seed, -2e-5, 2e-5); /* the last bit of 16 */
    expect_nothing(samples, N);
    samples[N / 2] = 1; /* a click */
    expect_nothing(samples, N);
}

/* Neither a constant beside the speech nor clipping hides it, and the loudest samples that there may be are no fault.
 */
static void speech_is_found_in_damaged_recordings(void **state) {
    size_t n = 0, gap = 4 * SECOND;
    (void)state;
    float *speech = sound_read(data_path("audio/test_speech.wav"), &n);
    float *samples = calloc(n + 2 * gap, sizeof *samples);
    memcpy(samples + gap, speech, n * sizeof *samples);
    audio_parts plain = found(samples, n + 2 * gap);
    assert_int_equal(plain.n, 1);
    for (int kind = 0; kind < 3; kind++) {
        for (size_t i = 0; i < n + 2 * gap; i++) {
            double x = i < gap || i >= gap + n ? 0 : (double)speech[i - gap];
            samples[i] = (float)(kind == 0 ? x + 0.5 : kind == 1 ? fmin(fmax(30 * x, -1), 1) : x * 4294967296.0);
        }
        audio_parts parts = found(samples, n + 2 * gap);
        assert_int_equal(parts.n, 1);
        assert_true(llabs(parts.list[0].begin - plain.list[0].begin) <= SECOND / 4);
        assert_true(llabs(parts.list[0].end - plain.list[0].end) <= SECOND / 4);
        audio_parts_clear(&parts);
    }
    audio_parts_clear(&plain);
    free(samples);
    free(speech);
}

static void every_allocation_may_fail(void **state) {
    enum { N = 12 * SECOND };
    static float samples[N];
    uint64_t seed = 2;
    (void)state;
    for (int i = 0; i < N; i++)
        samples[i] = (float)test_uniform(&seed, -1, 1) * (i > SECOND && i < 2 * SECOND ? 0.5f : 0.001f);
    int64_t live = mem_count().live;
    for (int64_t k = 1; k <= 3; k++) {
        voice_limits limits = voice_limits_default();
        audio_parts parts = {0};
        voice *v = NULL;
        mem_fail_after(k);
        mn_status status = voice_open(&v, &limits, &parts);
        if (status == MN_OK) status = voice_take(v, samples, N);
        if (status == MN_OK) status = voice_finish(v);
        mem_fail_after(0);
        assert_int_equal(status, k <= 2 ? MN_E_NOMEM : MN_OK);
        voice_close(&v);
        audio_parts_clear(&parts);
        assert_int_equal(mem_count().live, live);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speech_is_found_where_it_is),
        cmocka_unit_test(limits_decide_what_is_kept),
        cmocka_unit_test(portions_do_not_matter),
        cmocka_unit_test(memory_does_not_grow_with_the_length),
        cmocka_unit_test(what_does_not_change_is_no_speech),
        cmocka_unit_test(speech_is_found_in_damaged_recordings),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
