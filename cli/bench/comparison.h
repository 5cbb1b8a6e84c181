/* One text through caches: what `dynamic` expects behind some of its tokens, and how far the others are from that.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MNEME_CLI_COMPARISON_H
#define MNEME_CLI_COMPARISON_H

#include "bench/cache_list.h"
#include "input.h"
#include "loaded_model.h"

enum { MAX_SEGMENTS = 16 };

/* Tokens that are computed one by one, as in generation. The distribution of the next token is looked at n times:
 * behind ids[begin - 1], and behind each of ids[begin .. begin + n - 2]. What is before and between segments is
 * computed in one call. */
typedef struct segment {
    size_t begin, n;
    bool is_compared; /* with dynamic; false: only timed */
} segment;

typedef struct compared_text {
    mn_model *model;
    mn_cache_options cache; /* options of all caches, but name and config */
    int32_t *ids;           /* [n], owned */
    size_t n, n_text;       /* n_text: of them, those of the text; behind it the best token of dynamic is the next */
    const char *source;     /* of the text, for people and JSON; borrowed */
    double end_ms;          /* of clock_ms, when a run ends with MN_E_FULL; 0: never */
    segment segments[MAX_SEGMENTS];
    int n_segments;
    size_t vocab_size, n_compared;
    float *reference;           /* logits of dynamic, [n_compared][vocab_size], owned */
    double *reference_log_sums; /* [n_compared], log of the sum of their exponentials, owned */
} compared_text;

/* A text through a cache. Sums are over the compared tokens, in nats. */
typedef struct cache_measure {
    mn_cache_info cache; /* at the end; its strings are no longer valid */
    char dtype[8];
    double prompt_ms;               /* of what was computed in one call */
    double new_ms[MAX_SEGMENTS];    /* of each segment, in which n - 1 tokens are computed */
    double median_ms[MAX_SEGMENTS]; /* of one token of them; NAN where there is none */
    bool has_begun; /* when the last token was compared, tokens had been quantized where the cache quantizes, and
                     * dropped where it has a window */
    size_t same;    /* how often the best token is that of dynamic */
    double kl, kl_squares, nll, reference_nll;
} cache_measure;

/* The tokens of --text or --ids; without any, a text that is built in, or random tokens where the model has no
 * tokenizer. *source: borrowed, for compared_text. */
mn_status comparison_read_text(prompt *text, const char **source, const options *o, const loaded_model *e);

/* Sets the segments of a text whose other members are set, and makes room for what dynamic expects. MN_E_NOMEM. */
mn_status comparison_plan(compared_text *t, const segment *segments, int n);
void comparison_clear(compared_text *t);

/* A session for it: where the cache allocates all at once, for the whole text. */
mn_status comparison_open(mn_session **session, const compared_text *t, const cache_choice *choice);

/* Computes the text with dynamic and keeps what it expects; then with any cache. MN_E_CANCELLED after Ctrl-C. */
mn_status comparison_run_reference(compared_text *t, cache_measure *out);
mn_status comparison_run(const compared_text *t, const cache_choice *choice, cache_measure *out);

#endif
