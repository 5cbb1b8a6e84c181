/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/mel.h"

#include <kiss_fftr.h>
#include <math.h>

#include "base/mem.h"

static const double rate = 16000, pi = 3.14159265358979323846;
static const float least_energy = 1e-10f;

/* A triangle over the bins [first, first + n) of the spectrum. */
typedef struct filter {
    int first, n;
    const float *weights;
} filter;

struct mel {
    int n_bands;
    kiss_fftr_cfg fft; /* in a block of memory of its own */
    float window[MEL_WINDOW], windowed[MEL_WINDOW];
    kiss_fft_cpx spectrum[MEL_SPECTRUM];
    float power[MEL_SPECTRUM];
    filter filters[MEL_MOST_BANDS];
    float weights[2 * MEL_SPECTRUM]; /* a bin lies in two triangles at most */
};

/* The frequency in Hz of a value on Slaney's scale, which has 15 steps below 1 kHz and 27 in each factor of 6.4
 * above. */
static double frequency_of(double place) {
    return place < 15 ? place * 200 / 3 : 1000 * exp((place - 15) * log(6.4) / 27);
}

static double place_of(double frequency) {
    return frequency < 1000 ? frequency * 3 / 200 : 15 + 27 * log(frequency / 1000) / log(6.4);
}

static void make_filters(mel *m) {
    double step = place_of(rate / 2) / (m->n_bands + 1);
    float *weights = m->weights;
    for (int band = 0; band < m->n_bands; band++) {
        double low = frequency_of(step * band), top = frequency_of(step * (band + 1)),
               high = frequency_of(step * (band + 2));
        filter *f = &m->filters[band];
        *f = (filter){0, 0, weights};
        for (int bin = 0; bin < MEL_SPECTRUM; bin++) {
            double frequency = bin * rate / MEL_WINDOW;
            double height = fmin((frequency - low) / (top - low), (high - frequency) / (high - top));
            if (height <= 0) continue;
            if (f->n == 0) f->first = bin;
            weights[f->n++] = (float)(height * 2 / (high - low));
        }
        weights += f->n;
    }
}

mn_status mel_open(mel **out, int n_bands) {
    *out = NULL;
    if (n_bands < 1 || n_bands > MEL_MOST_BANDS)
        MN_FAIL(MN_E_ARG, "%d mel bands, allowed: 1 to %d", n_bands, MEL_MOST_BANDS);
    size_t n_bytes = 0;
    kiss_fftr_alloc(MEL_WINDOW, 0, NULL, &n_bytes);
    mel *m = mem_alloc(1, sizeof *m);
    void *block = m ? mem_alloc(n_bytes, 1) : NULL;
    if (!block) {
        mem_free(m);
        return MN_E_NOMEM;
    }
    m->n_bands = n_bands;
    m->fft = kiss_fftr_alloc(MEL_WINDOW, 0, block, &n_bytes);
    for (int i = 0; i < MEL_WINDOW; i++) m->window[i] = (float)(0.5 - 0.5 * cos(2 * pi * i / MEL_WINDOW));
    make_filters(m);
    *out = m;
    return MN_OK;
}

void mel_close(mel **out) {
    mel *m = *out;
    if (!m) return;
    mem_free(m->fft);
    mem_free(m);
    *out = NULL;
}

int mel_bands(const mel *m) {
    return m->n_bands;
}

void mel_energies(mel *m, const float *samples, int n_frames, float *energies) {
    for (int frame = 0; frame < n_frames; frame++, samples += MEL_HOP, energies += m->n_bands) {
        for (int i = 0; i < MEL_WINDOW; i++) m->windowed[i] = samples[i] * m->window[i];
        kiss_fftr(m->fft, m->windowed, m->spectrum);
        mem_written(m->spectrum, sizeof m->spectrum);
        for (int i = 0; i < MEL_SPECTRUM; i++) {
            m->power[i] = m->spectrum[i].r * m->spectrum[i].r + m->spectrum[i].i * m->spectrum[i].i;
        }
        for (int band = 0; band < m->n_bands; band++) {
            const filter *f = &m->filters[band];
            const float *power = m->power + f->first;
            float sum = 0;
            for (int i = 0; i < f->n; i++) sum += f->weights[i] * power[i];
            energies[band] = sum;
        }
    }
}

float mel_maximum(const float *energies, size_t n) {
    float largest = least_energy;
    for (size_t i = 0; i < n; i++) largest = energies[i] > largest ? energies[i] : largest;
    return log10f(largest);
}

void mel_levels(float *energies, size_t n, float maximum) {
    for (size_t i = 0; i < n; i++) {
        float level = log10f(energies[i] > least_energy ? energies[i] : least_energy);
        energies[i] = ((level > maximum - 8 ? level : maximum - 8) + 4) / 4;
    }
}
