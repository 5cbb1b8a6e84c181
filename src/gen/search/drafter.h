/* Draft tokens for assisted decoding: what followed the same n-gram earlier in the text (prompt lookup: Saxena 2023),
 * or the output of a smaller model (Leviathan et al. 2023, "Fast inference from transformers via speculative
 * decoding"), in the same vocabulary or, translated through text, in another one. A wrong draft costs only time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEARCH_DRAFTER_H
#define MN_GEN_SEARCH_DRAFTER_H

#include "gen/search/chooser.h"

enum { MOST_DRAFT = 64 }; /* most tokens proposed at once */

typedef struct drafter drafter;

/* Whether the options' assistant can draft for the row's model: MN_E_ARG for another vocabulary that cannot be
 * translated. */
mn_status drafter_check(const search_setup *setup);

/* For one returned sequence. c: borrowed, its scores are overwritten by proposals; like: NULL, or the drafter of
 * another sequence of the row. *out may be set on failure too; drafter_close takes it. */
mn_status drafter_open(drafter **out, chooser *c, const sequence *to, const drafter *like);
void drafter_close(drafter **d);
/* Releases the pages of the draft model. d: NULL: the sequence has ended. */
void drafter_drop_pages(drafter *d);

/* The most tokens that it may ever propose. */
size_t drafter_most(const search_setup *setup);

/* Lists the prompt for the draft model, so that the drafters of the row's other sequences can share it with
 * drafter_share when it is computed. Lists nothing where there is nothing to share. */
void drafter_list_prompt(drafter *d, feed_list *next);
mn_status drafter_share(drafter *d, const drafter *from);

/* Starts up to `most` proposals (MOST_DRAFT, drafter_most) after the tokens of the sequence; a draft model stores them
 * in the room after these. Lists what must be computed for the next one; nothing listed: the proposals are complete. */
mn_status drafter_begin(drafter *d, size_t most, int32_t *proposals, feed_list *next);

/* When the listed feed is computed: takes the next proposal, and lists as drafter_begin does. drafter_choose chooses it
 * ahead, on any thread (search_kind.choose). */
void drafter_choose(drafter *d);
mn_status drafter_advance(drafter *d, feed_list *next);

/* The number of proposals, perhaps 0. */
size_t drafter_count(const drafter *d);

/* The distribution [vocab] that proposal i was drawn from; NULL when it was not drawn. Valid until the next proposals.
 */
const float *drafter_distribution(const drafter *d, size_t i);

/* Reports how many of the last proposals were accepted. */
void drafter_learn(drafter *d, size_t n_proposed, size_t n_accepted);

#endif
