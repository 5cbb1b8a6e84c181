/* An independent implementation of mel band energies in double precision: a plain Fourier sum and triangular filters in
 * Hz.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_MEL_ORACLE_H
#define TESTS_MEL_ORACLE_H

/* Energies [n_bands] of 400 samples at 16 kHz. */
void mel_oracle(const float *samples, int n_bands, double *energies);

#endif
