/* mn_transcribe on a tiny random checkpoint, whose window is two seconds: batched and single recordings, temperature
 * fallback, silence, bad recordings, bad options, cancellation, failed allocations.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"
#include "support/scratch.h"
#include "support/speech/sound.h"
#include "support/speech/spelled.h"

#include "base/file.h"

#include <dirent.h>
#include <math.h>

#include "speech/languages.h"
#include "speech/rules.h"
#include "speech/voice.h"

enum { N_SOUNDS = 4, MOST_CALLS = 100000 };

static mn_model *model;
static const char *paths[N_SOUNDS]; /* 0.7, 1.9, 3.1, 5.3 s of two tones and noise */
static char names[N_SOUNDS][4096];

static int set_up(void **state) {
    static const double seconds[N_SOUNDS] = {0.7, 1.9, 3.1, 5.3};
    uint64_t seed = 11;
    (void)state;
    model = engine_model("golden/whisper/tiny80", "f32", "auto", engine_threads());
    for (int i = 0; i < N_SOUNDS; i++) {
        size_t n = (size_t)(seconds[i] * AUDIO_RATE);
        int16_t *samples = malloc(n * sizeof *samples);
        for (size_t k = 0; k < n; k++) {
            double t = (double)k / AUDIO_RATE;
            samples[k] = (int16_t)(8000 * sin((700 + 300 * i) * t * (1 + t)) + test_uniform(&seed, -2000, 2000));
        }
        char file[16];
        snprintf(file, sizeof file, "%d.wav", i);
        snprintf(names[i], sizeof names[i], "%s", sound_file_i16(file, samples, n));
        paths[i] = names[i];
        free(samples);
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    mn_model_close(&model);
    return 0;
}

static mn_transcription *transcribe(const char *const *files, size_t n, const mn_transcribe_options *options) {
    mn_transcription *t = NULL;
    assert_ok(mn_transcribe(model, files, n, options, &t));
    assert_int_equal(t->n_files, n);
    return t;
}

static void same_transcripts(const mn_transcript *a, const mn_transcript *b) {
    assert_string_equal(a->path, b->path);
    assert_int_equal(a->status, b->status);
    assert_int_equal(a->n_ids, b->n_ids);
    if (a->n_ids) assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof *a->ids);
    assert_int_equal(a->n_segments, b->n_segments);
    for (size_t i = 0; i < a->n_segments; i++) {
        const mn_segment *x = a->segments[i], *y = b->segments[i];
        assert_true(x->start == y->start && x->end == y->end && x->avg_logprob == y->avg_logprob &&
                    x->no_speech_prob == y->no_speech_prob && x->compression_ratio == y->compression_ratio &&
                    x->temperature == y->temperature);
    }
}

/* ---- batches ---- */

static mn_transcribe_options small_options(void) {
    mn_transcribe_options o;
    mn_transcribe_options_init(&o, sizeof o);
    o.max_new_tokens = 12;
    o.compression_ratio_threshold = o.no_speech_threshold = INFINITY;
    return o;
}

/* Results at temperature 0 are always rejected, so the last temperature, which samples, is used. */
static mn_transcribe_options doubtful_options(void) {
    static const double temperatures[] = {0, 0.5, 1};
    mn_transcribe_options o = small_options();
    o.logprob_threshold = INFINITY;
    o.temperatures = temperatures;
    o.n_temperatures = 3;
    o.seed = 5;
    return o;
}

static void check_alone(mn_transcribe_options options) {
    mn_transcription *alone[N_SOUNDS];
    for (int i = 0; i < N_SOUNDS; i++) alone[i] = transcribe(&paths[i], 1, &options);
    for (size_t batch = 1; batch <= 8; batch *= 2) {
        options.batch_size = batch;
        mn_transcription *together = transcribe(paths, N_SOUNDS, &options);
        for (int i = 0; i < N_SOUNDS; i++) same_transcripts(together->files[i], alone[i]->files[0]);
        mn_transcription_close(&together);
    }
    for (int i = 0; i < N_SOUNDS; i++) mn_transcription_close(&alone[i]);
}

static void batched_recordings_equal_single_ones(void **state) {
    (void)state;
    mn_transcribe_options options = small_options();
    options.logprob_threshold = -INFINITY;
    check_alone(options);
    options.condition_on_prev_tokens = true;
    check_alone(options);
    options.num_beams = 3;
    check_alone(options);
    options.timestamps = "none";
    check_alone(options);
    check_alone(doubtful_options());
    mn_cache_options cache;
    mn_cache_options_init(&cache, sizeof cache);
    cache.implementation = "self=quantized,cross=offloaded";
    options = small_options();
    options.cache = &cache;
    check_alone(options);
}

