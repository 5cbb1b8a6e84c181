/* mn_transcribe on a tiny random checkpoint, whose window is two seconds: recordings side by side and alone, second attempts, silence,
 * bad recordings, bad options, cancelling, memory that ends. SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"
#include "support/scratch.h"
#include "support/sound.h"

#include <dirent.h>
#include <math.h>

#include "speech/languages.h"

enum { N_SOUNDS = 4, MOST_CALLS = 100000 };

static mn_model *model;
static const char *paths[N_SOUNDS]; /* 0.7, 1.9, 3.1, 5.3 s of two tones and noise */
static char names[N_SOUNDS][4096];

static int set_up(void **state) {
    static const double seconds[N_SOUNDS] = {0.7, 1.9, 3.1, 5.3};
    uint64_t seed = 11;
    (void)state;
    model = engine_model("golden/whisper/tiny80", "f32", "auto", 2);
    for (int i = 0; i < N_SOUNDS; i++) {
        size_t n = (size_t)(seconds[i] * AUDIO_RATE);
        int16_t *samples = malloc(n * sizeof *samples);
        for (size_t k = 0; k < n; k++) {
            double t = (double)k / AUDIO_RATE;
            samples[k] =
                (int16_t)(8000 * sin((700 + 300 * i) * t * (1 + t)) + test_uniform(&seed, -2000, 2000));
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

static mn_transcription *transcribe(const char *const *files, size_t n,
                                    const mn_transcribe_options *options) {
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
        const mn_segment *x = &a->segments[i], *y = &b->segments[i];
        assert_true(x->start == y->start && x->end == y->end && x->avg_logprob == y->avg_logprob &&
                    x->no_speech_prob == y->no_speech_prob && x->compression_ratio == y->compression_ratio &&
                    x->temperature == y->temperature);
    }
}

/* ---- side by side ---- */

static mn_transcribe_options small_options(void) {
    mn_transcribe_options o = mn_transcribe_options_default();
    o.max_new_tokens = 12;
    o.compression_ratio_threshold = o.no_speech_threshold = INFINITY;
    return o;
}

/* What is written at temperature 0 is never believed, so the last one, which draws, is taken. */
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
        for (int i = 0; i < N_SOUNDS; i++) same_transcripts(&together->files[i], &alone[i]->files[0]);
        mn_transcription_close(&together);
    }
    for (int i = 0; i < N_SOUNDS; i++) mn_transcription_close(&alone[i]);
}

static void others_do_not_matter(void **state) {
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
    mn_cache_options cache = mn_cache_options_default();
    cache.implementation = "self=quantized,cross=offloaded";
    options = small_options();
    options.cache = &cache;
    check_alone(options);
}

static void seeds_decide(void **state) {
    (void)state;
    mn_transcribe_options options = doubtful_options();
    mn_transcription *first = transcribe(&paths[3], 1, &options),
                     *second = transcribe(&paths[3], 1, &options);
    same_transcripts(&first->files[0], &second->files[0]);
    assert_true(first->files[0].n_segments > 0);
    for (size_t i = 0; i < first->files[0].n_segments; i++)
        assert_true(first->files[0].segments[i].temperature == 1);
    mn_transcription_close(&second);
    options.seed = 6;
    second = transcribe(&paths[3], 1, &options);
    const mn_transcript *a = &first->files[0], *b = &second->files[0];
    assert_true(a->n_ids != b->n_ids || memcmp(a->ids, b->ids, a->n_ids * sizeof *a->ids) != 0);
    mn_transcription_close(&first);
    mn_transcription_close(&second);
}

