/* Whisper tiny.en and base on recordings, where they are installed (scripts/get-model whisper-tiny, whisper-base): ids,
 * languages and word errors against Transformers in float32. Tests that take minutes run only with MNEME_LONG=1;
 * recordings outside the test data are looked up in $MNEME_TEST_AUDIO.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/engine.h"
#include "support/scratch.h"

#include <ctype.h>
#include <math.h>
#include <sys/stat.h>

#include "speech/audio.h"
#include "speech/tokens.h"

enum { MOST_WORDS = 1024, MOST_IDS = 1024 };

/* ---- word errors ---- */

typedef struct word_list {
    char text[16384];
    const char *words[MOST_WORDS];
    size_t n;
} word_list;

/* Lower case, without punctuation but apostrophes; digits stay as they are. */
static void split_words(word_list *list, const char *text, size_t n_text) {
    bool is_inside = false;
    char *to = list->text;
    list->n = 0;
    assert_true(n_text + 2 < sizeof list->text);
    for (size_t i = 0; i < n_text; i++) {
        unsigned char c = (unsigned char)text[i];
        bool is_part = isalnum(c) || c == '\'' || c >= 0x80;
        if (is_part && !is_inside) {
            assert_true(list->n < MOST_WORDS);
            list->words[list->n++] = to;
        }
        if (is_part) *to++ = (char)tolower(c);
        if (!is_part && is_inside) *to++ = 0;
        is_inside = is_part;
    }
    *to = 0;
}

/* Inserted, deleted and substituted words (Levenshtein). */
static size_t word_errors(const char *text, size_t n_text, const json *reference, size_t *n_reference) {
    static word_list detected, wanted;
    static size_t row[MOST_WORDS + 1];
    split_words(&detected, text, n_text);
    split_words(&wanted, reference->string, reference->n);
    for (size_t k = 0; k <= wanted.n; k++) row[k] = k;
    for (size_t i = 0; i < detected.n; i++) {
        size_t before = row[0];
        row[0] = i + 1;
        for (size_t k = 0; k < wanted.n; k++) {
            size_t other = before + (strcmp(detected.words[i], wanted.words[k]) != 0);
            before = row[k + 1];
            if (row[k] + 1 < other) other = row[k] + 1;
            if (before + 1 < other) other = before + 1;
            row[k + 1] = other;
        }
    }
    *n_reference = wanted.n;
    return row[wanted.n];
}

/* ---- recordings ---- */

/* A recording of the test data, of $MNEME_TEST_AUDIO, or of a folder beside the source; NULL: not found. */
static const char *find_recording(const char *name) {
    static char path[4096];
    const char *slash = strrchr(name, '/'), *folder = getenv("MNEME_TEST_AUDIO");
    struct stat info;
    snprintf(path, sizeof path, "audio/%s", slash ? slash + 1 : name);
    const char *own = data_path(path);
    if (stat(own, &info) == 0) return own;
    size_t n = strlen(own);
    if (n > 4 && strcmp(own + n - 4, ".wav") == 0) { /* the same samples, packed without loss */
        snprintf(path, sizeof path, "%.*s.flac", (int)(n - 4), own);
        if (stat(path, &info) == 0) return path;
    }
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "", name);
    if (folder && stat(path, &info) == 0) return path;
    snprintf(path, sizeof path, "data/audio/%s", name);
    return shared_path(path);
}

static void put_number(uint8_t *to, uint32_t value, int n) {
    for (int i = 0; i < n; i++) to[i] = (uint8_t)(value >> (8 * i));
}

/* Appends a recording's samples as 16-bit numbers, their original format. */
static void append_samples(bytes *pcm, const char *path) {
    audio *a = NULL;
    static float samples[AUDIO_RATE];
    int64_t begin = 0, n = AUDIO_RATE;
    assert_ok(audio_open(&a, path));
    for (; n == AUDIO_RATE; begin += n) {
        assert_ok(audio_read(a, begin, AUDIO_RATE, samples, &n));
        for (int64_t i = 0; i < n; i++) {
            uint8_t two[2];
            put_number(two, (uint32_t)(int32_t)lrintf(samples[i] * 32768.0f), 2);
            bytes_append(pcm, two, 2);
        }
    }
    audio_close(&a);
}

