/* Transcripts as files: plain text, SubRip (.srt) and WebVTT (.vtt), one segment a cue.
 *
 * SubRip has no standard; written is what players agree on: a number, "hours:minutes:seconds,milliseconds --> ...", the
 * text, an empty line. WebVTT: W3C, "WebVTT: The Web Video Text Tracks Format", sections 3 and 4. No text can break the
 * format: it is one line, and the arrow and WebVTT's markup are escaped.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_SUBTITLES_H
#define MN_SPEECH_SUBTITLES_H

#include "base/mem.h"

typedef enum speech_format { SPEECH_TXT, SPEECH_SRT, SPEECH_VTT, N_SPEECH_FORMATS } speech_format;

extern const char *const speech_format_names[N_SPEECH_FORMATS]; /* "txt", ... */

typedef struct speech_subtitles {
    speech_format format;
    int64_t n_cues; /* written so far */
} speech_subtitles;

/* Appends the head of a file. */
void speech_subtitles_begin(speech_subtitles *subtitles, speech_format format, bytes *out);

/* Appends a cue: n bytes of UTF-8 shown from start to end (seconds; rounded to milliseconds, below 0 and no number as
 * 0, at least 1 ms long). Spaces around the text are removed, each line break or control character inside it becomes a
 * space. Nothing is written when no text is left. Whether memory sufficed: bytes_status(out). */
void speech_subtitles_put(speech_subtitles *subtitles, double start, double end, const char *text, size_t n,
                          bytes *out);

#endif
