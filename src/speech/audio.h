/* Recordings: any file that libsndfile or (MPEG audio) libmpg123 reads, at any rate and with any number of channels, as mono samples at 16 kHz.
 *
 * Nothing is held but the last AUDIO_KEPT samples, so the length of a recording costs no memory. Reading further back
 * decodes the file once more from its beginning, which gives the same bits. Bytes that come through a pipe are first
 * put into a temporary file, as they are. Samples of integers are the stored value / 2^(bits - 1), channels are averaged, other
 * rates go through soxr (high quality, linear phase), aligned in time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_AUDIO_H
#define MN_SPEECH_AUDIO_H

#include <stdint.h>

#include "base/status.h"

enum { AUDIO_RATE = 16000, AUDIO_KEPT = 35 * AUDIO_RATE };

typedef struct audio audio;

/* Opens a file, or the standard input for "-", and decodes its first samples. MN_E_NOT_FOUND, MN_E_IO; MN_E_FORMAT for what is no
 * audio, holds no sample, or has a rate or a number of channels outside of what is read (1,000 to 1,000,000 Hz, 1 to 64).
 * A header that promises more than there is does no harm: what is there is the recording. */
mn_status audio_open(audio **out, const char *path);

/* The same for an open file, which the audio owns from here on, also when this fails. `name` stands in messages. */
mn_status audio_open_fd(audio **out, int fd, const char *name);

void audio_close(audio **a);

/* Samples [begin, begin + n) into `out`; *n_read of them lie before the end, the others are not written. MN_E_FORMAT for a sample
 * that is no finite number or beyond 2^32, MN_E_IO for a file that is not the same when it is decoded again; then the audio is of
 * no more use. MN_E_ARG for a negative place. */
mn_status audio_read(audio *a, int64_t begin, int64_t n, float *out, int64_t *n_read);

/* Samples of the whole recording, -1 until its end has been read. */
int64_t audio_length(const audio *a);

/* Samples that the header promises, 0 when it tells nothing: good enough for showing progress, and more than audio_length when the
 * file is cut short or damaged. */
int64_t audio_promised(const audio *a);

/* As the file has it. */
int audio_channels(const audio *a);
int audio_file_rate(const audio *a);

#endif