/* The recordings of `joined` in sequence with silence between them; NULL: one is missing. */
static const char *join_recordings(const json *joined, size_t n_samples) {
    const json *files = json_get(joined, "files");
    size_t gap = (size_t)(json_get(joined, "gap")->real * AUDIO_RATE);
    uint8_t head[44] = "RIFF....WAVEfmt \20\0\0\0\1\0\1\0........\2\0\20\0data";
    static const uint8_t zeros[2 * AUDIO_RATE];
    bytes file = {0};
    bytes_append(&file, head, sizeof head);
    for (size_t i = 0; i < files->n; i++) {
        const char *path = find_recording(files->items[i].string);
        if (!path) {
            bytes_clear(&file);
            return NULL;
        }
        if (i) bytes_append(&file, zeros, 2 * gap);
        append_samples(&file, path);
    }
    assert_int_equal(file.n, sizeof head + 2 * n_samples);
    put_number((uint8_t *)file.data + 4, (uint32_t)file.n - 8, 4);
    put_number((uint8_t *)file.data + 24, AUDIO_RATE, 4);
    put_number((uint8_t *)file.data + 28, 2 * AUDIO_RATE, 4);
    put_number((uint8_t *)file.data + 40, (uint32_t)(2 * n_samples), 4);
    const char *path = scratch_file("joined.wav", file.data, file.n);
    bytes_clear(&file);
    return path;
}

/* ---- runs ---- */

/* One of the files of golden/whisper-real. */
typedef struct clip {
    const char *model, *name;
    bool is_quick; /* runs always */
} clip;

/* No temperature fallback, as in the reference runs. */
static mn_transcribe_options plain_options(void) {
    static const double greedy = 0;
    mn_transcribe_options o;
    mn_transcribe_options_init(&o, sizeof o);
    o.compression_ratio_threshold = o.no_speech_threshold = INFINITY;
    o.logprob_threshold = -INFINITY;
    o.temperatures = &greedy;
    o.n_temperatures = 1;
    return o;
}

/* The last model that a case asked for: cases of one model follow each other. NULL closes it. */
static mn_model *open_model(const char *folder) {
    static mn_model *model;
    static char of[4096];
    if (model && folder && strcmp(of, folder) == 0) return model;
    mn_model_close(&model);
    if (!folder) return NULL;
    snprintf(of, sizeof of, "%s", folder);
    return model = engine_model(of, "f32", "auto", 0);
}

static int close_model(void **state) {
    (void)state;
    open_model(NULL);
    return 0;
}

static mn_transcription *transcribe(mn_model *model, const char *path, const mn_transcribe_options *options) {
    mn_transcription *t = NULL;
    assert_ok(mn_transcribe(model, &path, 1, options, &t));
    if (t->files[0]->status != MN_OK) fail_msg("%s: %s", path, t->files[0]->error);
    return t;
}

/* Ids must be equal when the golden margin of every step is above 0.01; otherwise they may differ, since the file gives
 * one minimum margin for the whole run. Log-probabilities agree within 5e-3 per id. */
static void check_run(const char *name, const json *run, const mn_transcript *got) {
    int32_t wanted[MOST_IDS];
    size_t n = engine_read_ids(json_get(run, "tokens"), wanted, MOST_IDS);
    const json *margin = json_get(run, "min_margin"), *sum = json_get(run, "sum_logprob");
    bool is_equal = got->n_ids == n && memcmp(got->ids, wanted, n * sizeof *wanted) == 0;
    bool may_differ = margin && margin->real <= 0.01;
    if (!is_equal && !may_differ) fail_msg("%s: '%s', golden '%s'", name, got->text, json_get(run, "text")->string);
    if (!is_equal || !sum) return;
    double average = got->segments[0]->avg_logprob, golden = sum->real / (double)(n + 1);
    if (!(fabs(average - golden) <= 5e-3)) fail_msg("%s: log-probability %g, golden %g", name, average, golden);
}

static void check_language(const json *language, const mn_transcript *got) {
    const json *best = &json_get(language, "probabilities_among_languages")->items[0];
    const char *code = best->items[0].string; /* "<|es|>" */
    assert_true(strlen(got->language) + 4 == strlen(code) &&
                strncmp(code + 2, got->language, strlen(got->language)) == 0);
    assert_true(fabs(got->language_probability - best->items[1].real) <= 2e-3);
    assert_true(fabs(got->segments[0]->no_speech_prob - json_get(language, "no_speech_probability")->real) <= 2e-3);
}

