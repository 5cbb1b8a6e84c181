/* Decoding by contrasting layers (Chuang et al. 2023, "DoLa: Decoding by contrasting layers improves factuality"): the
 * last layer's distribution minus that of an earlier layer, of several the one that differs most. Rules of
 * Transformers 4.45-4.55.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEARCH_DOLA_H
#define MN_GEN_SEARCH_DOLA_H

#include "gen/config/generation_config.h"
#include "model/config.h"

/* The layers that a configuration names, ascending, each once: 0 the embedding, i the output of layer i. *layers is
 * owned by the caller, NULL with *n 0 when dola_layers is not set. MN_E_ARG when none of those listed lies before the
 * last layer. */
mn_status dola_read(int **layers, int *n, const layer_choice *choice, const model_config *model);

/* scores [vocab] become log softmax(logits) - log softmax(the chosen layer's logits), -infinity where the token has
 * less than a tenth of the best one's probability. early: [n_layers][vocab] logits of the layers, overwritten; scratch:
 * [vocab]. */
void dola_contrast(float *scores, const float *logits, float *early, size_t n_layers, size_t vocab, float *scratch);

#endif
