/* Recordings of every format, rate and number of channels are read as samples; damaged and invalid ones are refused
 * with a message.
 * SPDX-License-Identifier: Apache-2.0 */
#include "support/support.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "speech/audio.h"
#include "support/hostile/hostile.h"
#include "support/scratch.h"
#include "support/speech/sound.h"

enum { SECOND = AUDIO_RATE };

/* ---- samples ---- */

static void integers_are_exact(void **state) {
    (void)state;
    int16_t samples[4099];
    uint64_t seed = 1;
    size_t n;
    for (size_t i = 0; i < 4099; i++) samples[i] = (int16_t)(test_random(&seed) >> 48);
    samples[7] = INT16_MIN;
    samples[8] = INT16_MAX;
    float *got = sound_read(sound_file_i16("exact.wav", samples, 4099), &n);
    assert_int_equal(n, 4099);
    for (size_t i = 0; i < n; i++) assert_true(got[i] == (float)samples[i] / 32768);
    free(got);
}

static void channels_are_averaged(void **state) {
    (void)state;
    static const int counts[] = {2, 3, 6, 64};
    size_t n;
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        int channels = counts[k];
        float *frames = malloc(1000 * (size_t)channels * sizeof *frames);
        uint64_t seed = (uint64_t)channels;
        for (size_t i = 0; i < 1000 * (size_t)channels; i++) frames[i] = (float)test_uniform(&seed, -1, 1);
        float *got = sound_read(
            sound_file("channels.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, AUDIO_RATE, channels, frames, 1000), &n);
        assert_int_equal(n, 1000);
        for (size_t i = 0; i < n; i++) {
            double sum = 0;
            for (size_t c = 0; c < (size_t)channels; c++) sum += (double)frames[i * (size_t)channels + c];
            assert_true(fabs((double)got[i] - sum / channels) < 1e-6);
        }
        free(got);
        free(frames);
    }
}

/* A sine keeps its level, its frequency and its position in time, without other components. */
static void rates_are_converted(void **state) {
    (void)state;
    static const int rates[] = {8000, 11025, 12000, 15999, 22050, 24000, 32000, 44100, 48000, 96000, 192000};
    static const double frequencies[] = {110, 440, 2999, 7000};
    for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
        for (size_t k = 0; k < sizeof frequencies / sizeof *frequencies; k++) {
            size_t n_file = (size_t)rates[r] * 2 + 17, n;
            if (frequencies[k] > 0.45 * rates[r]) continue;
            float *sine = sound_sine(0.5, frequencies[k], rates[r], n_file);
            float *got =
                sound_read(sound_file("rate.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, rates[r], 1, sine, n_file), &n);
            sound_fit fit = sound_fit_sine(got, SECOND / 4, SECOND * 7 / 4, frequencies[k]);
            double wanted = (double)n_file * AUDIO_RATE / rates[r];
            if (fabs((double)n - wanted) > 1 || fabs(fit.level - 0.5) > 5e-4 || fabs(fit.delay) > 1e-7 ||
                fit.rest > 1e-5)
                fail_msg("%g Hz at %d Hz: %zu samples (%g), level %g, delay %g s, rest %g", frequencies[k], rates[r], n,
                         wanted, fit.level, fit.delay, fit.rest);
            free(got);
            free(sine);
        }
    }
}

/* Frequencies above 8 kHz are removed without aliasing. */
static void frequencies_above_8_kHz_are_removed(void **state) {
    (void)state;
    static const double frequencies[] = {9000, 12000, 15500, 21000};
    for (size_t k = 0; k < sizeof frequencies / sizeof *frequencies; k++) {
        size_t n;
        float *sine = sound_sine(0.5, frequencies[k], 44100, 2 * 44100);
        float *got = sound_read(sound_file("high.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 44100, 1, sine, 2 * 44100), &n);
        for (size_t i = SECOND / 4; i < SECOND * 7 / 4; i++) assert_true(fabsf(got[i]) < 1e-5f);
        free(got);
        free(sine);
    }
}

/* ---- formats ---- */

/* How much of a sine of level 0.5 a subtype may distort, root mean square. */
static double allowed_rest(int subtype) {
    switch (subtype) {
    case SF_FORMAT_PCM_S8:
    case SF_FORMAT_PCM_U8:
    case SF_FORMAT_DPCM_8: return 5e-3;
    case SF_FORMAT_ULAW:
    case SF_FORMAT_ALAW: return 1e-2;
    case SF_FORMAT_VORBIS:
    case SF_FORMAT_OPUS:
    case SF_FORMAT_MPEG_LAYER_I:
    case SF_FORMAT_MPEG_LAYER_II:
    case SF_FORMAT_MPEG_LAYER_III: return 1e-2;
    case SF_FORMAT_IMA_ADPCM:
    case SF_FORMAT_MS_ADPCM:
    case SF_FORMAT_VOX_ADPCM:
    case SF_FORMAT_NMS_ADPCM_16:
    case SF_FORMAT_NMS_ADPCM_24:
    case SF_FORMAT_NMS_ADPCM_32:
    case SF_FORMAT_G721_32:
    case SF_FORMAT_G723_24:
    case SF_FORMAT_G723_40:
    case SF_FORMAT_GSM610: return 5e-2;
    default: return 1e-4;
    }
}

/* Whether the file has this rate: formats with few rates accept any when they are written. */
static bool has_rate(const char *path, int rate) {
    SF_INFO info = {0};
    SNDFILE *file = sf_open(path, SFM_READ, &info);
    assert_non_null(file);
    sf_close(file);
    return info.samplerate == rate;
}

/* False when libsndfile cannot write such files. */
static bool try_format(int format, int rate) {
    size_t n_file = (size_t)rate * 2, n;
    float *sine = sound_sine(0.5, 440, rate, n_file);
    const char *path = sound_file("format", format, rate, 1, sine, n_file);
    free(sine);
    if (!path || !has_rate(path, rate)) return false;
    float *got = sound_read(path, &n);
    sound_fit fit = sound_fit_sine(got, SECOND / 2, SECOND * 3 / 2, 440);
    free(got);
    /* Codecs have blocks, and MPEG's a delay. */
    if (fabs((double)n - 2.0 * SECOND) > 4000 || fabs(fit.level - 0.5) > 0.02 ||
        fit.rest > allowed_rest(format & SF_FORMAT_SUBMASK))
        fail_msg("format %x at %d Hz: %zu samples, level %g, rest %g", (unsigned)format, rate, n, fit.level, fit.rest);
    return true;
}

static void every_format_is_read(void **state) {
    (void)state;
    static const int rates[] = {AUDIO_RATE, 8000, 44100}; /* some formats have one rate only */
    int n_major = 0, n_sub = 0, n_tried = 0;
    bool has_flac = false, has_ogg = false, has_mp3 = false;
    sf_command(NULL, SFC_GET_FORMAT_MAJOR_COUNT, &n_major, sizeof n_major);
    sf_command(NULL, SFC_GET_FORMAT_SUBTYPE_COUNT, &n_sub, sizeof n_sub);
    for (int i = 0; i < n_major; i++) {
        SF_FORMAT_INFO major = {.format = i};
        sf_command(NULL, SFC_GET_FORMAT_MAJOR, &major, sizeof major);
        if (major.format == SF_FORMAT_RAW || major.format == SF_FORMAT_SD2) continue; /* the file has no header */
        for (int j = 0; j < n_sub; j++) {
            SF_FORMAT_INFO sub = {.format = j};
            sf_command(NULL, SFC_GET_FORMAT_SUBTYPE, &sub, sizeof sub);
            size_t k = 0;
            while (k < 3 && !try_format(major.format | sub.format, rates[k])) k++;
            if (k == 3) continue;
            has_flac |= major.format == SF_FORMAT_FLAC;
            has_ogg |= major.format == SF_FORMAT_OGG;
            has_mp3 |= major.format == SF_FORMAT_MPEG;
            n_tried++;
        }
    }
    assert_true(n_tried >= 60);
    assert_true(has_flac && has_ogg && has_mp3);
}

/* One clip as FLAC and as MP3 from another encoder: the same speech. */
static void mp3_equals_its_source(void **state) {
    (void)state;
    enum { MOST_DELAY = 2500, STEP = 7 };
    size_t n_flac, n_mp3;
    float *flac = sound_read(data_path("audio/1272-141231-0002.flac"), &n_flac);
    float *mp3 = sound_read(data_path("audio/1272-141231-0002.mp3"), &n_mp3);
    double best = 0;
    assert_int_equal(n_flac, 213360);
    assert_true(llabs((long long)n_mp3 - (long long)n_flac) < MOST_DELAY);
    for (int delay = -MOST_DELAY; delay <= MOST_DELAY; delay++) {
        double xy = 0, xx = 0, yy = 0;
        for (int i = 2 * MOST_DELAY; i < (int)n_flac - 2 * MOST_DELAY; i += STEP) {
            double x = (double)flac[i], y = (double)mp3[i + delay];
            xy += x * y;
            xx += x * x;
            yy += y * y;
        }
        best = fmax(best, xy / sqrt(xx * yy));
    }
    if (best < 0.99) fail_msg("correlation %g", best);
    free(flac);
    free(mp3);
}

/* ---- positions ---- */

/* Two minutes, so that the beginning leaves the buffer and is decoded again. */
static void any_position_can_be_read_again(void **state) {
    (void)state;
    static const int formats[] = {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_FLAC | SF_FORMAT_PCM_16,
                                  SF_FORMAT_OGG | SF_FORMAT_VORBIS, SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III};
    size_t n_file = 120 * 22050, n;
    float *noise = malloc(n_file * sizeof *noise), piece[1000];
    uint64_t seed = 3;
    for (size_t i = 0; i < n_file; i++) noise[i] = (float)test_uniform(&seed, -0.3, 0.3);
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++) {
        if (!test_samples((int)k, 3)) continue;
        const char *path = sound_file("long", formats[k], 22050, 1, noise, n_file);
        assert_non_null(path);
        float *whole = sound_read(path, &n);
        audio *a = NULL;
        assert_ok(audio_open(&a, path));
        assert_int_equal(audio_length(a), -1);
        assert_true(llabs(audio_declared_length(a) - (int64_t)n) < 4000);
        static const double places[] = {0, 0.999, 0.75, 0.5, 0.9995, 1e-5, 0.3, 0};
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            int64_t begin = (int64_t)(places[i] * (double)n), n_read;
            assert_ok(audio_read(a, begin, 1000, piece, &n_read));
            assert_int_equal(n_read, begin + 1000 < (int64_t)n ? 1000 : (int64_t)n - begin);
            assert_memory_equal(piece, whole + begin, (size_t)n_read * sizeof *piece);
        }
        int64_t n_read;
        for (int64_t at = (int64_t)n - 1; k == 0 && at >= 0; at--) { /* backwards, across every edge of the buffer */
            assert_ok(audio_read(a, at, 1, piece, &n_read));
            if (piece[0] != whole[at]) fail_msg("sample %lld of %zu", (long long)at, n);
        }
        assert_ok(audio_read(a, (int64_t)n, 10, piece, &n_read));
        assert_int_equal(n_read, 0);
        assert_ok(audio_read(a, INT64_MAX / 2, 10, piece, &n_read));
        assert_int_equal(n_read, 0);
        assert_fails(MN_E_ARG, "negative", audio_read(a, -1, 10, piece, &n_read));
        assert_int_equal(audio_length(a), n);
        audio_close(&a);
        free(whole);
    }
    free(noise);
}

static void a_changed_file_is_an_error(void **state) {
    (void)state;
    size_t n_file = 90 * SECOND;
    float *sine = sound_sine(0.5, 440, AUDIO_RATE, n_file), sample;
    const char *path = sound_file("changing.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, AUDIO_RATE, 1, sine, n_file);
    audio *a = NULL;
    int64_t n_read;
    assert_ok(audio_open(&a, path));
    assert_ok(audio_read(a, (int64_t)n_file, 1, &sample, &n_read));
    assert_int_equal(truncate(path, 80 * SECOND * 2), 0);
    mn_status status = audio_read(a, 0, 1, &sample, &n_read);
    if (status == MN_OK) status = audio_read(a, (int64_t)n_file, 1, &sample, &n_read);
    assert_int_equal(status, MN_E_IO);
    assert_non_null(strstr(mn_last_error(), "was changed while it was read"));
    audio_close(&a);
    free(sine);
}

/* ---- pipes ---- */

static int open_files(void) {
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

/* Opens a recording with the descriptor as standard input, and closes it. */
static mn_status open_as_input(audio **out, int fd) {
    int kept = dup(STDIN_FILENO);
    dup2(fd, STDIN_FILENO);
    close(fd);
    mn_status status = audio_open(out, "-");
    dup2(kept, STDIN_FILENO);
    close(kept);
    return status;
}

/* Reads a file through a pipe as the standard input. */
static mn_status open_piped(audio **out, const char *path) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        char block[4096];
        int fd = open(path, O_RDONLY);
        close(ends[0]);
        for (ssize_t n; (n = read(fd, block, sizeof block)) > 0;) {
            if (write(ends[1], block, (size_t)n) != n) break; /* the reader has closed the pipe */
        }
        _exit(0);
    }
    close(ends[1]);
    return open_as_input(out, ends[0]);
}

static void pipes_are_read(void **state) {
    (void)state;
    static const char *const names[] = {"audio/1272-141231-0002.flac", "audio/1272-141231-0002.mp3",
                                        "wav-corner-cases/test-44100Hz-le-1ch-4bytes.wav"};
    int n_open = open_files();
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        size_t n;
        int64_t n_read;
        float *wanted = sound_read(data_path(names[k]), &n), *got = malloc((n + 1) * sizeof *got);
        audio *a = NULL;
        assert_ok(open_piped(&a, data_path(names[k])));
        assert_ok(audio_read(a, 0, (int64_t)n + 1, got, &n_read));
        assert_int_equal(n_read, n);
        assert_memory_equal(got, wanted, n * sizeof *got);
        audio_close(&a);
        free(wanted);
        free(got);
    }
    audio *a = NULL;
    assert_fails(MN_E_FORMAT, "what ffmpeg reads is taken from pipes of up to 16 MiB",
                 open_piped(&a, "/dev/zero")); /* and reading stops */
    assert_fails(MN_E_FORMAT, "'standard input' is empty", open_piped(&a, "/dev/null"));
    assert_null(a);
    assert_int_equal(open_files(), n_open);
}

/* A standard input that another program has partly read. */
static void a_partly_read_standard_input_is_handled(void **state) {
    (void)state;
    int16_t samples[100] = {1, 2, 3};
    bytes file = {0}, whole = {0};
    int n_open = open_files();
    assert_ok(file_read(&whole, sound_file_i16("part.wav", samples, 100), 1 << 16));
    bytes_append_text(&file, "a line before\n");
    bytes_append(&file, whole.data, whole.n);
    int fd = open(scratch_file("parts", file.data, file.n), O_RDONLY);
    float got[101];
    int64_t n_read;
    audio *a = NULL;
    assert_int_equal(lseek(fd, 14, SEEK_SET), 14);
    assert_ok(open_as_input(&a, fd));
    assert_ok(audio_read(a, 0, 101, got, &n_read));
    assert_int_equal(n_read, 100);
    for (int i = 0; i < 100; i++) assert_true(got[i] == (float)samples[i] / 32768);
    audio_close(&a);
    bytes_clear(&file);
    bytes_clear(&whole);
    assert_int_equal(open_files(), n_open);
}

/* ---- damaged and invalid files ---- */

static void published_corner_cases_are_read_or_refused(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int n; /* samples at 16 kHz; 0: refused */
        const char *part;
    } cases[] = {
        {"1234Hz-le-1ch-10S-20bit-extra", 130, NULL},
        {"44100Hz-2ch-32bit-float-be", 160, NULL},
        {"44100Hz-2ch-32bit-float-le", 160, NULL},
        {"44100Hz-be-1ch-4bytes", 1600, NULL},
        {"44100Hz-le-1ch-4bytes", 1600, NULL},
        {"44100Hz-le-1ch-4bytes-rf64", 1600, NULL},
        {"44100Hz-le-1ch-4bytes-early-eof", 85, NULL},
        {"44100Hz-le-1ch-4bytes-early-eof-no-data", 0, "its header is damaged, or"},
        {"44100Hz-le-1ch-4bytes-incomplete-chunk", 0, "its header is damaged, or"},
        {"48000Hz-2ch-64bit-float-le-wavex", 160, NULL},
        {"8000Hz-be-3ch-5S-24bit", 10, NULL},
        {"8000Hz-le-1ch-1byte-ulaw", 18, NULL},
        {"8000Hz-le-2ch-1byteu", 1600, NULL},
        {"8000Hz-le-3ch-5S-24bit-inconsistent", 10, NULL},
        {"8000Hz-le-3ch-5S-24bit-rf64", 10, NULL},
        {"8000Hz-le-3ch-5S-24bit", 10, NULL},
        {"8000Hz-le-3ch-5S-36bit", 0, "the encoding of its samples is unknown"},
        {"8000Hz-le-3ch-5S-45bit", 0, "the encoding of its samples is unknown"},
        {"8000Hz-le-3ch-5S-53bit", 0, "the encoding of its samples is unknown"},
        {"8000Hz-le-3ch-5S-64bit", 0, "the encoding of its samples is unknown"},
        {"8000Hz-le-4ch-9S-12bit", 18, NULL},
        {"8000Hz-le-5ch-9S-5bit", 18, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[128];
        size_t n;
        snprintf(name, sizeof name, "wav-corner-cases/test-%s.wav", cases[i].name);
        if (cases[i].n > 0) {
            float *got = sound_read(data_path(name), &n);
            if (llabs((long long)n - cases[i].n) > 1) fail_msg("%s: %zu samples, expected %d", name, n, cases[i].n);
            free(got);
        } else {
            audio *a = NULL;
            assert_fails(MN_E_FORMAT, cases[i].part, audio_open(&a, data_path(name)));
            assert_null(a);
        }
    }
}

/* Files of one sound in several formats. */
static void formats_of_one_sound_give_the_same_samples(void **state) {
    (void)state;
    static const char *const pairs[][2] = {{"44100Hz-le-1ch-4bytes", "44100Hz-be-1ch-4bytes"},
                                           {"44100Hz-le-1ch-4bytes", "44100Hz-le-1ch-4bytes-rf64"},
                                           {"44100Hz-2ch-32bit-float-le", "44100Hz-2ch-32bit-float-be"},
                                           {"8000Hz-le-3ch-5S-24bit", "8000Hz-be-3ch-5S-24bit"},
                                           {"8000Hz-le-3ch-5S-24bit", "8000Hz-le-3ch-5S-24bit-rf64"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        float *samples[2], loudest = 0;
        size_t n[2];
        for (int k = 0; k < 2; k++) {
            char name[128];
            snprintf(name, sizeof name, "wav-corner-cases/test-%s.wav", pairs[i][k]);
            samples[k] = sound_read(data_path(name), &n[k]);
        }
        assert_int_equal(n[0], n[1]);
        for (size_t j = 0; j < n[0]; j++) {
            assert_true(fabsf(samples[0][j] - samples[1][j]) < 1e-6f);
            loudest = fmaxf(loudest, fabsf(samples[0][j]));
        }
        assert_true(loudest > 0.1f && loudest <= 1.1f);
        free(samples[0]);
        free(samples[1]);
    }
}

typedef struct wav_header {
    char riff[4];
    uint32_t size;
    char wave[8];
    uint32_t format_size;
    uint16_t format, channels;
    uint32_t rate, byte_rate;
    uint16_t align, bits;
    char data[4];
    uint32_t n_bytes;
} wav_header;

static wav_header header_of(uint32_t rate, int channels, uint32_t n_bytes) {
    wav_header h = {.size = n_bytes + 36,
                    .format_size = 16,
                    .format = 1,
                    .channels = (uint16_t)channels,
                    .rate = rate,
                    .byte_rate = rate * 2 * (uint32_t)channels,
                    .align = (uint16_t)(2 * channels),
                    .bits = 16,
                    .n_bytes = n_bytes};
    memcpy(h.riff, "RIFF", 4);
    memcpy(h.wave, "WAVEfmt ", 8);
    memcpy(h.data, "data", 4);
    return h;
}

/* A header and n samples. */
static const char *wav_file(wav_header header, size_t n) {
    bytes file = {0};
    bytes_append(&file, &header, sizeof header);
    for (size_t i = 0; i < n; i++) bytes_append(&file, &(int16_t){(int16_t)(i % 1000)}, 2);
    const char *path = scratch_file("headed.wav", file.data, file.n);
    bytes_clear(&file);
    return path;
}

static void wrong_sizes_in_headers_are_handled(void **state) {
    (void)state;
    static const uint32_t promised[] = {0, 3200, 0x45000000u, 0x7FFFFFFFu, 0xFFFFFFFFu};
    audio *a = NULL;
    for (size_t i = 0; i < sizeof promised / sizeof *promised; i++) {
        size_t n;
        int64_t before = mem_count().live;
        float *got = sound_read(wav_file(header_of(AUDIO_RATE, 1, promised[i]), 1600), &n);
        assert_int_equal(n, 1600);
        assert_int_equal(mem_count().live, before);
        free(got);
    }
    assert_fails(MN_E_FORMAT, "holds no samples", audio_open(&a, wav_file(header_of(AUDIO_RATE, 1, 3200), 0)));
    static const uint32_t rates[] = {0, 1, 999, 1000001, 0x7FFFFFFFu, 0xFFFFFFFFu};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        assert_fails(MN_E_FORMAT, NULL, audio_open(&a, wav_file(header_of(rates[i], 1, 3200), 1600)));
        assert_null(a);
    }
    assert_fails(MN_E_FORMAT, "a rate of 999 Hz, allowed: 1000 to 1000000",
                 audio_open(&a, wav_file(header_of(999, 1, 3200), 1600)));
    static const int channels[] = {0, 65, 1024, 65535};
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) {
        assert_fails(MN_E_FORMAT, NULL, audio_open(&a, wav_file(header_of(AUDIO_RATE, channels[i], 32000), 16000)));
    }
    assert_fails(MN_E_FORMAT, "65 channels, allowed: 1 to 64",
                 audio_open(&a, wav_file(header_of(AUDIO_RATE, 65, 32500), 16250)));
}

