/* How greedy search, sampling and assisted decoding choose a token: processors, warpers, the draw.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEARCH_CHOOSER_H
#define MN_GEN_SEARCH_CHOOSER_H

#include "gen/logits/choice.h"
#include "gen/search/search.h"

/* Used by all sequences of a row in turn. */
typedef struct chooser {
    const search_setup *setup;
    processors *processors;
    choice choice; /* of sampling, and of kinds that need probabilities */
    float *scores; /* [vocab] of the position at hand */
    size_t vocab;
} chooser;

/* weighs: opens `choice` for greedy search too. Closed by chooser_close in any case. */
mn_status chooser_open(chooser *c, const search_setup *setup, bool weighs);
void chooser_close(chooser *c);

/* Computes c->scores, the processed scores after ids [n], from the model's logits [vocab]; NULL: these are in c->scores
 * already. */
mn_status chooser_process(chooser *c, const int32_t *ids, size_t n, const float *logits);

/* By c->scores: the best token, or the draw for the at-th new token of the sequence. */
int32_t chooser_pick(chooser *c, const sequence *to, size_t at);

#endif
