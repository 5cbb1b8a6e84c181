/* Hostile recordings: each is refused with one message of this library, and no other library prints anything; MPEG
 * audio in any container.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "speech/audio.h"
#include "support/hostile/hostile.h"
#include "support/scratch.h"
#include "support/speech/sound.h"

static const char speech_mp3[] = "audio/1272-141231-0002.mp3";

/* ---- output of other libraries ---- */

typedef struct silence {
    int kept[2], caught; /* the standard streams and the file that replaces them */
} silence;

static silence capture_output(void) {
    silence s = {.caught = memfd_create("streams", MFD_CLOEXEC)};
    fflush(NULL);
    for (int k = 0; k < 2; k++) {
        s.kept[k] = dup(k + 1);
        dup2(s.caught, k + 1);
    }
    return s;
}

/* Fails when anything was written since capture_output. */
static void assert_silent(silence s) {
    char text[200] = "";
    fflush(NULL);
    for (int k = 0; k < 2; k++) {
        dup2(s.kept[k], k + 1);
        close(s.kept[k]);
    }
    ssize_t n = pread(s.caught, text, sizeof text - 1, 0);
    close(s.caught);
    if (n != 0) fail_msg("%zd bytes were printed, as '%s'", n, text);
}

/* Mutated and truncated files: each is read or refused, without output. */
static void damage(const bytes *whole, int n_files, uint64_t seed) {
    enum { ROOM = 256 };
    uint8_t *damaged = test_malloc(whole->n + ROOM);
    silence s = capture_output();
    for (int i = 0; i < n_files; i++) {
        memcpy(damaged, whole->data, whole->n);
        size_t n =
            i % 4 ? hostile_mutate(damaged, whole->n, whole->n + ROOM, &seed) : (size_t)(test_random(&seed) % whole->n);
        hostile_audio(damaged, n);
    }
    assert_silent(s);
    test_free(damaged);
}

/* ---- MPEG audio ---- */

static void put_number(bytes *b, uint32_t value, int n) {
    for (int i = 0; i < n; i++) bytes_append(b, &(uint8_t){(uint8_t)(value >> 8 * i)}, 1);
}

static void read_mp3(bytes *mp3, size_t most) {
    assert_ok(file_read(mp3, data_path(speech_mp3), 1 << 20));
    if (mp3->n > most) mp3->n = most;
}

/* A WAV file of 16 kHz and one channel with `format` and the given data chunk. */
static void put_wav(bytes *b, uint32_t format, const bytes *data) {
    bytes_append(b, "RIFF", 4);
    put_number(b, (uint32_t)data->n + 50, 4);
    bytes_append(b, "WAVEfmt ", 8);
    put_number(b, 30, 4);
    put_number(b, format, 2);
    put_number(b, 1, 2);
    put_number(b, 16000, 4);
    put_number(b, 4000, 4);
    put_number(b, 1, 2);
    put_number(b, 0, 2);
    put_number(b, 12, 2);
    put_number(b, 1, 2);
    put_number(b, 2, 4);
    put_number(b, 288, 2);
    put_number(b, 1, 2);
    put_number(b, 0, 2);
    bytes_append(b, "data", 4);
    put_number(b, (uint32_t)data->n, 4);
    bytes_append(b, data->data, data->n);
}

static void put_id3(bytes *b, uint32_t n) {
    bytes_append(b, "ID3\3\0\0", 6);
    for (int shift = 21; shift >= 0; shift -= 7) put_number(b, n >> shift & 0x7F, 1);
    for (uint32_t i = 0; i < n; i++) put_number(b, 0, 1);
}

/* The samples equal those that libsndfile decodes, bit for bit. */
static void mpeg_samples_equal_those_of_libsndfile(void **state) {
    (void)state;
    size_t n;
    float *got = sound_read(data_path(speech_mp3), &n), *wanted = test_malloc((n + 1) * sizeof *wanted);
    SF_INFO info = {0};
    SNDFILE *file = sf_open(data_path(speech_mp3), SFM_READ, &info);
    assert_non_null(file);
    assert_true(info.samplerate == AUDIO_RATE && info.channels == 1);
    assert_int_equal(sf_readf_float(file, wanted, (sf_count_t)n + 1), n);
    sf_close(file);
    assert_memory_equal(got, wanted, n * sizeof *got);
    test_free(wanted);
    free(got);
}

