/* The caches that are compared where none are named, and which of them are one thing on a model.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_CACHE_LIST_H
#define MNEME_CLI_CACHE_LIST_H

#include "base/mem.h"
#include "mneme.h"

enum { CACHE_NAME = 160, LISTED_CACHES = 20 };

typedef struct cache_choice {
    char name[CACHE_NAME], config[2 * CACHE_NAME]; /* --cache and --cache-config */
} cache_choice;

/* All caches of a model without encoder, for a text of so many tokens: windows hold half of it. */
void cache_list_all(cache_choice list[LISTED_CACHES], size_t n_tokens);

/* Removes each cache that keeps the same tokens in the same form and place as one before it, on this model, and appends
 * to `left_out` which they are: "hybrid (dynamic), mamba (dynamic)". base: the options besides name and config. *n: how
 * many there are. MN_E_NOMEM. */
mn_status cache_list_drop_same(cache_choice *list, int *n, mn_model *model, const mn_cache_options *base,
                               bytes *left_out);

/* The options of one of them. */
mn_cache_options cache_choice_options(const cache_choice *choice, const mn_cache_options *base);

#endif