/* The lowest and highest rates, and lengths down to one sample. */
static void short_recordings_have_their_length(void **state) {
    (void)state;
    static const uint32_t rates[] = {1000, 8000, 16000, 44100, 999983, 1000000};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        for (size_t n_file = 1; n_file < 4000; n_file = n_file * 3 + 1) {
            size_t n;
            double wanted = (double)n_file * AUDIO_RATE / rates[i];
            const char *path = wav_file(header_of(rates[i], 1, (uint32_t)n_file * 2), n_file);
            if (wanted < 1) { /* less than a sample: one sample, or a refusal */
                audio *a = NULL;
                mn_status status = audio_open(&a, path);
                assert_true(status == MN_OK || status == MN_E_FORMAT);
                audio_close(&a);
                continue;
            }
            float *got = sound_read(path, &n);
            if (fabs((double)n - wanted) > 1) fail_msg("%zu samples at %u Hz gave %zu", n_file, rates[i], n);
            free(got);
        }
    }
}

static void truncated_files_give_their_samples(void **state) {
    (void)state;
    static const char *const names[] = {"audio/1272-141231-0002.flac", "audio/1272-141231-0002.mp3"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        bytes file = {0};
        size_t n_whole, n;
        assert_ok(file_read(&file, data_path(names[k]), 1 << 20));
        float *whole = sound_read(data_path(names[k]), &n_whole);
        float *got = sound_read(scratch_file("cut", file.data, file.n / 2), &n);
        assert_true(n > n_whole / 3 && n < n_whole * 2 / 3);
        for (size_t i = 0; i < n - 3000; i++) assert_true(got[i] == whole[i]);
        free(got);
        free(whole);
        audio *a = NULL;
        assert_fails(MN_E_FORMAT, NULL, audio_open(&a, scratch_file("cut", file.data, 30)));
        bytes_clear(&file);
    }
}