static void mpeg_audio_in_other_containers_is_read(void **state) {
    (void)state;
    bytes mp3 = {0}, files[4] = {{0}};
    read_mp3(&mp3, SIZE_MAX);
    size_t n, n_wanted;
    float *wanted = sound_read(data_path(speech_mp3), &n_wanted);
    put_id3(&files[0], 300);
    bytes_append(&files[0], mp3.data, mp3.n);
    put_id3(&files[1], 0); /* two tags */
    bytes_append(&files[1], files[0].data, files[0].n);
    put_wav(&files[2], 0x55, &mp3);
    put_id3(&files[3], 70);
    bytes_append(&files[3], files[2].data, files[2].n);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        silence s = capture_output();
        float *got = sound_read(scratch_file("mpeg", files[i].data, files[i].n), &n);
        assert_silent(s);
        assert_int_equal(n, n_wanted);
        assert_memory_equal(got, wanted, n * sizeof *got);
        free(got);
        bytes_clear(&files[i]);
    }
    free(wanted);
    bytes_clear(&mp3);
}

static void hostile_mpeg_audio_is_refused_with_one_message(void **state) {
    (void)state;
    static const char *const names[] = {"0028", "0359", "0386"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        audio *a = NULL;
        snprintf(name, sizeof name, "audio/hostile-mpeg-%s.wav", names[i]);
        silence s = capture_output();
        mn_status status = audio_open(&a, data_path(name));
        assert_silent(s);
        assert_fails(MN_E_FORMAT, "cannot be read as audio: it begins as MPEG audio (mp3) and has no frame", status);
        assert_null(a);
    }
}

/* Every file that ends within the headers, or soon after them. */
static void cut_off(const bytes *whole) {
    enum { MOST = 80 };
    for (size_t n = 0; n < MOST; n++) {
        silence s = capture_output();
        hostile_audio((const uint8_t *)whole->data, n);
        assert_silent(s);
    }
}

static void damaged_mpeg_prints_nothing(void **state) {
    (void)state;
    enum { MOST = 4000 };
    int n_files = test_is_long() ? 20000 : 300 / test_stride(2);
    bytes mp3 = {0}, other = {0}, hostile = {0};
    read_mp3(&mp3, MOST);
    damage(&mp3, n_files, 3);
    put_wav(&other, 0x55, &mp3);
    cut_off(&other);
    damage(&other, n_files, 5);
    other.n = 0;
    put_id3(&other, 40);
    bytes_append(&other, mp3.data, mp3.n);
    cut_off(&other);
    damage(&other, n_files, 7);
    other.n = 0;
    for (int i = 0; i < 3; i++) put_id3(&other, 0);
    bytes_append_text(&other, "neither frames nor another format, and it is long enough to be looked at");
    cut_off(&other);
    assert_ok(file_read(&hostile, data_path("audio/hostile-mpeg-0028.wav"), 1 << 16));
    damage(&hostile, n_files, 9);
    bytes_clear(&mp3);
    bytes_clear(&other);
    bytes_clear(&hostile);
}

/* A decoder that prints is not reached through a container whose chunks libsndfile might find where this library does
 * not: bytes between chunks, and chunks whose size is wrong. */
static void mpeg_behind_wrong_chunks_prints_nothing(void **state) {
    (void)state;
    enum { MOST_GAP = 24, HEAD = 12, FMT = 38 };
    bytes hostile = {0}, whole = {0}, file = {0};
    assert_ok(file_read(&hostile, data_path("audio/hostile-mpeg-0028.wav"), 1 << 16));
    put_wav(&whole, 0x55, &hostile);
    silence s = capture_output();
    for (size_t at = HEAD; at <= HEAD + FMT; at += FMT) { /* before "fmt " and before "data" */
        for (uint32_t gap = 0; gap <= MOST_GAP; gap++) {
            for (uint32_t said = 0; said <= 2 * MOST_GAP; said += 1 + said / 8) {
                file.n = 0;
                bytes_append(&file, whole.data, at);
                if (said > 0) bytes_append(&file, "note", 4);
                if (said > 0) put_number(&file, said - 1, 4);
                for (uint32_t i = 0; i < gap; i++) put_number(&file, gap % 3 ? 'a' : 0, 1);
                bytes_append(&file, whole.data + at, whole.n - at);
                hostile_audio((const uint8_t *)file.data, file.n);
            }
        }
    }
    assert_silent(s);
    bytes_clear(&hostile);
    bytes_clear(&whole);
    bytes_clear(&file);
}

