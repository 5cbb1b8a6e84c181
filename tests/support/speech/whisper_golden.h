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

/* The stored tensor whose name is made from a format and one or two numbers. */
const tensor *golden_tensor(const golden *g, const char *format, int64_t a, int64_t b);

/* Its values as float32 [*n]; the caller frees them. */
float *golden_values(const tensor *t, size_t *n);

/* A strategy with small pages; static caches have 96 tokens. */
mn_cache_options golden_options(const char *strategy, const char *config);

/* A session of this strategy (config: as in mn_cache_options, or NULL) with an encoded input. */
mn_session *golden_session(const golden *g, const char *strategy, const char *config, int64_t input);

/* Fails unless all n numbers are within the tolerance. */
void golden_near(const float *got, const float *wanted, size_t n, float tolerance, const char *what);

#endif
