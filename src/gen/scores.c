/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/scores.h"

#include <math.h>
#include <string.h>

#include "base/num.h"

/* Values handled side by side, and values whose exponentials are added up before they go into a double. */
enum { SIDE = 16, CHUNK = 256 };

float scores_max(const float *scores, size_t n) {
    float side[SIDE], most = -INFINITY;
    for (size_t j = 0; j < SIDE; j++) side[j] = -INFINITY;
    size_t whole = n - n % SIDE;
    for (size_t i = 0; i < whole; i += SIDE) {
        for (size_t j = 0; j < SIDE; j++) side[j] = scores[i + j] > side[j] ? scores[i + j] : side[j];
    }
    for (size_t j = 0; j < SIDE; j++) most = side[j] > most ? side[j] : most;
    for (size_t i = whole; i < n; i++) most = scores[i] > most ? scores[i] : most;
    return most;
}

/* exp(x) for x up to 0: 2^n exp(f) with |f| up to half of log 2, in which the polynomial is near exact. Adding 1.5 2^23
 * rounds to whole numbers. Comparisons with NaN are false, which makes it 0. */
static inline float exp_below(float x) {
    float safe = x > -87.0f ? x : -87.0f;
    float shifted = safe * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    float f = safe - n * 0.693359375f + n * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * f + 1.3981999507e-3f;
    y = y * f + 8.3334519073e-3f;
    y = y * f + 4.1665795894e-2f;
    y = y * f + 1.6666665459e-1f;
    y = y * f + 5.0000001201e-1f;
    y = y * f * f + f + 1.0f;
    float power = f32_from_bits((f32_bits(shifted) << 23) + 0x3F800000u);
    return x > -87.0f ? y * power : 0.0f;
}

double scores_exp(float *out, const float *scores, size_t n, float max) {
    double total = 0;
    for (size_t begin = 0; begin < n; begin += CHUNK) {
        size_t end = begin + CHUNK < n ? begin + CHUNK : n, whole = end - (end - begin) % SIDE;
        float side[SIDE] = {0}, sum = 0;
        for (size_t i = begin; i < end; i++) out[i] = exp_below(scores[i] - max);
        for (size_t i = begin; i < whole; i += SIDE) {
            for (size_t j = 0; j < SIDE; j++) side[j] += out[i + j];
        }
        for (size_t j = 0; j < SIDE; j++) sum += side[j];
        for (size_t i = whole; i < end; i++) sum += out[i];
        total += (double)sum;
    }
    return total;
}

double scores_log_sum(const float *scores, size_t n) {
    float max = scores_max(scores, n), chunk[CHUNK];
    double total = 0;
    if (!isfinite(max)) return (double)max;
    for (size_t i = 0; i < n; i += CHUNK)
        total += scores_exp(chunk, scores + i, n - i < CHUNK ? n - i : CHUNK, max);
    return (double)max + log(total);
}

void scores_log_softmax(float *scores, size_t n) {
    double log_sum = scores_log_sum(scores, n);
    if (!isfinite(log_sum)) return;
    /* In two steps, because a score and its sum may be large and near each other. */
    float max = scores_max(scores, n), rest = (float)(log_sum - (double)max);
    for (size_t i = 0; i < n; i++) scores[i] = scores[i] - max - rest;
}

void scores_guide(float *scores, const float *unconditional, size_t n, double g) {
    double with = scores_log_sum(scores, n), without = scores_log_sum(unconditional, n);
    if (!isfinite(with) || !isfinite(without)) return;
    for (size_t i = 0; i < n; i++) {
        double u = (double)unconditional[i] - without, c = (double)scores[i] - with;
        scores[i] = isinf(u) || isinf(c) ? (float)c : (float)(g * (c - u) + u);
    }
}
