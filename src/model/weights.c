/* SPDX-License-Identifier: Apache-2.0 */
#include "model/weights.h"

#include <math.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "kv/archive.h"

/* Panels of a packing task; and how often the pages of the files that were read are given back: stored values take up
 * to four times the bytes of packed ones. */
enum { PACK_PANELS = 8, RELEASES = 64 };

weight_form weight_form_for(dtype type, weight_form model_form, bool is_auto) {
    if (!is_auto) return model_form;
    if (type == DTYPE_F32 || type == DTYPE_F64) return WEIGHT_F32;
    return dtype_table[type].block == 1 ? WEIGHT_BF16 : WEIGHT_INT;
}

/* ---- vectors ---- */

/* A small tensor (norm, bias, state parameters) as float32, all of it or, of vectors, the rows that the source names;
 * each value plus `more`. */
static mn_status copy_vector(float **out, const weight_source *source, float more) {
    *out = NULL;
    if (!source->tensor) return MN_OK;
    const tensor *t = source->tensor;
    size_t whole = 1, n = (size_t)source->n_rows;
    for (int i = 0; i < t->n_dims; i++) whole *= (size_t)t->shape[i];
    float *all = mem_alloc_raw(whole, sizeof *all);
    if (!all) return MN_E_NOMEM;
    dtype_table[t->type].to_f32(all, t->data, whole);
    *out = all;
    if (t->n_dims == 1) {
        *out = mem_alloc_raw(n, sizeof **out);
        for (size_t i = 0; *out && i < n; i++) (*out)[i] = all[weight_source_row(source, (int64_t)i)] + more;
        mem_free(all);
    }
    return *out ? MN_OK : MN_E_NOMEM;
}

/* x [rows][columns] to [columns][rows]. */
static mn_status turn(float **x, int64_t rows, int64_t columns) {
    float *transposed_copy = mem_alloc_raw((size_t)(rows * columns), sizeof *transposed_copy);
    if (!transposed_copy) return MN_E_NOMEM;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) transposed_copy[c * rows + r] = (*x)[r * columns + c];
    }
    mem_free(*x);
    *x = transposed_copy;
    return MN_OK;
}

static bool is_norm(int role) {
    return role == WEIGHT_ATTENTION_NORM || role == WEIGHT_ATTENTION_POST_NORM || role == WEIGHT_MLP_NORM ||
           role == WEIGHT_MLP_POST_NORM || role == WEIGHT_Q_NORM || role == WEIGHT_K_NORM || role == WEIGHT_FINAL_NORM;
}

/* The scan kernels need adjacent channels, and A itself. */
static mn_status shape_states(const network *net, packed_layer *layer, bool is_gguf) {
    const model_config *c = &net->config;
    float **a = &layer->vectors[WEIGHT_A - FIRST_LAYER_VECTOR],
          **conv = &layer->vectors[WEIGHT_CONV - FIRST_LAYER_VECTOR];
    if (!*a) return MN_OK;
    for (int64_t i = 0; !is_gguf && i < c->mamba_size * c->state_size; i++) (*a)[i] = -expf((*a)[i]);
    MN_TRY(turn(a, c->mamba_size, c->state_size));
    return turn(conv, c->mamba_size, c->conv_kernel);
}

/* ---- matrices ---- */

typedef struct planner {
    network *net;
    bool is_auto, is_gguf;
} planner;

static mn_status plan_matrix(planner *p, weight *w, const weight_source *source, const weight_source *bias,
                             bool is_exact) {
    packed_weights *weights = &p->net->weights;
    w->source = *source;
    if (!source->tensor) return MN_OK;
    const tensor *t = source->tensor;
    if (source->is_transposed && dtype_table[t->type].block != 1)
        MN_FAIL(MN_E_UNSUPPORTED, "%s is stored as %s, allowed: a floating-point type", t->name,
                dtype_table[t->type].name);
    weight_form form = is_exact ? WEIGHT_F32 : weight_form_for(t->type, p->net->form, p->is_auto);
    weight_layout_make(&w->layout, form, t->type, (int)source->n_rows, (int)source->columns);
    weights->packed_bytes += weight_layout_bytes(&w->layout);
    return bias ? copy_vector(&w->bias, bias, 0) : MN_OK;
}

static mn_status plan_experts(planner *p, packed_layer *layer, weight_source (*from)[N_EXPERT_MATRICES]) {
    size_t n = (size_t)p->net->config.num_local_experts;
    layer->experts = mem_alloc(n, sizeof *layer->experts);
    if (!layer->experts) return MN_E_NOMEM;
    for (size_t e = 0; e < n; e++) {
        for (int i = 0; i < N_EXPERT_MATRICES; i++)
            MN_TRY(plan_matrix(p, &layer->experts[e][i], &from[e][i], NULL, false));
    }
    return MN_OK;
}

