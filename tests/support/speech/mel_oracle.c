/* SPDX-License-Identifier: Apache-2.0 */
#include "support/speech/mel_oracle.h"

#include <math.h>

enum { N = 400 };
static const double pi = 3.14159265358979323846;

/* Slaney's scale: 15 steps of 200/3 Hz, then each step is 6.4^(1/27) times the one before. */
static double edge_of(double place) {
    double frequency = 0;
    for (int i = 0; i < 15 && place > 0; i++, place -= 1) frequency += (place < 1 ? place : 1) * 200 / 3;
    return place > 0 ? frequency * pow(pow(6.4, 1.0 / 27), place) : frequency;
}

void mel_oracle(const float *samples, int n_bands, double *energies) {
    double power[N / 2 + 1], cosine[N], sine[N], windowed[N], highest = 15 + 27 * log(8) / log(6.4); /* 8 kHz */
    for (int i = 0; i < N; i++) {
        cosine[i] = cos(2 * pi * i / N);
        sine[i] = sin(2 * pi * i / N);
        windowed[i] = (double)samples[i] * sin(pi * i / N) * sin(pi * i / N); /* Hann */
    }
    for (int bin = 0; bin <= N / 2; bin++) {
        double re = 0, im = 0;
        for (int i = 0; i < N; i++) {
            re += windowed[i] * cosine[bin * i % N];
            im += windowed[i] * sine[bin * i % N];
        }
        power[bin] = re * re + im * im;
    }
    for (int band = 0; band < n_bands; band++) {
        double step = highest / (n_bands + 1), low = edge_of(step * band), top = edge_of(step * (band + 1)),
               high = edge_of(step * (band + 2));
        energies[band] = 0;
        for (int bin = 0; bin <= N / 2; bin++) {
            double frequency = 40.0 * bin, weight = 0;
            if (frequency > low && frequency <= top) weight = (frequency - low) / (top - low);
            if (frequency > top && frequency < high) weight = (high - frequency) / (high - top);
            energies[band] += weight * 2 / (high - low) * power[bin]; /* of area 1 in Hz */
        }
    }
}
