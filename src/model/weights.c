/* SPDX-License-Identifier: Apache-2.0 */
#include "model/weights.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

enum { PACK_PANELS = 8 }; /* panels of a packing task */

weight_form weight_form_for(dtype type, weight_form wanted, bool is_auto) {
    if (!is_auto) return wanted;
    if (type == DTYPE_F32) return WEIGHT_F32;
    if (type == DTYPE_F16 || type == DTYPE_BF16) return WEIGHT_BF16;
    return WEIGHT_INT;
}

/* A small vector (norm or bias) as float32. */
static mn_status copy_vector(float **out, const weight_source *source) {
    *out = NULL;
    if (!source->tensor) return MN_OK;
    const tensor *t = source->tensor;
    const dtype_info *info = &dtype_table[t->type];
    size_t n = (size_t)source->n_rows, whole = (size_t)t->shape[0];
    float *all = mem_alloc_raw(whole, sizeof *all), *vector = mem_alloc_raw(n, sizeof *vector);
    if (all && vector) {
        info->to_f32(all, t->data, whole);
        for (size_t i = 0; i < n; i++) vector[i] = all[weight_source_row(source, (int64_t)i)];
    }
    mem_free(all);
    if (!all || !vector) {
        mem_free(vector);
        return MN_E_NOMEM;
    }
    *out = vector;
    return MN_OK;
}

typedef struct planner {
    packed_weights *weights;
    weight_form wanted;
    bool is_auto;
} planner;

static mn_status plan_weight(planner *p, weight *w, const weight_source *source, const weight_source *bias) {
    const tensor *t = source->tensor;
    w->source = *source;
    weight_layout_make(&w->layout, weight_form_for(t->type, p->wanted, p->is_auto), t->type,
                       (int)source->n_rows, (int)t->shape[1]);
    p->weights->packed_bytes += weight_layout_bytes(&w->layout);
    return bias ? copy_vector(&w->bias, bias) : MN_OK;
}

static mn_status plan_layer(planner *p, packed_layer *layer, const weight_source *from) {
    const struct {
        weight *w;
        weight_role role, bias;
    } matrices[] = {
        {&layer->q, WEIGHT_Q, WEIGHT_Q_BIAS},          {&layer->k, WEIGHT_K, WEIGHT_K_BIAS},
        {&layer->v, WEIGHT_V, WEIGHT_V_BIAS},          {&layer->o, WEIGHT_O, WEIGHT_O_BIAS},
        {&layer->gate, WEIGHT_GATE, WEIGHT_GATE_BIAS}, {&layer->up, WEIGHT_UP, WEIGHT_UP_BIAS},
        {&layer->down, WEIGHT_DOWN, WEIGHT_DOWN_BIAS},
    };
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        MN_TRY(plan_weight(p, matrices[i].w, &from[matrices[i].role], &from[matrices[i].bias]));
    }
    MN_TRY(copy_vector(&layer->input_norm, &from[WEIGHT_ATTENTION_NORM]));
    MN_TRY(copy_vector(&layer->post_norm, &from[WEIGHT_MLP_NORM]));
    MN_TRY(copy_vector(&layer->q_norm, &from[WEIGHT_Q_NORM]));
    return copy_vector(&layer->k_norm, &from[WEIGHT_K_NORM]);
}

mn_status weights_plan(model_core *model, const model_weights *bound, weight_form wanted, bool is_auto) {
    packed_weights *weights = &model->weights;
    planner p = {weights, wanted, is_auto};
    size_t n = (size_t)model->config.num_hidden_layers;
    weights->layers = mem_alloc(n, sizeof *weights->layers);
    if (!weights->layers) return MN_E_NOMEM;
    for (size_t i = 0; i < n; i++) MN_TRY(plan_layer(&p, &weights->layers[i], bound->layers[i]));
    weights->embedding = bound->embed.tensor;
    MN_TRY(copy_vector(&weights->final_norm, &bound->final_norm));
    return plan_weight(&p, &weights->head, &bound->head, NULL);
}

