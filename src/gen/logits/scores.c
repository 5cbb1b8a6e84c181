/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/logits/scores.h"

#include <math.h>
#include <string.h>

#include "base/num.h"

/* Four lanes, which every machine's vectors have, so the order of sums is the same everywhere. */
typedef float four __attribute__((vector_size(16)));
typedef uint32_t four_words __attribute__((vector_size(16)));

enum { LANES = 4, SIDE = 4, STRIDE = SIDE * LANES, CHUNK = 256 };

static inline four load(const float *x) {
    four y;
    memcpy(&y, x, sizeof y);
    return y;
}

static inline void store(float *x, four y) {
    memcpy(x, &y, sizeof y);
}

static inline four all(float x) {
    return (four){x, x, x, x};
}

static inline four choose(four_words mask, four yes, four no) {
    return (four)((mask & (four_words)yes) | (~mask & (four_words)no));
}

/* b where a is NaN. */
static inline four larger(four a, four b) {
    return choose((four_words)(a > b), a, b);
}

static float largest_of(four x) {
    float most = -INFINITY;
    for (int i = 0; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

float scores_max(const float *scores, size_t n) {
    four side[SIDE] = {all(-INFINITY), all(-INFINITY), all(-INFINITY), all(-INFINITY)};
    size_t whole = n - n % STRIDE;
    for (size_t i = 0; i < whole; i += STRIDE) {
        side[0] = larger(load(scores + i), side[0]);
        side[1] = larger(load(scores + i + LANES), side[1]);
        side[2] = larger(load(scores + i + 2 * LANES), side[2]);
        side[3] = larger(load(scores + i + 3 * LANES), side[3]);
    }
    float most = largest_of(larger(larger(side[0], side[1]), larger(side[2], side[3])));
    for (size_t i = whole; i < n; i++) most = scores[i] > most ? scores[i] : most;
    return most;
}

void scores_range(const float *values, size_t n, float *least, float *most) {
    four low = all(-INFINITY), high = all(-INFINITY); /* low is negated */
    size_t whole = n - n % LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        four x = load(values + i);
        low = larger(-x, low);
        high = larger(choose((four_words)(x < all(INFINITY)), x, all(-INFINITY)), high);
    }
    *least = -largest_of(low);
    *most = largest_of(high);
    for (size_t i = whole; i < n; i++) {
        *least = values[i] < *least ? values[i] : *least;
        *most = values[i] > *most && values[i] < INFINITY ? values[i] : *most;
    }
}

/* exp(x) for x up to 0: 2^n exp(f) with |f| up to half of log 2, in which the polynomial is near exact. Adding 1.5 2^23
 * rounds to whole numbers. Comparisons with NaN are false, which makes it 0. */
static inline four exp_below(four x) {
    four_words is_above = (four_words)(x > all(-87));
    four safe = choose(is_above, x, all(-87));
    four shifted = safe * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    four f = safe - n * 0.693359375f + n * 2.12194440e-4f;
    four y = all(1.9875691500e-4f);
    y = y * f + 1.3981999507e-3f;
    y = y * f + 8.3334519073e-3f;
    y = y * f + 4.1665795894e-2f;
    y = y * f + 1.6666665459e-1f;
    y = y * f + 5.0000001201e-1f;
    y = y * f * f + f + 1.0f;
    four power = (four)(((four_words)shifted << 23) + 0x3F800000u);
    return (four)((four_words)(y * power) & is_above);
}

/* The sum of n values, at most a chunk; the remainder after the last whole stride is added to the first lanes. */
static float sum_of(const float *x, size_t n) {
    four side[SIDE] = {all(0), all(0), all(0), all(0)};
    size_t whole = n - n % STRIDE;
    for (size_t i = 0; i < whole; i += STRIDE) {
        side[0] += load(x + i);
        side[1] += load(x + i + LANES);
        side[2] += load(x + i + 2 * LANES);
        side[3] += load(x + i + 3 * LANES);
    }
    four total = (side[0] + side[1]) + (side[2] + side[3]);
    for (size_t i = whole; i < n; i++) total[i % LANES] += x[i];
    return (total[0] + total[1]) + (total[2] + total[3]);
}

double scores_exp(float *out, const float *scores, size_t n, float max) {
    double total = 0;
    for (size_t begin = 0; begin < n; begin += CHUNK) {
        size_t length = n - begin < CHUNK ? n - begin : CHUNK, whole = length - length % LANES;
        const float *x = scores + begin;
        float *y = out + begin, rest[LANES] = {0};
        for (size_t i = 0; i < whole; i += LANES) store(y + i, exp_below(load(x + i) - max));
        memcpy(rest, x + whole, (length - whole) * sizeof *rest);
        store(rest, exp_below(load(rest) - max));
        memcpy(y + whole, rest, (length - whole) * sizeof *rest);
        total += (double)sum_of(y, length);
    }
    return total;
}

double scores_log_sum(const float *scores, size_t n) {
    float max = scores_max(scores, n), chunk[CHUNK];
    double total = 0;
    if (!isfinite(max)) return (double)max;
    for (size_t i = 0; i < n; i += CHUNK) total += scores_exp(chunk, scores + i, n - i < CHUNK ? n - i : CHUNK, max);
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
