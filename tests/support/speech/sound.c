/* SPDX-License-Identifier: Apache-2.0 */
#include "support/speech/sound.h"

#include <math.h>

#include "support/scratch.h"
#include "support/support.h"

static const double pi = 3.14159265358979323846;

enum { PIECE = 10007 };

const char *sound_file(const char *name, int format, int rate, int channels, const float *samples, size_t n) {
    SF_INFO info = {.samplerate = rate, .channels = channels, .format = format};
    const char *path = scratch_path(name);
    if (!sf_format_check(&info)) return NULL;
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);
    if (!file) return NULL;
    sf_count_t done = 0, here = 1; /* the Vorbis encoder accepts small pieces only */
    while (here > 0) {
        here = sf_writef_float(file, samples + done * channels,
                               (sf_count_t)n - done < PIECE ? (sf_count_t)n - done : PIECE);
        done += here;
    }
    return sf_close(file) == 0 && done == (sf_count_t)n ? path : NULL;
}

const char *sound_file_i16(const char *name, const int16_t *samples, size_t n) {
    SF_INFO info = {.samplerate = AUDIO_RATE, .channels = 1, .format = SF_FORMAT_WAV | SF_FORMAT_PCM_16};
    const char *path = scratch_path(name);
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);
    assert_non_null(file);
    assert_int_equal(sf_write_short(file, samples, (sf_count_t)n), n);
    assert_int_equal(sf_close(file), 0);
    return path;
}

float *sound_sine(double level, double frequency, int rate, size_t n) {
    float *samples = malloc(n * sizeof *samples);
    for (size_t i = 0; i < n; i++) samples[i] = (float)(level * sin(2 * pi * frequency * (double)i / rate));
    return samples;
}

float *sound_read(const char *path, size_t *n) {
    audio *a = NULL;
    float *samples = NULL;
    int64_t n_read = PIECE;
    assert_ok(audio_open(&a, path));
    for (*n = 0; n_read == PIECE; *n += (size_t)n_read) {
        samples = realloc(samples, (*n + PIECE) * sizeof *samples);
        assert_ok(audio_read(a, (int64_t)*n, PIECE, samples + *n, &n_read));
    }
    assert_int_equal(audio_length(a), *n);
    audio_close(&a);
    return samples;
}

sound_fit sound_fit_sine(const float *samples, size_t begin, size_t end, double frequency) {
    double ss = 0, sc = 0, cc = 0, xs = 0, xc = 0, rest = 0;
    for (size_t i = begin; i < end; i++) {
        double angle = 2 * pi * frequency * (double)i / AUDIO_RATE, s = sin(angle), c = cos(angle),
               x = (double)samples[i];
        ss += s * s;
        sc += s * c;
        cc += c * c;
        xs += x * s;
        xc += x * c;
    }
    double determinant = ss * cc - sc * sc, a = (xs * cc - xc * sc) / determinant,
           b = (xc * ss - xs * sc) / determinant;
    for (size_t i = begin; i < end; i++) {
        double angle = 2 * pi * frequency * (double)i / AUDIO_RATE;
        double e = (double)samples[i] - a * sin(angle) - b * cos(angle);
        rest += e * e;
    }
    return (sound_fit){hypot(a, b), -atan2(b, a) / (2 * pi * frequency), sqrt(rest / (double)(end - begin))};
}
