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

/* One expert over the n gathered rows, to branch. */
static void run_expert(const batch *b, const weight *w, int n) {
    const model_config *config = &b->model->config;
    workspace *ws = &b->model->workspace;
    compute *c = &b->model->compute;
    int hidden = (int)config->hidden_size, inner = (int)config->intermediate_size;
    compute_rows(c, &ws->rows, ws->gathered, n, hidden, NULL, NULL,
                 form_of(&w[EXPERT_GATE]) | form_of(&w[EXPERT_UP]));
    compute_gated(c, &ws->rows, &w[EXPERT_GATE], &w[EXPERT_UP], config->hidden_act, ws->inner);
    compute_rows(c, &ws->rows, ws->inner, n, inner, NULL, NULL, form_of(&w[EXPERT_DOWN]));
    linear_part down = {.w = &w[EXPERT_DOWN], .y = ws->branch, .stride = hidden};
    compute_linear(c, &ws->rows, &down, 1);
}

void experts_mlp(const batch *b, const packed_layer *layer) {
    const model_config *config = &b->model->config;
    workspace *ws = &b->model->workspace;
    const kernel_table *kernels = &b->model->compute.kernels;
    int n_experts = (int)config->num_local_experts, k = (int)config->num_experts_per_tok;
    size_t hidden = (size_t)config->hidden_size;
    linear_part router = {.w = &layer->matrices[WEIGHT_ROUTER], .y = ws->routing, .stride = n_experts};
    compute_linear(&b->model->compute, &ws->rows, &router, 1);
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
        run_expert(b, layer->experts[e], n);
        n = 0;
        for (int t = 0; t < b->m * k; t++) {
            if (ws->routes[t].expert != e) continue;
            kernels->mul_add(ws->x + (size_t)(t / k) * hidden, ws->branch + (size_t)n++ * hidden,
                             ws->routes[t].weight * (float)config->residual_multiplier, hidden);
        }
    }
}
