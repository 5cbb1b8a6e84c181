/* SPDX-License-Identifier: Apache-2.0 */
#include "model/experts.h"

#include <math.h>
#include <string.h>

/* The k largest of n probabilities, the lower index first among equals, as routes of one token. */
static void choose(const float *scores, int n, int k, bool sums_to_one, expert_route *out) {
    double max = -HUGE_VAL, sum = 0, chosen = 0;
    for (int e = 0; e < n; e++) max = fmax(max, (double)scores[e]);
    for (int e = 0; e < n; e++) sum += exp((double)scores[e] - max);
    for (int i = 0; i < k; i++) {
        int best = -1;
        for (int e = 0; e < n; e++) {
            bool taken = false;
            for (int j = 0; j < i; j++) taken = taken || out[j].expert == e;
            if (!taken && (best < 0 || scores[e] > scores[best])) best = e;
        }
        double p = exp((double)scores[best] - max) / sum;
        out[i] = (expert_route){.expert = best, .weight = (float)p};
        chosen += p;
    }
    for (int i = 0; sums_to_one && i < k; i++) out[i].weight = (float)((double)out[i].weight / chosen);
}

/* One expert over n rows [n][hidden], to branch. */
static void run_expert(const batch *b, const float *rows, int n, const weight *gate, const weight *up,
                       const weight *down) {
    const model_config *config = &b->model->config;
    workspace *ws = &b->model->workspace;
    compute *c = &b->model->compute;
    int hidden = (int)config->hidden_size;
    compute_rows(c, &ws->rows, rows, n, hidden, NULL, NULL, form_of(gate) | form_of(up));
    compute_gated(c, &ws->rows, gate, up, config->hidden_act, ws->inner);
    compute_rows(c, &ws->rows, ws->inner, n, (int)gate->source.n_rows, NULL, NULL, form_of(down));
    linear_part out = {.w = down, .y = ws->branch, .stride = hidden};
    compute_linear(c, &ws->rows, &out, 1);
}

/* The expert of all tokens, each by its own gate's share [m]. */
static void run_shared(const batch *b, const packed_layer *layer, const float *gates) {
    const model_config *config = &b->model->config;
    workspace *ws = &b->model->workspace;
    size_t hidden = (size_t)config->hidden_size;
    run_expert(b, ws->normed, b->m, &layer->matrices[WEIGHT_SHARED_GATE], &layer->matrices[WEIGHT_SHARED_UP],
               &layer->matrices[WEIGHT_SHARED_DOWN]);
    for (int t = 0; t < b->m; t++) {
        float share = (float)(config->residual_multiplier / (1 + exp(-(double)gates[t])));
        b->model->compute.kernels.mul_add(ws->x + (size_t)t * hidden, ws->branch + (size_t)t * hidden, share,
                                          hidden);
    }
}

void experts_mlp(const batch *b, const packed_layer *layer) {
    const model_config *config = &b->model->config;
    workspace *ws = &b->model->workspace;
    const kernel_table *kernels = &b->model->compute.kernels;
    int n_experts = (int)config->num_local_experts, k = (int)config->num_experts_per_tok;
    size_t hidden = (size_t)config->hidden_size;
    bool shares = config->shared_expert_intermediate_size > 0;
    float *gates = ws->routing + (ptrdiff_t)b->m * n_experts;
    linear_part routers[] = {{.w = &layer->matrices[WEIGHT_ROUTER], .y = ws->routing, .stride = n_experts},
                             {.w = &layer->matrices[WEIGHT_SHARED_ROUTER], .y = gates, .stride = 1}};
    compute_linear(&b->model->compute, &ws->rows, routers, shares ? 2 : 1);
    for (int t = 0; t < b->m; t++)
        choose(ws->routing + (ptrdiff_t)t * n_experts, n_experts, k, config->norm_topk_prob,
               ws->routes + (ptrdiff_t)t * k);
    for (int e = 0; e < n_experts; e++) {
        int n = 0;
        for (int t = 0; t < b->m * k; t++) {
            if (ws->routes[t].expert != e) continue;
            memcpy(ws->gathered + (size_t)n++ * hidden, ws->normed + (size_t)(t / k) * hidden,
                   hidden * sizeof *ws->gathered);
        }
        if (n == 0) continue;
        const weight *w = layer->experts[e];
        run_expert(b, ws->gathered, n, &w[EXPERT_GATE], &w[EXPERT_UP], &w[EXPERT_DOWN]);
        n = 0;
        for (int t = 0; t < b->m * k; t++) {
            if (ws->routes[t].expert != e) continue;
            kernels->mul_add(ws->x + (size_t)(t / k) * hidden, ws->branch + (size_t)n++ * hidden,
                             ws->routes[t].weight * (float)config->residual_multiplier, hidden);
        }
    }
    if (shares) run_shared(b, layer, gates);
}
