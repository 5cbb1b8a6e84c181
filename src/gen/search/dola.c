/* SPDX-License-Identifier: Apache-2.0 */
#include "gen/search/dola.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "gen/logits/scores.h"

/* "low" and "high": every second layer of one half, of at most twenty layers. If the embedding is tied to the head, its
 * early logits only predict the token itself, so "low" begins at a later layer. */
static void half_of(int *first, int *end, layer_side side, const model_config *model) {
    enum { MOST_HALF = 20 };
    int n = (int)model->num_hidden_layers, half = n / 2 < MOST_HALF ? n / 2 : MOST_HALF;
    if (side == LAYERS_HIGH) {
        *first = n <= 2 * MOST_HALF ? half : n - MOST_HALF;
        *end = n;
        return;
    }
    *first = !model->tie_word_embeddings ? 0 : n > 2 ? 2 : n == 2 ? 1 : 0;
    *end = *first < half ? half : *first + 1;
}

mn_status dola_read(int **layers, int *n, const layer_choice *choice, const model_config *model) {
    int most = (int)model->num_hidden_layers, first = 0, end = 0;
    *layers = NULL;
    *n = 0;
    if (choice->side == LAYERS_NONE) return MN_OK;
    bool listed = choice->side == LAYERS_LISTED;
    if (!listed) half_of(&first, &end, choice->side, model);
    int *out = mem_alloc((size_t)most, sizeof *out);
    if (!out) return MN_E_NOMEM;
    for (int layer = 0; layer < most; layer++) {
        bool is_wanted =
            listed ? id_list_has(&choice->layers, layer) : layer >= first && layer < end && (layer - first) % 2 == 0;
        if (is_wanted) out[(*n)++] = layer;
    }
    if (*n > 0) {
        *layers = out;
        return MN_OK;
    }
    mem_free(out);
    MN_FAIL(MN_E_ARG, "dola_layers names no layer before the last one, allowed: 0 to %d", most - 1);
}

/* Twice the Jensen-Shannon divergence of two distributions given as logarithms. */
static double divergence(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        double p = exp((double)a[i]), q = exp((double)b[i]), middle = (p + q) / 2;
        if (middle > 0) sum += middle * (2 * log(middle) - (double)a[i] - (double)b[i]);
    }
    return sum;
}

void dola_contrast(float *scores, const float *logits, float *early, size_t n_layers, size_t vocab, float *scratch) {
    static const float MOST_BEHIND = 2.302585093f; /* log 10 */
    const float *chosen = NULL;
    double most = -INFINITY;
    memcpy(scratch, logits, vocab * sizeof *logits);
    scores_log_softmax(scratch, vocab);
    for (size_t i = 0; i < n_layers; i++) {
        float *layer = early + i * vocab;
        scores_log_softmax(layer, vocab);
        double d = n_layers > 1 ? divergence(scratch, layer, vocab) : 0;
        if (d > most || !chosen) {
            most = d;
            chosen = layer;
        }
    }
    float least = scores_max(scratch, vocab) - MOST_BEHIND;
    for (size_t i = 0; i < vocab; i++) scores[i] = scratch[i] >= least ? scratch[i] - chosen[i] : -INFINITY;
}