static void the_seed_determines_the_draws(void **state) {
    (void)state;
    mn_transcribe_options options = doubtful_options();
    mn_transcription *first = transcribe(&paths[3], 1, &options), *second = transcribe(&paths[3], 1, &options);
    same_transcripts(first->files[0], second->files[0]);
    assert_true(first->files[0]->n_segments > 0);
    for (size_t i = 0; i < first->files[0]->n_segments; i++)
        assert_true(first->files[0]->segments[i]->temperature == 1);
    mn_transcription_close(&second);
    options.seed = 6;
    second = transcribe(&paths[3], 1, &options);
    const mn_transcript *a = first->files[0], *b = second->files[0];
    assert_true(a->n_ids != b->n_ids || memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids) != 0);
    mn_transcription_close(&first);
    mn_transcription_close(&second);
}

static void transcripts_are_consistent(void **state) {
    (void)state;
    mn_transcribe_options options = small_options();
    options.logprob_threshold = -INFINITY;
    mn_transcription *t = transcribe(paths, N_SOUNDS, &options);
    for (int i = 0; i < N_SOUNDS; i++) {
        const mn_transcript *file = t->files[i];
        double before = 0;
        size_t n_ids = 0;
        assert_true(file->status == MN_OK && file->n_segments > 0 && file->language && !file->text && !*file->error);
        assert_true(file->language_probability > 0 && file->language_probability <= 1);
        for (size_t k = 0; k < file->n_segments; k++) {
            const mn_segment *s = file->segments[k];
            assert_true(s->start >= 0 && s->end >= s->start && s->end <= file->duration + 0.01);
            assert_true(s->start >= before - 2.0 && s->avg_logprob < 0 && s->n_words == 0);
            assert_memory_equal(s->ids, file->ids + n_ids, s->n_ids * sizeof *s->ids);
            n_ids += s->n_ids;
            before = s->start;
        }
        assert_int_equal(n_ids, file->n_ids);
    }
    mn_transcription_close(&t);
    options.language = "GERMAN";
    t = transcribe(paths, 1, &options);
    assert_string_equal(t->files[0]->language, "de");
    assert_true(t->files[0]->language_probability == 1);
    mn_transcription_close(&t);
}

static void silent_windows_have_no_segments(void **state) {
    (void)state;
    mn_transcribe_options options = small_options();
    options.logprob_threshold = INFINITY;
    options.no_speech_threshold = -1;
    mn_transcription *t = transcribe(paths, N_SOUNDS, &options);
    for (int i = 0; i < N_SOUNDS; i++) assert_true(t->files[i]->status == MN_OK && t->files[i]->n_segments == 0);
    mn_transcription_close(&t);
}

/* ---- callbacks ---- */

typedef struct listener {
    size_t n_segments[N_SOUNDS], n_files;
    int64_t calls, cancel_at;
} listener;

static bool on_progress(void *user, const mn_transcribe_progress *progress) {
    listener *l = user;
    assert_true(progress->file < N_SOUNDS && progress->done >= 0 && progress->done <= progress->duration);
    return ++l->calls != l->cancel_at;
}

static void on_segment(void *user, size_t file, const mn_segment *segment) {
    listener *l = user;
    assert_true(file < N_SOUNDS && segment->n_ids > 0);
    l->n_segments[file]++;
}

static void on_file(void *user, size_t file, const mn_transcript *transcript) {
    listener *l = user;
    assert_int_equal(file, l->n_files++);
    assert_int_equal(transcript->n_segments, l->n_segments[file]);
}

static mn_transcribe_options callbacks_report_every_segment(listener *l) {
    mn_transcribe_options options = small_options();
    options.logprob_threshold = -INFINITY;
    options.on_progress = on_progress;
    options.on_segment = on_segment;
    options.on_file = on_file;
    options.user = l;
    return options;
}

/* Wherever it is cancelled, finished segments are kept and the rest have the status MN_E_CANCELLED. */
static void cancelled_runs_keep_finished_segments(void **state) {
    (void)state;
    listener l = {0};
    mn_transcribe_options options = callbacks_report_every_segment(&l);
    options.batch_size = 2;
    mn_transcription *whole = transcribe(paths, N_SOUNDS, &options);
    assert_int_equal(l.n_files, N_SOUNDS);
    int64_t n_calls = l.calls;
    assert_true(n_calls > 50);
    for (int64_t at = 1; at <= n_calls; at += 1 + n_calls / 40) {
        l = (listener){.cancel_at = at};
        mn_transcription *t = transcribe(paths, N_SOUNDS, &options);
        bool any = false;
        for (int i = 0; i < N_SOUNDS; i++) {
            const mn_transcript *file = t->files[i];
            any = any || file->status == MN_E_CANCELLED;
            if (file->status == MN_OK) {
                same_transcripts(file, whole->files[i]);
            } else {
                assert_int_equal(file->status, MN_E_CANCELLED);
                assert_true(*file->error && file->n_segments <= whole->files[i]->n_segments);
            }
        }
        assert_true(any || at == n_calls);
        assert_int_equal(l.n_files, N_SOUNDS);
        mn_transcription_close(&t);
    }
    mn_transcription_close(&whole);
}

