/* Fitting rows to grids in plain C.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/kernels.h"

/* Outermost points of the Lloyd-Max quantizers of a unit normal distribution with 1 to 5 bits (Max 1960). */
static const float outermost[] = {1, 0.797885f, 1.510418f, 2.151946f, 2.732590f, 3.260732f};

void fit_grid_make(fit_grid *grid, const int8_t *levels, int bits) {
    const int half = 1 << (bits - 1), whole = bits == 8;
    *grid = (fit_grid){.is_even = bits > 5};
    grid->first = levels[half];
    grid->largest = levels[2 * half - 1];
    grid->n_magnitudes = (float)(half - 1);
    grid->centre = (float)half - (whole ? 0.0f : 0.5f);
    grid->half = whole ? 0.0f : 0.5f;
    if (grid->is_even) {
        grid->spacing = whole ? 1.0f : 2.0f;
        grid->offset = grid->half;
        return;
    }
    grid->n_borders = half - 1;
    grid->per_deviation = grid->largest / outermost[bits];
    for (int i = 0; i < grid->n_borders; i++) {
        float inner = levels[half + i], outer = levels[half + i + 1];
        grid->borders[i] = (inner + outer) / 2;
        grid->steps[i] = outer - inner;
    }
}

/* Sum of 16 lanes, halved until one is left. */
static float lane_sum(float *lanes) {
    for (int half = FIT_LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

static int magnitude_number(const fit_grid *grid, float u) {
    float size = fabsf(u);
    if (grid->is_even) {
        float number = rintf(size * (1 / grid->spacing) - grid->offset);
        return number > 0 ? number < grid->n_magnitudes ? (int)number : (int)grid->n_magnitudes : 0;
    }
    int number = 0;
    while (number < grid->n_borders && size >= grid->borders[number]) number++;
    return number;
}

static float level_of(const fit_grid *grid, float u) {
    float level = grid->first;
    for (int i = 0, n = magnitude_number(grid, u); i < n; i++) level += grid->steps[i];
    return copysignf(level, u);
}

static void fit_even_row(const fit_job *job, int row) {
    const float *x = job->x + (size_t)row * (size_t)job->n;
    float high = -INFINITY, low = INFINITY;
    for (int i = 0; i < job->n; i++) {
        if (x[i] > high) high = x[i];
        if (x[i] < low) low = x[i];
    }
    if (job->mean) {
        job->mean[row] = low + (high - low) / 2 + 0.0f; /* never -0: the same bits at every level */
        job->scale[row] = (high - low) / (2 * job->grid->largest) + 0.0f;
    } else {
        job->scale[row] = (high > -low ? high : -low) / job->grid->largest + 0.0f;
    }
}

static void fit_row(const fit_job *job, int row) {
    const float *x = job->x + (size_t)row * (size_t)job->n, n = (float)job->n;
    float centre = 0, squares[FIT_LANES] = {0}, values[FIT_LANES] = {0};
    if (job->mean) {
        for (int i = 0; i < job->n; i++) values[i % FIT_LANES] += x[i];
        centre = lane_sum(values) / n;
    }
    for (int i = 0; i < job->n; i++) squares[i % FIT_LANES] += (x[i] - centre) * (x[i] - centre);
    float mean = centre, scale = sqrtf(lane_sum(squares) / n) / job->grid->per_deviation;
    for (int round = 0; round < FIT_ROUNDS; round++) {
        float level[FIT_LANES] = {0}, level2[FIT_LANES] = {0}, total[FIT_LANES] = {0}, x_level[FIT_LANES] = {0};
        float inverse = scale > 0 ? 1 / scale : 0;
        for (int i = 0, lane = 0; i < job->n; i++, lane = i % FIT_LANES) {
            float chosen = level_of(job->grid, (x[i] - mean) * inverse), value = x[i] - centre;
            level[lane] += chosen;
            level2[lane] += chosen * chosen;
            total[lane] += value;
            x_level[lane] += value * chosen;
        }
        float s = lane_sum(level), s2 = lane_sum(level2), sx = lane_sum(total), sxl = lane_sum(x_level);
        if (!job->mean) {
            scale = sxl / s2;
            continue;
        }
        float spread = n * s2 - s * s;
        if (!(spread > 0)) break;
        scale = (n * sxl - sx * s) / spread;
        mean = centre + (sx - scale * s) / n;
    }
    job->scale[row] = scale > 0 ? scale : 0;
    if (job->mean) job->mean[row] = mean;
}

static void fit_rows_ref(const fit_job *job) {
    for (int row = 0; row < job->n_rows; row++) {
        if (job->grid->is_even) {
            fit_even_row(job, row);
        } else {
            fit_row(job, row);
        }
    }
}

static void code_rows_ref(const fit_job *job) {
    const fit_grid *grid = job->grid;
    for (int row = 0; row < job->n_rows; row++) {
        const size_t first = (size_t)row * (size_t)job->n;
        float mean = job->mean ? job->mean[row] : 0, inverse = job->scale[row] > 0 ? 1 / job->scale[row] : 0;
        for (size_t i = first; i < first + (size_t)job->n; i++) {
            float u = (job->x[i] - mean) * inverse;
            job->codes[i] = (uint8_t)(grid->centre + copysignf((float)magnitude_number(grid, u) + grid->half, u));
        }
    }
}

static void fit_product_ref(float *y, const float *a, const float *x, int n_rows, int dim, int n) {
    for (int row = 0; row < n_rows; row++) {
        float *out = y + (size_t)row * (size_t)n;
        for (int i = 0; i < n; i++) out[i] = 0;
        for (int d = 0; d < dim; d++) {
            float factor = a[(size_t)row * (size_t)dim + (size_t)d];
            for (int i = 0; i < n; i++) out[i] += factor * x[(size_t)d * (size_t)n + (size_t)i];
        }
    }
}

void fit_ref_fill(kernel_table *table) {
    table->fit_rows = fit_rows_ref;
    table->code_rows = code_rows_ref;
    table->fit_product = fit_product_ref;
}
