/* SPDX-License-Identifier: Apache-2.0 */
#include "model/experts.h"

#include <math.h>
#include <string.h>

/* The k largest of n probabilities, the lower index first among equals, as routes of one token in the experts'
 * order. */
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
    for (int i = 1; i < k; i++) {
        const expert_route route = out[i];
        int at = i;
        for (; at > 0 && out[at - 1].expert > route.expert; at--) out[at] = out[at - 1];
        out[at] = route;
    }
}

/* Some experts and the rows of each. */
typedef struct expert_group {
    const batch *b;
    int n_experts;
    int experts[MAX_LINEAR_PARTS], rows[MAX_LINEAR_PARTS];
    int n; /* rows of all */
} expert_group;

/* Selects experts chosen by some token, from `expert` on, as many as fit into one job. Each chosen row gets a place, to
 * which its token is copied; a single token is read in place by all. Returns the index after the last expert. */
static int gather(expert_group *group, int expert) {
    const batch *b = group->b;
    const model_config *config = &b->net->config;
    workspace *ws = &b->net->workspace;
    int k = (int)config->num_experts_per_tok;
    size_t hidden = (size_t)config->hidden_size;
    group->n_experts = group->n = 0;
    for (; expert < (int)config->num_local_experts && group->n_experts < MAX_LINEAR_PARTS; expert++) {
        int first = group->n;
        for (int t = 0; t < b->m * k; t++) {
            if (ws->routes[t].expert != expert) continue;
            if (b->m > 1)
                memcpy(ws->gathered + (size_t)group->n * hidden, ws->normed + (size_t)(t / k) * hidden,
                       hidden * sizeof *ws->gathered);
            ws->routes[t].row = group->n++;
        }
        if (group->n == first) continue;
        group->experts[group->n_experts] = expert;
        group->rows[group->n_experts++] = group->n - first;
    }
    return expert;
}

/* The group's experts over their rows, to branch. */
static void run_group(const expert_group *group, const packed_layer *layer) {
    const batch *b = group->b;
    const model_config *config = &b->net->config;
    workspace *ws = &b->net->workspace;
    compute *c = b->net->compute;
    int64_t hidden = config->hidden_size, inner = config->intermediate_size;
    linear_part in[MAX_LINEAR_PARTS], out[MAX_LINEAR_PARTS];
    form_set in_forms = 0, out_forms = 0;
    for (int i = 0, row = 0; i < group->n_experts; row += group->rows[i], i++) {
        const weight *w = layer->experts[group->experts[i]];
        in[i] = (linear_part){.w = &w[EXPERT_GATE],
                              .up = &w[EXPERT_UP],
                              .y = ws->inner + row * inner,
                              .stride = inner,
                              .first_row = b->m > 1 ? row : 0,
                              .n_rows = group->rows[i]};
        out[i] = (linear_part){.w = &w[EXPERT_DOWN],
                               .y = ws->branch + row * hidden,
                               .stride = hidden,
                               .first_row = row,
                               .n_rows = group->rows[i]};
        in_forms |= form_of(in[i].w) | form_of(in[i].up);
        out_forms |= form_of(out[i].w);
    }
    bool alone = b->m == 1;
    compute_rows(c, &ws->rows, alone ? ws->normed : ws->gathered, alone ? 1 : group->n, (int)hidden, NULL, NULL,
                 in_forms);
    compute_gated(c, &ws->rows, in, group->n_experts, config->hidden_act);
    compute_rows(c, &ws->rows, ws->inner, group->n, (int)inner, NULL, NULL, out_forms);
    compute_linear(c, &ws->rows, out, group->n_experts);
}

enum { ADD_TOKENS = 8 }; /* tokens of a task */

/* Adds the weighted outputs of the group's experts to the stream. */
static void add_task(void *arg, int task, int thread) {
    (void)thread;
    const expert_group *group = arg;
    const batch *b = group->b;
    const model_config *config = &b->net->config;
    const workspace *ws = &b->net->workspace;
    int k = (int)config->num_experts_per_tok, first = group->experts[0], last = group->experts[group->n_experts - 1];
    size_t hidden = (size_t)config->hidden_size;
    int end = b->m - task * ADD_TOKENS < ADD_TOKENS ? b->m : (task + 1) * ADD_TOKENS;
    for (int t = task * ADD_TOKENS * k; t < end * k; t++) {
        const expert_route *route = &ws->routes[t];
        if (route->expert < first || route->expert > last) continue;
        b->net->compute->kernels.mul_add(ws->x + (size_t)(t / k) * hidden, ws->branch + (size_t)route->row * hidden,
                                         route->weight * (float)config->residual_multiplier, hidden);
    }
}

/* The shared expert, weighted by each token's gate [m]. */
static void run_shared(const batch *b, const packed_layer *layer, const float *gates) {
    const model_config *config = &b->net->config;
    workspace *ws = &b->net->workspace;
    compute *c = b->net->compute;
    const weight *gate = &layer->matrices[WEIGHT_SHARED_GATE], *up = &layer->matrices[WEIGHT_SHARED_UP],
                 *down = &layer->matrices[WEIGHT_SHARED_DOWN];
    int64_t hidden = config->hidden_size, inner = config->shared_expert_intermediate_size;
    linear_part in = {.w = gate, .up = up, .y = ws->inner, .stride = inner};
    linear_part out = {.w = down, .y = ws->branch, .stride = hidden};
    compute_rows(c, &ws->rows, ws->normed, b->m, (int)hidden, NULL, NULL, form_of(gate) | form_of(up));
    compute_gated(c, &ws->rows, &in, 1, config->hidden_act);
    compute_rows(c, &ws->rows, ws->inner, b->m, (int)inner, NULL, NULL, form_of(down));
    compute_linear(c, &ws->rows, &out, 1);
    for (int t = 0; t < b->m; t++) {
        float share = (float)(config->residual_multiplier / (1 + exp(-(double)gates[t])));
        c->kernels.mul_add(ws->x + t * hidden, ws->branch + t * hidden, share, (size_t)hidden);
    }
}

void experts_mlp(const batch *b, const packed_layer *layer) {
    const model_config *config = &b->net->config;
    workspace *ws = &b->net->workspace;
    int n_experts = (int)config->num_local_experts, k = (int)config->num_experts_per_tok;
    bool shares = config->shared_expert_intermediate_size > 0;
    float *gates = ws->routing + (ptrdiff_t)b->m * n_experts;
    linear_part routers[] = {{.w = &layer->matrices[WEIGHT_ROUTER], .y = ws->routing, .stride = n_experts},
                             {.w = &layer->matrices[WEIGHT_SHARED_ROUTER], .y = gates, .stride = 1}};
    compute_linear(b->net->compute, &ws->rows, routers, shares ? 2 : 1);
    for (int t = 0; t < b->m; t++)
        choose(ws->routing + (ptrdiff_t)t * n_experts, n_experts, k, config->norm_topk_prob,
               ws->routes + (ptrdiff_t)t * k);
    expert_group group = {.b = b};
    for (int expert = 0; expert < n_experts;) {
        expert = gather(&group, expert);
        if (group.n == 0) continue;
        run_group(&group, layer);
        compute_tasks(b->net->compute, (int)ceil_div(b->m, ADD_TOKENS), b->m * k * config->hidden_size, add_task,
                      &group);
    }
    if (shares) run_shared(b, layer, gates);
}
