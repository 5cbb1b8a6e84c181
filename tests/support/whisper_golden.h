/* The tiny golden checkpoints of Whisper's architecture: cases, tensors, an open model, encoded sessions.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_WHISPER_GOLDEN_H
#define TESTS_WHISPER_GOLDEN_H

#include "support/engine.h"
#include "tensor/safetensors.h"

enum { MOST_INPUTS = 4 };

typedef struct golden {
    json_doc *doc;
    const json *cases;
    tensor_set *set;
    mn_model *model;
    int32_t end; /* the end token */
    size_t vocab, mels, frames;
    float *features[MOST_INPUTS]; /* [mels][frames] */
} golden;

/* folder: "golden/whisper/tiny80"; computed in f32 on two threads. */
golden golden_open(const char *folder);
void golden_close(golden *g);

/* The stored tensor of that name, made of a format and one or two numbers. */
const tensor *golden_tensor(const golden *g, const char *format, int64_t a, int64_t b);

/* It as float32 [*n]; the caller frees it. */
float *golden_values(const tensor *t, size_t *n);

/* A strategy in small pages, static ones of 96 tokens. */
mn_cache_options golden_options(const char *strategy, const char *config);

/* A session of this strategy (config: as in mn_cache_options, or NULL) for which an input was encoded. */
mn_session *golden_session(const golden *g, const char *strategy, const char *config, int64_t input);

/* Fails unless all n numbers are that near. */
void golden_near(const float *got, const float *wanted, size_t n, float tolerance, const char *what);

#endif
