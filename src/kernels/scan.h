/* Mamba's two recurrences over tokens (Gu, Dao 2023): a short causal convolution and the selective scan.
 *
 * A job is the channels begin .. end - 1 of n_channels, for n_tokens >= 0 tokens. Weights and states have the channel
 * innermost, so that a vector holds adjacent channels, and rows n_channels apart. Rows of tokens are `stride` floats
 * apart. The bits of a channel depend on its own values only: not on how tokens are divided into jobs, on which
 * channels are computed together, nor on the values of others. States pass from job to job in float32.
 *
 * causal_conv     out = silu(bias + sum over j < width of weight[j] u[t - width + 1 + j])
 * selective_scan  dt' = log(1 + exp(dt)); for each state s: h[s] = exp(dt' a[s]) h[s] + dt' u b[s];
 *                 y = (sum over s of c[s] h[s] + d u) silu(gate)
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_KERNELS_SCAN_H
#define MN_KERNELS_SCAN_H

#include <stddef.h>

enum {
    SCAN_MAX_STATES = 256,
};

typedef struct conv_job {
    int n_tokens, n_channels, begin, end;
    int width;             /* of the convolution, >= 1 */
    const float *u;        /* [n_tokens][n_channels], rows u_stride apart */
    const float *weight;   /* [width][n_channels], for the oldest input first */
    const float *bias;     /* [n_channels]; NULL: 0 */
    const float *state_in; /* [width - 1][n_channels], the inputs before u, oldest first; NULL: zeros */
    float *state_out;      /* the last width - 1 inputs of state_in and u; may be state_in */
    float *out;            /* [n_tokens][n_channels], rows out_stride apart; no part of u */
    size_t u_stride, out_stride;
} conv_job;

typedef struct scan_job {
    int n_tokens, n_channels, begin, end;
    int n_states;          /* 1 to SCAN_MAX_STATES */
    const float *u;        /* [n_tokens][n_channels], rows u_stride apart, as are those of dt, gate and y */
    const float *dt;       /* raw: with its bias, before the softplus */
    const float *gate;     /* NULL: none, y is not multiplied */
    const float *a;        /* [n_states][n_channels], -exp(A_log): no value above 0 */
    const float *b, *c;    /* [n_tokens][n_states], rows b_stride and c_stride apart */
    const float *d;        /* [n_channels] */
    const float *state_in; /* [n_states][n_channels]; NULL: zeros */
    float *state_out;      /* may be state_in */
    float *y;              /* may be u, dt or gate where the strides are equal */
    size_t u_stride, dt_stride, gate_stride, b_stride, c_stride, y_stride;
} scan_job;

#endif
