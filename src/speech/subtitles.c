/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/subtitles.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/num.h"
#include "mneme.h"

const char *const speech_format_names[N_SPEECH_FORMATS] = {"txt", "srt", "vtt"};

#define LATEST 1e9 /* seconds */

void speech_subtitles_begin(speech_subtitles *subtitles, speech_format format, bytes *out) {
    *subtitles = (speech_subtitles){.format = format};
    if (format == SPEECH_VTT) bytes_append_text(out, "WEBVTT\n\n");
}

static int64_t milliseconds(double seconds) {
    return seconds > 0.0 ? (int64_t)llround(fmin(seconds, LATEST) * 1000.0) : 0;
}

static void put_time(bytes *out, int64_t ms, char point) {
    bytes_printf(out, "%02" PRId64 ":%02d:%02d%c%03d", ms / 3600000, (int)(ms / 60000 % 60), (int)(ms / 1000 % 60),
                 point, (int)(ms % 1000));
}

static bool is_blank(char c) {
    return (unsigned char)c <= ' ' || c == 0x7F;
}

/* The escape of text[i]; NULL: none. A space is inserted into SubRip's arrow. */
static const char *spelling(speech_format format, const char *text, size_t i) {
    if (is_blank(text[i])) return " ";
    if (format == SPEECH_SRT && i >= 2 && memcmp(text + i - 2, "-->", 3) == 0) return " >";
    if (format != SPEECH_VTT) return NULL;
    return text[i] == '&' ? "&amp;" : text[i] == '<' ? "&lt;" : text[i] == '>' ? "&gt;" : NULL;
}

static void put_text(bytes *out, speech_format format, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char *other = spelling(format, text, i);
        bytes_append(out, other ? other : text + i, other ? strlen(other) : 1);
    }
    bytes_append_text(out, "\n");
}

void speech_subtitles_put(speech_subtitles *subtitles, double start, double end, const char *text, size_t n,
                          bytes *out) {
    while (n && is_blank(text[0])) text++, n--;
    while (n && is_blank(text[n - 1])) n--;
    if (n == 0) return;
    subtitles->n_cues++;
    if (subtitles->format != SPEECH_TXT) {
        char point = subtitles->format == SPEECH_SRT ? ',' : '.';
        int64_t from = milliseconds(start), to = max_i64(from + 1, milliseconds(end));
        if (subtitles->format == SPEECH_SRT) bytes_printf(out, "%" PRId64 "\n", subtitles->n_cues);
        put_time(out, from, point);
        bytes_append_text(out, " --> ");
        put_time(out, to, point);
        bytes_append_text(out, "\n");
    }
    put_text(out, subtitles->format, text, n);
    if (subtitles->format != SPEECH_TXT) bytes_append_text(out, "\n");
}

/* ---- the public functions ---- */

static mn_status read_format(speech_format *format, const char *name) {
    for (int i = 0; i < N_SPEECH_FORMATS; i++) {
        *format = (speech_format)i;
        if (name && strcmp(name, speech_format_names[i]) == 0) return MN_OK;
    }
    MN_FAIL(MN_E_ARG, "the format is '%.40s', allowed: txt, srt, vtt", name ? name : "");
}

static mn_status give(bytes *from, char **text, size_t *n) {
    bytes_text(from);
    mn_status status = bytes_status(from);
    if (status != MN_OK) {
        bytes_clear(from);
        return status;
    }
    *text = from->data;
    *n = from->n;
    return MN_OK;
}

mn_status mn_subtitles_head(const char *format, char **head, size_t *n_head) {
    speech_subtitles subtitles = {0};
    bytes out = {0};
    *head = NULL;
    MN_TRY(read_format(&subtitles.format, format));
    speech_subtitles_begin(&subtitles, subtitles.format, &out);
    return give(&out, head, n_head);
}

mn_status mn_subtitles_cue(const char *format, int64_t number, double start, double end, const char *text,
                           size_t n_text, char **cue, size_t *n_cue) {
    speech_subtitles subtitles = {.n_cues = number};
    bytes out = {0};
    *cue = NULL;
    MN_TRY(read_format(&subtitles.format, format));
    speech_subtitles_put(&subtitles, start, end, text, n_text, &out);
    return give(&out, cue, n_cue);
}
