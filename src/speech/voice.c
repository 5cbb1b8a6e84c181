/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/voice.h"

#include <math.h>
#include <stdbool.h>

#include "base/mem.h"
#include "base/num.h"

enum {
    MEAN = 10,             /* frames whose mean energy may be the floor */
    BLOCK = 50,            /* frames that have one floor */
    NEAR = 10,             /* blocks on either side that the floor is found in */
    BLOCKS = 2 * NEAR + 1, /* kept */
};
static const double lowest_floor = 1e-8; /* mean square: -80 dB */
static const double filter_pole = 0.96;  /* half of the power at 100 Hz */

struct voice {
    voice_limits limits;
    double on, off;     /* ratios of energies */
    audio_parts *parts; /* borrowed */

    /* The filter and the frame that is not whole. */
    double last_sample, last_output, sum;
    int n_samples;
    int64_t n_total; /* samples */

    /* Mean squares of the last frames, and the least mean of each block. */
    double energies[BLOCKS][BLOCK], least[BLOCKS];
    double recent[MEAN]; /* the last frames */
    int64_t n_frames;    /* computed */
    int64_t n_decided;   /* blocks */

    /* The segment of speech. */
    bool is_voiced;
    int64_t begin, end, n_voiced; /* frames; the last is 0 between segments */
};

voice_limits voice_limits_default(void) {
    return (voice_limits){.threshold = 4, .min_silence = 200, .min_speech = 10, .pad = 40};
}

mn_status voice_open(voice **out, const voice_limits *limits, audio_parts *parts) {
    voice *v = mem_alloc(1, sizeof *v);
    *out = v;
    if (!v) return MN_E_NOMEM;
    v->limits = *limits;
    v->on = pow(10, limits->threshold / 10);
    v->off = pow(10, limits->threshold / 20);
    v->parts = parts;
    return MN_OK;
}

void voice_close(voice **v) {
    mem_free(*v);
    *v = NULL;
}

/* ---- decisions ---- */

static mn_status end_segment(voice *v) {
    int64_t n_voiced = v->n_voiced;
    v->n_voiced = 0;
    if (n_voiced == 0 || n_voiced < v->limits.min_speech) return MN_OK;
    int64_t begin = max_i64(v->begin - v->limits.pad, 0), end = v->end + v->limits.pad;
    return audio_parts_add(v->parts, begin * VOICE_HOP, end * VOICE_HOP);
}

static mn_status decide_frame(voice *v, int64_t frame, double energy, double floor) {
    v->is_voiced = energy >= floor * (v->is_voiced ? v->off : v->on);
    if (v->is_voiced) {
        if (v->n_voiced++ == 0) v->begin = frame;
        v->end = frame + 1;
    } else if (v->n_voiced && frame + 1 - v->end >= v->limits.min_silence) {
        return end_segment(v);
    }
    return MN_OK;
}

/* The next block, of which n frames are there, and n_blocks of the recording. */
static mn_status decide_block(voice *v, int64_t n_blocks, int n) {
    int64_t block = v->n_decided++;
    double floor = INFINITY;
    for (int64_t i = max_i64(block - NEAR, 0); i < min_i64(block + NEAR + 1, n_blocks); i++)
        floor = fmin(floor, v->least[i % BLOCKS]);
    floor = fmax(floor, lowest_floor);
    for (int i = 0; i < n; i++) MN_TRY(decide_frame(v, block * BLOCK + i, v->energies[block % BLOCKS][i], floor));
    return MN_OK;
}

/* ---- energies ---- */

static mn_status end_frame(voice *v) {
    double energy = v->sum / v->n_samples, mean = 0;
    int64_t block = v->n_frames / BLOCK, place = v->n_frames % BLOCK;
    double *least = &v->least[block % BLOCKS];
    v->sum = 0;
    v->n_samples = 0;
    v->energies[block % BLOCKS][place] = v->recent[v->n_frames % MEAN] = energy;
    v->n_frames++;
    for (int i = 0; i < MEAN; i++) mean += v->recent[i] / MEAN;
    if (place == 0) *least = INFINITY;
    if (v->n_frames >= MEAN) *least = fmin(*least, mean);
    if (place + 1 < BLOCK || block < NEAR) return MN_OK;
    return decide_block(v, block + 1, BLOCK);
}

mn_status voice_take(voice *v, const float *samples, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (v->n_total++ == 0) v->last_sample = samples[i]; /* a constant is no step */
        v->last_output = samples[i] - v->last_sample + filter_pole * v->last_output;
        v->last_sample = samples[i];
        v->sum += v->last_output * v->last_output;
        if (++v->n_samples == VOICE_HOP) MN_TRY(end_frame(v));
    }
    return MN_OK;
}

mn_status voice_finish(voice *v) {
    if (v->n_samples) MN_TRY(end_frame(v));
    int64_t n_blocks = (v->n_frames + BLOCK - 1) / BLOCK;
    while (v->n_decided < n_blocks)
        MN_TRY(decide_block(v, n_blocks, (int)min_i64(BLOCK, v->n_frames - v->n_decided * BLOCK)));
    MN_TRY(end_segment(v));
    if (v->parts->n == 0) return MN_OK;
    int64_t *end = &v->parts->list[v->parts->n - 1].end;
    *end = min_i64(*end, v->n_total);
    return MN_OK;
}