/* A pass multiplies the input of a branch's last matrix by the residual multiplier (scale_residual), so its bias has to
 * be multiplied too. */
static void scale_bias(const network *net, weight *w) {
    for (int i = 0; w->bias && i < w->layout.n; i++) w->bias[i] *= (float)net->config.residual_multiplier;
}

static mn_status plan_layer(planner *p, packed_layer *layer, const weight_source *from) {
    for (int i = 0; i < N_LAYER_MATRICES; i++) {
        /* A router's rounding would change which experts are chosen. */
        bool is_exact = i == WEIGHT_ROUTER || i == WEIGHT_SHARED_ROUTER;
        MN_TRY(plan_matrix(p, &layer->matrices[i], &from[i], &from[i + N_LAYER_MATRICES], is_exact));
    }
    scale_bias(p->net, &layer->matrices[WEIGHT_O]);
    scale_bias(p->net, &layer->matrices[WEIGHT_DOWN]);
    for (int role = FIRST_LAYER_VECTOR; role < N_LAYER_WEIGHTS; role++) {
        float more = p->net->config.norm_adds_one && is_norm(role) ? 1 : 0;
        MN_TRY(copy_vector(&layer->vectors[role - FIRST_LAYER_VECTOR], &from[role], more));
    }
    return shape_states(p->net, layer, p->is_gguf);
}

mn_status weights_plan(network *net, const model_weights *bound, bool is_auto, bool is_gguf) {
    packed_weights *weights = &net->weights;
    planner p = {net, is_auto, is_gguf};
    size_t n = (size_t)net->config.num_hidden_layers, experts = (size_t)net->config.num_local_experts;
    weights->layers = mem_alloc(n, sizeof *weights->layers);
    if (!weights->layers) return MN_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        MN_TRY(plan_layer(&p, &weights->layers[i], bound->layers[i]));
        if (config_has_experts(&net->config, (int64_t)i))
            MN_TRY(plan_experts(&p, &weights->layers[i], bound->experts + i * experts));
    }
    weights->embedding = model_weights_global(bound, WEIGHT_EMBED)->tensor;
    MN_TRY(copy_vector(&weights->positions, model_weights_global(bound, WEIGHT_POSITIONS), 0));
    MN_TRY(copy_vector(&weights->final_norm, model_weights_global(bound, WEIGHT_FINAL_NORM),
                       net->config.norm_adds_one ? 1 : 0));
    MN_TRY(copy_vector(&weights->final_norm_bias, model_weights_global(bound, WEIGHT_FINAL_NORM_BIAS), 0));
    for (int i = 0; i < N_CONVOLUTIONS; i++) {
        weight_role role = i == 0 ? WEIGHT_CONV1 : WEIGHT_CONV2;
        MN_TRY(plan_matrix(&p, &weights->convolutions[i], model_weights_global(bound, role),
                           model_weights_global(bound, role + 1), false));
    }
    return plan_matrix(&p, &weights->head, model_weights_global(bound, WEIGHT_HEAD),
                       model_weights_global(bound, WEIGHT_HEAD_BIAS), false);
}

static void list_one(weight *w, weight **out, int *n) {
    if (!w->source.tensor) return;
    if (out) out[*n] = w;
    ++*n;
}

/* out NULL: only counts them. */
static int list_weights(packed_weights *weights, const model_config *config, weight **out) {
    int n = 0;
    size_t experts = (size_t)config->num_local_experts;
    for (int i = 0; i < N_CONVOLUTIONS; i++) list_one(&weights->convolutions[i], out, &n);
    for (int64_t i = 0; i < config->num_hidden_layers; i++) {
        packed_layer *l = &weights->layers[i];
        for (int j = 0; j < N_LAYER_MATRICES; j++) list_one(&l->matrices[j], out, &n);
        for (size_t j = 0; l->experts && j < experts * N_EXPERT_MATRICES; j++)
            list_one(&l->experts[j / N_EXPERT_MATRICES][j % N_EXPERT_MATRICES], out, &n);
    }
    list_one(&weights->head, out, &n);
    return n;
}

mn_status weights_list(weight ***out, int *n, network *net) {
    *out = mem_alloc((size_t)list_weights(&net->weights, &net->config, NULL), sizeof **out);
    *n = *out ? list_weights(&net->weights, &net->config, *out) : 0;
    return *out ? MN_OK : MN_E_NOMEM;
}

mn_status weights_place(network *net, const char *panels) {
    weight **list = NULL;
    int n = 0;
    MN_TRY(weights_list(&list, &n, net));
    for (int i = 0; i < n; i++) {
        list[i]->packed = panels;
        panels += weight_layout_bytes(&list[i]->layout);
    }
    mem_free(list);
    return MN_OK;
}