/* Two seconds of sound, eight of silence, two of sound: silent windows are not passed to the model. */
static void silent_windows_are_skipped(void **state) {
    (void)state;
    enum { SECOND = AUDIO_RATE, N = 12 * SECOND };
    static int16_t samples[N];
    uint64_t seed = 2;
    char sounds_at_ends[4096];
    for (int i = 0; i < N; i++) {
        bool sounds = i < 2 * SECOND - 400 || i >= 10 * SECOND + 400; /* a frame covers 200 samples on both sides */
        samples[i] = (int16_t)(sounds ? test_uniform(&seed, -9000, 9000) : 0);
    }
    snprintf(sounds_at_ends, sizeof sounds_at_ends, "%s", sound_file_i16("ends.wav", samples, N));
    const char *silent = sound_file_i16("silent.wav", samples + 2 * SECOND, 7 * SECOND),
               *both[] = {sounds_at_ends, silent};
    mn_transcribe_options options = small_options();
    options.logprob_threshold = -INFINITY;
    options.timestamps = "none";
    mn_transcription *all = transcribe(both, 2, &options);
    assert_int_equal(all->files[0]->n_segments, 6);
    assert_int_equal(all->files[1]->n_segments, 4);
    options.no_speech_threshold = 0.999;
    mn_transcription *detected = transcribe(both, 2, &options);
    const mn_transcript *file = detected->files[0];
    assert_int_equal(file->n_segments, 2);
    for (int i = 0; i < 2; i++) {
        const mn_segment *got = file->segments[i], *wanted = all->files[0]->segments[5 * i];
        assert_true(got->start == 10 * i && got->start == wanted->start && got->n_ids == wanted->n_ids);
        assert_memory_equal(got->ids, wanted->ids, got->n_ids * sizeof *got->ids);
    }
    file = detected->files[1];
    assert_true(file->status == MN_OK && file->n_segments == 0 && file->duration == 7);
    assert_true(!file->language && file->language_probability == 0);
    mn_transcription_close(&detected);
    options.language = "de";
    detected = transcribe(&silent, 1, &options);
    assert_string_equal(detected->files[0]->language, "de");
    assert_true(detected->files[0]->n_segments == 0 && detected->files[0]->language_probability == 1);
    mn_transcription_close(&detected);
    /* One call for the scan, one for each window but the last. */
    for (int64_t at = 1; at <= 4; at++) {
        listener l = {.cancel_at = at};
        options.on_progress = on_progress;
        options.user = &l;
        detected = transcribe(&silent, 1, &options);
        assert_int_equal(detected->files[0]->status, MN_E_CANCELLED);
        assert_int_equal(l.calls, at);
        mn_transcription_close(&detected);
    }
    mn_transcription_close(&all);
}

/* ---- what is no speech is left out ---- */

enum { MOST_FRAMES = 6000 };

/* A recording with silence around its sounds, what is found in it, and those parts alone as another recording. */
typedef struct spoken {
    char whole[4096], joined[4096];
    audio_parts parts;
    int frames[MOST_FRAMES], n; /* the frame that each frame of the joined one was */
} spoken;

static void add_file(int16_t *samples, size_t at, const char *path) {
    size_t n = 0;
    float *sound = sound_read(path, &n);
    for (size_t i = 0; i < n; i++) samples[at + i] = (int16_t)lrintf(sound[i] * 32768);
    free(sound);
}

static void make_spoken(spoken *out) {
    enum { N = 27 * AUDIO_RATE };
    static int16_t samples[N], kept[N];
    static float same[N];
    const voice_limits limits = voice_limits_default();
    voice *v = NULL;
    size_t n = 0;
    *out = (spoken){.n = 0};
    add_file(samples, 3 * AUDIO_RATE, paths[2]);
    add_file(samples, 10 * AUDIO_RATE + 77, paths[1]);
    add_file(samples, 20 * AUDIO_RATE, paths[3]);
    for (int i = 0; i < N; i++) same[i] = (float)samples[i] / 32768;
    assert_ok(voice_open(&v, &limits, &out->parts));
    assert_ok(voice_take(v, same, N));
    assert_ok(voice_finish(v));
    voice_close(&v);
    assert_int_equal(out->parts.n, 3);
    for (size_t i = 0; i < 3; i++) {
        for (int64_t k = out->parts.list[i].begin; k < out->parts.list[i].end; k++) {
            if (k % 160 == 0) out->frames[out->n++] = (int)(k / 160);
            kept[n++] = samples[k];
        }
    }
    snprintf(out->whole, sizeof out->whole, "%s", sound_file_i16("whole.wav", samples, N));
    snprintf(out->joined, sizeof out->joined, "%s", sound_file_i16("joined.wav", kept, n));
}

