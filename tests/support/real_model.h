/* Real models with golden results (data/golden/README.md): token ids, greedy continuations, log-probabilities and
 * perplexity against a reference in float32. Tests of a model that is not installed are skipped, and counted.
 *
 * Costly tests leave out prompts of more than 500 ids, with sanitizers all but one, unless MNEME_LONG=1.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_REAL_MODEL_H
#define TESTS_REAL_MODEL_H

#include "support/engine.h"

typedef struct real_model {
    char *path; /* NULL: the model is not installed */
    json_doc *doc;
} real_model;

/* The model at the path `given`, or `name` where that is NULL; golden: its results, in the test data. */
void real_model_open(real_model *w, const char *given, const char *name, const char *golden);
void real_model_close(real_model *w);

/* MNEME_LONG=1, where that is affordable. */
bool real_model_is_long(void);

/* Only samples, because of the address or the thread sanitizer. */
bool real_model_is_brief(void);

/* Skips the test when the model is not installed. form: f32, auto, ... */
mn_model *real_model_load(const real_model *w, const char *form);

/* The prompt of that name, failing the test when there is none. */
const json *real_model_prompt(const real_model *w, const char *name);

/* The texts of prompts (rendered by the chat template where they have messages) encode to their ids and back. */
void real_model_check_ids(const real_model *w);

/* Greedy continuation of a prompt, past the end token, up to its field `until`: as far as the golden margins require
 * agreement; at most `most` tokens (0: all of them). */
void real_model_check_continuation(mn_model *model, const json *prompt, engine_cache cache, const char *until,
                                   size_t most);

/* The same for every prompt, with dynamic and static caches alternately. */
void real_model_check_continuations(const real_model *w, const char *form, const char *until, size_t most);

/* Every prompt's log-probabilities in f32, with those of its best five next tokens. */
void real_model_check_log_probabilities(const real_model *w);

/* The mean of the log-probabilities of a prompt's first n ids within `share` of the golden one. */
void real_model_check_part(const real_model *w, const char *form, const char *prompt, size_t n, double share);

/* The perplexity of the whole text in one window, likewise. */
void real_model_check_perplexity(const real_model *w, const char *form, double share);

#endif
