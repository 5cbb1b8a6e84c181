/* SPDX-License-Identifier: Apache-2.0 */
#include "model/mixer.h"

#include <string.h>

/* Channels of a task: a multiple of every level's vector and of a panel; for single tokens a thread's share, up to the
 * maximum. */
enum { LEAST_CHANNELS = 64, MOST_CHANNELS = 1024 };

size_t mixer_state_bytes(const model_config *config) {
    return (size_t)((config->conv_kernel - 1 + config->state_size) * config->mamba_size) * sizeof(float);
}

/* A job over the channels of a layer for all sequences; a task has some of them. */
typedef struct mixer_job {
    const batch *b;
    const packed_layer *layer;
    int entry, task_channels;
} mixer_job;

static mixer_job job_of(const batch *b, int entry) {
    const network *net = b->net;
    int channels = (int)net->config.mamba_size, least = LEAST_CHANNELS;
    int share = (int)ceil_div(channels, net->compute->n_threads * least) * least;
    return (mixer_job){b, &net->weights.layers[entry], entry,
                       b->m > b->n_rows        ? LEAST_CHANNELS
                       : share > MOST_CHANNELS ? MOST_CHANNELS
                                               : share};
}

static int job_tasks(const mixer_job *job) {
    return (int)ceil_div(job->b->net->config.mamba_size, job->task_channels);
}

/* The end of a task's channels. */
static int task_end(const mixer_job *job, int begin) {
    int channels = (int)job->b->net->config.mamba_size;
    return channels - begin < job->task_channels ? channels : begin + job->task_channels;
}

static void conv_task(void *arg, int task, int thread) {
    (void)thread;
    const mixer_job *job = arg;
    const batch *b = job->b;
    const workspace *ws = &b->net->workspace;
    const model_config *c = &b->net->config;
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
        b->net->compute->kernels.causal_conv(&conv);
    }
}

/* Time steps from their ranks, which the workspace's rows hold, then the scan. */
static void scan_task(void *arg, int task, int thread) {
    const mixer_job *job = arg;
    const batch *b = job->b;
    const workspace *ws = &b->net->workspace;
    const model_config *c = &b->net->config;
    size_t channels = (size_t)c->mamba_size, rank = (size_t)c->time_step_rank, states = (size_t)c->state_size,
           width = rank + 2 * states, skip = (size_t)(c->conv_kernel - 1) * channels, at = 0;
    int begin = task * job->task_channels, end = task_end(job, begin);
    const linear_part steps = {
        .w = &job->layer->matrices[WEIGHT_MAMBA_DT], .y = ws->steps, .stride = (ptrdiff_t)channels};
    compute_linear_piece(b->net->compute, &ws->rows, &steps, begin, end, thread);
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
        b->net->compute->kernels.selective_scan(&scan);
    }
}

enum { SPLIT_ROWS = 32 }; /* rows of a task */

/* Splits the projection, copies the time-step part and applies the norms where the model has them. */
static void split_task(void *arg, int task, int thread) {
    (void)thread;
    const mixer_job *job = arg;
    const batch *b = job->b;
    const workspace *ws = &b->net->workspace;
    const model_config *c = &b->net->config;
    int rank = (int)c->time_step_rank, states = (int)c->state_size, width = rank + 2 * states;
    const struct {
        weight_role norm;
        int at, n;
    } pieces[] = {{WEIGHT_DT_NORM, 0, rank}, {WEIGHT_B_NORM, rank, states}, {WEIGHT_C_NORM, rank + states, states}};
    int begin = task * SPLIT_ROWS, end = b->m - begin < SPLIT_ROWS ? b->m : begin + SPLIT_ROWS;
    for (int t = begin; t < end; t++) {
        float *x = ws->projected + (ptrdiff_t)t * width;
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            row_norm norm = block_norm(b, layer_vector(job->layer, pieces[i].norm), NULL);
            if (norm.weight)
                row_norm_run(&b->net->compute->kernels, &norm, x + pieces[i].at, x + pieces[i].at, pieces[i].n);
        }
        memcpy(ws->ranks + (ptrdiff_t)t * rank, x, (size_t)rank * sizeof *x);
    }
}

/* Converts x [m][k] into the workspace's rows, in the form that the matrix needs. */
static void take_rows(const batch *b, const float *x, int64_t k, const weight *w) {
    compute_rows(b->net->compute, &b->net->workspace.rows, x, b->m, (int)k, NULL, NULL, form_of(w));
}

static void project(const batch *b, linear_part part) {
    compute_linear(b->net->compute, &b->net->workspace.rows, &part, 1);
}

void block_mixer(const batch *b, int i) {
    workspace *ws = &b->net->workspace;
    const model_config *config = &b->net->config;
    compute *c = b->net->compute;
    const packed_layer *layer = &b->net->weights.layers[i];
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
