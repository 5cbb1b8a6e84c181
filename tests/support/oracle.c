/* SPDX-License-Identifier: Apache-2.0 */
#include "support/oracle.h"

#include <math.h>

#include "support/support.h"

static double *doubles(size_t a, size_t b) {
    double *x = calloc(a * b, sizeof *x);
    assert_non_null(x);
    return x;
}

static void multiply(double *y, const float *w, const float *bias, const double *x, int rows, int columns) {
    for (int i = 0; i < rows; i++) {
        double sum = bias ? (double)bias[i] : 0;
        for (int j = 0; j < columns; j++) sum += (double)w[(size_t)i * (size_t)columns + (size_t)j] * x[j];
        y[i] = sum;
    }
}

/* Without a weight: x itself. */
static void normalize(const oracle *o, double *y, const double *x, const float *weight, const float *bias, int n) {
    double mean = 0, squares = 0;
    if (!weight) {
        memmove(y, x, (size_t)n * sizeof *y);
        return;
    }
    for (int i = 0; o->layer_norm && i < n; i++) mean += x[i] / n;
    for (int i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
    double factor = 1 / sqrt(squares / n + o->eps);
    for (int i = 0; i < n; i++) {
        y[i] = (x[i] - mean) * factor * ((double)weight[i] + (o->norm_adds_one ? 1 : 0));
        if (bias) y[i] += (double)bias[i];
    }
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

static double activate(const oracle *o, double x) {
    static const double pi = 3.14159265358979323846;
    switch (o->activation) {
    case ORACLE_SILU: return silu(x);
    case ORACLE_GELU: return 0.5 * x * (1 + erf(x / sqrt(2)));
    case ORACLE_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
    }
    return 0;
}

static double capped(double x, double cap) {
    return cap > 0 ? cap * tanh(x / cap) : x;
}

/* Adds a sub-layer's output to h, normalized first where the layer has such a norm. */
static void add_to(const oracle *o, double *h, double *x, const float *post_norm) {
    normalize(o, x, x, post_norm, NULL, o->hidden);
    for (int i = 0; i < o->hidden; i++) h[i] += o->residual_scale * x[i];
}

/* ---- attention ---- */

/* Applies the rotary embedding to the first r values of each head: pair i is rotated by position * theta^(-2i/r) or by
 * the caller's frequencies. */
static void rotate_heads(const oracle *o, const oracle_layer *layer, double *x, int n_heads, double position) {
    int half = layer->has_no_rope ? 0 : o->rotary / 2;
    assert_true(o->frequencies || !o->is_scaled);
    for (int i = 0; i < half; i++) {
        double scale = o->turn_scale > 0 ? o->turn_scale : 1;
        double angle = position * (o->frequencies ? o->frequencies[i] : pow(layer->theta, -2.0 * i / o->rotary));
        double c = scale * cos(angle), s = scale * sin(angle);
        int first = o->turns_neighbours ? 2 * i : i, second = first + (o->turns_neighbours ? 1 : half);
        for (int head = 0; head < n_heads; head++) {
            double *a = &x[head * o->head_dim + first], *b = &x[head * o->head_dim + second], was = *a;
            *a = was * c - *b * s;
            *b = *b * c + was * s;
        }
    }
}

/* Norms of queries or keys, head by head or of all together. */
static void normalize_heads(const oracle *o, double *x, const float *weight, int n_heads) {
    int n = o->norms_all_heads ? n_heads * o->head_dim : o->head_dim;
    for (int i = 0; i < n_heads * o->head_dim; i += n) normalize(o, x + i, x + i, weight, NULL, n);
}

/* A query over n keys and values [n][kv heads * head_dim]; weights: [n] scratch. */
static void attend_all(const oracle *o, const double *q, const double *k, const double *v, size_t n, double *weights,
                       double *out) {
    int group = o->n_heads / o->n_kv_heads, dim = o->head_dim;
    size_t width = (size_t)(o->n_kv_heads * dim);
    for (int head = 0; head < o->n_heads; head++) {
        size_t offset = (size_t)(head / group * dim);
        double largest = -INFINITY, sum = 0;
        for (size_t t = 0; t < n; t++) {
            double dot = 0;
            for (int i = 0; i < dim; i++) dot += q[head * dim + i] * k[t * width + offset + (size_t)i];
            weights[t] = capped(dot * o->score_scale, o->score_cap);
            largest = fmax(largest, weights[t]);
        }
        for (size_t t = 0; t < n; t++) sum += weights[t] = exp(weights[t] - largest);
        for (int i = 0; i < dim; i++) {
            double value = 0;
            for (size_t t = 0; t < n; t++) value += weights[t] * v[t * width + offset + (size_t)i];
            out[head * dim + i] = value / sum;
        }
    }
}

/* The query at `position`, before its rotary embedding, over the visible keys (with theirs applied) and values. */
static void attend_one(const oracle *o, const oracle_layer *layer, double *q, const double *k, const double *v,
                       size_t position, double *out) {
    size_t width = (size_t)(o->n_kv_heads * o->head_dim), n = position + 1, first = 0, sinks = (size_t)layer->sinks,
           window = (size_t)layer->window;
    double *weights = doubles(n, 1);
    if (window > 0 && n > sinks + window) first = n - window;
    if (first == 0 || sinks == 0) {
        rotate_heads(o, layer, q, o->n_heads, (double)position);
        attend_all(o, q, k + first * width, v + first * width, n - first, weights, out);
    } else { /* positions are indices among the visible tokens */
        size_t n_seen = sinks + window;
        double *seen_k = doubles(n_seen, width), *seen_v = doubles(n_seen, width);
        for (size_t i = 0; i < n_seen; i++) {
            size_t t = i < sinks ? i : first + i - sinks;
            memcpy(seen_k + i * width, k + t * width, width * sizeof *k);
            memcpy(seen_v + i * width, v + t * width, width * sizeof *v);
            rotate_heads(o, layer, seen_k + i * width, o->n_kv_heads, (double)i - (double)t);
        }
        rotate_heads(o, layer, q, o->n_heads, (double)(n_seen - 1));
        attend_all(o, q, seen_k, seen_v, n_seen, weights, out);
        free(seen_k);
        free(seen_v);
    }
    free(weights);
}

/* Query (before the rotary embedding), key (with it) and value of a token from its normalized row. */
static void project(const oracle *o, const oracle_layer *layer, const double *x, size_t position, double *q, double *k,
                    double *v) {
    int q_width = o->n_heads * o->head_dim, kv_width = o->n_kv_heads * o->head_dim;
    multiply(q, layer->matrix[ORACLE_Q], layer->bias[ORACLE_Q], x, q_width, o->hidden);
    multiply(k, layer->matrix[ORACLE_K], layer->bias[ORACLE_K], x, kv_width, o->hidden);
    multiply(v, layer->matrix[ORACLE_V], layer->bias[ORACLE_V], x, kv_width, o->hidden);
    normalize_heads(o, q, layer->q_norm, o->n_heads);
    normalize_heads(o, k, layer->k_norm, o->n_kv_heads);
    rotate_heads(o, layer, k, o->n_kv_heads, (double)position);
}

/* Attention of n tokens after `past` others, whose keys and values come first in k and v: x [n][hidden] normalized
 * rows, out [n][hidden]. */
static void attention(const oracle *o, const oracle_layer *layer, const double *x, size_t n, size_t past, double *k,
                      double *v, double *out) {
    size_t q_width = (size_t)(o->n_heads * o->head_dim), kv_width = (size_t)(o->n_kv_heads * o->head_dim),
           hidden = (size_t)o->hidden;
    double *q = doubles(n, q_width), *attended = doubles(q_width, 1);
    for (size_t t = 0; t < n; t++)
        project(o, layer, x + t * hidden, past + t, q + t * q_width, k + (past + t) * kv_width,
                v + (past + t) * kv_width);
    for (size_t t = 0; t < n; t++) {
        attend_one(o, layer, q + t * q_width, k, v, past + t, attended);
        multiply(out + t * hidden, layer->matrix[ORACLE_O], layer->bias[ORACLE_O], attended, o->hidden, (int)q_width);
    }
    free(q);
    free(attended);
}

/* ---- Mamba's mixer ---- */

/* One token: window [conv - 1][channels] and h [states][channels] hold the state before it and are updated. */
static void mix_one(const oracle *o, const oracle_layer *layer, const double *x, double *window, double *h,
                    double *out) {
    const oracle_mixer *w = layer->mixer;
    int channels = o->channels, states = o->states, before = o->conv - 1;
    double *ug = doubles(2, (size_t)channels), *u = doubles((size_t)channels, 1), *dt = doubles((size_t)channels, 1),
           *rbc = doubles((size_t)(o->rank + 2 * states), 1), *b = rbc + o->rank, *c = b + states;
    multiply(ug, w->in, w->in_bias, x, 2 * channels, o->hidden);
    for (int i = 0; i < channels; i++) {
        double sum = w->conv_bias ? (double)w->conv_bias[i] : 0;
        for (int j = 0; j < before; j++) sum += (double)w->conv[i * o->conv + j] * window[j * channels + i];
        u[i] = silu(sum + (double)w->conv[i * o->conv + before] * ug[i]);
    }
    memmove(window, window + channels, (size_t)((before - 1) * channels) * sizeof *window);
    memcpy(window + (before - 1) * channels, ug, (size_t)channels * sizeof *window);
    multiply(rbc, w->x, NULL, u, o->rank + 2 * states, channels);
    if (w->dt_norm) normalize(o, rbc, rbc, w->dt_norm, NULL, o->rank);
    if (w->b_norm) normalize(o, b, b, w->b_norm, NULL, states);
    if (w->c_norm) normalize(o, c, c, w->c_norm, NULL, states);
    multiply(dt, w->dt, w->dt_bias, rbc, channels, o->rank);
    for (int i = 0; i < channels; i++) {
        double step = log1p(exp(dt[i])), y = (double)w->d[i] * u[i];
        for (int s = 0; s < states; s++) {
            double a = -exp((double)w->a_log[i * states + s]), *state = &h[s * channels + i];
            *state = exp(step * a) * *state + step * b[s] * u[i];
            y += *state * c[s];
        }
        u[i] = y * silu(ug[channels + i]);
    }
    multiply(out, w->out, w->out_bias, u, o->hidden, channels);
    free(ug);
    free(u);
    free(dt);
    free(rbc);
}

/* ---- the rest of a layer ---- */

/* matrix and bias: of gate, up, down. */
static void gated_mlp(const oracle *o, int inner, float *const matrix[3], float *const bias[3], const double *x,
                      double *out) {
    double *gate = doubles((size_t)inner, 1), *up = doubles((size_t)inner, 1);
    multiply(up, matrix[1], bias[1], x, inner, o->hidden);
    if (matrix[0]) multiply(gate, matrix[0], bias[0], x, inner, o->hidden);
    for (int i = 0; i < inner; i++) up[i] = matrix[0] ? activate(o, gate[i]) * up[i] : activate(o, up[i]);
    multiply(out, matrix[2], bias[2], up, o->hidden, inner);
    free(gate);
    free(up);
}

static float *const no_bias[3] = {NULL};

/* The shared expert is weighted by a gate of the row. */
static void add_shared_expert(const oracle *o, const oracle_layer *layer, const double *x, double *out) {
    double *one = doubles((size_t)o->hidden, 1), score;
    gated_mlp(o, o->shared_inner, layer->shared, no_bias, x, one);
    multiply(&score, layer->share, NULL, x, 1, o->hidden);
    for (int i = 0; i < o->hidden; i++) out[i] += one[i] / (1 + exp(-score));
    free(one);
}

/* The experts of highest probability, weighted by it. */
static void mix_experts(const oracle *o, const oracle_layer *layer, const double *x, double *out) {
    double *scores = doubles((size_t)o->n_experts, 1), *one = doubles((size_t)o->hidden, 1), sum = 0, chosen = 0;
    multiply(scores, layer->router, NULL, x, o->n_experts, o->hidden);
    for (int e = 0; e < o->n_experts; e++) sum += scores[e] = exp(scores[e]);
    memset(out, 0, (size_t)o->hidden * sizeof *out);
    for (int k = 0; k < o->n_chosen; k++) {
        int best = 0;
        for (int e = 1; e < o->n_experts; e++) best = scores[e] > scores[best] ? e : best;
        gated_mlp(o, o->inner, layer->experts[best], no_bias, x, one);
        for (int i = 0; i < o->hidden; i++) out[i] += scores[best] * one[i];
        chosen += scores[best];
        scores[best] = -1;
    }
    for (int i = 0; i < o->hidden; i++) out[i] /= o->experts_sum_to_one ? chosen : sum;
    free(scores);
    free(one);
}

static void feed_forward(const oracle *o, const oracle_layer *layer, const double *h, double *out) {
    double *x = doubles((size_t)o->hidden, 1);
    normalize(o, x, h, layer->mlp_norm, layer->mlp_norm_bias, o->hidden);
    if (layer->experts) {
        mix_experts(o, layer, x, out);
        if (layer->share) add_shared_expert(o, layer, x, out);
    } else {
        gated_mlp(o, o->inner, &layer->matrix[ORACLE_GATE], &layer->bias[ORACLE_GATE], x, out);
    }
    free(x);
}

/* One layer over n rows h after `past` tokens, whose keys and values come first in k and v, or whose state is in
 * `window` and `state`. */
static void run_layer(const oracle *o, const oracle_layer *layer, double *h, size_t n, size_t past, double *k,
                      double *v, double *window, double *state) {
    size_t hidden = (size_t)o->hidden;
    bool has_mlp = layer->matrix[ORACLE_DOWN] || layer->experts;
    double *x = doubles(n, hidden), *mixed = doubles(n, hidden), *fed = doubles(hidden, 1);
    for (size_t t = 0; t < n; t++)
        normalize(o, x + t * hidden, h + t * hidden, layer->attention_norm, layer->attention_norm_bias, o->hidden);
    if (layer->mixer) {
        for (size_t t = 0; t < n; t++) mix_one(o, layer, x + t * hidden, window, state, mixed + t * hidden);
    } else {
        attention(o, layer, x, n, past, k, v, mixed);
    }
    for (size_t t = 0; t < n; t++) {
        double *row = h + t * hidden;
        if (o->is_parallel) feed_forward(o, layer, row, fed);
        add_to(o, row, mixed + t * hidden, layer->attention_post_norm);
        if (!has_mlp) continue;
        if (!o->is_parallel) feed_forward(o, layer, row, fed);
        add_to(o, row, fed, layer->mlp_post_norm);
    }
    free(x);
    free(mixed);
    free(fed);
}

static void embed(const oracle *o, int32_t id, size_t position, double *h) {
    size_t hidden = (size_t)o->hidden;
    for (size_t i = 0; i < hidden; i++) {
        h[i] = (double)o->embed[(size_t)id * hidden + i] * o->embed_scale;
        if (o->positions) h[i] += (double)o->positions[position * hidden + i];
    }
}

static void head_logits(const oracle *o, const double *h, double *logits) {
    double *x = doubles((size_t)o->hidden, 1);
    normalize(o, x, h, o->final_norm, o->final_norm_bias, o->hidden);
    multiply(logits, o->head ? o->head : o->embed, o->head_bias, x, o->vocab, o->hidden);
    for (int i = 0; i < o->vocab; i++) logits[i] = capped(logits[i] / o->logit_divisor, o->logit_cap);
    free(x);
}

/* Converts [kv heads][n][head_dim], as read from a cache, to [n][kv heads * head_dim] in double. halves: the first
 * `rotary` values of a head are the first elements of all pairs, then the second ones. */
static void widen_rows(const oracle *o, double *to, const float *from, size_t n, bool halves) {
    size_t dim = (size_t)o->head_dim, width = (size_t)o->n_kv_heads * dim, rotary = (size_t)o->rotary;
    for (size_t head = 0; head < (size_t)o->n_kv_heads; head++) {
        for (size_t t = 0; t < n; t++) {
            for (size_t i = 0; i < dim; i++) {
                size_t stored = halves && i < rotary ? i % 2 * (rotary / 2) + i / 2 : i;
                to[t * width + head * dim + i] = (double)from[(head * n + t) * dim + stored];
            }
        }
    }
}

/* All layers over n rows after n_past tokens; past: [layers], NULL when there are none. */
static void run_layers(const oracle *o, double *h, size_t n, const oracle_past *past, size_t n_past) {
    size_t width = (size_t)(o->n_kv_heads * o->head_dim), channels = (size_t)o->channels,
           n_window = (size_t)(o->conv - 1) * channels, n_state = n_window + (size_t)o->states * channels;
    double *k = doubles(n_past + n, width), *v = doubles(n_past + n, width), *state = doubles(n_state, 1);
    for (int i = 0; i < o->n_layers; i++) {
        memset(state, 0, n_state * sizeof *state);
        for (size_t j = 0; past && past[i].state && j < n_state; j++) state[j] = (double)past[i].state[j];
        if (past && past[i].k) widen_rows(o, k, past[i].k, n_past, o->turns_neighbours);
        if (past && past[i].v) widen_rows(o, v, past[i].v, n_past, false);
        run_layer(o, &o->layers[i], h, n, n_past, k, v, state, state + n_window);
    }
    free(k);
    free(v);
    free(state);
}

void oracle_logits(const oracle *o, const int32_t *ids, size_t n, double *logits) {
    size_t hidden = (size_t)o->hidden;
    double *h = doubles(n, hidden);
    for (size_t t = 0; t < n; t++) embed(o, ids[t], t, h + t * hidden);
    run_layers(o, h, n, NULL, 0);
    for (size_t t = 0; t < n; t++) head_logits(o, h + t * hidden, logits + t * (size_t)o->vocab);
    free(h);
}

void oracle_continue(const oracle *o, int32_t id, const oracle_past *past, size_t n, double *logits) {
    double *h = doubles((size_t)o->hidden, 1);
    embed(o, id, n, h);
    run_layers(o, h, 1, past, n);
    head_logits(o, h, logits);
    free(h);
}

double oracle_distance(const float *got, const double *wanted, size_t n) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double difference = fabs((double)got[i] - wanted[i]);
        if (!(difference <= worst)) worst = isnan(difference) ? INFINITY : difference;
    }
    return worst;
}
