/* Phrases that a text must hold: how far a text is with them, and which tokens bring it further.
 *
 * After Transformers' constrained beam search (Anderson et al. 2017, "Guided open vocabulary image captioning with constrained
 * beam search"; Hu et al. 2019 for the banks): of several phrases one is under way at a time, a token that does not continue it
 * puts it back behind the others, and beams are sorted into banks by how many tokens of phrases they hold.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_PHRASES_H
#define MN_GEN_PHRASES_H

#include "gen/generation_config.h"

typedef struct phrases {
    const id_lists *wanted;
    size_t longest;
    /* Of the text that was read last. */
    size_t *pending; /* [n_pending] phrases not begun, in the order in which they are tried */
    size_t n_pending, n_done;
    size_t current, n_met; /* the phrase under way, and how many of its tokens are there; 0: none is */
} phrases;

mn_status phrases_open(phrases *c, const id_lists *wanted);
void phrases_close(phrases *c);

/* Reads a text from its beginning, the prompt included, as Transformers does. */
void phrases_read(phrases *c, const int32_t *ids, size_t n);
void phrases_add(phrases *c, int32_t id);

static inline bool phrases_are_met(const phrases *c) {
    return c->n_done == c->wanted->n;
}

/* How far the text is: the tokens of whole phrases, each counted as the longest one, and more the less is missing of the one
 * under way. */
size_t phrases_bank(const phrases *c);

/* Tokens that bring the text further, some perhaps several times; [wanted->n] at most. */
size_t phrases_list(const phrases *c, int32_t *ids);

#endif
