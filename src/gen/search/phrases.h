/* Phrases that a text must contain, each in one of its forms: its progress in them, and the tokens that continue them.
 *
 * After Transformers' constrained beam search (Anderson et al. 2017, "Guided open vocabulary image captioning with
 * constrained beam search"; Hu et al. 2019 for the banks): one phrase is current at a time, a token that does not
 * continue it moves it after the others, and beams are sorted into banks by how many tokens of phrases they hold.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEARCH_PHRASES_H
#define MN_GEN_SEARCH_PHRASES_H

#include "gen/config/generation_config.h"

typedef struct phrases {
    const phrase_list *required;
    size_t longest, n_forms; /* of all phrases */
    /* State of the text that was read last. */
    size_t *pending; /* [n_pending] phrases not started, in the order in which they are tried */
    size_t n_pending, n_done;
    size_t current, n_met; /* the current phrase, and how many of its tokens the text has; 0: none is current */
    size_t form;           /* of the current phrase: one that begins with these tokens */
} phrases;

/* No form of a phrase begins with another one of it. */
mn_status phrases_open(phrases *c, const phrase_list *required);
void phrases_close(phrases *c);

/* Reads a text from its beginning, the prompt included, as Transformers does. */
void phrases_read(phrases *c, const int32_t *ids, size_t n);
void phrases_add(phrases *c, int32_t id);

static inline bool phrases_are_met(const phrases *c) {
    return c->n_done == c->required->n;
}

/* The progress of the text: the tokens of complete phrases, each counted as the longest one, and more the fewer are
 * missing in the current one. */
size_t phrases_bank(const phrases *c);

/* Tokens that continue phrases, some perhaps several times; [n_forms] at most. */
size_t phrases_list(const phrases *c, int32_t *ids);

#endif
