/* SPDX-License-Identifier: Apache-2.0 */
#include "model/mixer.h"

#include <string.h>

enum { TASK_CHANNELS = 64 }; /* a multiple of every level's vector */

size_t mixer_state_bytes(const model_config *config) {
    return (size_t)((config->conv_kernel - 1 + config->state_size) * config->mamba_size) * sizeof(float);
}

/* Work on some channels of one sequence. */
typedef struct mixer_job {
    const batch *b;
    const packed_layer *layer;
    int entry;
    int n_blocks; /* of channels */
} mixer_job;

typedef struct mixer_task {
    const forward_row *row;
    kv_state state;
    size_t first; /* token of the batch */
    int begin, end;
} mixer_task;

static mixer_task find_task(const mixer_job *job, int task) {
    const batch *b = job->b;
    int channels = (int)b->model->config.mamba_size, at = task / job->n_blocks;
    mixer_task found = {.row = &b->rows[at], .begin = task % job->n_blocks * TASK_CHANNELS};
    found.end = found.begin + TASK_CHANNELS < channels ? found.begin + TASK_CHANNELS : channels;
    found.state = kv_states(found.row->cache, job->entry);
    for (int r = 0; r < at; r++) found.first += (size_t)b->rows[r].n;
    return found;
}

static void conv_task(void *arg, int task, int thread) {
    (void)thread;
    const mixer_job *job = arg;
    const mixer_task t = find_task(job, task);
    const workspace *ws = &job->b->model->workspace;
    const model_config *c = &job->b->model->config;
    size_t channels = (size_t)c->mamba_size;
    conv_job conv = {.n_tokens = t.row->n,
                     .n_channels = (int)channels,
                     .begin = t.begin,
                     .end = t.end,
                     .width = (int)c->conv_kernel,
                     .u = ws->channels + t.first * 2 * channels,
                     .u_stride = 2 * channels,
                     .weight = layer_vector(job->layer, WEIGHT_CONV),
                     .bias = layer_vector(job->layer, WEIGHT_CONV_BIAS),
                     .state_in = (const float *)(const void *)t.state.now,
                     .state_out = (float *)(void *)t.state.next,
                     .out = ws->convolved + t.first * channels,
                     .out_stride = channels};
    job->b->model->compute.kernels.causal_conv(&conv);
}

static void scan_task(void *arg, int task, int thread) {
    (void)thread;
    const mixer_job *job = arg;
    const mixer_task t = find_task(job, task);
    const workspace *ws = &job->b->model->workspace;
    const model_config *c = &job->b->model->config;
    size_t channels = (size_t)c->mamba_size, rank = (size_t)c->time_step_rank, states = (size_t)c->state_size,
           width = rank + 2 * states, skip = (size_t)(c->conv_kernel - 1) * channels;
    const float *now = (const float *)(const void *)t.state.now, *projected = ws->projected + t.first * width;
    float *u = ws->convolved + t.first * channels;
    scan_job scan = {.n_tokens = t.row->n,
                     .n_channels = (int)channels,
                     .begin = t.begin,
                     .end = t.end,
                     .n_states = (int)states,
                     .u = u,
                     .u_stride = channels,
                     .dt = ws->steps + t.first * channels,
                     .dt_stride = channels,
                     .gate = ws->channels + t.first * 2 * channels + channels,
                     .gate_stride = 2 * channels,
                     .a = layer_vector(job->layer, WEIGHT_A),
                     .b = projected + rank,
                     .b_stride = width,
                     .c = projected + rank + states,
                     .c_stride = width,
                     .d = layer_vector(job->layer, WEIGHT_D),
                     .state_in = now ? now + skip : NULL,
                     .state_out = (float *)(void *)t.state.next + skip,
                     .y = u,
                     .y_stride = channels};
    job->b->model->compute.kernels.selective_scan(&scan);
}

/* The pieces of the projection: time steps' ranks by themselves, and each through its norm where it has one. */
static void split_projection(const batch *b, const packed_layer *layer) {
    const workspace *ws = &b->model->workspace;
    const model_config *c = &b->model->config;
    int rank = (int)c->time_step_rank, states = (int)c->state_size, width = rank + 2 * states;
    const struct {
        weight_role norm;
        int at, n;
    } pieces[] = {
        {WEIGHT_DT_NORM, 0, rank}, {WEIGHT_B_NORM, rank, states}, {WEIGHT_C_NORM, rank + states, states}};
    for (int t = 0; t < b->m; t++) {
        float *x = ws->projected + (ptrdiff_t)t * width;
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            row_norm norm = block_norm(b, layer_vector(layer, pieces[i].norm), NULL);
            if (norm.weight)
                row_norm_run(&b->model->compute.kernels, &norm, x + pieces[i].at, x + pieces[i].at,
                             pieces[i].n);
        }
        memcpy(ws->ranks + (ptrdiff_t)t * rank, x, (size_t)rank * sizeof *x);
    }
}

/* y = rows of x [m][k] times the matrix. */
static void project(const batch *b, const float *x, int k, const weight *w, float *y, ptrdiff_t width) {
    workspace *ws = &b->model->workspace;
    linear_part part = {.w = w, .y = y, .stride = width};
    compute_rows(&b->model->compute, &ws->rows, x, b->m, k, NULL, NULL, form_of(w));
    compute_linear(&b->model->compute, &ws->rows, &part, 1);
}

void block_mixer(const batch *b, int i) {
    model_core *model = b->model;
    workspace *ws = &model->workspace;
    const model_config *config = &model->config;
    compute *c = &model->compute;
    const packed_layer *layer = &model->weights.layers[i];
    const weight *in = &layer->matrices[WEIGHT_MAMBA_IN], *out = &layer->matrices[WEIGHT_MAMBA_OUT];
    int hidden = (int)config->hidden_size, channels = (int)config->mamba_size,
        rank = (int)config->time_step_rank;
    mixer_job job = {b, layer, i, (int)ceil_div(channels, TASK_CHANNELS)};
    row_norm norm = block_norm(b, layer_vector(layer, WEIGHT_ATTENTION_NORM), NULL);

    compute_rows(c, &ws->rows, ws->x, b->m, hidden, &norm, ws->normed, form_of(in));
    linear_part inputs = {.w = in, .y = ws->channels, .stride = 2 * channels};
    compute_linear(c, &ws->rows, &inputs, 1);
    thread_run(c->pool, b->n_rows * job.n_blocks, conv_task, &job);

    project(b, ws->convolved, channels, &layer->matrices[WEIGHT_MAMBA_X], ws->projected,
            rank + 2 * config->state_size);
    split_projection(b, layer);
    project(b, ws->ranks, rank, &layer->matrices[WEIGHT_MAMBA_DT], ws->steps, channels);
    thread_run(c->pool, b->n_rows * job.n_blocks, scan_task, &job);

    compute_rows(c, &ws->rows, ws->convolved, b->m, channels, NULL, NULL, form_of(out));
    linear_part back = {.w = out, .y = ws->x, .stride = hidden, .add = true};
    compute_linear(c, &ws->rows, &back, 1);
}
