/* Cache strategies for property tests: each single one, combinations, sizes with many page boundaries; and a model with
 * tokens to feed them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_STRATEGIES_H
#define TESTS_STRATEGIES_H

#include "kv/plan.h"
#include "support/engine.h"

typedef struct engine_strategy {
    engine_cache cache; /* dtype is left open */
    bool is_lossy;      /* tokens are quantized some time after they were computed */
    bool flushes;       /* and when depends on the division into calls */
    bool forgets;       /* tokens that no query sees any more are dropped */
} engine_strategy;

enum { N_ENGINE_STRATEGIES = 27, N_STRATEGY_MODELS = 6, N_STRATEGY_IDS = 130, STRATEGY_PROMPT = 90 };
extern const engine_strategy engine_strategies[N_ENGINE_STRATEGIES];
extern const char *const strategy_models[N_STRATEGY_MODELS]; /* the last one has rope scaling */
extern const char *const strategy_dtypes[2];                 /* f32, bf16 */

/* The traits of strategies joined by +, as the table of kv/plan.h has them. */
unsigned strategy_traits(const char *joined);
/* Fails for a strategy of that table that a table of a test leaves out: the implementations of its n rows of `size`
 * bytes, the first of them at `first`. except: strategies that need no row; NULL: none. */
void strategy_need_rows(const char *table, const char *const *first, size_t size, size_t n, const char *except);

/* Whether all combinations are tried: in the long tier without sanitizers. */
bool strategy_is_long(void);
bool strategy_is_brief(void); /* under sanitizers: few combinations */
/* Whether strategy i is tried in that form (of strategy_dtypes) with the j-th model: the short tier takes one in three
 * combinations, with a sanitizer one in twelve; the long one all, with a sanitizer every other. */
bool strategy_tries(int i, int form, int j);

typedef struct strategy_fixture {
    const char *path;
    mn_model *model; /* computes in f32 */
    size_t vocab;
    int32_t ids[N_STRATEGY_IDS];
    uint64_t seed;
} strategy_fixture;

strategy_fixture strategy_fixture_open(const char *path, const char *cpu, int threads);
void strategy_fixture_close(strategy_fixture *w);

/* A folder with a model whose layers 0 and 2 have a window of 8 tokens and whose layer 1 has none. */
const char *strategy_hybrid_folder(void);

/* The cache of a strategy with the dtype `exact` for tokens that are not quantized. */
engine_cache strategy_cache(int i, const char *exact);

/* Feeds ids [length of the session, n): strategies that flush per call get realistic calls (a prompt, single tokens, a
 * chat message, single tokens), the others pieces as engine_feed, with the same results. */
mn_status strategy_try(const engine_strategy *strategy, mn_session *session, const int32_t *ids, size_t n, int piece,
                       uint64_t *seed, float *logits);
void strategy_feed(const engine_strategy *strategy, mn_session *session, const int32_t *ids, size_t n, int piece,
                   uint64_t *seed, float *logits);
/* Whether a call of the strategies that flush ends after `n` tokens. */
bool strategy_call_ends(size_t n);

/* Logits [N_STRATEGY_IDS][vocab] of all ids from a new session; the caller frees them. */
float *strategy_run(strategy_fixture *w, const engine_strategy *strategy, const char *exact, int chunk, int piece);
float *strategy_logits(const strategy_fixture *w); /* space for the logits */

/* Quantized tokens of the session's cache, summed over its entries, and whether there must be some: wherever a layer
 * sees more tokens than stay exact. */
int64_t strategy_quantized(const mn_session *session);
bool strategy_must_quantize(const mn_session *session);
/* The position up to which entries are quantized, summed over entries. */
int64_t strategy_quantize_ends(const mn_session *session);

#endif
