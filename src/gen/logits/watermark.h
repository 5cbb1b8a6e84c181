/* Watermark of generated text (Kirchenbauer et al. 2023): the tokens before a position seed a list of green tokens
 * whose scores gain a bias, so that a detector with the key finds more green tokens in the text than expected by
 * chance.
 *
 * Seeds are Transformers': with "lefthash" key times the last token; with "selfhash" the least of key times the hashes
 * of a context token and of the candidate itself, for the 40 best candidates. The green list of a seed differs from
 * Transformers', which depends on torch's generator; it is the first ratio * vocab images of a keyed permutation of the
 * ids (a Feistel network of four rounds over the next power of four, walked until it falls on an id).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_LOGITS_WATERMARK_H
#define MN_GEN_LOGITS_WATERMARK_H

#include "gen/config/generation_values.h"

/* Adds the bias to the green tokens after ids[0..n); nothing while there are fewer ids than the context is wide. */
void watermark_apply(const watermark_config *config, const int32_t *ids, size_t n, float *scores, size_t vocab);

/* Whether `id` is green when it follows ids[0..n), n at least the context's width: for a detector. */
bool watermark_is_green(const watermark_config *config, const int32_t *ids, size_t n, int32_t id, size_t vocab);

/* The part of watermark_apply that uses the list. */
void watermark_add(float *scores, const int32_t *green, size_t n_green, double bias);

#endif
