/* The log-mel features of recordings: goldens of the reference, both ends of a recording, windows at any position, long
 * recordings.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <math.h>

#include "base/num.h"
#include "speech/features.h"
#include "speech/mel.h"
#include "support/speech/mel_oracle.h"
#include "support/speech/sound.h"
#include "tensor/safetensors.h"

enum { SECOND = AUDIO_RATE, WINDOW = 3000 };

/* A recording that is opened and scanned. */
typedef struct scanned {
    audio *recording;
    features *f;
} scanned;

static scanned open_scanned(const char *path, int n_bands, int padded_frames) {
    scanned h = {0};
    bool is_whole = false;
    assert_ok(audio_open(&h.recording, path));
    assert_ok(features_open(&h.f, h.recording, n_bands, padded_frames));
    assert_int_equal(features_count(h.f), -1);
    while (!is_whole) {
        int64_t before = features_scanned(h.f);
        assert_ok(features_scan(h.f, &is_whole));
        assert_true(is_whole || features_scanned(h.f) == before + 60 * 100);
    }
    assert_int_equal(features_scanned(h.f), features_count(h.f));
    return h;
}

static void close_scanned(scanned *h) {
    features_close(&h->f);
    audio_close(&h->recording);
}

/* ---- goldens ---- */

/* Largest difference of frames [begin, end) from a golden tensor [bands][end - begin]. */
static double difference(features *f, const tensor *golden, int n_bands, int begin, int end) {
    size_t n = (size_t)(end - begin);
    float *levels = malloc(n * (size_t)n_bands * sizeof *levels);
    double largest = 0;
    assert_int_equal(golden->shape[0], n_bands);
    assert_int_equal(golden->shape[1], n);
    assert_ok(features_window(f, begin, (int)n, levels));
    for (size_t band = 0; band < (size_t)n_bands; band++) {
        for (size_t i = 0; i < n; i++) {
            float wanted;
            memcpy(&wanted, golden->data + (band * n + i) * sizeof wanted, sizeof wanted);
            double d = fabs((double)levels[i * (size_t)n_bands + band] - (double)wanted);
            largest = d > largest || isnan(d) ? d : largest;
        }
    }
    free(levels);
    return largest;
}

static const char *input_of(const json *item, const tensor_set *tensors, const char *audio_folder) {
    const json *file = json_get(item, "file");
    static char path[4096];
    if (file) {
        snprintf(path, sizeof path, "%s/%s", audio_folder, file->string);
        return path;
    }
    char name[64];
    int16_t samples[8000];
    snprintf(name, sizeof name, "samples.%s", json_get(item, "signal")->string);
    const tensor *signal = tensor_set_find(tensors, name);
    assert_non_null(signal);
    assert_int_equal(signal->bytes, sizeof samples);
    memcpy(samples, signal->data, sizeof samples);
    return sound_file_i16("signal.wav", samples, 8000);
}

/* The same through mneme.h, whose windows are [bands][frames] like the goldens. */
static double public_difference(const char *path, const tensor *golden, int n_bands, int padded, int begin, int end) {
    mn_features *f = NULL;
    size_t n = (size_t)(end - begin), numbers = n * (size_t)n_bands;
    float *window = malloc(numbers * sizeof *window);
    double largest = 0;
    assert_ok(mn_features_open(&f, path, (size_t)n_bands, (size_t)padded));
    assert_ok(mn_features_window(f, begin, n, window));
    for (size_t i = 0; i < numbers; i++) {
        float wanted;
        memcpy(&wanted, golden->data + i * sizeof wanted, sizeof wanted);
        double d = fabs((double)window[i] - (double)wanted);
        largest = d > largest || isnan(d) ? d : largest;
    }
    mn_features_close(&f);
    free(window);
    return largest;
}