/* ---- WAV files with wrong sizes ---- */

enum { N_SAMPLES = 400 };

/* The parts of a file. Sizes are those in the headers, not those of the data. */
typedef struct wav_plan {
    const char *order; /* f: fmt, d: data, x: a chunk of 10 bytes of another name */
    uint32_t fmt_size, data_size, other_size, rate;
    uint16_t format, channels, bits;
} wav_plan;

static const wav_plan good_plan = {"fxd", 16, 2 * N_SAMPLES, 10, AUDIO_RATE, 1, 1, 16};

static void put_plan(bytes *b, const wav_plan *p) {
    bytes_append(b, "RIFF", 4);
    put_number(b, 2 * N_SAMPLES + 60, 4);
    bytes_append(b, "WAVE", 4);
    for (const char *at = p->order; *at; at++) {
        if (*at == 'f') {
            bytes_append(b, "fmt ", 4);
            put_number(b, p->fmt_size, 4);
            put_number(b, p->format, 2);
            put_number(b, p->channels, 2);
            put_number(b, p->rate, 4);
            put_number(b, p->rate * p->channels * p->bits / 8, 4);
            put_number(b, (uint32_t)p->channels * p->bits / 8, 2);
            put_number(b, p->bits, 2);
        } else if (*at == 'd') {
            bytes_append(b, "data", 4);
            put_number(b, p->data_size, 4);
            for (uint32_t i = 0; i < N_SAMPLES; i++) put_number(b, i * 16, 2);
        } else {
            bytes_append(b, "note", 4);
            put_number(b, p->other_size, 4);
            bytes_append(b, "0123456789", 10);
        }
    }
}

/* Number of samples read, or -1 when refused with a message of this library; nothing is printed, nothing leaks. */
static int64_t samples_of(const wav_plan *p) {
    bytes file = {0};
    audio *a = NULL;
    static float out[8 * N_SAMPLES * 16];
    int64_t n = -1, live = mem_count().live;
    put_plan(&file, p);
    const char *path = scratch_file("plan.wav", file.data, file.n);
    bytes_clear(&file);
    silence s = capture_output();
    mn_status status = audio_open(&a, path);
    if (status == MN_OK) status = audio_read(a, 0, sizeof out / sizeof *out, out, &n);
    audio_close(&a);
    assert_silent(s);
    assert_int_equal(mem_count().live, live);
    for (int64_t i = 0; i < n; i++) assert_true(isfinite(out[i]));
    if (status == MN_OK) return n;
    assert_int_equal(status, MN_E_FORMAT);
    assert_non_null(strstr(mn_last_error(), "plan.wav'"));
    assert_null(strpbrk(mn_last_error(), "\n\r\x1b"));
    assert_null(strstr(mn_last_error(), "rror"));
    return -1;
}

static void wrong_sizes_are_handled(void **state) {
    (void)state;
    static const uint32_t sizes[] = {0, 1, 7, 15, 17, 33, 1000000, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF};
    assert_int_equal(samples_of(&good_plan), N_SAMPLES);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        wav_plan fmt = good_plan, data = good_plan, other = good_plan;
        fmt.fmt_size = data.data_size = other.other_size = sizes[i];
        assert_true(samples_of(&fmt) <= N_SAMPLES);
        assert_true(samples_of(&other) <= N_SAMPLES);
        int64_t n = samples_of(&data);
        if (sizes[i] > 2 * N_SAMPLES) assert_int_equal(n, N_SAMPLES); /* the data present are the recording */
        if (sizes[i] > 1 && sizes[i] < 2 * N_SAMPLES) assert_int_equal(n, sizes[i] / 2);
    }
    wav_plan hours = good_plan; /* ten of them in a few bytes */
    hours.data_size = 10u * 3600 * 2 * AUDIO_RATE;
    assert_int_equal(samples_of(&hours), N_SAMPLES);
}

