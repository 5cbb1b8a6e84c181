/* Embeddings: the final hidden states of a text, pooled.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "base/options.h"
#include "session/pass.h"

typedef enum pooling { POOLING_NONE, POOLING_MEAN, POOLING_CLS, POOLING_LAST, N_POOLINGS } pooling;

static const char *const pooling_names[N_POOLINGS] = {"none", "mean", "cls", "last"};

void mn_embed_options_init(mn_embed_options *options, size_t size) {
    const mn_embed_options full = {.pooling = pooling_names[POOLING_MEAN]};
    options_init(options, size, &full, sizeof full);
}

static mn_status pooling_read(pooling *out, const char *text) {
    for (int i = 0; text && i < N_POOLINGS; i++) {
        if (strcmp(text, pooling_names[i]) != 0) continue;
        *out = (pooling)i;
        return MN_OK;
    }
    MN_FAIL(MN_E_ARG, "pooling is '%.40s', allowed: none, mean, cls, last", text ? text : "");
}

static mn_status check_text(const model_core *model, size_t n) {
    const model_config *c = &model->net.config;
    if (model->encoder)
        MN_FAIL(MN_E_UNSUPPORTED, "'%s' is a speech model, allowed: models that generate text", model->what);
    if (c->positions == POSITIONS_LEARNED && n > (size_t)c->max_position_embeddings) {
        MN_FAIL(MN_E_ARG, "the text has %zu tokens, allowed: 1 to %lld, for which the model has learned positions", n,
                (long long)c->max_position_embeddings);
    }
    return MN_OK;
}

/* In one feed: rotary angles may depend on the length of the whole text. */
static mn_status compute_states(mn_model *model, const int32_t *ids, size_t n, float *states) {
    mn_session *session = NULL;
    MN_TRY(mn_session_open(&session, model, NULL));
    feed f = {.session = session, .ids = ids, .n = n, .states = states, .skips_logits = true};
    mn_status status = feed_run(&f);
    mn_session_close(&session);
    return status;
}

static void mean_of(float *out, const float *rows, size_t n, size_t width) {
    enum { COLUMNS = 64 }; /* summed together, so that each line of memory is read once */
    for (size_t at = 0; at < width; at += COLUMNS) {
        size_t n_columns = width - at < COLUMNS ? width - at : COLUMNS;
        double sums[COLUMNS] = {0};
        for (size_t t = 0; t < n; t++) {
            for (size_t j = 0; j < n_columns; j++) sums[j] += (double)rows[t * width + at + j];
        }
        for (size_t j = 0; j < n_columns; j++) out[at + j] = (float)(sums[j] / (double)n);
    }
}

/* Computes the states and reduces them to one row. */
static mn_status compute_pooled(mn_model *model, const int32_t *ids, size_t n, pooling kind, float *out) {
    size_t width = (size_t)model->core->net.config.hidden_size;
    float *states = mem_alloc_raw(n, width * sizeof *states);
    if (!states) return MN_E_NOMEM;
    mn_status status = compute_states(model, ids, n, states);
    if (status == MN_OK && kind == POOLING_MEAN) mean_of(out, states, n, width);
    if (status == MN_OK && kind == POOLING_CLS) memcpy(out, states, width * sizeof *out);
    if (status == MN_OK && kind == POOLING_LAST) memcpy(out, states + (n - 1) * width, width * sizeof *out);
    mem_free(states);
    return status;
}

mn_status mn_model_embed(mn_model *model, const int32_t *ids, size_t n, const mn_embed_options *given, float *out) {
    size_t width = (size_t)model->core->net.config.hidden_size;
    mn_embed_options options;
    pooling kind;
    mn_embed_options_init(&options, sizeof options);
    MN_TRY(options_take(&options, sizeof options, given, "mn_embed_options"));
    MN_TRY(pooling_read(&kind, options.pooling));
    MN_TRY(check_text(model->core, n));
    bool is_pooled = kind != POOLING_NONE;
    MN_TRY(is_pooled ? compute_pooled(model, ids, n, kind, out) : compute_states(model, ids, n, out));
    size_t n_rows = is_pooled ? 1 : n;
    for (size_t t = 0; options.normalize && t < n_rows; t++) f32_normalize(out + t * width, out + t * width, width);
    return MN_OK;
}
