/* Shortcuts to open models and sessions of the test data and to feed them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_ENGINE_H
#define TESTS_ENGINE_H

#include "mneme.h"
#include "support/support.h"

/* path: "embedded", "golden/<family>" of the test data, or an absolute path. cpu and compute: as in
 * mn_model_options. */
/* Blocks of memory in use, without those that the model's pool of pages keeps for reuse. */
int64_t engine_live(const mn_model *model);

/* For models of tests whose subject is not threads: 2, and in the short tier at three of four calls 1, because most of
 * the second thread's time is waiting. */
int engine_threads(void);

mn_model *engine_model(const char *path, const char *compute, const char *cpu, int threads);
int32_t engine_vocab(const mn_model *model);
/* Calibrates the model with ids [n] and saves the calibration to `path`; the model's sessions use it from now on. */
void engine_calibrate(mn_model *model, const int32_t *ids, size_t n, const char *path);

typedef struct engine_cache {
    const char *implementation, *dtype; /* NULL: "dynamic", "auto" */
    int page_tokens, prefill_chunk;
    int64_t max_cache_len; /* 0: 512 for static ones, else no limit */
    const char *config;    /* NULL: nothing */
} engine_cache;

mn_cache_options engine_cache_options(engine_cache cache);
mn_session *engine_session(mn_model *model, engine_cache cache);

/* n random token ids below `vocab`. */
void engine_ids(uint64_t *seed, int32_t *ids, size_t n, int32_t vocab);

/* Feeds ids in pieces of `piece` tokens (0: at once; -1: random sizes from 1 to 9 by *seed). logits: [n][vocab] or
 * NULL. */
void engine_feed(mn_session *session, const int32_t *ids, size_t n, int piece, uint64_t *seed, float *logits);

/* Logits [n][vocab] from a new session; the caller frees them. */
float *engine_logits(mn_model *model, engine_cache cache, const int32_t *ids, size_t n, int piece, uint64_t *seed);

/* Fails unless both rows of [n][vocab] floats have the same bits. */
void engine_same_bits(const float *got, const float *wanted, size_t n, size_t vocab, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The largest absolute difference; infinite for NaN. */
double engine_distance(const float *a, const float *b, size_t n);

/* Spread of n logits, the unit of distances; and the root mean square difference. */
double engine_spread(const float *x, size_t n);
double engine_mean_square(const float *a, const float *b, size_t n);

/* Fails unless the logits after the session's last token have these bits. */
void engine_ends_with(const mn_session *session, const float *wanted, const char *what);

/* Reads a JSON list of at most `most` token ids; returns their number. NULL: none. */
size_t engine_read_ids(const json *list, int32_t *ids, size_t most);

/* The model's configuration with the fields of a JSON object. */
mn_generation_config *engine_config(const mn_model *model, const json *fields);

#endif
