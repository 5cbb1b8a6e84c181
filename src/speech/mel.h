/* The energy of sound in bands of pitch: a Hann window of 25 ms, a Fourier transform, triangular filters, logarithms.
 *
 * Windows are periodic, filters Slaney's (equal distances below 1 kHz, equal ratios above, equal areas), as Whisper was
 * trained with. Levels are (max(log10 energy, maximum - 8) + 4) / 4, where `maximum` is the largest log10 energy of the
 * whole recording (Radford et al. 2022, "Robust speech recognition via large-scale weak supervision", and its published
 * code).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_SPEECH_MEL_H
#define MN_SPEECH_MEL_H

#include <stddef.h>

#include "base/status.h"

enum { MEL_WINDOW = 400, MEL_HOP = 160, MEL_SPECTRUM = MEL_WINDOW / 2 + 1, MEL_MOST_BANDS = 256 };

/* Tables and scratch memory: for one thread at a time. */
typedef struct mel mel;

mn_status mel_open(mel **out, int n_bands); /* MN_E_ARG unless 1 to MEL_MOST_BANDS; Whisper has 80 or 128 */
void mel_close(mel **m);
int mel_bands(const mel *m);

/* Energies [n_frames][n_bands] of samples [(n_frames - 1) * MEL_HOP + MEL_WINDOW] at 16 kHz; the window of frame i
 * begins at sample i * MEL_HOP. Allocates nothing. */
void mel_energies(mel *m, const float *samples, int n_frames, float *energies);

/* log10 of the largest of n energies, at least the floor of -10. */
float mel_maximum(const float *energies, size_t n);

/* Energies to levels, in place; `maximum` as mel_maximum gives it for all frames of the recording. */
void mel_levels(float *energies, size_t n, float maximum);

#endif