static double time_of_start(const spoken *s, double seconds) {
    int frame = (int)lround(seconds * 100);
    return (frame < s->n ? s->frames[frame] : s->frames[s->n - 1] + 1) / 100.0;
}

static double time_of_end(const spoken *s, double seconds) {
    int frame = (int)lround(seconds * 100);
    return (frame ? s->frames[frame - 1] + 1 : s->frames[0]) / 100.0;
}

static void same_words(const spoken *s, const mn_segment *whole, const mn_segment *joined) {
    assert_int_equal(whole->n_words, joined->n_words);
    for (size_t i = 0; i < whole->n_words; i++) {
        const mn_word *got = whole->words[i], *from = joined->words[i];
        int begin = (int)lround(from->start * 100), end = (int)lround(from->end * 100), first = (begin + end) / 2;
        assert_string_equal(got->text, from->text);
        if (first >= s->n) continue;
        int last = first;
        while (first > begin && s->frames[first - 1] + 1 == s->frames[first]) first--;
        while (last + 1 < end && last + 1 < s->n && s->frames[last] + 1 == s->frames[last + 1]) last++;
        assert_true(got->start == s->frames[first] / 100.0);
        assert_true(got->end == (begin == end ? got->start : (s->frames[last] + 1) / 100.0));
    }
}

/* The transcript of the joined recording, with the times of the whole one. */
static void check_spoken(mn_model *m, const spoken *s, mn_transcribe_options o) {
    mn_transcription *joined = NULL, *whole = NULL;
    const char *joined_path = s->joined, *both[] = {s->whole, paths[0], s->whole};
    assert_ok(mn_transcribe(m, &joined_path, 1, &o, &joined));
    o.vad_filter = true;
    assert_ok(mn_transcribe(m, both, 3, &o, &whole));
    for (int copy = 0; copy < 3; copy += 2) {
        const mn_transcript *a = whole->files[copy], *b = joined->files[0];
        assert_ok(a->status);
        assert_true(a->duration == 27 && a->n_ids > 0 && a->n_segments == b->n_segments && a->n_ids == b->n_ids);
        assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof *a->ids);
        for (size_t i = 0; i < a->n_segments; i++) {
            const mn_segment *x = a->segments[i], *y = b->segments[i];
            assert_true(x->start == time_of_start(s, y->start));
            assert_true(x->end == fmax(x->start, time_of_end(s, y->end)));
            assert_true(x->window_start == time_of_start(s, y->window_start));
            assert_true(x->avg_logprob == y->avg_logprob && x->no_speech_prob == y->no_speech_prob);
            same_words(s, x, y);
        }
        assert_true(a->segments[a->n_segments - 1]->end > 22);
    }
    mn_transcription_close(&joined);
    mn_transcription_close(&whole);
}

static void what_is_no_speech_is_left_out(void **state) {
    static spoken s;
    static const char *const times[] = {"none", "segment", "word"};
    mn_model *spelled = spelled_model();
    mn_transcribe_options o = small_options();
    (void)state;
    make_spoken(&s);
    o.logprob_threshold = -INFINITY;
    for (int i = 0; i < 3; i++) {
        o.timestamps = times[i];
        check_spoken(spelled, &s, o);
    }
    o.condition_on_prev_tokens = true;
    check_spoken(spelled, &s, o);
    audio_parts_clear(&s.parts);
    mn_model_close(&spelled);
}