static void check_goldens(const char *folder, const char *audio_folder, int n_expected) {
    char path[4200];
    tensor_set *tensors = NULL;
    int n_cases = 0;
    snprintf(path, sizeof path, "%s/tensors.safetensors", folder);
    assert_ok(safetensors_open(&tensors, path));
    snprintf(path, sizeof path, "%s/cases.json", folder);
    json_doc *doc = open_json(path);
    const json *cases = json_get(json_root(doc), "cases");
    for (size_t i = 0; i < cases->n; i++, n_cases++) {
        const json *item = &cases->items[i], *spans = json_get(item, "spans");
        const char *name = json_get(item, "name")->string;
        bool is_padded = json_is_string(json_get(item, "kind"), "padded");
        int n_bands = (int)json_get(item, "bins")->integer;
        scanned h = open_scanned(input_of(item, tensors, audio_folder), n_bands, is_padded ? WINDOW : 0);
        assert_int_equal(features_count(h.f), json_get(item, "total_frames")->integer);
        assert_int_equal(audio_length(h.recording), json_get(item, "samples")->integer);
        for (size_t k = 0; k < spans->n; k++) {
            const json *span = spans->items[k].items;
            int begin = (int)span[0].integer, end = (int)span[1].integer;
            char tensor_name[128];
            snprintf(tensor_name, sizeof tensor_name, "%s.%d", name, begin);
            const tensor *golden = tensor_set_find(tensors, tensor_name);
            assert_non_null(golden);
            double d = difference(h.f, golden, n_bands, begin, end);
            if (!(d <= json_get(item, "tolerance")->real)) fail_msg("%s, frames %d to %d: %g", name, begin, end, d);
            d = public_difference(input_of(item, tensors, audio_folder), golden, n_bands, is_padded ? WINDOW : 0, begin,
                                  end);
            if (!(d <= json_get(item, "tolerance")->real))
                fail_msg("%s through mneme.h, frames %d to %d: %g", name, begin, end, d);
        }
        close_scanned(&h);
    }
    assert_int_equal(n_cases, n_expected);
    json_close(&doc);
    tensor_set_close(&tensors);
}

static void features_equal_the_reference(void **state) {
    (void)state;
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", data_path("golden/whisper-mel"));
    check_goldens(folder, data_path("audio"), 12);
}

/* The first ten frames of the clip from another program, whose less exact transform is within 1e-2. */
static void features_equal_another_program(void **state) {
    (void)state;
    enum { N_BANDS = 80, N_FRAMES = 10 };
    scanned h = open_scanned(data_path("audio/1272-141231-0002.flac"), N_BANDS, WINDOW);
    float levels[N_FRAMES * N_BANDS];
    bytes text = {0};
    assert_ok(features_window(h.f, 0, N_FRAMES, levels));
    assert_ok(file_read(&text, data_path("audio/expected_log_mel_1272-141231-0002.csv"), 1 << 16));
    char *rest = text.data;
    bytes_text(&text);
    for (int band = 0; band < N_BANDS; band++) {
        for (int i = 0; i < N_FRAMES; i++) {
            double wanted = strtod(rest, &rest), got = (double)levels[i * N_BANDS + band];
            rest++; /* a comma, a line's end */
            if (!(fabs(got - wanted) <= 1e-2)) fail_msg("frame %d, band %d: %g, expected %g", i, band, got, wanted);
        }
    }
    bytes_clear(&text);
    close_scanned(&h);
}

/* ---- ends of recordings ---- */

enum { N_BANDS = 80 };

/* The recording with its padding, from sample -200 on: reflected at 0 and at `mirror`, repeatedly where it is short;
 * without a mirror zeros follow the end. */
static float *surrounded(const int16_t *samples, int n, int mirror, bool has_mirror, int n_all) {
    float *all = calloc((size_t)n_all, sizeof *all);
    for (int i = 0; i < n_all; i++) {
        int at = 0, step = i < 200 ? -1 : 1;
        for (int k = 0; k < abs(i - 200); k++) {
            bool turns = (step < 0 && at == 0) || (step > 0 && at == mirror - 1 && has_mirror);
            if (turns) step = -step;
            if (mirror > 1 || !has_mirror) at += step;
        }
        all[i] = at < n ? (float)samples[at] / 32768 : 0;
    }
    return all;
}

