/* Mamba's recurrences in plain C.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/kernels.h"

static float silu(float x) {
    return x / (1 + expf(-x));
}

/* Input t of channel c, counted from the job's first; earlier inputs come from the state. */
static float input_at(const conv_job *job, int t, int c) {
    if (t >= 0) return job->u[(size_t)t * job->u_stride + (size_t)c];
    if (!job->state_in) return 0;
    return job->state_in[(size_t)(job->width - 1 + t) * (size_t)job->n_channels + (size_t)c];
}

static void causal_conv_ref(const conv_job *job) {
    const size_t row = (size_t)job->n_channels;
    const int past = job->width - 1;
    for (int c = job->begin; c < job->end; c++) {
        for (int t = 0; t < job->n_tokens; t++) {
            float sum = job->bias ? job->bias[c] : 0;
            for (int j = 0; j <= past; j++) {
                sum += job->weight[(size_t)j * row + (size_t)c] * input_at(job, t - past + j, c);
            }
            job->out[(size_t)t * job->out_stride + (size_t)c] = silu(sum);
        }
        /* In ascending order, since both states may be the same memory. */
        for (int j = 0; j < past; j++) {
            job->state_out[(size_t)j * row + (size_t)c] = input_at(job, job->n_tokens - past + j, c);
        }
    }
}

/* Above 20 it equals x in float32. */
static float softplus(float x) {
    return (x > 0 ? x : 0) + log1pf(expf(-fabsf(x)));
}

static void selective_scan_ref(const scan_job *job) {
    const size_t row = (size_t)job->n_channels;
    for (size_t c = (size_t)job->begin; c < (size_t)job->end; c++) {
        float h[SCAN_MAX_STATES];
        for (int s = 0; s < job->n_states; s++) h[s] = job->state_in ? job->state_in[(size_t)s * row + c] : 0;
        for (size_t t = 0; t < (size_t)job->n_tokens; t++) {
            const float *b = job->b + t * job->b_stride, *of_state = job->c + t * job->c_stride;
            const float u = job->u[t * job->u_stride + c], dt = softplus(job->dt[t * job->dt_stride + c]);
            float y = job->d[c] * u;
            for (int s = 0; s < job->n_states; s++) {
                h[s] = expf(dt * job->a[(size_t)s * row + c]) * h[s] + dt * u * b[s];
                y += of_state[s] * h[s];
            }
            job->y[t * job->y_stride + c] = job->gate ? y * silu(job->gate[t * job->gate_stride + c]) : y;
        }
        for (int s = 0; s < job->n_states; s++) job->state_out[(size_t)s * row + c] = h[s];
    }
}

void scan_ref_fill(kernel_table *table) {
    table->causal_conv = causal_conv_ref;
    table->selective_scan = selective_scan_ref;
}
