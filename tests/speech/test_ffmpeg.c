/* Recordings in formats that libsndfile does not know are decoded by the ffmpeg in PATH, here scripts in its place.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "speech/audio.h"
#include "support/engine.h"
#include "support/scratch.h"
#include "support/speech/sound.h"

enum { N_SAMPLES = 3000, MOST_WAITS = 1000 };

static const char recording[] = "\0\0\0\x20"
                                "ftypM4A \0\0\0\0 and what follows";
static char folder[4096], path[8192];

/* Where the script is, and what it reads and writes. */
static const char *in_folder(const char *name) {
    static char text[8192];
    snprintf(text, sizeof text, "%s/%s", folder, name);
    return text;
}

static int set_up(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "%s", scratch_empty("bin"));
    snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
    assert_int_equal(chdir(scratch_empty("recordings")), 0);
    return setenv("PATH", path, 1);
}

/* The script's `folder` is its own. */
static void install(const char *script) {
    FILE *file = fopen(in_folder("ffmpeg"), "w");
    assert_non_null(file);
    fprintf(file, "#!/bin/sh\nfolder=${0%%/*}\n%s\n", script);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(in_folder("ffmpeg"), 0700), 0);
}

static void put_file(const char *name, const void *data, size_t n) {
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void same_file(const char *name, const void *data, size_t n) {
    bytes b = {0};
    assert_ok(file_read(&b, in_folder(name), 1 << 20));
    assert_int_equal(b.n, n);
    assert_memory_equal(b.data, data, n);
    bytes_clear(&b);
}

/* ---- samples ---- */

static int16_t samples[N_SAMPLES];

/* A script that writes down its arguments and the recording, and answers with those samples. */
static void install_decoder(void) {
    bytes b = {0};
    uint64_t seed = 3;
    for (size_t i = 0; i < N_SAMPLES; i++) samples[i] = (int16_t)(test_random(&seed) >> 48);
    assert_ok(file_read(&b, sound_file_i16("made.wav", samples, N_SAMPLES), 1 << 20));
    put_file(in_folder("made.wav"), b.data, b.n);
    bytes_clear(&b);
    install(
        "printf '%s\\n' \"$@\" >\"$folder/arguments\"\ncat \"${7#file:}\" >\"$folder/given\"\ncat \"$folder/made.wav\"");
}

static void same_samples(audio *a) {
    static float got[N_SAMPLES + 1];
    int64_t n = 0;
    assert_ok(audio_read(a, 0, N_SAMPLES + 1, got, &n));
    assert_int_equal(n, N_SAMPLES);
    for (size_t i = 0; i < N_SAMPLES; i++) assert_true(got[i] == (float)samples[i] / 32768);
    audio_close(&a);
    assert_int_equal(scratch_unnamed_file(), -1);
}

/* ffmpeg reads file names that begin with a dash or a protocol as something else, so it gets the file without one. */
static void files_of_any_name_are_decoded(void **state) {
    (void)state;
    static const char *const names[] = {"a.m4a", "-y", "http:a.webm", "concat:a.m4a|b.m4a", "$(touch x) 'a\".mp4"};
    static const char arguments[] = "-nostdin\n-v\nerror\n-protocol_whitelist\nfile\n-i\nfile:/dev/stdin\n-vn\n-ac\n1\n"
                                    "-ar\n16000\n-c:a\npcm_s16le\n-f\nwav\n-\n";
    install_decoder();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        audio *a = NULL;
        put_file(names[i], recording, sizeof recording);
        assert_ok(audio_open(&a, names[i]));
        same_samples(a);
        same_file("arguments", arguments, sizeof arguments - 1);
        same_file("given", recording, sizeof recording);
    }
}

static void pipes_are_decoded(void **state) {
    (void)state;
    int ends[2], kept = dup(STDIN_FILENO);
    audio *a = NULL;
    install_decoder();
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], recording, sizeof recording), sizeof recording);
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    mn_status status = audio_open(&a, "-");
    dup2(kept, STDIN_FILENO);
    close(kept);
    assert_ok(status);
    same_samples(a);
    same_file("given", recording, sizeof recording);
}

/* ---- errors ---- */

