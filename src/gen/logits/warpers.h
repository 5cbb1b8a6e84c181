/* Warpers: they remove tokens from the distribution before sampling. Each works on the tokens that the one before it
 * kept.
 *
 * Definitions: Transformers 4.45-4.56 (temperature, top-k, top-p, min-p, typical, epsilon, eta). Min-p: Nguyen et al.
 * 2024, "Turning up the heat"; typical: Meister et al. 2022, "Locally typical sampling"; epsilon and eta: Hewitt et al.
 * 2022, "Truncation sampling as language model desmoothing"; top-p: Holtzman et al. 2019, "The curious case of neural
 * text degeneration". No warper sorts the vocabulary: the k-th best, and the token at which a probability is reached,
 * are found by selection.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_LOGITS_WARPERS_H
#define MN_GEN_LOGITS_WARPERS_H

#include "base/mem.h"

/* The remaining tokens, in order of id. */
typedef struct shortlist {
    float *values;                      /* [n] their scores */
    uint32_t *ids;                      /* [n]; not filled while is_whole */
    size_t n;                           /* never 0 */
    bool is_whole;                      /* all tokens: values are the caller's scores */
    size_t min_keep;                    /* no warper keeps fewer; top-k has its own count */
    float *own_values, *keys, *weights; /* [vocab] scratch */
    uint32_t *positions;                /* [vocab] scratch */
} shortlist;

mn_status shortlist_open(shortlist *list, size_t vocab, size_t min_keep);
void shortlist_close(shortlist *list);

/* The warpers work on scores[0..n), n up to vocab; shortlist_end writes the result back: scores of removed tokens are
 * -infinity. NaN removes its token; infinite scores remove all others. */
void shortlist_begin(shortlist *list, float *scores, size_t n);
void shortlist_end(shortlist *list, float *scores, size_t n);

void warp_temperature(shortlist *list, double temperature);
void warp_top_k(shortlist *list, size_t k);     /* ties with the k-th best are kept */
void warp_top_p(shortlist *list, double p);     /* of ties the lower id is better */
void warp_min_p(shortlist *list, double share); /* of the best one's probability */
void warp_typical(shortlist *list, double p);
void warp_epsilon(shortlist *list, double epsilon);
void warp_eta(shortlist *list, double epsilon);

#endif
