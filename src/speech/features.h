/* The input of a speech model: the log-mel levels of a recording, a window of frames at a time.
 *
 * A frame is 10 ms. Levels depend on the loudest moment of the whole recording, so it is read twice: `scan` finds the
 * length and the maximum, then any window can be read. A recording is mirrored at its beginning and at its end; a short
 * one is first followed by zeros up to `padded_frames`. Frames after its last one are silence: samples of 0, on the
 * scale of this recording.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_FEATURES_H
#define MN_SPEECH_FEATURES_H

#include <stdbool.h>

#include "speech/audio.h"

typedef struct features features;

/* The recording is borrowed and must outlive the features. padded_frames: the frames of the model's window (3000), up
 * to which a shorter recording is padded; 0: none is. MN_E_ARG for n_bands (1 to MEL_MOST_BANDS) or padded_frames (0 to
 * 30000) out of range. */
mn_status features_open(features **out, audio *recording, int n_bands, int padded_frames);
void features_close(features **f);

/* Bytes of an open recording of two channels and its features, however long it is. */
size_t features_recording_bytes(int n_bands);

/* Scans the next minute of the recording; *is_whole when all of it has been read. Errors as audio_read. */
mn_status features_scan(features *f, bool *is_whole);
int64_t features_scanned(const features *f); /* frames so far: progress, beside audio_declared_length / MEL_HOP */

/* Frames of the recording: padded_frames, or samples / 160 rounded down where that is more. -1 until it is scanned. */
int64_t features_count(const features *f);

/* Levels [n][n_bands] of frames [first, first + n), also after the end. Allocates nothing; cheap when `first` grows or
 * falls by up to 30 s, otherwise the file is decoded from its beginning. MN_E_ARG before the scan is complete and for
 * negative numbers; errors as audio_read. */
mn_status features_window(features *f, int64_t first, int n, float *levels);

#endif
