/* What `mneme transcribe --vad-filter` loses: recordings of speech with 5 s without speech before and behind it,
 * plain, quiet, in noise and with music. One row each, of all files together: the share of the loud moments of the
 * speech (frames of 10 ms within 35 dB of the file's loudest one) that is left out, and the share of the time without
 * speech that is left out, apart from what is kept around speech.
 * usage: bench_voice [--threshold DB] [--min-silence FRAMES] [--min-speech FRAMES] [--pad FRAMES] FILE...
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "bench_program.h"
#include "speech/audio.h"
#include "speech/voice.h"

enum { GAP = 5 * AUDIO_RATE };

typedef enum background { WHITE, ROOM, MUSIC, N_BACKGROUNDS } background;

typedef struct scene {
    const char *name;
    double gain; /* dB, of all */
    background background;
    double below; /* dB below the speech, its pauses included */
    bool has_speech;
} scene;

static const scene scenes[] = {
    {"speech, 60 dB above white noise", 0, WHITE, 60, true},
    {"the same, 40 dB quieter", -40, WHITE, 60, true},
    {"white noise, 20 dB below the speech", 0, WHITE, 20, true},
    {"white noise, 10 dB below", 0, WHITE, 10, true},
    {"white noise, 5 dB below", 0, WHITE, 5, true},
    {"white noise, as loud as the speech", 0, WHITE, 0, true},
    {"room noise (below 500 Hz), 20 dB below", 0, ROOM, 20, true},
    {"room noise, 10 dB below", 0, ROOM, 10, true},
    {"room noise, 5 dB below", 0, ROOM, 5, true},
    {"room noise, as loud as the speech", 0, ROOM, 0, true},
    {"music, 20 dB below", 0, MUSIC, 20, true},
    {"music, 10 dB below", 0, MUSIC, 10, true},
    {"white noise alone", 0, WHITE, 20, false},
    {"room noise alone", 0, ROOM, 20, false},
    {"music alone", 0, MUSIC, 20, false},
};

/* Frames; and how many of them are left out. */
typedef struct counts {
    double speech, lost, silence, left_out;
} counts;

typedef struct clip {
    float *samples; /* [n] */
    size_t n;
    double power;
} clip;

static double uniform(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) * 0x1p-53 * 2 - 1;
}

/* A melody: a note is struck every 0.4 s and fades to a twentieth before the next. */
static double music(size_t i) {
    static const double notes[] = {220, 277.18, 329.63, 440, 329.63};
    double t = (double)i / AUDIO_RATE, struck = fmod(t, 0.4), frequency = notes[(int)(t / 0.4) % 5], sum = 0;
    for (int overtone = 1; overtone <= 5; overtone++)
        sum += exp(-7.5 * struck) * sin(6.283185307179586 * frequency * overtone * t) / overtone;
    return sum;
}

/* n samples of a mean square of 1. */
static float *make_background(background kind, size_t n) {
    float *samples = must_have(mem_alloc_raw(n, sizeof *samples));
    double low = 0, sum = 0, pole = exp(-6.283185307179586 * 500 / AUDIO_RATE);
    uint64_t seed = 3;
    for (size_t i = 0; i < n; i++) {
        double noise = uniform(&seed);
        low = pole * low + (1 - pole) * noise;
        double value = kind == WHITE ? noise : kind == ROOM ? low : music(i);
        samples[i] = (float)value;
        sum += value * value;
    }
    for (size_t i = 0; i < n; i++) samples[i] = (float)(samples[i] / sqrt(sum / (double)n));
    return samples;
}

static double level(const float *samples) {
    double sum = 1e-12;
    for (int i = 0; i < VOICE_HOP; i++) sum += (double)samples[i] * (double)samples[i];
    return 10 * log10(sum);
}

static clip read_clip(const char *path) {
    audio *recording = NULL;
    clip c = {0};
    int64_t n = 0;
    must(audio_open(&recording, path));
    enum { MOST = 600 * AUDIO_RATE };
    c.samples = must_have(mem_alloc_raw(MOST, sizeof *c.samples));
    must(audio_read(recording, 0, MOST, c.samples, &n));
    audio_close(&recording);
    c.n = (size_t)n / VOICE_HOP * VOICE_HOP;
    for (size_t i = 0; i < c.n; i++) c.power += (double)c.samples[i] * (double)c.samples[i] / (double)c.n;
    return c;
}