static void check_word_errors(const char *name, const json *run, const json *reference, const mn_transcript *got,
                              bool is_better) {
    size_t n, n_golden = 0,
              golden = word_errors(json_get(run, "text")->string, json_get(run, "text")->n, reference, &n_golden);
    size_t errors = word_errors(got->text, got->n_text, reference, &n);
    const json *counted = json_get(run, "word_errors");
    assert_int_equal(golden, counted->items[0].integer); /* our count equals the reference's */
    assert_int_equal(n_golden, counted->items[1].integer);
    if (errors > golden || (is_better && errors == golden))
        fail_msg("%s: %zu word errors of %zu, golden %zu", name, errors, n, golden);
}

/* The short tier has every other run: of the first model greedy text and beams, of the second segments and
 * translations. */
static void check_clip(mn_model *model, const json *root, const char *path, bool is_second) {
    static const struct {
        const char *key, *timestamps, *task;
        int beams;
    } runs[] = {{"greedy", "none", "transcribe", 1},
                {"greedy_timestamps", "segment", "transcribe", 1},
                {"beam5", "none", "transcribe", 5},
                {"greedy_translate", "none", "translate", 1}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        const json *run = json_get(root, runs[i].key), *reference = json_get(root, "reference");
        if (!run || (!test_is_long() && (i + is_second) % 2)) continue;
        mn_transcribe_options options = plain_options();
        options.timestamps = runs[i].timestamps;
        options.task = runs[i].task;
        options.num_beams = runs[i].beams;
        mn_transcription *t = transcribe(model, path, &options);
        check_run(runs[i].key, run, t->files[0]);
        if (json_get(root, "language")) check_language(json_get(root, "language"), t->files[0]);
        if (reference && json_get(run, "word_errors"))
            check_word_errors(runs[i].key, run, reference, t->files[0], false);
        mn_transcription_close(&t);
    }
}

/* Long recordings: one different timestamp moves every later window, so word errors are compared. Where the reference
 * loses its last window, which it does not pad with silence, there must be fewer errors; conditioned on previous text,
 * the model itself skips passages. */
static void check_long(mn_model *model, const json *root, const char *path, bool is_better) {
    static const char *const runs[] = {"plain", "conditioned"};
    for (int i = 0; i < 2; i++) {
        mn_transcribe_options options = plain_options();
        options.condition_on_prev_tokens = i == 1;
        mn_transcription *t = transcribe(model, path, &options);
        check_word_errors(runs[i], json_get(root, runs[i]), json_get(root, "reference"), t->files[0],
                          is_better && i == 0);
        mn_transcription_close(&t);
    }
}

/* Sanitizers are ten times slower, and one clip covers the same code as all. */
static bool is_run(const clip *c) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return strcmp(c->model, "whisper-tiny.en") == 0 && strcmp(c->name, "test_speech") == 0;
#else
    return c->is_quick || test_is_long();
#endif
}

static void equals_reference(void **state) {
    const clip *c = *state;
    char name[128];
    const char *installed = whisper_path(c->model);
    char folder[4096];
    if (!installed || !is_run(c)) skip();
    snprintf(folder, sizeof folder, "%s", installed); /* the returned paths are valid for a few calls only */
    snprintf(name, sizeof name, "golden/whisper-real/%s.%s.json", c->model, c->name);
    json_doc *doc = open_json(data_path(name));
    const json *root = json_root(doc), *joined = json_get(root, "joined");
    const char *path = joined ? join_recordings(joined, (size_t)json_get(root, "samples")->integer)
                              : find_recording(json_get(root, "file")->string);
    if (path) {
        mn_model *model = open_model(folder);
        if (json_is_string(json_get(root, "kind"), "clip")) {
            check_clip(model, root, path, strcmp(c->model, "whisper-base") == 0);
        } else {
            check_long(model, root, path, joined && strcmp(c->model, "whisper-base") == 0);
        }
    }
    json_close(&doc);
    if (!path) skip();
}

/* ---- recordings of every length ---- */

