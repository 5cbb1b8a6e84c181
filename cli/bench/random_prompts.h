/* Prompts of random words that have the requested number of tokens, where the server counts them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_BENCH_RANDOM_PROMPTS_H
#define MNEME_CLI_BENCH_RANDOM_PROMPTS_H

#include "bench/http_client.h"

typedef struct random_prompts {
    http_client *client;
    bool (*stop)(void);
    uint64_t seed;
    size_t prefix_len, input_len; /* tokens: of the beginning that all prompts have, of what follows it */
    bool has_tokenizer;           /* the server answers at /tokenize; without it a word counts as a token */
    double tokens_per_word;
    bytes prefix;
} random_prompts;

/* Finds out whether there is a tokenizer and makes the prefix. client, stop, seed and the lengths are set. */
mn_status random_prompts_open(random_prompts *p);
void random_prompts_close(random_prompts *p);

/* The prompt of a number: equal numbers and seeds give equal texts. */
mn_status random_prompts_make(random_prompts *p, size_t number, bytes *out);

#endif