static void sound_transcripts(void **state) {
    (void)state;
    mn_transcribe_options options = small_options();
    options.logprob_threshold = -INFINITY;
    mn_transcription *t = transcribe(paths, N_SOUNDS, &options);
    for (int i = 0; i < N_SOUNDS; i++) {
        const mn_transcript *file = &t->files[i];
        double before = 0;
        size_t n_ids = 0;
        assert_true(file->status == MN_OK && file->n_segments > 0 && file->language && !file->text &&
                    !*file->error);
        assert_true(file->language_probability > 0 && file->language_probability <= 1);
        for (size_t k = 0; k < file->n_segments; k++) {
            const mn_segment *s = &file->segments[k];
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
    assert_string_equal(t->files[0].language, "de");
    assert_true(t->files[0].language_probability == 1);
    mn_transcription_close(&t);
}

static void silence_is_left_out(void **state) {
    (void)state;
    mn_transcribe_options options = small_options();
    options.logprob_threshold = INFINITY;
    options.no_speech_threshold = -1;
    mn_transcription *t = transcribe(paths, N_SOUNDS, &options);
    for (int i = 0; i < N_SOUNDS; i++)
        assert_true(t->files[i].status == MN_OK && t->files[i].n_segments == 0);
    mn_transcription_close(&t);
}

/* ---- telling ---- */

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

static mn_transcribe_options listening(listener *l) {
    mn_transcribe_options options = small_options();
    options.logprob_threshold = -INFINITY;
    options.on_progress = on_progress;
    options.on_segment = on_segment;
    options.on_file = on_file;
    options.user = l;
    return options;
}

/* Wherever it is cancelled, what is finished stays and the rest says so. */
static void cancelling(void **state) {
    (void)state;
    listener l = {0};
    mn_transcribe_options options = listening(&l);
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
            const mn_transcript *file = &t->files[i];
            any = any || file->status == MN_E_CANCELLED;
            if (file->status == MN_OK) {
                same_transcripts(file, &whole->files[i]);
            } else {
                assert_int_equal(file->status, MN_E_CANCELLED);
                assert_true(*file->error && file->n_segments <= whole->files[i].n_segments);
            }
        }
        assert_true(any || at == n_calls);
        assert_int_equal(l.n_files, N_SOUNDS);
        mn_transcription_close(&t);
    }
    mn_transcription_close(&whole);
}

/* Two seconds of sound, eight of nothing, two of sound: windows in which nothing sounds are not shown to the model. */
static void nothing_sounds(void **state) {
    (void)state;
    enum { SECOND = AUDIO_RATE, N = 12 * SECOND };
    static int16_t samples[N];
    uint64_t seed = 2;
    char sounds_at_ends[4096];
    for (int i = 0; i < N; i++) {
        bool sounds =
            i < 2 * SECOND - 400 || i >= 10 * SECOND + 400; /* a frame hears 200 samples around it */
        samples[i] = (int16_t)(sounds ? test_uniform(&seed, -9000, 9000) : 0);
    }
    snprintf(sounds_at_ends, sizeof sounds_at_ends, "%s", sound_file_i16("ends.wav", samples, N));
    const char *silent = sound_file_i16("silent.wav", samples + 2 * SECOND, 7 * SECOND),
               *both[] = {sounds_at_ends, silent};
    mn_transcribe_options options = small_options();
    options.logprob_threshold = -INFINITY;
    options.timestamps = "none";
    mn_transcription *all = transcribe(both, 2, &options);
    assert_int_equal(all->files[0].n_segments, 6);
    assert_int_equal(all->files[1].n_segments, 4);
    options.no_speech_threshold = 0.999;
    mn_transcription *heard = transcribe(both, 2, &options);
    const mn_transcript *file = &heard->files[0];
    assert_int_equal(file->n_segments, 2);
    for (int i = 0; i < 2; i++) {
        const mn_segment *got = &file->segments[i], *wanted = &all->files[0].segments[5 * i];
        assert_true(got->start == 10 * i && got->start == wanted->start && got->n_ids == wanted->n_ids);
        assert_memory_equal(got->ids, wanted->ids, got->n_ids * sizeof *got->ids);
    }
    file = &heard->files[1];
    assert_true(file->status == MN_OK && file->n_segments == 0 && file->duration == 7);
    assert_true(!file->language && file->language_probability == 0);
    mn_transcription_close(&heard);
    options.language = "de";
    heard = transcribe(&silent, 1, &options);
    assert_string_equal(heard->files[0].language, "de");
    assert_true(heard->files[0].n_segments == 0 && heard->files[0].language_probability == 1);
    mn_transcription_close(&heard);
    /* One call tells of the scan, one of each window but the last. */
    for (int64_t at = 1; at <= 4; at++) {
        listener l = {.cancel_at = at};
        options.on_progress = on_progress;
        options.user = &l;
        heard = transcribe(&silent, 1, &options);
        assert_int_equal(heard->files[0].status, MN_E_CANCELLED);
        assert_int_equal(l.calls, at);
        mn_transcription_close(&heard);
    }
    mn_transcription_close(&all);
}

/* ---- what is bad ---- */

static void bad_recordings(void **state) {
    (void)state;
    mn_transcribe_options options = small_options();
    const char *files[] = {"/nowhere/at-all.wav",       paths[1], TESTS_DIR, "/dev/null",
                           TESTS_DIR "/CMakeLists.txt", paths[0]};
    mn_transcription *t = transcribe(files, 6, &options), *good = transcribe(paths, 2, &options);
    assert_int_equal(t->files[0].status, MN_E_NOT_FOUND);
    assert_non_null(strstr(t->files[0].error, "at-all.wav"));
    for (int i = 2; i < 5; i++)
        assert_true(t->files[i].status != MN_OK && *t->files[i].error && t->files[i].n_ids == 0);
    same_transcripts(&t->files[1], &good->files[1]);
    same_transcripts(&t->files[5], &good->files[0]);
    mn_transcription_close(&t);
    mn_transcription_close(&good);
}