/* Truncated anywhere, with bits, bytes, numbers and pieces changed: refused with a message or read as finite samples,
 * in bounded time. */
static void damaged_files_are_refused_or_finite(void **state) {
    (void)state;
    static const int formats[] = {
        SF_FORMAT_WAV | SF_FORMAT_PCM_16,  SF_FORMAT_WAV | SF_FORMAT_MS_ADPCM,       SF_FORMAT_WAV | SF_FORMAT_FLOAT,
        SF_FORMAT_FLAC | SF_FORMAT_PCM_16, SF_FORMAT_OGG | SF_FORMAT_VORBIS,         SF_FORMAT_OGG | SF_FORMAT_OPUS,
        SF_FORMAT_W64 | SF_FORMAT_PCM_24,  SF_FORMAT_CAF | SF_FORMAT_ALAC_16,        SF_FORMAT_AIFF | SF_FORMAT_PCM_U8,
        SF_FORMAT_AU | SF_FORMAT_ULAW,     SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III};
    enum { N_DAMAGED = 40, N_CUT = 10, ROOM = 256 };
    float *sine = sound_sine(0.5, 440, AUDIO_RATE, SECOND / 10);
    uint64_t seed = 23;
    int n_refused = 0, n_files = 0;
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++) {
        bytes file = {0};
        assert_ok(file_read(&file, sound_file("whole", formats[k], AUDIO_RATE, 1, sine, SECOND / 10), 1 << 20));
        assert_int_equal(hostile_audio((const uint8_t *)file.data, file.n), MN_OK);
        uint8_t *damaged = test_malloc(file.n + ROOM);
        for (int i = 0; i < N_DAMAGED; i++, n_files++) {
            memcpy(damaged, file.data, file.n);
            n_refused += hostile_audio(damaged, hostile_mutate(damaged, file.n, file.n + ROOM, &seed)) != MN_OK;
        }
        for (int i = 0; i < N_CUT; i++, n_files++) {
            size_t n = (size_t)(test_random(&seed) % file.n);
            n_refused += hostile_audio((const uint8_t *)file.data, n) != MN_OK;
        }
        test_free(damaged);
        bytes_clear(&file);
    }
    assert_true(n_refused > n_files / 20 && n_refused < n_files);
    free(sine);
}

