/* `mneme advise`: which cache holds so many tokens in so much memory, and what each costs on a text.
 *
 *   options -> plan.c (bytes) -> measure.c (speed, divergence) -> choose.c (front, one of them) -> report.c, picture.c
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_ADVISE_H
#define MNEME_CLI_ADVISE_H

#include "bench/comparison.h"

enum { LEAST_CONTEXT = 64, ANY_CONTEXT = -1 };

/* Two speeds that differ by less are not told apart. */
#define SPEED_TOLERANCE 0.9

typedef struct advised_cache {
    cache_choice is;
    char refused[320];       /* why the model does not take it; "": it does */
    uint64_t bytes;          /* of the caches of all rows that hold the context, offloaded bytes included */
    uint64_t peak_bytes;     /* the most that they have in memory, which has to fit */
    int64_t largest_context; /* that fits in the memory; ANY_CONTEXT: any */
    bool fits, is_measured, is_on_front;
    cache_measure m;
} advised_cache;

typedef struct advice {
    const options *o;
    loaded_model e;
    mn_cache_options cache; /* of all caches, but name and config */
    int64_t context, rows;
    uint64_t memory, fixed_bytes; /* fixed_bytes: of it, what weights and buffers take */
    double time_ms;
    prompt text;
    compared_text t;       /* the text up to the depth of the measurements, repeated where it is shorter */
    size_t compared_depth; /* tokens before and in the compared segment */
    uint64_t computed_tokens;
    double whole_ms; /* about what measuring all of it takes; 0: not known, or done */
    advised_cache caches[LISTED_CACHES];
    int n, n_fit, n_measured;
    int recommended; /* index of a cache */
} advice;

/* What a token takes: computed in one call with others, and by itself. */
typedef struct pass_cost {
    double token_ms, single_ms;
} pass_cost;

/* Of one run of the text: its tokens, and how many of them are compared. */
typedef struct pass_effort {
    size_t depth, n_compared;
} pass_effort;

/* Bytes of every cache. MN_E_NOMEM with the smallest memory that would do when none fits. */
mn_status advise_plan(advice *a);

/* Runs dynamic, then the caches that fit, while the time lasts. */
mn_status advise_measure(advice *a);

/* The effort with which n_passes take left_ms or less, or the least one: few tokens are compared rather than shallow
 * ones. depth: `most`, and LEAST_CONTEXT or less where the time is short. */
pass_effort advise_effort(const pass_cost *cost, int n_passes, double left_ms, size_t most);

/* Sets is_on_front and recommended. */
void advise_choose(advice *a);

/* Why the recommended one is, in one sentence; the flags of a cache. */
void advise_put_sentence(bytes *b, const advice *a);
void advise_put_flags(bytes *b, const advice *a, const advised_cache *k);

/* Figures of a measured cache: tokens a second in the deepest segment, the mean divergence with its standard error.
 * NAN: not known, as where a cache has neither dropped nor quantized a token yet. */
double advised_speed(const advice *a, const advised_cache *k);
double advised_divergence(const advice *a, const advised_cache *k);
double advised_error(const advice *a, const advised_cache *k);
/* Tokens in the cache in the middle of a segment. */
size_t segment_depth(const segment *s);

void advise_put_table(bytes *b, const advice *a);
void advise_put_json(bytes *b, const advice *a);

/* Draws quality against bytes and speed against depth. */
void advise_put_picture(bytes *b, const advice *a);

#endif