/* Nothing but noise: no segment, no language, no error; and no call is missing that could cancel. */
static void a_recording_without_speech_is_empty(void **state) {
    enum { N = 90 * AUDIO_RATE };
    static int16_t samples[N];
    uint64_t seed = 2;
    listener l = {0};
    mn_transcribe_options o = callbacks_report_every_segment(&l);
    (void)state;
    for (int i = 0; i < N; i++) samples[i] = (int16_t)test_uniform(&seed, -500, 500);
    const char *path = sound_file_i16("noise.wav", samples, N);
    o.vad_filter = true;
    mn_transcription *t = transcribe(&path, 1, &o);
    const mn_transcript *file = t->files[0];
    assert_true(file->status == MN_OK && file->n_segments == 0 && file->n_ids == 0 && file->duration == 90);
    assert_true(!file->language && l.n_files == 1);
    mn_transcription_close(&t);
    for (int64_t at = 1, n = l.calls; at <= n; at++) {
        l = (listener){.cancel_at = at};
        t = transcribe(&path, 1, &o);
        assert_int_equal(t->files[0]->status, MN_E_CANCELLED);
        mn_transcription_close(&t);
    }
    l = (listener){0};
    o.language = "de";
    t = transcribe(&path, 1, &o);
    assert_string_equal(t->files[0]->language, "de");
    mn_transcription_close(&t);
}

/* ---- errors ---- */

static void bad_recordings_are_reported_per_file(void **state) {
    (void)state;
    mn_transcribe_options options = small_options();
    const char *files[] = {"/nowhere/at-all.wav",       paths[1], TESTS_DIR, "/dev/null",
                           TESTS_DIR "/CMakeLists.txt", paths[0]};
    mn_transcription *t = transcribe(files, 6, &options), *good = transcribe(paths, 2, &options);
    assert_int_equal(t->files[0]->status, MN_E_NOT_FOUND);
    assert_non_null(strstr(t->files[0]->error, "at-all.wav"));
    for (int i = 2; i < 5; i++)
        assert_true(t->files[i]->status != MN_OK && *t->files[i]->error && t->files[i]->n_ids == 0);
    same_transcripts(t->files[1], good->files[1]);
    same_transcripts(t->files[5], good->files[0]);
    mn_transcription_close(&t);
    mn_transcription_close(&good);
}

/* Every damaged file is refused with a message, or its data are transcribed. */
static void damaged_files_are_refused_or_transcribed(void **state) {
    (void)state;
    enum { MOST = 64 };
    static char found[MOST][4096];
    const char *files[MOST], *folder = data_path("wav-corner-cases");
    size_t n = 0, n_good = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!strstr(entry->d_name, ".wav")) continue;
        snprintf(found[n], sizeof found[n], "%s/%s", folder, entry->d_name);
        files[n] = found[n];
        n++;
        assert_true(n < MOST);
    }
    closedir(dir);
    mn_transcribe_options options = small_options();
    mn_transcription *t = transcribe(files, n, &options);
    for (size_t i = 0; i < n; i++) {
        const mn_transcript *file = t->files[i];
        n_good += file->status == MN_OK;
        assert_true((file->status == MN_OK) == (*file->error == 0));
        assert_true(file->status == MN_OK ? file->duration > 0 && file->duration < 1 : file->n_ids == 0);
    }
    assert_true(n >= 20 && n_good >= 10 && n_good < n);
    mn_transcription_close(&t);
}

static void expect_refused(mn_status status, const char *part, mn_model *m, size_t n,
                           const mn_transcribe_options *options) {
    mn_transcription *t = NULL;
    assert_fails(status, part, mn_transcribe(m, paths, n, options, &t));
    assert_null(t);
}

/* ---- recordings in memory, text before them ---- */

static void recordings_may_be_in_memory(void **state) {
    (void)state;
    bytes files[N_SOUNDS] = {{0}};
    const void *data[N_SOUNDS];
    size_t sizes[N_SOUNDS];
    const char *named[N_SOUNDS] = {"-", "-", paths[2], "-"};
    mn_transcribe_options o = small_options();
    mn_transcription *wanted = transcribe(paths, N_SOUNDS, &o);
    for (int i = 0; i < N_SOUNDS; i++) {
        assert_ok(file_read(&files[i], paths[i], 1 << 20));
        data[i] = i == 2 ? NULL : files[i].data;
        sizes[i] = files[i].n;
    }
    o.data = data;
    o.data_sizes = sizes;
    mn_transcription *t = transcribe(named, N_SOUNDS, &o);
    for (int i = 0; i < N_SOUNDS; i++) {
        assert_ok(t->files[i]->status);
        assert_string_equal(t->files[i]->path, named[i]);
        assert_true(t->files[i]->n_ids > 0 && t->files[i]->n_ids == wanted->files[i]->n_ids);
        assert_memory_equal(t->files[i]->ids, wanted->files[i]->ids, t->files[i]->n_ids * sizeof *t->files[i]->ids);
    }
    mn_transcription_close(&t);
    mn_transcription_close(&wanted);
    sizes[0] = 0;
    sizes[1] = 40;
    t = transcribe(named, N_SOUNDS, &o);
    assert_int_equal(t->files[0]->status, MN_E_FORMAT);
    assert_string_equal(t->files[0]->error, "'-' is empty");
    assert_int_equal(t->files[1]->status, MN_E_FORMAT);
    assert_ok(t->files[3]->status);
    mn_transcription_close(&t);
    for (int i = 0; i < N_SOUNDS; i++) bytes_clear(&files[i]);
}

