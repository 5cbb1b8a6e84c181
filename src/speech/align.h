/* When each token was spoken, from the decoder's cross attention.
 *
 * The rule of OpenAI's word timestamps (whisper/timing.py), which Transformers follows except for the first step: the
 * attention of some heads over the frames of the recording, each row a distribution over the frames that hold sound;
 * normalised over the tokens (mean and deviation of each frame), smoothed over the frames (median of 7, mirrored at the
 * ends), summed over the heads; then the path of largest sum through tokens and frames that goes forward in both
 * (dynamic time warping). A token begins with the first frame of its row on the path.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_ALIGN_H
#define MN_SPEECH_ALIGN_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Attention weights: row r of head h is at weights + (h * n_rows + r) * stride; its first n_positions count. The rows
 * are the positions of the decoder, prompt included. */
typedef struct speech_attention {
    const float *weights;
    size_t n_heads, n_rows, stride;
    size_t n_positions; /* positions of the encoder that hold sound: mel frames / 2 */
} speech_attention;

/* begins[i], i < n: the position at which row first + i begins; it never falls. The decoder at a row computes the id
 * behind it, so for a prompt of p ids and n_text text ids, first = p - 1 and n = n_text + 1 give each text id's
 * beginning and the end of the last. Rows outside count for the mean alone. Memory: 5 bytes for each of n rows and
 * position. MN_E_ARG when there is nothing to align, MN_E_NOMEM. */
mn_status speech_align(int64_t *begins, const speech_attention *attention, size_t first, size_t n);

#endif