static void failures_are_one_sentence(void **state) {
    (void)state;
    static const struct {
        const char *script, *part;
    } cases[] = {
        {"echo first >&2; printf 'file:/dev/stdin: no \\033 sense\\n\\n' >&2; exit 1",
         "ffmpeg cannot decode it: no   sense"},
        {"cat \"$folder/made.wav\"; exit 3", "ffmpeg cannot decode it: it wrote nothing"},
        {"exit 0", "ffmpeg cannot decode it: it wrote nothing"},
        {"kill -9 $$", "ffmpeg was ended by signal 9"},
        {"echo no sound", "'a.m4a' cannot be read as audio"},
        {"head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", "ffmpeg cannot decode it: xxx"},
    };
    put_file("a.m4a", recording, sizeof recording);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        audio *a = NULL;
        install(cases[i].script);
        assert_fails(MN_E_FORMAT, cases[i].part, audio_open(&a, "a.m4a"));
        assert_null(strpbrk(mn_last_error(), "\n\r\x1b"));
        assert_null(a);
        assert_int_equal(scratch_unnamed_file(), -1);
    }
}

static void without_ffmpeg_the_formats_are_named(void **state) {
    (void)state;
    audio *a = NULL;
    put_file("a.m4a", recording, sizeof recording);
    setenv("PATH", scratch_empty("nothing"), 1);
    mn_status status = audio_open(&a, "a.m4a");
    setenv("PATH", path, 1);
    assert_fails(
        MN_E_FORMAT,
        "'a.m4a' cannot be read as audio: its format is none of wav, flac, mp3, ogg, opus, aiff and the others "
        "of libsndfile; m4a, webm and what else ffmpeg reads need ffmpeg, which is not installed",
        status);
}

/* Recordings in memory and those that libsndfile knows. */
static void ffmpeg_is_not_started_for_others(void **state) {
    (void)state;
    audio *a = NULL;
    install("touch \"$folder/started\"; exit 1");
    assert_fails(MN_E_FORMAT, "; convert it first, for example with ffmpeg",
                 audio_open_memory(&a, recording, sizeof recording, "file"));
    assert_ok(audio_open(&a, data_path("audio/jfk.wav")));
    audio_close(&a);
    assert_fails(MN_E_FORMAT, "is empty", audio_open(&a, scratch_file("empty.m4a", "", 0)));
    assert_fails(MN_E_FORMAT, "header is damaged", audio_open(&a, scratch_file("cut.wav", "RIFF\x20\0\0\0WAVE", 12)));
    assert_false(file_exists(in_folder("started")));
}

/* ---- cancelling ---- */

static bool until_it_runs(void *user, const mn_transcribe_progress *progress) {
    (void)user, (void)progress;
    return !file_exists(in_folder("child"));
}

/* A process that has ended may be kept by its new parent as a zombie. */
static bool is_running(const char *pid) {
    char name[64], text[512] = {0};
    snprintf(name, sizeof name, "/proc/%d/stat", atoi(pid));
    FILE *file = fopen(name, "r");
    if (!file) return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    const char *end = n ? strrchr(text, ')') : NULL;
    return end && end[1] && end[2] != 'Z' && end[2] != 'X';
}

static void cancelling_ends_ffmpeg(void **state) {
    (void)state;
    mn_model *model = engine_model("golden/whisper/tiny80", "f32", "auto", 1);
    mn_transcribe_options o;
    mn_transcription *t = NULL;
    const char *const names[] = {"a.m4a"};
    bytes child = {0};
    put_file("a.m4a", recording, sizeof recording);
    install("sleep 1000 &\necho $! >\"$folder/part\"; mv \"$folder/part\" \"$folder/child\"; wait");
    mn_transcribe_options_init(&o, sizeof o);
    o.on_progress = until_it_runs;
    assert_ok(mn_transcribe(model, names, 1, &o, &t));
    assert_int_equal(t->files[0]->status, MN_E_CANCELLED);
    mn_transcription_close(&t);
    mn_model_close(&model);
    assert_ok(file_read(&child, in_folder("child"), 100));
    for (int i = 0; i < MOST_WAITS && is_running(bytes_text(&child)); i++) usleep(10000);
    assert_false(is_running(bytes_text(&child)));
    bytes_clear(&child);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_any_name_are_decoded),    cmocka_unit_test(pipes_are_decoded),
        cmocka_unit_test(failures_are_one_sentence),        cmocka_unit_test(without_ffmpeg_the_formats_are_named),
        cmocka_unit_test(ffmpeg_is_not_started_for_others), cmocka_unit_test(cancelling_ends_ffmpeg),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
