/* MPEG audio (layers I, II, III; "mp3"), alone, after ID3 tags or inside a WAV file, by libmpg123. libsndfile reads it
 * by the same library but lets it print on the standard error, so libsndfile is never given MPEG audio.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_MPEG_H
#define MN_SPEECH_MPEG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* The encoded bytes. */
typedef struct mpeg_bytes {
    void *user;
    int64_t (*read)(void *user, int64_t at, void *out, int64_t n); /* returns how many were read, at most n */
    int64_t begin, end;                                            /* the range of MPEG audio */
} mpeg_bytes;

/* Whether all of `bytes` contains MPEG audio, by its first bytes; then begin and end are set to its range. */
bool mpeg_find(mpeg_bytes *bytes);

typedef struct mpeg mpeg;

/* Opens the decoder and reads up to the first frame. MN_E_NOMEM; MN_E_FORMAT, without a message, where no frame can be
 * decoded. */
mn_status mpeg_open(mpeg **out, const mpeg_bytes *source);
void mpeg_close(mpeg **m);

int mpeg_rate(const mpeg *m);
int mpeg_channels(const mpeg *m);
/* Frames of samples that the file announces; 0: unknown. */
int64_t mpeg_declared_length(const mpeg *m);

/* At most n frames of samples [n][channels]; 0 at the end, and where nothing more can be decoded. */
int64_t mpeg_read(mpeg *m, float *out, int64_t n);

#endif
