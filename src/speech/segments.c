/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/segments.h"

#include "base/num.h"

static int64_t frames_of(const speech_tokens *tokens, int32_t id) {
    return (int64_t)(id - tokens->first_timestamp) * SPEECH_FRAMES_PER_TIMESTAMP;
}

/* ids[begin..end), the last of which is a timestamp. */
static speech_segment closed_segment(const speech_tokens *tokens, const int32_t *ids, size_t begin, size_t end,
                                     int64_t seek) {
    speech_segment s = {.begin = begin, .end = end, .start = seek, .stop = seek + frames_of(tokens, ids[end - 1])};
    if (speech_is_timestamp(tokens, ids[begin])) s.start = seek + frames_of(tokens, ids[begin]);
    s.stop = max_i64(s.start, s.stop);
    return s;
}

/* A window without a pair. */
static speech_segment whole_segment(const speech_tokens *tokens, const int32_t *ids, size_t n, int64_t seek,
                                    int64_t n_frames) {
    speech_segment s = {.begin = 0, .end = n, .start = seek, .stop = seek + n_frames};
    size_t last = n;
    while (last > 0 && !speech_is_timestamp(tokens, ids[last - 1])) last--;
    if (last > 0 && ids[last - 1] != tokens->first_timestamp) s.stop = seek + frames_of(tokens, ids[last - 1]);
    return s;
}

size_t speech_segments(speech_segment *segments, int64_t *advance, const speech_tokens *tokens, const int32_t *ids,
                       size_t n, int64_t seek, int64_t n_frames) {
    size_t n_segments = 0, begin = 0;
    *advance = n_frames;
    for (size_t i = 1; i < n; i++) {
        if (!speech_is_timestamp(tokens, ids[i - 1]) || !speech_is_timestamp(tokens, ids[i])) continue;
        segments[n_segments++] = closed_segment(tokens, ids, begin, i, seek);
        begin = i;
    }
    if (n_segments == 0) {
        segments[0] = whole_segment(tokens, ids, n, seek, n_frames);
        return 1;
    }
    bool ends_with_one = speech_is_timestamp(tokens, ids[n - 1]) && !speech_is_timestamp(tokens, ids[n - 2]);
    if (ends_with_one) {
        segments[n_segments++] = closed_segment(tokens, ids, begin, n, seek);
    } else {
        int64_t cut = frames_of(tokens, ids[begin - 1]);
        if (cut > 0 && cut < n_frames) *advance = cut; /* never backwards, and at least one frame */
    }
    return n_segments;
}