/* Every damaged file: a sentence, or a transcript of what is there. */
static void corner_cases(void **state) {
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
        const mn_transcript *file = &t->files[i];
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

static void bad_options(void **state) {
    (void)state;
    const double falling[] = {0.4, 0.2}, negative[] = {-1};
    mn_cache_options cache = mn_cache_options_default();
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
        {MN_E_ARG, "did you mean German", {.language = "Germn"}},
        {MN_E_ARG, "en", {.language = "French"}},
        {MN_E_ARG, "num_beams", {.num_beams = 0}},
        {MN_E_ARG, "must rise", {.temperatures = falling, .n_temperatures = 2}},
        {MN_E_ARG, "temperature", {.temperatures = negative, .n_temperatures = 1}},
        {MN_E_ARG, "temperatures", {.temperatures = negative, .n_temperatures = 0}},
        {MN_E_ARG, "no number", {.no_speech_threshold = NAN}},
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
        o.temperatures = given.temperatures;
        o.n_temperatures = given.n_temperatures;
        o.cache = given.cache;
        o.max_new_tokens = given.max_new_tokens;
        if (isnan(given.no_speech_threshold)) o.no_speech_threshold = NAN;
        if (strcmp(cases[i].part, "num_beams") == 0) o.num_beams = 0;
        if (strcmp(cases[i].part, "batch_size") == 0) o.batch_size = 0;
        expect_refused(cases[i].status, cases[i].part, model, N_SOUNDS, &o);
    }
    expect_refused(MN_E_ARG, "no recording", model, 0, NULL);
    mn_transcription *t = NULL;
    const char *twice[] = {"-", "-"};
    assert_fails(MN_E_ARG, "2 times", mn_transcribe(model, twice, 2, NULL, &t));
}

static void models_of_text(void **state) {
    (void)state;
    mn_model *text = engine_model("embedded", "f32", "auto", 1);
    expect_refused(MN_E_UNSUPPORTED, "cannot hear", text, 1, NULL);
    mn_model_close(&text);
    mn_session *session = engine_session(model, (engine_cache){0});
    int32_t ids[] = {1, 2};
    mn_generation *generation = NULL;
    assert_fails(MN_E_ARG, "speech model", mn_session_step(session, ids, 2, NULL));
    assert_fails(MN_E_ARG, "mneme transcribe", mn_generate(session, ids, 2, NULL, NULL, &generation));
    mn_session_close(&session);
}

/* Whichever allocation fails: the sentence, nothing left behind. */
static void memory_ends(void **state) {
    (void)state;
    mn_transcribe_options options = small_options();
    options.condition_on_prev_tokens = true;
    options.max_new_tokens = 4;
    mn_transcription *t = NULL;
    int64_t live = mem_count().live, n_failed = 0;
    for (int64_t k = 1; k < MOST_CALLS; k += 1 + k / 16) {
        mem_fail_after(k);
        mn_status status = mn_transcribe(model, &paths[2], 1, &options, &t);
        mem_fail_after(0);
        bool is_failed = status != MN_OK || t->files[0].status != MN_OK;
        if (is_failed) {
            assert_int_equal(status != MN_OK ? status : t->files[0].status, MN_E_NOMEM);
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
    for (size_t i = 0; i < tokens.n_languages;
         i++) { /* by code and by name the same, and every code has a name */
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
    assert_fails(MN_E_ARG, "en, ",
                 speech_language_read(&language, &tokens, "Klingonian-of-the-fifth-century"));
    assert_null(language);
    speech_tokens_close(&tokens);
    assert_ok(speech_tokens_open(&tokens, data_path("golden/whisper-real/whisper-tiny.en")));
    assert_ok(speech_language_read(&language, &tokens, "English"));
    assert_null(language);
    assert_fails(MN_E_ARG, "English alone", speech_language_read(&language, &tokens, "de"));
    speech_tokens_close(&tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_do_not_matter), cmocka_unit_test(seeds_decide),
        cmocka_unit_test(sound_transcripts),    cmocka_unit_test(silence_is_left_out),
        cmocka_unit_test(nothing_sounds),       cmocka_unit_test(cancelling),
        cmocka_unit_test(bad_recordings),       cmocka_unit_test(corner_cases),
        cmocka_unit_test(bad_options),          cmocka_unit_test(models_of_text),
        cmocka_unit_test(memory_ends),          cmocka_unit_test(languages),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