/* All matrices in the order in which a pass reads them. */
static int list_weights(packed_weights *weights, int64_t n_layers, weight **out) {
    int n = 0;
    for (int64_t i = 0; i < n_layers; i++) {
        packed_layer *l = &weights->layers[i];
        weight *of_layer[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof of_layer / sizeof of_layer[0]; j++) out[n++] = of_layer[j];
    }
    out[n++] = &weights->head;
    return n;
}

enum { LAYER_MATRICES = 7 };

typedef struct pack_job {
    weight **weights;
    int *first_task; /* [n_weights + 1] tasks before each weight */
    char **scratch;  /* [threads] */
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
    weight_pack((char *)(uintptr_t)w->packed, &w->layout, w->source.tensor->type, w->source.tensor->data,
                weight_row_bytes(&w->source), weight_row_of, &w->source, begin, end, job->scratch[thread]);
    uint64_t part = (uint64_t)(end - begin) * w->layout.panel_bytes;
    uint64_t done = atomic_fetch_add(&job->done, part) + part;
    if (thread == 0 && job->progress.report) job->progress.report(job->progress.user, done, job->total);
}

/* Places for all panels, in one block. */
static mn_status place_panels(packed_weights *weights, weight **list, int n) {
    weights->arena = mem_alloc_raw(weights->packed_bytes, 1);
    if (!weights->arena) return MN_E_NOMEM;
    char *at = weights->arena;
    for (int i = 0; i < n; i++) {
        list[i]->packed = at;
        at += weight_layout_bytes(&list[i]->layout);
    }
    return MN_OK;
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

mn_status weights_pack(model_core *model, bool lazy, weights_progress progress) {
    if (lazy) return MN_OK;
    packed_weights *weights = &model->weights;
    int64_t n_layers = model->config.num_hidden_layers;
    size_t capacity = (size_t)n_layers * LAYER_MATRICES + 1;
    int n_threads = model->compute.n_threads;
    pack_job job = {.progress = progress, .total = weights->packed_bytes};
    job.weights = mem_alloc(capacity, sizeof *job.weights);
    job.first_task = mem_alloc(capacity + 1, sizeof *job.first_task);
    job.scratch = mem_alloc((size_t)n_threads, sizeof *job.scratch);
    mn_status status = job.weights && job.first_task && job.scratch ? MN_OK : MN_E_NOMEM;
    if (status == MN_OK) {
        int n = list_weights(weights, n_layers, job.weights);
        status = make_scratch(job.scratch, n_threads, job.weights, n);
        if (status == MN_OK) status = place_panels(weights, job.weights, n);
        for (int i = 0; i < n; i++) {
            job.first_task[i + 1] =
                job.first_task[i] + (int)ceil_div(job.weights[i]->layout.n_panels, PACK_PANELS);
        }
        if (status == MN_OK) thread_run(model->compute.pool, job.first_task[n], pack_task, &job);
    }
    for (int i = 0; job.scratch && i < n_threads; i++) mem_free(job.scratch[i]);
    mem_free(job.scratch);
    mem_free(job.first_task);
    mem_free(job.weights);
    return status;
}

void weights_clear(packed_weights *weights, int64_t n_layers) {
    for (int64_t i = 0; weights->layers && i < n_layers; i++) {
        packed_layer *l = &weights->layers[i];
        float *vectors[] = {l->input_norm, l->post_norm, l->q_norm,    l->k_norm,  l->q.bias,   l->k.bias,
                            l->v.bias,     l->o.bias,    l->gate.bias, l->up.bias, l->down.bias};
        for (size_t j = 0; j < sizeof vectors / sizeof vectors[0]; j++) mem_free(vectors[j]);
    }
    mem_free(weights->layers);
    mem_free(weights->final_norm);
    mem_free(weights->head.bias);
    mem_free(weights->arena);
    *weights = (packed_weights){0};
}
