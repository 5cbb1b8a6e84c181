/* Translates token ids between two vocabularies through their text: the input of a draft model with another tokenizer,
 * and its output in the target model's vocabulary.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_SEARCH_VOCABULARY_TRANSLATION_H
#define MN_GEN_SEARCH_VOCABULARY_TRANSLATION_H

#include "text/tokenizer/tokenizer.h"

/* The sequence in the vocabulary of the draft model. */
typedef struct vocabulary_translation {
    const tokenizer *from, *to;
    tokenizer_stream *stream; /* of `from` */
    size_t n_decoded;         /* ids of the sequence that are in the text */
    bytes text;
    token_list ids;     /* of `to`: of the text, */
    size_t n_final_ids; /* of which those of text[0 .. n_final_bytes) are final */
    size_t n_final_bytes;
    bytes before, behind, joined; /* scratch */
    token_list trial;             /* scratch */
} vocabulary_translation;

/* Closed by vocabulary_translation_close in any case. */
mn_status vocabulary_translation_open(vocabulary_translation *r, const tokenizer *from, const tokenizer *to);
void vocabulary_translation_close(vocabulary_translation *r);

/* Sets r->ids to the translation of ids [n], which begin with those given before. */
mn_status vocabulary_translation_update(vocabulary_translation *r, const int32_t *ids, size_t n);

/* What was appended to r->ids after the first `n_translated`, in tokens of `from` that follow ids [n]: up to `most`,
 * perhaps none. */
mn_status vocabulary_translation_reverse(vocabulary_translation *r, const int32_t *ids, size_t n, size_t n_translated,
                                         size_t most, int32_t *proposals, size_t *n_proposals);

#endif
