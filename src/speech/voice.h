/* Where a recording has speech: a detector of loud moments, by energy.
 *
 * A frame of 10 ms is voiced when its energy, after a filter that takes away a constant and hum, is a threshold above
 * that of the quietest tenth of a second within 5 s on either side of it, or half of the threshold while the frame
 * before it is voiced. The floor so follows the noise of the place, and where it changes quickly, and in speech without
 * a pause, more is taken for speech and not less. It is never below -80 dB of full scale, far below quiet speech.
 * Voiced frames with shorter silences than min_silence between them are one segment of speech.
 *
 * Samples come in any portions, with the same result; memory does not depend on the length of the recording, but for 24
 * bytes for each part found. Music and any other sound that comes and goes is speech for it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_VOICE_H
#define MN_SPEECH_VOICE_H

#include "speech/audio_parts.h"

enum { VOICE_HOP = 160, VOICE_FRAMES_PER_SECOND = 100 };

typedef struct voice_limits {
    double threshold;    /* dB above the floor */
    int64_t min_silence; /* frames: a shorter silence is kept */
    int64_t min_speech;  /* frames: a segment with fewer voiced ones is left out */
    int64_t pad;         /* frames kept before and after each segment */
} voice_limits;

voice_limits voice_limits_default(void);

typedef struct voice voice;

/* parts: where what is found is added; borrowed. MN_E_NOMEM. */
mn_status voice_open(voice **out, const voice_limits *limits, audio_parts *parts);
void voice_close(voice **v);

/* The next n samples at 16 kHz. MN_E_NOMEM. */
mn_status voice_take(voice *v, const float *samples, size_t n);

/* After the last sample: all parts are known. They begin at multiples of VOICE_HOP and end at such, or with the
 * recording. */
mn_status voice_finish(voice *v);

#endif
