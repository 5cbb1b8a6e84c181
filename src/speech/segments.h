/* Divides the ids of one window into segments with times, and finds the start of the next window.
 *
 * The rules of OpenAI's transcription and of Transformers' long form. Two timestamps in a row close a segment and open
 * the next. When the ids end with text and one timestamp, nothing is spoken after it: the window is complete. Otherwise
 * the text after the last pair is incomplete: it is dropped, and the next window begins at that pair. Without a pair
 * the whole window is one segment, which ends at its last timestamp if it has one beyond 0.
 *
 * Where Transformers lists the last closed segment of such a window with both timestamps of its pair, here every
 * segment ends with the first of the two.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_SEGMENTS_H
#define MN_SPEECH_SEGMENTS_H

#include "speech/tokens.h"

typedef struct speech_segment {
    size_t begin, end;   /* ids[begin..end) of the window, its timestamps included */
    int64_t start, stop; /* frames of 10 ms from the recording's beginning; stop may be after the
                            recording's end if the model generated it so */
} speech_segment;

/* The segments of a window's n ids (without prompt and end token), which began at frame `seek` and holds n_frames of
 * the recording. segments: room for n + 1. Returns how many there are; *advance: frames to the next window, 1..n_frames
 * (0 when n_frames is). Any ids give a valid result, also ids that the rules of speech/rules.h forbid. */
size_t speech_segments(speech_segment *segments, int64_t *advance, const speech_tokens *tokens, const int32_t *ids,
                       size_t n, int64_t seek, int64_t n_frames);

#endif