/* The first id behind [previous, prompt, start, language, task] in the window at that frame, from the decoder alone. */
static int32_t first_id_behind(mn_model *m, const speech_tokens *tokens, const char *path, int64_t frame,
                               const int32_t *prompt, size_t n) {
    mn_model_info info = {.size = sizeof info};
    mn_features *f = NULL;
    mn_session *s = NULL;
    int32_t ids[64], best = 0;
    size_t n_ids = 0;
    assert_ok(mn_model_get_info(m, &info));
    size_t bands = (size_t)info.num_mel_bins, frames = 2 * (size_t)info.max_source_positions;
    float *window = malloc(bands * frames * sizeof *window);
    assert_ok(mn_features_open(&f, path, bands, frames));
    assert_ok(mn_features_window(f, frame, frames, window));
    assert_ok(mn_session_open(&s, m, NULL));
    assert_ok(mn_session_encode(s, window, bands, frames));
    if (n) ids[n_ids++] = tokens->previous;
    for (size_t i = 0; i < n; i++) ids[n_ids++] = prompt[i];
    ids[n_ids++] = tokens->start;
    ids[n_ids++] = speech_tokens_language(tokens, "en")->id;
    ids[n_ids++] = tokens->transcribe;
    assert_ok(mn_session_step(s, ids, n_ids, NULL));
    float *scores = malloc((size_t)info.vocab_size * sizeof *scores);
    memcpy(scores, mn_session_logits(s), (size_t)info.vocab_size * sizeof *scores);
    speech_rules_apply(scores, tokens, true, NULL, 0);
    for (int32_t i = 1; i < info.vocab_size; i++) best = scores[i] > scores[best] ? i : best;
    free(scores);
    free(window);
    mn_session_close(&s);
    mn_features_close(&f);
    return best;
}

static void a_prompt_is_before_the_first_window(void **state) {
    (void)state;
    static const double greedy[] = {0};
    static const char *const texts[] = {"", "Glossary: Mneme", "a b c", "  (zyx) 42", "WWWWWWWWWWWW", "!!!"};
    mn_model *spelled = spelled_model();
    speech_tokens tokens;
    mn_transcribe_options o = small_options();
    int n_different = 0;
    int32_t plain = 0;
    assert_ok(speech_tokens_open(&tokens, data_path("golden/whisper/tiny80")));
    o.temperatures = greedy;
    o.n_temperatures = 1;
    o.logprob_threshold = -INFINITY;
    o.language = "en";
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char spaced[64];
        int32_t *ids = NULL;
        size_t n = 0;
        mn_transcription *t = NULL;
        snprintf(spaced, sizeof spaced, " %s", texts[i] + strspn(texts[i], " "));
        assert_ok(mn_tokenize(mn_model_tokenizer(spelled), spaced, strlen(spaced), MN_NO_PARSE, &ids, &n));
        o.prompt = texts[i];
        assert_ok(mn_transcribe(spelled, &paths[1], 1, &o, &t));
        assert_ok(t->files[0]->status);
        int32_t wanted = first_id_behind(spelled, &tokens, paths[1], 0, ids, *texts[i] ? n : 0);
        assert_int_equal(t->files[0]->ids[0], wanted);
        if (i == 0) plain = wanted;
        n_different += wanted != plain;
        mn_transcription_close(&t);
        mn_free(ids);
    }
    assert_true(n_different > 0);
    /* The language is that of the recording, not of the text. */
    o.language = NULL;
    mn_transcription *with = NULL, *without = NULL;
    assert_ok(mn_transcribe(spelled, &paths[1], 1, &o, &with));
    o.prompt = NULL;
    assert_ok(mn_transcribe(spelled, &paths[1], 1, &o, &without));
    assert_string_equal(with->files[0]->language, without->files[0]->language);
    assert_true(with->files[0]->language_probability == without->files[0]->language_probability);
    mn_transcription_close(&with);
    mn_transcription_close(&without);
    speech_tokens_close(&tokens);
    mn_model_close(&spelled);
}

