/* The parts of a recording that are kept, joined to a shorter recording, and where its moments are in the whole one.
 *
 * Positions are samples at 16 kHz. A moment where two parts meet is both the end of the first and the beginning of the
 * second; what begins there begins in the second, and what ends there ends in the first.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_AUDIO_PARTS_H
#define MN_SPEECH_AUDIO_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { PARTS_RATE = 16000 };

typedef struct audio_part {
    int64_t begin, end; /* of the whole recording */
    int64_t joined;     /* where it begins in the joined one */
} audio_part;

typedef struct audio_parts {
    audio_part *list; /* [n] ascending, none empty, none touching the next */
    size_t n, capacity;
} audio_parts;

/* Appends [begin, end), which begins at the beginning of the last part or later: joined with it where they touch or
 * overlap. MN_E_NOMEM. */
mn_status audio_parts_add(audio_parts *parts, int64_t begin, int64_t end);
void audio_parts_clear(audio_parts *parts);

/* Samples of the joined recording. */
int64_t audio_parts_length(const audio_parts *parts);

/* Seconds of the whole recording for seconds of the joined one: of something that begins or ends there. Before the
 * first part and after the last one time goes on as there. parts may be NULL: the recording is kept whole, and times
 * are the same. */
double audio_parts_start(const audio_parts *parts, double seconds);
double audio_parts_end(const audio_parts *parts, double seconds);

/* The same for both ends of a word, which lies in one part: that of its middle, at whose ends it is cut off. */
void audio_parts_word(const audio_parts *parts, double *start, double *end);

#endif
