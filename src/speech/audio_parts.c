/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/audio_parts.h"

#include <math.h>

#include "base/mem.h"
#include "base/num.h"

mn_status audio_parts_add(audio_parts *parts, int64_t begin, int64_t end) {
    audio_part *last = parts->n ? &parts->list[parts->n - 1] : NULL;
    if (last && begin <= last->end) {
        last->end = max_i64(last->end, end);
        return MN_OK;
    }
    MN_TRY(mem_grow(&parts->list, &parts->capacity, parts->n + 1, sizeof *parts->list));
    parts->list[parts->n] = (audio_part){.begin = begin, .end = end, .joined = audio_parts_length(parts)};
    parts->n++;
    return MN_OK;
}

void audio_parts_clear(audio_parts *parts) {
    mem_free(parts->list);
    *parts = (audio_parts){0};
}

int64_t audio_parts_length(const audio_parts *parts) {
    if (parts->n == 0) return 0;
    const audio_part *last = &parts->list[parts->n - 1];
    return last->joined + last->end - last->begin;
}

/* The last part that begins at or before a position of the joined recording, or else the first. */
static const audio_part *part_at(const audio_parts *parts, double joined) {
    size_t from = 0, to = parts->n;
    while (to - from > 1) {
        size_t middle = from + (to - from) / 2;
        if ((double)parts->list[middle].joined <= joined)
            from = middle;
        else
            to = middle;
    }
    return &parts->list[from];
}

/* Times are whole multiples of 10 ms, and the nearest double of such a multiple may be beside the border it means. */
static double sample_of(double seconds) {
    return round(seconds * PARTS_RATE);
}

static double moved(const audio_part *part, double joined) {
    return (joined + (double)(part->begin - part->joined)) / PARTS_RATE;
}

double audio_parts_start(const audio_parts *parts, double seconds) {
    if (!parts || parts->n == 0) return seconds;
    double joined = sample_of(seconds);
    return moved(part_at(parts, joined), joined);
}

double audio_parts_end(const audio_parts *parts, double seconds) {
    if (!parts || parts->n == 0) return seconds;
    double joined = sample_of(seconds);
    return moved(part_at(parts, joined - 1), joined);
}

void audio_parts_word(const audio_parts *parts, double *start, double *end) {
    if (!parts || parts->n == 0) return;
    double from = sample_of(*start), to = sample_of(*end);
    const audio_part *part = part_at(parts, floor((from + to) / 2));
    double first = (double)part->joined, last = (double)(part->joined + part->end - part->begin);
    *start = moved(part, fmin(fmax(from, first), last));
    *end = moved(part, fmin(fmax(to, first), last));
}
