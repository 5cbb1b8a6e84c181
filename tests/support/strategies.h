/* Cache strategies that laws are tested with: each single one, combinations, sizes that make many edges; and a
 * model with tokens to feed them.
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

enum { N_ENGINE_STRATEGIES = 27, N_STRATEGY_MODELS = 6, N_STRATEGY_IDS = 130, STRATEGY_PROMPT = 90 };
extern const engine_strategy engine_strategies[N_ENGINE_STRATEGIES];
extern const char *const strategy_models[N_STRATEGY_MODELS]; /* the last one has scaled rotary angles */
extern const char *const strategy_dtypes[2];                 /* f32, bf16 */

/* Whether everything is tried with everything: in the long tier, where no sanitizer makes it last. */
bool strategy_is_long(void);
bool strategy_is_brief(void); /* the thread sanitizer: few are enough */
/* Whether strategy i is tried in that form (of strategy_dtypes) with the j-th model: the short tier takes every other
 * combination, under the thread sanitizer, which is slowest, every seventh. */
bool strategy_tries(int i, int form, int j);

typedef struct strategy_world {
    const char *path;
    mn_model *model; /* computes in f32 */
    size_t vocab;
    int32_t ids[N_STRATEGY_IDS];
    uint64_t seed;
} strategy_world;

strategy_world strategy_world_open(const char *path, const char *cpu, int threads);
void strategy_world_close(strategy_world *w);

/* A folder with a model of which layers 0 and 2 look through a window of 8 tokens and layer 1 sees everything. */
const char *strategy_hybrid_folder(void);

/* The cache of a strategy with tokens in `exact` that are not coded. */
engine_cache strategy_cache(int i, const char *exact);

/* Feeds ids [length of the session, n) in calls as they would come: those that flush get the prompt as one call, single
 * tokens, a turn of a chat, single tokens; the others pieces as engine_feed, with the same results. */
mn_status strategy_try(const engine_strategy *strategy, mn_session *session, const int32_t *ids, size_t n, int piece,
                       uint64_t *seed, float *logits);
void strategy_feed(const engine_strategy *strategy, mn_session *session, const int32_t *ids, size_t n, int piece,
                   uint64_t *seed, float *logits);
/* Whether a call of those that flush ends behind `n` tokens. */
bool strategy_call_ends(size_t n);

/* Logits [N_STRATEGY_IDS][vocab] of all ids through a session of its own; the caller frees them. */
float *strategy_run(strategy_world *w, const engine_strategy *strategy, const char *exact, int chunk, int piece);
float *strategy_logits(const strategy_world *w); /* room for them */

/* Tokens of the session's cache that are sealed, summed over its entries, and what must be: some, wherever a layer
 * sees beyond what stays exact. */
int64_t strategy_sealed(const mn_session *session);
bool strategy_must_seal(const mn_session *session);
/* Position up to which entries are sealed, summed over them. */
int64_t strategy_seal_ends(const mn_session *session);

#endif