/* Frames [begin, end) of `all` by the oracle; its largest energy in *largest. */
static double *oracle_frames(const float *all, int begin, int end, double *largest) {
    double *energies = malloc((size_t)(end - begin) * N_BANDS * sizeof *energies + 1);
    for (int i = begin; i < end; i++) {
        double *frame = energies + (i - begin) * N_BANDS;
        mel_oracle(all + i * MEL_HOP, N_BANDS, frame);
        for (int band = 0; band < N_BANDS; band++) *largest = fmax(*largest, frame[band]);
    }
    return energies;
}

static void assert_levels(const float *levels, const double *energies, int n, double largest, const char *what) {
    double floor = log10(largest) - 8;
    for (int i = 0; i < n * N_BANDS; i++) {
        double wanted = (fmax(log10(fmax(energies[i], 1e-10)), floor) + 4) / 4;
        if (!(fabs((double)levels[i] - wanted) <= 1e-4))
            fail_msg("%s, frame %d, band %d: %g, expected %g", what, i / N_BANDS, i % N_BANDS, (double)levels[i],
                     wanted);
    }
}

/* A recording of n samples, padded to `padded_frames`, and 12 frames after its end. */
static void check_ends(int n, int padded_frames) {
    enum { N_AFTER = 12 };
    int16_t *samples = malloc((size_t)n * sizeof *samples);
    uint64_t seed = (uint64_t)n;
    for (int i = 0; i < n; i++) samples[i] = (int16_t)(3000 * sin(0.2 * i) + test_uniform(&seed, -2000, 2000));
    int mirror = n > padded_frames * MEL_HOP ? n : padded_frames * MEL_HOP, n_frames = mirror / MEL_HOP;
    int n_all = (n_frames + N_AFTER) * MEL_HOP + 2 * MEL_WINDOW;
    float *inside = surrounded(samples, n, mirror, true, n_all), *after = surrounded(samples, n, mirror, false, n_all);
    double largest = 1e-10, unused = 0;
    double *energies = oracle_frames(inside, 0, n_frames, &largest);
    double *energies_after = oracle_frames(after, n_frames, n_frames + N_AFTER, &unused);
    scanned h = open_scanned(sound_file_i16("ends.wav", samples, (size_t)n), N_BANDS, padded_frames);
    float *levels = malloc((size_t)(n_frames + N_AFTER) * N_BANDS * sizeof *levels);
    char what[64];
    snprintf(what, sizeof what, "%d samples padded to %d frames", n, padded_frames);
    assert_int_equal(features_count(h.f), n_frames);
    assert_ok(features_window(h.f, 0, n_frames + N_AFTER, levels));
    assert_levels(levels, energies, n_frames, largest, what);
    for (int i = 2; i >= 0; i--) { /* a window does not depend on earlier ones */
        float again[3 * N_BANDS];
        assert_ok(features_window(h.f, i, 3, again));
        assert_memory_equal(again, levels + i * N_BANDS, sizeof again);
    }
    assert_levels(levels + (size_t)n_frames * N_BANDS, energies_after, N_AFTER, largest, what);
    close_scanned(&h);
    free(levels);
    free(energies);
    free(energies_after);
    free(inside);
    free(after);
    free(samples);
}

static void ends_of_recordings_equal_the_oracle(void **state) {
    (void)state;
    static const int lengths[] = {1, 2, 3, 150, 159, 160, 161, 200, 201, 320, 399, 1600, 1601, 1759, 3201};
    static const int paddings[] = {0, 1, 2, 10, 25};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (size_t k = 0; k < sizeof paddings / sizeof *paddings; k++) {
            if (test_samples((int)(i + k), 4)) check_ends(lengths[i], paddings[k]);
        }
    }
}

