/* Figures of tables: sizes, rates, medians.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_FIGURES_H
#define MNEME_CLI_FIGURES_H

#include <stddef.h>
#include <stdint.h>

enum { FIGURE = 32 };

/* KiB below 10 MiB, else MiB. */
void figure_size(char out[FIGURE], uint64_t n_bytes);
/* Two decimals below 10; - where nothing was timed (NAN). */
void figure_rate(char out[FIGURE], double per_second);

/* The median; sorts the values. NAN: there are none. */
double median_of(double *values, size_t n);

#endif
