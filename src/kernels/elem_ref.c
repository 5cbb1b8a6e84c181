/* Element-wise and row kernels in plain C.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/kernels.h"

static void rms_norm_ref(float *y, const float *x, const float *weight, int n, float eps) {
    double squares = 0;
    for (int i = 0; i < n; i++) squares += (double)x[i] * x[i];
    float factor = (float)(1 / sqrt(squares / n + (double)eps));
    for (int i = 0; i < n; i++) y[i] = x[i] * factor * weight[i];
}

static void rope_ref(float *x, const float *cos, const float *sin, int half) {
    for (int j = 0; j < half; j++) {
        float a = x[j], b = x[j + half];
        x[j] = a * cos[j] - b * sin[j];
        x[j + half] = b * cos[j] + a * sin[j];
    }
}

static void silu_mul_ref(float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

static void gelu_tanh_mul_ref(float *y, const float *gate, const float *up, size_t n) {
    const float root = 0.797884561f; /* sqrt(2 / pi) */
    for (size_t i = 0; i < n; i++) {
        float g = gate[i], inner = root * (g + 0.044715f * g * g * g);
        y[i] = 0.5f * g * (1 + tanhf(inner)) * up[i];
    }
}

static void add_ref(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static void scale_ref(float *y, float factor, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] *= factor;
}

static void exp_sum_ref(double *sum, const float *x, float max, size_t n) {
    *sum = 0;
    for (size_t i = 0; i < n; i++) *sum += (double)expf(x[i] - max);
}

static void max_index_ref(int64_t *index, const float *x, size_t n) {
    int64_t best = -1;
    for (size_t i = 0; i < n; i++) {
        if (!isnan(x[i]) && (best < 0 || x[i] > x[best])) best = (int64_t)i;
    }
    *index = best < 0 ? 0 : best;
}

void elem_ref_fill(kernel_table *table) {
    table->rms_norm = rms_norm_ref;
    table->rope = rope_ref;
    table->silu_mul = silu_mul_ref;
    table->gelu_tanh_mul = gelu_tanh_mul_ref;
    table->add = add_ref;
    table->scale = scale_ref;
    table->exp_sum = exp_sum_ref;
    table->max_index = max_index_ref;
}