/* ---- packing ---- */

typedef struct pack_job {
    weight **weights;
    int *first_task; /* [n_weights + 1] tasks before each weight */
    char **scratch;  /* [threads] */
    const tensor_set *files;
    _Atomic uint64_t done;
    uint64_t total;
    weights_progress progress;
} pack_job;

static void pack_task(void *arg, int task, int thread) {
    pack_job *job = arg;
    int i = 0;
    while (task >= job->first_task[i + 1]) i++;
    const weight *w = job->weights[i];
    int begin = (task - job->first_task[i]) * PACK_PANELS, end = begin + PACK_PANELS;
    if (end > w->layout.n_panels) end = w->layout.n_panels;
    const stored_matrix stored = weight_stored(&w->source);
    weight_pack((char *)(uintptr_t)w->packed, &w->layout, &stored, begin, end, job->scratch[thread]);
    uint64_t part = (uint64_t)(end - begin) * w->layout.panel_bytes, step = job->total / RELEASES + 1;
    uint64_t done = atomic_fetch_add(&job->done, part) + part;
    if (done / step != (done - part) / step) tensor_set_release_pages(job->files);
    if (thread == 0 && job->progress.report) job->progress.report(job->progress.user, done, job->total);
}

static mn_status make_scratch(char **scratch, int n_threads, weight **list, int n) {
    size_t most = 0;
    for (int i = 0; i < n; i++) {
        size_t need = pack_scratch_bytes(&list[i]->layout);
        if (need > most) most = need;
    }
    for (int i = 0; i < n_threads; i++) {
        scratch[i] = mem_alloc_raw(most, 1);
        if (!scratch[i]) return MN_E_NOMEM;
    }
    return MN_OK;
}

static mn_status number_tasks(int *first_task, weight **list, int n) {
    int64_t n_tasks = 0;
    for (int i = 0; i < n; i++) {
        n_tasks += ceil_div(list[i]->layout.n_panels, PACK_PANELS);
        if (n_tasks > INT_MAX) {
            MN_FAIL(MN_E_UNSUPPORTED, "the matrices have more than %lld panels, which is as many as can be packed",
                    (long long)INT_MAX * PACK_PANELS);
        }
        first_task[i + 1] = (int)n_tasks;
    }
    return MN_OK;
}

static mn_status run_packing(pack_job *job, network *net, int n) {
    packed_weights *weights = &net->weights;
    weights->arena = mem_alloc_raw(weights->packed_bytes, 1);
    if (!weights->arena) return MN_E_NOMEM;
    MN_TRY(weights_place(net, weights->arena));
    MN_TRY(make_scratch(job->scratch, net->compute->n_threads, job->weights, n));
    MN_TRY(number_tasks(job->first_task, job->weights, n));
    thread_run(net->compute->pool, job->first_task[n], pack_task, job);
    return MN_OK;
}

mn_status weights_pack(network *net, const tensor_set *files, bool lazy, weights_progress progress) {
    if (lazy) return MN_OK;
    int n_threads = net->compute->n_threads, n = 0;
    pack_job job = {.progress = progress, .files = files, .total = net->weights.packed_bytes};
    mn_status status = MN_OK;
    if (!net->weights.mapped) {
        status = weights_list(&job.weights, &n, net);
        job.first_task = mem_alloc((size_t)n + 1, sizeof *job.first_task);
        job.scratch = mem_alloc((size_t)n_threads, sizeof *job.scratch);
        if (!job.first_task || !job.scratch) status = MN_E_NOMEM;
        if (status == MN_OK) status = run_packing(&job, net, n);
    }
    if (status == MN_OK && progress.report)
        progress.report(progress.user, job.total, job.total); /* this thread may have had no task */
    for (int i = 0; job.scratch && i < n_threads; i++) mem_free(job.scratch[i]);
    mem_free(job.scratch);
    mem_free(job.first_task);
    mem_free(job.weights);
    return status;
}

void weights_clear(packed_weights *weights, int64_t n_layers) {
    for (int64_t i = 0; weights->layers && i < n_layers; i++) {
        packed_layer *l = &weights->layers[i];
        for (int j = 0; j < N_LAYER_MATRICES; j++) mem_free(l->matrices[j].bias);
        for (int j = 0; j < N_LAYER_VECTORS; j++) mem_free(l->vectors[j]);
        mem_free(l->experts);
    }
    for (int i = 0; i < N_CONVOLUTIONS; i++) mem_free(weights->convolutions[i].bias);
    mem_free(weights->layers);
    mem_free(weights->positions);
    mem_free(weights->final_norm);
    mem_free(weights->final_norm_bias);
    mem_free(weights->head.bias);
    mem_free(weights->arena);
    archive_close(&weights->mapped);
    *weights = (packed_weights){0};
}
