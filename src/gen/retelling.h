/* A sequence of one vocabulary told in another one, by way of its text: what a draft model with a tokenizer of its own reads, and what
 * it says in the words of the model that it drafts for. SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_GEN_RETELLING_H
#define MN_GEN_RETELLING_H

#include "text/tokenizer.h"

/* The text of the sequence in the words of a draft model with another vocabulary. */
typedef struct retelling {
    const tokenizer *from, *to;
    tokenizer_stream *stream; /* of `from` */
    size_t n_told;            /* ids of the sequence that are in the text */
    bytes text;
    token_list ids; /* of `to`: of the text, */
    size_t begun;   /* of which those of text[0 .. settled) stay as they are */
    size_t settled;
    bytes before, behind, joined; /* scratch */
    token_list trial;             /* scratch */
} retelling;

/* Closed by retelling_close in any case. */
mn_status retelling_open(retelling *r, const tokenizer *from, const tokenizer *to);
void retelling_close(retelling *r);

/* Makes r->ids those of the text of ids [n], which begin with those given before. */
mn_status retelling_tell(retelling *r, const int32_t *ids, size_t n);

/* What was appended to r->ids behind the first `told`, in tokens of `from` that follow ids [n]: up to `most`, perhaps none. */
mn_status retelling_back(retelling *r, const int32_t *ids, size_t n, size_t told, size_t most, int32_t *proposals, size_t *n_proposals);

#endif
