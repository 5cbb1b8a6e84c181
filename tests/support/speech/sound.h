/* Sound files written by tests, and measurements of samples.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SOUND_H
#define TESTS_SOUND_H

#include <stddef.h>
#include <stdint.h>

#include <sndfile.h>

#include "speech/audio.h"

/* Writes n frames [n][channels] as scratch file `name` in a format of libsndfile; NULL when the format cannot be
 * written. Valid as scratch_path says. */
const char *sound_file(const char *name, int format, int rate, int channels, const float *samples, size_t n);
/* The same for 16-bit samples of one channel at 16 kHz, in a WAV file. */
const char *sound_file_i16(const char *name, const int16_t *samples, size_t n);

/* level * sin(2 pi frequency t), n samples of it, owned by the caller (free). */
float *sound_sine(double level, double frequency, int rate, size_t n);

/* A whole recording, owned by the caller (free); fails the test when it cannot be read. */
float *sound_read(const char *path, size_t *n);

/* Fits a sine of `frequency` that is 0 at sample 0 to samples [begin, end) at 16 kHz: its level, its delay in seconds,
 * and the root mean square of the rest. */
typedef struct sound_fit {
    double level, delay, rest;
} sound_fit;
sound_fit sound_fit_sine(const float *samples, size_t begin, size_t end, double frequency);

#endif
