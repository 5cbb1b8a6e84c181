/* SPDX-License-Identifier: Apache-2.0 */
#include "model/mixer.h"

#include <string.h>

/* Channels of a task: a multiple of every level's vector and of a panel; of single tokens a thread's share, up to the most. */
enum { LEAST_CHANNELS = 64, MOST_CHANNELS = 1024 };

size_t mixer_state_bytes(const model_config *config) {
    return (size_t)((config->conv_kernel - 1 + config->state_size) * config->mamba_size) * sizeof(float);
}

/* Work on the channels of a layer for all sequences; a task has some of them. */
typedef struct mixer_job {
    const batch *b;
    const packed_layer *layer;
    int entry, task_channels;
} mixer_job;

static mixer_job job_of(const batch *b, int entry) {
    const model_core *model = b->model;
    int channels = (int)model->config.mamba_size, least = LEAST_CHANNELS;
    int share = (int)ceil_div(channels, model->compute.n_threads * least) * least;
    return (mixer_job){b, &model->weights.layers[entry], entry,
                       b->m > b->n_rows        ? LEAST_CHANNELS
                       : share > MOST_CHANNELS ? MOST_CHANNELS
                                               : share};
}

static int job_tasks(const mixer_job *job) {
    return (int)ceil_div(job->b->model->config.mamba_size, job->task_channels);
}

/* Where a task's channels end. */
static int task_end(const mixer_job *job, int begin) {
    int channels = (int)job->b->model->config.mamba_size;
    return channels - begin < job->task_channels ? channels : begin + job->task_channels;
}

static void conv_task(void *arg, int task, int thread) {
    (void)thread;
    const mixer_job *job = arg;
    const batch *b = job->b;
    const workspace *ws = &b->model->workspace;
    const model_config *c = &b->model->config;
    size_t channels = (size_t)c->mamba_size, at = 0;
    conv_job conv = {.n_channels = (int)channels,
                     .begin = task * job->task_channels,
                     .end = task_end(job, task * job->task_channels),
                     .width = (int)c->conv_kernel,
                     .u_stride = 2 * channels,
                     .weight = layer_vector(job->layer, WEIGHT_CONV),
                     .bias = layer_vector(job->layer, WEIGHT_CONV_BIAS),
                     .out_stride = channels};
    for (int r = 0; r < b->n_rows; at += (size_t)b->rows[r].n, r++) {
        kv_state state = kv_states(b->rows[r].cache, job->entry);
        conv.n_tokens = b->rows[r].n;
        conv.u = ws->channels + at * 2 * channels;
        conv.out = ws->convolved + at * channels;
        conv.state_in = (const float *)(const void *)state.now;
        conv.state_out = (float *)(void *)state.next;
        b->model->compute.kernels.causal_conv(&conv);
    }
}

/* Time steps from their ranks, which the workspace's rows hold, then the scan. */
static void scan_task(void *arg, int task, int thread) {
    const mixer_job *job = arg;
    const batch *b = job->b;
    const workspace *ws = &b->model->workspace;
    const model_config *c = &b->model->config;
    size_t channels = (size_t)c->mamba_size, rank = (size_t)c->time_step_rank, states = (size_t)c->state_size,
           width = rank + 2 * states, skip = (size_t)(c->conv_kernel - 1) * channels, at = 0;
    int begin = task * job->task_channels, end = task_end(job, begin);
    const linear_part steps = {
        .w = &job->layer->matrices[WEIGHT_MAMBA_DT], .y = ws->steps, .stride = (ptrdiff_t)channels};
    compute_linear_piece(&b->model->compute, &ws->rows, &steps, begin, end, thread);
    scan_job scan = {.n_channels = (int)channels,
                     .begin = begin,
                     .end = end,
                     .n_states = (int)states,
                     .u_stride = channels,
                     .dt_stride = channels,
                     .gate_stride = 2 * channels,
                     .a = layer_vector(job->layer, WEIGHT_A),
                     .b_stride = width,
                     .c_stride = width,
                     .d = layer_vector(job->layer, WEIGHT_D),
                     .y_stride = channels};
    for (int r = 0; r < b->n_rows; at += (size_t)b->rows[r].n, r++) {
        kv_state state = kv_states(b->rows[r].cache, job->entry);
        scan.n_tokens = b->rows[r].n;
        scan.u = scan.y = ws->convolved + at * channels;
        scan.dt = ws->steps + at * channels;
        scan.gate = ws->channels + at * 2 * channels + channels;
        scan.b = ws->projected + at * width + rank;
        scan.c = scan.b + states;
        scan.state_in = state.now ? (const float *)(const void *)state.now + skip : NULL;
        scan.state_out = (float *)(void *)state.next + skip;
        b->model->compute.kernels.selective_scan(&scan);
    }
}