static void non_finite_samples_are_refused(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f};
    float samples[3000], sample;
    audio *a = NULL;
    int64_t n_read;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        for (size_t i = 0; i < 3000; i++) samples[i] = 0.25f;
        samples[1600] = bad[k];
        const char *path = sound_file("bad.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, AUDIO_RATE, 1, samples, 3000);
        assert_fails(MN_E_FORMAT, "the sample at 0.100 s is ", audio_open(&a, path));
    }
    for (size_t i = 0; i < 3000; i++) samples[i] = i % 2 ? 100000.0f : -3; /* loud samples are valid */
    assert_ok(audio_open(&a, sound_file("loud.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, AUDIO_RATE, 1, samples, 3000)));
    assert_ok(audio_read(a, 1, 1, &sample, &n_read));
    assert_true(sample == 100000.0f);
    audio_close(&a);
}

static void files_that_are_not_audio_are_refused(void **state) {
    (void)state;
    audio *a = NULL;
    char noise[20000];
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof noise; i++) noise[i] = (char)(test_random(&seed) >> 56);
    noise[0] = 'x';
    assert_fails(MN_E_NOT_FOUND, "cannot open '/nowhere/at/all.wav'", audio_open(&a, "/nowhere/at/all.wav"));
    assert_fails(MN_E_IO, "is a folder, not a regular file", audio_open(&a, data_path("audio")));
    assert_fails(MN_E_FORMAT, "is empty", audio_open(&a, scratch_file("empty.wav", "", 0)));
    assert_fails(MN_E_FORMAT, "cannot be read as audio",
                 audio_open(&a, scratch_file("noise.wav", noise, sizeof noise)));
    assert_fails(MN_E_FORMAT, "cannot be read as audio", audio_open(&a, data_path("audio/README.md")));
    assert_null(a);
    audio_close(&a);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    const char *path = wav_file(header_of(44100, 1, 88200), 44100);
    int64_t before = mem_count().live;
    for (int64_t k = 1;; k++) {
        audio *a = NULL;
        float sample;
        int64_t n_read;
        mem_fail_after(k);
        mn_status status = audio_open(&a, path);
        if (status == MN_OK) status = audio_read(a, 15000, 1, &sample, &n_read);
        mem_fail_after(0);
        audio_close(&a);
        assert_int_equal(mem_count().live, before);
        if (status == MN_OK) {
            assert_true(k > 3);
            break;
        }
        assert_int_equal(status, MN_E_NOMEM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_exact),
        cmocka_unit_test(channels_are_averaged),
        cmocka_unit_test(rates_are_converted),
        cmocka_unit_test(frequencies_above_8_kHz_are_removed),
        cmocka_unit_test(every_format_is_read),
        cmocka_unit_test(mp3_equals_its_source),
        cmocka_unit_test(any_position_can_be_read_again),
        cmocka_unit_test(a_changed_file_is_an_error),
        cmocka_unit_test(pipes_are_read),
        cmocka_unit_test(a_partly_read_standard_input_is_handled),
        cmocka_unit_test(published_corner_cases_are_read_or_refused),
        cmocka_unit_test(formats_of_one_sound_give_the_same_samples),
        cmocka_unit_test(wrong_sizes_in_headers_are_handled),
        cmocka_unit_test(short_recordings_have_their_length),
        cmocka_unit_test(truncated_files_give_their_samples),
        cmocka_unit_test(damaged_files_are_refused_or_finite),
        cmocka_unit_test(non_finite_samples_are_refused),
        cmocka_unit_test(files_that_are_not_audio_are_refused),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
