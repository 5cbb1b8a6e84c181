/* Log-probabilities of tokens in the shapes of OpenAI's interface.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_SERVE_LOGPROBS_H
#define MNEME_SERVE_LOGPROBS_H

#include "base/mem.h"
#include "mneme.h"

/* The position in the text of an answer. */
typedef struct text_place {
    bool has_begun;
    size_t characters; /* that have begun */
} text_place;

typedef struct logprob_list {
    const mn_tokenizer *tokenizer;
    int top; /* alternatives of each token */
    size_t n;
    const int32_t *ids; /* [n][1 + top], as in mn_sequence; so the next */
    const float *logprobs;
} logprob_list;

/* {"content": [{"token", "logprob", "bytes", "top_logprobs"}], "refusal": null}. Tokens without text, as special ones,
 * are left out. A token whose bytes are no whole characters is spelled "bytes:\xe2\x80". */
void logprobs_put_chat(bytes *out, const logprob_list *list, text_place *place);
/* {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; offsets are characters. */
void logprobs_put_completion(bytes *out, const logprob_list *list, text_place *place);

#endif
