/* What greedy search, sampling and the searches that end in them choose a token with: processors, warpers, the draw.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_CHOOSER_H
#define MN_GEN_CHOOSER_H

#include "gen/choice.h"
#include "gen/search.h"

/* Serves all sequences of a row, one after the other. */
typedef struct chooser {
    const search_setup *setup;
    processors *processors;
    choice choice; /* of sampling, and of kinds that want probabilities */
    float *scores; /* [vocab] of the position at hand */
    size_t vocab;
} chooser;

/* weighs: choice is opened in greedy search too. Closed by chooser_close in any case. */
mn_status chooser_open(chooser *c, const search_setup *setup, bool weighs);
void chooser_close(chooser *c);

/* c->scores become the processed scores of what follows ids [n]; logits [vocab] is what the model says, NULL: it is in c->scores
 * already. */
mn_status chooser_process(chooser *c, const int32_t *ids, size_t n, const float *logits);

/* By c->scores: the best token, or the draw of the sequence's next step. */
int32_t chooser_pick(chooser *c, const sequence *to);

#endif