/* The first n samples of book, speech, book, speech, book as a file. */
static const char *cut_recordings(size_t n, const char *name) {
    uint8_t head[44] = "RIFF....WAVEfmt \20\0\0\0\1\0\1\0........\2\0\20\0data";
    bytes file = {0};
    put_number(head + 4, (uint32_t)(2 * n) + 36, 4);
    put_number(head + 24, AUDIO_RATE, 4);
    put_number(head + 28, 2 * AUDIO_RATE, 4);
    put_number(head + 40, (uint32_t)(2 * n), 4);
    bytes_append(&file, head, sizeof head);
    for (int i = 0; file.n < sizeof head + 2 * n; i++)
        append_samples(&file, data_path(i % 2 ? "audio/jfk.wav" : "audio/1272-141231-0002.flac"));
    const char *path = scratch_file(name, file.data, sizeof head + 2 * n);
    bytes_clear(&file);
    return path;
}

/* Beginnings of recordings have the words that faster-whisper finds with the same weights and silence behind the
 * recording, in one batch; always those that the model leaves in the middle of a sentence, so that the rest is decoded
 * as a window of its own; of the second model in the short tier the first of these. */
static void beginnings_have_all_words(void **state) {
    static char paths[64][1024];
    const char *given[64], *name = *state, *installed = whisper_path(name);
    const json *clips[64];
    size_t n = 0;
    const clip quick = {name, "beginnings", true};
    const bool is_second = strcmp(name, "whisper-base") == 0;
    if (!installed || !is_run(&quick)) skip();
    json_doc *doc = open_json(data_path("golden/whisper-real/cuts.json"));
    const json *all = json_get(json_root(doc), "clips");
    for (size_t i = 0; i < all->n; i++) {
        const json *c = &all->items[i];
        double seconds = 0;
        bool is_border = false;
        assert_ok(json_real("cuts.json", c, "seconds", 0, 60, &seconds));
        assert_ok(json_bool("cuts.json", c, "border", &is_border));
        if (!json_is_string(json_get(c, "model"), name)) continue;
        if (!test_is_long() && (!is_border || (is_second && n))) continue;
        char file[32];
        snprintf(file, sizeof file, "%g.wav", seconds);
        snprintf(paths[n], sizeof paths[n], "%s", cut_recordings((size_t)llround(seconds * AUDIO_RATE), file));
        given[n] = paths[n];
        clips[n++] = c;
    }
    assert_true(n >= (is_second ? 1 : 2));
    mn_model *model = open_model(installed);
    static const double greedy = 0;
    mn_transcribe_options options;
    mn_transcription *t = NULL;
    mn_transcribe_options_init(&options, sizeof options);
    options.temperatures = &greedy;
    options.n_temperatures = 1;
    options.language = is_second ? "en" : NULL;
    assert_ok(mn_transcribe(model, given, n, &options, &t));
    for (size_t i = 0; i < n; i++) {
        const json *words = json_get(clips[i], "words");
        size_t n_words;
        if (word_errors(t->files[i]->text, t->files[i]->n_text, words, &n_words))
            fail_msg("%s: '%s' is not '%s'", given[i], t->files[i]->text, words->string);
    }
    mn_transcription_close(&t);
    json_close(&doc);
}

int main(void) {
    static const char *const models[] = {"whisper-tiny.en", "whisper-base"};
    static const char *const names[] = {"test_speech",
                                        "5s_dont_worry_about_him",
                                        "jfk",
                                        "es_test_clip",
                                        "1272-141231-0002",
                                        "joined-a",
                                        "45s_right_through_the_billboard",
                                        "89s_ill_come_back_down_as_soon_as"};
    enum { N_MODELS = 2, N_NAMES = sizeof names / sizeof *names };
    static clip clips[N_MODELS * N_NAMES];
    struct CMUnitTest tests[N_MODELS * (N_NAMES + 1)], *test = tests;
    for (int m = 0; m < N_MODELS; m++) {
        for (int i = 0; i < N_NAMES; i++) {
            clip *c = &clips[m * N_NAMES + i];
            *c = (clip){models[m], names[i], i == 0 || i == (m == 0 ? 2 : 3)};
            *test++ = (struct CMUnitTest){.name = names[i], .test_func = equals_reference, .initial_state = c};
        }
        *test++ = (struct CMUnitTest){.name = "beginnings_have_all_words",
                                      .test_func = beginnings_have_all_words,
                                      .initial_state = (void *)(uintptr_t)models[m]};
    }
    return cmocka_run_group_tests(tests, NULL, close_model);
}
