/* Helpers of the bench programs, which end when something fails.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef MN_BENCH_PROGRAM_H
#define MN_BENCH_PROGRAM_H

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "mneme.h"

enum { TEXT_LIMIT = 1 << 26 };

static inline void must(mn_status status) {
    if (status == MN_OK) return;
    fprintf(stderr, "%s\n", mn_last_error());
    exit(1);
}

static inline void *must_have(void *block) {
    if (!block) must(MN_E_NOMEM);
    return block;
}

typedef struct text_ids {
    int32_t *ids; /* mn_free */
    size_t n;
} text_ids;

static inline text_ids tokens_of(const mn_model *model, const char *text, size_t n) {
    text_ids list = {0};
    must(mn_tokenize(mn_model_tokenizer(model), text, n, MN_ADD_SPECIAL, &list.ids, &list.n));
    return list;
}

static inline text_ids read_tokens(const mn_model *model, const char *path) {
    bytes text = {0};
    must(file_read(&text, path, TEXT_LIMIT));
    text_ids list = tokens_of(model, text.data, text.n);
    bytes_clear(&text);
    return list;
}

static inline mn_model *open_model(const char *name, int threads) {
    const char *compute_type = getenv("COMPUTE_TYPE"); /* $COMPUTE_TYPE or f32 */
    mn_model_options options;
    mn_model_options_init(&options, sizeof options);
    options.threads = threads;
    options.compute_type = compute_type ? compute_type : "f32";
    char *path = NULL;
    mn_model *model = NULL;
    must(mn_model_find(&path, name));
    must(mn_model_open(&model, path, &options));
    mn_free(path);
    return model;
}

/* Calibrates the model with a text; its sessions use the calibration from now on. It is written to the folder
 * $MNEME_CALIBRATIONS. */
static inline void calibrate(mn_model *model, const text_ids *text) {
    const char *folder = getenv("MNEME_CALIBRATIONS");
    bytes path = {0};
    must(path_join(&path, folder ? folder : ".", "calibration.safetensors"));
    must(mn_cache_calibrate(model, text->ids, text->n, path.data));
    must(mn_model_set_calibration(model, path.data));
    bytes_clear(&path);
}

static inline int best_of(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

#endif
