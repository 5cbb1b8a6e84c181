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

static void layer_norm_ref(float *y, const float *x, const float *weight, const float *bias, int n, float eps) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i];
    const double mean = sum / n;
    for (int i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double factor = 1 / sqrt(squares / n + (double)eps);
    for (int i = 0; i < n; i++) { y[i] = (float)(((double)x[i] - mean) * factor) * weight[i] + (bias ? bias[i] : 0); }
}

static void rope_ref(float *x, const float *cos, const float *sin, int half) {
    for (int j = 0; j < half; j++) {
        float a = x[j], b = x[j + half];
        x[j] = a * cos[j] - b * sin[j];
        x[j + half] = b * cos[j] + a * sin[j];
    }
}

static float silu(float x) {
    return x / (1 + expf(-x));
}

static float gelu(float x) {
    const float root = 0.707106781f; /* sqrt(1 / 2) */
    return 0.5f * x * erfcf(-x * root);
}

static float gelu_tanh(float x) {
    const float root = 0.797884561f; /* sqrt(2 / pi) */
    return 0.5f * x * (1 + tanhf(root * (x + 0.044715f * x * x * x)));
}

static float relu(float x) {
    return x < 0 ? 0 : x; /* NaN stays */
}

#define ACTIVATION(name)                                                                                               \
    static void activate_##name##_ref(float *y, size_t n) {                                                            \
        for (size_t i = 0; i < n; i++) y[i] = name(y[i]);                                                              \
    }                                                                                                                  \
    static void name##_mul_ref(float *y, const float *gate, const float *up, size_t n) {                               \
        for (size_t i = 0; i < n; i++) y[i] = name(gate[i]) * up[i];                                                   \
    }
ACTIVATION(silu)
ACTIVATION(gelu)
ACTIVATION(gelu_tanh)
ACTIVATION(relu)
#undef ACTIVATION

static void soft_cap_ref(float *y, float cap, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = cap * tanhf(y[i] / cap);
}

static void add_ref(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static void mul_add_ref(float *y, const float *x, float factor, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += factor * x[i];
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
    table->layer_norm = layer_norm_ref;
    table->rope = rope_ref;
    table->silu_mul = silu_mul_ref;
    table->gelu_mul = gelu_mul_ref;
    table->gelu_tanh_mul = gelu_tanh_mul_ref;
    table->relu_mul = relu_mul_ref;
    table->activate_silu = activate_silu_ref;
    table->activate_gelu = activate_gelu_ref;
    table->activate_gelu_tanh = activate_gelu_tanh_ref;
    table->activate_relu = activate_relu_ref;
    table->soft_cap = soft_cap_ref;
    table->add = add_ref;
    table->mul_add = mul_add_ref;
    table->scale = scale_ref;
    table->exp_sum = exp_sum_ref;
    table->max_index = max_index_ref;
}
