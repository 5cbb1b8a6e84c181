/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void figure_size(char out[FIGURE], uint64_t n_bytes) {
    if (n_bytes < 10 << 20) {
        snprintf(out, FIGURE, "%.1f KiB", (double)n_bytes / 1024);
    } else {
        snprintf(out, FIGURE, "%.1f MiB", (double)n_bytes / (1 << 20));
    }
}

void figure_rate(char out[FIGURE], double per_second) {
    if (isnan(per_second)) {
        snprintf(out, FIGURE, "-");
    } else {
        snprintf(out, FIGURE, per_second < 10 ? "%.2f" : "%.1f", per_second);
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_of(double *values, size_t n) {
    if (n == 0) return NAN;
    qsort(values, n, sizeof *values, by_size);
    return (values[n / 2] + values[(n - 1) / 2]) / 2;
}