static bool is_kept(const audio_parts *parts, int64_t at) {
    for (size_t i = 0; i < parts->n; i++) {
        if (at >= parts->list[i].begin && at < parts->list[i].end) return true;
    }
    return false;
}

static void count_clip(counts *to, const clip *c, int64_t begin, const audio_parts *parts) {
    double loudest = -INFINITY;
    for (size_t i = 0; i < c->n; i += VOICE_HOP) loudest = fmax(loudest, level(c->samples + i));
    for (size_t i = 0; i < c->n; i += VOICE_HOP) {
        if (level(c->samples + i) < loudest - 35) continue;
        to->speech++;
        to->lost += !is_kept(parts, begin + (int64_t)i);
    }
}

static void count_gap(counts *to, int64_t begin, int64_t end, const audio_parts *parts) {
    for (int64_t i = begin; i < end; i += VOICE_HOP) {
        to->silence++;
        to->left_out += !is_kept(parts, i);
    }
}

static void measure(counts *to, const scene *s, const voice_limits *limits, const clip *c, const float *behind) {
    size_t n = GAP + c->n + GAP;
    float *samples = must_have(mem_alloc(n, sizeof *samples));
    audio_parts parts = {0};
    voice *v = NULL;
    double gain = pow(10, s->gain / 20), noise = sqrt(c->power) * pow(10, -s->below / 20);
    for (size_t i = 0; i < n; i++) {
        bool is_speech = s->has_speech && i >= GAP && i < GAP + c->n;
        double value = gain * ((is_speech ? (double)c->samples[i - GAP] : 0) + noise * (double)behind[i]);
        samples[i] = (float)(round(value * 32768) / 32768); /* as 16 bits */
    }
    must(voice_open(&v, limits, &parts));
    must(voice_take(v, samples, n));
    must(voice_finish(v));
    voice_close(&v);
    int64_t pad = s->has_speech ? limits->pad * VOICE_HOP : 0, end = GAP + (int64_t)c->n;
    if (s->has_speech) count_clip(to, c, GAP, &parts);
    count_gap(to, 0, GAP - pad, &parts);
    if (!s->has_speech) count_gap(to, GAP, end, &parts);
    count_gap(to, end + pad, (int64_t)n, &parts);
    audio_parts_clear(&parts);
    mem_free(samples);
}

static void print_share(double part, double whole) {
    if (whole > 0)
        printf(" %5.1f %% |", 100 * part / whole);
    else
        printf("       - |");
}

static int read_options(voice_limits *limits, int argc, char **argv) {
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        double value = atof(argv[i + 1]);
        if (strcmp(argv[i], "--threshold") == 0) limits->threshold = value;
        if (strcmp(argv[i], "--min-silence") == 0) limits->min_silence = (int64_t)value;
        if (strcmp(argv[i], "--min-speech") == 0) limits->min_speech = (int64_t)value;
        if (strcmp(argv[i], "--pad") == 0) limits->pad = (int64_t)value;
    }
    return i;
}

int main(int argc, char **argv) {
    voice_limits limits = voice_limits_default();
    counts all[sizeof scenes / sizeof *scenes] = {0};
    for (int i = read_options(&limits, argc, argv); i < argc; i++) {
        clip c = read_clip(argv[i]);
        for (background kind = 0; kind < N_BACKGROUNDS; kind++) {
            float *behind = make_background(kind, GAP + c.n + GAP);
            for (size_t k = 0; k < sizeof scenes / sizeof *scenes; k++) {
                if (scenes[k].background == kind) measure(&all[k], &scenes[k], &limits, &c, behind);
            }
            mem_free(behind);
        }
        mem_free(c.samples);
    }
    printf("| recording | speech lost | silence left out |\n| --- | ---: | ---: |\n");
    for (size_t k = 0; k < sizeof scenes / sizeof *scenes; k++) {
        printf("| %s |", scenes[k].name);
        print_share(all[k].lost, all[k].speech);
        print_share(all[k].left_out, all[k].silence);
        printf("\n");
    }
    return 0;
}
