/* Recordings: any file that libsndfile or (MPEG audio) libmpg123 reads, and others by way of ffmpeg, at any rate and
 * with any number of channels, as mono samples at 16 kHz.
 *
 * Only the last AUDIO_KEPT samples are in memory, so memory does not depend on the length of a recording. Reading
 * further back decodes the file once more from its beginning, which gives the same bits. The bytes of a pipe are first
 * copied to a temporary file. Samples of integers are the stored value / 2^(bits - 1), channels are averaged, other
 * rates go through soxr (high quality, linear phase), aligned in time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_AUDIO_H
#define MN_SPEECH_AUDIO_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "speech/ffmpeg.h"
#include "speech/audio_parts.h"

enum { AUDIO_RATE = 16000, AUDIO_KEPT = 35 * AUDIO_RATE };

typedef struct audio audio;

/* Opens a file, or the standard input for "-", and decodes its first samples. MN_E_NOT_FOUND, MN_E_IO; MN_E_FORMAT for
 * a file that is not audio, has no sample, or has an unsupported rate or number of channels (allowed: 1,000 to
 * 1,000,000 Hz, 1 to 64). When the header announces more samples than the file has, the recording is what the file
 * has. A file in a format that is not known is decoded by ffmpeg first (speech/ffmpeg.h). */
mn_status audio_open(audio **out, const char *path);
/* The same, MN_E_CANCELLED when it is stopped. */
mn_status audio_open_waiting(audio **out, const char *path, const ffmpeg_wait *wait);

/* The same for an open file, which the audio then owns, also on failure, without ffmpeg. `name` is used in messages. */
mn_status audio_open_fd(audio **out, int fd, const char *name);

/* The same for the n bytes of a file in memory, which are borrowed until the audio is closed. */
mn_status audio_open_memory(audio **out, const void *data, size_t n, const char *name);

/* From now on the recording is these parts of what it was, joined; they are borrowed. */
void audio_keep(audio *a, const audio_parts *parts);

void audio_close(audio **a);

/* Bytes of the samples in memory, of a file with so many channels. */
size_t audio_bytes(int channels);

/* Samples [begin, begin + n) into `out`; *n_read of them lie before the end, the others are not written. MN_E_FORMAT
 * for a sample that is not finite or beyond 2^32, MN_E_IO for a file that has changed when it is decoded again; then
 * the audio can only be closed. MN_E_ARG for a negative position. */
mn_status audio_read(audio *a, int64_t begin, int64_t n, float *out, int64_t *n_read);

/* Samples of the whole recording (of all parts that are kept), -1 until its end has been read. */
int64_t audio_length(const audio *a);

/* Samples announced by the header, 0 when unknown: for progress only, as it exceeds audio_length when the file is
 * truncated or damaged. */
int64_t audio_declared_length(const audio *a);

/* Of the file. */
int audio_channels(const audio *a);
int audio_file_rate(const audio *a);

#endif
