/* SPDX-License-Identifier: Apache-2.0 */
#include "speech/align.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum { MEDIAN_WIDTH = 7, MEDIAN_HALF = MEDIAN_WIDTH / 2 };

typedef enum step { STEP_BOTH, STEP_ROW, STEP_POSITION } step;

/* Buffers over the positions, and the two tables. */
typedef struct aligner {
    float *scores;  /* [n][n_positions]: sum over the heads of the smoothed weights */
    uint8_t *steps; /* [n][n_positions]: by which step the best path comes here */
    double *mean, *deviation;
    double *cost; /* [n_positions + 1]: of the row above, then of this one */
    float *row;   /* mirrored at both ends: [n_positions + 2 MEDIAN_HALF] */
} aligner;

static void aligner_close(aligner *a) {
    mem_free(a->scores);
    mem_free(a->steps);
    mem_free(a->mean);
    mem_free(a->deviation);
    mem_free(a->cost);
    mem_free(a->row);
}

static mn_status aligner_open(aligner *a, size_t n, size_t n_positions) {
    size_t cells;
    if (!size_mul(n, n_positions, &cells)) return mem_no_memory();
    a->scores = mem_alloc(cells, sizeof *a->scores);
    a->steps = mem_alloc_raw(cells, sizeof *a->steps);
    a->mean = mem_alloc_raw(n_positions, sizeof *a->mean);
    a->deviation = mem_alloc_raw(n_positions, sizeof *a->deviation);
    a->cost = mem_alloc_raw(n_positions + 1, sizeof *a->cost);
    a->row = mem_alloc_raw(n_positions + 2 * MEDIAN_HALF, sizeof *a->row);
    return a->scores && a->steps && a->mean && a->deviation && a->cost && a->row ? MN_OK : MN_E_NOMEM;
}

static const float *row_of(const speech_attention *attention, size_t head, size_t row) {
    return attention->weights + (head * attention->n_rows + row) * attention->stride;
}

/* Normalizes the weights of the positions that hold sound. */
static double row_scale(const float *row, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) sum += (double)row[i];
    return sum > 0.0 ? 1.0 / sum : 0.0;
}

static void measure_head(aligner *a, const speech_attention *attention, size_t head) {
    size_t n = attention->n_positions;
    memset(a->mean, 0, n * sizeof *a->mean);
    memset(a->deviation, 0, n * sizeof *a->deviation);
    for (size_t r = 0; r < attention->n_rows; r++) {
        const float *row = row_of(attention, head, r);
        double scale = row_scale(row, n);
        for (size_t i = 0; i < n; i++) a->mean[i] += (double)row[i] * scale;
    }
    for (size_t i = 0; i < n; i++) a->mean[i] /= (double)attention->n_rows;
    for (size_t r = 0; r < attention->n_rows; r++) {
        const float *row = row_of(attention, head, r);
        double scale = row_scale(row, n);
        for (size_t i = 0; i < n; i++) {
            double distance = (double)row[i] * scale - a->mean[i];
            a->deviation[i] += distance * distance;
        }
    }
    for (size_t i = 0; i < n; i++) a->deviation[i] = sqrt(a->deviation[i] / (double)attention->n_rows);
}

/* The median of seven by a branch-free sorting network, which has no mispredictions. */
static float median(const float *window) {
    static const uint8_t pairs[][2] = {{0, 5}, {0, 3}, {1, 6}, {2, 4}, {0, 1}, {3, 5}, {2, 6},
                                       {2, 3}, {3, 6}, {4, 5}, {1, 4}, {1, 3}, {3, 4}};
    float x[MEDIAN_WIDTH];
    memcpy(x, window, sizeof x);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        float a = x[pairs[i][0]], b = x[pairs[i][1]];
        x[pairs[i][0]] = a < b ? a : b;
        x[pairs[i][1]] = a < b ? b : a;
    }
    return x[MEDIAN_HALF];
}

/* Adds a head's row, normalised and smoothed, to the sums. Positions where the tokens do not differ get 0. */
static void add_row(aligner *a, float *sums, const float *row, size_t n) {
    double scale = row_scale(row, n);
    float *inner = a->row + MEDIAN_HALF;
    for (size_t i = 0; i < n; i++) {
        double distance = (double)row[i] * scale - a->mean[i];
        inner[i] = a->deviation[i] > 0.0 ? (float)(distance / a->deviation[i]) : 0.0f;
    }
    if (n <= MEDIAN_HALF) { /* too short to be mirrored */
        for (size_t i = 0; i < n; i++) sums[i] += inner[i];
        return;
    }
    for (size_t k = 1; k <= MEDIAN_HALF; k++) {
        a->row[MEDIAN_HALF - k] = inner[k];
        inner[n - 1 + k] = inner[n - 1 - k];
    }
    for (size_t i = 0; i < n; i++) sums[i] += median(a->row + i);
}

/* Fills the steps of the cheapest path, the cost of a cell being its score's negative. On equal costs the row stays,
 * else both move (the original takes a dearer step where the two others are equal). */
static void find_path(aligner *a, size_t n, size_t n_positions) {
    a->cost[0] = 0.0;
    for (size_t j = 1; j <= n_positions; j++) a->cost[j] = INFINITY;
    for (size_t i = 0; i < n; i++) {
        double both = a->cost[0], left = INFINITY;
        a->cost[0] = INFINITY;
        for (size_t j = 0; j < n_positions; j++) {
            double above = a->cost[j + 1], best = left;
            step by = STEP_POSITION;
            if (both < best) {
                best = both;
                by = STEP_BOTH;
            }
            if (above < best) {
                best = above;
                by = STEP_ROW;
            }
            size_t cell = i * n_positions + j;
            a->steps[cell] = (uint8_t)by;
            left = best - (double)a->scores[cell];
            both = above;
            a->cost[j + 1] = left;
        }
    }
}

/* Back along the path: a row begins at the last position that is met in it. */
static void trace_path(int64_t *begins, const aligner *a, size_t n, size_t n_positions) {
    size_t i = n, j = n_positions;
    for (size_t k = 0; k < n; k++) begins[k] = 0;
    while (i > 0 && j > 0) {
        begins[i - 1] = (int64_t)(j - 1);
        step by = (step)a->steps[(i - 1) * n_positions + j - 1];
        if (by != STEP_POSITION) i--;
        if (by != STEP_ROW) j--;
    }
}

mn_status speech_align(int64_t *begins, const speech_attention *attention, size_t first, size_t n) {
    const speech_attention *from = attention;
    size_t n_positions = from->n_positions;
    if (from->n_heads == 0 || n == 0 || n_positions == 0 || n_positions > from->stride || first > from->n_rows ||
        n > from->n_rows - first) {
        MN_FAIL(MN_E_ARG, "nothing to align: %zu heads, rows %zu to %zu of %zu, %zu positions of %zu", from->n_heads,
                first, first + n, from->n_rows, n_positions, from->stride);
    }
    aligner a = {0};
    mn_status status = aligner_open(&a, n, n_positions);
    for (size_t head = 0; status == MN_OK && head < from->n_heads; head++) {
        measure_head(&a, from, head);
        for (size_t i = 0; i < n; i++)
            add_row(&a, a.scores + i * n_positions, row_of(from, head, first + i), n_positions);
    }
    if (status == MN_OK) {
        find_path(&a, n, n_positions);
        trace_path(begins, &a, n, n_positions);
    }
    aligner_close(&a);
    return status;
}