enum { SPLIT_ROWS = 32 }; /* rows of a task */

/* The pieces of the projection: time steps' ranks by themselves, and each through its norm where it has one. */
static void split_task(void *arg, int task, int thread) {
    (void)thread;
    const mixer_job *job = arg;
    const batch *b = job->b;
    const workspace *ws = &b->model->workspace;
    const model_config *c = &b->model->config;
    int rank = (int)c->time_step_rank, states = (int)c->state_size, width = rank + 2 * states;
    const struct {
        weight_role norm;
        int at, n;
    } pieces[] = {
        {WEIGHT_DT_NORM, 0, rank}, {WEIGHT_B_NORM, rank, states}, {WEIGHT_C_NORM, rank + states, states}};
    int begin = task * SPLIT_ROWS, end = b->m - begin < SPLIT_ROWS ? b->m : begin + SPLIT_ROWS;
    for (int t = begin; t < end; t++) {
        float *x = ws->projected + (ptrdiff_t)t * width;
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            row_norm norm = block_norm(b, layer_vector(job->layer, pieces[i].norm), NULL);
            if (norm.weight)
                row_norm_run(&b->model->compute.kernels, &norm, x + pieces[i].at, x + pieces[i].at,
                             pieces[i].n);
        }
        memcpy(ws->ranks + (ptrdiff_t)t * rank, x, (size_t)rank * sizeof *x);
    }
}

/* Makes the workspace's rows x [m][k], as the matrix wants them. */
static void take_rows(const batch *b, const float *x, int64_t k, const weight *w) {
    compute_rows(&b->model->compute, &b->model->workspace.rows, x, b->m, (int)k, NULL, NULL, form_of(w));
}

static void project(const batch *b, linear_part part) {
    compute_linear(&b->model->compute, &b->model->workspace.rows, &part, 1);
}

void block_mixer(const batch *b, int i) {
    workspace *ws = &b->model->workspace;
    const model_config *config = &b->model->config;
    compute *c = &b->model->compute;
    const packed_layer *layer = &b->model->weights.layers[i];
    const weight *in = &layer->matrices[WEIGHT_MAMBA_IN], *x = &layer->matrices[WEIGHT_MAMBA_X],
                 *steps = &layer->matrices[WEIGHT_MAMBA_DT], *out = &layer->matrices[WEIGHT_MAMBA_OUT];
    int64_t hidden = config->hidden_size, channels = config->mamba_size, rank = config->time_step_rank,
            width = rank + 2 * config->state_size;
    mixer_job job = job_of(b, i);
    row_norm norm = block_norm(b, layer_vector(layer, WEIGHT_ATTENTION_NORM), NULL);

    compute_rows(c, &ws->rows, ws->x, b->m, (int)hidden, &norm, ws->normed, form_of(in));
    project(b, (linear_part){.w = in, .y = ws->channels, .stride = 2 * channels});
    compute_tasks(c, job_tasks(&job), b->m * channels, conv_task, &job);

    take_rows(b, ws->convolved, channels, x);
    project(b, (linear_part){.w = x, .y = ws->projected, .stride = width});
    compute_tasks(c, (int)ceil_div(b->m, SPLIT_ROWS), b->m * width, split_task, &job);

    take_rows(b, ws->ranks, rank, steps);
    thread_run(c->pool, job_tasks(&job), scan_task, &job);

    take_rows(b, ws->convolved, channels, out);
    project(b, (linear_part){.w = out, .y = ws->x, .stride = hidden, .add = true});
}