/* Far after the end every value is the floor. */
static void frames_far_after_the_end_are_the_floor(void **state) {
    (void)state;
    scanned h = open_scanned(data_path("audio/1272-141231-0002.flac"), N_BANDS, 0);
    float *levels = malloc((size_t)WINDOW * N_BANDS * sizeof *levels), floor = INFINITY, loudest = -INFINITY;
    assert_int_equal(features_count(h.f), 1333);
    assert_ok(features_window(h.f, 0, WINDOW, levels));
    for (int i = 0; i < 1333 * N_BANDS; i++) {
        floor = fminf(floor, levels[i]);
        loudest = fmaxf(loudest, levels[i]);
    }
    float silence = levels[(WINDOW - 1) * N_BANDS];
    assert_true(fabsf(loudest - silence - 2) < 1e-6f && silence <= floor);
    for (int i = 1336 * N_BANDS; i < WINDOW * N_BANDS; i++) assert_true(levels[i] == silence);
    assert_ok(features_window(h.f, 1000000000, 1, levels));
    for (int i = 0; i < N_BANDS; i++) assert_true(levels[i] == silence);
    free(levels);
    close_scanned(&h);
}

/* ---- windows ---- */

/* 100 s: longer than the buffer. Windows of any position and size, forwards and backwards, have the same bits as all
 * frames at once. */
static void windows_of_a_long_recording_have_the_same_bits(void **state) {
    (void)state;
    static const int formats[] = {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_OGG | SF_FORMAT_VORBIS};
    size_t n_file = 100 * 22050 + 321;
    float *sound = malloc(n_file * sizeof *sound);
    uint64_t seed = 17;
    for (size_t i = 0; i < n_file; i++)
        sound[i] = (float)(test_uniform(&seed, -1, 1) * (0.01 + 0.3 * (double)(i / 50000 % 3)));
    for (size_t k = 0; k < 2; k++) {
        scanned h = open_scanned(sound_file("long", formats[k], 22050, 1, sound, n_file), N_BANDS, WINDOW);
        int n = (int)features_count(h.f) + 100;
        float *all = malloc((size_t)n * N_BANDS * sizeof *all),
              *piece = malloc((size_t)WINDOW * N_BANDS * sizeof *piece);
        assert_true(abs(n - 10100) < 3);
        int64_t allocations = mem_count().allocations;
        assert_ok(features_window(h.f, 0, n, all));
        for (int i = 0; i < 12; i++) {
            int first = (int)(test_random(&seed) % (uint64_t)n), size = 1 + (int)(test_random(&seed) % WINDOW);
            if (first + size > n) size = n - first;
            assert_ok(features_window(h.f, first, size, piece));
            assert_memory_equal(piece, all + (size_t)first * N_BANDS, (size_t)size * N_BANDS * sizeof *piece);
        }
        assert_int_equal(mem_count().allocations, allocations);
        free(all);
        free(piece);
        close_scanned(&h);
    }
    free(sound);
}

/* ---- errors ---- */

static void invalid_arguments_are_refused(void **state) {
    (void)state;
    audio *recording = NULL;
    features *f = NULL;
    float levels[N_BANDS];
    bool is_whole = false;
    assert_ok(audio_open(&recording, data_path("audio/1272-141231-0002.flac")));
    assert_fails(MN_E_ARG, "0 mel bands", features_open(&f, recording, 0, WINDOW));
    assert_fails(MN_E_ARG, "padded to -1 frames, allowed: 0 to 30000", features_open(&f, recording, N_BANDS, -1));
    assert_fails(MN_E_ARG, "padded to 30001 frames", features_open(&f, recording, N_BANDS, 30001));
    assert_null(f);
    assert_ok(features_open(&f, recording, N_BANDS, WINDOW));
    assert_fails(MN_E_ARG, "must be scanned", features_window(f, 0, 1, levels));
    while (!is_whole) assert_ok(features_scan(f, &is_whole));
    assert_fails(MN_E_ARG, "1 frames from -1", features_window(f, -1, 1, levels));
    assert_fails(MN_E_ARG, "-1 frames from 0", features_window(f, 0, -1, levels));
    assert_fails(MN_E_ARG, "allowed: none negative", features_window(f, INT64_MAX, 1, levels));
    assert_ok(features_window(f, 0, 0, NULL));
    features_close(&f);
    features_close(&f);
    audio_close(&recording);
}

