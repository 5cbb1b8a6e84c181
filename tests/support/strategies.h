/* Cache strategies that laws are tested with: each single one, combinations, sizes that make many edges.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_STRATEGIES_H
#define TESTS_STRATEGIES_H

#include "support/engine.h"

typedef struct engine_strategy {
    engine_cache cache; /* dtype is left open */
    bool is_lossy;      /* the past is seen in fewer bits some time after it was new */
    bool flushes;       /* and when depends on what was one call */
    bool forgets;       /* tokens that no query sees any more are gone */
} engine_strategy;

enum { N_ENGINE_STRATEGIES = 24 };
extern const engine_strategy engine_strategies[N_ENGINE_STRATEGIES];

/* The cache of a strategy with tokens in `exact` that are not coded. */
engine_cache strategy_cache(int i, const char *exact);

/* Feeds ids: those that flush get [0, n_prompt) as one call and the rest one by one, the others pieces as
 * engine_feed. */
void strategy_feed(const engine_strategy *strategy, mn_session *session, const int32_t *ids, size_t n_prompt,
                   size_t n, int piece, uint64_t *seed, float *logits);

/* Tokens of the session's cache that are sealed, summed over its entries. */
int64_t strategy_sealed(const mn_session *session);

#endif