/* The first window has [hotwords, prompt] before it, the others have [hotwords]. */
static void hotwords_are_before_every_window(void **state) {
    (void)state;
    static const double greedy[] = {0};
    static const char *const texts[] = {" Glossary: Mneme", " Glossary: Mneme a b c"};
    mn_model *spelled = spelled_model();
    speech_tokens tokens;
    mn_transcribe_options o = small_options();
    mn_transcription *t = NULL;
    int32_t *ids[2] = {NULL};
    size_t n[2], n_windows = 0, n_different = 0;
    double window = -1;
    assert_ok(speech_tokens_open(&tokens, data_path("golden/whisper/tiny80")));
    for (int i = 0; i < 2; i++)
        assert_ok(mn_tokenize(mn_model_tokenizer(spelled), texts[i], strlen(texts[i]), MN_NO_PARSE, &ids[i], &n[i]));
    o.temperatures = greedy;
    o.n_temperatures = 1;
    o.logprob_threshold = -INFINITY;
    o.language = "en";
    o.hotwords = "Glossary: Mneme";
    o.prompt = "a b c";
    assert_ok(mn_transcribe(spelled, &paths[3], 1, &o, &t));
    assert_ok(t->files[0]->status);
    for (size_t i = 0; i < t->files[0]->n_segments; i++) {
        const mn_segment *s = t->files[0]->segments[i];
        int which = window < 0;
        if (s->window_start == window) continue;
        window = s->window_start;
        int64_t frame = llround(window * 100);
        assert_int_equal(s->ids[0], first_id_behind(spelled, &tokens, paths[3], frame, ids[which], n[which]));
        n_different += !which && s->ids[0] != first_id_behind(spelled, &tokens, paths[3], frame, NULL, 0);
        n_windows++;
    }
    assert_true(n_windows >= 3 && n_different > 0);
    for (int i = 0; i < 2; i++) mn_free(ids[i]);
    mn_transcription_close(&t);
    speech_tokens_close(&tokens);
    mn_model_close(&spelled);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    const double falling[] = {0.4, 0.2}, negative[] = {-1};
    mn_cache_options cache;
    mn_cache_options_init(&cache, sizeof cache);
    cache.implementation = "self=dynamic,cross=sink";
    const struct {
        mn_status status;
        const char *part;
        mn_transcribe_options options;
    } cases[] = {
        {MN_E_ARG, "size", {.size = 3}},
        {MN_E_ARG, "task", {.task = "sing"}},
        {MN_E_ARG, "none, segment, word", {.timestamps = "syllable"}},
        {MN_E_UNSUPPORTED, "tokenizer", {.timestamps = "word"}},
        {MN_E_UNSUPPORTED, "takes no prompt: it has no tokenizer", {.prompt = "a"}},
        {MN_E_UNSUPPORTED, "takes no hotwords: it has no tokenizer", {.hotwords = "a"}},
        {MN_E_ARG, "did you mean German", {.language = "Germn"}},
        {MN_E_ARG, "en", {.language = "French"}},
        {MN_E_ARG, "num_beams", {.num_beams = 0}},
        {MN_E_ARG, "must rise", {.temperatures = falling, .n_temperatures = 2}},
        {MN_E_ARG, "temperature", {.temperatures = negative, .n_temperatures = 1}},
        {MN_E_ARG, "temperatures", {.temperatures = negative, .n_temperatures = 0}},
        {MN_E_ARG, "is NaN", {.no_speech_threshold = NAN}},
        {MN_E_ARG, "max_new_tokens", {.max_new_tokens = -1}},
        {MN_E_ARG, "batch_size", {.batch_size = 0}},
        {MN_E_ARG, "cross=sink", {.cache = &cache}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mn_transcribe_options o = small_options(), given = cases[i].options;
        if (given.size) o.size = given.size;
        if (given.task) o.task = given.task;
        if (given.timestamps) o.timestamps = given.timestamps;
        o.language = given.language;
        o.prompt = given.prompt;
        o.hotwords = given.hotwords;
        o.temperatures = given.temperatures;
        o.n_temperatures = given.n_temperatures;
        o.cache = given.cache;
        o.max_new_tokens = given.max_new_tokens;
        if (isnan(given.no_speech_threshold)) o.no_speech_threshold = NAN;
        if (strcmp(cases[i].part, "num_beams") == 0) o.num_beams = 0;
        if (strcmp(cases[i].part, "batch_size") == 0) o.batch_size = 0;
        expect_refused(cases[i].status, cases[i].part, model, N_SOUNDS, &o);
    }
    for (int i = 0; i < 4; i++) {
        static const char *const parts[] = {"vad_threshold", "vad_min_silence_ms", "vad_min_speech_ms",
                                            "vad_speech_pad_ms"};
        mn_transcribe_options o = small_options();
        int64_t *const numbers[] = {&o.vad_min_silence_ms, &o.vad_min_speech_ms, &o.vad_speech_pad_ms};
        if (i) *numbers[i - 1] = i == 1 ? -1 : 3600001;
        o.vad_threshold = i ? 4 : NAN;
        mn_transcription *t = transcribe(paths, 1, &o); /* without the filter they are not read */
        mn_transcription_close(&t);
        o.vad_filter = true;
        expect_refused(MN_E_ARG, parts[i], model, 1, &o);
    }
    expect_refused(MN_E_ARG, "no recording", model, 0, NULL);
    mn_transcription *t = NULL;
    const char *twice[] = {"-", "-"};
    assert_fails(MN_E_ARG, "2 times", mn_transcribe(model, twice, 2, NULL, &t));
}

static void models_for_text_are_refused(void **state) {
    (void)state;
    mn_model *text = engine_model("embedded", "f32", "auto", 1);
    expect_refused(MN_E_UNSUPPORTED, "transcription needs a speech model", text, 1, NULL);
    mn_model_close(&text);
    mn_session *session = engine_session(model, (engine_cache){0});
    int32_t ids[] = {1, 2};
    mn_generation *generation = NULL;
    assert_fails(MN_E_ARG, "speech model", mn_session_step(session, ids, 2, NULL));
    assert_fails(MN_E_ARG, "mneme transcribe", mn_generate(session, ids, 2, NULL, NULL, &generation));
    mn_session_close(&session);
}

/* Whichever allocation fails: the message, and no leak. */
static void every_allocation_may_fail(void **state) {
    (void)state;
    mn_transcribe_options options = small_options();
    options.condition_on_prev_tokens = true;
    options.max_new_tokens = 4;
    options.vad_filter = true;
    mn_transcription *t = NULL;
    int64_t live = mem_count().live, n_failed = 0;
    for (int64_t k = 1; k < MOST_CALLS; k += 1 + k / 16) {
        mem_fail_after(k);
        mn_status status = mn_transcribe(model, &paths[2], 1, &options, &t);
        mem_fail_after(0);
        bool is_failed = status != MN_OK || t->files[0]->status != MN_OK;
        if (is_failed) {
            assert_int_equal(status != MN_OK ? status : t->files[0]->status, MN_E_NOMEM);
            n_failed++;
        }
        mn_transcription_close(&t);
        assert_int_equal(mem_count().live, live);
        if (!is_failed) break;
    }
    assert_true(n_failed > 30);
}

static void languages(void **state) {
    (void)state;
    speech_tokens tokens = {0};
    const speech_language *language = NULL;
    assert_ok(speech_tokens_open(&tokens, data_path("golden/whisper-real/whisper-base")));
    assert_int_equal(tokens.n_languages, 99);
    for (size_t i = 0; i < tokens.n_languages; i++) { /* code and name are equivalent, and every code has a name */
        const char *name = speech_language_name(tokens.languages[i].code);
        assert_non_null(name);
        assert_ok(speech_language_read(&language, &tokens, tokens.languages[i].code));
        assert_ptr_equal(language, &tokens.languages[i]);
        assert_ok(speech_language_read(&language, &tokens, name));
        assert_ptr_equal(language, &tokens.languages[i]);
    }
    assert_ok(speech_language_read(&language, &tokens, "castilian"));
    assert_string_equal(language->code, "es");
    assert_null(speech_language_name("xx"));
    assert_fails(MN_E_ARG, "did you mean Japanese?", speech_language_read(&language, &tokens, "japanes"));
    assert_fails(MN_E_ARG, "en, ", speech_language_read(&language, &tokens, "Klingonian-of-the-fifth-century"));
    assert_null(language);
    speech_tokens_close(&tokens);
    assert_ok(speech_tokens_open(&tokens, data_path("golden/whisper-real/whisper-tiny.en")));
    assert_ok(speech_language_read(&language, &tokens, "English"));
    assert_null(language);
    assert_fails(MN_E_ARG, "English-only", speech_language_read(&language, &tokens, "de"));
    speech_tokens_close(&tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batched_recordings_equal_single_ones),
        cmocka_unit_test(the_seed_determines_the_draws),
        cmocka_unit_test(transcripts_are_consistent),
        cmocka_unit_test(silent_windows_have_no_segments),
        cmocka_unit_test(silent_windows_are_skipped),
        cmocka_unit_test(what_is_no_speech_is_left_out),
        cmocka_unit_test(a_recording_without_speech_is_empty),
        cmocka_unit_test(cancelled_runs_keep_finished_segments),
        cmocka_unit_test(bad_recordings_are_reported_per_file),
        cmocka_unit_test(damaged_files_are_refused_or_transcribed),
        cmocka_unit_test(recordings_may_be_in_memory),
        cmocka_unit_test(a_prompt_is_before_the_first_window),
        cmocka_unit_test(hotwords_are_before_every_window),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(models_for_text_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(languages),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