/* From a file to the model's output: mn_session_encode takes the features of mneme.h. */
static void a_session_encodes_the_features(void **state) {
    (void)state;
    mn_model *model = NULL;
    mn_session *session = NULL;
    mn_features *f = NULL;
    mn_model_info info = {.size = sizeof info};
    assert_ok(mn_model_open(&model, data_path("golden/whisper/tiny80"), NULL));
    assert_ok(mn_model_get_info(model, &info));
    size_t bins = (size_t)info.num_mel_bins, n = 2 * (size_t)info.max_source_positions;
    float *window = test_malloc(bins * n * sizeof *window), logits[2][64];
    assert_fails(MN_E_ARG, "num_mel_bins is 0, allowed: 1 to 256",
                 mn_features_open(&f, data_path("audio/jfk.wav"), 0, n));
    assert_fails(MN_E_ARG, "num_mel_bins is 257", mn_features_open(&f, data_path("audio/jfk.wav"), 257, n));
    assert_fails(MN_E_ARG, "n_frames is 30001, allowed: 0 to 30000",
                 mn_features_open(&f, data_path("audio/jfk.wav"), bins, 30001));
    assert_fails(MN_E_NOT_FOUND, "/nowhere.wav", mn_features_open(&f, "/nowhere.wav", bins, n));
    assert_fails(MN_E_FORMAT, "cannot be read as audio", mn_features_open(&f, data_path("audio/README.md"), bins, n));
    assert_null(f);
    assert_ok(mn_features_open(&f, data_path("audio/jfk.wav"), bins, n));
    assert_true(mn_features_count(f) >= 1100); /* 11 s */
    assert_fails(MN_E_ARG, "1 frames from -1", mn_features_window(f, -1, 1, window));
    assert_fails(MN_E_ARG, "allowed: at most", mn_features_window(f, 0, SIZE_MAX, window));
    for (int k = 0; k < 2; k++) { /* another position in the recording, another first token */
        assert_ok(mn_features_window(f, k * 300, n, window));
        assert_ok(mn_session_open(&session, model, NULL));
        assert_ok(mn_session_encode(session, window, bins, n));
        assert_ok(mn_session_step(session, (int32_t[]){1}, 1, NULL));
        memcpy(logits[k], mn_session_logits(session), sizeof logits[k]);
        mn_session_close(&session);
    }
    assert_memory_not_equal(logits[0], logits[1], sizeof logits[0]);
    mn_features_close(&f);
    mn_features_close(&f);
    mn_model_close(&model);
    test_free(window);
}

/* The scan reports an error in the middle of a recording. */
static void read_errors_are_reported(void **state) {
    (void)state;
    size_t n = 10 * SECOND;
    float *sine = sound_sine(0.5, 440, AUDIO_RATE, n);
    audio *recording = NULL;
    features *f = NULL;
    bool is_whole = false;
    sine[5 * SECOND] = NAN;
    assert_ok(audio_open(&recording, sound_file("nan.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, AUDIO_RATE, 1, sine, n)));
    assert_ok(features_open(&f, recording, N_BANDS, WINDOW));
    assert_fails(MN_E_FORMAT, "the sample at 5.000 s is ", features_scan(f, &is_whole));
    assert_false(is_whole);
    features_close(&f);
    audio_close(&recording);
    free(sine);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    audio *recording = NULL;
    assert_ok(audio_open(&recording, data_path("audio/1272-141231-0002.flac")));
    int64_t before = mem_count().live;
    for (int64_t k = 1; k <= 4; k++) {
        features *f = NULL;
        mem_fail_after(k);
        mn_status status = features_open(&f, recording, N_BANDS, WINDOW);
        mem_fail_after(0);
        assert_int_equal(status, MN_E_NOMEM);
        assert_null(f);
        assert_int_equal(mem_count().live, before);
    }
    audio_close(&recording);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features_equal_the_reference),
        cmocka_unit_test(features_equal_another_program),
        cmocka_unit_test(ends_of_recordings_equal_the_oracle),
        cmocka_unit_test(frames_far_after_the_end_are_the_floor),
        cmocka_unit_test(windows_of_a_long_recording_have_the_same_bits),
        cmocka_unit_test(invalid_arguments_are_refused),
        cmocka_unit_test(a_session_encodes_the_features),
        cmocka_unit_test(read_errors_are_reported),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
