/* Recordings that libsndfile and libmpg123 cannot read, decoded by the program ffmpeg where it is installed.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_FFMPEG_H
#define MN_SPEECH_FFMPEG_H

#include <stdbool.h>

#include "base/status.h"

/* The formats that are read without ffmpeg, in messages. */
#define FFMPEG_OTHERS "wav, flac, mp3, ogg, opus, aiff and the others of libsndfile"

enum { FFMPEG_RATE = 16000 }; /* of what it makes */

/* Asked from time to time while ffmpeg decodes a file; false stops it. */
typedef struct ffmpeg_wait {
    bool (*goes_on)(void *user);
    void *user;
} ffmpeg_wait;

/* Decodes the regular file `fd` from its beginning into the unnamed file *out, which the caller closes: WAV, 16 bits,
 * mono at FFMPEG_RATE. ffmpeg is started without a shell, gets the open file and not its name, and opens nothing but
 * files. `name` is used in messages. MN_E_FORMAT where PATH has no ffmpeg or it cannot decode the file; MN_E_CANCELLED,
 * MN_E_IO, MN_E_NOMEM. */
mn_status ffmpeg_decode(int *out, int fd, const char *name, const ffmpeg_wait *wait);

#endif
