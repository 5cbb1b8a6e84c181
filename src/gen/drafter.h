/* Guesses of the next tokens, for assisted decoding: windows of the text itself that came before (prompt lookup: Saxena 2023), or what a
 * smaller model would say (Leviathan et al. 2023, "Fast inference from transformers via speculative decoding"), in the same vocabulary or
 * by way of text in another one. A guess costs nothing but time when it is wrong. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_DRAFTER_H
#define MN_GEN_DRAFTER_H

#include "gen/chooser.h"

enum { MOST_DRAFT = 64 }; /* tokens that are proposed at once, whatever is asked for */

typedef struct drafter drafter;

/* Whether the options' assistant can guess for the row's model: MN_E_ARG for another vocabulary that cannot be told in text. */
mn_status drafter_check(const search_setup *setup);

/* For one returned sequence. c: borrowed, its scores are overwritten by proposals; like: NULL, or the drafter of another sequence of the
 * row, before its first proposal. *out may be set on failure too; drafter_close takes it. */
mn_status drafter_open(drafter **out, chooser *c, const sequence *to, const drafter *like);
void drafter_close(drafter **d);

/* The most tokens that it may ever propose. */
size_t drafter_most(const search_setup *setup);

/* Proposes up to `most` tokens (MOST_DRAFT, drafter_most) behind those of the sequence; *n of them, perhaps none. */
mn_status drafter_propose(drafter *d, size_t most, int32_t *proposals, size_t *n);

/* The distribution [vocab] that proposal i was drawn from; NULL when it was no draw. Valid until the next proposals. */
const float *drafter_distribution(const drafter *d, size_t i);

/* How the last proposals fared. */
void drafter_learn(drafter *d, size_t n_proposed, size_t n_accepted);

#endif
