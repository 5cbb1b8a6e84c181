/* SPDX-License-Identifier: Apache-2.0 */
#include "model/rope.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

/* A rule changes the plain frequencies base^(-2j/d) in place and returns the attention factor. */
typedef double rope_rule(const model_config *config, int64_t total_length, double *f, int64_t n);

void rope_plain_frequencies(double base, int64_t n, double *f) {
    for (int64_t j = 0; j < n; j++) f[j] = pow(base, -(double)j / (double)n);
}

static double apply_default(const model_config *config, int64_t total_length, double *f, int64_t n) {
    (void)config, (void)total_length, (void)f, (void)n;
    return 1;
}

static double apply_linear(const model_config *config, int64_t total_length, double *f, int64_t n) {
    (void)total_length;
    for (int64_t j = 0; j < n; j++) f[j] /= config->rope_scaling.factor;
    return 1;
}

static double apply_dynamic(const model_config *config, int64_t total_length, double *f, int64_t n) {
    if (rope_regime(config, total_length) == 0) return 1;
    double factor = config->rope_scaling.factor, d = (double)(2 * n);
    double ratio = (double)total_length / (double)config->max_position_embeddings;
    rope_plain_frequencies(config->rope_theta * pow(factor * ratio - (factor - 1), d / (d - 2)), n, f);
    return 1;
}

static double apply_llama3(const model_config *config, int64_t total_length, double *f, int64_t n) {
    (void)total_length;
    const rope_scaling *s = &config->rope_scaling;
    double original = (double)s->original_max_position_embeddings;
    for (int64_t j = 0; j < n; j++) {
        double turns = original * f[j] / (2 * PI); /* within the original context */
        double kept = (turns - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
        kept = fmin(fmax(kept, 0), 1);
        f[j] = (1 - kept) * f[j] / s->factor + kept * f[j];
    }
    return 1;
}

/* The dimension whose frequency makes `turns` rotations within the original context. */
static double yarn_dimension(const model_config *config, double turns, int64_t n) {
    double original = (double)config->rope_scaling.original_max_position_embeddings;
    return (double)n * log(original / (2 * PI * turns)) / log(config->rope_theta);
}

static double yarn_magnitude(double factor, double mscale) {
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

static double apply_yarn(const model_config *config, int64_t total_length, double *f, int64_t n) {
    (void)total_length;
    const rope_scaling *s = &config->rope_scaling;
    double lo = yarn_dimension(config, s->beta_fast, n), hi = yarn_dimension(config, s->beta_slow, n);
    if (s->truncate) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    lo = fmax(lo, 0);
    hi = fmin(hi, (double)(2 * n - 1));
    if (lo == hi) hi += 0.001;
    for (int64_t j = 0; j < n; j++) {
        double slowed = fmin(fmax(((double)j - lo) / (hi - lo), 0), 1);
        f[j] = f[j] / s->factor * slowed + f[j] * (1 - slowed);
    }
    if (s->attention_factor > 0) return s->attention_factor;
    if (s->mscale > 0 && s->mscale_all_dim > 0) {
        return yarn_magnitude(s->factor, s->mscale) / yarn_magnitude(s->factor, s->mscale_all_dim);
    }
    return yarn_magnitude(s->factor, 1);
}

static double apply_longrope(const model_config *config, int64_t total_length, double *f, int64_t n) {
    const rope_scaling *s = &config->rope_scaling;
    const double *divisors = rope_regime(config, total_length) ? s->long_factor : s->short_factor;
    for (int64_t j = 0; j < n; j++) f[j] /= divisors[j];
    if (s->attention_factor > 0) return s->attention_factor;
    return s->factor > 1 ? sqrt(1 + log(s->factor) / log((double)s->original_max_position_embeddings)) : 1;
}

static rope_rule *const rules[N_ROPE_TYPES] = {
    [ROPE_DEFAULT] = apply_default, [ROPE_LINEAR] = apply_linear, [ROPE_DYNAMIC] = apply_dynamic,
    [ROPE_LLAMA3] = apply_llama3,   [ROPE_YARN] = apply_yarn,     [ROPE_LONGROPE] = apply_longrope,
};

void rope_frequencies(const model_config *config, int64_t total_length, double *inverse_frequencies,
                      double *attention_factor) {
    int64_t n = config->rotary_dim / 2;
    const double *divisors = config->rope_scaling.divisors;
    rope_plain_frequencies(config->rope_theta, n, inverse_frequencies);
    *attention_factor = rules[config->rope_scaling.rope_type](config, total_length, inverse_frequencies, n);
    for (int64_t j = 0; j < n && divisors; j++) inverse_frequencies[j] /= divisors[j];
}

int64_t rope_regime(const model_config *config, int64_t total_length) {
    switch (config->rope_scaling.rope_type) {
    case ROPE_DYNAMIC: return total_length > config->max_position_embeddings ? total_length : 0;
    case ROPE_LONGROPE: return total_length > config->rope_scaling.original_max_position_embeddings;
    default: return 0;
    }
}

void rope_table(const double *inverse_frequencies, int64_t n_pairs, double attention_factor, int64_t first, int64_t n,
                float *cosines, float *sines) {
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n_pairs; j++) {
            double angle = (double)(first + i) * inverse_frequencies[j];
            cosines[i * n_pairs + j] = (float)(cos(angle) * attention_factor);
            sines[i * n_pairs + j] = (float)(sin(angle) * attention_factor);
        }
    }
}