static void chunks_in_any_order_are_read_or_refused(void **state) {
    (void)state;
    static const struct {
        const char *order;
        int64_t wanted; /* -2: read or refused */
    } cases[] = {{"fd", N_SAMPLES}, {"xfxdx", N_SAMPLES}, {"d", -1},   {"f", -1},   {"x", -1},
                 {"", -1},          {"df", -1},           {"ffd", -2}, {"fdd", -2}, {"fdf", -2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wav_plan p = good_plan;
        p.order = cases[i].order;
        int64_t n = samples_of(&p);
        if (cases[i].wanted == -2 ? n != -1 && n != N_SAMPLES : n != cases[i].wanted)
            fail_msg("chunks '%s': %lld samples", p.order, (long long)n);
    }
}

static void invalid_formats_are_refused(void **state) {
    (void)state;
    static const uint16_t channels[] = {0, 65, 255, 65535};
    static const uint32_t rates[] = {0, 1, 0x7FFFFFFF, 0xFFFFFFFF};
    for (size_t i = 0; i < 4; i++) {
        wav_plan many = good_plan, fast = good_plan;
        many.channels = channels[i];
        fast.rate = rates[i];
        assert_int_equal(samples_of(&many), -1);
        assert_int_equal(samples_of(&fast), -1);
    }
    for (uint16_t bits = 0; bits <= 65; bits++) {
        if (!test_samples(bits, 4)) continue;
        wav_plan p = good_plan;
        p.bits = bits;
        int64_t n = samples_of(&p);
        if (bits == 8 || bits == 16 || bits == 24 || bits == 32) {
            assert_int_equal(n, 16 * N_SAMPLES / bits);
        } else {
            assert_true(n <= 2 * N_SAMPLES);
        }
        p.format = 3; /* floats */
        assert_true(samples_of(&p) <= 2 * N_SAMPLES);
    }
    for (uint32_t format = 0; format < 0x10000; format = format < 300 ? format + 1 : format * 2 + 1) {
        if (format >= 20 && !test_samples((int)format, 5)) continue;
        wav_plan p = good_plan;
        p.format = (uint16_t)format;
        samples_of(&p);
    }
}

/* RF64: 64-bit sizes in a separate chunk. */
static void sizes_of_RF64_are_read(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {{2 * N_SAMPLES, 0},       {0, 0}, {0xFFFFFFFF, 0xFFFFFFFF}, {0, 0x80000000},
                                        {0xFFFFFFFF, 0x7FFFFFFF}, {1, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bytes b = {0};
        wav_plan p = good_plan;
        p.order = "fd";
        p.data_size = 0xFFFFFFFF;
        bytes body = {0};
        put_plan(&body, &p);
        bytes_append(&b, "RF64\xFF\xFF\xFF\xFFWAVEds64", 16);
        put_number(&b, 28, 4);
        for (int k = 0; k < 3; k++) { /* of the file, of the data, samples */
            put_number(&b, sizes[i][0] / (k == 2 ? 2 : 1), 4);
            put_number(&b, sizes[i][1], 4);
        }
        put_number(&b, 0, 4);
        bytes_append(&b, body.data + 12, body.n - 12);
        silence s = capture_output();
        mn_status status = hostile_audio((const uint8_t *)b.data, b.n);
        assert_silent(s);
        if (i == 0) assert_int_equal(status, MN_OK);
        if (status != MN_OK) assert_null(strstr(mn_last_error(), "rror"));
        bytes_clear(&b);
        bytes_clear(&body);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mpeg_samples_equal_those_of_libsndfile),
        cmocka_unit_test(mpeg_audio_in_other_containers_is_read),
        cmocka_unit_test(hostile_mpeg_audio_is_refused_with_one_message),
        cmocka_unit_test(damaged_mpeg_prints_nothing),
        cmocka_unit_test(mpeg_behind_wrong_chunks_prints_nothing),
        cmocka_unit_test(wrong_sizes_are_handled),
        cmocka_unit_test(chunks_in_any_order_are_read_or_refused),
        cmocka_unit_test(invalid_formats_are_refused),
        cmocka_unit_test(sizes_of_RF64_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
